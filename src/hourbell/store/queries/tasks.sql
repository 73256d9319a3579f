-- Tasks and the hosts of webhooks: how their runs went, and what waits for them.

-- name: runs
-- What ended in the minutes from $1 to $3, by target (the 1,000 with the most attempts): a row for each
-- class of durations (`at` is null), and one for each part of the time of the length $2 (`class` is null). `failed` is
-- an execution that failed in the last minute in which one did.
with counted as materialized (
  select r.target, r.class, m.at, sum(r.runs) as runs, sum(r.failures) as failures, max(r.longest) as longest,
    max(m.minute) filter (where r.failed is not null) as failed_at,
    max(array[m.number, r.failed]) filter (where r.failed is not null) as failed
  from (
    select *, date_bin($2, minute, $1) as at, extract(epoch from minute)::bigint as number
    from hourbell.minutes where minute >= $1 and minute <= $3 offset 0) as m
  cross join lateral unnest(m.run_targets, m.run_classes, m.run_counts, m.run_failures, m.run_longest, m.run_failed)
    as r(target, class, runs, failures, longest, failed)
  group by r.target, r.class, m.at),
listed as materialized (select target from counted group by target order by sum(runs) desc, target limit 1000)
select target, class, at, sum(runs)::bigint as runs, sum(failures)::bigint as failures, max(longest) as longest,
  max(failed_at) as failed_at, (max(failed))[2] as failed
from counted where target in (select target from listed)
group by grouping sets ((target, class), (target, at))

-- name: others
-- Of the minutes from $1 on: attempts that were counted for no target, and whether some minutes were sampled.
select coalesce(sum(other_runs), 0)::bigint as runs, coalesce(bool_or(sampled > 1), false) as sampled
from hourbell.minutes where minute >= $1

-- name: waiting
-- How many executions wait for each target whose time has come at $1, among $2 of each place. `cut`: there may be more.
-- Those that a worker has released for a moment, because the circuit of their target is open for example, count too.
with parked as materialized (select id from hourbell.parked order by id limit $2),
ready as materialized (
  select r.id
  from (select id from hourbell.queues order by id limit 1000) as q
  cross join unnest(array[0, 1, 2, 3]::smallint[]) as p(priority)
  cross join lateral (
    select v from hourbell.virtual_time as v
    where v.queue = q.id and v.priority = p.priority order by pass desc limit 1) as v
  cross join lateral (
    select i.id from hourbell.ready as r cross join lateral unnest(r.ids) as i(id)
    where r.queue = q.id and r.priority = p.priority and r.tag >= v.v order by r.tag limit $2) as r
  limit $2),
suspects as materialized (select id from hourbell.suspects order by queue, priority, tag limit $2),
due as materialized (
  select d.id, d.target, d.run_at
  from generate_series(0, 15) as t(tier)
  cross join lateral (
    select id, target, run_at from hourbell.due
    where hourbell.tier(priority, flags) = t.tier and run_at <= $1::timestamptz + interval '2 minutes'
    order by run_at limit $2) as d
  limit $2),
slabs as materialized (
  select s.target, s.n
  from generate_series(0, 15) as t(tier)
  cross join lateral (
    select target, cardinality(ids) as n from hourbell.due_slabs
    where hourbell.tier(priority, flags) = t.tier and run_at <= $1 order by run_at limit $2) as s
  limit $2)
select w.target, sum(w.n)::int as n, (
    greatest((select count(*) from parked), (select count(*) from ready), (select count(*) from suspects),
      (select count(*) from due), (select count(*) from slabs)) >= $2) as cut
from (
  select e.target, 1 as n
  from (select id from parked union all select id from ready union all select id from suspects) as w
  cross join lateral (select target from hourbell.executions as e where e.id = w.id offset 0) as e
  union all
  select d.target, 1 from due as d
  where d.run_at <= $1 or exists (
    select from hourbell.executions as e
    where e.id = d.id and e.waits_for in ('circuit_open', 'no_secret_keys', 'payload_mismatch', 'unreadable') offset 0)
  union all
  select target, n from slabs) as w
where w.target is not null group by w.target

-- name: names
-- The targets $1: the task, or the host.
select t.target, (select name from hourbell.tasks where id = -t.target) as task,
  (select host from hourbell.targets where id = t.target) as host
from unnest($1::int[]) as t(target)

-- name: workers
-- Of the targets $1: how many live workers run such tasks at $2, among the newest 1,000, and the first five of them.
with live as materialized (
  select id, worker, tasks from hourbell.sessions
  where expires_at > $2 and id > hourbell.awaiting_session() order by id desc limit 1000)
select t.target, count(*)::int as n, (array_agg(l.id order by l.worker, l.id))[1:5] as sessions,
  (array_agg(l.worker order by l.worker, l.id))[1:5] as names
from unnest($1::int[]) as t(target)
join live as l
  on l.tasks is null or case when t.target > 0 then hourbell.task_webhook() else -t.target end = any (l.tasks)
group by t.target

-- name: errors
-- How the last attempts of the executions $1 failed: those that are dead, and those that were retried.
select e.id, coalesce(case when o.fate = hourbell.fate_dead() then o.error end, e.history -> -1 ->> 'error') as error
from unnest($1::bigint[]) as f(id)
cross join lateral (select id, history from hourbell.executions as e where e.id = f.id offset 0) as e
left join lateral (select fate, error from hourbell.outcomes as o where o.id = f.id offset 0) as o on true
