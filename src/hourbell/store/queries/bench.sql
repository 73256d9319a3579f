-- `hourbell bench`: what was measured, and the removal of everything that it created.

-- name: try_lock
-- One bench at a time in a database; the lock ends with its connection.
select pg_try_advisory_lock(hashtextextended('hourbell.bench', 0))

-- name: ended
-- How many of the executions $1 have succeeded, how late they began by their times (in milliseconds), and when the last
-- ended.
select count(*) as ended, max(o.finished_at) as last_end,
  array_agg((extract(epoch from o.started_at - e.occurrence) * 1000)::float8) as late_ms
from unnest($1::bigint[]) as asked(id)
cross join lateral (select occurrence from hourbell.executions as e where e.id = asked.id offset 0) as e
cross join lateral (select * from hourbell.outcomes as o where o.id = asked.id offset 0) as o
where o.fate = hourbell.fate_succeeded()

-- name: cancel_live
-- Cancels some executions of the tenant $1 that have not ended; returns how many.
select count(*)
from (select id from hourbell.live where tenant = $1 and job is null order by tenant, id limit $3) as l
cross join lateral hourbell.cancel_execution(
  $2, l.id, l.id, false, json_build_object('tenant', $1::int, 'actor', 'bench', 'operation', 'cancel'))

-- name: delete_executions
-- Some of the executions of the tenant $1 that have ended; returns how many.
select hourbell.delete_ended_of('executions', array[$1::int], $2, $3)

-- name: delete_audit
-- Some of the audit rows of the tenant $1.
with deleted as (
  delete from hourbell.audit where id = any (array(
    select id from hourbell.audit where tenant = $1 order by tenant, id limit $2)) returning id)
select count(*) from deleted
