-- The testing kit: what there is to do at a moment of virtual time, and what has been enqueued.

-- name: agenda
-- Sets the virtual clock to $1, and returns the kinds of work that there is to do then; `next`: when there will be
-- more, and `next_work`, of which kinds. So the agenda of the next event is known without asking again.
-- $2: the session of the worker of the test, which is renewed whenever that matters and so never expires.
-- The leader looks at groups now and then; here it looks as soon as all members of one have ended.
with moved as (update hourbell.virtual_clock set now = $1),
ended as materialized (
  select g.id from hourbell.execution_groups as g
  where g.look_at is not null and not exists (
    select from hourbell.group_members as m
    where m.group_id = g.id and m.execution > g.ended_upto
      and not exists (select from hourbell.outcomes as o where o.id = m.execution))),
looked_at as (update hourbell.execution_groups set look_at = $1 where id in (select id from ended) and look_at > $1),
later (kind, at) as materialized (values
  ('due', (select min(run_at) from hourbell.due where run_at > $1)),
  ('due', (select min(run_at) from hourbell.due_slabs where run_at > $1 and ids <> '{}')),
  ('woken', (select min(at) from hourbell.gate_wakeups where at > $1)),
  ('planning', (select min(plan_from) from hourbell.timetables where plan_from > $1)),
  ('deadlines', (select min(at) + interval '1 millisecond' from hourbell.deadlines where at >= $1)),
  ('ending', (select min(until) from hourbell.memberships where until > $1)),
  ('expired', (select min(expires_at) from hourbell.sessions
               where expires_at > $1 and id > 0 and id is distinct from $2)),
  ('overdue', (select min(until) from hourbell.awaiting where until > $1 and outcome is null)),
  ('pauses', (select min(look_at) from hourbell.pauses where look_at > $1)),
  ('monitors', (select min(check_at) from hourbell.monitors where check_at > $1)))
select
  array_remove(array[
    case when exists (select from hourbell.memberships as m join hourbell.timetables as t on t.id = m.timetable
                      where m.joined_through is null and t.broken is null) then 'joining' end,
    case when exists (select from hourbell.fires) or exists (select from hourbell.gaps)
           or exists (select from hourbell.timetables where plan_from <= $1) then 'planning' end,
    case when exists (select from hourbell.memberships where until <= $1) then 'ending' end,
    case when exists (select from hourbell.due where run_at <= $1)
           or exists (select from hourbell.due_slabs where run_at <= $1 and ids <> '{}') then 'due' end,
    case when exists (select from hourbell.gate_wakeups where at <= $1) then 'woken' end,
    case when exists (select from hourbell.deadlines where at < $1) then 'deadlines' end,
    case when exists (select from hourbell.sessions
                      where expires_at <= $1 and id > 0 and id is distinct from $2) then 'expired' end,
    case when exists (select from hourbell.awaiting where until <= $1 and outcome is null) then 'overdue' end,
    case when exists (select from hourbell.pauses where look_at <= $1) then 'pauses' end,
    case when exists (select from hourbell.monitors where check_at <= $1) then 'monitors' end,
    case when exists (select from hourbell.notices) then 'notices' end,
    case when exists (select from ended) then 'groups' end,
    case when exists (select from hourbell.ready) or exists (select from hourbell.suspects) then 'ready' end
  ], null) as work,
  (select at from later where kind = 'woken') as woken_at,
  (select min(at) from later) as next,
  array(select kind from later where at = (select min(at) from later)) as next_work

-- name: pass_gate
-- Sets the virtual clock to $1, and runs a pass of the gate then; $2 and $3 are its batch and its grace.
with moved as (update hourbell.virtual_clock set now = $1 returning now)
select a.* from moved cross join lateral hourbell.admit(moved.now, $2, $3) as a

-- name: runs
-- The executions of some tasks, or of all if that is null: each with its place and how it ended, the first due first.
-- One-time jobs are their executions. The placeholder is that of the driver: the connection may be the user's.
select e.id, coalesce(e.job, e.id) as job, n.name as task, e.job is not null as is_scheduled, e.occurrence, e.run_at,
  e.attempt, t.name as tenant, q.name as queue, e.priority, hourbell.job_spec(e.job, e.spec) as spec,
  k.key as unique_key, w.status as live_status, o.fate, coalesce(o.started_at, w.claimed_at) as started_at,
  o.finished_at, o.reason, o.error, cast(o.result as text) as result, o.end_session is not null as has_run
from hourbell.executions as e
join hourbell.tasks as n on n.id = -e.target
join hourbell.tenants as t on t.id = e.tenant
join hourbell.queues as q on q.id = e.queue
left join hourbell.unique_keys as k on k.job = e.id and k.space = hourbell.key_space_unique()
left join lateral hourbell.end_of(e.id) as o on true
cross join hourbell.slab_index(null, true) as i
left join lateral hourbell.location_of(e, i.ids, i.slabs, o.recorded_at is null, hourbell.clock()) as w on true
where n.name = any (coalesce(cast({} as text[]), array[n.name]))
order by e.run_at, e.id

-- name: expire_session
-- Ends the lease of the session $1, as if its worker had stopped sending heartbeats.
update hourbell.sessions set expires_at = hourbell.clock() where id = $1

-- name: problems
-- Why schedules of the app $1 could not be applied.
select key, problem from hourbell.declared where app = $1 and problem is not null order by key

-- name: is_unused
-- Whether the database is for tests, or was never used for anything.
select to_regclass('hourbell.virtual_clock') is not null
  or not exists (select from hourbell.executions) and not exists (select from hourbell.jobs)
