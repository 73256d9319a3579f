-- Dead letters: the statements of list, read, replay, retry and purge.

-- Lists, without attempts and jobs, newest death first, before ($1, $2): the first $3 rows that are `wanted`, among the
-- $4 newest, and the last of these if the walk ends there (engine/views/pages.py). $5: no death before this; $6: the
-- reason or null.

-- name: list_letters
select d.id, d.job, d.tenant, d.died_at, d.reason, d.pos, d.wanted, x.occurrence, x.attempt, x.target,
  x.history #>> '{-1,reason}' as kind, coalesce(d.error, x.history #>> '{-1,error}') as error,
  hourbell.as_json(coalesce(x.job_spec, x.spec)) ->> 'name' as job_name,
  (select name from hourbell.tenants as t where t.id = d.tenant) as tenant_name
from (
  select d.id, d.job, d.tenant, d.died_at, d.reason, d.error, d.execution,
    row_number() over (order by d.died_at desc, d.id desc) as pos,
    $6::text is null or d.reason = $6 as wanted
  from (
    select * from hourbell.dead_letters as d
    where (d.died_at, d.id) < ($1, $2) and d.died_at >= $5
    order by d.died_at desc, d.id desc limit $4) as d) as d
cross join lateral jsonb_to_record(d.execution)
  as x(occurrence timestamptz, attempt int, target int, history jsonb, spec text, job_spec text)
where d.wanted or d.pos = $4
order by d.died_at desc, d.id desc limit $3

-- name: list_letters_of_tenant
-- For the tenant $7.
select d.id, d.job, d.tenant, d.died_at, d.reason, d.pos, d.wanted, x.occurrence, x.attempt, x.target,
  x.history #>> '{-1,reason}' as kind, coalesce(d.error, x.history #>> '{-1,error}') as error,
  hourbell.as_json(coalesce(x.job_spec, x.spec)) ->> 'name' as job_name,
  (select name from hourbell.tenants as t where t.id = d.tenant) as tenant_name
from (
  select d.id, d.job, d.tenant, d.died_at, d.reason, d.error, d.execution,
    row_number() over (order by d.tenant desc, d.died_at desc, d.id desc) as pos,
    $6::text is null or d.reason = $6 as wanted
  from (
    select * from hourbell.dead_letters as d
    where (d.tenant, d.died_at, d.id) < ($7, $1, $2) and (d.tenant, d.died_at) >= ($7, $5)
    order by d.tenant desc, d.died_at desc, d.id desc limit $4) as d) as d
cross join lateral jsonb_to_record(d.execution)
  as x(occurrence timestamptz, attempt int, target int, history jsonb, spec text, job_spec text)
where d.wanted or d.pos = $4
order by d.tenant desc, d.died_at desc, d.id desc limit $3

-- name: list_letters_of_job
-- For the job $7, if it belongs to the tenant $8 (null: any).
select d.id, d.job, d.tenant, d.died_at, d.reason, d.pos, d.wanted, x.occurrence, x.attempt, x.target,
  x.history #>> '{-1,reason}' as kind, coalesce(d.error, x.history #>> '{-1,error}') as error,
  hourbell.as_json(coalesce(x.job_spec, x.spec)) ->> 'name' as job_name,
  (select name from hourbell.tenants as t where t.id = d.tenant) as tenant_name
from (
  select d.id, d.job, d.tenant, d.died_at, d.reason, d.error, d.execution,
    row_number() over (order by coalesce(d.job, d.id) desc, d.died_at desc, d.id desc) as pos,
    ($6::text is null or d.reason = $6) and ($8::int is null or d.tenant = $8) as wanted
  from (
    select * from hourbell.dead_letters as d
    where (coalesce(d.job, d.id), d.died_at, d.id) < ($7, $1, $2) and (coalesce(d.job, d.id), d.died_at) >= ($7, $5)
    order by coalesce(d.job, d.id) desc, d.died_at desc, d.id desc limit $4) as d) as d
cross join lateral jsonb_to_record(d.execution)
  as x(occurrence timestamptz, attempt int, target int, history jsonb, spec text, job_spec text)
where d.wanted or d.pos = $4
order by coalesce(d.job, d.id) desc, d.died_at desc, d.id desc limit $3

-- name: letter
select d.id, d.job, d.tenant, d.died_at, d.reason, x.*, x.history #>> '{-1,reason}' as kind,
  coalesce(d.error, x.history #>> '{-1,error}') as error,
  hourbell.as_json(coalesce(x.job_spec, x.spec)) ->> 'name' as job_name,
  (select name from hourbell.tenants as t where t.id = d.tenant) as tenant_name,
  hourbell.workers_of(x.history, null) as workers
from hourbell.dead_letters as d
cross join lateral jsonb_to_record(d.execution)
  as x(occurrence timestamptz, attempt int, target int, history jsonb, spec text, job_spec text)
where d.id = $1

-- name: names_of_targets
-- The hosts and tasks $1: hosts have positive numbers, tasks negative ones, -1 stands for webhooks of any host.
select t.id, t.host as name from hourbell.targets as t where t.id = any ($1)
union all
select -t.id, t.name from hourbell.tasks as t where -t.id = any ($1)

-- name: leave_slabs
-- Before a replay of the dead letters $1.
select hourbell.leave_slabs(array(select id from hourbell.dead_letters where id = any ($1)))

-- name: replay
-- Replays the dead letters $1, each at its moment in $2; $3 now. Returns those that were replayed.
select hourbell.replay($1, $2, $3)

-- name: why_not_replayed
-- Why the dead letters $1 could not be replayed, with their numbers. In use: another transaction has locked the letter.
select case
    when d.id is null then 'gone'
    when d.job is not null and (j.id is null or j.status = hourbell.job_cancelled()) then 'job_deleted'
    when o.id is not null then 'occurrence_live'
    when hourbell.holder_of_key(d) is not null then 'duplicate_job'
    else 'in_use' end as reason, count(*) as n
from unnest($1::bigint[]) as w(id)
left join lateral (select * from hourbell.dead_letters as d where d.id = w.id offset 0) as d on true
left join lateral (select * from hourbell.jobs as j where j.id = d.job offset 0) as j on true
left join lateral jsonb_to_record(d.execution) as x(occurrence timestamptz, origin smallint) on true
left join lateral (
  select o.id from hourbell.open_runs as o
  where o.job = d.job and o.occurrence = x.occurrence and o.origin = x.origin
    and o.origin in (hourbell.origin_schedule(), hourbell.origin_backfill()) offset 0) as o on true
group by 1

-- name: holder_of_key
-- The job that has the unique key of the dead letter $1, and has not ended.
select hourbell.holder_of_key(d) from hourbell.dead_letters as d where d.id = $1

-- name: purge
-- Deletes the dead letters $1 and counts those that existed. Their ledger rows stay.
with gone as (delete from hourbell.dead_letters where id = any ($1) returning id)
select count(*) from gone

-- name: try_now
-- Takes an execution that waits for its next attempt out of `due`, so that no other transaction can
-- move it, and makes it run at $2; no row: it does not wait there.
with waiting as (
  select * from (select * from hourbell.executions where id = $1 offset 0) as e where e.attempt > 0),
taken as (
  delete from hourbell.due as d using waiting as w
  where hourbell.tier(d.priority, d.flags) = any (hourbell.tiers_of(w.priority))
    and d.run_at = w.run_at and d.id = w.id returning d.id)
update hourbell.executions as e set run_at = least(e.run_at, $2) from taken as t where e.id = t.id and e.id = $1
returning e.id

-- name: is_due
-- Whether an execution waits for its time.
select exists (select from (select e from hourbell.executions as e where id = $1 offset 0) as e
  where hourbell.is_due(e.e))

-- name: occurrence_lives
-- Whether another execution of the occurrence of a dead letter is live.
select exists (
  select from hourbell.dead_letters as d
  cross join lateral jsonb_to_record(d.execution) as x(occurrence timestamptz, origin smallint)
  cross join lateral hourbell.live_executions(d.job) as e
  where d.id = $1 and e.occurrence = x.occurrence and e.origin = x.origin)

-- name: died_at
-- The dead letters of this instant, at most $2.
select d.id, coalesce(d.job, d.id) as job, (d.execution ->> 'attempt')::int as attempt,
  t.name as tenant, d.reason, d.error
from hourbell.dead_letters as d
join hourbell.tenants as t on t.id = d.tenant
where d.died_at = $1 order by d.id limit $2
