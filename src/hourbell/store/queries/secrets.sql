-- Secrets: encrypted by security/sealing.py; the database never sees one in plain text.

-- name: lock_secret
-- The secret $2 of a tenant, locked for a change.
select * from hourbell.secrets where tenant = $1 and name = $2 for update

-- name: put_secret
-- $5 … $7: the previous value, and until when requests are also signed with it. $9: the value can sign webhooks.
insert into hourbell.secrets (tenant, name, sealed, sealed_by, previous, previous_by, previous_until, created_at,
  updated_at, signs)
values ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9)
on conflict (tenant, name) do update
set sealed = excluded.sealed, sealed_by = excluded.sealed_by, previous = excluded.previous,
    previous_by = excluded.previous_by, previous_until = excluded.previous_until, updated_at = excluded.updated_at,
    signs = excluded.signs
returning created_at

-- name: count_secrets
select count(*) from hourbell.secrets where tenant = $1

-- name: delete_secret
delete from hourbell.secrets where tenant = $1 and name = $2 returning name

-- name: list_secrets
-- The secrets of a tenant, by name, after $2.
select s.name, s.created_at, s.updated_at, s.previous_until from hourbell.secrets as s
where s.tenant = (select id from hourbell.tenants where name = $1) and s.name > $2 order by s.name limit $3

-- name: sealed
-- The secrets $2[k] of tenants $1[k], sealed.
select asked.tenant, s.name, s.sealed, s.sealed_by, s.previous, s.previous_by, s.previous_until, s.updated_at
from unnest($1::text[], $2::text[]) as asked(tenant, name)
cross join lateral (select id from hourbell.tenants as t where t.name = asked.tenant offset 0) as t
cross join lateral (select * from hourbell.secrets as s where s.tenant = t.id and s.name = asked.name offset 0) as s

-- name: existing
-- Those of the secrets $2[k] of tenants $1[k] that exist, and whether they can sign webhooks.
select asked.tenant, asked.name, s.signs is not false as signs
from unnest($1::text[], $2::text[]) as asked(tenant, name)
cross join lateral (select id from hourbell.tenants as t where t.name = asked.tenant offset 0) as t
cross join lateral (select * from hourbell.secrets as s where s.tenant = t.id and s.name = asked.name offset 0) as s

-- name: sealed_by_others
-- Secrets of all tenants that are sealed by a key other than $1.
select s.tenant, s.name, s.sealed, s.sealed_by, s.previous, s.previous_by, t.name as tenant_name
from hourbell.secrets as s join hourbell.tenants as t on t.id = s.tenant
where s.sealed_by <> $1 or s.previous_by <> $1 order by s.tenant, s.name limit $2

-- name: reseal
-- Stores the same values sealed by another key, unless they have changed meanwhile.
update hourbell.secrets set sealed = $4, sealed_by = $5, previous = $6, previous_by = $7
where tenant = $1 and name = $2 and sealed = $3
