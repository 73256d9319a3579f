-- Forecast: what will fall due. Times come in as arguments.

-- name: waiting
-- Planned executions, one-time jobs and retries, by minute, in ($1, $2]: of the first $3 by time,
-- those of the tenant $4 (null: all). With the number of rows read and the last moment among them. Separately for the
-- queues $5 and the tenants $6, which have limits; otherwise both are null.
select date_bin('1 minute', w.run_at, '2000-01-01') as minute,
  case when w.queue = any ($5::smallint[]) then w.queue end as queue,
  case when w.tenant = any ($6::int[]) then w.tenant end as tenant,
  count(*) filter (where $4::int is null or w.tenant = $4) as n,
  count(*) as examined, max(w.run_at) as last
from (
  select w.run_at, w.tenant, w.queue from generate_series(0, 15) as t(tier) cross join lateral (
    (select d.run_at, d.tenant, d.queue from hourbell.due as d
     where hourbell.tier(d.priority, d.flags) = t.tier and d.run_at > $1 and d.run_at <= $2
     order by d.run_at limit $3)
    union all
    (select d.run_at, m.tenant, d.queue from (
       select d.run_at, d.tenants, d.queue from hourbell.due_slabs as d
       where hourbell.tier(d.priority, d.flags) = t.tier and d.run_at > $1 and d.run_at <= $2
       order by d.run_at limit $3) as d
     cross join lateral unnest(d.tenants) as m(tenant) limit $3)) as w
  order by w.run_at limit $3) as w
group by 1, 2, 3 order by 1

-- name: waiting_in
-- The executions that `waiting` counts in ($1, $2], of the tenant $4 (null: of all): the first $3 of each tier by time,
-- among $5 rows and as many slabs of it. `is_last`: the last that was examined, `wanted` or not: there may be others.
select w.wanted, w.is_last, e.id, coalesce(e.job, e.id) as job, w.run_at, s.name as tenant_name,
  coalesce((select name from hourbell.jobs as j where j.id = e.job), hourbell.as_json(e.spec) ->> 'name') as job_name
from (
  select w.* from generate_series(0, 15) as t(tier) cross join lateral (
    (select d.run_at, d.id, $4::int is null or d.tenant = $4 as wanted, d.pos = $5 as is_last from (
       select d.*, row_number() over (order by d.run_at) as pos from hourbell.due as d
       where hourbell.tier(d.priority, d.flags) = t.tier and d.run_at > $1 and d.run_at <= $2
       order by d.run_at limit $5) as d
     where $4::int is null or d.tenant = $4 or d.pos = $5 limit $3)
    union all
    (select d.run_at, m.id, $4::int is null or m.tenant = $4, d.pos = $5 from (
       select d.*, row_number() over (order by d.run_at) as pos from hourbell.due_slabs as d
       where hourbell.tier(d.priority, d.flags) = t.tier and d.run_at > $1 and d.run_at <= $2
       order by d.run_at limit $5) as d
     cross join lateral unnest(d.ids, d.tenants) as m(id, tenant)
     where $4::int is null or m.tenant = $4 or d.pos = $5 limit $3)) as w) as w
cross join lateral (select * from hourbell.executions as e where e.id = w.id offset 0) as e
cross join lateral (select name from hourbell.tenants as s where s.id = e.tenant offset 0) as s

-- name: members_at
-- The jobs of the timetables $1 that are due with them at the moments $2, of the tenant $3 (null: of all): the first $4
-- by time, among $5 memberships of each timetable.
select w.at as run_at, m.job, j.name as job_name, s.name as tenant_name
from (select * from unnest($1::bigint[], $2::timestamptz[]) as w(timetable, at) order by w.at) as w
cross join lateral (
  select m.job, m.tenant from (
    select * from hourbell.memberships as m where m.timetable = w.timetable limit $5) as m
  where m.active_since < w.at and (m.until is null or m.until >= w.at) and ($3::int is null or m.tenant = $3)
  limit $4) as m
cross join lateral (select name from hourbell.jobs as j where j.id = m.job offset 0) as j
cross join lateral (select name from hourbell.tenants as s where s.id = m.tenant offset 0) as s
order by w.at limit $4

-- name: firing_by
-- Timetables to be planned up to $1, the earliest first, at most $2.
select id, rule, zone, dst_gap, dst_overlap, next_fire_at, plan_from, size from hourbell.timetables
where plan_from <= $1 order by plan_from limit $2

-- name: members
-- The number of memberships of the timetables $1 by start and end (null: already started, no end),
-- after $2. At most $3 per timetable and $4 in all are counted, in the order of $1; separately for the queues $5 and
-- the tenants $6.
select m.timetable, m.since, m.until, m.queue, m.tenant, count(*) as n
from (
  select m.* from unnest($1::bigint[]) with ordinality as t(id, pos) cross join lateral (
    select m.timetable, case when m.active_since > $2 then m.active_since end as since, m.until,
      case when m.queue = any ($5::smallint[]) then m.queue end as queue,
      case when m.tenant = any ($6::int[]) then m.tenant end as tenant
    from hourbell.memberships as m
    where m.timetable = t.id and (m.until is null or m.until > $2) limit $3) as m
  order by t.pos limit $4) as m
group by m.timetable, m.since, m.until, m.queue, m.tenant

-- name: sizes
-- The number of memberships of each of the timetables $1 after $2, up to $3.
select w.id as timetable, m.n from unnest($1::bigint[]) as w(id)
cross join lateral (
  select count(*) as n from (
    select from hourbell.memberships as m
    where m.timetable = w.id and (m.until is null or m.until > $2) limit $3) as m) as m

-- name: excluding
-- Of the same memberships those whose jobs (of the tenant $7; null: of all) exclude calendars: how many, by the dates
-- from $5 to $6 on which they are skipped; separately for the queues $8 and the tenants $9. Asked only if some calendar
-- has such a date.
select m.timetable, m.since, m.until, m.zone, m.dates, m.queue, m.tenant, count(*) as n
from (
  select m.timetable, m.since, m.until, m.queue, m.tenant, coalesce(s.schedule ->> 'timezone', 'UTC') as zone, array(
      select distinct d.day from json_array_elements_text(
        case json_typeof(s.schedule -> 'exclude') when 'array' then s.schedule -> 'exclude' end) as c(name)
      join hourbell.calendar_dates as d on d.tenant = j.tenant and d.calendar = c.name and d.day between $5 and $6
      order by d.day) as dates
  from (
    select m.* from unnest($1::bigint[]) with ordinality as t(id, pos) cross join lateral (
      select m.timetable, m.job, case when m.active_since > $2 then m.active_since end as since, m.until,
        case when m.queue = any ($8::smallint[]) then m.queue end as queue,
        case when m.tenant = any ($9::int[]) then m.tenant end as tenant
      from hourbell.memberships as m
      where m.timetable = t.id and (m.until is null or m.until > $2) limit $3) as m
    order by t.pos limit $4) as m
  cross join lateral (select j.tenant, j.spec from hourbell.jobs as j where j.id = m.job offset 0) as j
  cross join lateral (select hourbell.as_json(j.spec) -> 'schedule' as schedule) as s
  where j.spec like '%"exclude":%' and ($7::int is null or j.tenant = $7)) as m
where m.dates <> '{}'
group by m.timetable, m.since, m.until, m.zone, m.dates, m.queue, m.tenant

-- name: tenants_of_timetables
-- The tenants with the most jobs of the timetables $1, after $2: at most $4 of each, among $3 memberships of it.
select w.id as timetable, t.name
from unnest($1::bigint[]) as w(id)
cross join lateral (
  select m.tenant, count(*) as n
  from (
    select m.tenant from hourbell.memberships as m
    where m.timetable = w.id and (m.until is null or m.until > $2) limit $3) as m
  group by m.tenant order by n desc, m.tenant limit $4) as m
cross join lateral (select name from hourbell.tenants as t where t.id = m.tenant offset 0) as t

-- name: busiest_minute
-- How many attempts ended in the busiest minute from $1 on, of those that were counted for good; the first and the last
-- of these minutes.
select max(succeeded + failed) as n, min(minute) as first, max(minute) as last
from hourbell.minutes where minute >= $1 and final

-- name: has_dates
-- Whether a calendar of any tenant has a date from $1 to $2.
select exists (select from hourbell.calendar_dates where day between $1 and $2)

-- name: members_of_tenant
-- The timetables of the jobs of tenant $1, with the same counts; at most $3 jobs are read. Separately for the
-- queues $4, and as those of the tenant if it is among $5.
select t.id, t.rule, t.zone, t.dst_gap, t.dst_overlap, t.next_fire_at, t.plan_from, t.size, m.since, m.until, m.queue,
  case when $1 = any ($5::int[]) then $1 end as tenant, count(*) as n
from (
  select * from hourbell.jobs as j where j.tenant = $1 and j.status = hourbell.job_scheduled()
  order by -j.id limit $3) as j
cross join lateral (
  select case when m.active_since > $2 then m.active_since end as since, m.until,
    case when m.queue = any ($4::smallint[]) then m.queue end as queue
  from hourbell.memberships as m
  where m.timetable = j.timetable and m.priority = j.priority and m.job = j.id and m.version = j.version
    and (m.until is null or m.until > $2)) as m
join hourbell.timetables as t on t.id = j.timetable
where t.next_fire_at is not null
group by t.id, m.since, m.until, m.queue

-- name: limited
-- Queues and tenants with limits, of each kind the first $1; of the tenant $2 (null: of all).
(select l.kind, q.id::int as id, q.name, l.max_concurrency, l.rate, l.burst
 from hourbell.limits as l join hourbell.queues as q on q.id = l.key
 where l.kind = hourbell.blocker_queue() and (l.max_concurrency is not null or l.rate is not null)
 order by l.key limit $1)
union all
(select l.kind, t.id, t.name, l.max_concurrency, l.rate, l.burst
 from hourbell.limits as l join hourbell.tenants as t on t.id = l.key
 where l.kind = hourbell.blocker_tenant() and (l.max_concurrency is not null or l.rate is not null)
   and ($2::int is null or t.id = $2) order by l.key limit $1)

-- name: slots
-- How many executions the workers that are alive at $1 can run at once.
select coalesce(sum(slots), 0)::int as slots from hourbell.sessions
where expires_at > $1 and id > hourbell.awaiting_session()

-- name: seconds_of_timetables
-- How many seconds runs of the timetables $1 took, on average: of the last $3 runs of $2 jobs each.
select w.id as timetable, avg(r.seconds)::float8 as seconds
from unnest($1::bigint[]) as w(id)
cross join lateral (select job from hourbell.memberships as m where m.timetable = w.id limit $2) as m
cross join lateral (
  select id from hourbell.executions as e where e.job = m.job order by occurrence desc limit $3) as e
cross join lateral (
  select extract(epoch from o.finished_at - o.started_at) as seconds from hourbell.outcomes as o
  where o.id = e.id and o.started_at is not null and o.finished_at is not null offset 0) as r
group by w.id

-- name: seconds_of_queues
-- The same by queue, of the newest $1 executions that have ended.
select e.queue, avg(o.seconds)::float8 as seconds, count(*) as n
from (
  select id, extract(epoch from finished_at - started_at) as seconds from hourbell.outcomes
  where started_at is not null and finished_at is not null order by id desc limit $1) as o
cross join lateral (select queue from hourbell.executions as e where e.id = o.id offset 0) as e
group by e.queue
