-- The audit trail: who changed what, newest first, before the number $1, at most $2 of them.

-- name: list_audit
select a.*, (select name from hourbell.tenants as t where t.id = a.tenant) as tenant_name
from (select * from hourbell.audit where id < $1 order by id desc limit $2) as a

-- name: list_audit_of_tenant
-- Of the tenant $3, written as a range: only its own index has (tenant, id) in order.
select a.*, (select name from hourbell.tenants as t where t.id = a.tenant) as tenant_name
from (
  select * from hourbell.audit where (tenant, id) < ($3, $1) and tenant >= $3 order by tenant desc, id desc limit $2) as a

-- name: list_audit_of_job
select a.*, (select name from hourbell.tenants as t where t.id = a.tenant) as tenant_name
from (select * from hourbell.audit where (job, id) < ($3, $1) and job >= $3 order by job desc, id desc limit $2) as a

-- name: last_pause
-- When and by whom a job was paused last, among its latest changes.
select at, actor
from (
  select * from hourbell.audit where (job, id) <= ($1, 9223372036854775807) and job >= $1
  order by job desc, id desc limit 1000) as a
where operation = 'pause' limit 1
