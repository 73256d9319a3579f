-- The gate: the only way from due to ready. One pass at a time, bounded, CRITICAL first; fairness is the tag it gives.

-- Decides about due executions whose job restricts overlap (R7), and returns the ids that may not go on now.
-- Live is an earlier execution of the job that is ready, leased or between two attempts.
create or replace function hourbell.check_overlap(p_ids bigint[], p_now timestamptz) returns bigint[]
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  skipped bigint[];
  reasons text[];
  held bigint[];
  replacing bigint[];  -- jobs whose newest execution takes the place of all others
begin
  with looked_at as (
    select e.id, e.job, e.overlap, row_number() over w as pos, count(*) over (partition by e.job) as n,
      exists (select from hourbell.parked as p where p.job = e.job) as waiting,
      exists (
        select from hourbell.executions as o
        where o.job = e.job and not o.id = any (p_ids)
          and not exists (select from hourbell.parked as p where p.job = o.job and p.id = o.id)
          and (o.attempt > 0 or o.fence > 0 or not exists (
            select from hourbell.due as d where d.priority = o.priority and d.run_at = o.run_at and d.id = o.id))) as busy
    from hourbell.executions as e
    where e.id = any (p_ids) and e.attempt = 0 and e.fence = 0  -- a retry is the earlier run, not a newcomer
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
    with waited as (delete from hourbell.parked where job = any (replacing) returning id)
    select skipped || array_agg(id), reasons || array_agg('replaced'::text) into skipped, reasons from waited;
    -- What lives is asked to go; the newcomer waits for that.
    insert into hourbell.cancellations (id, wished_at)
    select e.id, p_now from hourbell.executions as e
    where e.job = any (replacing) and not e.id = any (p_ids) and not e.id = any (coalesce(skipped, '{}'))
      and (e.attempt > 0 or e.fence > 0 or not exists (
        select from hourbell.due as d where d.priority = e.priority and d.run_at = e.run_at and d.id = e.id))
    on conflict do nothing;
  end if;

  if skipped is not null then
    with gone as (
      delete from hourbell.executions as e using unnest(skipped, reasons) as d(id, reason)
      where e.id = d.id returning e.*, d.reason)
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
    select due_from, swept_at into low, swept from hourbell.due_marks where priority = p order by pass desc limit 1;
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
        select r.queue, r.tenant, r.k, 1 / t.weight as step, old.row as old,
          greatest(coalesce(v.v, 0), coalesce(old.last, 0)) as base
        from (select queue, tenant, max(k) as k from rows group by queue, tenant) as r
        join hourbell.tenants as t on t.id = r.tenant
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
      highest as (
        insert into hourbell.virtual_time (queue, priority, v, highest, pass)
        select t.queue, p, coalesce(v.v, 0), greatest(t.highest, v.highest), this_pass
        from (select queue, max(tag) as highest from tagged group by queue) as t
        left join lateral (
          select v, highest from hourbell.virtual_time as v
          where v.queue = t.queue and v.priority = p order by pass desc limit 1) as v on true),
      held as (
        insert into hourbell.suspects (tag, id, queue, priority, since)
        select tag, id, queue, p, p_now from tagged where suspected)
      insert into hourbell.ready (tag, id, queue, priority)
      select tag, id, queue, p from tagged where not suspected order by queue, tag;
    end if;

    -- The mark: the first row that is still there, or a little ago when nothing is due: what is due "now" is committed
    -- some milliseconds later.
    if n > 0 or swept = p_now then
      delete from hourbell.due_marks where priority = p;
      insert into hourbell.due_marks (priority, due_from, swept_at, pass)
      values (p, least((select run_at from hourbell.due where priority = p and run_at >= low order by run_at limit 1),
                       p_now - interval '250 milliseconds'),
              swept, this_pass);
    end if;
  end loop;

  perform hourbell.move_virtual_time(this_pass);
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
    select p.queue, p.priority, v.v, v.highest, v.pass
    from places as p cross join lateral (
      select v, highest, pass from hourbell.virtual_time as v
      where v.queue = p.queue and v.priority = p.priority order by pass desc limit 1) as v),
  moved as materialized (
    select n.queue, n.priority, n.highest, n.v as old, coalesce(
      (select tag from hourbell.ready as r
       where r.queue = n.queue and r.priority = n.priority and r.tag >= n.v order by tag limit 1), n.highest) as v
    from newest as n),
  written as (
    insert into hourbell.virtual_time (queue, priority, v, highest, pass)
    select queue, priority, v, highest, p_pass from moved where v > old)
  delete from hourbell.virtual_time as v using newest as n
  where v.queue = n.queue and v.priority = n.priority and v.pass < n.pass;
end $$;
