-- Bulk operations: create, read, carry out in batches, stop.

-- name: insert
insert into hourbell.operations
  (id, tenant, only_tenant, act, filter, reason, until, rate, actor, created_at, updated_at, continue_at, position,
    total,
   total_at_least)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $10, $10, $11, $12, $13)

-- name: operation
select o.*, (select name from hourbell.tenants as t where t.id = o.only_tenant) as tenant_name
from hourbell.operations as o where o.id = $1

-- name: list_operations
-- Newest first, before $1.
select o.*, (select name from hourbell.tenants as t where t.id = o.only_tenant) as tenant_name
from hourbell.operations as o where o.id < $1 order by o.id desc limit $2

-- name: list_operations_of_tenant
-- For the tenant $3, as a range condition: only the tenant's index is ordered by (only_tenant, id).
select o.*, (select name from hourbell.tenants as t where t.id = o.only_tenant) as tenant_name
from hourbell.operations as o
where (o.only_tenant, o.id) < ($3, $1) and o.only_tenant >= $3 order by o.only_tenant desc, o.id desc limit $2

-- name: next
-- The operation to continue next, if one is due by $1. None waits for longer than a minute: otherwise the clock was set
-- back.
select o.*, (select name from hourbell.tenants as t where t.id = o.only_tenant) as tenant_name
from hourbell.operations as o where o.continue_at <= $1 or o.continue_at > $1 + interval '1 minute'
order by o.continue_at limit 1

-- name: lock
-- First in the transaction of a batch: no row if the operation has ended, or if the batch $2 was already committed. $3
-- and $4: the node and the epoch of the leader.
select o.id from hourbell.check_epoch($3, $4) as epoch
cross join lateral (
  select id from hourbell.operations as o
  where o.id = $1 and o.batches = $2 and o.continue_at is not null for no key update) as o

-- name: record_batch
-- $2 now; $3 the position, null: that was all; $4 done and $5 left by this batch; $6 when to continue; $7 until when
-- the replayed executions fall due.
update hourbell.operations as o
set batches = o.batches + 1, position = $3, done = o.done + $4, updated_at = $2, paced_until = $7,
  left_over = coalesce((
    select json_object_agg(l.reason, l.n) from (
      select e.key as reason, sum(e.value::int) as n
      from (select * from json_each_text(o.left_over) union all select * from json_each_text($5::json)) as e
      group by e.key) as l), '{}'),
  state = case when $3::text is null then 'DONE' else o.state end,
  continue_at = case when $3::text is not null then $6::timestamptz end,
  ended_at = case when $3::text is null then $2::timestamptz end
where o.id = $1

-- name: end
-- Ends a running operation as $3 with the error $4; no row: it has ended before.
update hourbell.operations
set state = $3, error = $4, continue_at = null, updated_at = $2, ended_at = $2
where id = $1 and continue_at is not null returning id

-- name: postpone
-- Continue the operation $1, of which $2 batches were committed, at $3. It waits for no lock: a transaction that has
-- the row ends the operation or continues it.
update hourbell.operations set continue_at = $3
where id = any (array(
  select id from hourbell.operations where id = $1 and batches = $2 and continue_at is not null
  for no key update skip locked))

-- name: forget
-- Deletes up to $2 operations that have ended before $1; $3 and $4: the node and the epoch of the leader.
with old as (
  select o.id from hourbell.check_epoch($3, $4) as epoch
  cross join lateral (
    select id from hourbell.operations as o where o.ended_at < $1 order by o.ended_at limit $2) as o),
gone as (delete from hourbell.operations where id = any (array(select id from old)) returning id)
select count(*) from gone
