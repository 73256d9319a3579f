-- Notices and monitors: the statements of the outbox, and of the monitors of jobs.

-- name: outbox
-- The oldest notices that are not left out at $2, with what is needed to send them. (`offset 0`: keeps them index
-- lookups.)
select n.*, (select name from hourbell.tenants as t where t.id = n.tenant) as tenant_name, j.name as job_name,
  coalesce(n.spec, j.spec) as job_spec, m.url, m.headers, m.grace_seconds, m.last_success_at
from (
  select * from hourbell.notices as n
  where not exists (
    select from hourbell.failing_rows as s where s.step = 'notice' and s.id = n.id and s.until > $2 offset 0)
  order by id limit $1) as n
left join lateral (select * from hourbell.jobs as j where j.id = n.job offset 0) as j on true
left join lateral (select * from hourbell.monitors as m where m.id = n.monitor offset 0) as m on true
order by n.id

-- name: watched
-- Monitors due for a check by $1, each with its job and with a success that counts, if there is
-- one, among the 10,000 latest runs. While a monitor is down, only those recorded since the last check
-- count, plus a margin before it: a commit may take that long.
select m.*, j.status, j.spec, j.updated_at, s.recorded_at as success_at
from (
  select * from hourbell.monitors as m
  where check_at <= $1 and not exists (
    select from hourbell.failing_rows as f where f.step = 'monitor' and f.id = m.id and f.until > $1 offset 0)
  order by check_at limit $2) as m
cross join lateral (select * from hourbell.jobs as j where j.id = m.job offset 0) as j
left join lateral (
  select o.recorded_at
  from (
    select id, occurrence from hourbell.executions as e
    where e.job = m.job order by e.occurrence desc limit 10000) as e
  cross join lateral hourbell.end_of(e.id) as o
  where o.fate = hourbell.fate_succeeded()
    and o.recorded_at >= greatest(coalesce(m.expected_at, m.since),
      case when m.down_since is not null then m.looked_at - interval '10 minutes' end)
  order by e.occurrence desc limit 1) as s on true
order by m.check_at

-- name: monitors_of_job
select count(*) from hourbell.monitors where job = $1 and deleted_at is null

-- name: insert_monitor
insert into hourbell.monitors
  (id, tenant, job, created_at, since, looked_at, expected_at, check_at, grace_seconds, url, headers)
values ($1, $2, $3, $4, $4, $4, $5, $6, $7, $8, $9)

-- name: monitor
select m.*, (select name from hourbell.tenants as t where t.id = m.tenant) as tenant_name,
  (select name from hourbell.jobs as j where j.id = m.job) as job_name
from hourbell.monitors as m where m.id = $1

-- name: list_monitors
-- Newest first, before $1; of all tenants.
select m.*, (select name from hourbell.tenants as t where t.id = m.tenant) as tenant_name,
  (select name from hourbell.jobs as j where j.id = m.job) as job_name
from hourbell.monitors as m where m.deleted_at is null and m.id < $1 order by m.id desc limit $2

-- name: list_monitors_of_tenant
-- For the tenant $3, as a range condition: only the tenant's index is ordered by (tenant, id).
select m.*, (select name from hourbell.tenants as t where t.id = m.tenant) as tenant_name,
  (select name from hourbell.jobs as j where j.id = m.job) as job_name
from hourbell.monitors as m
where m.deleted_at is null and (m.tenant, m.id) < ($3, $1) and m.tenant >= $3 order by m.tenant desc, m.id desc limit $2

-- name: delete_monitor
-- The row is kept for as long as the idempotency answer, for a repetition of the request.
update hourbell.monitors set deleted_at = $2, check_at = null, version = version + 1
where id = $1 and deleted_at is null returning id
