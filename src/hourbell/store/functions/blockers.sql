-- Blockers: what an execution can be parked for, and what wakes it again.
-- A blocker is a (kind, key); codes.sql names the kinds. `blocker_key_of` says which key of a kind applies to an
-- execution: for the kind `blocker_tenant` it is the number of the tenant.
-- A transaction that releases something inserts a row into `gate_wakeups` (`release_limits`, `wake_blockers`,
-- `wake_jobs`), and the gate then looks at what is parked there (`unpark`). Example: an execution of tenant 7, which
-- has a limit of 3 at once, ends. `settle` calls `release_limits`, which deletes its row (tenant, 7) of `limit_holds`
-- and wakes (tenant, 7); the next pass finds that `limit_room` is 1 and admits one parked execution.
--
-- `kind + 0`, here and in other files, keeps the planner from using the index by kind for a lookup by id, which it
-- would prefer if statistics say that no row of the kind exists.

-- The task number of an execution.
create or replace function hourbell.task(p_target int) returns int
language sql immutable
return case when p_target > 0 then hourbell.task_webhook() else coalesce(-p_target, hourbell.task_any()) end;

-- The key of a queue and a task as a blocker.
create or replace function hourbell.task_key(p_queue bigint, p_task int) returns bigint
language sql immutable
return (p_queue << 32) + p_task;

-- The key of the blocker of a kind that applies to an execution; null: none.
create or replace function hourbell.blocker_key_of(
  p_kind smallint, p_queue smallint, p_tenant int, p_target int, p_key bigint
) returns bigint
language sql immutable
return case p_kind
  when hourbell.blocker_queue() then p_queue
  when hourbell.blocker_tenant() then p_tenant
  when hourbell.blocker_target() then p_target
  when hourbell.blocker_concurrency_key() then p_key
  when hourbell.blocker_task() then hourbell.task_key(p_queue, hourbell.task(p_target)) end;

-- Whether a limit of its queue, tenant or target applies to an execution.
create or replace function hourbell.is_limited(e hourbell.executions) returns boolean
language sql stable
return exists (select from hourbell.limits as l where l.kind = hourbell.blocker_queue() and l.key = e.queue)
  or exists (select from hourbell.limits as l where l.kind = hourbell.blocker_tenant() and l.key = e.tenant)
  or exists (select from hourbell.limits as l where l.kind = hourbell.blocker_target() and l.key = e.target);

-- Whether a limit applies to any of these rows. Even where limits exist, they often apply to no row of a pass.
create or replace function hourbell.has_limited(p_rows hourbell.due[]) returns boolean
language sql stable set plan = lookups_unsorted as $$
  select exists (
    select from (
      select distinct hourbell.blocker_queue() as kind, queue::bigint as key from unnest(p_rows)
      union all select distinct hourbell.blocker_tenant(), tenant from unnest(p_rows)
      union all select distinct hourbell.blocker_target(), target from unnest(p_rows) where target is not null) as s
    cross join lateral (select from hourbell.limits as l where l.kind = s.kind and l.key = s.key offset 0) as l)
$$;

-- The positions of the slabs with at least one execution under a limit.
create or replace function hourbell.limited_slabs(p_slabs hourbell.due_slabs[]) returns setof bigint
language sql stable set plan = lookups_unsorted as $$
  with slabs as materialized (
    select s.queue, s.target, s.tenants, s.pos
    from unnest(p_slabs) with ordinality as s(run_at, slab, queue, priority, flags, target, ids, tenants, pos)),
  queues as materialized (
    select d.queue from (select distinct queue from slabs) as d cross join lateral (
      select from hourbell.limits as l where l.kind = hourbell.blocker_queue() and l.key = d.queue offset 0) as l),
  targets as materialized (
    select d.target from (select distinct target from slabs) as d cross join lateral (
      select from hourbell.limits as l where l.kind = hourbell.blocker_target() and l.key = d.target offset 0) as l),
  as_wholes as materialized (
    select pos from slabs where queue in (select queue from queues) or target in (select target from targets)),
  -- A slab has executions of several tenants.
  tenants as materialized (
    select s.pos, t.tenant from slabs as s cross join lateral unnest(s.tenants) as t(tenant)
    where s.pos not in (select pos from as_wholes))
  select pos from as_wholes
  union all
  select distinct t.pos
  from (select distinct tenant from tenants) as d
  cross join lateral (
    select d.tenant from hourbell.limits as l
    where l.kind = hourbell.blocker_tenant() and l.key = d.tenant offset 0) as l
  join tenants as t on t.tenant = l.tenant
$$;

-- How many more executions a limit admits now.
create or replace function hourbell.limit_room(l hourbell.limits, p_now timestamptz) returns int
language sql stable as $$
  select greatest(least(
    l.max_concurrency - (select count(*) from hourbell.limit_holds as h where h.kind = l.kind and h.key = l.key),
    case when l.rate is not null then floor(hourbell.reservable(l, p_now)) end,
    case when hourbell.is_recount_pending(l.kind, l.key) then 0 end,
    1000000), 0)::int
$$;

-- Releases the limits that executions hold, and wakes their blockers. An execution that has not ended keeps its
-- concurrency key: the next one with that key waits for its end. Reservations that were not claimed have taken no
-- token.
create or replace function hourbell.release_limits(p_ids bigint[], p_ended boolean, p_now timestamptz) returns void
language sql set plan = lookups as $$
  with released as (
    delete from hourbell.limit_holds where id = any (p_ids) and (p_ended or kind <> hourbell.blocker_concurrency_key())
    returning kind, key),
  unclaimed as (delete from hourbell.rate_reservations where id = any (p_ids) returning kind, key)
  insert into hourbell.gate_wakeups (at, kind, key)
  select p_now, kind, key from released union select p_now, kind, key from unclaimed
$$;

-- Wakes the blockers of parked executions that have ended: other executions may have been waiting behind them.
create or replace function hourbell.wake_blockers(
  p_queues smallint[], p_tenants int[], p_targets int[], p_keys bigint[], p_now timestamptz
) returns void language sql set plan = lookups as $$
  insert into hourbell.gate_wakeups (at, kind, key)
  select distinct p_now, s.kind, s.key
  from (
    select hourbell.blocker_queue() as kind, unnest(p_queues)::bigint as key union all
    select hourbell.blocker_tenant(), unnest(p_tenants) union all
    select hourbell.blocker_target(), unnest(p_targets) union all
    select hourbell.blocker_concurrency_key(), unnest(p_keys)) as s
  where exists (select from hourbell.parked as p where p.kind = s.kind and p.key = s.key offset 0)
$$;

-- Wakes jobs of which an execution that restricts overlap has ended.
create or replace function hourbell.wake_jobs(p_jobs bigint[], p_now timestamptz) returns void
language sql as $$
  insert into hourbell.gate_wakeups (at, kind, key)
  select distinct p_now, hourbell.blocker_job(), job from unnest(p_jobs) as j(job)
$$;
