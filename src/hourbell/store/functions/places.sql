-- Moves between places, shared by several operations. An execution is in one place at a time (`due`, `due_slabs`,
-- `parked`, `paused`, `ready`, `suspects`, `leased`): a caller that has deleted its row there, or has taken it out of
-- its slab, owns it, and either puts it elsewhere (`requeue`) or ends it (`end_executions`).
-- Example: a job is paused. `remove_waiting` takes its executions that wait out of `due` and `parked`, and
-- `end_executions` records those that it got as SUPERSEDED; the others belong to another transaction, or are found by
-- their claim.

-- The slab of `due_slabs` in which an execution is, if it is in one. A connection takes numbers from the sequence of
-- ids 64 at a time, so what it creates together shares a slab.
create or replace function hourbell.slab_of(p_id bigint) returns bigint
language sql immutable parallel safe
return (p_id - 1) >> 6;

-- A row if an execution waits for its time. (A set, because PostgreSQL makes it a part of the statement that calls it.)
create or replace function hourbell.due_of(e hourbell.executions) returns setof bigint
language sql stable as $$
  (select d.id from hourbell.due as d
   where hourbell.tier(d.priority, d.flags) = any (hourbell.tiers_of(e.priority)) and d.run_at = e.run_at
     and d.id = e.id)
  union all
  (select e.id from hourbell.due_slabs as d
   where hourbell.tier(d.priority, d.flags) = any (hourbell.tiers_of(e.priority)) and d.run_at = e.run_at
     and d.slab = hourbell.slab_of(e.id) and e.id = any (d.ids))
$$;

-- Whether an execution waits for its time.
create or replace function hourbell.is_due(e hourbell.executions) returns boolean
language sql stable
return exists (select from hourbell.due_of(e) offset 0);

-- Whether an execution of a recurring job waits where the job says: in its queue, for its task or host, with its
-- concurrency key.
create or replace function hourbell.is_routed(e hourbell.executions, j hourbell.jobs) returns boolean
language sql immutable
return (e.queue, e.target, e.key, e.key_limit) is not distinct from (j.queue, j.target, j.key, j.key_limit);

-- Executions of recurring jobs, which the caller has taken out of their places, follow their jobs: where a job has
-- another queue, target or concurrency key by now, they get it, release what they hold, and wake what waits behind.
create or replace function hourbell.follow_jobs(p_ids bigint[]) returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  now constant timestamptz := hourbell.clock();
  old hourbell.executions[];
  ids bigint[];
begin
  old := array(
    select e from unnest(p_ids) as w(id)
    cross join lateral (select * from hourbell.executions as e where e.id = w.id and e.job is not null offset 0) as e
    cross join lateral (select * from hourbell.jobs as j where j.id = e.job offset 0) as j
    where not hourbell.is_routed(e, j));
  if old = '{}' then return; end if;
  ids := array(select id from unnest(old));
  update hourbell.executions as e set queue = j.queue, target = j.target, key = j.key, key_limit = j.key_limit
  from hourbell.jobs as j where e.id = any (ids) and j.id = e.job and j.id = any (array(select job from unnest(old)));
  perform hourbell.release_limits(ids, true, now);
  perform hourbell.wake_blockers(
    array(select queue from unnest(old)), array(select tenant from unnest(old)), array(select target from unnest(old)),
    array(select key from unnest(old)), now);
end $$;

-- Puts executions back into `due`, where their jobs say. The gate has seen them before and must not take them for
-- misfires now: where run_at is still the occurrence, it becomes a microsecond later. A row that another transaction
-- has locked is not changed, so that nothing waits for a client that has stopped.
create or replace function hourbell.requeue(p_ids bigint[]) returns int
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare n int;
begin
  perform hourbell.follow_jobs(p_ids);
  with back as materialized (select * from hourbell.executions where id = any (p_ids)),
  moved as (
    update hourbell.executions as e set run_at = e.run_at + interval '1 microsecond'
    where e.id = any (array(
      select id from hourbell.executions
      where id = any (array(select id from back where job is not null and origin = hourbell.origin_schedule()
        and run_at = occurrence))
      for no key update skip locked))
    returning e.id, e.run_at)
  insert into hourbell.due (run_at, id, tenant, queue, priority, flags, target, key)
  select coalesce(m.run_at, b.run_at), b.id, tenant, queue, priority,
    hourbell.flags_of(overlap, crashes) + hourbell.flags_level(
      hourbell.level_of(row_number() over (partition by tenant))), target, key
  from back as b left join moved as m on m.id = b.id;
  get diagnostics n = row_count;
  return n;
end $$;

-- Takes executions out of `due` and `parked`, where they wait for their time or for a limit. Returns those that it got:
-- they are owned by the caller. Rows locked by another transaction are skipped, so that nothing waits for a client that
-- has stopped. Only for executions that are never in `due_slabs`: those of recurring jobs, and those with a deadline or
-- a unique key. (`take_waiting`, in change.sql, takes a single execution out of any of these places and waits for
-- locks.)
create or replace function hourbell.remove_waiting(p_ids bigint[]) returns bigint[]
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare taken bigint[];
begin
  with waiting as materialized (
    select e.id, e.priority, e.run_at from unnest(p_ids) as w(id) cross join lateral (
      select * from hourbell.executions as e where e.id = w.id offset 0) as e),
  from_due as (
    delete from hourbell.due where ctid = any (array(
      select d.row from waiting as w cross join lateral (
        select ctid as row from hourbell.due as d
        where hourbell.tier(d.priority, d.flags) = any (hourbell.tiers_of(w.priority)) and d.run_at = w.run_at
          and d.id = w.id
        for update skip locked) as d))
    returning id),
  from_parked as (
    delete from hourbell.parked where ctid = any (array(
      select p.row from waiting as w cross join lateral (
        select ctid as row from hourbell.parked as p where p.id = w.id for update skip locked) as p))
    returning id)
  select array_agg(id) into taken from (select id from from_due union all select id from from_parked) as gone;
  return coalesce(taken, '{}');
end $$;

-- How executions have ended in this transaction, as `count_fates` has noted it; null: none has.
create or replace function hourbell.ended() returns text
language sql stable
return nullif(current_setting('hourbell.ended', true), '');

-- The same, and forgets it: for a transaction of several statements that each count what they have ended.
create or replace function hourbell.take_ended() returns text
language plpgsql as $$
declare
  noted constant text := hourbell.ended();
begin
  if noted is not null then perform set_config('hourbell.ended', '', true); end if;
  return noted;
end $$;

-- Counts how executions end, for the metrics of the process whose statement ends them: as `fate:reason:count`, in a
-- setting of the transaction. A statement that wants it selects `hourbell.ended()` together with the function that it
-- calls. Example: `4:misfire:12 1:deadline:3`.
create or replace function hourbell.count_fates(p_fates smallint[], p_reasons text[]) returns void
language sql as $$
  select set_config('hourbell.ended', concat_ws(' ', hourbell.ended(), string_agg(e.note, ' ')), true)
  from (
    select format('%s:%s:%s', fate, reason, count(*)) as note
    from unnest(p_fates, p_reasons) as d(fate, reason) group by fate, reason) as e
$$;

-- Records executions that end without a run of their own: skipped, superseded, cancelled, or dead by a deadline.
-- p_fates[k] (hourbell.fate_… in codes.sql) and p_reasons[k] belong to p_ids[k], which the caller has taken out of
-- their places. Releases their limits and wakes what waits for them.
-- Three other functions write to `outcomes`: `settle` and `reap` record the attempt that ends with the execution, and
-- `produce` records stretches of occurrences that were missed.
create or replace function hourbell.end_executions(
  p_ids bigint[], p_fates smallint[], p_reasons text[], p_now timestamptz
) returns void
language plpgsql set plan = lookups_by_hash as $$
#variable_conflict use_column
declare
  queues smallint[]; tenants int[]; targets int[]; keys bigint[];
begin
  perform hourbell.close_runs(p_ids, p_now);
  with gone as materialized (
    select e, e.*, d.fate, d.reason
    from hourbell.executions as e join unnest(p_ids, p_fates, p_reasons) as d(id, fate, reason) on d.id = e.id
    where e.id = any (p_ids)),
  letters as (
    insert into hourbell.dead_letters (id, job, tenant, died_at, reason, execution)
    select id, job, tenant, p_now, reason,
      to_jsonb(e) || jsonb_build_object(
        'job_spec', hourbell.job_spec(job, spec), 'unique_key', case when job is null then hourbell.key_of(id) end)
    from gone where fate = hourbell.fate_dead()),
  granted as (delete from hourbell.cancellations where id = any (p_ids)),
  recorded as (
    insert into hourbell.outcomes
      (id, fence, started_at, finished_at, recorded_at, fate, reason, missed, missed_through)
    select id, fence, first_started_at, p_now, p_now, fate, reason, case when reason = 'misfire' then 1 end,
      case when reason = 'misfire' then occurrence end
    from gone
    on conflict (id) do nothing)
  select array_agg(distinct queue), array_agg(distinct tenant), array_agg(distinct target),
    array_agg(distinct key) filter (where key is not null)
  into queues, tenants, targets, keys from gone;
  perform hourbell.leave_quotas(p_ids);
  perform hourbell.write_end_notices(p_ids);
  perform hourbell.count_fates(p_fates, p_reasons);
  perform hourbell.release_limits(p_ids, true, p_now);
  if keys is not null or exists (select from hourbell.limits) then
    perform hourbell.wake_blockers(queues, tenants, targets, keys, p_now);
  end if;
end $$;

-- Ends the runs of recurring jobs among these executions, and wakes what waits for them. Returns whether anything may.
-- The gate locks the row of a run that a newcomer waits for (`park_behind_runs`), and this function waits for that
-- lock: so either the gate sees that the run has ended, or this function sees that it wakes another.
create or replace function hourbell.close_runs(p_ids bigint[], p_now timestamptz) returns boolean
language plpgsql set plan = lookups_one_by_one
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare jobs bigint[];
begin
  with runs as materialized (
    select id, job, occurrence, origin from hourbell.executions where id = any (p_ids)),
  scheduled as (
    delete from hourbell.open_runs as r using runs as e
    where r.job = e.job and r.occurrence = e.occurrence and r.origin = e.origin and r.id = e.id
      and r.origin in (hourbell.origin_schedule(), hourbell.origin_backfill())
    returning r.job, r.wakes),
  requested as (
    delete from hourbell.open_runs as r using runs as e
    where r.job = e.job and r.id = e.id
      and r.origin not in (hourbell.origin_schedule(), hourbell.origin_backfill())
    returning r.job, r.wakes)
  select array_agg(distinct job) into jobs
  from (select * from scheduled union all select * from requested) as closed where wakes;
  if jobs is null then return false; end if;
  perform hourbell.wake_jobs(jobs, p_now);
  return true;
end $$;
