-- API keys: create, find and revoke.

-- name: insert_key
insert into hourbell.api_keys (id, tenant, role, name, digest, created_at) values ($1, $2, $3, $4, $5, $6)

-- name: lock_keys
-- Serializes key creation: whether this is the first key must not change meanwhile.
select pg_advisory_xact_lock(hashtext('hourbell.api_keys'))

-- name: any_key
-- Whether a key exists or ever existed.
select exists (select from hourbell.api_keys)

-- name: lasting_admin
-- Whether an administrator of all tenants has a key other than $1.
select exists (
  select from hourbell.api_keys
  where role = 'admin' and tenant is null and revoked_at is null and id is distinct from $1)

-- name: by_digest
-- The owner of a key; no row if it was revoked.
select k.id, k.role, k.name, t.name as tenant_name from hourbell.api_keys as k
left join hourbell.tenants as t on t.id = k.tenant
where k.digest = $1 and k.revoked_at is null

-- name: key
select k.*, t.name as tenant_name from hourbell.api_keys as k left join hourbell.tenants as t on t.id = k.tenant
where k.id = $1

-- name: list_keys
-- Newest first, before $1.
select k.*, (select name from hourbell.tenants as t where t.id = k.tenant) as tenant_name
from (select * from hourbell.api_keys where id < $1 order by id desc limit $2) as k

-- name: list_keys_of_tenant
-- For the tenant $3, as a range condition: only the tenant's index is ordered by (tenant, id).
select k.*, (select name from hourbell.tenants as t where t.id = k.tenant) as tenant_name
from (
  select * from hourbell.api_keys where (tenant, id) < ($3, $1) and tenant >= $3
  order by tenant desc, id desc limit $2) as k

-- name: revoke_key
update hourbell.api_keys set revoked_at = $2 where id = $1 and revoked_at is null
