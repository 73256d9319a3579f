-- The gate: the only way from due to ready. One pass at a time, bounded. docs/architecture.md explains it with
-- examples.
--
-- A pass (`admit`) first brings up to date what was changed since the last one:
--   limits    what runs under new limits is counted (limit_changes.sql)
--   tags      refunds and changed weights (fairness.sql)
--   unpark    for each blocker with a wake-up, the parked rows that it has room for (parking.sql); their overlap and
--             their keys are checked again
-- Then it works on one priority after the other, CRITICAL first:
--   take      due rows, and slabs of `due_slabs` (`take_due_slabs`), oldest first
--   misfires  late rows that their job's policy does not make up end as SKIPPED (misfires.sql)
--   slabs     those that no limit applies to become ready without being unpacked; others become rows (`admit_slabs`)
--   rows      dates excluded by a calendar end as SKIPPED (calendars.sql); overlapping runs are skipped or parked
--             (overlaps.sql); rows that a key, a worker or a limit stops are parked (parking.sql) (`admit_rows`)
--   ready     the rest gets tags (fairness.sql), is cut into slabs and inserted into `ready` (`make_ready`)
-- Example: of 100 due rows 2 are misfires, 1 is skipped, 7 are parked and 90 become ready.
-- A pass that fails changes nothing. Its caller runs an isolating pass, which finds the rows that fail (isolation.sql).

-- Runs one pass. `examined`: how many executions it has taken, including those that it parked or skipped; `more`:
-- whether there is more to do; `busy`: another pass is running, and this one did nothing.
-- p_batch bounds the pass: CRITICAL may use all of it, and every other priority gets at least an eighth. Rows and slabs
-- are taken side by side, each up to the bound: slabs cost little. The levels of a priority share its budget in the
-- same way: level 0 comes first, and every level with due rows gets at least an eighth of it. So a tenant with few due
-- rows is admitted in the next pass, however many due rows another tenant has.
-- Rows that are late by more than p_grace may be misfires.
-- p_isolating: rows that fail are parked, and all others are admitted. `failed`: their ids; `errors`: why. What can
-- wait is left to the next pass: changed tags and weights, queues that are no longer mixed, the virtual time.
create or replace function hourbell.admit(
  p_now timestamptz, p_batch int, p_grace interval, p_isolating boolean default false, out examined int,
  out more boolean, out busy boolean, out failed bigint[], out errors text[]
)
language plpgsql set plan = lookups_unsorted set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  this_pass bigint;
  p smallint;
  budget int;
  budget_left int := p_batch;  -- of the pass
  n int;  -- rows taken of this priority
  share int;  -- of one tier
  taken hourbell.due[];
  slabs hourbell.due_slabs[];
  taken_slabs record;
  in_slabs int;  -- executions of `slabs`, later of those that became ready as they were
  oldest timestamptz;
  missed int;
  limited int;  -- rows of this priority that a limit applies to
  -- The newest row of `due_marks` of each tier; index 1 is tier 0.
  scan_from timestamptz[];  -- nothing is due in the tier before this
  first_due timestamptz[];  -- the time of the first due row of the tier; null: it has none
  marks tid[];
  mostly_limited boolean[];
  swept timestamptz;
  sweeping boolean;
  tiers int[];  -- of this priority: those with due rows
  serving hourbell.sessions[];
  generation int;
  lowest_first boolean;
  woken hourbell.due[] := '{}';  -- taken out of `parked`
  rows hourbell.due[];
  retried boolean := false;  -- some on which the gate has failed are in `due` again
  isolated record;
begin
  examined := 0; more := false; busy := false; failed := '{}'; errors := '{}';
  if not pg_try_advisory_xact_lock(hashtext('hourbell.gate')) then
    more := true; busy := true; return;
  end if;
  if not p_isolating and exists (select from hourbell.limit_recounts) then
    perform hourbell.recount_running(p_now);  -- first: before this transaction has a number
  end if;
  this_pass := nextval('hourbell.passes');

  if not p_isolating then
    if exists (select from hourbell.tag_refunds) then perform hourbell.apply_refunds(p_batch, this_pass); end if;
    if exists (select from hourbell.weight_changes) or exists (select from hourbell.retaggings) then
      more := hourbell.retag(p_batch, this_pass);
    end if;
  end if;
  -- Parked rows go before newly due rows of their priority. In one of sixteen passes they go before all newly due rows,
  -- least urgent first, so that low priorities make progress too. A hash of the pass number selects the pass, so no
  -- periodic load can miss it forever. In an isolating pass they always go before all newly due rows, which may need
  -- the keys for which they have room.
  lowest_first := hashint8(this_pass) & 15 = 0;
  if p_isolating then
    select * into retried, woken, failed, errors
    from hourbell.unpark_isolating(p_now, greatest(p_batch / 4, 1));
    budget_left := budget_left - 2 * cardinality(woken);
    examined := cardinality(woken);
  elsif exists (select from hourbell.gate_wakeups where at <= p_now) then
    retried := hourbell.retry_failed(p_now, greatest(p_batch / 4, 1));
    woken := hourbell.unpark(p_now, greatest(p_batch / 4, 1), lowest_first);
    -- Rows that were parked behind an earlier run or a key go before rows that would have to wait for them.
    -- `admit_rows` checks both again, and finds nothing to do: they are not newly due any more, and hold their keys.
    woken := hourbell.acquire_keys(hourbell.without_overlap(woken, hourbell.blocker_job(), p_now), p_now);
    budget_left := budget_left - 2 * cardinality(woken);  -- they are checked twice
    examined := cardinality(woken);
  end if;
  serving := hourbell.serving_sessions();
  if not p_isolating and exists (select from hourbell.queue_workers where mixed) then
    perform hourbell.end_mixed(serving);
  end if;
  generation := hourbell.generation();  -- before any limit is read
  if (lowest_first or p_isolating) and woken <> '{}' then
    foreach p in array case when lowest_first then '{3,2,1,0}' else '{0,1,2,3}' end::smallint[] loop
      rows := array(select w from unnest(woken) as w where w.priority = p);
      if p_isolating then
        isolated := hourbell.admit_isolating(rows, true, p, serving, generation, p_now, p_grace, this_pass);
        failed := failed || isolated.failed; errors := errors || isolated.errors;
        more := more or isolated.more;
      else
        perform hourbell.admit_rows(rows, p, serving, generation, p_now, this_pass);
      end if;
    end loop;
    woken := '{}';
  end if;

  select array_agg(m.due_from order by tier), array_agg(m.mark order by tier),
    array_agg(m.mostly_limited order by tier), min(m.swept_at) filter (where tier < 4),
      count(m.mark) filter (where tier < 4) < 4
  into scan_from, marks, mostly_limited, swept, sweeping
  from generate_series(0, 15) as tier left join lateral (
    select due_from, ctid as mark, mostly_limited, swept_at from hourbell.due_marks as m
    where m.tier = tier.tier order by pass desc limit 1) as m on true;
  if swept > hourbell.clock() then  -- the clock was set back: nothing may wait for the old time
    update hourbell.gate_wakeups set at = p_now where at > p_now;
    perform hourbell.reset_buckets();
  end if;
  -- Once a second, scan from the very beginning: a transaction may commit rows that were due before the mark.
  -- So does a pass that retries rows on which the gate has failed: their time is before the mark.
  if sweeping or retried or swept <= p_now - hourbell.sweep_interval() or swept > p_now then
    sweeping := true; swept := p_now; scan_from := array_fill('-infinity'::timestamptz, array[16]);
  end if;
  -- Everything below begins there, so that dead rows before it are visited once.
  first_due := array(
    select least(
      (select run_at from hourbell.due as d
       where hourbell.tier(d.priority, d.flags) = tier and d.run_at >= coalesce(scan_from[tier + 1], '-infinity')
         and d.run_at <= p_now
       order by d.run_at limit 1),
      (select run_at from hourbell.due_slabs as d
       where hourbell.tier(d.priority, d.flags) = tier and d.run_at >= coalesce(scan_from[tier + 1], '-infinity')
         and d.run_at <= p_now
       order by d.run_at limit 1))
    from generate_series(0, 15) as tier);

  foreach p in array '{0,1,2,3}'::smallint[] loop
    tiers := array(select t from generate_series(p, 15, 4) as t where first_due[t + 1] is not null order by t);
    continue when tiers = '{}' and not sweeping and not exists (select from unnest(woken) as w where w.priority = p);
    -- Rows under limits cost three times as much: halve the budget, so that a pass holds the gate's lock for less
    -- than 100 ms.
    budget := greatest(greatest(budget_left, p_batch / 8) / case when mostly_limited[p + 1] then 2 else 1 end, 1);

    n := 0; oldest := null; rows := '{}'; slabs := '{}'; in_slabs := 0;
    for k in 1 .. cardinality(tiers) loop
      share := greatest(budget - n - budget / 8 * (cardinality(tiers) - k), 1);
      with gone as (
        delete from hourbell.due where ctid = any (array(
          select ctid from hourbell.due
          where hourbell.tier(priority, flags) = tiers[k] and run_at >= first_due[tiers[k] + 1] and run_at <= p_now
          order by run_at, id limit share for update skip locked))
        returning due)
      select array_agg(due order by (due).run_at, (due).id) into taken from gone;
      oldest := least(oldest, (taken[1]).run_at);
      if k = 1 then rows := taken; else rows := rows || taken; end if;
      n := n + coalesce(cardinality(taken), 0);
      more := more or coalesce(cardinality(taken) >= share, false);
      share := greatest(least(share, budget - in_slabs - budget / 8 * (cardinality(tiers) - k)), budget / 8, 1);
      taken_slabs := hourbell.take_due_slabs(tiers[k], first_due[tiers[k] + 1], p_now, share);
      slabs := slabs || taken_slabs.slabs;
      in_slabs := in_slabs + taken_slabs.executions;
      more := more or taken_slabs.more;
    end loop;
    budget_left := greatest(budget_left - n, 0);
    if p_isolating then
      isolated := hourbell.admit_isolating(
        hourbell.unpacked(slabs) || rows, false, p, serving, generation, p_now, p_grace, this_pass);
      failed := failed || isolated.failed; errors := errors || isolated.errors;
      more := more or isolated.more;
      limited := 0;
      examined := examined + n + in_slabs;
    else
      missed := 0;
      if oldest < p_now - p_grace then
        rows := hourbell.without_misfires(rows, p_now, p_grace);
        missed := n - cardinality(rows);
      end if;
      if slabs <> '{}' then
        select * into in_slabs, taken from hourbell.admit_slabs(slabs, p, serving, generation, p_now, this_pass);
        rows := taken || rows;
        n := n + cardinality(taken);
      end if;
      examined := examined + n + in_slabs;
      if woken <> '{}' then
        rows := array(select w from unnest(woken) as w where w.priority = p) || rows;
      end if;
      limited := n - missed - hourbell.admit_rows(rows, p, serving, generation, p_now, this_pass);
    end if;

    -- The mark of a tier: the time of its first remaining row, but never later than a second ago, because a row that
    -- is due "now" is committed some milliseconds later, and in a transaction of a user even later.
    if n + in_slabs > 0 or sweeping then
      if p <> all (tiers) then tiers := tiers || p::int; end if;  -- that of level 0 also stores when it was swept
      delete from hourbell.due_marks where ctid = any (array(select marks[tier + 1] from unnest(tiers) as tier));
      insert into hourbell.due_marks (tier, due_from, swept_at, mostly_limited, pass)
      select tier, least(
          (select run_at from hourbell.due as d
           where hourbell.tier(d.priority, d.flags) = tier and d.run_at >= first_due[tier + 1]
           order by d.run_at limit 1),
          (select run_at from hourbell.due_slabs as d
           where hourbell.tier(d.priority, d.flags) = tier and d.run_at >= first_due[tier + 1]
           order by d.run_at limit 1),
          p_now - interval '1 second'),
        swept,
        case when n + in_slabs > 0 then 2 * limited > n + in_slabs else coalesce(mostly_limited[tier + 1], false) end,
        this_pass
      from unnest(tiers) as tier;
    end if;
  end loop;
  if p_isolating then
    perform hourbell.wake_failed(p_now, failed <> '{}');
  else
    perform hourbell.move_virtual_time(this_pass);
  end if;
  more := more or exists (select from hourbell.gate_wakeups where at <= p_now);
  -- This commit does not wait for the disk, unless executions have ended, which is final: a crash of the server may
  -- undo the last passes, and the next ones repeat them (docs/decisions/0021-passes-do-not-wait.md).
  if hourbell.ended() is null then perform set_config('synchronous_commit', 'off', true); end if;
end $$;

-- How often a pass scans from the very beginning. While a long transaction keeps vacuum from removing rows, such a scan
-- visits all that were admitted since, so it becomes rarer: every 3 seconds with 100,000 of them, every 10 at the
-- least.
create or replace function hourbell.sweep_interval() returns interval
language sql stable
return interval '1 second' * least(10, 1 + (
  pg_stat_get_dead_tuples('hourbell.due'::regclass) + pg_stat_get_dead_tuples('hourbell.due_slabs'::regclass)) / 50000);

-- Decides on due executions of one priority: ready, parked or skipped. Returns how many proceeded without any limit.
create or replace function hourbell.admit_rows(
  p_rows hourbell.due[], p_priority smallint, p_serving hourbell.sessions[], p_generation int, p_now timestamptz,
  p_pass bigint
) returns int
language plpgsql set plan = lookups as $$
declare
  rows hourbell.due[];
  may_overlap boolean;  -- some are of jobs that restrict overlap
  keyed_or_unserved boolean;  -- some have a concurrency key, or no worker
begin
  p_rows := hourbell.without_excluded_dates(p_rows, p_now);
  if p_rows is null or p_rows = '{}' then return 0; end if;
  rows := p_rows;
  select bool_or(r.may_overlap), bool_or(r.keyed or not hourbell.is_served(p_serving, r.queue, r.task))
  into may_overlap, keyed_or_unserved
  from (
    select queue, hourbell.task(target) as task, bit_or(flags) & hourbell.flag_overlap() > 0 as may_overlap,
      count(key) > 0 as keyed
    from unnest(p_rows) group by 1, 2) as r;
  -- Overlap is decided once: rows that were parked for a limit passed this check before, and count as earlier runs.
  if may_overlap then rows := hourbell.without_overlap(p_rows, 0::smallint, p_now); end if;
  if not keyed_or_unserved and not (exists (select from hourbell.limits) and hourbell.has_limited(rows)) then
    perform hourbell.make_rows_ready(rows, p_priority, p_generation, p_now, p_pass);
    return cardinality(p_rows);
  end if;
  rows := hourbell.apply_limits(rows, p_priority, p_serving, p_now, p_pass);
  perform hourbell.make_rows_ready(rows, p_priority, p_generation, p_now, p_pass);
  return (select count(*) from unnest(rows) where flags & hourbell.flag_limited() = 0);
end $$;

-- Makes due rows of one priority ready.
create or replace function hourbell.make_rows_ready(
  p_rows hourbell.due[], p_priority smallint, p_generation int, p_now timestamptz, p_pass bigint
) returns void
language sql as $$
  select hourbell.make_ready(
    array_agg(id), array_agg(tenant), array_agg(queue::bigint), array_agg(hourbell.task(target)), array_agg(flags),
    p_priority, p_generation, p_now, p_pass)
  from unnest(p_rows) having count(*) > 0
$$;

-- Makes executions of one priority ready. p_tenants, p_queues, p_tasks and p_flags belong to p_ids, in the order in
-- which they fell due. p_queues and p_tasks have a single element if all have the same. p_flags is null if none of them
-- is under a limit or a suspect.
-- Each gets a tag, which makes the order fair. In that order they are cut into slabs, small enough for four claims of
-- each session of the queue; an execution that counts against a limit gets a slab of its own.
-- Example: 1,000 executions for a queue with 5 sessions become 20 slabs of 50; 6 executions become 6 slabs of one.
create or replace function hourbell.make_ready(
  p_ids bigint[], p_tenants int[], p_queues bigint[], p_tasks int[], p_flags smallint[], p_priority smallint,
  p_generation int, p_now timestamptz, p_pass bigint
) returns void
language plpgsql set plan = lookups_unsorted as $$
#variable_conflict use_column
declare
  queues bigint[];
  times float8[];  -- the virtual time of each of `queues`
  positions int[];
  tags float8[];
  ids bigint[];
  size int;
begin
  select array_agg(q.queue), array_agg(coalesce(v.v, 0)) into queues, times
  from (select distinct unnest(p_queues) as queue) as q
  left join lateral (
    select v from hourbell.virtual_time as v where v.queue = q.queue and v.priority = p_priority
    order by pass desc limit 1) as v on true;
  select * into positions, tags from hourbell.tag(p_queues, p_tenants, p_priority, queues, times, p_pass);
  -- The usual case: one queue and task, and all rows are put into slabs. It is sorted by the tags alone.
  if p_flags is null and cardinality(p_queues) = 1 and cardinality(p_tasks) = 1 then
    select array_agg(id), array_agg(tag) into ids, tags
    from (
      select p_ids[pos] as id, tag from (select unnest(positions) as pos, unnest(tags) as tag) as r
      order by tag, id) as r;
    size := hourbell.slab_size(p_queues[1], cardinality(ids));
    insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, limited, ids)
    select tags[k], tags[least(k + size, cardinality(ids) + 1) - 1], p_generation, p_tasks[1], p_queues[1], p_priority,
      false, ids[k:k + size - 1]
    from generate_series(1, cardinality(ids), size) as k;
    perform hourbell.note_highest(p_queues, tags[cardinality(tags):], p_priority, p_pass);
    return;
  end if;
  with tagged as materialized (
    select tag, p_ids[pos] as id, coalesce(p_queues[pos], p_queues[1]) as queue,
      coalesce(p_tasks[pos], p_tasks[1]) as task,
      coalesce(p_flags[pos] & hourbell.flag_limited() > 0, false) as limited,
      coalesce(p_flags[pos] & hourbell.flag_suspect() > 0, false) as suspect
    from (select unnest(positions) as pos, unnest(tags) as tag) as r),
  sizes as materialized (
    select queue, max(tag) as highest, hourbell.slab_size(queue, count(*)) as size from tagged group by queue),
  suspected as (
    insert into hourbell.suspects (tag, id, queue, priority, since, limited, generation, task)
    select tag, id, queue, p_priority, p_now, limited, p_generation, task from tagged where suspect),
  by_task as materialized (
    select queue, task, array_agg(id order by tag, id) as ids, array_agg(tag order by tag, id) as tags
    from tagged where not (suspect or limited) group by queue, task),
  slabs as (
    select l.tags[k] as tag, l.tags[least(k + s.size, cardinality(l.ids) + 1) - 1] as last_tag, l.task, l.queue,
      false as limited, l.ids[k:k + s.size - 1] as ids
    from by_task as l join sizes as s using (queue)
    cross join lateral generate_series(1, cardinality(l.ids), s.size) as k
    union all
    select tag, tag, task, queue, true, array[id] from tagged where limited and not suspect),
  made as (
    insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, limited, ids)
    select tag, last_tag, p_generation, task, queue, p_priority, limited, ids from slabs order by queue, tag)
  select array_agg(queue), array_agg(highest) into queues, tags from sizes;
  perform hourbell.note_highest(queues, tags, p_priority, p_pass);
end $$;

-- How many executions a slab of a queue has in which p_count become ready: few enough for four claims of each session.
create or replace function hourbell.slab_size(p_queue bigint, p_count bigint) returns int
language plpgsql stable set plan = lookups as $$
declare sessions int := 0;
begin
  if p_count > 4 then
    select count(*) into sessions from hourbell.sessions as s
    where s.id > 0 and (s.all_queues or p_queue = any (s.queues));
  end if;
  return greatest(least(p_count / (4 * greatest(sessions, 1)), 100), 1);
end $$;

-- Notes the highest tags that were given in queues: `move_virtual_time` moves up to them when nothing is ready.
create or replace function hourbell.note_highest(
  p_queues bigint[], p_highest float8[], p_priority smallint, p_pass bigint
) returns void
language plpgsql set plan = lookups_unsorted as $$
#variable_conflict use_column
begin
  with times as materialized (
    select t.queue, coalesce(v.v, 0) as v, greatest(t.highest, v.highest) as highest, v.row as old
    from unnest(p_queues, p_highest) as t(queue, highest)
    left join lateral (
      select v, highest, ctid as row from hourbell.virtual_time as v
      where v.queue = t.queue and v.priority = p_priority order by pass desc limit 1) as v on true),
  passed as (
    delete from hourbell.virtual_time where ctid = any (array(select old from times where old is not null)))
  insert into hourbell.virtual_time (queue, priority, v, highest, pass)
  select queue, p_priority, v, highest, p_pass from times;
end $$;

-- Takes slabs of one tier that fell due from p_from to p_now, oldest first, with p_limit executions or a few more;
-- more: there may be others.
create or replace function hourbell.take_due_slabs(
  p_tier int, p_from timestamptz, p_now timestamptz, p_limit int,
  out slabs hourbell.due_slabs[], out executions int, out more boolean
)
language plpgsql set plan = lookups_unsorted as $$
#variable_conflict use_column
declare
  wanted int := p_limit / 64 + 1;  -- slabs
  taken hourbell.due_slabs[];
  n int;
begin
  slabs := '{}'; executions := 0;
  loop
    with gone as (
      delete from hourbell.due_slabs where ctid = any (array(
        select ctid from hourbell.due_slabs
        where hourbell.tier(priority, flags) = p_tier and run_at >= p_from and run_at <= p_now
        order by run_at, slab limit wanted for update skip locked))
      returning due_slabs)
    select array_agg(due_slabs order by (due_slabs).run_at, (due_slabs).slab), sum(cardinality((due_slabs).ids))
    into taken, n from gone;
    more := coalesce(cardinality(taken) = wanted, false);
    exit when taken is null;
    slabs := slabs || taken; executions := executions + n;
    exit when not more or executions >= p_limit;
    p_from := (taken[cardinality(taken)]).run_at;  -- all before it were taken, or are locked
    -- The next may be larger than these.
    wanted := least(
      ceil((p_limit - executions) * cardinality(slabs)::float8 / greatest(executions, 1)), 2 * cardinality(slabs));
  end loop;
end $$;

-- Makes slabs of one priority ready if a worker serves their task and no limit applies to any of their executions;
-- `admitted` counts these. The executions of all other slabs are returned as due rows (`unpacked`), for `admit_rows`.
create or replace function hourbell.admit_slabs(
  p_slabs hourbell.due_slabs[], p_priority smallint, p_serving hourbell.sessions[], p_generation int,
  p_now timestamptz, p_pass bigint, out admitted int, out unpacked hourbell.due[]
)
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  limited bigint[] := '{}';  -- positions of slabs under a limit
  plain hourbell.due_slabs[];
  not_plain hourbell.due_slabs[];
  ids bigint[];
  tenants int[];
  queues bigint[];
  tasks int[];
begin
  if exists (select from hourbell.limits) then limited := array(select hourbell.limited_slabs(p_slabs)); end if;
  select array_agg(p_slabs[pos]) filter (where is_plain), array_agg(p_slabs[pos]) filter (where not is_plain)
  into plain, not_plain
  from (
    select pos, hourbell.is_served(p_serving, queue, hourbell.task(target)) and pos <> all (limited) as is_plain
    from unnest(p_slabs) with ordinality as s(run_at, slab, queue, priority, flags, target, ids, tenants, pos)) as s;
  queues := array(select distinct queue from unnest(plain));
  tasks := array(select distinct hourbell.task(target) from unnest(plain));
  if cardinality(queues) > 1 or cardinality(tasks) > 1 then
    select array_agg(i.id), array_agg(i.tenant), array_agg(s.queue::bigint), array_agg(hourbell.task(s.target))
    into ids, tenants, queues, tasks
    from unnest(plain) as s cross join lateral unnest(s.ids, s.tenants) as i(id, tenant);
  else
    select array_agg(i.id), array_agg(i.tenant) into ids, tenants
    from (select unnest(s.ids) as id, unnest(s.tenants) as tenant from unnest(plain) as s) as i;
  end if;
  if ids is not null then
    perform hourbell.make_ready(ids, tenants, queues, tasks, null, p_priority, p_generation, p_now, p_pass);
  end if;
  admitted := coalesce(cardinality(ids), 0);
  unpacked := array(
    select row(s.run_at, i.id, i.tenant, s.queue, s.priority, s.flags, s.target, null)::hourbell.due
    from unnest(not_plain) as s cross join lateral unnest(s.ids, s.tenants) as i(id, tenant));
end $$;
