-- Overlap policies: an occurrence that is due while an earlier run of its job has not ended is skipped, is parked, or
-- replaces that run, as the job's policy says. Called by the gate: `without_overlap` for newly due rows, and again for
-- rows that were parked behind an earlier run; `apply_overlap` decides.
-- Example: a job that allows one to wait (`queue_one`) has a run. Its next occurrence is parked under (job, its
-- number); the one after that is skipped. When the run ends, `wake_jobs` wakes the job, and the parked one proceeds.

-- The executions of a job that have not ended. Scheduled ones and requested ones have an index each.
create or replace function hourbell.live_executions(p_job bigint) returns setof hourbell.executions
language sql stable as $$
  select e.*
  from (
    select id from hourbell.open_runs
    where job = p_job and origin in (hourbell.origin_schedule(), hourbell.origin_backfill())
    union all
    select id from hourbell.open_runs
    where job = p_job and origin not in (hourbell.origin_schedule(), hourbell.origin_backfill())) as r
  cross join lateral (select * from hourbell.executions as e where e.id = r.id offset 0) as e
$$;

-- Whether an execution has already run since it was created or replayed. If it has not, it is a newcomer.
create or replace function hourbell.has_started(e hourbell.executions) returns boolean
language sql immutable
return e.attempt > coalesce(e.replayed_attempt, 0) or e.fence > coalesce(e.replayed_fence, 0);

-- The live executions of a job that block a newcomer: ready, leased, or between two attempts. p_newcomers were just
-- taken from due. A retry is the earlier run, never a newcomer, wherever its row is. An execution on which the gate has
-- failed is a newcomer when it is retried.
-- `offset 0` keeps a lookup a lookup: without it the planner may hash the whole table for one row.
create or replace function hourbell.blocking_runs(p_job bigint, p_newcomers bigint[]) returns setof hourbell.executions
language sql stable as $$
  select e.* from hourbell.live_executions(p_job) as e
  where not exists (
      select from hourbell.parked as p
      where p.id = e.id and (p.kind + 0 = hourbell.blocker_job()
        or (p.kind + 0 = hourbell.blocker_failure() and not hourbell.has_started(e))) offset 0)
    and (hourbell.has_started(e) or (not e.id = any (p_newcomers) and not exists (
      select from hourbell.due as d where hourbell.tier(d.priority, d.flags) = any (hourbell.tiers_of(e.priority))
        and d.run_at = e.run_at and d.id = e.id offset 0)))
$$;

-- The rows that may proceed under the overlap policies of their jobs. Only rows that were parked for p_kind are checked
-- (an earlier run of their job); 0: those that are newly due.
create or replace function hourbell.without_overlap(p_rows hourbell.due[], p_kind smallint, p_now timestamptz)
returns hourbell.due[]
language plpgsql set plan = lookups as $$
declare
  checked bigint[] := array(
    select id from unnest(p_rows)
    where flags & hourbell.flag_overlap() > 0 and hourbell.parked_for(flags) = p_kind);
  stopped bigint[];
begin
  if checked = '{}' then return p_rows; end if;
  stopped := hourbell.apply_overlap(checked, p_now);
  return array(select r from unnest(p_rows) as r where id not in (select unnest(stopped)));
end $$;

-- Applies the overlap policies of their jobs to due executions: some are skipped, some are parked under their job, some
-- replace earlier runs. Returns the ids that may not proceed now. Runs that another transaction has locked are not
-- waited for.
create or replace function hourbell.apply_overlap(p_ids bigint[], p_now timestamptz) returns bigint[]
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  skipped bigint[];
  reasons text[];
  to_park bigint[];
  replacing bigint[];  -- jobs whose newest execution replaces all others
begin
  with looked_at as (
    select e.id, e.job, e.overlap, row_number() over w as pos, count(*) over (partition by e.job) as n,
      exists (
        select from hourbell.parked as p where p.kind = hourbell.blocker_job() and p.key = e.job offset 0) as waiting,
      exists (select from hourbell.blocking_runs(e.job, p_ids) offset 0) as busy,
      -- A run can be newer only if the gate has failed on e until now. A replay is newer than all runs.
      e.overlap = hourbell.overlap_replace() and e.origin = hourbell.origin_schedule() and e.replayed_attempt is null
        and exists (
          select from (
            select id from hourbell.blocking_runs(e.job, p_ids) union all
            select id from hourbell.parked as p where p.kind = hourbell.blocker_job() and p.key = e.job) as r
          cross join lateral (select * from hourbell.executions as b where b.id = r.id offset 0) as b
          where b.origin = hourbell.origin_schedule() and b.occurrence > e.occurrence offset 0) as replaced
    from hourbell.executions as e
    where e.id = any (p_ids) and not hourbell.has_started(e)
    window w as (partition by e.job order by e.occurrence, e.id)),
  decided as (
    select id, job, overlap, case
      when overlap = hourbell.overlap_forbid() then case when busy or pos > 1 then 'skip' end
      when overlap = hourbell.overlap_replace()
        then case when pos < n or replaced then 'skip' when busy then 'park' end
      -- queue_one: one may run, and one more may wait.
      when pos = 1 and not busy and not waiting then null
      when not waiting and pos = case when busy then 1 else 2 end then 'park'
      else 'skip' end as decision
    from looked_at)
  select array_agg(id) filter (where decision = 'skip'),
    array_agg(case when overlap = hourbell.overlap_replace() then 'replaced' else 'overlap' end)
      filter (where decision = 'skip'),
    array_agg(id) filter (where decision = 'park'),
    array_agg(job) filter (where overlap = hourbell.overlap_replace() and decision is distinct from 'skip')
  into skipped, reasons, to_park, replacing from decided;

  if replacing is not null then perform hourbell.replace_runs(replacing, p_ids, p_now); end if;
  if skipped is not null then
    perform hourbell.end_executions(
      skipped, array_fill(hourbell.fate_skipped(), array[cardinality(skipped)]), reasons, p_now);
  end if;
  if to_park is not null then perform hourbell.park_behind_runs(to_park, p_ids, p_now); end if;
  return coalesce(skipped, '{}') || coalesce(to_park, '{}');
end $$;

-- Makes room for the newcomers (p_newcomers) of jobs that replace earlier runs. Runs that have not started end as
-- SKIPPED, and those between two attempts as CANCELLED. For all others cancellation is requested, and the newcomer
-- waits for their end.
create or replace function hourbell.replace_runs(p_jobs bigint[], p_newcomers bigint[], p_now timestamptz) returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  taken bigint[];
  replaced bigint[];
  retrying bigint[];
begin
  taken := hourbell.remove_waiting(array(
    select e.id from unnest(p_jobs) as r(job) cross join lateral (
      select id from hourbell.blocking_runs(r.job, p_newcomers) union all
      select id from hourbell.parked as p where p.kind = hourbell.blocker_job() and p.key = r.job) as e));
  select array_agg(e.id) filter (where not e.begun), array_agg(e.id) filter (where e.begun) into replaced, retrying
  from (select x.id, hourbell.has_started(x) as begun from hourbell.executions as x where x.id = any (taken)) as e;
  if retrying is not null then
    perform hourbell.end_executions(retrying, array_fill(hourbell.fate_cancelled(), array[cardinality(retrying)]),
      array_fill('cancelled'::text, array[cardinality(retrying)]), p_now);
  end if;
  if replaced is not null then
    perform hourbell.end_executions(replaced, array_fill(hourbell.fate_skipped(), array[cardinality(replaced)]),
      array_fill('replaced'::text, array[cardinality(replaced)]), p_now);
    -- Their own rows may not say that they wake others.
    perform hourbell.wake_jobs(p_jobs, p_now);
  end if;
  insert into hourbell.cancellations (id, requested_at)
  select e.id, p_now from unnest(p_jobs) as r(job) cross join lateral hourbell.blocking_runs(r.job, p_newcomers) as e
  where not exists (select from hourbell.cancellations as c where c.id = e.id offset 0);
end $$;

-- Parks newcomers (p_ids, of the newcomers p_newcomers) under their jobs, and makes sure that a wake-up follows.
create or replace function hourbell.park_behind_runs(p_ids bigint[], p_newcomers bigint[], p_now timestamptz)
returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  blocking bigint[];  -- runs of versions that allowed overlaps,
  jobs bigint[];  -- and their jobs
  found_open int;
begin
  insert into hourbell.parked (kind, key, priority, rank, id)
  select hourbell.blocker_job(), job, 0, extract(epoch from occurrence), id
  from hourbell.executions where id = any (p_ids);
  -- The run that they wait for may have ended since it was read.
  insert into hourbell.gate_wakeups (at, kind, key)
  select distinct p_now + interval '100 milliseconds', hourbell.blocker_job(), w.job
  from hourbell.executions as w
  where w.id = any (p_ids) and not exists (select from hourbell.blocking_runs(w.job, p_newcomers) offset 0);
  -- A run wakes its job when it ends only if its row says so, which a run of a version that allowed overlaps does not.
  -- One that another transaction has locked may be ending: the job is checked again soon.
  select array_agg(b.id), array_agg(distinct b.job) into blocking, jobs
  from hourbell.executions as w cross join lateral hourbell.blocking_runs(w.job, p_newcomers) as b
  where w.id = any (p_ids) and b.overlap = hourbell.overlap_allow();
  if blocking is null then return; end if;
  with marked as (
    update hourbell.open_runs as r set wakes = true where r.ctid = any (array(
      select r.ctid from hourbell.open_runs as r where r.job = any (jobs)
        and r.origin in (hourbell.origin_schedule(), hourbell.origin_backfill()) and r.id = any (blocking)
      for no key update skip locked)) returning r.id),
  requested as (
    update hourbell.open_runs as r set wakes = true where r.ctid = any (array(
      select r.ctid from hourbell.open_runs as r where r.job = any (jobs)
        and r.origin not in (hourbell.origin_schedule(), hourbell.origin_backfill()) and r.id = any (blocking)
      for no key update skip locked)) returning r.id)
  select count(*) into found_open from (select id from marked union all select id from requested) as m;
  if found_open < (select count(distinct b) from unnest(blocking) as b) then
    insert into hourbell.gate_wakeups (at, kind, key)
    select distinct p_now + interval '100 milliseconds', hourbell.blocker_job(), job
    from hourbell.executions where id = any (p_ids);
  end if;
end $$;
