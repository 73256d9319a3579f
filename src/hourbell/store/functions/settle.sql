-- Settling: a batch of outcomes leaves `leased`, if session and fence still match.
-- Every outcome has an id, a fence, begun_ms (from the claim to the start of the handler) and took_ms (from there to its
-- end; both by the worker's monotonic clock). That is all there is to say about a plain success; the others are named by
-- their position in p_others, counted from 1, and p_kinds … p_results say about them:
-- kinds: 0 succeeded, 1 failed and to be retried after p_delays seconds, 2 dead, 3 cancelled, 4 given back unstarted.
-- Returns the ids that were refused: no longer held, or not under this fence. Their rows are untouched.
create or replace function hourbell.settle(
  p_session bigint, p_token uuid, p_now timestamptz, p_ids bigint[], p_fences bigint[], p_begun_ms int[], p_took_ms int[],
  p_others int[], p_kinds smallint[], p_delays float8[], p_reasons text[], p_errors text[], p_results json[]
) returns bigint[]
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
  settled bigint[];
  freed bigint[];
  granted bigint[];
begin
  perform from hourbell.sessions where id = p_session and token = p_token for key share;
  if not found then return p_ids; end if;

  -- Tables are reached by arrays of keys, and only what came out of them is joined: the plan cannot become a scan.
  with outcomes as materialized (
    select o.id, o.fence, coalesce(x.kind, 0) as kind, o.begun_ms, o.took_ms, x.delay, x.reason, x.error, x.result
    from unnest(p_ids, p_fences, p_begun_ms, p_took_ms) with ordinality as o(id, fence, begun_ms, took_ms, pos)
    left join unnest(p_others, p_kinds, p_delays, p_reasons, p_errors, p_results)
      as x(pos, kind, delay, reason, error, result) on x.pos = o.pos),
  taken as (
    delete from hourbell.leased where ctid = any (array(
      select l.ctid from hourbell.leased as l join outcomes as o on o.id = l.id and o.fence = l.fence
      where l.session = p_session and l.id = any (p_ids)))
    returning id, claimed_at, version),
  released as materialized (
    select o.*, t.version as ran_version,
      t.claimed_at + make_interval(secs => o.begun_ms / 1000.0::float8) as started_at,
      t.claimed_at + make_interval(secs => (o.begun_ms + o.took_ms) / 1000.0::float8) as finished_at
    from taken as t join outcomes as o using (id)),
  ended as (
    delete from hourbell.executions
    where id = any (array(select id from released where kind in (0, 2, 3))) returning *),
  letters as (
    insert into hourbell.dead_letters (id, job, tenant, died_at, reason, error, execution)
    select e.id, e.job, e.tenant, p_now, r.reason, r.error, hourbell.letter(e, e.attempt + 1, r.fence)
    from ended as e join released as r using (id) where r.kind = 2),
  recorded as (
    insert into hourbell.ledger
      (id, job, fence, scheduled_for, started_at, finished_at, recorded_at, tenant, version, attempt, lateness_ms, session,
       queue, priority, origin, status, reason, error, result, spec, history)
    select e.id, coalesce(e.job, e.id), r.fence, e.occurrence, r.started_at, r.finished_at, p_now, e.tenant, r.ran_version,
      e.attempt + 1, hourbell.lateness_ms(e.occurrence, coalesce(e.first_started_at, r.started_at)), p_session, e.queue,
      e.priority, e.origin, case r.kind when 0 then 0 when 2 then 1 else 2 end, r.reason, r.error, r.result, e.spec, e.history
    from ended as e join released as r using (id)),
  again as (
    update hourbell.executions as e
    set fence = r.fence,
        attempt = e.attempt + (r.kind = 1)::int,
        crashes = case when r.kind = 1 then 0 else e.crashes end,
        run_at = p_now + case when r.kind = 1 then make_interval(secs => r.delay) else '0' end,
        first_started_at = case when r.kind = 1 then coalesce(e.first_started_at, r.started_at) else e.first_started_at end,
        history = case when r.kind = 1 then hourbell.add_attempt(
          e.history, e.attempt + 1, r.started_at, r.finished_at, r.fence, r.reason, r.error) else e.history end
    from released as r
    where e.id = r.id and e.id = any (array(select id from released where kind in (1, 4)))
    returning e.id, e.run_at, e.tenant, e.queue, e.priority, e.overlap, e.crashes),
  requeued as (
    insert into hourbell.due (run_at, id, tenant, queue, priority, checks)
    select run_at, id, tenant, queue, priority, (overlap > 0)::int + 2 * (crashes > 1)::int from again)
  select array_agg(r.id), array_agg(r.id) filter (where r.kind = 3),
    (select array_agg(job) from ended where overlap > 0)
  into settled, granted, freed from released as r;

  if freed is not null then perform hourbell.unpark(freed, p_now); end if;
  if granted is not null then delete from hourbell.cancellations where id = any (granted); end if;
  if cardinality(settled) = cardinality(p_ids) then return '{}'; end if;
  return array(select unnest(p_ids) except select unnest(settled));
end $$;

create or replace function hourbell.lateness_ms(p_due timestamptz, p_started timestamptz) returns int
language sql immutable
return least(extract(epoch from p_started - p_due)::float8 * 1000, 2147483647)::int;

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
