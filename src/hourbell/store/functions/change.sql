-- Changing jobs: update, pause, resume, delete, replace, complete, cancel, and run now of a one-time job. Each is one
-- statement: no client code runs between its first lock and its commit, so no other transaction waits for a client that
-- has stopped.
--
-- Locks are taken in one order, so that two changes cannot deadlock: the row of the idempotency key, the unique key (by
-- `create_jobs`), the job, its membership, its executions (those that another transaction has locked are skipped), the
-- limits that they release, its monitors.

-- A job document with the status of its job, as the audit stores it.
create or replace function hourbell.with_status(p_spec text, p_status smallint, p_pause json default null) returns json
language sql immutable
return coalesce(
  hourbell.as_json(('{"status":"' || (array['SCHEDULED', 'PAUSED', 'ENDED', 'CANCELLED'])[p_status + 1] || '",'
    || coalesce('"pause":' || p_pause || ',', '') || substr(p_spec, 2))),
  json_build_object('unreadable', p_spec));

-- Changes a job that its caller has read and decided about, with the audit row and the stored answer. Returns a few
-- bytes only: an answer that does not fit into the buffers of a client that has stopped would delay the commit.
--   p_change  seen_version, seen_status: as the caller has read the job
--             status: of the job after the change
--             outdated: why queued executions are superseded; null: they are not
--             cancels: whether running executions get a cancellation request
--             definition: changed columns, of `jobs` or, for a one-time job, of `executions`; null: none
--             membership: how a recurring job joins the timetable of its definition; null: it joins none
--             pause: the reason and the end of a pause; null: none were given
--             operation: the bulk operation that pauses it; null: none does
--   p_write   tenant, actor, operation: for the audit
--             key, fingerprint: of the answer to store; a null key: nothing is stored
--             answer: if the job is changed; unchanged: if it is left as it was
--   outcome   changed, unchanged (only a cancellation was requested, or a running job may finish), or nothing was done:
--             moved (the job is no longer as the caller has read it), underway (a queued or running one-time job cannot
--             be changed), repeated (the key already has an answer)
-- Planning its statements each time would take twice as long as executing them.
create or replace function hourbell.change_job(
  p_now timestamptz, p_job bigint, p_change json, p_write json, out outcome text
)
language plpgsql
set plan = lookups_one_by_one
set plan_cache_mode = force_generic_plan set lock_timeout = '2s' as $$
#variable_conflict use_column
declare
  change record;
  write record;
  job hourbell.jobs;
begin
  write := hourbell.write_of(p_write);
  if not hourbell.store_answer(p_now, write) then outcome := 'repeated'; return; end if;
  select * into change from json_to_record(p_change) as c(
    seen_version int, seen_status smallint, status smallint, outdated text, cancels boolean, definition json,
    membership json, pause json, operation bigint);
  select * into job from hourbell.jobs where id = p_job for no key update;
  outcome := case when found then hourbell.change_recurring(p_now, job, change, write)
    else hourbell.change_one_time(p_now, p_job, change, write) end;
  if outcome = 'changed' then perform hourbell.note_pause(p_now, p_job, change, write); end if;
  perform hourbell.correct_answer(write, outcome);
end $$;

-- Changes several jobs, p_changes[k] for p_jobs[k], with one commit. p_write: as for `change_job`, without a key.
-- Returns the outcome of each. A job that another transaction has locked for longer than the lock timeout is `locked`,
-- and the last one in the answer: the caller sends the rest again, and no lock is kept while one job after the other
-- waits. A job on which the change fails is `failed`, and stops no other. (A missing timetable was deleted since the
-- caller has looked it up, which all of them may share.)
create or replace function hourbell.change_jobs(p_now timestamptz, p_jobs bigint[], p_changes json[], p_write json)
returns text[]
language plpgsql as $$
declare
  outcomes text[] := '{}';
begin
  for n in 1 .. cardinality(p_jobs) loop
    begin
      outcomes := outcomes || hourbell.change_job(p_now, p_jobs[n], p_changes[n], p_write);
    exception
      when lock_not_available or deadlock_detected then return outcomes || 'locked'::text;
      when others then
        if hourbell.is_temporary(sqlstate) or sqlstate = '23503' then raise; end if;
        raise warning 'job % is not changed: %', p_jobs[n], sqlerrm;
        outcomes := outcomes || 'failed'::text;
    end;
  end loop;
  return outcomes;
end $$;

-- A part of `change_job`, after the change: stores why and until when the job is paused, and forgets an earlier pause.
create or replace function hourbell.note_pause(p_now timestamptz, p_job bigint, p_change record, p_write record)
returns void
language plpgsql as $$
#variable_conflict use_column
begin
  if p_change.pause is not null then
    insert into hourbell.pauses (job, at, actor, reason, until, look_at, operation)
    select p_job, p_now, p_write.actor, reason, until, coalesce(until, p_now + interval '1 day'), p_change.operation
    from json_to_record(p_change.pause) as p(reason text, until timestamptz)
    on conflict (job) do update
    set at = excluded.at, actor = excluded.actor, reason = excluded.reason, until = excluded.until,
      look_at = excluded.look_at, operation = excluded.operation;
  elsif p_change.status <> hourbell.job_paused() or p_change.seen_status <> hourbell.job_paused() then
    delete from hourbell.pauses where job = p_job;
  end if;
end $$;

-- A part of `change_job`, for a job that is locked.
create or replace function hourbell.change_recurring(
  p_now timestamptz, p_job hourbell.jobs, p_change record, p_write record
) returns text
language plpgsql as $$
#variable_conflict use_column
declare
  before constant json := hourbell.with_status(p_job.spec, p_job.status);
  desired hourbell.jobs := json_populate_record(p_job, p_change.definition);
  new_version int;
begin
  if (p_job.version, p_job.status) <> (p_change.seen_version, p_change.seen_status) then return 'moved'; end if;
  if p_change.cancels then
    insert into hourbell.cancellations (id, requested_at) select id, p_now from hourbell.live_executions(p_job.id);
  end if;
  if p_job.status = hourbell.job_cancelled() then
    perform hourbell.note_change(p_now, p_job.tenant, p_job.id, p_write.actor, p_write.operation, before, before);
    return 'unchanged';
  end if;

  desired.status := p_change.status;
  new_version := hourbell.new_version(p_now, desired, p_change.outdated);
  if p_change.membership is not null then
    insert into hourbell.memberships
      (timetable, priority, job, version, active_since, until, tenant, queue, target, key, key_limit, misfire,
       catch_up_seconds, catch_up_limit, overlap, at_most_once, start_deadline_seconds, deadline_seconds, notifies)
    select desired.timetable, desired.priority, desired.id, new_version, m.active_since, desired.ends_at,
      desired.tenant,
      desired.queue, desired.target, desired.key, desired.key_limit, m.misfire, m.catch_up_seconds, m.catch_up_limit,
      m.overlap, m.at_most_once, m.start_deadline_seconds, m.deadline_seconds, m.notifies
    from json_populate_record(null::hourbell.memberships, p_change.membership) as m;
  end if;
  perform hourbell.note_change(
    p_now, p_job.tenant, p_job.id, p_write.actor, p_write.operation, before,
    hourbell.with_status(desired.spec, desired.status, p_change.pause));
  return 'changed';
end $$;

-- A part of `change_job`. A waiting job is taken out of its place, changed, and put back.
create or replace function hourbell.change_one_time(p_now timestamptz, p_job bigint, p_change record, p_write record)
returns text
language plpgsql as $$
#variable_conflict use_column
declare
  taken hourbell.executions;
  desired hourbell.executions;
  stays hourbell.executions;  -- queued or running
  before json;
begin
  taken := hourbell.take_waiting(p_job, p_change.seen_version, false);
  if taken.id is null then
    select * into stays from (select * from hourbell.live where id = p_job offset 0) as e
    where e.job is null and e.version = p_change.seen_version;
    if stays.id is null or hourbell.is_waiting(p_job) then return 'moved'; end if;
    if p_change.status <> hourbell.job_cancelled() then return 'underway'; end if;
    if p_change.cancels or not hourbell.is_leased(p_job) then
      insert into hourbell.cancellations (id, requested_at) values (p_job, p_now);
    end if;
    before := hourbell.with_status(stays.spec, p_change.seen_status);  -- it changes when the job ends
    perform hourbell.note_change(p_now, stays.tenant, p_job, p_write.actor, p_write.operation, before, before);
    return 'unchanged';
  end if;

  desired := json_populate_record(taken, p_change.definition);
  perform hourbell.note_change(
    p_now, taken.tenant, p_job, p_write.actor, p_write.operation,
    hourbell.with_status(taken.spec, p_change.seen_status),
    hourbell.with_status(desired.spec, p_change.status, p_change.pause));
  if p_change.status = hourbell.job_cancelled() then
    perform hourbell.end_executions(array[p_job], array[hourbell.fate_cancelled()], array['cancelled'], p_now);
    return 'changed';
  end if;
  update hourbell.executions
  set version = version + 1, updated_at = p_now, occurrence = desired.occurrence, run_at = desired.run_at,
    queue = desired.queue, priority = desired.priority, start_by = desired.start_by, finish_by = desired.finish_by,
    at_most_once = desired.at_most_once, spec = desired.spec, target = desired.target, key = desired.key,
    key_limit = desired.key_limit, notifies = desired.notifies
  where id = p_job;
  perform hourbell.release_limits(array[p_job], true, p_now);  -- it waits for its new limits
  insert into hourbell.deadlines (at, id, kind)
  select at, p_job, kind
  from (values
    (desired.start_by, hourbell.deadline_start()), (desired.finish_by, hourbell.deadline_finish())) as d(at, kind)
  where at is not null;
  if p_change.status = hourbell.job_paused() then
    insert into hourbell.paused (id) values (p_job);
  else
    perform hourbell.requeue(array[p_job]);
  end if;
  return 'changed';
end $$;

-- Runs a waiting one-time job by p_now at the latest; p_spec: with this document, null: its own. p_write and outcome:
-- as for `change_job`; unchanged: it is queued or running, and would have been run with its own document.
create or replace function hourbell.run_one_time(
  p_now timestamptz, p_job bigint, p_version int, p_spec text, p_write json, out outcome text
)
language plpgsql
set plan = lookups_one_by_one
set plan_cache_mode = force_generic_plan set lock_timeout = '2s' as $$
#variable_conflict use_column
declare
  write record;
  taken hourbell.executions;
begin
  write := hourbell.write_of(p_write);
  if not hourbell.store_answer(p_now, write) then outcome := 'repeated'; return; end if;
  taken := hourbell.take_waiting(p_job, p_version, false);
  if taken.id is not null then
    update hourbell.executions
    set run_at = least(run_at, p_now), spec = coalesce(p_spec, spec), version = version + (p_spec is not null)::int,
      updated_at = case when p_spec is null then updated_at else p_now end
    where id = p_job;
    perform hourbell.requeue(array[p_job]);
    outcome := 'changed';
  elsif hourbell.is_waiting(p_job)
      or not exists (select from (select version from hourbell.live where id = p_job offset 0) as e
        where e.version = p_version) then
    outcome := 'moved';
  else
    outcome := case when p_spec is null then 'unchanged' else 'underway' end;
  end if;
  if outcome in ('changed', 'unchanged') then
    -- With another document this is a change, and the document before it is stored nowhere else.
    perform hourbell.note_change(
      p_now, write.tenant, p_job, write.actor, write.operation,
      case when p_spec is not null then hourbell.as_json(taken.spec) end,
      p_spec::json);
  end if;
  perform hourbell.correct_answer(write, outcome);
end $$;

-- Cancels an execution of p_job. p_awaits: its target has accepted it. p_write and outcome: as for `change_job`;
-- changed: it has ended, unchanged: it was asked to stop.
create or replace function hourbell.cancel_execution(
  p_now timestamptz, p_id bigint, p_job bigint, p_awaits boolean, p_write json, out outcome text
)
language plpgsql
set plan = lookups_one_by_one
set plan_cache_mode = force_generic_plan set lock_timeout = '2s' as $$
#variable_conflict use_column
declare
  write record;
  taken hourbell.executions;
begin
  write := hourbell.write_of(p_write);
  if not hourbell.store_answer(p_now, write) then outcome := 'repeated'; return; end if;
  taken := hourbell.take_waiting(p_id, null, true);
  if taken.id is not null then
    perform hourbell.end_executions(array[p_id], array[hourbell.fate_cancelled()], array['cancelled'], p_now);
    outcome := 'changed';
  elsif hourbell.is_waiting(p_id) then
    outcome := 'moved';
  elsif p_awaits then
    outcome := case when hourbell.cancel_awaiting(array[p_id], p_now) = '{}' then 'moved' else 'changed' end;
  else
    insert into hourbell.cancellations (id, requested_at)
    select id, p_now from hourbell.live where id = p_id;
    outcome := case when found then 'unchanged' else 'moved' end;
  end if;
  if outcome <> 'moved' then
    perform hourbell.note_change(p_now, write.tenant, p_job, write.actor, write.operation, null, null);
  end if;
  perform hourbell.correct_answer(write, outcome);
end $$;

-- Removes a job for another that replaces it, as a delete by its owner would. False: it is queued or running. Called by
-- `give_unique_keys`, whose plan settings apply.
create or replace function hourbell.replace_job(p_now timestamptz, p_job bigint, p_tenant int, p_actor text)
returns boolean
language plpgsql as $$
#variable_conflict use_column
declare
  job hourbell.jobs;
begin
  select * into job from hourbell.jobs where id = p_job for no key update;
  if found then
    job.status := hourbell.job_cancelled();
    perform hourbell.new_version(p_now, job, 'deleted');
  else
    if hourbell.remove_waiting(array[p_job]) = '{}' then
      delete from hourbell.paused where id = p_job;
      if not found then return false; end if;
    end if;
    perform hourbell.end_executions(array[p_job], array[hourbell.fate_cancelled()], array['cancelled'], p_now);
  end if;
  perform hourbell.note_change(p_now, p_tenant, p_job, p_actor, 'replace', null, '{"status": "CANCELLED"}');
  return true;
end $$;

-- Completes a job that has started its last run: it gets no further occurrences, and those planned ahead are removed.
-- The job is locked. Called by a claim, whose plan settings apply.
create or replace function hourbell.complete_job(p_now timestamptz, p_job bigint) returns void
language plpgsql as $$
begin
  perform hourbell.end_planning(p_now, p_job);
  update hourbell.jobs set status = hourbell.job_ended(), updated_at = p_now
  where id = p_job and status in (hourbell.job_scheduled(), hourbell.job_paused());
end $$;

-- Pauses jobs whose target has answered that it is gone, unless they have changed since. Those that another
-- transaction is changing, and those that raise an error, are left to the next call and stop no others. Returns how
-- many it has examined.
create or replace function hourbell.pause_abandoned(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_actor text, p_limit int
) returns int
language plpgsql set plan = lookups set lock_timeout = '200ms' as $$
#variable_conflict use_column
declare
  abandoned record;
  job hourbell.jobs;
  seen int := 0;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  for abandoned in
    select * from hourbell.abandoned_jobs as a
    where not exists (
      select from hourbell.failing_rows as s where s.step = 'abandoned' and s.id = a.job and s.until > p_now offset 0)
    limit p_limit
  loop
    seen := seen + 1;
    begin
      select * into job from hourbell.jobs where id = abandoned.job for no key update skip locked;
      if found and job.version = abandoned.version and job.status = hourbell.job_scheduled() then
        job.status := hourbell.job_paused();
        perform hourbell.new_version(p_now, job, 'paused');
        perform hourbell.note_change(
          p_now, job.tenant, job.id, p_actor, 'pause', hourbell.with_status(job.spec, hourbell.job_scheduled()),
          hourbell.with_status(job.spec, hourbell.job_paused()));
      elsif job.id is null and exists (select from hourbell.jobs where id = abandoned.job) then
        continue;
      end if;
      delete from hourbell.abandoned_jobs as a where a.job = abandoned.job and a.version = abandoned.version;
    exception when lock_not_available then
      raise warning 'job % is not paused yet: %', abandoned.job, sqlerrm;
    when others then
      if hourbell.is_temporary(sqlstate) then raise; end if;
      perform hourbell.note_failing(p_now, 'abandoned', abandoned.job, abandoned.job, null, sqlerrm);
    end;
  end loop;
  return seen;
end $$;

-- Gives a job that is locked its next version, and returns the number of it. The current membership ends, so that due
-- occurrences stay with it and later ones belong to the next one; what was planned ahead is removed.
--   p_desired   the row as it will be; version, valid_from, outdated and updated_at are set here
--   p_outdated  why queued executions are superseded; null: they are not
create or replace function hourbell.new_version(p_now timestamptz, p_desired hourbell.jobs, p_outdated text) returns int
language plpgsql as $$
#variable_conflict use_column
declare
  before hourbell.jobs;
  new_version int;
begin
  select * into before from hourbell.jobs where id = p_desired.id;
  perform hourbell.end_planning(p_now, p_desired.id);
  update hourbell.jobs as j
  set version = j.version + 1, valid_from = case when p_outdated is null then j.valid_from else j.version + 1 end,
    outdated = coalesce(p_outdated, j.outdated), updated_at = p_now, status = p_desired.status, queue = p_desired.queue,
    priority = p_desired.priority, timetable = p_desired.timetable, max_runs = p_desired.max_runs,
    starts_at = p_desired.starts_at, ends_at = p_desired.ends_at, name = p_desired.name, spec = p_desired.spec,
    target = p_desired.target, key = p_desired.key, key_limit = p_desired.key_limit
  where j.id = p_desired.id returning j.version into new_version;
  if p_outdated is not null then perform hourbell.supersede_waiting(p_now, p_desired.id); end if;
  if (before.queue, before.target, before.key, before.key_limit)
      is distinct from (p_desired.queue, p_desired.target, p_desired.key, p_desired.key_limit) then
    -- What is still to be planned for the time before now follows as well.
    update hourbell.memberships as m
    set queue = p_desired.queue, target = p_desired.target, key = p_desired.key, key_limit = p_desired.key_limit
    where m.timetable = before.timetable and m.priority = before.priority and m.job = before.id
      and m.version = before.version;
    perform hourbell.reroute(p_now, p_desired.id);
  end if;
  if p_outdated is not null or p_desired.status <> before.status then
    -- The next expected run is computed from now on.
    update hourbell.monitors set since = p_now, expected_at = null, check_at = p_now, version = version + 1
    where job = p_desired.id and deleted_at is null;
  end if;
  return new_version;
end $$;

-- Ends the current membership of a job now, and removes what was planned ahead.
create or replace function hourbell.end_planning(p_now timestamptz, p_job bigint) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  update hourbell.memberships as m set until = least(m.until, p_now)
  from hourbell.jobs as j
  where j.id = p_job and m.timetable = j.timetable and m.priority = j.priority and m.job = j.id
    and m.version = j.version;
  perform hourbell.withdraw_planned(p_now, p_job);
end $$;

-- Removes the executions planned ahead for a job: those whose time has not come. Nothing has observed them, so they are
-- not recorded. Rows locked by another transaction (such as a stalled cancel) are skipped and left to it, and later to
-- their claim.
create or replace function hourbell.withdraw_planned(p_now timestamptz, p_job bigint) returns void
language plpgsql as $$
#variable_conflict use_column
declare
  taken bigint[];
  queues smallint[]; tenants int[]; targets int[]; keys bigint[];
begin
  taken := hourbell.remove_waiting(array(
    select e.id from hourbell.open_runs as r
    cross join lateral (select id, attempt from hourbell.executions as e where e.id = r.id offset 0) as e
    where r.job = p_job and r.origin = hourbell.origin_schedule() and r.occurrence > p_now and e.attempt = 0));
  if taken = '{}' then return; end if;
  perform hourbell.close_runs(taken, p_now);
  -- The time of an execution may have come since the caller read the clock, so it may hold its key or have been parked.
  with gone as (delete from hourbell.executions where id = any (taken) returning queue, tenant, target, key)
  select array_agg(distinct queue), array_agg(distinct tenant), array_agg(distinct target), array_agg(distinct key)
  into queues, tenants, targets, keys from gone;
  perform hourbell.release_limits(taken, true, p_now);
  perform hourbell.wake_blockers(queues, tenants, targets, keys, p_now);
end $$;

-- A change has made the waiting executions of a job out of date. They are recorded at once, so that nothing waits for
-- them. Executions that are ready, or taken by another transaction, are found out of date by their claim. Executions
-- planned ahead are removed, or belong to the new version.
create or replace function hourbell.supersede_waiting(p_now timestamptz, p_job bigint) returns void
language plpgsql as $$
#variable_conflict use_column
declare
  ids bigint[];
  why text;
begin
  ids := hourbell.remove_waiting(array(
    select e.id from hourbell.live_executions(p_job) as e join hourbell.jobs as j on j.id = e.job
    where e.version < j.valid_from and (e.occurrence <= p_now or e.attempt > 0
      or e.origin <> hourbell.origin_schedule())));
  if ids = '{}' then return; end if;
  select outdated into why from hourbell.jobs where id = p_job;
  perform hourbell.end_executions(
    ids, array_fill(hourbell.fate_superseded(), array[cardinality(ids)]), array_fill(why, array[cardinality(ids)]),
    p_now);
end $$;

-- Queued executions of a job follow it to another queue, task, host or concurrency key (`requeue`): between two
-- attempts, behind a blocker or ready, they go through the gate again, there. What runs follows when it is due again.
-- What another transaction is moving is found by its claim, or by the join of the new version.
create or replace function hourbell.reroute(p_now timestamptz, p_job bigint) returns void
language plpgsql as $$
#variable_conflict use_column
declare
  ids bigint[];
begin
  ids := array(
    select e.id from hourbell.jobs as j cross join lateral hourbell.live_executions(j.id) as e
    where j.id = p_job and not hourbell.is_routed(e, j));
  if ids = '{}' then return; end if;
  perform hourbell.requeue(hourbell.remove_waiting(ids) || hourbell.remove_ready(ids));
end $$;

-- Takes an execution out of `due`, `due_slabs`, `parked` or `paused` (p_suspected: or `suspects`), so that no other
-- transaction can move it; waits for one that is moving it. The caller commits at once: others share its slab.
-- p_version: only if the execution still has this version; null: any.
-- Null: it is ready, runs or has ended, or another transaction has moved it.
create or replace function hourbell.take_waiting(p_id bigint, p_version int, p_suspected boolean)
returns hourbell.executions
language plpgsql as $$
#variable_conflict use_column
declare taken hourbell.executions;
begin
  with waiting as (
    select * from (select * from hourbell.executions where id = p_id offset 0) as e
    where p_version is null or e.version = p_version),
  from_due as (
    delete from hourbell.due as d using waiting as w
    where hourbell.tier(d.priority, d.flags) = any (hourbell.tiers_of(w.priority))
      and d.run_at = w.run_at and d.id = w.id returning d.id),
  -- A slab is never deleted here: a transaction that waits for this one would not find the row again.
  from_slab as (
    update hourbell.due_slabs as d set ids = array_remove(d.ids, w.id),
      tenants = d.tenants[:array_position(d.ids, w.id) - 1] || d.tenants[array_position(d.ids, w.id) + 1:]
    from waiting as w
    where hourbell.tier(d.priority, d.flags) = any (hourbell.tiers_of(w.priority))
      and d.run_at = w.run_at and d.slab = hourbell.slab_of(w.id) and w.id = any (d.ids) returning w.id),
  from_parked as (delete from hourbell.parked as p where p.id = (select id from waiting) returning p.id),
  from_paused as (delete from hourbell.paused as h where h.id = (select id from waiting) returning h.id),
  from_suspects as (
    delete from hourbell.suspects as s using waiting as w
    where p_suspected and s.queue = w.queue and s.priority = w.priority and s.id = w.id returning s.id)
  select w.* into taken from waiting as w
  where exists (select from from_due) or exists (select from from_slab) or exists (select from from_parked)
    or exists (select from from_paused) or exists (select from from_suspects);
  return taken;
end $$;

-- Whether an execution is in a place from which `take_waiting` could take it.
create or replace function hourbell.is_waiting(p_id bigint) returns boolean
language plpgsql as $$
begin
  return exists (
    select from (select e, e.id from hourbell.executions as e where id = p_id offset 0) as e
    where hourbell.is_due(e.e)
      or exists (select from hourbell.parked as p where p.id = e.id offset 0)
      or exists (select from hourbell.paused as h where h.id = e.id offset 0));
end $$;

-- Whether a worker has claimed an execution.
create or replace function hourbell.is_leased(p_id bigint) returns boolean
language plpgsql as $$
begin
  return exists (
    select from hourbell.leased as l where p_id = any (l.ids)
      and not exists (select from hourbell.outcomes as o where o.id = p_id offset 0));
end $$;

-- The argument p_write of a change.
create or replace function hourbell.write_of(p_write json) returns record
language plpgsql as $$
declare write record;
begin
  select * into write from json_to_record(p_write) as w(
    tenant int, actor text, operation text, key text, fingerprint text, answer text, unchanged text);
  return write;
end $$;

-- Stores the answer of a change, if it has a key. False: the key already has an answer.
create or replace function hourbell.store_answer(p_now timestamptz, p_write record) returns boolean
language plpgsql as $$
begin
  if p_write.key is null then return true; end if;
  insert into hourbell.idempotency (tenant, key, fingerprint, response, created_at)
  values (p_write.tenant, p_write.key, decode(p_write.fingerprint, 'hex'), p_write.answer::json, p_now)
  on conflict do nothing;
  return found;
end $$;

-- Corrects the stored answer when the outcome is known: nothing is stored if nothing was done.
create or replace function hourbell.correct_answer(p_write record, p_outcome text) returns void
language plpgsql as $$
begin
  if p_write.key is null or p_outcome = 'changed' then return; end if;
  if p_outcome = 'unchanged' then
    update hourbell.idempotency set response = p_write.unchanged::json where tenant = p_write.tenant
      and key = p_write.key;
  else
    delete from hourbell.idempotency where tenant = p_write.tenant and key = p_write.key;
  end if;
end $$;

-- Writes the audit row of a change.
create or replace function hourbell.note_change(
  p_now timestamptz, p_tenant int, p_job bigint, p_actor text, p_operation text, p_before json, p_after json
) returns void
language plpgsql as $$
begin
  insert into hourbell.audit (at, tenant, job, actor, operation, before, after)
  values (p_now, p_tenant, p_job, p_actor, p_operation, p_before, p_after);
end $$;
