-- The audit trail: which actor changed what. Newest first, at most $2 entries before the row $1, or
-- before the place $3 in that row. A row is one entry, or one for each of its `jobs`, the last
-- first. The document of a created one-time job is that of the job.

-- The first two lists look at $4 entries; `wanted`: by the actor $5, the operation $6, from $7 on and before $8, each
-- of which may be null. The last entry that they look at is returned if there may be more (engine/views/pages.py).

-- name: list_audit
select a.*, (select name from hourbell.tenants as t where t.id = a.tenant) as tenant_name,
  hourbell.document_after(a.operation, a.after, a.of_job, a.id) as shown
from (
  select a.*, j.of_job, j.place, row_number() over (order by a.id desc) as pos,
    ($5::text is null or a.actor = $5) and ($6::text is null or a.operation = $6)
      and ($7::timestamptz is null or a.at >= $7) and ($8::timestamptz is null or a.at < $8) as wanted
  from (select * from hourbell.audit where id <= $1 order by id desc limit $4::bigint + 1) as a
  cross join lateral (
    select * from unnest(coalesce(a.jobs, array[a.job])) with ordinality as j(of_job, place)
    where a.id < $1 or j.place < $3 order by j.place desc) as j) as a
where (a.wanted or a.pos = $4) and a.pos <= $4
order by a.id desc limit $2

-- name: list_audit_of_tenant
-- For the tenant $9, as a range condition: only the tenant's index is ordered by (tenant, id).
select a.*, (select name from hourbell.tenants as t where t.id = a.tenant) as tenant_name,
  hourbell.document_after(a.operation, a.after, a.of_job, a.id) as shown
from (
  select a.*, j.of_job, j.place, row_number() over (order by a.tenant desc, a.id desc) as pos,
    ($5::text is null or a.actor = $5) and ($6::text is null or a.operation = $6)
      and ($7::timestamptz is null or a.at >= $7) and ($8::timestamptz is null or a.at < $8) as wanted
  from (
    select * from hourbell.audit where (tenant, id) <= ($9, $1) and tenant >= $9
    order by tenant desc, id desc limit $4::bigint + 1) as a
  cross join lateral (
    select * from unnest(coalesce(a.jobs, array[a.job])) with ordinality as j(of_job, place)
    where a.id < $1 or j.place < $3 order by j.place desc) as j) as a
where (a.wanted or a.pos = $4) and a.pos <= $4
order by a.tenant desc, a.id desc limit $2

-- name: list_audit_of_job
-- For the job $3: the rows about it, and then the row that created it together with others. That
-- row has another of these jobs in its column `job`, with an id of the same millisecond.
select a.*, $3::bigint as of_job, 1::bigint as place,
  (select name from hourbell.tenants as t where t.id = a.tenant) as tenant_name,
  hourbell.document_after(a.operation, a.after, $3, a.id) as shown
from (
  (select * from hourbell.audit where (job, id) < ($3, $1) and job >= $3 order by job desc, id desc limit $2)
  union all
  (select * from (
     select * from hourbell.audit
     where (job, id) < ($3, 0) and job >= ($3::bigint >> 22) << 22 and $3 = any (jobs)
     order by job desc, id desc limit 1) as a
   where a.id < $1)) as a
