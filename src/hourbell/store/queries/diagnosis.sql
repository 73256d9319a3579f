-- Diagnosis: what `hourbell doctor` looks at. Every count stops at a bound.

-- name: server
-- The version of the server, its connections, whether commits are durable, and how long the oldest transaction of this
-- database has been open. PostgreSQL hides the transactions of other roles' sessions from a role without
-- pg_read_all_stats, by nulls: `hidden` is how many sessions of this database these are (processes of PostgreSQL itself
-- have no user, and are not counted).
select current_setting('server_version') as version, current_setting('max_connections')::int as max_connections,
  current_setting('synchronous_commit') <> 'off' as commits_wait,
  (select sum(numbackends)::int from pg_stat_database) as connections, quote_ident(current_user) as role,
  (select count(*)::int from pg_stat_activity
   where datname = current_database() and backend_type is null and usesysid is not null) as hidden,
  (select coalesce(extract(epoch from max(clock_timestamp() - xact_start)), 0)::float8
   from pg_stat_activity where datname = current_database() and backend_type = 'client backend') as oldest_transaction

-- name: function_sets
-- The builds whose functions are loaded, the last used first.
select version, used_at, digest = $1 as own from hourbell.function_sets order by used_at desc limit 20

-- name: leader
-- The leader's term.
select epoch, expires_at from hourbell.leadership

-- name: timetables
-- Timetables that should have been planned before $1, and those that the leader cannot compute.
select
  (select count(*)::int from (
     select from hourbell.timetables where plan_from < $1 and broken is null limit 1000) as late) as late,
  array(select broken || ': ' || zone from hourbell.timetables where look_at is not null order by look_at limit 5)
    as broken,
  array(select distinct tz_version from (
     select tz_version from hourbell.timetables order by id desc limit 1000) as newest) as tz_versions

-- name: refused
-- Schedules in code that could not be applied since $1; live workers declare them, so that is tried every minute.
select key || ': ' || problem as refused from hourbell.declared where problem_at > $1 order by app, key limit 5

-- name: late
-- Executions that have been due since before $1, by queue: how many, since when, and whether a live worker serves the
-- queue; $2 is now. They wait for the gate, for a worker that serves their queue, or for a free slot. Up to
-- 1,000 rows of each tier or queue are counted, and the first 20 of each queue and priority
-- say since when.
select q.name as queue, sum(w.n)::int as executions, min(w.run_at) as since,
  exists (select from hourbell.sessions as s
          where s.expires_at > $2 and (s.all_queues or q.id = any (s.queues))) as has_worker
from (
  select d.queue, d.n, d.run_at
  from generate_series(0, 15) as tier
  cross join lateral (
    (select queue, 1 as n, run_at from hourbell.due
     where hourbell.tier(priority, flags) = tier and run_at < $1 order by run_at limit 1000)
    union all
    (select queue, cardinality(ids), run_at from hourbell.due_slabs
     where hourbell.tier(priority, flags) = tier and run_at < $1 order by run_at limit 1000)) as d
  union all
  select q.id, w.n, e.run_at
  from (select id from hourbell.queues order by id limit 1000) as q
  cross join lateral (
    select count(*)::int as n, (array_agg(id))[1:20] as first from (
      select id from hourbell.parked as p where p.kind = hourbell.blocker_queue() and p.key = q.id
      order by p.kind, p.key, p.priority, p.rank limit 1000) as p
    union all
    select sum(cardinality(r.ids))::int, (array_agg(r.ids[1]))[1:20]
    from unnest('{0,1,2,3}'::smallint[]) as p(priority)
    cross join lateral (
      select ids from hourbell.ready as r
      where r.queue = q.id and r.priority = p.priority order by r.tag limit 1000) as r
    group by p.priority) as w
  cross join lateral (select min(run_at) as run_at from hourbell.executions where id = any (w.first)) as e
  where e.run_at < $1) as w
join hourbell.queues as q on q.id = w.queue
group by q.id, q.name order by sum(w.n) desc limit 10

-- name: stuck
-- Workers and sessions that expired before $1; executions on which the gate failed, and the first of them; suspects;
-- notices that were written before $1; dead letters since $3. $2 is now.
select
  (select count(*)::int from hourbell.sessions
   where expires_at > $2 and id <> hourbell.awaiting_session()) as workers,
  (select count(*)::int from hourbell.sessions where expires_at < $1) as expired_sessions,
  (select count(*)::int from (
     select from hourbell.parked where kind = hourbell.blocker_failure() limit 1000) as f) as not_admitted,
  (select id from hourbell.parked where kind = hourbell.blocker_failure()
   order by kind, key, priority, rank, id limit 1) as first_not_admitted,
  (select count(*)::int from (select from hourbell.suspects limit 1000) as s) as suspects,
  (select count(*)::int from (select from hourbell.notices where at < $1 order by id limit 1000) as n) as notices,
  (select count(*)::int from (select from hourbell.dead_letters where died_at > $3 limit 10000) as d) as dead_letters
