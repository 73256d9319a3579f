-- Metrics: what the leader reads of the whole cell. Every part stops at a bound: a count is that many or more.

-- name: cell
-- $1 is now. The epoch; live workers; how late the planner is, if executions should be planned up to $2; timetables
-- that the leader cannot compute, and the jobs attached to them; rows on which a step fails; dead letters; sessions
-- that expired before $3. Each up to $4. The time of the oldest claim that is not settled: in a session it is the one
-- with the lowest fence.
select
  (select epoch from hourbell.leadership) as epoch,
  (select count(*)::int from hourbell.sessions where id > 0 and expires_at > $1) as workers,
  greatest(0, extract(epoch from $2::timestamptz - (
      select plan_from from hourbell.timetables
      where plan_from is not null and broken is null order by plan_from limit 1)),
    extract(epoch from $1::timestamptz - (
      select fire_at from hourbell.fires where not past order by fire_at limit 1)))::float8 as lag_seconds,
  (select count(*)::int from (
     select from hourbell.timetables where look_at is not null order by look_at limit $4) as t) as broken,
  (select count(*)::int from (
     select m.job, m.version
     from (select id from hourbell.timetables where look_at is not null order by look_at limit $4) as t
     cross join lateral (select * from hourbell.memberships as m where m.timetable = t.id limit $4) as m
     limit $4) as m
   where exists (
     select from hourbell.jobs as j where j.id = m.job and j.version = m.version
       and j.status = hourbell.job_scheduled() offset 0)) as without_next_run,
  (select count(*)::int from (
     select from hourbell.failing_rows where until > $1 - interval '2 minutes' order by until limit $4) as f)
    as failing,
  (select count(*)::int from (
     select from hourbell.dead_letters order by died_at limit $4) as d) as dead_letters,
  (select count(*)::int from (
     select from hourbell.sessions where id > 0 and expires_at < $3 order by expires_at limit $4) as s) as unreaped,
  (select min(l.claimed_at) from hourbell.sessions as s
   cross join lateral (
     select claimed_at from hourbell.leased as l where l.session = s.id order by l.fence limit 1) as l
   where s.id <> hourbell.awaiting_session()) as running_since

-- name: queues
-- The first $1 queues by number.
select id, name from hourbell.queues order by id limit $1

-- name: serving
-- The number and the slots of the live workers of each queue, and (null) of those that serve all queues; $1 is now.
select q.queue, count(*) as workers, sum(s.slots) as slots
from hourbell.sessions as s
cross join lateral unnest(case when s.all_queues then array[null]::smallint[] else s.queues end) as q(queue)
where s.id > 0 and s.expires_at > $1
group by q.queue

-- name: waiting
-- $1 is now. What waits for its time, and what waits for the gate, by queue and priority: up to $2 rows and $2 slabs of
-- each tier, the first ones. A tier is read from its mark on, as the gate reads it: before it there may be many dead
-- rows.
select d.queue, d.priority, d.is_due, sum(d.n)::int as n, min(d.run_at) filter (where d.is_due) as oldest
from generate_series(0, 15) as tier
cross join lateral (
  select coalesce((
    select due_from from hourbell.due_marks as m where m.tier = tier.tier order by pass desc limit 1),
    '-infinity') as due_from) as mark
cross join lateral (
  (select queue, priority, true as is_due, 1 as n, run_at from hourbell.due
   where hourbell.tier(priority, flags) = tier and run_at >= mark.due_from and run_at <= $1 order by run_at limit $2)
  union all
  (select queue, priority, false, 1, run_at from hourbell.due
   where hourbell.tier(priority, flags) = tier and run_at > $1 order by run_at limit $2)
  union all
  (select queue, priority, true, cardinality(ids), run_at from hourbell.due_slabs
   where hourbell.tier(priority, flags) = tier and run_at >= mark.due_from and run_at <= $1 order by run_at limit $2)
  union all
  (select queue, priority, false, cardinality(ids), run_at from hourbell.due_slabs
   where hourbell.tier(priority, flags) = tier and run_at > $1 order by run_at limit $2)) as d
group by d.queue, d.priority, d.is_due

-- name: ready
-- What waits for a worker, by queue and priority, of the first $1 queues: up to $2 slabs of each, and about $3
-- altogether. A queue is read from virtual time on, as claims read it. The oldest is that of the first execution of
-- each slab.
with heads as materialized (
  select q.id as queue, p.priority, v.v
  from (select id from hourbell.queues order by id limit $1) as q
  cross join unnest(array[0, 1, 2, 3]::smallint[]) as p(priority)
  cross join lateral (
    select v from hourbell.virtual_time as v
    where v.queue = q.id and v.priority = p.priority order by pass desc limit 1) as v
  where exists (
    select from hourbell.ready as r where r.queue = q.id and r.priority = p.priority and r.tag >= v.v offset 0))
select h.queue, h.priority, sum(r.n)::int as n, min(r.run_at) as oldest
from heads as h
cross join lateral (
  select cardinality(r.ids) as n, e.run_at
  from (
    select ids from hourbell.ready as r
    where r.queue = h.queue and r.priority = h.priority and r.tag >= h.v order by r.tag
    limit least($2::int, (select $3::int / greatest(count(*), 1) + 1 from heads))) as r
  cross join lateral (select run_at from hourbell.executions as e where e.id = r.ids[1] offset 0) as e) as r
group by h.queue, h.priority

-- name: elsewhere
-- What is parked, paused or suspected, by queue and priority, up to $1 of each kind of blocker and of each place; and
-- what runs and what awaits its target, up to $2 each. $3: the kinds of blockers.
select e.queue, e.priority, w.place, count(*)::int as n,
  min(e.run_at) filter (where w.place in ('parked', 'suspects')) as oldest
from (
  (select 'parked' as place, p.id from unnest($3::smallint[]) as k(kind)
   cross join lateral (select id from hourbell.parked as p where p.kind = k.kind limit $1) as p)
  union all
  (select 'paused', id from hourbell.paused limit $1)
  union all
  (select 'suspects', id from hourbell.suspects limit $1)
  union all
  (select 'awaiting', id from hourbell.leases as l where l.session = hourbell.awaiting_session() limit $2)
  union all
  (select 'running', l.id
   from (select id from hourbell.sessions where id <> hourbell.awaiting_session() order by id desc) as s
   cross join lateral (select id from hourbell.leases as l where l.session = s.id limit $2) as l
   limit $2)) as w
cross join lateral (select queue, priority, run_at from hourbell.executions as e where e.id = w.id offset 0) as e
group by e.queue, e.priority, w.place

-- name: parked
-- Parked executions by the kind of their blocker, up to $1 of each.
select k.kind, (
    select count(*)::int from (select from hourbell.parked as p where p.kind = k.kind limit $1) as p) as n
from unnest($2::smallint[]) as k(kind)

-- name: run_seconds
-- How long a run took on average, by queue, as counted from the minute $1 on; $2 is now. The newest count most: a
-- minute counts half as much as one that is five minutes newer.
select q.queue, sum(q.seconds * w.weight) / sum(q.runs * w.weight) as seconds
from hourbell.minutes as m
cross join lateral unnest(m.queues, m.queue_runs, m.queue_seconds) as q(queue, runs, seconds)
cross join lateral (select power(0.5::float8, extract(epoch from $2 - m.minute)::float8 / 300) as weight) as w
where m.minute >= $1 group by q.queue
