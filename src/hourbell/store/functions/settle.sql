-- Settling: a batch of outcomes leaves `leased`, if session and fence still match. Called by workers through
-- Dispatch.settle, and by awaiting.sql for executions that their targets have accepted. Locks the session (key share,
-- against the reaper), then the rows of the executions.
-- Every outcome has an id, a fence, begun_ms (from the claim to the start of the handler) and took_ms (from there to
-- its end). Both are by the worker's monotonic clock; begun_ms is null if it is only known that the execution has just
-- ended. A plain success has nothing more. The others are named by their position in p_others, counted from 1, and
-- described by p_kinds … p_results:
-- p_kinds: hourbell.outcome_… in codes.sql.
-- p_delays: the seconds until a retry, or until a released execution may start; for one that its target has accepted,
--   the seconds that the target has to report how it ended.
-- p_reasons: why it is dead; the kind of failure of one that is retried; what one that was given back waits for.
-- p_failures: the kind of failure of one that is dead.
-- p_results: what it returned; for one that its target has accepted, the digest of the token that the target was given.
-- Returns the ids that were refused: no longer leased by this session, or not under this fence. Their rows are
-- untouched. freed: whether other executions may be waiting for limits that were released.
create or replace function hourbell.settle(
  p_session bigint, p_token uuid, p_now timestamptz, p_ids bigint[], p_fences bigint[], p_begun_ms int[],
  p_took_ms int[], p_others int[], p_kinds smallint[], p_delays float8[], p_reasons text[], p_errors text[],
  p_results json[], p_failures text[], out refused bigint[], out freed boolean
)
language plpgsql set plan = lookups_by_hash as $$
#variable_conflict use_column
declare
  kinds smallint[] := p_kinds;
  fences constant bigint[] := array(select distinct unnest(p_fences));
  ending bigint[] := p_ids;
  ended bigint[];
  requeued bigint[];
  jobs bigint[];
  accepted bigint[];
  granted bigint[];
  noting bigint[];  -- executions with notifications,
  notifies smallint[];  -- and for which events
  settled bigint[];
  emptied tid[];  -- slabs of which all executions end here
begin
  freed := false;
  perform from hourbell.sessions where id = p_session and token = p_token for key share;
  if not found then refused := p_ids; return; end if;

  -- An execution whose cancellation is requested and that has not ended by itself ends now.
  if kinds && hourbell.outcomes_unfinished() and exists (select from hourbell.cancellations) then
    kinds := array(
      select case when kind = any (hourbell.outcomes_unfinished()) and exists (
          select from hourbell.cancellations as c where c.id = p_ids[at] offset 0)
        then hourbell.outcome_cancelled() else kind end
      from unnest(p_others, kinds) with ordinality as o(at, kind, pos) order by pos);
  end if;

  -- Tables are accessed by arrays of keys, and only the rows found are joined: the plan cannot become a scan.
  -- The row of an execution decides between two reports of it: the first one deletes it, or raises its fence.
  if kinds && hourbell.outcomes_returned() then
    with outcomes as (
      select o.*, x.kind, x.delay, x.reason, x.error
      from unnest(p_ids, p_fences, p_begun_ms, p_took_ms) with ordinality as o(id, fence, begun_ms, took_ms, pos)
      join unnest(p_others, kinds, p_delays, p_reasons, p_errors) as x(pos, kind, delay, reason, error) on x.pos = o.pos
      where x.kind = any (hourbell.outcomes_returned())),
    members as materialized (  -- before anything is joined: otherwise each outcome may be compared with its whole slab
      select l.fence, l.claimed_at, i.id from unnest(fences) as f(fence)
      cross join lateral (select * from hourbell.leased as l
        where l.session = p_session and l.fence = f.fence offset 0) as l
      cross join lateral unnest(l.ids) as i(id)),
    taken as materialized (
      select o.*, o.kind = hourbell.outcome_retry() as failed,
        hourbell.started(h.claimed_at, o.begun_ms, o.took_ms, p_now) as started_at,
        hourbell.finished(h.claimed_at, o.begun_ms, o.took_ms, p_now) as finished_at
      from members as h join outcomes as o on o.id = h.id and o.fence = h.fence),
    again as (
      update hourbell.executions as e
      set fence = t.fence,
          attempt = e.attempt + t.failed::int,
          crashes = case when t.failed then 0 else e.crashes end,
          run_at = p_now + make_interval(secs => coalesce(t.delay, 0)),
          waits_for = case when not t.failed then t.reason end,
          first_started_at = case
            when t.failed then coalesce(e.first_started_at, t.started_at) else e.first_started_at end,
          history = case
            when t.failed then hourbell.add_attempt(
              e.history, p_session, e.attempt + 1, t.started_at, t.finished_at, t.fence, t.reason, t.error, null)
            else e.history end
      from taken as t
      where e.id = t.id and e.id = any (array(select id from taken)) and e.fence < t.fence
      returning e.id, e.notifies & hourbell.event_failure() <> 0 and t.failed as notes)
    select array_agg(id), array_agg(id) filter (where notes) into requeued, noting from again;
    perform hourbell.requeue(requeued);
    if noting is not null then perform hourbell.note_failures(noting); end if;
  end if;
  if hourbell.outcome_accepted() = any (kinds) then
    accepted := hourbell.move_to_awaiting(
      p_session, p_now, p_ids, p_fences, p_begun_ms, p_others, kinds, p_delays, p_results);
  end if;
  if kinds && hourbell.outcomes_unfinished() then
    ending := array(
      select o.id from unnest(p_ids) with ordinality as o(id, pos)
      left join unnest(p_others, kinds) as x(pos, kind) on x.pos = o.pos
      where coalesce(x.kind, hourbell.outcome_succeeded()) = any (hourbell.outcomes_ended()));
  end if;

  if cardinality(ending) > 0 then
    with outcomes as (
      select o.*, coalesce(x.kind, hourbell.outcome_succeeded()) as kind,
        case x.kind when hourbell.outcome_cancelled() then 'cancelled' else x.reason end as reason, x.error, x.result,
        x.failure
      from unnest(p_ids, p_fences, p_begun_ms, p_took_ms) with ordinality as o(id, fence, begun_ms, took_ms, pos)
      left join unnest(p_others, kinds, p_reasons, p_errors, p_results, p_failures)
        as x(pos, kind, reason, error, result, failure)
        on x.pos = o.pos),
    members as materialized (
      select l.fence, l.claimed_at, l.slab, cardinality(l.ids) as size, i.id, i.version from unnest(fences) as f(fence)
      cross join lateral (
        select *, ctid as slab from hourbell.leased as l
        where l.session = p_session and l.fence = f.fence offset 0) as l
      cross join lateral unnest(l.ids, l.versions) as i(id, version)),
    taken as materialized (
      select o.id, o.fence, o.kind, o.reason, o.error, o.result, o.failure, h.version as ran_version, h.slab, h.size,
        hourbell.started(h.claimed_at, o.begun_ms, o.took_ms, p_now) as started_at,
        hourbell.finished(h.claimed_at, o.begun_ms, o.took_ms, p_now) as finished_at
      from members as h join outcomes as o on o.id = h.id and o.fence = h.fence
      where o.kind = any (hourbell.outcomes_ended())),
    gone as (
      delete from hourbell.executions as e using taken as t
      where e.id = t.id and e.id = any (array(select id from taken)) and e.fence < t.fence
      returning e.id, e.job, e.occurrence, e.tenant, e.attempt, e.origin, e.first_started_at, e.queue, e.priority,
        e.spec, e.history, e.overlap, e.notifies, coalesce(t.ran_version, e.version) as ran_version,
        t.fence, t.kind, t.reason, t.error, t.result, t.failure, t.started_at, t.finished_at, t.slab, t.size,
        case when t.kind = any (hourbell.outcomes_dead()) then hourbell.dead_letter_of(
          e, p_session, t.fence, t.started_at, t.finished_at, coalesce(t.failure, t.reason), t.error, null)
        end as letter),
    letters as (
      insert into hourbell.dead_letters (id, job, tenant, died_at, reason, error, execution)
      select id, job, tenant, p_now, reason, error, letter from gone where kind = any (hourbell.outcomes_dead())),
    abandoned as (
      insert into hourbell.abandoned_jobs (job, version)
      select job, ran_version from gone where kind = hourbell.outcome_gone() and job is not null),
    recorded as (
      insert into hourbell.ledger
        (id, job, fence, scheduled_for, started_at, finished_at, recorded_at, tenant, version, attempt, lateness_ms,
         session, queue, priority, origin, status, reason, error, result, spec, history, failure_kind)
      select id, coalesce(job, id), fence, occurrence, started_at, finished_at, p_now, tenant, ran_version, attempt + 1,
        hourbell.lateness_ms(origin, id, occurrence, coalesce(first_started_at, started_at)), p_session, queue,
        priority, origin, case kind
          when hourbell.outcome_succeeded() then hourbell.fate_succeeded()
          when hourbell.outcome_cancelled() then hourbell.fate_cancelled()
          else hourbell.fate_dead() end,
        reason, error, result, spec, history, case when kind = any (hourbell.outcomes_dead()) then failure end
      from gone)
    select array_agg(id), array_agg(id) filter (where kind = hourbell.outcome_cancelled()),
      array_agg(job) filter (where overlap <> hourbell.overlap_allow()),
      array_agg(id) filter (where gone.notifies <> 0), array_agg(gone.notifies) filter (where gone.notifies <> 0),
      array(select slab from gone group by slab, size having count(*) = size)
    into ended, granted, jobs, noting, notifies, emptied from gone;
    if noting is not null then perform hourbell.note_ends(noting, notifies, p_now); end if;
    if jobs is not null then perform hourbell.wake_jobs(jobs, p_now); freed := true; end if;
    if granted is not null then delete from hourbell.cancellations where id = any (granted); end if;
  end if;

  settled := ended || requeued || accepted;
  -- In a statement of its own, which sees what the gate has counted until the executions were ours (`recount_running`).
  if exists (
      select from unnest(fences) as f(fence) cross join lateral (
        select from hourbell.leased as l where l.session = p_session and l.fence = f.fence
          and l.limited offset 0) as l) then
    perform hourbell.release_limits(requeued, false, p_now);
    perform hourbell.release_limits(ended, true, p_now);
    freed := true;
  end if;
  delete from hourbell.leased where ctid = any (emptied);
  perform hourbell.drop_slabs(p_session, fences);
  refused := case when cardinality(settled) = cardinality(p_ids) then '{}'
    else array(select unnest(p_ids) except select unnest(settled)) end;
end $$;

-- Executions that their targets have accepted move to a session that never ends and serves no queue
-- (`awaiting_session`): no worker has to hold them any more, and all else about them stays. Returns their ids.
-- Arguments as in `settle`.
create or replace function hourbell.move_to_awaiting(
  p_session bigint, p_now timestamptz, p_ids bigint[], p_fences bigint[], p_begun_ms int[], p_others int[],
  p_kinds smallint[], p_delays float8[], p_results json[]
) returns bigint[]
language plpgsql as $$
#variable_conflict use_column
declare accepted bigint[];
begin
  insert into hourbell.sessions (id, token, worker, queues, slots, started_at, renewed_at, expires_at)
  values (hourbell.awaiting_session(), hourbell.awaiting_token(), 'awaiting', '{}', 0, '-infinity', '-infinity',
    'infinity')
  on conflict do nothing;
  -- Their rows are locked first, so that what the gate counts of them is seen (`recount_running`).
  perform from hourbell.executions where id = any (p_ids) for no key update;
  -- And their slabs, which are rewritten: another report may have just rewritten one, and the next statement sees that.
  perform from hourbell.leased where session = p_session and fence = any (p_fences) order by fence for update;
  with outcomes as materialized (
    select o.*, x.delay, x.result
    from unnest(p_ids, p_fences, p_begun_ms) with ordinality as o(id, fence, begun_ms, pos)
    join unnest(p_others, p_kinds, p_delays, p_results) as x(pos, kind, delay, result) on x.pos = o.pos
    where x.kind = hourbell.outcome_accepted()),
  living as materialized (
    select e.id, e.fence from hourbell.executions as e where e.id = any (array(select id from outcomes))),
  members as materialized (
    select l.slab, l.fence, l.claimed_at, l.claim, l.alone, l.limited, i.id, i.version
    from (select distinct fence from outcomes) as f cross join lateral (
      select *, ctid as slab from hourbell.leased as l where l.session = p_session and l.fence = f.fence offset 0) as l
    cross join lateral unnest(l.ids, l.versions) as i(id, version)),
  moving as materialized (
    select o.*, h.slab, h.claimed_at, h.claim, h.alone, h.limited, h.version
    from members as h join outcomes as o on o.id = h.id and o.fence = h.fence
    join living as e on e.id = o.id and e.fence < o.fence),
  moved as (
    insert into hourbell.leased (session, fence, claimed_at, claim, alone, limited, ids, versions)
    select hourbell.awaiting_session(), fence, claimed_at, claim, alone, limited, array[id],
      case when version is not null then array[version] end
    from moving),
  emptied as (
    delete from hourbell.leased as l where l.ctid = any (array(select slab from moving))
      and l.ids <@ array(select id from moving)),
  left_behind as (
    update hourbell.leased as l
    set ids = array(
          select i.id from unnest(l.ids) with ordinality as i(id, pos)
          where not i.id = any (array(select id from moving)) order by pos),
        versions = case when l.versions is not null then array(
          select i.version from unnest(l.ids, l.versions) with ordinality as i(id, version, pos)
          where not i.id = any (array(select id from moving)) order by pos) end
    where l.ctid = any (array(select slab from moving)) and not l.ids <@ array(select id from moving)),
  noted as (
    insert into hourbell.awaiting (id, fence, until, begun_ms, token)
    select id, fence, p_now + make_interval(secs => delay), begun_ms, decode(result #>> '{}', 'hex') from moving)
  select array_agg(id) into accepted from moving;
  return accepted;
end $$;

-- Deletes the slabs of a session that nothing is left of; p_fences: only these, null: all. What is left is looked for
-- from the end of a slab: a worker mostly ends what it was given first. Two reports of the same moment may each miss
-- what the other took out: such a slab is deleted by the next heartbeat.
create or replace function hourbell.drop_slabs(p_session bigint, p_fences bigint[]) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  delete from hourbell.leased where ctid = any (array(
    select l.slab
    from unnest(coalesce(
      p_fences, array(select distinct fence from hourbell.leased where session = p_session))) as f(fence)
    cross join lateral (
      select *, ctid as slab from hourbell.leased as l where l.session = p_session and l.fence = f.fence offset 0) as l
    where not exists (
      select from generate_series(cardinality(l.ids), 1, -1) as k cross join lateral (
        select from hourbell.executions as e where e.id = l.ids[k] and e.fence < l.fence offset 0) as e offset 0)));
end $$;

-- Of refused outcomes, those that this session has already reported under the same fence: the answer was lost. The
-- session may be over by now. Kinds as in `settle`; a retry and a death are the same, a failure. Entries written by the
-- reaper are not reported outcomes. Which session gave an execution back is not stored: it is enough that no attempt
-- ended under the fence.
create or replace function hourbell.already_settled(
  p_session bigint, p_token uuid, p_ids bigint[], p_fences bigint[], p_kinds smallint[]
) returns bigint[]
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  if not exists (select from hourbell.sessions where id = p_session and token = p_token)
    and not exists (select from hourbell.past_sessions where id = p_session and token = p_token)
  then return '{}'; end if;
  return array(
    select o.id from unnest(p_ids, p_fences, p_kinds) as o(id, fence, kind)
    left join lateral (select fence, history from hourbell.executions as e where e.id = o.id offset 0) as e on true
    left join lateral (
      select fence, session, status, reason, history from hourbell.ledger where id = o.id and job <> id
      union all
      select fence, session, status, reason, history from hourbell.ledger where id = any (array[o.id]) and job = id
      limit 1) as l on true
    cross join lateral (
      select count(*) > 0 as ended, coalesce(bool_or((h ->> 'session')::bigint = p_session), false) as failed
      from jsonb_array_elements(coalesce(e.history, l.history, '[]')) as h
      where (h ->> 'fence')::bigint = o.fence) as h
    where case o.kind
      when hourbell.outcome_succeeded() then
        l.fence = o.fence and l.session = p_session and l.status = hourbell.fate_succeeded()
      when hourbell.outcome_released() then (e.fence = o.fence and not h.ended)
        or (l.fence = o.fence and l.session = p_session and l.status = hourbell.fate_cancelled())
      else h.failed or (l.fence = o.fence and l.session = p_session and (l.status = hourbell.fate_cancelled()
        or (l.status = hourbell.fate_dead() and l.reason not in ('lost', 'crashed')))) end);
end $$;

-- A moment some milliseconds later.
create or replace function hourbell.plus_ms(p_at timestamptz, p_ms int) returns timestamptz
language sql stable
return p_at + make_interval(secs => p_ms / 1000.0::float8);

-- When an outcome started and when it ended, from what its worker reports; never before the claim.
create or replace function hourbell.started(p_claimed timestamptz, p_begun_ms int, p_took_ms int, p_now timestamptz)
returns timestamptz language sql stable
return case when p_begun_ms is null then greatest(p_claimed, hourbell.plus_ms(p_now, -p_took_ms))
  else hourbell.plus_ms(p_claimed, p_begun_ms) end;

create or replace function hourbell.finished(p_claimed timestamptz, p_begun_ms int, p_took_ms int, p_now timestamptz)
returns timestamptz language sql stable
return case when p_begun_ms is null then greatest(p_claimed, p_now)
  else hourbell.plus_ms(p_claimed, p_begun_ms + p_took_ms) end;

-- How late the first attempt started: after the nominal time or, for a backfill, after the request, whose time is in
-- its id.
create or replace function hourbell.lateness_ms(
  p_origin smallint, p_id bigint, p_occurrence timestamptz, p_started timestamptz
) returns bigint
language sql immutable
return (date_part('epoch', p_started - case p_origin
  when hourbell.origin_backfill() then to_timestamp(((p_id >> 22) + 1704067200000) / 1000.0::float8)
  else p_occurrence end) * 1000)::bigint;

-- Adds an ended attempt to the history of an execution: one object per attempt. p_session: the session that settled it.
-- Null: no session did; the attempt was taken from the session p_taken_from, because its worker was lost or the total
-- deadline passed.
create or replace function hourbell.add_attempt(
  p_history jsonb, p_session bigint, p_attempt int, p_started timestamptz, p_finished timestamptz, p_fence bigint,
  p_reason text, p_error text, p_taken_from bigint
) returns jsonb
language sql immutable
return coalesce(p_history, '[]') || jsonb_build_array(jsonb_build_object(
  'attempt', p_attempt, 'started_at', p_started, 'finished_at', p_finished, 'fence', p_fence, 'reason', p_reason,
  'error', p_error, 'session', p_session, 'taken_from', p_taken_from));

-- The spec that an execution runs by: its own, or its job's.
create or replace function hourbell.job_spec(p_job bigint, p_own text) returns text
language sql stable
return coalesce(p_own, (select j.spec from hourbell.jobs as j where j.id = p_job));

-- An execution whose last attempt has failed, as a dead letter stores it: with every attempt, and the job as it was.
create or replace function hourbell.dead_letter_of(
  e hourbell.executions, p_session bigint, p_fence bigint, p_started timestamptz, p_finished timestamptz, p_reason text,
  p_error text, p_taken_from bigint
) returns jsonb
language sql stable
return to_jsonb(e) || jsonb_build_object(
  'attempt', e.attempt + 1, 'fence', p_fence, 'job_spec', hourbell.job_spec(e.job, e.spec),
  'history', hourbell.add_attempt(
    e.history, p_session, e.attempt + 1, p_started, p_finished, p_fence, p_reason, p_error, p_taken_from));
