-- What executions wait for whose time has come.

-- name: backlog
-- Counted by the code of the reason (engine/views/backlog.py) at $1, among $2 executions of each place, of the tenant
-- $3 and the queue $4 (null: all). `cut`: there may be more. A worker releases executions for less than two minutes.
-- Whose an execution is says only its row, which is not looked up if all are counted.
with unserved as materialized (
  select q.id from (select id from hourbell.queues where $4::smallint is null or id = $4 order by id limit 1000) as q
  where not exists (
    select from hourbell.sessions as s where s.expires_at > $1 and (s.all_queues or q.id = any (s.queues)))),
parked as materialized (
  select p.id, case p.kind
    when hourbell.blocker_queue()
      then case when p.key in (select id from unserved) then 'no_worker' else 'queue_limit' end
    when hourbell.blocker_tenant() then 'tenant_limit'
    when hourbell.blocker_target() then 'target_limit'
    when hourbell.blocker_concurrency_key() then 'concurrency_key'
    when hourbell.blocker_job() then 'overlap'
    when hourbell.blocker_task() then 'no_worker_for_task'
    when hourbell.blocker_failure() then 'admission_failed' end as code
  from (select kind, key, id from hourbell.parked order by id limit $2) as p),
ready as materialized (
  select r.id
  from unserved as u
  cross join unnest(array[0, 1, 2, 3]::smallint[]) as p(priority)
  cross join lateral (
    select v from hourbell.virtual_time as v
    where v.queue = u.id and v.priority = p.priority order by pass desc limit 1) as v
  cross join lateral (
    select i.id from hourbell.ready as r cross join lateral unnest(r.ids) as i(id)
    where r.queue = u.id and r.priority = p.priority and r.tag >= v.v order by r.tag limit $2) as r
  limit $2),
released as materialized (
  select d.id, d.tenant, d.queue
  from generate_series(0, 15) as t(tier)
  cross join lateral (
    select id, tenant, queue from hourbell.due
    where hourbell.tier(priority, flags) = t.tier and run_at > $1 and run_at <= $1::timestamptz + interval '2 minutes'
    order by run_at limit $2) as d
  limit $2),
paused as materialized (select id from hourbell.paused order by id desc limit $2)
select w.code, count(*)::int as n, bool_or(w.cut) as cut
from (
  select id, code, (select count(*) from parked) >= $2 as cut from parked
  union all
  select id, 'no_worker', (select count(*) from ready) >= $2 from ready) as w
where $3::int is null and $4::smallint is null or exists (
  select from hourbell.executions as e
  where e.id = w.id and ($3::int is null or e.tenant = $3) and ($4::smallint is null or e.queue = $4) offset 0)
group by w.code
union all
select e.waits_for, count(*)::int, (select count(*) from released) >= $2
from released as r
cross join lateral (select waits_for from hourbell.executions as e where e.id = r.id offset 0) as e
where ($3::int is null or r.tenant = $3) and ($4::smallint is null or r.queue = $4)
  and e.waits_for in ('circuit_open', 'no_secret_keys', 'payload_mismatch', 'unreadable')
group by e.waits_for
union all
select 'paused', count(*)::int, (select count(*) from paused) >= $2
from paused as p
cross join lateral (select run_at, tenant, queue from hourbell.executions as e where e.id = p.id offset 0) as e
where e.run_at <= $1 and ($3::int is null or e.tenant = $3) and ($4::smallint is null or e.queue = $4)
having count(*) > 0
