-- Groups of executions.

-- name: insert_group
insert into hourbell.execution_groups (id, tenant, name, created_at, url, headers) values ($1, $2, $3, $4, $5, $6)

-- name: group
select g.*, g.options::json ->> 'task' as task,
  (select name from hourbell.tenants as t where t.id = g.tenant) as tenant_name
from hourbell.execution_groups as g where g.id = any ($1)

-- name: lock_group
-- A group that no other transaction closes meanwhile.
select * from hourbell.execution_groups where id = $1 for update

-- name: foreign_members
-- Those of the executions $2 that the tenant $1 does not have.
select m.id from unnest($2::bigint[]) as m(id)
where not exists (select from hourbell.executions as e where e.id = m.id and e.tenant = $1 offset 0)

-- name: add_members
-- The group is locked by the caller.
with added as (
  insert into hourbell.group_members (group_id, execution) select $1, id from unnest($2::bigint[]) as m(id)
  on conflict do nothing returning execution)
update hourbell.execution_groups set members = members + (select count(*) from added) where id = $1

-- name: close_group
update hourbell.execution_groups set closed_at = $2, look_at = $2 where id = $1 and closed_at is null
