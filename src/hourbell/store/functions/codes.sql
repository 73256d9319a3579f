-- Codes: the names of the numbers that small columns hold. PostgreSQL replaces each call by its number when it plans a
-- statement, so a name costs nothing and partial indexes, whose conditions have the number, are still used.
-- Example: `where status = hourbell.fate_dead()`. engine/codes.py and engine/life/settlement.py have the same numbers.
-- This file is loaded before all others: see function_set.py. So it also has `as_json`, which many of them use.

-- How an execution ended: outcomes.fate.
create or replace function hourbell.fate_succeeded() returns smallint
language sql immutable parallel safe return 0::smallint;
create or replace function hourbell.fate_dead() returns smallint
language sql immutable parallel safe return 1::smallint;
create or replace function hourbell.fate_cancelled() returns smallint
language sql immutable parallel safe return 2::smallint;
create or replace function hourbell.fate_superseded() returns smallint
language sql immutable parallel safe return 3::smallint;
create or replace function hourbell.fate_skipped() returns smallint
language sql immutable parallel safe return 4::smallint;

-- The status of a recurring job: jobs.status.
create or replace function hourbell.job_scheduled() returns smallint
language sql immutable parallel safe return 0::smallint;
create or replace function hourbell.job_paused() returns smallint
language sql immutable parallel safe return 1::smallint;
create or replace function hourbell.job_ended() returns smallint
language sql immutable parallel safe return 2::smallint;
create or replace function hourbell.job_cancelled() returns smallint
language sql immutable parallel safe return 3::smallint;

-- What a worker reports of a claimed execution: p_kinds of `settle`.
create or replace function hourbell.settlement_succeeded() returns smallint
language sql immutable parallel safe return 0::smallint;
create or replace function hourbell.settlement_retry() returns smallint  -- failed, and will be retried
language sql immutable parallel safe return 1::smallint;
create or replace function hourbell.settlement_dead() returns smallint
language sql immutable parallel safe return 2::smallint;
create or replace function hourbell.settlement_cancelled() returns smallint
language sql immutable parallel safe return 3::smallint;
create or replace function hourbell.settlement_released() returns smallint  -- returned, not started
language sql immutable parallel safe return 4::smallint;
create or replace function hourbell.settlement_accepted() returns smallint  -- the target will report how it ended
language sql immutable parallel safe return 5::smallint;
create or replace function hourbell.settlement_gone() returns smallint  -- dead, and its job will be paused
language sql immutable parallel safe return 6::smallint;
create or replace function hourbell.settlement_interrupted() returns smallint  -- returned: its worker was stopped
language sql immutable parallel safe return 7::smallint;
create or replace function hourbell.settlement_snoozed() returns smallint  -- returned, because its handler asked for it
language sql immutable parallel safe return 8::smallint;
-- Sets of settlements: ended (the execution ends), dead (it ends as a dead letter), unfinished (it does not end),
-- returned (it goes back to the gate), rerun (it was begun, and goes back without an ended attempt).
create or replace function hourbell.settlements_ended() returns smallint[]
language sql immutable parallel safe
return array[
  hourbell.settlement_succeeded(), hourbell.settlement_dead(), hourbell.settlement_cancelled(),
    hourbell.settlement_gone()];
create or replace function hourbell.settlements_dead() returns smallint[]
language sql immutable parallel safe
return array[hourbell.settlement_dead(), hourbell.settlement_gone()];
create or replace function hourbell.settlements_unfinished() returns smallint[]
language sql immutable parallel safe
return array[
  hourbell.settlement_retry(), hourbell.settlement_released(), hourbell.settlement_accepted(),
    hourbell.settlement_interrupted(),
  hourbell.settlement_snoozed()];
create or replace function hourbell.settlements_returned() returns smallint[]
language sql immutable parallel safe
return array[
  hourbell.settlement_retry(), hourbell.settlement_released(), hourbell.settlement_interrupted(),
    hourbell.settlement_snoozed()];
create or replace function hourbell.settlements_rerun() returns smallint[]
language sql immutable parallel safe
return array[hourbell.settlement_interrupted(), hourbell.settlement_snoozed()];

-- The namespaces of unique_keys.space: unique keys, and names of jobs that were put.
create or replace function hourbell.key_space_unique() returns smallint
language sql immutable parallel safe return 0::smallint;
create or replace function hourbell.key_space_name() returns smallint
language sql immutable parallel safe return 1::smallint;

-- What an execution can be parked for: parked.kind, and `kind` of limits, limit_holds, rate_reservations, rate_buckets,
-- gate_wakeups and limit_recounts. The gate checks task, target, tenant and queue in this order, so among the last
-- three a lower number is checked later (`apply_limits` and `followers_of` rely on it).
create or replace function hourbell.blocker_queue() returns smallint
language sql immutable parallel safe return 1::smallint;
create or replace function hourbell.blocker_tenant() returns smallint
language sql immutable parallel safe return 2::smallint;
create or replace function hourbell.blocker_target() returns smallint
language sql immutable parallel safe return 3::smallint;
create or replace function hourbell.blocker_concurrency_key() returns smallint  -- others with its concurrency key
language sql immutable parallel safe return 4::smallint;
create or replace function hourbell.blocker_job() returns smallint  -- an earlier run of its job
language sql immutable parallel safe return 5::smallint;
create or replace function hourbell.blocker_task() returns smallint  -- no worker of its queue serves its task
language sql immutable parallel safe return 6::smallint;
create or replace function hourbell.blocker_failure() returns smallint  -- the gate failed on it: see isolation.sql
language sql immutable parallel safe return 7::smallint;
-- Blockers for which limits can be set.
create or replace function hourbell.limit_kinds() returns smallint[]
language sql immutable parallel safe
return array[hourbell.blocker_queue(), hourbell.blocker_tenant(), hourbell.blocker_target()];

-- Why an execution exists: executions.origin. No function asks for 1, a run on request.
create or replace function hourbell.origin_schedule() returns smallint
language sql immutable parallel safe return 0::smallint;
create or replace function hourbell.origin_backfill() returns smallint
language sql immutable parallel safe return 2::smallint;
create or replace function hourbell.origin_notification() returns smallint
language sql immutable parallel safe return 3::smallint;

-- deadlines.kind: one of the first two. The third is added to search for the execution in `ready`.
create or replace function hourbell.deadline_start() returns smallint
language sql immutable parallel safe return 0::smallint;
create or replace function hourbell.deadline_finish() returns smallint
language sql immutable parallel safe return 1::smallint;
create or replace function hourbell.deadline_in_ready() returns smallint
language sql immutable parallel safe return 2::smallint;

-- What happens when an occurrence is due while an earlier run of the job has not ended: `overlap`.
create or replace function hourbell.overlap_allow() returns smallint
language sql immutable parallel safe return 0::smallint;
create or replace function hourbell.overlap_forbid() returns smallint
language sql immutable parallel safe return 1::smallint;
create or replace function hourbell.overlap_replace() returns smallint
language sql immutable parallel safe return 2::smallint;
create or replace function hourbell.overlap_queue_one() returns smallint
language sql immutable parallel safe return 3::smallint;

-- Which misfires are made up: memberships.misfire.
create or replace function hourbell.misfire_skip() returns smallint
language sql immutable parallel safe return 0::smallint;
create or replace function hourbell.misfire_latest() returns smallint
language sql immutable parallel safe return 1::smallint;
create or replace function hourbell.misfire_all() returns smallint
language sql immutable parallel safe return 2::smallint;

-- Events: notices.event is one of them. `notifies` of memberships and executions is a sum of them. Events of monitors,
-- 8 (missed) and 16 (recovered), are decided in Python.
create or replace function hourbell.event_success() returns smallint
language sql immutable parallel safe return 1::smallint;
create or replace function hourbell.event_failure() returns smallint  -- of an attempt; it will be retried
language sql immutable parallel safe return 2::smallint;
create or replace function hourbell.event_dead_letter() returns smallint
language sql immutable parallel safe return 4::smallint;

-- Bits of due.flags: what the gate has to know of a row before it reads the execution.
--   1, 2       its job restricts overlap; it must run alone
--   4, 8       its level (`level_of`), 0 to 3
--   16 to 128  the kind of the blocker that it was parked under until now; 0: it is newly due
--   256        it counts against a limit or has a concurrency key
-- Example: 4 * 3 + 16 * 2 = 44 is a row of level 3 that was just taken out of the line of its tenant.
create or replace function hourbell.flag_overlap() returns int  -- its job restricts overlap
language sql immutable parallel safe return 1;
create or replace function hourbell.flag_suspect() returns int  -- its worker died twice in a row: it must run alone
language sql immutable parallel safe return 2;
create or replace function hourbell.flag_limited() returns int  -- it counts against a limit or has a concurrency key
language sql immutable parallel safe return 256;
create or replace function hourbell.flags_level(p_level int) returns int
language sql immutable parallel safe return 4 * p_level;
create or replace function hourbell.flags_parked(p_kind smallint) returns int
language sql immutable parallel safe return 16 * p_kind;
-- The blocker for which a row was parked until now; 0: none, it is newly due.
create or replace function hourbell.parked_for(p_flags smallint) returns smallint
language sql immutable parallel safe return (p_flags >> 4)::smallint;
-- The bits that depend on the execution alone.
create or replace function hourbell.flags_of(p_overlap smallint, p_crashes smallint) returns int
language sql immutable parallel safe
return case when p_overlap <> hourbell.overlap_allow() then hourbell.flag_overlap() else 0 end
  + case when p_crashes > 1 then hourbell.flag_suspect() else 0 end;

-- The level of an execution that is the p_nth of its tenant at its moment. The first 16 of each tenant have level 0,
-- those up to 256 level 1, up to 4,096 level 2, the rest level 3. The gate serves all levels of a priority side by
-- side, so an execution waits for at most about 16 times as many executions of each other tenant as its own tenant has.
-- Only fairness depends on the level, so the producer of a row may count roughly.
create or replace function hourbell.level_of(p_nth bigint) returns int
language sql immutable parallel safe
return case when p_nth <= 16 then 0 when p_nth <= 256 then 1 when p_nth <= 4096 then 2 else 3 end;

-- The tiers that hold the due rows of a priority: see hourbell.tier.
create or replace function hourbell.tiers_of(p_priority smallint) returns int[]
language sql immutable parallel safe
return array[p_priority, p_priority + 4, p_priority + 8, p_priority + 12];

-- The session that leases what targets have accepted. It never ends and serves no queue.
create or replace function hourbell.awaiting_session() returns bigint
language sql immutable parallel safe return 0::bigint;
create or replace function hourbell.awaiting_token() returns uuid
language sql immutable parallel safe return '00000000-0000-0000-0000-000000000000'::uuid;

-- Numbers of tasks that have no row in `tasks`.
create or replace function hourbell.task_any() returns int  -- any worker may take it
language sql immutable parallel safe return 0;
create or replace function hourbell.task_webhook() returns int
language sql immutable parallel safe return 1;

-- The least urgent priority; CRITICAL is 0.
create or replace function hourbell.priority_low() returns smallint
language sql immutable parallel safe return 3::smallint;

-- A stored document as JSON; null: it is none, and must not stop the reading of others.
create or replace function hourbell.as_json(p_stored text) returns json
language plpgsql immutable as $$
begin
  return p_stored::json;
exception when data_exception then
  return null;
end $$;
