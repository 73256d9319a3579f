-- Planning: timetables whose next fire is within the horizon advance, and their members get executions.
-- After an outage a timetable advances to the present at once. If it has missed many occurrences, they become a gap,
-- which is caught up later in slices (`open_slice`); a slice is a fire that is fanned out after all others.

-- Advances timetables and opens their fires. An advance is conditional on the fire that the caller saw, so two planners
-- never open one fire twice. Occurrences are flattened: occurrence k belongs to the timetable p_occurrence_of[k].
-- p_gap: what lies between the fire that the caller saw and the first of these occurrences becomes a gap.
create or replace function hourbell.open_fires(
  p_node uuid, p_epoch bigint, p_now timestamptz,
  p_timetables bigint[], p_expected timestamptz[], p_fire_at timestamptz[], p_next timestamptz[], p_late boolean[],
  p_gap boolean[], p_occurrence_of bigint[], p_occurrences timestamptz[], p_rows_per_second float8
) returns int
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare opened int;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  perform from hourbell.timetables where id = any (p_timetables) order by id for no key update;
  with advanced as (
    update hourbell.timetables as t
    set planned_through = a.fire_at, next_fire_at = a.next,
        plan_from = a.next - make_interval(secs => t.size / p_rows_per_second)
    from unnest(p_timetables, p_expected, p_fire_at, p_next, p_late, p_gap)
      as a(id, expected, fire_at, next, late, gap)
    where t.id = a.id and t.next_fire_at = a.expected
    returning a.*),
  opening as materialized (
    select advanced.*, o.occurrences
    from advanced
    join (select of, array_agg(at order by at) as occurrences
          from unnest(p_occurrence_of, p_occurrences) as o(of, at) group by of) as o on o.of = advanced.id),
  behind as (
    insert into hourbell.gaps (timetable, next_at, opened_at, newer)
    select id, expected, p_now, occurrences from opening where gap)
  insert into hourbell.fires (timetable, fire_at, occurrences, opened_at, late, tail)
  select id, fire_at, occurrences, p_now, late, true from opening;
  get diagnostics opened = row_count;
  return opened;
end $$;

-- Opens the next slice of a gap as a fire: these occurrences, the first of which is the cursor. p_following are later
-- ones of the gap: the next one, with which the next slice begins, and where calendars have dates one at least of each
-- day in any zone, so that a member can tell whether one follows that it does not exclude. Empty: the gap ends with
-- this slice. False: another planner has opened it.
create or replace function hourbell.open_slice(
  p_node uuid, p_epoch bigint, p_timetable bigint, p_opened_at timestamptz, p_occurrences timestamptz[],
  p_following timestamptz[]
) returns boolean
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare after timestamptz[];
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  if p_following = '{}' then
    delete from hourbell.gaps
    where timetable = p_timetable and opened_at = p_opened_at and next_at = p_occurrences[1] returning newer into after;
  else
    update hourbell.gaps set next_at = p_following[1], slices = slices + 1
    where timetable = p_timetable and opened_at = p_opened_at and next_at = p_occurrences[1]
    returning p_following || newer into after;
  end if;
  if after is null then return false; end if;
  insert into hourbell.fires (timetable, fire_at, occurrences, opened_at, late, tail, past, newer)
  values (p_timetable, p_occurrences[cardinality(p_occurrences)], p_occurrences, p_opened_at, true, p_following = '{}',
    true, after);
  return true;
end $$;

-- Sets the next fire of timetables that were computed with zone data other than p_tz_version, or that were broken and
-- no longer are. Executions already planned stay. A timetable that was planned further since the caller read it is left
-- to the next call.
create or replace function hourbell.update_tz_version(
  p_node uuid, p_epoch bigint, p_tz_version text, p_timetables bigint[], p_planned_through timestamptz[],
  p_next timestamptz[], p_rows_per_second float8
) returns int
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare retimed int;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  perform from hourbell.timetables where id = any (p_timetables) order by id for no key update;
  update hourbell.timetables as t
  set next_fire_at = n.next, plan_from = n.next - make_interval(secs => t.size / p_rows_per_second),
      tz_version = p_tz_version, broken = null, look_at = null
  from unnest(p_timetables, p_planned_through, p_next) as n(id, planned_through, next)
  where t.id = n.id and t.planned_through = n.planned_through
    and (t.tz_version <> p_tz_version or t.look_at is not null);
  get diagnostics retimed = row_count;
  return retimed;
end $$;

-- Marks timetables that the caller cannot compute with its zone data p_tz_version: p_codes[k] is the reason for
-- p_timetables[k]. They leave the index of timetables to plan; `update_tz_version` checks them again after
-- p_recheck_after, or when the leader has other zone data.
create or replace function hourbell.mark_broken(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_tz_version text, p_timetables bigint[], p_codes text[],
  p_recheck_after interval
) returns int
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare marked int;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  perform from hourbell.timetables where id = any (p_timetables) order by id for no key update;
  update hourbell.timetables as t
  set broken = b.code, look_at = p_now + p_recheck_after, plan_from = null, tz_version = p_tz_version
  from unnest(p_timetables, p_codes) as b(id, code)
  where t.id = b.id;
  get diagnostics marked = row_count;
  return marked;
end $$;

-- Fans out open fires, the oldest first but slices of gaps last, and within a fire the most urgent members first, until
-- p_limit executions are planned. A chunk commits with its cursor. Returns an upper bound of how many were planned, and
-- whether fires are still open.
create or replace function hourbell.fan_out(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_limit int, p_grace interval, out planned int, out more boolean
)
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  fire hourbell.fires;
  chunk hourbell.memberships[];
  final hourbell.memberships;
  room int;
  each int;
  wanted int;
  seen int;
  cost int;
  in_time int;  -- occurrences of a late fire that are within the grace, or the one that is made up
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  planned := 0;
  -- Lock timetables first, in order: joins take the same lock.
  perform from hourbell.timetables as t
  where id = any (array(select timetable from hourbell.fires order by past, fire_at limit 500))
  order by id for no key update;
  for fire in
    select f.* from hourbell.fires as f
    where (timetable, fire_at) in (select timetable, fire_at from hourbell.fires order by past, fire_at limit 500)
    order by past, fire_at for update
  loop
    room := p_limit - planned;
    exit when room <= 0;
    -- A member costs as many executions as it may get. A chunk has as many members as fit, but at least one.
    each := case when fire.late then 1 else cardinality(fire.occurrences) end;
    wanted := greatest(room / each, 1);
    chunk := array(
      select m from hourbell.memberships as m
      where timetable = fire.timetable
        and (priority, job, version) > (fire.after_priority, fire.after_job, fire.after_version)
        and joined_through < fire.fire_at and (until is null or until >= fire.occurrences[1])
      order by priority, job, version limit wanted);
    seen := cardinality(chunk);
    cost := seen * each;
    if fire.late and seen > 0 then
      in_time := greatest(1, cardinality(fire.occurrences) - width_bucket(
        fire.opened_at - p_grace - interval '1 microsecond', fire.occurrences));
      select array_agg(m order by pos), max(total) into chunk, cost
      from (
        select m, pos, sum(case (m).misfire when hourbell.misfire_all() then greatest((m).catch_up_limit, in_time)
          else in_time end)
          over (order by pos) as total
        from (select m, row_number() over () as pos from unnest(chunk) as m) as numbered) as counted
      where pos = 1 or total <= room;
    end if;

    if seen > 0 then
      planned := planned + cost;
      perform hourbell.produce(chunk, fire.occurrences, fire.opened_at, fire.late, fire.tail, p_grace, p_now,
        fire.newer);
    end if;
    if seen < wanted and seen = cardinality(chunk) then
      delete from hourbell.fires where timetable = fire.timetable and fire_at = fire.fire_at;
      -- Stored only for fires big enough to need an early start.
      update hourbell.timetables set size = fire.planned + seen
      where id = fire.timetable and greatest(fire.planned + seen, size) >= 10000;
    else
      final := chunk[cardinality(chunk)];
      update hourbell.fires
      set after_priority = final.priority, after_job = final.job, after_version = final.version,
          planned = fire.planned + cardinality(chunk)
      where timetable = fire.timetable and fire_at = fire.fire_at;
    end if;
  end loop;
  more := exists (select from hourbell.fires);
end $$;

-- Leaves the member out on which `fan_out` fails: the first one of the fire that it begins with. It takes part in no
-- fire until it has joined its timetable again, from the first occurrence that it has not got (`join_timetable`).
-- Returns its job.
create or replace function hourbell.leave_out_member(p_node uuid, p_epoch bigint) returns bigint
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  fire hourbell.fires;
  earliest timestamptz;
  left_out bigint;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  select * into fire from hourbell.fires order by past, fire_at limit 1;
  -- What it has missed before this fire is its join's too: no slice of a gap has it any more.
  earliest := least(fire.occurrences[1],
    (select min(occurrences[1]) from hourbell.fires where timetable = fire.timetable),
    (select min(next_at) from hourbell.gaps where timetable = fire.timetable));
  update hourbell.memberships as m
  set joined_through = null, rejoins = true,
    active_since = greatest(coalesce(joined_through, active_since), earliest - interval '1 microsecond')
  where ctid = (
    select ctid from hourbell.memberships as m
    where timetable = fire.timetable
      and (priority, job, version) > (fire.after_priority, fire.after_job, fire.after_version)
      and joined_through < fire.fire_at and (until is null or until >= fire.occurrences[1])
    order by priority, job, version limit 1)
  returning job into left_out;
  return left_out;
end $$;

-- Deletes memberships whose stretch is completely produced. A job whose last stretch it was has no further run:
-- ENDED.
-- The job is locked first, as by every change of a job. A job that another transaction is changing is left to the next
-- round.
create or replace function hourbell.end_memberships(p_node uuid, p_epoch bigint, p_now timestamptz, p_limit int)
returns int
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  places tid[];
  ours bigint[];
  gone int;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  select array_agg(row), array_agg(job) into places, ours from (
    select m.ctid as row, m.job from hourbell.memberships as m
    cross join lateral (select * from hourbell.timetables as t where t.id = m.timetable offset 0) as t
    where m.until <= p_now
      -- A join that fails is given up if its job was deleted, or a day after the membership has ended.
      and (m.joined_through is not null
        or exists (select from hourbell.failing_rows as f where f.step = 'join' and f.id = m.job offset 0)
          and (m.until <= p_now - interval '1 day' or exists (
            select from hourbell.jobs as j where j.id = m.job and j.status = hourbell.job_cancelled() offset 0)))
      and (t.next_fire_at is null or t.next_fire_at > m.until)
      and not exists (
        select from hourbell.fires as f where f.timetable = m.timetable and f.occurrences[1] <= m.until offset 0)
      and not exists (
        select from hourbell.gaps as g where g.timetable = m.timetable and g.next_at <= m.until offset 0)
    order by m.until limit p_limit) as ended;
  if places is null then return 0; end if;
  ours := array(select id from hourbell.jobs where id = any (ours) order by id for no key update skip locked);
  with gone as (
    delete from hourbell.memberships where ctid = any (places) and job = any (ours) returning job, version),
  completed as (
    update hourbell.jobs as j set status = hourbell.job_ended(), updated_at = p_now
    from gone where j.id = gone.job and j.version = gone.version and j.status = hourbell.job_scheduled())
  select count(*) into gone from gone;
  return gone;
end $$;
