-- Limits: the statements that set and read them.

-- name: update_tenant
-- Quota and retention take effect at once; the weight through the gate, which rescales the tags
-- already assigned.
with settings as (
  update hourbell.tenants
  set max_jobs = $3, ledger_days = $4, dead_letter_days = $5, audit_days = $6,
    quota_listed_to = case when $3::int is not null then
      case when max_jobs is null then 9223372036854775807 else quota_listed_to end
      else case when max_jobs is null then quota_listed_to else 0 end end,
    quota_ahead = case when max_jobs is not null then quota_ahead end,
    created_on_use = null
  where id = $1)
insert into hourbell.weight_changes (tenant, weight) values ($1, $2)

-- name: lock_limits
-- Serializes changes of limits: their generations are numbered in commit order.
select pg_advisory_xact_lock(hashtext('hourbell.limits'))

-- name: set_limit
-- Returns a row if the limit has changed.
insert into hourbell.limits (kind, key, max_concurrency, rate, burst) values ($1, $2, $3, $4, $5)
on conflict (kind, key) do update
set max_concurrency = excluded.max_concurrency, rate = excluded.rate, burst = excluded.burst
where (limits.max_concurrency, limits.rate, limits.burst)
  is distinct from (excluded.max_concurrency, excluded.rate, excluded.burst)
returning kind

-- name: delete_limit
delete from hourbell.limits where kind = $1 and key = $2

-- name: recheck
-- Ready executions predate this limit and are checked again; running ones have to be counted.
with generation as (insert into hourbell.limit_generations default values)
insert into hourbell.limit_recounts (kind, key) values ($1, $2)

-- name: wake_gate
-- Makes the gate check what is parked under this blocker.
insert into hourbell.gate_wakeups (at, kind, key) values ($1, $2, $3)

-- name: set_defaults
update hourbell.queues set timeout_seconds = $2, retry_policy = $3, created_on_use = null where id = $1

-- name: blocker_of
-- The blocker under which an execution is parked, one execution that holds what it waits for, the limit and how much
-- of it is in use, whether it is the first in the line, and when its token arrives if it is not overtaken; if it waits
-- for a worker with its task, the name of the task, or null for webhooks; when the gate tries again if it failed. $2
-- now.
select p.kind, p.key,
  case p.kind
    when hourbell.blocker_job() then (select e.id from hourbell.blocking_runs(p.key, '{}') as e
      order by e.occurrence limit 1)
    else (select h.id from hourbell.limit_holds as h where h.kind = p.kind and h.key = p.key order by h.id limit 1)
  end as holder,
  l.max_concurrency <= h.in_use as full, l.rate,
  case when p.kind <> hourbell.blocker_job() then h.in_use end as in_use,
  case p.kind when hourbell.blocker_concurrency_key()
    then (select e.key_limit from hourbell.executions as e where e.id = p.id)
    else l.max_concurrency end as max_in_use,
  case when l.rate is not null then hourbell.next_token_at(p.kind, p.key, $2) + make_interval(secs => (
    select count(*) from (
      select from hourbell.parked as b where b.kind = p.kind and b.key = p.key
        and (b.priority, b.rank, b.id) < (p.priority, p.rank, p.id) limit 10000) as before) / l.rate) end as next_token,
  not exists (
    select from hourbell.parked as b where b.kind = p.kind and b.key = p.key
      and (b.priority, b.rank, b.id) < (p.priority, p.rank, p.id)) as is_first,
  p.kind = hourbell.blocker_task() and hourbell.lacks_task(hourbell.serving_sessions(), p.key) as lacks_task,
  case when p.kind = hourbell.blocker_task() then (
    select t.name from hourbell.tasks as t where t.id = (p.key & 4294967295)::int) end as task,
  case when p.kind = hourbell.blocker_failure() then (
    select min(at) from hourbell.gate_wakeups as w where w.kind = p.kind and w.key = p.key) end as retried_at
from hourbell.parked as p
left join hourbell.limits as l on l.kind = p.kind and l.key = p.key
cross join lateral (
  select count(*) as in_use from hourbell.limit_holds as h where h.kind = p.kind and h.key = p.key) as h
where p.id = $1

-- name: waiting_for
-- What the executions $1, whose time has come, wait for: whether a live session serves their queue ($3, in the same
-- order); the kind of the blocker under which they are parked, and how much room it has; whether they are suspects. $2
-- now. Each blocker is read once, however many executions wait for it.
with wanted as materialized (
  select w.id, w.queue, p.kind, p.key
  from unnest($1::bigint[], $3::text[]) as w(id, queue)
  left join lateral (select kind, key from hourbell.parked as p where p.id = w.id offset 0) as p on true),
queues as materialized (
  select q.id, q.name, exists (
    select from hourbell.sessions as s where (s.all_queues or q.id = any (s.queues)) and s.expires_at > $2) as served
  from hourbell.queues as q where q.name = any ($3)),
blockers as materialized (
  select b.kind, b.key, l.rate is not null as has_rate, l.max_concurrency is not null and l.max_concurrency <= (
    select count(*) from (
      select from hourbell.limit_holds as h where h.kind = b.kind and h.key = b.key limit l.max_concurrency) as h)
        as is_full,
    b.kind = hourbell.blocker_task() and hourbell.lacks_task(hourbell.serving_sessions(), b.key) as lacks_task
  from (select distinct kind, key from wanted where kind is not null) as b
  left join hourbell.limits as l on l.kind = b.kind and l.key = b.key)
select w.id, w.kind, q.served, coalesce(b.is_full, false) as is_full, coalesce(b.has_rate, false) as has_rate,
  coalesce(b.lacks_task, false) as lacks_task,
  exists (select from hourbell.suspects as s where s.queue = q.id and s.id = w.id offset 0) as in_suspects
from wanted as w
left join queues as q on q.name = w.queue
left join blockers as b on b.kind = w.kind and b.key = w.key
