-- Sessions: a worker process's hold on everything it has claimed, with one expiry.

create or replace function hourbell.open_session(
  p_now timestamptz, p_lease interval, p_worker text, p_queues smallint[], p_slots int, out id bigint, out token uuid
)
language sql volatile as $$
  -- What waited for a worker of these queues.
  insert into hourbell.wakes (at, kind, key) select p_now, 1, q from unnest(p_queues) as q;
  insert into hourbell.sessions (id, token, worker, queues, slots, started_at, renewed_at, expires_at)
  values (nextval('hourbell.session_ids'), gen_random_uuid(), p_worker, p_queues, p_slots, p_now, p_now, p_now + p_lease)
  returning id, token
$$;

-- Extends the session and compares what the worker runs with what it holds:
-- `lost` it must stop, it no longer holds them; `unwanted` somebody wishes to cancel.
-- p_resolved: every claim up to this number has been answered, so what the worker does not know of those is given back:
-- the answer that named it was lost.
create or replace function hourbell.heartbeat(
  p_session bigint, p_token uuid, p_now timestamptz, p_lease interval, p_running bigint[], p_resolved int,
  out alive boolean, out lost bigint[], out unwanted bigint[]
)
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare forgotten bigint[];
begin
  -- Never shortened by a call that comes late, unless the clock was set back.
  update hourbell.sessions
  set renewed_at = p_now, expires_at = case
    when renewed_at > p_now + p_lease then p_now + p_lease else greatest(expires_at, p_now + p_lease) end
  where id = p_session and token = p_token;
  alive := found;
  if not alive then lost := p_running; unwanted := '{}'; return; end if;
  -- Both by look-ups of what the worker names. Reading all that the session holds, or all wishes, would be walking over
  -- what vacuum may not clear away.
  lost := array(
    select r from unnest(p_running) as r
    where not exists (select from hourbell.leased as l where l.session = p_session and l.id = r offset 0));
  unwanted := array(
    select r from unnest(p_running) as r
    where exists (select from hourbell.cancellations as c where c.id = r offset 0) and not r = any (lost));
  forgotten := array(
    select id from hourbell.leased as l
    where l.session = p_session and l.claim <= p_resolved
      and not exists (select from unnest(p_running) as r where r = l.id));
  if cardinality(forgotten) > 0 then perform hourbell.give_back(p_session, forgotten, p_now); end if;
end $$;

-- From leased back to due: not started, no attempt burnt. Only the fence is kept, so that it rises. Due now and not when
-- it first was: that may lie below the gate's mark, where it would wait for the sweep.
create or replace function hourbell.give_back(p_session bigint, p_ids bigint[], p_now timestamptz) returns int
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare back bigint[];
begin
  with gone as (
    delete from hourbell.leased as l where l.session = p_session and l.id = any (p_ids) returning l.id, l.fence),
  again as (
    update hourbell.executions as e set fence = gone.fence, run_at = p_now from gone where e.id = gone.id returning e.id)
  select array_agg(id) into back from again;
  perform hourbell.let_go(back, false, p_now);
  return hourbell.requeue(back);
end $$;

-- A worker that leaves in order: what it still holds goes back at once, and nobody waits for its lease.
create or replace function hourbell.close_session(p_session bigint, p_token uuid, p_now timestamptz) returns int
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare n int;
begin
  perform from hourbell.sessions where id = p_session and token = p_token for update;
  if not found then return 0; end if;
  n := hourbell.give_back(p_session, array(select id from hourbell.leased where session = p_session), p_now);
  with gone as (delete from hourbell.sessions where id = p_session returning queues)
  insert into hourbell.wakes (at, kind, key) select p_now, 1, unnest(queues) from gone;
  return n;
end $$;
