-- The fleet: the leader, processes, workers, and how much waits. Every count stops at a bound.

-- name: leader
-- The leader's lease and term, its process, and the moment from which on a timetable is not planned. $1 now.
select l.epoch, l.node, l.renewed_at, l.expires_at, t.began_at, n.name, n.drift_ms,
  (select count(*)::int from hourbell.terms as c
    where c.began_at > $1::timestamptz - interval '1 hour') as changes_in_1h,
  (select min(c.began_at) from hourbell.terms as c
    where c.began_at > $1::timestamptz - interval '1 hour') as first_change_in_1h,
  (select count(*)::int from hourbell.terms as c
    where c.began_at > $1::timestamptz - interval '1 day') as changes_in_24h,
  (select plan_from from hourbell.timetables where plan_from is not null order by plan_from limit 1) as not_planned
from hourbell.leadership as l
left join hourbell.terms as t on t.epoch = l.epoch
left join hourbell.nodes as n on n.id = l.node

-- name: fleet
-- Live workers and their slots at $1; workers that were lost in the hour before, and when the first of them was.
select count(id)::int as alive, coalesce(sum(slots), 0)::int as slots,
  lost.n as lost, lost.since as lost_since
from (
  select count(*)::int as n, min(ended_at) as since from (
    select ended_at from hourbell.past_sessions
    where ended_at > $1::timestamptz - interval '1 hour' and returned is not null
    order by ended_at limit 10000) as p) as lost
left join hourbell.sessions on expires_at > $1 and id > hourbell.awaiting_session()
group by lost.n, lost.since

-- name: ready
-- Ready executions by priority, up to $1 slabs of each of 1,000 queues, and since when the first of them wait.
select p.priority, sum(r.n)::int as n, min(r.oldest) as oldest
from (select id from hourbell.queues order by id limit 1000) as q
cross join unnest(array[0, 1, 2, 3]::smallint[]) as p(priority)
cross join lateral (
  select v from hourbell.virtual_time as v
  where v.queue = q.id and v.priority = p.priority order by pass desc limit 1) as v
cross join lateral (
  select sum(r.n) as n, min((
    select run_at from hourbell.executions as e where r.pos <= 10 and e.id = r.id)) as oldest
  from (
    select cardinality(r.ids) as n, r.ids[1] as id, row_number() over () as pos
    from hourbell.ready as r
    where r.queue = q.id and r.priority = p.priority and r.tag >= v.v order by r.tag limit $1) as r) as r
where r.n is not null
group by p.priority

-- name: overdue
-- By priority: since when executions wait for the gate, at $1.
select (tier & 3)::smallint as priority, min(d.run_at) as oldest
from generate_series(0, 15) as tier
cross join lateral (
  (select run_at from hourbell.due where hourbell.tier(priority, flags) = tier and run_at <= $1 order by run_at limit 1)
  union all
  (select run_at from hourbell.due_slabs
   where hourbell.tier(priority, flags) = tier and run_at <= $1 order by run_at limit 1)) as d
group by tier & 3

-- name: parked
-- Parked executions by priority, among $1, and since when the first of them wait. Those that wait for a concurrency key
-- have no priority there.
select coalesce(e.priority, p.priority) as priority, count(*)::int as n, min(e.run_at) as oldest
from (
  select kind, priority, id, row_number() over (partition by priority order by id) as pos
  from (select kind, priority, id from hourbell.parked order by id limit $1) as p) as p
left join lateral (
  select priority, run_at from hourbell.executions as e
  where e.id = p.id and (p.pos <= 10 or p.kind = hourbell.blocker_concurrency_key()) offset 0) as e on true
group by 1

-- name: running
-- Running executions, among $1, of the tenant $2 or all: by priority, by the minute of their claim, and whether
-- a worker or their target has them.
select r.priority, r.started_in, r.awaiting, count(*)::int as n
from (
  select e.priority, date_bin('1 minute', l.claimed_at, '2000-01-01') as started_in,
    s.id = hourbell.awaiting_session() as awaiting
  from (select id from hourbell.sessions order by id desc) as s
  cross join lateral (select id, claimed_at from hourbell.leases as l where l.session = s.id limit $1) as l
  cross join lateral (select priority, tenant from hourbell.executions as e where e.id = l.id offset 0) as e
  where $2::int is null or e.tenant = $2
  limit $1) as r
group by 1, 2, 3

-- name: report_node
-- Records a heartbeat of a process.
insert into hourbell.nodes
  (id, name, roles, version, tz_version, started_at, seen_at, drift_ms, connections, max_connections, circuits)
values ($1, $2, $3, $4, $5, $6, $6, $7, $8, $9, $10::text::jsonb)
on conflict (id) do update set seen_at = excluded.seen_at, drift_ms = excluded.drift_ms,
  connections = excluded.connections, max_connections = excluded.max_connections, circuits = excluded.circuits

-- name: delete_node
-- Removes a process that shuts down.
delete from hourbell.nodes where id = $1

-- name: nodes
select n.*, exists (
  select from hourbell.leadership as l where l.node = n.id and l.expires_at > $1) as leads
from hourbell.nodes as n order by n.name, n.id limit 1000

-- name: circuits
-- Open circuits of the processes that were seen since $1.
select n.id, n.name, c.tenant, c.host, c.endpoint, c.failures, c.since, c.until, nullif(c.error, '') as error
from hourbell.nodes as n
cross join lateral jsonb_to_recordset(n.circuits)
  as c(tenant text, host text, endpoint text, failures int, since timestamptz, until timestamptz,
    error text)
where n.seen_at > $1 and ($2::text is null or c.tenant = $2)
order by c.since, c.host, c.endpoint nulls first limit 500

-- A worker: its session, and if that has ended, how.

-- name: workers
-- Sessions, the newest first, before $1, at most $2.
select s.*, array(select name from hourbell.queues as q where q.id = any (s.queues) order by name limit 1000)
  as queue_names,
  array(
    select name from hourbell.tasks as t where t.id = any (s.tasks)
    union all select '@webhook' where hourbell.task_webhook() = any (s.tasks) order by 1 limit 1000) as task_names,
  (select count(*)::int from (select from hourbell.leases as l where l.session = s.id limit $3) as l) as running
from (
  select * from hourbell.sessions where id < $1 and id > hourbell.awaiting_session() order by id desc limit $2) as s
order by s.id desc

-- name: past_workers
-- Sessions that have ended since $4, among the last 10,000, the newest first, before $1, at most $2; $3: only those
-- that were lost. They are kept for as long as the ledger, so they are found by their end.
select id, worker, ended_at, returned
from (
  select id, worker, ended_at, returned from hourbell.past_sessions where ended_at > $4
  order by ended_at desc limit 10000) as p
where id < $1 and (not $3 or returned is not null) order by id desc limit $2

-- name: worker
select s.*, array(select name from hourbell.queues as q where q.id = any (s.queues) order by name limit 1000)
  as queue_names,
  array(
    select name from hourbell.tasks as t where t.id = any (s.tasks)
    union all select '@webhook' where hourbell.task_webhook() = any (s.tasks) order by 1 limit 1000) as task_names,
  (select count(*)::int from (select from hourbell.leases as l where l.session = s.id limit $2) as l) as running
from hourbell.sessions as s where s.id = $1 and s.id > hourbell.awaiting_session()

-- name: past_worker
select id, worker, ended_at, returned from hourbell.past_sessions where id = $1

-- name: held
-- What a session runs, the oldest claim first, at most $2.
select l.id, l.claimed_at, coalesce(e.job, e.id) as job, e.attempt + 1 as attempt,
  (select name from hourbell.tenants as t where t.id = e.tenant) as tenant_name,
  s.spec ->> 'name' as job_name, case json_typeof(s.spec -> 'timeout_seconds')
    when 'number' then (s.spec ->> 'timeout_seconds')::numeric::int end as timeout_seconds,
  (select p.progress from hourbell.progress as p where p.id = l.id and p.fence = l.fence) as progress
from (select * from hourbell.leases as l where l.session = $1 order by l.claimed_at, l.id limit $2) as l
cross join lateral (select * from hourbell.executions as e where e.id = l.id offset 0) as e
cross join lateral (select hourbell.as_json(hourbell.job_spec(e.job, e.spec)) as spec) as s
order by l.claimed_at, l.id
