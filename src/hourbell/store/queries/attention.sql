-- What needs attention. Every search stops at a bound. $1 is a moment; $2 the tenant, null: all, where nothing else is
-- said.

-- name: broken
-- Timetables that the leader cannot compute, with one of their jobs and up to 1,000 of them.
select t.broken, t.zone, t.rule, m.n, m.job, (select name from hourbell.jobs as j where j.id = m.job) as job_name,
  (select name from hourbell.tenants as n where n.id = m.tenant) as tenant_name
from (select * from hourbell.timetables where look_at is not null order by look_at limit 20) as t
cross join lateral (
  select count(*)::int as n, min(m.job) as job, min(m.tenant) as tenant
  from (select job, tenant from hourbell.memberships as m where m.timetable = t.id limit 1000) as m) as m
where m.n > 0

-- name: unserved_queues
-- Queues of which executions are parked because no live worker serves them; counted up to $2, without those of jobs
-- that will be retired.
with recursive retiring as materialized (select unnest(hourbell.retiring_jobs()) as job),
parked as (
  (select key, 1 as found from hourbell.parked where kind = hourbell.blocker_queue() order by key limit 1)
  union all
  select n.key, p.found + 1 from parked as p cross join lateral (
    select key from hourbell.parked as n where n.kind = hourbell.blocker_queue() and n.key > p.key
    order by n.key limit 1) as n
  where p.found < 1000)
select q.name as queue, w.n, (select e.run_at from hourbell.executions as e where e.id = w.first) as since
from parked as p
cross join lateral (select * from hourbell.queues as q where q.id = p.key offset 0) as q
cross join lateral (
  select count(*)::int as n, min(w.id) as first from (
    select id from hourbell.parked as w where w.kind = hourbell.blocker_queue() and w.key = p.key
    order by w.kind, w.key, w.priority, w.rank limit $2) as w
  where not exists (select from retiring) or not exists (
    select from hourbell.executions as e join retiring using (job) where e.id = w.id)) as w
where w.n > 0 and not exists (
  select from hourbell.sessions as s where s.expires_at > $1 and (s.all_queues or q.id = any (s.queues)))
limit 20

-- name: unserved_tasks
-- Tasks of which executions are parked because no live worker of their queue serves them; counted up to $1, without
-- those of jobs that will be retired.
with recursive retiring as materialized (select unnest(hourbell.retiring_jobs()) as job),
parked as (
  (select key, 1 as found from hourbell.parked where kind = hourbell.blocker_task() order by key limit 1)
  union all
  select n.key, p.found + 1 from parked as p cross join lateral (
    select key from hourbell.parked as n where n.kind = hourbell.blocker_task() and n.key > p.key
    order by n.key limit 1) as n
  where p.found < 1000)
select q.name as queue, coalesce((
    select name from hourbell.tasks as t where t.id = (p.key & 4294967295)::int), '@webhook') as task, w.n,
  (select e.run_at from hourbell.executions as e where e.id = w.first) as since
from parked as p
cross join lateral (select * from hourbell.queues as q where q.id = p.key >> 32 offset 0) as q
cross join lateral (
  select count(*)::int as n, min(w.id) as first from (
    select id from hourbell.parked as w where w.kind = hourbell.blocker_task() and w.key = p.key
    order by w.kind, w.key, w.priority, w.rank limit $1) as w
  where not exists (select from retiring) or not exists (
    select from hourbell.executions as e join retiring using (job) where e.id = w.id)) as w
where w.n > 0 and not hourbell.is_served(hourbell.serving_sessions(), p.key >> 32, (p.key & 4294967295)::int)
limit 20

-- name: not_admitted
-- Executions that are parked because the gate failed on them, up to $1, with one of them.
select w.n, w.first, (select e.run_at from hourbell.executions as e where e.id = w.first) as since
from (
  select count(*)::int as n, min(p.id) as first
  from (select id from hourbell.parked where kind = hourbell.blocker_failure() limit $1) as p) as w
where w.n > 0

-- name: retiring
-- Of up to 1,000 jobs that will be retired, the one that has not been declared for longest.
select count(*) over ()::int as n, d.job, d.unwanted_since as since, d.tenant as tenant_name,
  coalesce((select name from hourbell.jobs as j where j.id = d.job), d.key) as job_name
from hourbell.declared as d where d.job = any (hourbell.retiring_jobs())
order by d.unwanted_since, d.app, d.key limit 1

-- name: monitors_down
-- Monitors that are down, among 10,000.
select m.id, m.job, m.down_since, (select name from hourbell.jobs as j where j.id = m.job) as job_name,
  (select name from hourbell.tenants as t where t.id = m.tenant) as tenant_name
from (
  select * from hourbell.monitors as m where m.deleted_at is null and ($2::int is null or m.tenant = $2)
  order by m.tenant, m.id limit 10000) as m
where m.down_since <= $1 order by m.down_since limit 20

-- name: old_pauses
-- Recurring jobs that have been paused since before $1, with a reason, among 10,000 pauses; the oldest of them.
select count(*) over ()::int as n, p.job, p.at, p.actor, p.reason, j.name as job_name,
  (select name from hourbell.tenants as t where t.id = j.tenant) as tenant_name
from (select * from hourbell.pauses order by job limit 10000) as p
cross join lateral (
  select * from hourbell.jobs as j
  where j.id = p.job and j.status = hourbell.job_paused() and ($2::int is null or j.tenant = $2) offset 0) as j
where p.at < $1 and p.until is null order by p.at limit 1

-- name: dead_letters
-- Dead letters since $1, the newest 1,000: by reason and the beginning of the error.
select d.reason, left(split_part(d.error, E'\n', 1), 120) as error, count(*)::int as n, min(d.died_at) as since,
  count(distinct coalesce(d.job, d.id))::int as jobs
from (
  (select * from hourbell.dead_letters as d where $2::int is null and d.died_at > $1
   order by d.died_at desc, d.id desc limit 1000)
  union all
  (select * from hourbell.dead_letters as d where d.tenant = $2 and d.died_at > $1
   order by d.tenant desc, d.died_at desc, d.id desc limit 1000)) as d
group by 1, 2 order by n desc limit 5

-- name: dead_count
-- How many died since $1, up to $3.
select count(*)::int from (
  (select from hourbell.dead_letters as d where $2::int is null and d.died_at >= $1
   order by d.died_at, d.id limit $3)
  union all
  (select from hourbell.dead_letters as d where d.tenant = $2 and d.died_at >= $1
   order by d.tenant, d.died_at, d.id limit $3)) as d

-- name: skips
-- Jobs of which occurrences were skipped since $1, as they were noted with the minutes: the 20 with the most.
select s.job, s.n, s.at, s.reason, j.name as job_name, s.tenant,
  (select name from hourbell.tenants as t where t.id = s.tenant) as tenant_name
from (
  select s.job::bigint as job, sum(s.n)::int as n, max(s.at) as at, min(s.tenant) as tenant,
    (array_agg(s.reason order by s.at desc))[1] as reason
  from hourbell.minutes as m
  cross join lateral jsonb_to_recordset(m.skips) as s(job text, tenant int, at timestamptz, reason text, n int)
  where m.minute > $1 and m.skips <> '[]' and ($2::int is null or s.tenant = $2)
  group by s.job order by n desc, s.job limit 20) as s
left join lateral (select name from hourbell.jobs as j where j.id = s.job offset 0) as j on true

-- name: mostly_skipped
-- Those of the jobs $1 of which more than half of the last 20 occurrences before $2 were skipped.
select w.job from unnest($1::bigint[]) as w(job)
cross join lateral (
  select count(*) as runs, count(*) filter (where o.fate = hourbell.fate_skipped()) as skipped
  from (
    select id from hourbell.executions as e where e.job = w.job and e.occurrence <= $2
    order by e.occurrence desc limit 20) as e
  left join lateral (select fate from hourbell.outcomes as o where o.id = e.id offset 0) as o on true) as l
where l.runs >= 4 and l.skipped * 2 > l.runs
