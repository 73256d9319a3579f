-- Planning: what the leader reads before it plans.

-- name: joining
-- Timetables with memberships that have not joined yet, and the earliest start of these, without those
-- that are left out at $2. A broken timetable may have many; they are not read.
with recursive joining as (
  (select timetable from hourbell.memberships where joined_through is null order by timetable limit 1)
  union all
  select m.timetable from joining as j cross join lateral (
    select timetable from hourbell.memberships as m
    where m.joined_through is null and m.timetable > j.timetable order by m.timetable limit 1) as m)
select t.id, t.rule, t.zone, t.dst_gap, t.dst_overlap, t.planned_through, m.since
from joining as j
cross join lateral (
  select * from hourbell.timetables as t where t.id = j.timetable and t.broken is null offset 0) as t
cross join lateral (
  select min(active_since) as since from hourbell.memberships as m
  where m.timetable = t.id and m.joined_through is null and not exists (
    select from hourbell.failing_rows as f where f.step = 'join' and f.id = m.job and f.until > $2 offset 0)
  offset 0) as m
where m.since is not null
limit $1

-- name: joining_jobs
-- The jobs that join the timetable $1.
select job from hourbell.memberships where timetable = $1 and joined_through is null

-- name: firing
-- Timetables whose next fire should be planned by now, the earliest first.
select id, rule, zone, dst_gap, dst_overlap, next_fire_at from hourbell.timetables
where plan_from <= $1 order by plan_from limit $2

-- name: gaps
-- Gaps whose next slice can be opened, those with the fewest slices first: none while a slice is being
-- fanned out. `has_dates`: whether some calendar has a date in the gap or next to it.
select g.timetable as id, t.rule, t.zone, t.dst_gap, t.dst_overlap, g.next_at, g.opened_at, g.newer[1] as before,
  exists (
    select from hourbell.calendar_dates
    where day between (g.next_at at time zone 'UTC')::date - 1 and (g.opened_at at time zone 'UTC')::date + 1)
    as has_dates
from hourbell.gaps as g
cross join lateral (
  select * from hourbell.timetables as t where t.id = g.timetable and t.broken is null offset 0) as t
where not exists (select from hourbell.fires where past)
order by g.slices, g.opened_at, g.timetable limit $1

-- name: outdated
-- Timetables computed with zone data other than $1: older or newer, each a range of the index,
-- because an index does not support "not equal"; and broken ones due for another check by $3. This
-- runs before every planning step and mostly finds nothing. (A timetable that is both comes twice,
-- which does no harm.)
(select id, rule, zone, dst_gap, dst_overlap, planned_through from hourbell.timetables
 where tz_version < $1 order by tz_version limit $2)
union all
(select id, rule, zone, dst_gap, dst_overlap, planned_through from hourbell.timetables
 where tz_version > $1 order by tz_version limit $2)
union all
(select id, rule, zone, dst_gap, dst_overlap, planned_through from hourbell.timetables
 where look_at <= $3 order by look_at limit $2)
limit $2

-- name: broken
-- Why the timetable of the job $1 cannot be planned, and when it is checked again; no row: it can.
select t.broken, t.zone, t.tz_version, t.look_at
from hourbell.jobs as j join hourbell.timetables as t on t.id = j.timetable
where j.id = $1 and t.broken is not null
