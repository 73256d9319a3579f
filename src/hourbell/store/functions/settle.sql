-- Settling: a batch of outcomes leaves `leased`, if session and fence still match. Called by workers through
-- Dispatch.settle, and by awaiting.sql for executions that their targets have accepted. Locks the session (key share,
-- against the reaper), then the slabs, in the order of their fences: of two reports of an execution, the second sees
-- what the first has done.
-- An execution that ends gets a row in `outcomes` and stays in its slab, which is deleted when all have left it. One
-- that does not end (`settlements_unfinished`) is taken out of its slab.
-- Every outcome has an id, a fence, begun_ms (from the claim to the start of the handler) and took_ms (from there to
-- its end). Both are by the worker's monotonic clock; begun_ms is null if it is only known that the execution has just
-- ended. A plain success has nothing more. The others are named by their position in p_others, counted from 1, and
-- described by p_kinds … p_results:
-- p_kinds: hourbell.settlement_… in codes.sql.
-- p_delays: the seconds until a retry, or until a returned execution may start; for one that its target has accepted,
--   the seconds that the target has to report how it ended.
-- p_reasons: why it is dead; the kind of failure of one that is retried; what one that was returned waits for.
-- p_failures: the kind of failure of one that is dead.
-- p_results: what it returned; for one that its target has accepted, the digest of the token that the target was given.
-- Returns the ids that were refused: no longer leased by this session, or not under this fence. Their rows are
-- untouched. freed: whether other executions may be waiting for limits that were released. cancelled: those that were
-- reported as something else, and ended because their cancellation is requested.
create or replace function hourbell.settle(
  p_session bigint, p_token uuid, p_now timestamptz, p_ids bigint[], p_fences bigint[], p_begun_ms int[],
  p_took_ms int[], p_others int[], p_kinds smallint[], p_delays float8[], p_reasons text[], p_errors text[],
  p_results json[], p_failures text[], out refused bigint[], out freed boolean, out cancelled bigint[]
)
language plpgsql set plan = lookups_by_hash
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  kinds smallint[] := p_kinds;
  slabs hourbell.leased[];
  rows tid[];  -- of `slabs`
  unfinished constant boolean := kinds && hourbell.settlements_unfinished();
  ended bigint[];
  whole int[];  -- slabs of which all executions end here
  requeued bigint[];
  accepted bigint[];
  settled bigint[];
begin
  freed := false;
  perform from hourbell.sessions where id = p_session and token = p_token for key share;
  if not found then refused := p_ids; return; end if;
  select array_agg(l.slab), array_agg(l.row) into slabs, rows
  from (select distinct unnest(p_fences) as fence order by fence) as f
  cross join lateral (
    select l as slab, l.ctid as row from hourbell.leased as l where l.session = p_session and l.fence = f.fence
    for update) as l;
  if slabs is null then refused := p_ids; return; end if;

  -- An execution whose cancellation is requested and that has not ended by itself ends now.
  if unfinished and exists (select from hourbell.cancellations) then
    kinds := array(
      select case when kind = any (hourbell.settlements_unfinished()) and exists (
          select from hourbell.cancellations as c where c.id = p_ids[at] offset 0)
        then hourbell.settlement_cancelled() else kind end
      from unnest(p_others, kinds) with ordinality as o(at, kind, pos) order by pos);
  end if;

  if kinds && hourbell.settlements_returned() then
    requeued := hourbell.settle_returned(
      slabs, p_session, p_now, p_ids, p_fences, p_begun_ms, p_took_ms, p_others, kinds, p_delays, p_reasons, p_errors);
  end if;
  if hourbell.settlement_accepted() = any (kinds) then
    accepted := hourbell.move_to_awaiting(
      slabs, p_now, p_ids, p_fences, p_begun_ms, p_others, kinds, p_delays, p_results);
  end if;

  -- Only a repeated report names executions that have already ended. So the first try does not look for them: if there
  -- are any, the insert fails, and the second try leaves them out.
  for try in 1 .. 2 loop
    begin
      if try = 1 and p_others = '{}' and hourbell.are_whole(slabs, p_ids, p_fences) then
        perform hourbell.record_whole(slabs, p_session, p_begun_ms, p_took_ms, p_now);
        ended := p_ids; whole := array(select generate_series(1, cardinality(slabs)));
        exit;
      end if;
      with reported as (
        select o.*, coalesce(x.kind, hourbell.settlement_succeeded()) as kind,
          case x.kind when hourbell.settlement_cancelled() then 'cancelled' else x.reason end as reason, x.error,
            x.result,
          x.failure
        from unnest(p_ids, p_fences, p_begun_ms, p_took_ms) with ordinality as o(id, fence, begun_ms, took_ms, pos)
        left join unnest(p_others, kinds, p_reasons, p_errors, p_results, p_failures)
          as x(pos, kind, reason, error, result, failure)
          on x.pos = o.pos),
      -- Before anything is joined: otherwise each outcome may be compared with its whole slab.
      members as materialized (select * from hourbell.members(slabs)),
      taken as materialized (
        select o.id, o.fence, o.kind, o.reason, o.error, o.result, o.failure, h.version, h.slab, h.size,
          hourbell.started(h.claimed_at, o.begun_ms, o.took_ms, p_now) as started_at,
          hourbell.finished(h.claimed_at, o.begun_ms, o.took_ms, p_now) as finished_at
        from members as h join reported as o on o.id = h.id and o.fence = h.fence
        where o.kind = any (hourbell.settlements_ended())
          and (try = 1 or not exists (select from hourbell.outcomes as e where e.id = o.id offset 0))),
      recorded as (
        insert into hourbell.outcomes
          (id, fence, started_at, finished_at, recorded_at, session, version, fate, reason, error, result,
           failure_kind)
        select id, fence, started_at, finished_at, p_now, p_session, version, case kind
            when hourbell.settlement_succeeded() then hourbell.fate_succeeded()
            when hourbell.settlement_cancelled() then hourbell.fate_cancelled()
            else hourbell.fate_dead() end,
          reason, error, result, case when kind = any (hourbell.settlements_dead()) then failure end
        from taken)
      select array_agg(id), array(select slab from taken group by slab, size having count(*) = size)
      into ended, whole from taken;
      exit;
    exception when unique_violation then null;
    end;
  end loop;

  if ended is not null then
    perform hourbell.leave_quotas(ended);
    if kinds && hourbell.settlements_dead() then
      perform hourbell.write_dead_letters(
        array(select p_ids[at] from unnest(p_others, kinds) as o(at, kind)
              where kind = any (hourbell.settlements_dead()) and p_ids[at] = any (ended)),
        array(select p_ids[at] from unnest(p_others, kinds) as o(at, kind) where kind = hourbell.settlement_gone()));
    end if;
    if hourbell.settlement_cancelled() = any (kinds) then
      delete from hourbell.cancellations where id = any (array(
        select p_ids[at] from unnest(p_others, kinds) as o(at, kind)
        where kind = hourbell.settlement_cancelled() and p_ids[at] = any (ended)));
      if kinds <> p_kinds then
        cancelled := array(
          select p_ids[at] from unnest(p_others, kinds, p_kinds) as o(at, kind, reported)
          where kind <> reported and p_ids[at] = any (ended));
      end if;
    end if;
    if exists (select from unnest(slabs) as s where s.notifies) then perform hourbell.write_end_notices(ended); end if;
    if exists (select from unnest(slabs) as s where s.versions is not null) then
      freed := hourbell.close_runs(ended, p_now);
    end if;
  end if;
  if exists (select from unnest(slabs) as s where s.limited) then
    perform hourbell.release_limits(requeued, false, p_now);
    perform hourbell.release_limits(ended, true, p_now);
    freed := true;
  end if;

  settled := ended || requeued || accepted;
  delete from hourbell.leased where ctid = any (array(select rows[slab] from unnest(whole) as w(slab)));
  perform hourbell.shrink_slabs(rows, requeued || accepted);
  refused := case when cardinality(settled) = cardinality(p_ids) then '{}'
    else array(select unnest(p_ids) except select unnest(settled)) end;
end $$;

-- Settles what was reported and has not ended: executions that are retried, or returned by their worker. Their rows are
-- updated, and they wait in `due` again. The arguments are those of `settle`, which shrinks the slabs. Returns the ids.
create or replace function hourbell.settle_returned(
  p_slabs hourbell.leased[], p_session bigint, p_now timestamptz, p_ids bigint[], p_fences bigint[], p_begun_ms int[],
  p_took_ms int[], p_others int[], p_kinds smallint[], p_delays float8[], p_reasons text[], p_errors text[]
) returns bigint[]
language plpgsql as $$
#variable_conflict use_column
declare
  requeued bigint[];
  noting bigint[];  -- executions with notifications
  failed_starts timestamptz[];  -- of attempts that have failed and will be retried,
  failed_tenants int[];
  failed_targets int[];
  failed_ids bigint[];
begin
  with reported as (
    select o.*, x.kind, x.delay, x.reason, x.error
    from unnest(p_ids, p_fences, p_begun_ms, p_took_ms) with ordinality as o(id, fence, begun_ms, took_ms, pos)
    join unnest(p_others, p_kinds, p_delays, p_reasons, p_errors) as x(pos, kind, delay, reason, error) on x.pos = o.pos
    where x.kind = any (hourbell.settlements_returned())),
  members as materialized (select * from hourbell.members(p_slabs)),
  taken as materialized (
    select o.*, o.kind = hourbell.settlement_retry() as failed, o.kind <> hourbell.settlement_released() as begun,
      hourbell.started(h.claimed_at, o.begun_ms, o.took_ms, p_now) as started_at,
      hourbell.finished(h.claimed_at, o.begun_ms, o.took_ms, p_now) as finished_at
    from members as h join reported as o on o.id = h.id and o.fence = h.fence
    where not exists (select from hourbell.outcomes as e where e.id = o.id offset 0)),
  again as (
    update hourbell.executions as e
    set fence = t.fence,
        attempt = e.attempt + t.failed::int,
        crashes = case when t.failed or t.kind = hourbell.settlement_snoozed() then 0 else e.crashes end,
        start_by = case when not t.begun then e.start_by end,  -- it has started in time
        run_at = p_now + make_interval(secs => coalesce(t.delay, 0)),
        waits_for = case when not t.failed then t.reason end,
        first_started_at = case
          when t.begun then coalesce(e.first_started_at, t.started_at) else e.first_started_at end,
        history = case
          when t.failed then hourbell.add_attempt(
            e.history, p_session, e.attempt + 1, t.started_at, t.finished_at, t.fence, t.reason, t.error, null)
          else e.history end
    from taken as t
    where e.id = t.id and e.id = any (array(select id from taken))
    returning e.id, e.notifies & hourbell.event_failure() <> 0 and t.failed as notes, t.failed, t.started_at, e.tenant,
      e.target)
  select array_agg(id), array_agg(id) filter (where notes), array_agg(started_at) filter (where failed),
    array_agg(tenant) filter (where failed), array_agg(target) filter (where failed),
    array_agg(id) filter (where failed)
  into requeued, noting, failed_starts, failed_tenants, failed_targets, failed_ids from again;
  if failed_starts is not null then
    insert into hourbell.failed_attempts (at, started_at, tenant, target, id)
    select p_now, f.started_at, f.tenant, f.target, f.id
    from unnest(failed_starts, failed_tenants, failed_targets, failed_ids) as f(started_at, tenant, target, id);
  end if;
  perform hourbell.requeue(requeued);
  if noting is not null then perform hourbell.write_failure_notices(noting); end if;
  if 'unreadable' = any (p_reasons) then
    perform hourbell.note_failing(p_now, 'run', job, job, id, 'a worker cannot read it')
    from (
      select coalesce(e.job, e.id) as job, max(e.id) as id
      from unnest(p_others, p_reasons) as o(at, reason)
      cross join lateral (select id, job from hourbell.executions as e where e.id = p_ids[o.at] offset 0) as e
      where o.reason = 'unreadable' and e.id = any (requeued) group by 1) as unread;
  end if;
  if p_kinds && hourbell.settlements_rerun() or 'payload_mismatch' = any (p_reasons) then
    perform hourbell.count_reruns(
      array(select p_ids[at] from unnest(p_others, p_kinds, p_reasons) as o(at, kind, reason)
            where p_ids[at] = any (requeued) and (kind = hourbell.settlement_interrupted()
              or kind = hourbell.settlement_released() and reason = 'payload_mismatch')),
      array(select p_ids[at] from unnest(p_others, p_kinds) as o(at, kind)
            where kind = hourbell.settlement_snoozed() and p_ids[at] = any (requeued)));
  end if;
  return requeued;
end $$;

-- The executions of slabs, in their order, with the position of the slab in the array and its size.
create or replace function hourbell.members(
  p_slabs hourbell.leased[], out id bigint, out version int, out fence bigint, out claimed_at timestamptz, out slab int,
  out size int
) returns setof record
language sql immutable as $$
  select i.id, i.version, s.fence, s.claimed_at, s.pos::int, cardinality(s.ids)
  from unnest(p_slabs) with ordinality
    as s(session, fence, claimed_at, claim, alone, limited, notifies, ids, versions, pos)
  cross join lateral unnest(s.ids, s.versions) as i(id, version)
$$;

-- Whether a report names all executions of these slabs, and nothing else, in the order of the slabs. A worker whose
-- handlers do not wait reports most of its slabs like this.
create or replace function hourbell.are_whole(p_slabs hourbell.leased[], p_ids bigint[], p_fences bigint[])
returns boolean
language plpgsql stable as $$
declare
  slab hourbell.leased;
  before int := 0;  -- executions of the slabs before this one
  n int;
begin
  foreach slab in array p_slabs loop
    n := cardinality(slab.ids);
    if p_ids[before + 1:before + n] <> slab.ids or p_fences[before + 1:before + n] <> array_fill(slab.fence, array[n])
    then return false; end if;
    before := before + n;
  end loop;
  return before = cardinality(p_ids);
end $$;

-- Records that all executions of these slabs have succeeded; the times are in the order of the slabs. This takes two
-- thirds of the time that it takes to look for each reported execution in its slab.
create or replace function hourbell.record_whole(
  p_slabs hourbell.leased[], p_session bigint, p_begun_ms int[], p_took_ms int[], p_now timestamptz
) returns void
language plpgsql set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  insert into hourbell.outcomes (id, fence, started_at, finished_at, recorded_at, session, version, fate)
  select id, fence, hourbell.started(claimed_at, begun_ms, took_ms, p_now),
    hourbell.finished(claimed_at, begun_ms, took_ms, p_now), p_now, p_session, version, hourbell.fate_succeeded()
  from (
    select fence, claimed_at, unnest(ids) as id, unnest(versions) as version,
      unnest(p_begun_ms[upto - cardinality(ids) + 1:upto]) as begun_ms,
      unnest(p_took_ms[upto - cardinality(ids) + 1:upto]) as took_ms
    from (
      select fence, claimed_at, ids, versions, sum(cardinality(ids)) over (order by pos) as upto
      from unnest(p_slabs) with ordinality
        as s(session, fence, claimed_at, claim, alone, limited, notifies, ids, versions, pos)) as s) as i;
end $$;

-- Writes the dead letters of executions whose outcome has just been recorded. The jobs of those in p_gone are to be
-- paused: their target has answered that it is gone.
create or replace function hourbell.write_dead_letters(p_ids bigint[], p_gone bigint[]) returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
begin
  with dead as materialized (
    select e, e.id, e.job, e.tenant, o.recorded_at, o.fence, o.session, o.started_at, o.finished_at, o.reason, o.error,
      coalesce(o.failure_kind, o.reason) as failure, coalesce(o.version, e.version) as version
    from hourbell.executions as e join hourbell.outcomes as o on o.id = e.id
    where e.id = any (p_ids) and o.id = any (p_ids)),
  abandoned as (
    insert into hourbell.abandoned_jobs (job, version)
    select job, version from dead where id = any (p_gone) and job is not null)
  insert into hourbell.dead_letters (id, job, tenant, died_at, reason, error, execution)
  select id, job, tenant, recorded_at, reason, error,
    hourbell.dead_letter_of(e, session, fence, started_at, finished_at, failure, error, null)
  from dead;
end $$;

-- Executions that their targets have accepted move to a session that never ends and serves no queue
-- (`awaiting_session`): no worker has to hold them any more, and all else about them stays. Returns their ids; the
-- caller takes them out of their slabs. Arguments as in `settle`.
create or replace function hourbell.move_to_awaiting(
  p_slabs hourbell.leased[], p_now timestamptz, p_ids bigint[], p_fences bigint[], p_begun_ms int[], p_others int[],
  p_kinds smallint[], p_delays float8[], p_results json[]
) returns bigint[]
language plpgsql set plan = lookups_by_hash as $$
#variable_conflict use_column
declare accepted bigint[];
begin
  insert into hourbell.sessions (id, token, worker, queues, slots, started_at, renewed_at, expires_at)
  values (hourbell.awaiting_session(), hourbell.awaiting_token(), 'awaiting', '{}', 0, '-infinity', '-infinity',
    'infinity')
  on conflict do nothing;
  with reported as (
    select o.id, o.fence, o.begun_ms, x.delay, x.result
    from unnest(p_ids, p_fences, p_begun_ms) with ordinality as o(id, fence, begun_ms, pos)
    join unnest(p_others, p_kinds, p_delays, p_results) as x(pos, kind, delay, result) on x.pos = o.pos
    where x.kind = hourbell.settlement_accepted()),
  members as materialized (select * from hourbell.members(p_slabs)),
  moving as materialized (
    select o.*, s.claimed_at, s.claim, s.alone, s.limited, s.notifies, h.version
    from members as h join reported as o on o.id = h.id and o.fence = h.fence
    join unnest(p_slabs) with ordinality
      as s(session, fence, claimed_at, claim, alone, limited, notifies, ids, versions, pos) on s.pos = h.slab
    where not exists (select from hourbell.outcomes as e where e.id = o.id offset 0)),
  moved as (
    insert into hourbell.leased (session, fence, claimed_at, claim, alone, limited, notifies, ids, versions)
    select hourbell.awaiting_session(), fence, claimed_at, claim, alone, limited, notifies, array[id],
      case when version is not null then array[version] end
    from moving),
  noted as (
    insert into hourbell.awaiting (id, fence, until, begun_ms, token)
    select id, fence, p_now + make_interval(secs => delay), begun_ms, decode(result #>> '{}', 'hex') from moving)
  select array_agg(id) into accepted from moving;
  return accepted;
end $$;

-- Takes executions that have left without an outcome (p_left) out of slabs that the caller has locked, and deletes the
-- slabs of which nothing is left. Those that have ended are left in a slab until then: removing them one by one would
-- rewrite the slab up to a hundred times. The scan for what is left runs backwards, because workers finish roughly in
-- the order of the claim.
create or replace function hourbell.shrink_slabs(p_rows tid[], p_left bigint[]) returns void
language plpgsql set plan = lookups_one_by_one
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  if p_left <> '{}' then
    with changed as materialized (
      select l.ctid as row, k.ids, k.versions
      from hourbell.leased as l cross join lateral (
        select array_agg(i.id order by i.pos) as ids, array_agg(i.version order by i.pos) as versions
        from unnest(l.ids, l.versions) with ordinality as i(id, version, pos)
        where not i.id = any (p_left)
          and not exists (select from hourbell.outcomes as o where o.id = i.id offset 0)) as k
      where l.ctid = any (p_rows) and l.ids && p_left),
    emptied as (delete from hourbell.leased where ctid = any (array(select row from changed where ids is null)))
    update hourbell.leased as l
    set ids = c.ids, versions = case when l.versions is not null then c.versions end
    from changed as c where l.ctid = c.row and l.ctid = any (p_rows) and c.ids is not null;
  end if;
  delete from hourbell.leased where ctid = any (array(
    select l.ctid from hourbell.leased as l
    where l.ctid = any (p_rows) and not exists (
      select from generate_series(cardinality(l.ids), 1, -1) as k
      where not exists (select from hourbell.outcomes as o where o.id = l.ids[k] offset 0) offset 0)));
end $$;

-- Of refused outcomes, those that this session has already reported under the same fence: the answer was lost. The
-- session may be over by now. Kinds as in `settle`; a retry and a death are the same, a failure, and one interruption
-- or snooze too many has become one. Entries written by the reaper are not reported outcomes. Which session gave an
-- execution back is not stored: it is enough that no attempt ended under the fence.
create or replace function hourbell.already_settled(
  p_session bigint, p_token uuid, p_ids bigint[], p_fences bigint[], p_kinds smallint[]
) returns bigint[]
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  if not exists (select from hourbell.sessions where id = p_session and token = p_token)
    and not exists (select from hourbell.past_sessions where id = p_session and token = p_token)
  then return '{}'; end if;
  perform hourbell.confirm();
  return array(
    select o.id from unnest(p_ids, p_fences, p_kinds) as o(id, fence, kind)
    left join lateral (select fence, history from hourbell.executions as e where e.id = o.id offset 0) as e on true
    left join lateral (
      select fence, session, fate, reason, failure_kind from hourbell.outcomes as l
      where l.id = o.id offset 0) as l on true
    cross join lateral (
      select count(*) > 0 as ended, coalesce(bool_or((h ->> 'session')::bigint = p_session), false) as failed
      from jsonb_array_elements(coalesce(e.history, '[]')) as h
      where (h ->> 'fence')::bigint = o.fence) as h
    where case
      when o.kind = hourbell.settlement_succeeded() then
        l.fence = o.fence and l.session = p_session and l.fate = hourbell.fate_succeeded()
      when (o.kind = hourbell.settlement_released() or o.kind = any (hourbell.settlements_rerun()))
        and ((e.fence = o.fence and not h.ended)
          or (l.fence = o.fence and l.session = p_session and l.fate = hourbell.fate_cancelled())) then true
      when o.kind = hourbell.settlement_released() then false
      else h.failed or (l.fence = o.fence and l.session = p_session and (l.fate = hourbell.fate_cancelled()
        or (l.fate = hourbell.fate_dead()
          and (l.reason not in ('lost', 'crashed') or l.failure_kind is not null)))) end);
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

-- The unique key that a job has, as its dead letter stores it; null: it has none. A row of `unique_keys` does not
-- outlive its job for long.
create or replace function hourbell.key_of(p_job bigint) returns jsonb
language sql stable
return (
  select jsonb_build_object('space', k.space, 'key', k.key) from hourbell.unique_keys as k where k.job = p_job limit 1);

-- An execution whose last attempt has failed, as a dead letter stores it: with every attempt, and the job as it was.
create or replace function hourbell.dead_letter_of(
  e hourbell.executions, p_session bigint, p_fence bigint, p_started timestamptz, p_finished timestamptz, p_reason text,
  p_error text, p_taken_from bigint
) returns jsonb
language sql stable
return to_jsonb(e) || jsonb_build_object(
  'attempt', e.attempt + 1, 'fence', p_fence, 'job_spec', hourbell.job_spec(e.job, e.spec),
  'unique_key', case when e.job is null then hourbell.key_of(e.id) end,
  'history', hourbell.add_attempt(
    e.history, p_session, e.attempt + 1, p_started, p_finished, p_fence, p_reason, p_error, p_taken_from));
