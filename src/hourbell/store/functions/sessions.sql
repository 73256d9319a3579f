-- Sessions: a worker process's lease on everything it has claimed, with one expiry.

-- Opens a session. p_queues and p_tasks say what it serves; null: all of them, including those that are named later.
create or replace function hourbell.open_session(
  p_now timestamptz, p_lease interval, p_worker text, p_queues smallint[], p_tasks int[], p_slots int,
  out id bigint, out token uuid
)
language sql volatile as $$
  -- Wake what waits for a worker of these queues.
  insert into hourbell.gate_wakeups (at, kind, key)
  select p_now, hourbell.blocker_queue(), q from unnest(coalesce(p_queues, hourbell.all_queues())) as q;
  insert into hourbell.sessions
    (id, token, worker, queues, all_queues, tasks, slots, started_at, renewed_at, expires_at)
  values (nextval('hourbell.session_ids'), gen_random_uuid(), p_worker, coalesce(p_queues, hourbell.all_queues()),
    p_queues is null, case when p_tasks is not null then array(select distinct unnest(p_tasks) order by 1) end, p_slots,
    p_now, p_now, p_now + p_lease)
  returning id, token
$$;

-- The numbers of all queues.
create or replace function hourbell.all_queues() returns smallint[]
language sql stable as $$
  select coalesce(array_agg(id order by id), '{}') from hourbell.queues
$$;

-- The queues that a session serves now.
create or replace function hourbell.queues_of(s hourbell.sessions) returns smallint[]
language sql stable
return case when s.all_queues then hourbell.all_queues() else s.queues end;

-- Called when a worker claims: extends its session if it holds nothing, and returns which queues and tasks (null: all)
-- it serves. A session that holds executions is extended by heartbeats alone: an execution that the worker does not
-- know of must not be held forever because the worker keeps asking for more.
create or replace function hourbell.renew_session(
  p_session bigint, p_token uuid, p_now timestamptz, p_lease interval, out alive boolean, out queues text[],
  out tasks text[]
)
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare session hourbell.sessions;
begin
  select * into session from hourbell.sessions where id = p_session and token = p_token;
  alive := found;
  if not alive then return; end if;
  queues := array(select name from hourbell.queues where id = any (hourbell.queues_of(session)) order by name);
  if session.tasks is not null then
    tasks := array(
      select name from hourbell.tasks where id = any (session.tasks)
      union all select '@webhook' where hourbell.task_webhook() = any (session.tasks) order by name);
  end if;
  -- The session of a worker that polls all the time is extended at most once per tenth of the lease.
  if session.renewed_at not between p_now - p_lease / 10 and p_now
      and not exists (select from hourbell.leases as l where l.session = p_session) then
    perform hourbell.extend_session(p_session, p_token, p_now, p_lease);
  end if;
end $$;

-- Extends a session. False: it is over.
create or replace function hourbell.extend_session(p_session bigint, p_token uuid, p_now timestamptz, p_lease interval)
returns boolean
language plpgsql set plan = lookups as $$
#variable_conflict use_column
begin
  -- A late call never shortens the lease, unless the clock was set back.
  update hourbell.sessions
  set renewed_at = p_now, expires_at = case
    when renewed_at > p_now + p_lease then p_now + p_lease else greatest(expires_at, p_now + p_lease) end
  where id = p_session and token = p_token;
  return found;
end $$;

-- Extends the session and compares what the worker runs with what it holds. `lost`: the worker must stop these, the
-- session no longer holds them. `cancelled`: their cancellation is requested.
-- p_resolved: every claim up to this number has been answered, so executions of those claims that the worker does not
-- name are returned: the answer that named them was lost. Null: the worker does not say. Executions of an unnumbered
-- claim (0), and all executions if p_resolved is null, are returned when the worker does not name them a whole lease
-- after their claim.
create or replace function hourbell.heartbeat(
  p_session bigint, p_token uuid, p_now timestamptz, p_lease interval, p_running bigint[], p_resolved int,
  out alive boolean, out lost bigint[], out cancelled bigint[]
)
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  leased bigint[];
  expected bigint[];  -- those that the worker must know of by now
  unlisted bigint[];
begin
  alive := hourbell.extend_session(p_session, p_token, p_now, p_lease);
  if not alive then lost := p_running; cancelled := '{}'; return; end if;
  select coalesce(array_agg(id), '{}'), array_agg(id) filter (
    where case when claim > 0 and p_resolved is not null then claim <= p_resolved else claimed_at < p_now - p_lease end)
  into leased, expected from hourbell.leases where session = p_session;
  lost := array(select unnest(p_running) except select unnest(leased));
  cancelled := array(
    select r from unnest(p_running) as r
    where exists (select from hourbell.cancellations as c where c.id = r offset 0) and not r = any (lost));
  unlisted := array(select unnest(expected) except select unnest(p_running));
  if unlisted <> '{}' then perform hourbell.release_executions(p_session, unlisted, p_now); end if;
end $$;

-- The live sessions of all workers of this name, and which of these executions each of them holds.
create or replace function hourbell.sessions_of(
  p_worker text, p_ids bigint[], out session bigint, out token uuid, out held bigint[]
) returns setof record
language sql stable set plan = lookups as $$
  select s.id, s.token, array(select l.id from hourbell.leases as l where l.session = s.id and l.id = any (p_ids))
  from hourbell.sessions as s
  where s.worker = p_worker and s.id <> hourbell.awaiting_session() order by s.id
$$;

-- The claim that holds an execution; no row: none does, or its target completes it.
create or replace function hourbell.current_claim(
  p_id bigint, out session bigint, out token uuid, out worker text, out fence bigint
) returns setof record
language sql stable set plan = lookups as $$
  select s.id, s.token, s.worker, l.fence
  from (
    -- By the indexes for readers: slabs of one are looked up, the others are read. A slab may still name an execution
    -- that has ended under its fence and was replayed.
    select session, fence from hourbell.leased where cardinality(ids) = 1 and ids[1] = p_id
    union all
    select session, fence from hourbell.leased where cardinality(ids) > 1 and p_id = any (ids)) as l
  join hourbell.executions as e on e.id = p_id and l.fence > e.fence
  join hourbell.sessions as s on s.id = l.session and s.id <> hourbell.awaiting_session()
  where not exists (select from hourbell.outcomes as o where o.id = p_id offset 0)
$$;

-- Moves executions from leased back to due: not started, no attempt used. Only the fence is kept, so that it rises.
-- They are due now, not at their first due time: that may lie below the gate's mark, where they would wait for the
-- sweep.
create or replace function hourbell.release_executions(p_session bigint, p_ids bigint[], p_now timestamptz) returns int
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  slabs tid[];
  back bigint[];
begin
  slabs := array(
    select ctid from hourbell.leased where session = p_session and ids && p_ids order by fence for update);
  with returned as materialized (
    select i.id, l.fence from hourbell.leased as l cross join lateral unnest(l.ids) as i(id)
    where l.ctid = any (slabs) and i.id = any (p_ids)
      and not exists (select from hourbell.outcomes as o where o.id = i.id offset 0)),
  again as (
    update hourbell.executions as e set fence = h.fence, run_at = p_now from returned as h
    where e.id = h.id and e.id = any (array(select id from returned)) returning e.id)
  select array_agg(id) into back from again;
  perform hourbell.shrink_slabs(slabs, back);
  perform hourbell.release_limits(back, false, p_now);
  return hourbell.requeue(back);
end $$;

-- Closes the session of a worker that shuts down cleanly: what it still holds goes back at once, before its lease
-- expires.
create or replace function hourbell.close_session(p_session bigint, p_token uuid, p_now timestamptz) returns int
language plpgsql set plan = lookups as $$
begin
  perform from hourbell.sessions where id = p_session and token = p_token for update;
  if not found then return 0; end if;
  perform hourbell.remember_session(p_session, p_now, null);
  return hourbell.discard_session(p_session, p_token, p_now);
end $$;

-- The same for a session that no worker was told of, so no request will ever refer to it. Workers that poll and never
-- get anything open one each time.
create or replace function hourbell.discard_session(p_session bigint, p_token uuid, p_now timestamptz) returns int
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare n int;
begin
  perform from hourbell.sessions where id = p_session and token = p_token for update;
  if not found then return 0; end if;
  n := hourbell.release_executions(p_session, array(select id from hourbell.leases where session = p_session), p_now);
  delete from hourbell.leased where session = p_session;
  perform hourbell.end_session(p_session, p_now);
  return n;
end $$;

-- Stores an ended session: for a worker that repeats an outcome whose answer was lost (`already_settled`), and for the
-- worker's name in executions that the session has ended. p_returned: how many executions went back because its lease
-- had expired; null: its worker has closed it.
create or replace function hourbell.remember_session(p_session bigint, p_now timestamptz, p_returned int) returns void
language sql volatile as $$
  insert into hourbell.past_sessions (id, token, ended_at, worker, returned)
  select id, token, p_now, worker, p_returned from hourbell.sessions where id = p_session
$$;

-- Ends a session that holds nothing. Rows that wait for a worker of its queues are checked again.
create or replace function hourbell.end_session(p_session bigint, p_now timestamptz) returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
begin
  with gone as (delete from hourbell.sessions where id = p_session returning *)
  insert into hourbell.gate_wakeups (at, kind, key)
  select p_now, hourbell.blocker_queue(), unnest(hourbell.queues_of(gone::hourbell.sessions)) from gone;
end $$;

-- Those of these executions that a session holds, as its claims returned them.
create or replace function hourbell.claimed_by(
  p_session bigint, p_token uuid, p_ids bigint[],
  out ids bigint[], out jobs bigint[], out tenants int[], out attempts int[], out fences bigint[],
  out scheduled_for float8[], out finish_by timestamptz[], out specs text[]
)
language plpgsql set plan = lookups_unsorted as $$
#variable_conflict use_column
begin
  if not exists (select from hourbell.sessions where id = p_session and token = p_token) then return; end if;
  select array_agg(e.id), array_agg(coalesce(e.job, e.id)), array_agg(e.tenant), array_agg(e.attempt + 1),
    array_agg(l.fence), array_agg(date_part('epoch', e.occurrence)), array_agg(e.finish_by),
    array_agg(hourbell.sent_spec(e.spec, j.spec, e.replayed_attempt))
  into ids, jobs, tenants, attempts, fences, scheduled_for, finish_by, specs
  from (
    select l.* from unnest(p_ids) with ordinality as asked(id, pos)
    join (select * from hourbell.leases as l where l.session = p_session offset 0) as l on l.id = asked.id
    order by asked.pos) as l
  cross join lateral (select * from hourbell.executions as e where e.id = l.id offset 0) as e
  left join lateral (select spec from hourbell.jobs as j where j.id = e.job offset 0) as j on true;
  specs := hourbell.with_reruns(ids, specs);
end $$;

-- Stores the progress of an execution, as long as it is held under this fence; false: it is not.
create or replace function hourbell.note_progress(
  p_session bigint, p_token uuid, p_id bigint, p_fence bigint, p_progress text
) returns boolean
language plpgsql set plan = lookups as $$
#variable_conflict use_column
begin
  -- A key share lock, as in settle: a session that is being reaped is seen whole or not at all.
  perform from hourbell.sessions where id = p_session and token = p_token for key share;
  if not found then return false; end if;
  insert into hourbell.progress (id, fence, progress)
  select id, fence, p_progress from hourbell.leases where session = p_session and id = p_id and fence = p_fence
  on conflict (id) do update set fence = excluded.fence, progress = excluded.progress;
  return found;
end $$;
