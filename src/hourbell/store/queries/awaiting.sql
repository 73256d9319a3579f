-- Awaiting: executions that their target has accepted, and whose outcome it will report.

-- name: by_token
-- The execution that was sent with a token ($2, its digest), whatever its state. claimed_at is null
-- if it no longer waits; is_as_sent: the job has not changed since the token was sent.
select a.id, a.fence, a.begun_ms, a.outcome, l.claimed_at, e.job, e.attempt, e.occurrence, e.finish_by,
  hourbell.sent_spec(e.spec, j.spec, e.replayed_attempt) as spec,
  e.spec is not null or l.versions = array[j.version] as is_as_sent
from hourbell.awaiting as a
left join hourbell.executions as e on e.id = a.id
left join lateral (
  select * from hourbell.leased as l where l.session = hourbell.awaiting_session() and l.fence = a.fence
    and l.ids = array[a.id] offset 0) as l on true
left join hourbell.jobs as j on j.id = e.job
where a.id = $1 and a.token = $2

-- name: overdue
-- Executions of webhooks that were not completed in time, at most $2. claimed_at is null if one has ended and its
-- outcome was not noted here.
select a.id, a.fence, a.begun_ms, l.claimed_at, e.job, e.attempt, e.occurrence, e.finish_by,
  hourbell.sent_spec(e.spec, j.spec, e.replayed_attempt) as spec
from (
  select * from hourbell.awaiting as a where outcome is null and until <= $1
    and not exists (select from hourbell.waits as w where w.id = a.id and w.is_open offset 0)
    and not exists (
      select from hourbell.failing_rows as s where s.step = 'overdue' and s.id = a.id and s.until > $1 offset 0)
  order by until limit $2) as a
left join lateral (select * from hourbell.executions as e where e.id = a.id offset 0) as e on true
left join lateral (
  select * from hourbell.leased as l where l.session = hourbell.awaiting_session() and l.fence = a.fence
    and l.ids = array[a.id] offset 0) as l on true
left join lateral (select * from hourbell.jobs as j where j.id = e.job offset 0) as j on true

-- name: note_outcome
-- $3 is the outcome; no row: another transaction was first.
update hourbell.awaiting set outcome = $3 where id = $1 and fence = $2 and hourbell.is_awaiting(awaiting) returning id

-- name: cancel_requested
-- Ends executions whose cancellation was requested and that no worker will ever report.
select hourbell.ended() from hourbell.cancel_requested($1, $2, $3)

-- name: end_waits
-- Ends waits of handlers whose time is over, and makes due again what was reported meanwhile.
select hourbell.end_waits($1, $2, $3, $4)

-- name: wait_by_token
-- The wait of a handler that has a token ($2).
select name, outcome from hourbell.waits where id = $1 and token = $2

-- name: report_wait
select hourbell.report_wait($1, $2, $3, $4, $5)

-- name: until
-- How long an execution may wait for its target.
select until from hourbell.awaiting as a where id = $1 and hourbell.is_awaiting(a)
