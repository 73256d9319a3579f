-- Settling: a batch of outcomes leaves `leased`, if session and fence still match.
-- Every outcome has an id, a fence, begun_ms (from the claim to the start of the handler) and took_ms (from there to its
-- end; both by the worker's monotonic clock). That is all there is to say about a plain success; the others are named by
-- their position in p_others, counted from 1, and p_kinds … p_results say about them:
-- kinds: 0 succeeded, 1 failed and to be retried after p_delays seconds, 2 dead, 3 cancelled, 4 given back unstarted.
-- Returns the ids that were refused: no longer held, or not under this fence. Their rows are untouched. And whether somebody
-- may be waiting for what was let go of.
create or replace function hourbell.settle(
  p_session bigint, p_token uuid, p_now timestamptz, p_ids bigint[], p_fences bigint[], p_begun_ms int[], p_took_ms int[],
  p_others int[], p_kinds smallint[], p_delays float8[], p_reasons text[], p_errors text[], p_results json[],
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
  granted bigint[];
  holding bigint[];
begin
  freed := false;
  perform from hourbell.sessions where id = p_session and token = p_token for key share;
  if not found then refused := p_ids; return; end if;

  -- Who was wished away and has not ended by himself does so now.
  if kinds && '{1,4}' and exists (select from hourbell.cancellations) then
    kinds := array(
      select case when kind in (1, 4) and exists (
          select from hourbell.cancellations as c where c.id = p_ids[at] offset 0) then 3 else kind end
      from unnest(p_others, kinds) with ordinality as o(at, kind, pos) order by pos);
  end if;

  -- Tables are reached by arrays of keys, and only what came out of them is joined: the plan cannot become a scan.
  if kinds && '{1,4}' then
    with outcomes as (
      select o.*, x.kind, x.delay, x.reason, x.error
      from unnest(p_ids, p_fences, p_begun_ms, p_took_ms) with ordinality as o(id, fence, begun_ms, took_ms, pos)
      join unnest(p_others, kinds, p_delays, p_reasons, p_errors) as x(pos, kind, delay, reason, error) on x.pos = o.pos
      where x.kind in (1, 4)),
    taken as (
      delete from hourbell.leased as l using outcomes as o
      where l.session = p_session and l.id = any (p_ids) and o.id = l.id and o.fence = l.fence
      returning o.*, l.held, hourbell.later(l.claimed_at, o.begun_ms) as started_at,
        hourbell.later(l.claimed_at, o.begun_ms + o.took_ms) as finished_at),
    again as (
      update hourbell.executions as e
      set fence = t.fence,
          attempt = e.attempt + (t.kind = 1)::int,
          crashes = case when t.kind = 1 then 0 else e.crashes end,
          run_at = p_now + case when t.kind = 1 then make_interval(secs => t.delay) else '0' end,
          first_started_at = case when t.kind = 1 then coalesce(e.first_started_at, t.started_at) else e.first_started_at end,
          history = case when t.kind = 1 then hourbell.add_attempt(
            e.history, e.attempt + 1, t.started_at, t.finished_at, t.fence, t.reason, t.error) else e.history end
      from taken as t
      where e.id = t.id and e.id = any (array(select id from taken)))
    select array_agg(id), array_agg(id) filter (where held) into requeued, holding from taken;
    perform hourbell.requeue(requeued);
    if holding is not null then perform hourbell.let_go(holding, false, p_now); freed := true; end if;
    ending := array(
      select o.id from unnest(p_ids) with ordinality as o(id, pos)
      left join unnest(p_others, kinds) as x(pos, kind) on x.pos = o.pos where coalesce(x.kind, 0) in (0, 2, 3));
  end if;

  if cardinality(ending) > 0 then
    with outcomes as (
      select o.*, coalesce(x.kind, 0) as kind, case x.kind when 3 then 'cancelled' else x.reason end as reason, x.error,
        x.result
      from unnest(p_ids, p_fences, p_begun_ms, p_took_ms) with ordinality as o(id, fence, begun_ms, took_ms, pos)
      left join unnest(p_others, kinds, p_reasons, p_errors, p_results) as x(pos, kind, reason, error, result)
        on x.pos = o.pos),
    taken as (
      delete from hourbell.leased as l using outcomes as o
      where l.session = p_session and l.id = any (ending) and o.id = l.id and o.fence = l.fence
      returning o.id, o.fence, o.kind, o.reason, o.error, o.result, l.held, l.version as ran_version,
        hourbell.later(l.claimed_at, o.begun_ms) as started_at,
        hourbell.later(l.claimed_at, o.begun_ms + o.took_ms) as finished_at),
    ended as (
      delete from hourbell.executions where id = any (array(select id from taken)) returning *),
    letters as (
      insert into hourbell.dead_letters (id, job, tenant, died_at, reason, error, execution)
      select e.id, e.job, e.tenant, p_now, t.reason, t.error, hourbell.letter(e, e.attempt + 1, t.fence)
      from ended as e join taken as t using (id) where t.kind = 2),
    recorded as (
      insert into hourbell.ledger
        (id, job, fence, scheduled_for, started_at, finished_at, recorded_at, tenant, version, attempt, lateness_ms, session,
         queue, priority, origin, status, reason, error, result, spec, history)
      select e.id, coalesce(e.job, e.id), t.fence, e.occurrence, t.started_at, t.finished_at, p_now, e.tenant, t.ran_version,
        e.attempt + 1, hourbell.lateness_ms(e.occurrence, coalesce(e.first_started_at, t.started_at)), p_session, e.queue,
        e.priority, e.origin, case t.kind when 0 then 0 when 2 then 1 else 2 end, t.reason, t.error, t.result, e.spec, e.history
      from ended as e join taken as t using (id))
    select array_agg(id), array_agg(id) filter (where kind = 3), array_agg(id) filter (where held),
      (select array_agg(job) from ended where overlap > 0)
    into settled, granted, holding, jobs from taken;
    if jobs is not null then perform hourbell.wake_jobs(jobs, p_now); freed := true; end if;
    if holding is not null then perform hourbell.let_go(holding, true, p_now); freed := true; end if;
    if granted is not null then delete from hourbell.cancellations where id = any (granted); end if;
  end if;

  settled := settled || requeued;
  refused := case when cardinality(settled) = cardinality(p_ids) then '{}'
    else array(select unnest(p_ids) except select unnest(settled)) end;
end $$;

create or replace function hourbell.later(p_at timestamptz, p_ms int) returns timestamptz
language sql stable
return p_at + make_interval(secs => p_ms / 1000.0::float8);

create or replace function hourbell.lateness_ms(p_due timestamptz, p_started timestamptz) returns bigint
language sql immutable
return (extract(epoch from p_started - p_due)::float8 * 1000)::bigint;

-- The history of an execution: one object per ended attempt.
create or replace function hourbell.add_attempt(
  p_history jsonb, p_attempt int, p_started timestamptz, p_finished timestamptz, p_fence bigint, p_reason text, p_error text
) returns jsonb
language sql immutable
return coalesce(p_history, '[]') || jsonb_build_array(jsonb_build_object(
  'attempt', p_attempt, 'started_at', p_started, 'finished_at', p_finished, 'fence', p_fence, 'reason', p_reason,
  'error', p_error));

-- An execution as a dead letter keeps it, to be replayed under the same id.
create or replace function hourbell.letter(e hourbell.executions, p_attempt int, p_fence bigint) returns jsonb
language sql stable
return to_jsonb(e) || jsonb_build_object('attempt', p_attempt, 'fence', p_fence);
