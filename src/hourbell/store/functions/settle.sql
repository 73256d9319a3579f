-- Settling: a batch of outcomes leaves `leased`, if session and fence still match.
-- Every outcome has an id, a fence, begun_ms (from the claim to the start of the handler) and took_ms (from there to
-- its end). Both are by the worker's monotonic clock; begun_ms is null if it is only known that the execution has just
-- ended. A plain success has nothing more. The others are named by their position in p_others, counted from 1, and
-- described by p_kinds … p_results:
-- kinds: 0 succeeded, 1 failed and to be retried after p_delays seconds, 2 dead, 3 cancelled, 4 given back unstarted,
-- to wait for p_reasons if given, 5 accepted by its target, which has p_delays seconds to report how it ended, with a
-- token whose digest is in p_results, 6 dead, and its job is to be paused.
-- p_reasons: why it is dead, or the kind of failure of one that is retried. p_failures: the kind of failure of one that
-- is dead.
-- Returns the ids that were refused: no longer held, or not under this fence. Their rows are untouched. freed: whether
-- other executions may be waiting for limits that were released.
create or replace function hourbell.settle(
  p_session bigint, p_token uuid, p_now timestamptz, p_ids bigint[], p_fences bigint[], p_begun_ms int[], p_took_ms int[],
  p_others int[], p_kinds smallint[], p_delays float8[], p_reasons text[], p_errors text[], p_results json[], p_failures text[],
  out refused bigint[], out freed boolean
)
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
  kinds smallint[] := p_kinds;
  ending bigint[] := p_ids;
  settled bigint[];
  requeued bigint[];
  jobs bigint[];
  accepted bigint[];
  granted bigint[];
  holding bigint[];
  noting bigint[];  -- executions with notifications,
  notifies smallint[];  -- and for which events
begin
  freed := false;
  perform from hourbell.sessions where id = p_session and token = p_token for key share;
  if not found then refused := p_ids; return; end if;

  -- An execution whose cancellation is requested and that has not ended by itself ends now.
  if kinds && '{1,4,5}' and exists (select from hourbell.cancellations) then
    kinds := array(
      select case when kind in (1, 4, 5) and exists (
          select from hourbell.cancellations as c where c.id = p_ids[at] offset 0) then 3 else kind end
      from unnest(p_others, kinds) with ordinality as o(at, kind, pos) order by pos);
  end if;

  -- Tables are accessed by arrays of keys, and only the rows found are joined: the plan cannot become a scan.
  if kinds && '{1,4}' then
    with outcomes as (
      select o.*, x.kind, x.delay, x.reason, x.error
      from unnest(p_ids, p_fences, p_begun_ms, p_took_ms) with ordinality as o(id, fence, begun_ms, took_ms, pos)
      join unnest(p_others, kinds, p_delays, p_reasons, p_errors) as x(pos, kind, delay, reason, error) on x.pos = o.pos
      where x.kind in (1, 4)),
    taken as (
      delete from hourbell.leased as l using outcomes as o
      where l.session = p_session and l.id = any (p_ids) and o.id = l.id and o.fence = l.fence
      returning o.*, l.held, hourbell.started(l.claimed_at, o.begun_ms, o.took_ms, p_now) as started_at,
        hourbell.finished(l.claimed_at, o.begun_ms, o.took_ms, p_now) as finished_at),
    again as (
      update hourbell.executions as e
      set fence = t.fence,
          attempt = e.attempt + (t.kind = 1)::int,
          crashes = case when t.kind = 1 then 0 else e.crashes end,
          run_at = p_now + make_interval(secs => coalesce(t.delay, 0)),
          waits_for = case when t.kind = 4 then t.reason end,
          first_started_at = case when t.kind = 1 then coalesce(e.first_started_at, t.started_at) else e.first_started_at end,
          history = case when t.kind = 1 then hourbell.add_attempt(
            e.history, p_session, e.attempt + 1, t.started_at, t.finished_at, t.fence, t.reason, t.error, null) else e.history end
      from taken as t
      where e.id = t.id and e.id = any (array(select id from taken))
      returning e.id, e.notifies & 2 <> 0 and t.kind = 1 as notes)
    select array_agg(id), array_agg(id) filter (where held), (select array_agg(id) from again where notes)
    into requeued, holding, noting from taken;
    perform hourbell.requeue(requeued);
    if noting is not null then perform hourbell.note_failures(noting); end if;
    if holding is not null then perform hourbell.let_go(holding, false, p_now); freed := true; end if;
  end if;
  if kinds && '{5}' then
    -- Moved to a session that never ends and serves no queue: no worker has to hold them any more, and all else about
    -- them stays.
    insert into hourbell.sessions (id, token, worker, queues, slots, started_at, renewed_at, expires_at)
    values (0, '00000000-0000-0000-0000-000000000000', 'awaiting', '{}', 0, '-infinity', '-infinity', 'infinity')
    on conflict do nothing;
    with outcomes as (
      select o.*, x.delay, x.result
      from unnest(p_ids, p_fences, p_begun_ms) with ordinality as o(id, fence, begun_ms, pos)
      join unnest(p_others, kinds, p_delays, p_results) as x(pos, kind, delay, result) on x.pos = o.pos
      where x.kind = 5),
    moved as (
      update hourbell.leased as l set session = 0 from outcomes as o
      where l.session = p_session and l.id = any (p_ids) and o.id = l.id and o.fence = l.fence
      returning o.*),
    noted as (
      insert into hourbell.awaiting (id, fence, until, begun_ms, token)
      select id, fence, p_now + make_interval(secs => delay), begun_ms, decode(result #>> '{}', 'hex') from moved)
    select array_agg(id) into accepted from moved;
  end if;
  if kinds && '{1,4,5}' then
    ending := array(
      select o.id from unnest(p_ids) with ordinality as o(id, pos)
      left join unnest(p_others, kinds) as x(pos, kind) on x.pos = o.pos where coalesce(x.kind, 0) in (0, 2, 3, 6));
  end if;

  if cardinality(ending) > 0 then
    with outcomes as (
      select o.*, coalesce(x.kind, 0) as kind, case x.kind when 3 then 'cancelled' else x.reason end as reason, x.error,
        x.result, x.failure
      from unnest(p_ids, p_fences, p_begun_ms, p_took_ms) with ordinality as o(id, fence, begun_ms, took_ms, pos)
      left join unnest(p_others, kinds, p_reasons, p_errors, p_results, p_failures)
        as x(pos, kind, reason, error, result, failure)
        on x.pos = o.pos),
    taken as (
      delete from hourbell.leased as l using outcomes as o
      where l.session = p_session and l.id = any (ending) and o.id = l.id and o.fence = l.fence
      returning o.id, o.fence, o.kind, o.reason, o.error, o.result, o.failure, l.held, l.version as ran_version,
        hourbell.started(l.claimed_at, o.begun_ms, o.took_ms, p_now) as started_at,
        hourbell.finished(l.claimed_at, o.begun_ms, o.took_ms, p_now) as finished_at),
    ended as (
      delete from hourbell.executions where id = any (array(select id from taken)) returning *),
    letters as (
      insert into hourbell.dead_letters (id, job, tenant, died_at, reason, error, execution)
      select e.id, e.job, e.tenant, p_now, t.reason, t.error,
        hourbell.letter(
          e, p_session, t.fence, t.started_at, t.finished_at, coalesce(t.failure, t.reason), t.error, null)
      from ended as e join taken as t using (id) where t.kind in (2, 6)),
    abandoned as (
      insert into hourbell.gone (job, version)
      select e.job, t.ran_version from ended as e join taken as t using (id) where t.kind = 6 and e.job is not null),
    recorded as (
      insert into hourbell.ledger
        (id, job, fence, scheduled_for, started_at, finished_at, recorded_at, tenant, version, attempt, lateness_ms, session,
         queue, priority, origin, status, reason, error, result, spec, history, failure_kind)
      select e.id, coalesce(e.job, e.id), t.fence, e.occurrence, t.started_at, t.finished_at, p_now, e.tenant, t.ran_version,
        e.attempt + 1, hourbell.lateness_ms(
          e.origin, e.id, e.occurrence, coalesce(e.first_started_at, t.started_at)), p_session, e.queue,
        e.priority, e.origin, case t.kind when 0 then 0 when 3 then 2 else 1 end, t.reason, t.error, t.result, e.spec, e.history,
        case when t.kind in (2, 6) then t.failure end
      from ended as e join taken as t using (id))
    select t.*, e.* into settled, granted, holding, jobs, noting, notifies
    from (select array_agg(id), array_agg(id) filter (where kind = 3), array_agg(id) filter (where held) from taken) as t,
      (select array_agg(job) filter (where overlap > 0), array_agg(id) filter (where notifies <> 0),
         array_agg(notifies) filter (where notifies <> 0) from ended) as e;
    if noting is not null then perform hourbell.note_ends(noting, notifies, p_now); end if;
    if jobs is not null then perform hourbell.wake_jobs(jobs, p_now); freed := true; end if;
    if holding is not null then perform hourbell.let_go(holding, true, p_now); freed := true; end if;
    if granted is not null then delete from hourbell.cancellations where id = any (granted); end if;
  end if;

  settled := settled || requeued || accepted;
  refused := case when cardinality(settled) = cardinality(p_ids) then '{}'
    else array(select unnest(p_ids) except select unnest(settled)) end;
end $$;

-- Of refused outcomes, those that this session has already reported under the same fence: the answer was lost. The
-- session may be over by now. Kinds as above; 1 and 2 are the same, a failure. Entries written by the reaper are not
-- reported outcomes. Which session gave an execution back is not stored: it is enough that no attempt ended under the
-- fence.
create or replace function hourbell.brought_before(
  p_session bigint, p_token uuid, p_ids bigint[], p_fences bigint[], p_kinds smallint[]
) returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
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
      when 0 then l.fence = o.fence and l.session = p_session and l.status = 0
      when 4 then (e.fence = o.fence and not h.ended)
        or (l.fence = o.fence and l.session = p_session and l.status = 2)
      else h.failed or (l.fence = o.fence and l.session = p_session
        and (l.status = 2 or (l.status = 1 and l.reason not in ('lost', 'crashed')))) end);
end $$;

create or replace function hourbell.later(p_at timestamptz, p_ms int) returns timestamptz
language sql stable
return p_at + make_interval(secs => p_ms / 1000.0::float8);

-- When an outcome started and when it ended, from what its worker reports; never before the claim.
create or replace function hourbell.started(p_claimed timestamptz, p_begun_ms int, p_took_ms int, p_now timestamptz)
returns timestamptz language sql stable
return case when p_begun_ms is null then greatest(p_claimed, hourbell.later(p_now, -p_took_ms))
  else hourbell.later(p_claimed, p_begun_ms) end;

create or replace function hourbell.finished(p_claimed timestamptz, p_begun_ms int, p_took_ms int, p_now timestamptz)
returns timestamptz language sql stable
return case when p_begun_ms is null then greatest(p_claimed, p_now)
  else hourbell.later(p_claimed, p_begun_ms + p_took_ms) end;

-- How late the first attempt started: after the nominal time or, for a backfill, after the request, whose time is in
-- its id.
create or replace function hourbell.lateness_ms(p_origin smallint, p_id bigint, p_occurrence timestamptz, p_started timestamptz)
returns bigint language sql immutable
return (extract(epoch from p_started - case p_origin
  when 2 then to_timestamp(((p_id >> 22) + 1704067200000) / 1000.0::float8) else p_occurrence end)::float8 * 1000)::bigint;

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
create or replace function hourbell.letter(
  e hourbell.executions, p_session bigint, p_fence bigint, p_started timestamptz, p_finished timestamptz, p_reason text,
  p_error text, p_taken_from bigint
) returns jsonb
language sql stable
return to_jsonb(e) || jsonb_build_object(
  'attempt', e.attempt + 1, 'fence', p_fence, 'job_spec', hourbell.job_spec(e.job, e.spec),
  'history', hourbell.add_attempt(
    e.history, p_session, e.attempt + 1, p_started, p_finished, p_fence, p_reason, p_error, p_taken_from));
