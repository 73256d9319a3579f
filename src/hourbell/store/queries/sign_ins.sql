-- Sign-ins of the dashboard.

-- name: insert_sign_in
-- Of the key $2, with the digest $1, at $3. Only the newest $4 of a key are kept.
with gone as (
  delete from hourbell.sign_ins where digest = any (array(
    select digest from hourbell.sign_ins where key = $2 order by created_at desc offset $4 - 1)))
insert into hourbell.sign_ins (digest, key, created_at, used_at) values ($1, $2, $3, $3)

-- name: signed_in
-- The caller that signed in with the cookie of the digest $1, at $2; no row if the sign-in is over: the key was
-- revoked, it was not used for $3, or is older than $4. The time of the last use is written at most every $5.
with used as (
  update hourbell.sign_ins set used_at = $2 where digest = $1 and used_at < $2::timestamptz - $5::interval
    and used_at > $2::timestamptz - $3::interval)
select k.id, k.role, k.name, t.name as tenant_name, s.created_at + $4::interval as ends_at
from hourbell.sign_ins as s join hourbell.api_keys as k on k.id = s.key
left join hourbell.tenants as t on t.id = k.tenant
where s.digest = $1 and k.revoked_at is null and s.used_at > $2::timestamptz - $3::interval
  and s.created_at > $2::timestamptz - $4::interval

-- name: delete_sign_in
delete from hourbell.sign_ins where digest = $1
