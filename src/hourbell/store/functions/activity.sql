-- Activity: the leader counts what ended in each minute (hourbell.minutes). A count reads the outcomes of one minute by
-- the index of their times, whatever the number of others, and replaces the one before. A minute is final when nothing
-- can be recorded in it any more.
-- Example: 12:00 is counted at 12:00:10, 12:00:20, …, once after it has ended, and at 12:03 for good.

-- Counts the minute p_minute. Figures that need the execution itself (lateness, tenants, queues) are taken from about
-- p_sample executions, chosen by a hash of their ids, if there are more.
create or replace function hourbell.count_minute(
  p_node uuid, p_epoch bigint, p_minute timestamptz, p_now timestamptz, p_final boolean, p_sample int
) returns void
language plpgsql set plan = ranges as $$
#variable_conflict use_column
declare
  minute_end constant timestamptz := p_minute + interval '1 minute';
  counted hourbell.minutes;
  every int;
  ran bigint[];
  ran_at timestamptz[];
  ran_seconds float8[];
  ran_failed boolean[];
  skipped bigint[];
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  -- What cannot have been counted by now was counted before the clock was set back. It is counted again.
  delete from hourbell.minutes
  where minute > p_now - interval '3 minutes' and (final or minute > p_now);
  with ended as materialized (
    select o.fate, o.reason,
      case when o.session is not null then date_bin('1 minute', o.started_at, '2000-01-01') end as started_in,
      count(*)::int as n, sum(coalesce(o.missed, 1))::int as occurrences
    from hourbell.outcomes as o where o.recorded_at >= p_minute and o.recorded_at < minute_end
    group by 1, 2, 3),
  retried as materialized (
    select date_bin('1 minute', f.started_at, '2000-01-01') as started_in, count(*)::int as n
    from hourbell.failed_attempts as f where f.at >= p_minute and f.at < minute_end group by 1),
  started as materialized (
    select started_in, sum(n)::int as n
    from (
      select started_in, n from ended where started_in is not null union all select started_in, n from retried) as s
    group by started_in)
  select coalesce(sum(n) filter (where fate = hourbell.fate_succeeded()), 0),
    coalesce(sum(n) filter (where fate = hourbell.fate_dead()), 0),
    coalesce(sum(n) filter (where fate = hourbell.fate_cancelled()), 0),
    coalesce(sum(n) filter (where fate = hourbell.fate_superseded()), 0),
    coalesce(sum(occurrences) filter (where fate = hourbell.fate_skipped()), 0),
    coalesce(sum(n) filter (where fate = hourbell.fate_dead() and started_in is not null), 0)
      + (select coalesce(sum(n), 0) from retried),
    (select coalesce(array_agg(started_in order by started_in), '{}') from started),
    (select coalesce(array_agg(n order by started_in), '{}') from started),
    (select coalesce(jsonb_object_agg(reason, n), '{}') from (
       select reason, sum(occurrences) as n from ended where reason is not null group by reason) as r),
    1 + coalesce(sum(n) filter (where started_in is not null), 0) / p_sample
  into counted.succeeded, counted.dead, counted.cancelled, counted.superseded, counted.skipped, counted.failed,
    counted.started_in, counted.starts, counted.reasons, every
  from ended;

  select array_agg(o.id), array_agg(o.started_at), array_agg(
    greatest(extract(epoch from o.finished_at - o.started_at), 0)::float8), array_agg(o.fate = hourbell.fate_dead())
  into ran, ran_at, ran_seconds, ran_failed
  from hourbell.outcomes as o
  where o.recorded_at >= p_minute and o.recorded_at < minute_end and o.session is not null
    and (every = 1 or (hashint8(o.id) & 2147483647) % every = 0);
  if counted.skipped > 0 then  -- otherwise all outcomes of the minute would be read in search of one
    skipped := array(
      select o.id from hourbell.outcomes as o
      where o.recorded_at >= p_minute and o.recorded_at < minute_end and o.fate = hourbell.fate_skipped() limit 1000);
  end if;
  counted.lateness := hourbell.lateness_of(ran, ran_at, every);
  select coalesce(array_agg(t.tenant), '{}'), coalesce(array_agg(t.starts), '{}')
  into counted.tenants, counted.tenant_starts
  from (
    select tenant, sum(starts)::int as starts
    from (
      select tenant, every * starts as starts from hourbell.tenants_of(ran)
      union all
      select f.tenant, count(*) from hourbell.failed_attempts as f where f.at >= p_minute and f.at < minute_end
      group by f.tenant) as s
    group by tenant order by starts desc, tenant limit 100) as t;
  select coalesce(array_agg(q.queue), '{}'), coalesce(array_agg(q.runs * every), '{}'),
    coalesce(array_agg(q.seconds * every), '{}')
  into counted.queues, counted.queue_runs, counted.queue_seconds
  from (select * from hourbell.run_times_of(ran, ran_seconds) order by runs desc, queue limit 100) as q;
  counted.skips := hourbell.skips_of(skipped);
  with attempts as (
    select r.target, r.class, every * r.runs as runs, every * r.failures as failures, r.longest, r.failed
    from hourbell.runs_of(ran, ran_seconds, ran_failed) as r
    union all
    select f.target, hourbell.duration_class(f.seconds), count(*), count(*), max(f.seconds), max(f.id)
    from (
      select f.target, f.id, greatest(extract(epoch from f.at - f.started_at), 0)::float8 as seconds
      from hourbell.failed_attempts as f
      where f.at >= p_minute and f.at < minute_end and f.target is not null) as f
    group by 1, 2),
  runs as materialized (
    select target, class, sum(runs)::int as runs, sum(failures)::int as failures, max(longest) as longest,
      max(failed) as failed
    from attempts group by target, class),
  listed as materialized (select target from runs group by target order by sum(runs) desc, target limit 100)
  select coalesce(array_agg(r.target), '{}'), coalesce(array_agg(r.class), '{}'), coalesce(array_agg(r.runs), '{}'),
    coalesce(array_agg(r.failures), '{}'), coalesce(array_agg(r.longest), '{}'), coalesce(array_agg(r.failed), '{}'),
    (select coalesce(sum(runs), 0) from runs where target not in (select target from listed))
  into counted.run_targets, counted.run_classes, counted.run_counts, counted.run_failures, counted.run_longest,
    counted.run_failed, counted.other_runs
  from (select * from runs where target in (select target from listed) order by target, class) as r;

  insert into hourbell.minutes
    (minute, counted_at, final, succeeded, dead, cancelled, superseded, skipped, failed, started_in, starts, reasons,
     sampled, lateness, tenants, tenant_starts, queues, queue_runs, queue_seconds, skips, run_targets, run_classes,
     run_counts, run_failures, run_longest, run_failed, other_runs)
  values (p_minute, p_now, p_final, counted.succeeded, counted.dead, counted.cancelled, counted.superseded,
    counted.skipped, counted.failed, counted.started_in, counted.starts, counted.reasons, every, counted.lateness,
    counted.tenants, counted.tenant_starts, counted.queues, counted.queue_runs, counted.queue_seconds, counted.skips,
    counted.run_targets, counted.run_classes, counted.run_counts, counted.run_failures, counted.run_longest,
    counted.run_failed, counted.other_runs)
  on conflict (minute) do update set counted_at = excluded.counted_at, final = excluded.final,
    succeeded = excluded.succeeded, dead = excluded.dead, cancelled = excluded.cancelled,
    superseded = excluded.superseded, skipped = excluded.skipped, failed = excluded.failed,
    started_in = excluded.started_in, starts = excluded.starts, reasons = excluded.reasons, sampled = excluded.sampled,
    lateness = excluded.lateness, tenants = excluded.tenants, tenant_starts = excluded.tenant_starts,
    queues = excluded.queues, queue_runs = excluded.queue_runs, queue_seconds = excluded.queue_seconds,
    skips = excluded.skips, run_targets = excluded.run_targets, run_classes = excluded.run_classes,
    run_counts = excluded.run_counts, run_failures = excluded.run_failures, run_longest = excluded.run_longest,
    run_failed = excluded.run_failed, other_runs = excluded.other_runs
  where not hourbell.minutes.final;
  if p_final then
    delete from hourbell.failed_attempts where ctid = any (array(
      select ctid from hourbell.failed_attempts where at < minute_end));
  end if;
end $$;

-- How many of these executions were how late, in 24 classes: below 1 ms, below 2, below 4, …, 2^22 ms and above; each
-- counts for p_every. p_started: when the attempt with which each ended had started.
create or replace function hourbell.lateness_of(p_ids bigint[], p_started timestamptz[], p_every int) returns int[]
language plpgsql stable set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  return array(
    select coalesce(l.n, 0) * p_every from generate_series(0, 23) as c(class) left join (
      select width_bucket(l.ms, array(select 1::bigint << k from generate_series(0, 22) as k)) as class,
        count(*)::int as n
      from (
        select hourbell.lateness_ms(e.origin, e.id, e.occurrence, coalesce(e.first_started_at, r.started_at)) as ms
        from unnest(p_ids, p_started) as r(id, started_at)
        cross join lateral (select * from hourbell.executions as e where e.id = r.id offset 0) as e) as l
      group by 1) as l on l.class = c.class
    order by c.class);
end $$;

-- How many of these executions each tenant has.
create or replace function hourbell.tenants_of(p_ids bigint[], out tenant int, out starts bigint) returns setof record
language plpgsql stable set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  return query
    select e.tenant, count(*) from unnest(p_ids) as r(id)
    cross join lateral (select tenant from hourbell.executions as e where e.id = r.id offset 0) as e
    group by e.tenant;
end $$;

-- How many of these executions each queue has, and how long they took together; p_seconds: how long each took.
create or replace function hourbell.run_times_of(
  p_ids bigint[], p_seconds float8[], out queue smallint, out runs int, out seconds float8
) returns setof record
language plpgsql stable set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  return query
    select e.queue, count(r.seconds)::int, sum(r.seconds) from unnest(p_ids, p_seconds) as r(id, seconds)
    cross join lateral (select queue from hourbell.executions as e where e.id = r.id offset 0) as e
    group by e.queue having count(r.seconds) > 0;
end $$;

-- The class of a duration: below 1 ms, below 2, below 4, …, 2^22 ms and above, from 0 on.
create or replace function hourbell.duration_class(p_seconds float8) returns smallint
language sql immutable parallel safe
return width_bucket(p_seconds * 1000, array(select 1::float8 * (1 << k) from generate_series(0, 22) as k))::smallint;

-- The attempts with which these executions ended, by what they call and the class of their duration: how many, how many
-- failed, how long the longest took, and one of those that failed. p_seconds, p_failed: of each.
create or replace function hourbell.runs_of(
  p_ids bigint[], p_seconds float8[], p_failed boolean[], out target int, out class smallint, out runs bigint,
  out failures bigint, out longest float8, out failed bigint
) returns setof record
language plpgsql stable set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  return query
    select e.target, hourbell.duration_class(r.seconds), count(*), count(*) filter (where r.failed), max(r.seconds),
      max(r.id) filter (where r.failed)
    from unnest(p_ids, p_seconds, p_failed) as r(id, seconds, failed)
    cross join lateral (select target from hourbell.executions as e where e.id = r.id offset 0) as e
    where e.target is not null and r.seconds is not null group by 1, 2;
end $$;

-- The jobs of skipped executions, at most 20, those with the most occurrences first: number, tenant, the last
-- occurrence, its reason, and how many occurrences.
create or replace function hourbell.skips_of(p_ids bigint[]) returns jsonb
language plpgsql stable set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  return (
    select coalesce(jsonb_agg(to_jsonb(s)), '[]') from (
      select coalesce(e.job, e.id)::text as job, min(e.tenant) as tenant,
        max(coalesce(o.missed_through, e.occurrence)) as at,
        (array_agg(o.reason order by e.occurrence desc))[1] as reason, sum(coalesce(o.missed, 1))::int as n
      from unnest(p_ids) as r(id)
      cross join lateral (select * from hourbell.executions as e where e.id = r.id offset 0) as e
      cross join lateral (select * from hourbell.outcomes as o where o.id = r.id offset 0) as o
      group by coalesce(e.job, e.id) order by n desc, job limit 20) as s);
end $$;
