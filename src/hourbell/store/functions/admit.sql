-- The gate: the only way from due to ready. One pass at a time, bounded, CRITICAL first; fairness is the tag it gives.

-- The executions of a job that have not ended: those of the schedule and those on request have an index each.
create or replace function hourbell.live_executions(p_job bigint) returns setof hourbell.executions
language sql stable as $$
  select * from hourbell.executions where job = p_job and origin in (0, 2)
  union all
  select * from hourbell.executions where job = p_job and origin not in (0, 2)
$$;

-- Those of them that are in the way of a newcomer: ready, leased or between two attempts. p_newcomers have just been taken
-- from due; a retry is the earlier run and no newcomer, wherever it is.
-- `offset 0` keeps a look-up a look-up: without it the planner may hash the whole table, for one row.
create or replace function hourbell.under_way(p_job bigint, p_newcomers bigint[]) returns setof hourbell.executions
language sql stable as $$
  select e.* from hourbell.live_executions(p_job) as e
  where not exists (select from hourbell.parked as p where p.job = e.job and p.id = e.id offset 0)
    and (e.attempt > 0 or e.fence > 0 or (not e.id = any (p_newcomers) and not exists (
      select from hourbell.due as d where d.priority = e.priority and d.run_at = e.run_at and d.id = e.id offset 0)))
$$;

-- Decides about due executions whose job restricts overlap (R7), and returns the ids that may not go on now.
create or replace function hourbell.check_overlap(p_ids bigint[], p_now timestamptz) returns bigint[]
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  skipped bigint[];
  reasons text[];
  held bigint[];
  replacing bigint[];  -- jobs whose newest execution takes the place of all others
  retrying bigint[];
begin
  with looked_at as (
    select e.id, e.job, e.overlap, row_number() over w as pos, count(*) over (partition by e.job) as n,
      exists (select from hourbell.parked as p where p.job = e.job offset 0) as waiting,
      exists (select from hourbell.under_way(e.job, p_ids) offset 0) as busy
    from hourbell.executions as e
    where e.id = any (p_ids) and e.attempt = 0 and e.fence = 0
    window w as (partition by e.job order by e.occurrence, e.id)),
  decided as (
    select id, job, overlap, case
      when overlap = 1 then case when busy or pos > 1 then 'skip' end
      when overlap = 2 then case when pos < n then 'skip' when busy then 'park' end
      when pos = 1 and not busy and not waiting then null
      when not waiting and pos = case when busy then 1 else 2 end then 'park'
      else 'skip' end as fate
    from looked_at)
  select array_agg(id) filter (where fate = 'skip'),
    array_agg(case when overlap = 2 then 'replaced' else 'overlap' end) filter (where fate = 'skip'),
    array_agg(id) filter (where fate = 'park'),
    array_agg(job) filter (where overlap = 2 and fate is distinct from 'skip')
  into skipped, reasons, held, replacing from decided;

  if replacing is not null then
    -- Not what somebody has locked: a client that stops in the middle of a cancel must not stop the gate.
    with waited as (
      delete from hourbell.parked where ctid = any (array(
        select ctid from hourbell.parked where job = any (replacing) for update skip locked)) returning id)
    select skipped || array_agg(id), reasons || array_agg('replaced'::text) into skipped, reasons from waited;
    -- What waits for its next attempt goes at once; what lives otherwise is asked to, and the newcomer waits for that.
    with retrying as (
      delete from hourbell.due where ctid = any (array(
        select d.row from unnest(replacing) as r(job) cross join lateral hourbell.under_way(r.job, p_ids) as e
        cross join lateral (
          select ctid as row from hourbell.due as d where d.priority = e.priority and d.run_at = e.run_at and d.id = e.id
          for update skip locked) as d))
      returning id)
    select array_agg(id) into retrying from retrying;
    if retrying is not null then
      perform hourbell.discard(retrying, array_fill(2::smallint, array[cardinality(retrying)]),
        array_fill('cancelled'::text, array[cardinality(retrying)]), p_now);
    end if;
    insert into hourbell.cancellations (id, wished_at)
    select e.id, p_now from unnest(replacing) as r(job) cross join lateral hourbell.under_way(r.job, p_ids) as e
    where not e.id = any (coalesce(skipped, '{}'))
      and not exists (select from hourbell.cancellations as c where c.id = e.id offset 0);
  end if;

  if skipped is not null then
    with gone as (
      delete from hourbell.executions as e using unnest(skipped, reasons) as d(id, reason)
      where e.id = d.id and e.id = any (skipped) returning e.*, d.reason)
    insert into hourbell.ledger
      (id, job, fence, scheduled_for, recorded_at, tenant, version, attempt, queue, priority, origin, status, reason)
    select id, job, fence, occurrence, p_now, tenant, version, attempt, queue, priority, origin, 4, reason from gone;
  end if;
  if held is not null then
    insert into hourbell.parked (job, id, tenant, queue, priority, checks)
    select job, id, tenant, queue, priority, 1 from hourbell.executions where id = any (held);
  end if;
  return coalesce(skipped, '{}') || coalesce(held, '{}');
end $$;

-- One pass. Returns what was admitted and whether more is due; admitted = -1: another pass is running.
-- p_batch bounds the pass: CRITICAL may take all of it, every other priority at least an eighth.
create or replace function hourbell.admit(p_now timestamptz, p_batch int, out admitted int, out more boolean)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  this_pass bigint;
  p smallint;
  budget int;
  room int := p_batch;
  n int;
  low timestamptz;
  swept timestamptz;
  mark tid;
  ids bigint[]; tenants int[]; queues smallint[]; suspected boolean[];
  checked bigint[];
begin
  admitted := 0; more := false;
  if not pg_try_advisory_xact_lock(hashtext('hourbell.gate')) then
    admitted := -1; more := true; return;
  end if;
  this_pass := nextval('hourbell.passes');

  for p in 0..3 loop
    budget := greatest(room, p_batch / 8);
    select due_from, swept_at, ctid into low, swept, mark
    from hourbell.due_marks where priority = p order by pass desc limit 1;
    -- Once a second from the very beginning: transactions may commit rows that were overdue before the mark.
    if not found or swept <= p_now - interval '1 second' or swept > p_now then
      low := '-infinity'; swept := p_now;
    end if;

    with taken as (
      delete from hourbell.due where ctid = any (array(
        select ctid from hourbell.due where priority = p and run_at >= low and run_at <= p_now
        order by run_at, id limit budget for update skip locked))
      returning run_at, id, tenant, queue, checks)
    select array_agg(id order by run_at, id), array_agg(tenant order by run_at, id), array_agg(queue order by run_at, id),
      array_agg(checks >= 2 order by run_at, id), array_agg(id) filter (where checks & 1 = 1)
    into ids, tenants, queues, suspected, checked from taken;

    n := coalesce(cardinality(ids), 0);
    if n > 0 then
      room := greatest(room - n, 0);
      admitted := admitted + n;
      more := more or n >= budget;
      if checked is not null then
        checked := hourbell.check_overlap(checked, p_now);
      end if;

      with rows as (
        select r.*, row_number() over (partition by queue, tenant order by pos) as k
        from unnest(ids, tenants, queues, suspected) with ordinality as r(id, tenant, queue, suspected, pos)
        where checked is null or not id = any (checked)),
      lanes as materialized (
        select r.queue, r.tenant, r.k, old.row as old, greatest(coalesce(v.v, 0), coalesce(old.last, 0)) as base,
          1 / (select weight from hourbell.tenants as t where t.id = r.tenant) as step
        from (select queue, tenant, max(k) as k from rows group by queue, tenant) as r
        left join lateral (
          select last, ctid as row from hourbell.lanes as l
          where l.queue = r.queue and l.priority = p and l.tenant = r.tenant order by pass desc limit 1) as old on true
        left join lateral (
          select v from hourbell.virtual_time as v
          where v.queue = r.queue and v.priority = p order by pass desc limit 1) as v on true),
      forgotten as (
        delete from hourbell.lanes where ctid = any (array(select old from lanes where old is not null))),
      remembered as (
        insert into hourbell.lanes (queue, priority, tenant, last, pass)
        select queue, p, tenant, base + k * step, this_pass from lanes),
      tagged as (
        select r.queue, r.id, r.suspected, l.base + r.k * l.step as tag
        from rows as r join lanes as l using (queue, tenant)),
      times as materialized (
        select t.queue, coalesce(v.v, 0) as v, greatest(t.highest, v.highest) as highest, v.row as old
        from (select queue, max(tag) as highest from tagged group by queue) as t
        left join lateral (
          select v, highest, ctid as row from hourbell.virtual_time as v
          where v.queue = t.queue and v.priority = p order by pass desc limit 1) as v on true),
      passed as (
        delete from hourbell.virtual_time where ctid = any (array(select old from times where old is not null))),
      highest as (
        insert into hourbell.virtual_time (queue, priority, v, highest, pass)
        select queue, p, v, highest, this_pass from times),
      held as (
        insert into hourbell.suspects (tag, id, queue, priority, since)
        select tag, id, queue, p, p_now from tagged where suspected)
      insert into hourbell.ready (tag, id, queue, priority)
      select tag, id, queue, p from tagged where not suspected order by queue, tag;
    end if;

    -- The mark: the first row that is still there, or a little ago when nothing is due: what is due "now" is committed
    -- some milliseconds later.
    if n > 0 or swept = p_now then
      delete from hourbell.due_marks where ctid = mark;
      insert into hourbell.due_marks (priority, due_from, swept_at, pass)
      values (p, least((select run_at from hourbell.due where priority = p and run_at >= low order by run_at limit 1),
                       p_now - interval '250 milliseconds'),
              swept, this_pass);
    end if;
  end loop;

  if swept = p_now then more := hourbell.unpark_forgotten(p_now) or more; end if;
  perform hourbell.move_virtual_time(this_pass);
end $$;

-- What waits for a job of which nothing is under way any more: that ended while a pass was parking, and did not see what
-- waits. Looks at some of what is parked, and goes round. Returns whether there was any.
create or replace function hourbell.unpark_forgotten(p_now timestamptz) returns boolean
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  looked_at bigint[];
  forgotten bigint[];
begin
  looked_at := array(
    select job from hourbell.parked where job > (select last_value from hourbell.parked_cursor) order by job limit 500);
  perform setval('hourbell.parked_cursor', case when cardinality(looked_at) < 500 then 1 else looked_at[500] end);
  forgotten := array(
    select distinct job from unnest(looked_at) as p(job)
    where not exists (select from hourbell.under_way(p.job, '{}') offset 0));
  return cardinality(forgotten) > 0 and hourbell.unpark(forgotten, p_now) > 0;
end $$;

-- V moves up to the smallest ready tag, or to the highest tag given when nothing is ready. Only the gate does this, under
-- its lock, because only the gate makes anything ready: nothing can appear below V.
create or replace function hourbell.move_virtual_time(p_pass bigint) returns void
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  with recursive places as (
    (select queue, priority from hourbell.virtual_time order by queue, priority limit 1)
    union all
    select n.queue, n.priority from places as p cross join lateral (
      select queue, priority from hourbell.virtual_time as v
      where (v.queue, v.priority) > (p.queue, p.priority) order by queue, priority limit 1) as n),
  newest as materialized (
    select p.queue, p.priority, v.v, v.highest, v.row
    from places as p cross join lateral (
      select v, highest, ctid as row from hourbell.virtual_time as v
      where v.queue = p.queue and v.priority = p.priority order by pass desc limit 1) as v),
  moved as materialized (
    select n.queue, n.priority, n.highest, n.v as old, n.row, coalesce(
      (select tag from hourbell.ready as r
       where r.queue = n.queue and r.priority = n.priority and r.tag >= n.v order by tag limit 1), n.highest) as v
    from newest as n),
  written as (
    insert into hourbell.virtual_time (queue, priority, v, highest, pass)
    select queue, priority, v, highest, p_pass from moved where v > old)
  -- By its place, like the marks and lanes above: a range would be walked over with all that vacuum may not clear away.
  delete from hourbell.virtual_time where ctid = any (array(select row from moved where v > old));
end $$;
