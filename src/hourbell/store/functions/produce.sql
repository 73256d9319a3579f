-- Creating executions from memberships: shared by plan (fires) and join (own stretch), so that there is one producer.

-- The latest of p_occurrences[p_first:p_last] that is not at an excluded time; null: all are, or there is none. It is
-- the last one, or the last one before a range of excluded times.
create or replace function hourbell.latest_allowed(
  p_occurrences timestamptz[], p_first int, p_last int, p_excluded tstzmultirange
) returns int
language sql immutable as $$
  select max(k) from (
    select p_last as k
    union all
    select width_bucket(lower(r) - interval '1 microsecond', p_occurrences) from unnest(p_excluded) as r) as candidates
  where k between p_first and p_last and not p_excluded @> p_occurrences[k]
$$;

-- Which occurrences of a stretch (ascending, none later than p_opened_at) a member has, as ranges of their indexes, and
-- which of these it runs. The others are missed: they are late by more than the grace, and the misfire policy does not
-- make them up. Occurrences that are late by less always run. So `latest` makes up the newest misfire only if nothing
-- newer is due. What is at the times p_excluded, which calendars exclude, does not count as newer, and is not made up
-- by `latest`.
-- A slice of a gap is followed by p_newer: in the last slice (p_tail) the due occurrences that other fires have, before
-- it some of each day as well (`open_slice`). They are newer for `latest`, and count towards the limit of `all`, which
-- reaches no further than the last slice; unless the member ends before them.
-- Found by binary search, and each number once (`offset 0`): a stretch may have ten thousand occurrences, and a
-- timetable a million members.
create or replace function hourbell.member_share(
  m hourbell.memberships, p_occurrences timestamptz[], p_opened_at timestamptz, p_tail boolean, p_grace interval,
  p_newer timestamptz[], p_excluded tstzmultirange, out first int, out last int, out runs boolean
) returns setof record
language sql immutable as $$
  select s.first, s.last, s.runs
  from (
    select first, last, later, least(greatest(late, first - 1), last) as misfires
    from (select
      width_bucket(coalesce(m.joined_through, m.active_since), p_occurrences) + 1 as first,
      case when m.until is null then cardinality(p_occurrences) else width_bucket(m.until, p_occurrences) end as last,
      width_bucket(p_opened_at - p_grace - interval '1 microsecond', p_occurrences) as late,
      case when m.until is null then cardinality(p_newer) when p_newer = '{}' then 0
        else width_bucket(m.until, p_newer) end as later offset 0) as found offset 0) as range
  cross join lateral (
    select case
      when m.misfire = hourbell.misfire_skip() then null
      when m.misfire = hourbell.misfire_latest() then case
        when p_excluded = '{}' then case when later = 0 and first <= last then last end
        when hourbell.latest_allowed(p_newer, 1, later, p_excluded) is null
          then hourbell.latest_allowed(p_occurrences, first, last, p_excluded) end
      when later > 0 and not p_tail then null
      else greatest(first, last + later - m.catch_up_limit + 1,
        width_bucket(p_opened_at - make_interval(secs => m.catch_up_seconds), p_occurrences) + 1) end as makes_up
    offset 0) as policy
  cross join lateral (
    select least(coalesce(makes_up, last + 1), misfires + 1) as made_up_from,
      case when m.misfire = hourbell.misfire_latest() then least(makes_up, misfires) else misfires end
        as made_up_through
    offset 0) as made_up
  cross join lateral (values
    (first, made_up_from - 1, false), (made_up_from, made_up_through, true),
    (made_up_through + 1, misfires, false), (misfires + 1, last, true)) as s(first, last, runs)
  where s.first <= s.last
$$;

-- Writes executions for these members and occurrences, and one, with its outcome, for each stretch that a member
-- missed. An execution of the same occurrence left by an older version of the job is taken over, never duplicated.
create or replace function hourbell.produce(
  p_members hourbell.memberships[], p_occurrences timestamptz[], p_opened_at timestamptz,
  p_late boolean, p_tail boolean, p_grace interval, p_now timestamptz, p_newer timestamptz[] default '{}'
) returns int
language plpgsql set enable_nestloop = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  base constant bigint := hourbell.id_base(p_now);
  tenants int[];  -- tenants with many executions
  levels int[];   -- the level of their executions
  made int;
  taken_over bigint[];  -- executions of older versions,
  versions int[];  -- and their new versions
  skipped int;  -- stretches of missed occurrences
  excluding bigint[];  -- jobs that exclude dates,
  excluded tstzmultirange[];  -- and these dates, as times
begin
  -- Tenants with many executions at one moment, from earlier statements and this one. Small fires are not counted.
  if cardinality(p_members) >= 16 then
    with herds as materialized (
      select m.tenant, m.n + coalesce(c.planned, 0) as planned
      from (select tenant, count(*) as n from unnest(p_members) group by tenant) as m
      left join (
        select tenant, max(planned) as planned from hourbell.planned_counts where at = any (p_occurrences)
        group by tenant) as c
        on c.tenant = m.tenant
      where m.n + coalesce(c.planned, 0) >= 16),
    counted as (
      -- For a late fire only the newest occurrence: the others are misfires that are made up.
      insert into hourbell.planned_counts (at, tenant, planned)
      select o.at, c.tenant, c.planned from herds as c
      cross join unnest(
        case when p_late then p_occurrences[cardinality(p_occurrences):] else p_occurrences end) as o(at))
    select array_agg(tenant), array_agg(hourbell.level_of(planned)) into tenants, levels from herds;
  end if;
  if p_late then
    select jobs, times into excluding, excluded from hourbell.excluded_of(
      p_members, p_occurrences[1], greatest(p_occurrences[cardinality(p_occurrences)], p_newer[cardinality(p_newer)]));
  end if;
  with wanted as materialized (
    select hourbell.next_id(base) as id, m.job, o.at, m.version, m.tenant, m.queue, m.priority,
      o.at + make_interval(secs => m.start_deadline_seconds) as start_by,
      o.at + make_interval(secs => m.deadline_seconds) as finish_by,
      m.overlap, m.at_most_once, m.target, m.key, m.key_limit, m.notifies
    from unnest(p_members) as m
    left join unnest(excluding, excluded) as x(job, times) on x.job = m.job
    cross join lateral unnest(case when p_late then array(
      select at
      from hourbell.member_share(
        m, p_occurrences, p_opened_at, p_tail, p_grace, p_newer, coalesce(x.times, '{}')) as s
      cross join unnest(p_occurrences[s.first:s.last]) as at
      where s.runs)
      else p_occurrences end) as o(at)
    where o.at > coalesce(m.joined_through, m.active_since) and (m.until is null or o.at <= m.until)),
  opened as (
    insert into hourbell.open_runs as r (job, occurrence, origin, wakes, id)
    select job, at, hourbell.origin_schedule(), overlap <> hourbell.overlap_allow(), id from wanted
    on conflict (job, occurrence, origin)
      where origin in (hourbell.origin_schedule(), hourbell.origin_backfill()) do update
      set wakes = r.wakes or excluded.wakes
    returning r.id, r.job, r.occurrence, r.xmax = 0 as fresh),
  fresh as materialized (select w.* from wanted as w join opened as o on o.id = w.id where o.fresh),
  stored as (
    insert into hourbell.executions
      (id, job, occurrence, run_at, start_by, finish_by, tenant, version, queue, priority, origin, overlap,
       at_most_once, target, key, key_limit, notifies)
    select id, job, at, at, start_by, finish_by, tenant, version, queue, priority, hourbell.origin_schedule(), overlap,
      at_most_once, target, key, key_limit, notifies
    from fresh),
  timed as (
    insert into hourbell.deadlines (at, id, kind)
    select t.at, fresh.id, t.kind
    from fresh cross join lateral (values
      (start_by, hourbell.deadline_start()), (finish_by, hourbell.deadline_finish())) as t(at, kind)
    where t.at is not null and (start_by is not null or finish_by is not null)),
  queued as (
    insert into hourbell.due (run_at, id, tenant, queue, priority, flags, target, key)
    select at, id, tenant, queue, priority,
      hourbell.flags_of(overlap, 0::smallint) + hourbell.flags_level(
        coalesce(levels[array_position(tenants, tenant)], 0)), target, key
    from fresh)
  select (select count(*) from fresh), array_agg(o.id), array_agg(w.version) into made, taken_over, versions
  from opened as o join wanted as w on w.job = o.job and w.at = o.occurrence where not o.fresh;
  -- In a statement of its own: the transaction that opened the run may have committed since the one above began.
  if taken_over is not null then
    update hourbell.executions as e set version = t.version from unnest(taken_over, versions) as t(id, version)
    where e.id = t.id and e.id = any (taken_over) and e.version < t.version;
  end if;

  if p_late then
    with missed as materialized (
      select hourbell.next_id(base) as id, m.job, p_occurrences[s.first] as first,
        p_occurrences[s.last] as last, s.last - s.first + 1 as n, m.tenant, m.version, m.queue, m.priority
      from unnest(p_members) as m
      left join unnest(excluding, excluded) as x(job, times) on x.job = m.job
      cross join lateral hourbell.member_share(
        m, p_occurrences, p_opened_at, p_tail, p_grace, p_newer, coalesce(x.times, '{}')) as s
      where not s.runs),
    stored as (
      insert into hourbell.executions (id, job, occurrence, run_at, tenant, version, queue, priority, origin)
      select id, job, first, first, tenant, version, queue, priority, hourbell.origin_schedule() from missed)
    insert into hourbell.outcomes (id, fence, recorded_at, fate, reason, missed, missed_through)
    select id, 0, p_now, hourbell.fate_skipped(), 'misfire', n, last from missed;
    get diagnostics skipped = row_count;
    perform hourbell.count_fates(
      array_fill(hourbell.fate_skipped(), array[skipped]), array_fill('misfire'::text, array[skipped]));
  end if;
  return made;
end $$;
