-- Groups of executions.

-- name: insert_group
insert into hourbell.execution_groups (id, tenant, name, created_at, url, headers) values ($1, $2, $3, $4, $5, $6)

-- name: group
select g.*, g.options::json ->> 'task' as task,
  (select name from hourbell.tenants as t where t.id = g.tenant) as tenant_name
from hourbell.execution_groups as g where g.id = any ($1)

-- name: list_groups
-- Newest first, before $1, among $3: the first $2 of the tenant $4 and in the state $5, each of which may be null.
select g.*, g.options::json ->> 'task' as task,
  (select name from hourbell.tenants as t where t.id = g.tenant) as tenant_name
from (
  select g.*, row_number() over (order by g.id desc) as pos,
    ($4::int is null or g.tenant = $4) and ($5::text is null or $5 = case
      when g.ended_at is not null then 'ENDED' when g.closed_at is not null then 'CLOSED' else 'OPEN' end) as wanted
  from (select * from hourbell.execution_groups where id < $1 order by id desc limit $3) as g) as g
where g.wanted or g.pos = $3
order by g.id desc limit $2

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
