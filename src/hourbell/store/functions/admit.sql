-- The gate: the only way from due to ready. One pass at a time, bounded, CRITICAL first; fairness is in the tags.

-- The executions of a job that have not ended. Scheduled ones and requested ones have an index each.
create or replace function hourbell.live_executions(p_job bigint) returns setof hourbell.executions
language sql stable as $$
  select * from hourbell.executions
  where job = p_job and origin in (hourbell.origin_schedule(), hourbell.origin_backfill())
  union all
  select * from hourbell.executions
  where job = p_job and origin not in (hourbell.origin_schedule(), hourbell.origin_backfill())
$$;

-- Whether an execution has already run since it was created or replayed. If it has not, it is a newcomer.
create or replace function hourbell.has_started(e hourbell.executions) returns boolean
language sql immutable
return e.attempt > coalesce(e.replayed_attempt, 0) or e.fence > coalesce(e.replayed_fence, 0);

-- The live executions of a job that block a newcomer: ready, leased, or between two attempts. p_newcomers were just
-- taken from due. A retry is the earlier run, never a newcomer, wherever its row is.
-- `offset 0` keeps a lookup a lookup: without it the planner may hash the whole table for one row.
create or replace function hourbell.blocking_runs(p_job bigint, p_newcomers bigint[]) returns setof hourbell.executions
language sql stable as $$
  select e.* from hourbell.live_executions(p_job) as e
  where not exists (select from hourbell.parked as p where p.id = e.id and p.kind + 0 = hourbell.blocker_job() offset 0)
    and (hourbell.has_started(e) or (not e.id = any (p_newcomers) and not exists (
      select from hourbell.due as d where hourbell.tier(d.priority, d.checks) = any (hourbell.tiers_of(e.priority))
        and d.run_at = e.run_at and d.id = e.id offset 0)))
$$;

-- Applies the overlap policies of their jobs to due executions, and returns the ids that may not proceed now.
create or replace function hourbell.check_overlap(p_ids bigint[], p_now timestamptz) returns bigint[]
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  skipped bigint[];
  reasons text[];
  to_park bigint[];
  replacing bigint[];  -- jobs whose newest execution replaces all others
  taken bigint[];
  replaced bigint[];
  retrying bigint[];
  jobs bigint[];
begin
  with looked_at as (
    select e.id, e.job, e.overlap, row_number() over w as pos, count(*) over (partition by e.job) as n,
      exists (
        select from hourbell.parked as p where p.kind = hourbell.blocker_job() and p.key = e.job offset 0) as waiting,
      exists (select from hourbell.blocking_runs(e.job, p_ids) offset 0) as busy
    from hourbell.executions as e
    where e.id = any (p_ids) and not hourbell.has_started(e)
    window w as (partition by e.job order by e.occurrence, e.id)),
  decided as (
    select id, job, overlap, case
      when overlap = hourbell.overlap_forbid() then case when busy or pos > 1 then 'skip' end
      when overlap = hourbell.overlap_replace() then case when pos < n then 'skip' when busy then 'park' end
      when pos = 1 and not busy and not waiting then null
      when not waiting and pos = case when busy then 1 else 2 end then 'park'
      else 'skip' end as fate
    from looked_at)
  select array_agg(id) filter (where fate = 'skip'),
    array_agg(case when overlap = hourbell.overlap_replace() then 'replaced' else 'overlap' end)
      filter (where fate = 'skip'),
    array_agg(id) filter (where fate = 'park'),
    array_agg(job) filter (where overlap = hourbell.overlap_replace() and fate is distinct from 'skip')
  into skipped, reasons, to_park, replacing from decided;

  if replacing is not null then
    -- Executions that have not begun are removed, and those waiting for their next attempt end at once. For all other
    -- live executions cancellation is requested, and the newcomer waits for them to end.
    taken := hourbell.remove_waiting(array(
      select e.id from unnest(replacing) as r(job) cross join lateral (
        select id from hourbell.blocking_runs(r.job, p_ids) union all
        select id from hourbell.parked as p where p.kind = hourbell.blocker_job() and p.key = r.job) as e));
    select array_agg(e.id) filter (where not e.begun), array_agg(e.id) filter (where e.begun) into replaced, retrying
    from (select x.id, hourbell.has_started(x) as begun from hourbell.executions as x where x.id = any (taken)) as e;
    skipped := skipped || replaced;
    reasons := reasons || array_fill('replaced'::text, array[coalesce(cardinality(replaced), 0)]);
    if retrying is not null then
      perform hourbell.discard(retrying, array_fill(hourbell.fate_cancelled(), array[cardinality(retrying)]),
        array_fill('cancelled'::text, array[cardinality(retrying)]), p_now);
    end if;
    insert into hourbell.cancellations (id, requested_at)
    select e.id, p_now from unnest(replacing) as r(job) cross join lateral hourbell.blocking_runs(r.job, p_ids) as e
    where not e.id = any (coalesce(skipped, '{}'))
      and not exists (select from hourbell.cancellations as c where c.id = e.id offset 0);
  end if;

  if skipped is not null then
    with gone as (
      delete from hourbell.executions as e using unnest(skipped, reasons) as d(id, reason)
      where e.id = d.id and e.id = any (skipped) returning e.*, d.reason),
    recorded as (
      insert into hourbell.ledger
        (id, job, fence, scheduled_for, recorded_at, tenant, version, attempt, queue, priority, origin, status, reason, spec,
         history)
      select id, job, fence, occurrence, p_now, tenant, version, attempt, queue, priority, origin,
        hourbell.fate_skipped(), reason, spec, history
      from gone)
    select array_agg(job) into jobs from gone;
    perform hourbell.release_limits(skipped, true, p_now);
    perform hourbell.wake_jobs(jobs, p_now);
  end if;
  if to_park is not null then
    insert into hourbell.parked (kind, key, priority, rank, id)
    select hourbell.blocker_job(), job, 0, extract(epoch from occurrence), id from hourbell.executions where id = any (to_park);
  end if;
  return coalesce(skipped, '{}') || coalesce(to_park, '{}');
end $$;

-- Runs one pass. Returns how many rows it looked at and whether there is more to do; admitted = -1: another pass is
-- running.
-- p_batch bounds the pass: CRITICAL may use all of it, and every other priority gets at least an eighth. The same
-- applies to the levels of a priority: level 0 comes first, and every level with due rows gets at least an eighth of
-- the priority's budget. So a tenant with few due rows is admitted in the next pass, however many due rows another
-- tenant has.
-- Rows that are late by more than p_grace may be misfires.
create or replace function hourbell.admit(
  p_now timestamptz, p_batch int, p_grace interval, out admitted int, out more boolean
)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  this_pass bigint;
  p smallint;
  budget int;
  room int := p_batch;
  n int;  -- rows taken of this priority
  share int;
  taken hourbell.due[];
  oldest timestamptz;
  missed int;
  limited int;
  lows timestamptz[];
  marks tid[];
  mostly_limited boolean[];
  swept timestamptz;
  sweeping boolean;
  crowded int[];  -- tiers above level 0 with due rows
  tiers int[];  -- level 0 of this priority, and its crowded tiers
  served hourbell.sessions[];
  generation int;
  from_below boolean;
  woken hourbell.due[] := '{}';
  rows hourbell.due[];
begin
  admitted := 0; more := false;
  if not pg_try_advisory_xact_lock(hashtext('hourbell.gate')) then
    admitted := -1; more := true; return;
  end if;
  this_pass := nextval('hourbell.passes');

  if exists (select from hourbell.tag_refunds) then perform hourbell.apply_refunds(p_batch, this_pass); end if;
  if exists (select from hourbell.weight_changes) or exists (select from hourbell.retaggings) then
    more := hourbell.retag(p_batch, this_pass);
  end if;
  if exists (select from hourbell.limit_recounts) then perform hourbell.recount_running(p_now); end if;
  -- In one of sixteen passes, parked rows go before newly due rows, least urgent first, so that low priorities make
  -- progress too. A hash of the pass number selects the pass, so no periodic load can miss it forever.
  from_below := hashint8(this_pass) & 15 = 0;
  if exists (select from hourbell.gate_wakeups where at <= p_now) then
    woken := hourbell.unpark(p_now, greatest(p_batch / 4, 1), from_below, this_pass);
    -- Rows that were parked behind an earlier run or a key go before rows that would have to wait for them.
    woken := hourbell.acquire_keys(
      hourbell.without_overlap(woken, hourbell.blocker_job(), p_now), p_now, this_pass);
    room := room - 2 * cardinality(woken);
    admitted := cardinality(woken);
  end if;
  served := hourbell.serving_sessions();
  if exists (select from hourbell.queue_workers where mixed) then perform hourbell.end_mixed(served); end if;
  generation := hourbell.generation();  -- before any limit is read
  if from_below and woken <> '{}' then
    foreach p in array '{3,2,1,0}'::smallint[] loop
      perform hourbell.admit_rows(array(select w from unnest(woken) as w where w.priority = p), p, served, generation, p_now,
        this_pass);
    end loop;
    woken := '{}';
  end if;

  -- How far each tier is known to be empty. Index 1 is tier 0.
  select array_agg(m.due_from order by tier), array_agg(m.mark order by tier), array_agg(m.mostly_limited order by tier),
    min(m.swept_at) filter (where tier < 4), count(m.mark) filter (where tier < 4) < 4
  into lows, marks, mostly_limited, swept, sweeping
  from generate_series(0, 15) as tier left join lateral (
    select due_from, ctid as mark, mostly_limited, swept_at from hourbell.due_marks as m
    where m.priority = tier order by pass desc limit 1) as m on true;
  if swept > p_now + interval '5 seconds' then  -- the clock was set back: nothing may wait for the old time
    update hourbell.gate_wakeups set at = p_now where at > p_now;
  end if;
  -- Once a second, scan from the very beginning: a transaction may commit rows that were due before the mark.
  if sweeping or swept <= p_now - interval '1 second' or swept > p_now then
    sweeping := true; swept := p_now; lows := array_fill('-infinity'::timestamptz, array[16]);
  end if;
  crowded := array(
    select tier from generate_series(4, 15) as tier
    where exists (
      select from hourbell.due as d
      where hourbell.tier(d.priority, d.checks) = tier and d.run_at >= coalesce(lows[tier + 1], '-infinity')
        and d.run_at <= p_now offset 0));

  foreach p in array '{0,1,2,3}'::smallint[] loop
    tiers := array[p::int];
    if crowded <> '{}' then tiers := tiers || array(select t from unnest(crowded) as t where t & 3 = p order by t); end if;
    -- Limited rows take three times as long, and no pass should wait for the gate's lock for over 100 ms.
    budget := greatest(greatest(room, p_batch / 8) / case when mostly_limited[p + 1] then 2 else 1 end, 1);

    n := 0; oldest := null;
    for k in 1 .. cardinality(tiers) loop
      share := greatest(budget - n - budget / 8 * (cardinality(tiers) - k), 1);
      with gone as (
        delete from hourbell.due where ctid = any (array(
          select ctid from hourbell.due
          where hourbell.tier(priority, checks) = tiers[k] and run_at >= coalesce(lows[tiers[k] + 1], '-infinity') and run_at <= p_now
          order by run_at, id limit share for update skip locked))
        returning due)
      select array_agg(due order by (due).run_at, (due).id) into taken from gone;
      oldest := least(oldest, (taken[1]).run_at);
      if k = 1 then rows := taken; else rows := rows || taken; end if;
      n := n + coalesce(cardinality(taken), 0);
      more := more or coalesce(cardinality(taken) >= share, false);
    end loop;
    room := greatest(room - n, 0);
    admitted := admitted + n;
    missed := 0;
    if oldest < p_now - p_grace then
      rows := hourbell.without_misfires(rows, p_now, p_grace);
      missed := n - cardinality(rows);
    end if;
    if woken <> '{}' then
      rows := array(select w from unnest(woken) as w where w.priority = p) || rows;
    end if;
    limited := n - missed - hourbell.admit_rows(rows, p, served, generation, p_now, this_pass);

    -- The mark of a tier: the time of its first remaining row, but never later than 250 ms ago, because a row that is
    -- due "now" is committed some milliseconds later.
    if n > 0 or sweeping then
      delete from hourbell.due_marks where ctid = any (array(select marks[tier + 1] from unnest(tiers) as tier));
      insert into hourbell.due_marks (priority, due_from, swept_at, mostly_limited, pass)
      select tier, least(
          (select run_at from hourbell.due as d
           where hourbell.tier(d.priority, d.checks) = tier and d.run_at >= coalesce(lows[tier + 1], '-infinity')
           order by d.run_at limit 1),
          p_now - interval '250 milliseconds'),
        swept, 2 * limited > n, this_pass
      from unnest(tiers) as tier;
    end if;
  end loop;
  perform hourbell.move_virtual_time(this_pass);
  more := more or exists (select from hourbell.gate_wakeups where at <= p_now);
end $$;

-- Decides on due executions of one priority: ready, parked or skipped. Returns how many proceeded without any limit.
create or replace function hourbell.admit_rows(
  p_rows hourbell.due[], p smallint, p_served hourbell.sessions[], p_generation int, p_now timestamptz, p_pass bigint
) returns int
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  rows hourbell.due[] := p_rows;
  restricted boolean;
  stopped boolean;
begin
  if p_rows is null or p_rows = '{}' then return 0; end if;
  select bool_or(r.restricted), bool_or(r.keyed or not hourbell.is_served(p_served, r.queue, r.task))
  into restricted, stopped
  from (
    select queue, hourbell.task(target) as task, bit_or(checks) & hourbell.checks_overlap() > 0 as restricted,
      count(key) > 0 as keyed
    from unnest(p_rows) group by 1, 2) as r;
  -- Overlap is decided once. An execution that has been parked for something else since then is the earlier run.
  if restricted then rows := hourbell.without_overlap(p_rows, 0::smallint, p_now); end if;
  if not coalesce(stopped, false) and not (exists (select from hourbell.limits) and hourbell.has_limited(rows)) then
    perform hourbell.make_ready(rows, p, p_generation, p_now, p_pass);
    return cardinality(p_rows);
  end if;
  rows := hourbell.apply_limits(rows, p, p_served, p_now, p_pass);
  perform hourbell.make_ready(rows, p, p_generation, p_now, p_pass);
  return (select count(*) from unnest(rows) where checks & hourbell.checks_limited() = 0);
end $$;

-- Whether a limit applies to any of these rows. Where limits exist, most rows of a pass are often not under one.
create or replace function hourbell.has_limited(p_rows hourbell.due[]) returns boolean
language sql stable set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
  select exists (
    select from (
      select distinct hourbell.blocker_queue() as kind, queue::bigint as key from unnest(p_rows)
      union all select distinct hourbell.blocker_tenant(), tenant from unnest(p_rows)
      union all select distinct hourbell.blocker_target(), target from unnest(p_rows) where target is not null) as s
    cross join lateral (select from hourbell.limits as l where l.kind = s.kind and l.key = s.key offset 0) as l)
$$;

-- The rows that may proceed under the overlap policies of their jobs. Only rows that were parked for p_kind are checked
-- (an earlier run of their job); 0: those that are newly due.
create or replace function hourbell.without_overlap(p_rows hourbell.due[], p_kind smallint, p_now timestamptz)
returns hourbell.due[]
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  checked bigint[] := array(
    select id from unnest(p_rows)
    where checks & hourbell.checks_overlap() > 0 and hourbell.parked_for(checks) = p_kind);
begin
  if checked = '{}' then return p_rows; end if;
  checked := hourbell.check_overlap(checked, p_now);
  return array(select r from unnest(p_rows) as r where id not in (select unnest(checked)));
end $$;

-- Makes executions of one priority ready. Fairness comes from the tag that each gets. They are cut into slabs in the
-- order of their tags, small enough for four claims of each session of the queue; what holds something of a limit is
-- a slab of its own.
create or replace function hourbell.make_ready(
  p_rows hourbell.due[], p smallint, p_generation int, p_now timestamptz, p_pass bigint
) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  spaces bigint[];  -- the queue of each row
  tenants int[];
  queues bigint[];
  times float8[];
  tags float8[];
begin
  select array_agg(queue), array_agg(tenant) into spaces, tenants from unnest(p_rows);
  select array_agg(q.queue), array_agg(coalesce(v.v, 0)) into queues, times
  from (select distinct unnest(spaces) as queue) as q
  left join lateral (
    select v from hourbell.virtual_time as v where v.queue = q.queue and v.priority = p order by pass desc limit 1) as v on true;
  tags := hourbell.tag(spaces, tenants, p, queues, times, p_pass);
  with tagged as materialized (
    select tag, id, queue, hourbell.task(target) as task, checks & hourbell.checks_limited() > 0 as limited,
      checks & hourbell.checks_suspect() > 0 as suspect
    from unnest(p_rows, tags) as r(run_at, id, tenant, queue, priority, checks, target, key, tag)),
  sizes as materialized (
    select t.queue, greatest(least(t.n / (4 * greatest(s.n, 1)), 100), 1) as size
    from (select queue, count(*) as n from tagged group by queue) as t
    cross join lateral (
      select count(*) as n from hourbell.sessions as s
      where t.n > 4 and s.id > 0 and (s.all_queues or t.queue = any (s.queues))) as s),
  suspected as (
    insert into hourbell.suspects (tag, id, queue, priority, since, limited, generation, task)
    select tag, id, queue, p, p_now, limited, p_generation, task from tagged where suspect),
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
    select queue, p, v, highest, p_pass from times)
  insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, limited, ids)
  select min(tag), max(tag), p_generation, task, queue, p, limited, array_agg(id order by tag, id)
  from (
    select tag, id, queue, task, limited, s.size, row_number() over (partition by queue, task order by tag, id) - 1 as nth
    from tagged join sizes as s using (queue) where not suspect) as t
  group by queue, task, limited, case when limited then -1 - nth else nth / size end
  order by queue, min(tag);
end $$;

-- The tags of rows of one priority, in row order. Each tenant continues in its lane from its last tag, but never below
-- the floor of the space; a step is 1 / weight. A row of `lanes` stores 64 tenants, and only lanes above the floor are
-- kept, so ten thousand tenants cost little more than ten.
create or replace function hourbell.tag(
  p_spaces bigint[], p_tenants int[], p_priority smallint, p_places bigint[], p_floors float8[], p_pass bigint
) returns float8[]
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  weighted constant boolean := exists (select from hourbell.tenants where weight <> 1);
  tags float8[];
begin
  with blocks as materialized (
    select b.space, b.block, old.row, old.tenants, old.lasts
    from (select distinct r.space, r.tenant >> 6 as block from unnest(p_spaces, p_tenants) as r(space, tenant)) as b
    left join lateral (
      select tenants, lasts, ctid as row from hourbell.lanes as l
      where l.space = b.space and l.priority = p_priority and l.block = b.block order by pass desc limit 1) as old on true),
  steps as materialized (
    select t.id as tenant, 1 / t.weight as step
    from (select distinct unnest(p_tenants) as id where weighted) as r cross join lateral (
      select id, weight from hourbell.tenants as t where t.id = r.id offset 0) as t),
  tagged as materialized (
    select space, tenant, pos, is_last, coalesce(base, floor) + (k - (base is not null)::int) * coalesce(step, 1) as tag
    from (
      select space, tenant, pos, row_number() over w as k, first_value(last) over w as base, lead(pos) over w is null as is_last
      from (
        select space, tenant, pos, null::float8 as last
        from unnest(p_spaces, p_tenants) with ordinality as r(space, tenant, pos)
        union all
        select b.space, l.tenant, 0, l.last
        from blocks as b cross join lateral unnest(b.tenants, b.lasts) as l(tenant, last)
        join unnest(p_places, p_floors) as f(space, floor) on f.space = b.space and l.last > f.floor) as rows
      window w as (partition by space, tenant order by pos)) as rows
    join unnest(p_places, p_floors) as f(space, floor) using (space)
    left join steps using (tenant)),
  gone as (delete from hourbell.lanes where ctid = any (array(select row from blocks where row is not null))),
  remembered as (
    insert into hourbell.lanes (space, priority, block, tenants, lasts, pass)
    select space, p_priority, tenant >> 6, array_agg(tenant), array_agg(tag), p_pass
    from tagged where is_last group by space, tenant >> 6)
  select array_agg(tag order by pos) into tags from tagged where pos > 0;
  return tags;
end $$;

-- V moves up to the smallest ready tag, or to the highest tag given so far when nothing is ready. Only the gate does
-- this, under its lock. Only the gate makes rows ready, so no row can appear below V.
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
  -- Deleted by ctid, like the marks and lanes above: a range scan would visit dead rows that vacuum cannot remove yet.
  delete from hourbell.virtual_time where ctid = any (array(select row from moved where v > old));
end $$;
