-- Deadlines: an execution that has not started in time ends as SKIPPED, one that has not finished in time as DEAD,
-- wherever it is. Each deadline has a row in `deadlines` from the creation of its execution on; a row whose execution
-- has ended, or has other deadlines by now, means nothing.
-- Example: a job with start_deadline_seconds 30 falls due at 10:00:00 and is parked for a limit. At 10:00:30 `expire`
-- takes it out of `parked` and records SKIPPED(start_deadline).
-- `ready` has no index by id, so an execution there is found by scanning all ready rows of its queue and priority. That
-- is done some seconds later, at the next multiple of 5 s, once for all such executions (`deadline_in_ready`). Rows
-- locked by another transaction are left to it, and later to the claim, which checks the same deadlines: a client that
-- stops in the middle of a change must not stop the leader.

-- Applies deadlines that have passed, at most p_limit; returns how many it has examined.
create or replace function hourbell.expire(p_node uuid, p_epoch bigint, p_now timestamptz, p_limit int) returns int
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  passed hourbell.deadlines[];
  waiting bigint[];  -- executions taken out of `due` and `parked`
  unpaused bigint[];
  running bigint[];
  ready bigint[];
  late bigint[];  -- live executions that have missed a deadline,
  kinds smallint[];  -- and which: the start, if it has missed both
  unfinished bigint[];  -- those that should have finished by now
  searched bigint[];  -- those that may be in `ready`: they were not elsewhere the first time
  not_late bigint[];  -- those of `waiting` that have other deadlines now: they are put back
  missing bigint[];
  ended bigint[];
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  with popped as (
    delete from hourbell.deadlines where ctid = any (array(
      select ctid from hourbell.deadlines where at < p_now order by at limit p_limit for update skip locked))
    returning deadlines)
  select array_agg(deadlines) into passed from popped;
  if passed is null then return 0; end if;

  waiting := hourbell.remove_waiting(array(
    select e.id from unnest(passed) as d cross join lateral (
      select * from hourbell.executions as e where e.id = d.id offset 0) as e
    where hourbell.is_deadline_passed(d.kind, e, p_now)));
  -- Judged after they were taken, and in the statement that takes paused ones: deadlines may be changed until then.
  with judged as materialized (
    select e.id, min(d.kind % hourbell.deadline_in_ready()) as kind,
      max(d.kind % hourbell.deadline_in_ready()) = hourbell.deadline_finish() as unfinished,
      bool_or(d.kind >= hourbell.deadline_in_ready()) as searched
    from unnest(passed) as d cross join lateral (select * from hourbell.executions as e where e.id = d.id offset 0) as e
    where hourbell.is_deadline_passed(d.kind, e, p_now)
      and not exists (select from hourbell.outcomes as o where o.id = e.id offset 0)
    group by e.id),
  from_paused as (
    delete from hourbell.paused where ctid = any (array(
      select h.row from judged as j cross join lateral (
        select ctid as row from hourbell.paused as h where h.id = j.id for update skip locked) as h))
    returning id)
  select array_agg(id), array_agg(kind), array_agg(id) filter (where unfinished), array_agg(id) filter (where searched),
    (select array_agg(id) from from_paused)
  into late, kinds, unfinished, searched, unpaused from judged;
  not_late := array(select unnest(waiting) except select unnest(late));
  if not_late <> '{}' then perform hourbell.requeue(not_late); end if;
  if late is null then return cardinality(passed); end if;

  waiting := array(select unnest(waiting) intersect select unnest(late)) || unpaused;
  running := hourbell.take_running(array(select unnest(unfinished) except select unnest(waiting)), p_now);
  missing := array(select unnest(late) except select unnest(waiting || running));
  ready := hourbell.remove_ready(array(select unnest(missing) intersect select unnest(searched)));
  insert into hourbell.deadlines (at, id, kind)
  select date_bin('5 seconds', p_now, '2000-01-01') + interval '5 seconds', l.id, l.kind + hourbell.deadline_in_ready()
  from unnest(late, kinds) as l(id, kind) where l.id = any (missing) and not l.id = any (coalesce(searched, '{}'))
  union all  -- the slab in which it runs is locked by another transaction
  select p_now + interval '1 second', id, hourbell.deadline_finish()
  from unnest(searched) as s(id) where id = any (unfinished) and id = any (missing) and not id = any (ready);

  ended := waiting || running || ready;
  perform hourbell.end_executions(
      array_agg(id), array_agg(case when is_total then hourbell.fate_dead() else hourbell.fate_skipped() end),
      array_agg(case when is_total then 'deadline' else 'start_deadline' end), p_now)
  from (
    select id, kind = hourbell.deadline_finish() or id = any (running) as is_total
    from unnest(late, kinds) as l(id, kind) where id = any (ended)) as e
  having count(*) > 0;
  return cardinality(passed);
end $$;

-- Delays the first deadline that has passed, which cannot be applied. Returns its execution.
create or replace function hourbell.delay_deadline(p_node uuid, p_epoch bigint, p_now timestamptz) returns bigint
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare delayed bigint;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  update hourbell.deadlines set at = p_now + interval '1 minute' where ctid = (
    select ctid from hourbell.deadlines where at < p_now order by at limit 1 for update skip locked)
  returning id into delayed;
  return delayed;
end $$;

-- Whether an execution still has this deadline and it has passed. Its own columns decide: the job may have been
-- rescheduled.
create or replace function hourbell.is_deadline_passed(p_kind smallint, e hourbell.executions, p_now timestamptz)
returns boolean
language sql immutable
return case p_kind % hourbell.deadline_in_ready()
  when hourbell.deadline_start() then e.attempt = 0 and e.start_by < p_now
  else e.finish_by < p_now end;

-- Takes executions whose total deadline has passed from the workers that run them: their attempts end as failed, and
-- the reports of the workers will be refused. Returns those that it got, which the caller ends.
create or replace function hourbell.take_running(p_ids bigint[], p_now timestamptz) returns bigint[]
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  slabs tid[];
  taken bigint[];
begin
  if p_ids = '{}' then return '{}'; end if;
  slabs := array(
    select ctid from hourbell.leased where ctid = any (array(
      select l.slab from (select ctid as slab, unnest(ids) as id from hourbell.leased) as l where l.id = any (p_ids)))
    order by session, fence for update skip locked);
  with running as materialized (
    select l.session, i.id, l.fence, l.claimed_at
    from hourbell.leased as l cross join lateral unnest(l.ids) as i(id)
    where l.ctid = any (slabs) and i.id = any (p_ids)
      and not exists (select from hourbell.outcomes as o where o.id = i.id offset 0)),
  fenced as (
    update hourbell.executions as e
    set fence = l.fence, attempt = attempt + 1, first_started_at = coalesce(first_started_at, l.claimed_at),
        history = hourbell.add_attempt(history, null, attempt + 1, l.claimed_at, p_now, l.fence, 'deadline',
          'the total deadline passed while it ran', l.session)
    from running as l
    where e.id = l.id and e.id = any (array(
      select f.id from hourbell.executions as f
      where f.id = any (array(select id from running)) for no key update skip locked))
    returning e.id, e.tenant, e.target, l.claimed_at),
  counted as (
    insert into hourbell.failed_attempts (at, started_at, tenant, target, id)
    select p_now, claimed_at, tenant, target, id from fenced)
  select array_agg(id) into taken from fenced;
  if taken is null then return '{}'; end if;
  perform hourbell.shrink_slabs(slabs, taken);
  return taken;
end $$;

-- Takes executions out of `ready` and `suspects`, and returns those that it got. Reads all ready rows of their queues
-- and priorities.
create or replace function hourbell.remove_ready(p_ids bigint[]) returns bigint[]
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare taken bigint[];
begin
  if p_ids = '{}' then return '{}'; end if;
  with spaces as materialized (
    select distinct e.queue, e.priority from unnest(p_ids) as w(id) cross join lateral (
      select queue, priority from hourbell.executions as e where e.id = w.id offset 0) as e),
  slabs as (
    delete from hourbell.ready where ctid = any (array(
      select r.row from spaces as s cross join lateral (
        select ctid as row from hourbell.ready as r where r.queue = s.queue and r.priority = s.priority
          and r.ids && p_ids for update skip locked) as r))
    returning *),
  from_ready as materialized (
    select i.id, s.queue, s.priority from slabs as s cross join lateral unnest(s.ids) as i(id)
      where i.id = any (p_ids)),
  put_back as (
    insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, limited, ids)
    select s.tag, s.last_tag, s.generation, s.task, s.queue, s.priority, s.limited, r.ids
    from slabs as s cross join lateral (
      select array_agg(i.id order by i.pos) as ids from unnest(s.ids) with ordinality as i(id, pos)
      where not i.id = any (p_ids)) as r
    where r.ids is not null),
  refunded as (
    insert into hourbell.tag_refunds (queue, priority, tenant)
    select r.queue, r.priority, e.tenant from from_ready as r cross join lateral (
      select tenant from hourbell.executions as e where e.id = r.id offset 0) as e),
  from_suspects as (
    delete from hourbell.suspects where ctid = any (array(
      select x.row from spaces as s cross join lateral (
        select ctid as row from hourbell.suspects as x where x.queue = s.queue and x.priority = s.priority
          and x.id = any (p_ids) for update skip locked) as x))
    returning id)
  select array_agg(id) into taken from (select id from from_ready union all select id from from_suspects) as gone;
  return coalesce(taken, '{}');
end $$;
