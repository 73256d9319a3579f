-- Tenants, queues and targets: settings and current counts. A count stops at $2: it is that many or
-- more. The tenant of a running execution is only in its row: running ones are counted among $2 of
-- the cell, and `…_examined` says among how many. The same holds for jobs that are not planned:
-- they are counted among $2 members of broken timetables. The one-time jobs of a tenant are counted
-- among the $2 newest that it created.

-- name: list_tenants
-- By name, after $1, at most $2.
select t.id, t.name, t.created_on_use, t.max_jobs, t.ledger_days, t.dead_letter_days, t.audit_days,
  l.max_concurrency, l.rate, l.burst, coalesce(
    (select weight from hourbell.weight_changes as r where r.tenant = t.id order by r.id desc limit 1),
    t.weight) as weight
from hourbell.tenants as t left join hourbell.limits as l on l.kind = hourbell.blocker_tenant() and l.key = t.id
where t.name > $1 order by t.name limit $2

-- name: tenant
select t.id, t.name, t.created_on_use, t.max_jobs, t.ledger_days, t.dead_letter_days, t.audit_days,
  l.max_concurrency, l.rate, l.burst, coalesce(
    (select weight from hourbell.weight_changes as r where r.tenant = t.id order by r.id desc limit 1),
    t.weight) as weight
from hourbell.tenants as t left join hourbell.limits as l on l.kind = hourbell.blocker_tenant() and l.key = t.id
where t.name = $1

-- name: tenants
-- Those of the names $1.
select t.id, t.name, t.created_on_use, t.max_jobs, t.ledger_days, t.dead_letter_days, t.audit_days,
  l.max_concurrency, l.rate, l.burst, coalesce(
    (select weight from hourbell.weight_changes as r where r.tenant = t.id order by r.id desc limit 1),
    t.weight) as weight
from hourbell.tenants as t left join hourbell.limits as l on l.kind = hourbell.blocker_tenant() and l.key = t.id
where t.name = any ($1)

-- name: list_queues
select q.id, q.name, q.created_on_use, q.timeout_seconds, q.retry_policy, l.max_concurrency, l.rate, l.burst
from hourbell.queues as q left join hourbell.limits as l on l.kind = hourbell.blocker_queue() and l.key = q.id
where q.name > $1 order by q.name limit $2

-- name: list_queues_of_tenant
-- The queues that the tenant $3 has made, and those of its jobs and executions, each among the newest $4.
with used as materialized (
  select id as queue from hourbell.queues where made_by = $3
  union
  select j.queue from unnest(array[hourbell.job_scheduled(), hourbell.job_paused()]) as s(status)
  cross join lateral (
    select queue from hourbell.jobs as j where j.tenant = $3 and j.status = s.status order by -j.id limit $4) as j
  union
  select e.queue from (
    select queue from hourbell.executions where job is null and tenant = $3 order by id desc limit $4) as e
  union
  select e.queue from (
    select queue from hourbell.executions where job is not null and tenant = $3 order by id desc limit $4) as e)
select q.id, q.name, q.created_on_use, q.timeout_seconds, q.retry_policy, l.max_concurrency, l.rate, l.burst
from hourbell.queues as q left join hourbell.limits as l on l.kind = hourbell.blocker_queue() and l.key = q.id
where q.id in (select queue from used) and q.name > $1 order by q.name limit $2

-- name: queue
select q.id, q.name, q.created_on_use, q.timeout_seconds, q.retry_policy, l.max_concurrency, l.rate, l.burst
from hourbell.queues as q left join hourbell.limits as l on l.kind = hourbell.blocker_queue() and l.key = q.id
where q.name = $1

-- name: list_targets
select t.id, t.host as name, l.max_concurrency, l.rate, l.burst
from hourbell.targets as t left join hourbell.limits as l on l.kind = hourbell.blocker_target() and l.key = t.id
where t.host > $1 order by t.host limit $2

-- name: target
select t.id, t.host as name, l.max_concurrency, l.rate, l.burst
from hourbell.targets as t left join hourbell.limits as l on l.kind = hourbell.blocker_target() and l.key = t.id
where t.host = $1

-- name: tenant_counts
select least($2::int, (
    select count(*) from unnest(array[hourbell.job_scheduled(), hourbell.job_paused()]) as s(status)
    cross join lateral (
      select from hourbell.jobs as j where j.tenant = $1 and j.status = s.status limit $2) as j)
  + one_time.live) as jobs, one_time.examined as jobs_examined,
  runs.running, runs.examined as running_examined,
  (select count(*) from (
    select from hourbell.parked as p where p.kind = hourbell.blocker_tenant() and p.key = $1 limit $2) as p) as parked,
  unplanned.n as not_planned, unplanned.examined as not_planned_examined
from (
  select count(*) filter (where m.tenant = $1 and exists (
    select from hourbell.jobs as j where j.id = m.job and j.version = m.version
      and j.status = hourbell.job_scheduled() offset 0)) as n,
    count(*) as examined
  from (
    select m.tenant, m.job, m.version
    from (select id from hourbell.timetables where look_at is not null order by look_at limit $2) as t
    cross join lateral (select * from hourbell.memberships as m where m.timetable = t.id limit $2) as m
    limit $2) as m) as unplanned, (
  select count(*) filter (where e.tenant = $1) as running, count(*) as examined from (
    select e.tenant from (select id from hourbell.sessions order by id desc) as s
    cross join lateral (select id from hourbell.leases as l where l.session = s.id limit $2) as l
    cross join lateral (select tenant from hourbell.executions as e where e.id = l.id offset 0) as e
    limit $2) as e) as runs, (
  select count(*) filter (where e.live) as live, count(*) as examined from (
    select e.origin = hourbell.origin_schedule() and not exists (
      select from hourbell.outcomes as o where o.id = e.id offset 0) as live
    from (
      select id, origin from hourbell.executions as e
      where e.job is null and (e.tenant, e.id) <= ($1, 9223372036854775807) and e.tenant >= $1
      order by e.tenant desc, e.id desc limit $2) as e) as e) as one_time

-- name: queue_counts
-- Ready executions are counted from virtual time on, as claims read them; $3 now.
select least($2::int, (
    select coalesce(sum(r.n), 0) from unnest(array[0, 1, 2, 3]::smallint[]) as p(priority)
    cross join lateral (
      select v from hourbell.virtual_time as v
      where v.queue = $1 and v.priority = p.priority order by pass desc limit 1) as v
    cross join lateral (
      select cardinality(r.ids) as n from hourbell.ready as r
      where r.queue = $1 and r.priority = p.priority and r.tag >= v.v order by r.tag limit $2) as r)) as ready,
  runs.running, runs.examined as running_examined,
  (select count(*) from (
    (select from hourbell.parked as p where p.kind = hourbell.blocker_queue() and p.key = $1 limit $2)
    union all
    (select from hourbell.parked as p  -- those that wait for a worker that serves their task
     where p.kind = hourbell.blocker_task() and p.key >= hourbell.task_key($1, 0)
       and p.key < hourbell.task_key($1 + 1, 0) limit $2)
    limit $2) as p) as parked,
  (select count(*) from (
    select from hourbell.sessions as s
    where (s.all_queues or $1::smallint = any (s.queues)) and s.expires_at > $3 limit $2) as s) as workers
from (
  select count(*) filter (where e.queue = $1) as running, count(*) as examined from (
    select e.queue from (select id from hourbell.sessions order by id desc) as s
    cross join lateral (select id from hourbell.leases as l where l.session = s.id limit $2) as l
    cross join lateral (select queue from hourbell.executions as e where e.id = l.id offset 0) as e
    limit $2) as e) as runs

-- name: queue_counts_of_tenant
-- The share of the tenant $4 in these: each counted among $2 of the queue, running executions among $2 of the cell.
select ready.n as ready, ready.examined as ready_examined, runs.n as running, runs.examined as running_examined,
  parked.n as parked, parked.examined as parked_examined,
  (select count(*) from (
    select from hourbell.sessions as s
    where (s.all_queues or $1::smallint = any (s.queues)) and s.expires_at > $3 limit $2) as s) as workers
from (
  select count(*) filter (where e.tenant = $4) as n, count(*) as examined from (
    select i.id from unnest(array[0, 1, 2, 3]::smallint[]) as p(priority)
    cross join lateral (
      select v from hourbell.virtual_time as v
      where v.queue = $1 and v.priority = p.priority order by pass desc limit 1) as v
    cross join lateral (
      select i.id from hourbell.ready as r cross join lateral unnest(r.ids) as i(id)
      where r.queue = $1 and r.priority = p.priority and r.tag >= v.v order by r.tag limit $2) as i
    limit $2) as i
  cross join lateral (select tenant from hourbell.executions as e where e.id = i.id offset 0) as e) as ready, (
  select count(*) filter (where e.queue = $1 and e.tenant = $4) as n, count(*) as examined from (
    select e.queue, e.tenant from (select id from hourbell.sessions order by id desc) as s
    cross join lateral (select id from hourbell.leases as l where l.session = s.id limit $2) as l
    cross join lateral (select queue, tenant from hourbell.executions as e where e.id = l.id offset 0) as e
    limit $2) as e) as runs, (
  select count(*) filter (where e.tenant = $4) as n, count(*) as examined from (
    (select p.id from hourbell.parked as p where p.kind = hourbell.blocker_queue() and p.key = $1 limit $2)
    union all
    (select p.id from hourbell.parked as p
     where p.kind = hourbell.blocker_task() and p.key >= hourbell.task_key($1, 0)
       and p.key < hourbell.task_key($1 + 1, 0) limit $2)
    limit $2) as p
  cross join lateral (select tenant from hourbell.executions as e where e.id = p.id offset 0) as e) as parked

-- name: target_counts
select count(*) as parked from (
  select from hourbell.parked as p where p.kind = hourbell.blocker_target() and p.key = $1 limit $2) as p

-- name: tenants_counts
-- The counts of the tenants $1 for a list, each up to $2; running executions and jobs that are not planned are counted
-- among $3 of the cell.
with running as materialized (
  select e.tenant from (select id from hourbell.sessions order by id desc) as s
  cross join lateral (select id from hourbell.leases as l where l.session = s.id limit $3) as l
  cross join lateral (select tenant from hourbell.executions as e where e.id = l.id offset 0) as e
  limit $3),
unplanned as materialized (
  select m.tenant, m.job, m.version
  from (select id from hourbell.timetables where look_at is not null order by look_at limit $3) as t
  cross join lateral (select * from hourbell.memberships as m where m.timetable = t.id limit $3) as m
  limit $3)
select w.tenant, jobs.n + one_time.live as jobs, greatest(jobs.n, one_time.examined) as jobs_examined,
  (select count(*) from running as r where r.tenant = w.tenant) as running,
  (select count(*) from running) as running_examined,
  (select count(*) from (
    select from hourbell.parked as p where p.kind = hourbell.blocker_tenant() and p.key = w.tenant limit $2) as p)
      as parked,
  (select count(*) from unplanned as u where u.tenant = w.tenant and exists (
    select from hourbell.jobs as j where j.id = u.job and j.version = u.version
      and j.status = hourbell.job_scheduled() offset 0)) as not_planned,
  (select count(*) from unplanned) as not_planned_examined
from unnest($1::int[]) as w(tenant)
cross join lateral (
  select count(*) as n from unnest(array[hourbell.job_scheduled(), hourbell.job_paused()]) as s(status)
  cross join lateral (
    select from hourbell.jobs as j where j.tenant = w.tenant and j.status = s.status limit $2) as j) as jobs
cross join lateral (
  select count(*) filter (where e.live) as live, count(*) as examined from (
    select e.origin = hourbell.origin_schedule() and not exists (
      select from hourbell.outcomes as o where o.id = e.id offset 0) as live
    from (
      select id, origin from hourbell.executions as e
      where e.job is null and (e.tenant, e.id) <= (w.tenant, 9223372036854775807) and e.tenant >= w.tenant
      order by e.tenant desc, e.id desc limit $2) as e) as e) as one_time

-- name: waiting
-- Executions of the tenants $1 whose time has come and that have not started; $2 is now. Only due rows and rows parked
-- under a tenant say whose they are. So they are counted among $3 of the cell: as many due rows, executions of due
-- slabs, ready ones, suspects, and ones parked under other blockers; and $4 of each tenant parked under its own limits.
-- `examined_all`: none of these bounds was reached. Each place is read in the order in which it is served, which is
-- fair: what is left out belongs to tenants with many. (Tiers of a lower level come first, and the share of a queue is
-- $3 by the number of queues and priorities that have something ready, of at most 1,000 queues.)
with heads as materialized (
  select q.id as queue, p.priority, v.v
  from (select id from hourbell.queues order by id limit 1000) as q
  cross join unnest(array[0, 1, 2, 3]::smallint[]) as p(priority)
  cross join lateral (
    select v from hourbell.virtual_time as v
    where v.queue = q.id and v.priority = p.priority order by pass desc limit 1) as v
  where exists (
    select from hourbell.ready as r where r.queue = q.id and r.priority = p.priority and r.tag >= v.v offset 0)),
part as materialized (select $3::int / greatest(count(*), 1)::int + 1 as most from heads),
tiers as materialized (
  select t.tier, coalesce((
    select due_from from hourbell.due_marks as m where m.tier = t.tier order by pass desc limit 1),
      '-infinity') as due_from
  from generate_series(0, 15) as t(tier)),
ready as materialized (
  select h.queue, h.priority, r.id from heads as h
  cross join lateral (
    select i.id from hourbell.ready as r cross join lateral unnest(r.ids) as i(id)
    where r.queue = h.queue and r.priority = h.priority and r.tag >= h.v
    order by r.tag limit (select most from part)) as r),
suspects as materialized (select id from hourbell.suspects limit $3),
parked as materialized (
  select k.kind, p.id
  from unnest(array[hourbell.blocker_queue(), hourbell.blocker_target(), hourbell.blocker_concurrency_key(),
    hourbell.blocker_job(), hourbell.blocker_task(), hourbell.blocker_failure()]) as k(kind)
  cross join lateral (select id from hourbell.parked as p where p.kind = k.kind limit $3 / 6) as p),
own as materialized (
  select w.tenant, p.n from unnest($1::int[]) as w(tenant)
  cross join lateral (
    select count(*) as n from (
      select from hourbell.parked as p where p.kind = hourbell.blocker_tenant() and p.key = w.tenant
        limit $4) as p) as p),
due as materialized (
  select d.tenant from tiers as t cross join lateral (
    select tenant from hourbell.due
    where hourbell.tier(priority, flags) = t.tier and run_at >= t.due_from and run_at <= $2 order by run_at
      limit $3) as d
  limit $3),
slabs as materialized (
  select d.tenant from tiers as t cross join lateral (
    select i.tenant from hourbell.due_slabs as d cross join lateral unnest(d.tenants) as i(tenant)
    where hourbell.tier(priority, flags) = t.tier and run_at >= t.due_from and run_at <= $2 order by run_at
      limit $3) as d
  limit $3),
found as materialized (
  select f.tenant, count(*) as n from (
    select tenant from due union all select tenant from slabs union all
    select e.tenant from (
      select id from ready union all select id from suspects union all select id from parked) as w
    cross join lateral (select tenant from hourbell.executions as e where e.id = w.id offset 0) as e) as f
  group by f.tenant)
select o.tenant, o.n + coalesce((select n from found as f where f.tenant = o.tenant), 0) as waiting,
  o.n < $4 and (select count(*) from due) < $3 and (select count(*) from slabs) < $3
    and (select count(*) from suspects) < $3
  and not exists (select from ready group by queue, priority having count(*) >= (select most from part))
  and not exists (select from parked group by kind having count(*) >= $3 / 6)
  and (select count(*) from (select from hourbell.queues limit 1001) as q) <= 1000 as examined_all
from own as o
