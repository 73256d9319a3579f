-- Awaiting: executions that their targets have accepted. They are leased by a session that never ends
-- (`awaiting_session`).

-- Whether no outcome has been reported yet. Not `outcome is null`, which is the condition of the index ordered by time:
-- the planner would scan all of that index for one id.
create or replace function hourbell.is_awaiting(a hourbell.awaiting) returns boolean
language sql immutable
return coalesce(a.outcome, '') = '';

-- Ends those of these executions that await their target, as cancelled; returns their ids.
create or replace function hourbell.cancel_awaiting(p_ids bigint[], p_now timestamptz) returns bigint[]
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  ids bigint[]; fences bigint[]; begun int[]; took int[];
  refused bigint[];
  n int;
begin
  with noted as (
    update hourbell.awaiting as a set outcome = 'ENDED' where a.id = any (p_ids) and hourbell.is_awaiting(a)
    returning a.*)
  select array_agg(a.id), array_agg(a.fence), array_agg(a.begun_ms), array_agg(
    greatest(least(extract(epoch from p_now - l.claimed_at) * 1000, 2000000000) - a.begun_ms, 0)::int)
  into ids, fences, begun, took
  from noted as a cross join lateral (
    select claimed_at from hourbell.leased as l
    where l.session = hourbell.awaiting_session() and l.fence = a.fence and l.ids = array[a.id] offset 0) as l;
  if ids is null then return '{}'; end if;
  n := cardinality(ids);
  select s.refused into refused from hourbell.settle(
    hourbell.awaiting_session(), hourbell.awaiting_token(), p_now, ids, fences, begun, took,
    array(select generate_series(1, n)), array_fill(hourbell.settlement_cancelled(), array[n]),
      array_fill(null::float8, array[n]), array_fill(null::text, array[n]),
    array_fill(null::text, array[n]), array_fill(null::json, array[n]), array_fill(null::text, array[n])) as s;
  ids := array(select unnest(ids) except select unnest(refused));
  perform hourbell.count_fates(
    array_fill(hourbell.fate_cancelled(), array[cardinality(ids)]),
      array_fill('cancelled'::text, array[cardinality(ids)]));
  return ids;
end $$;

-- Ends awaiting executions whose cancellation is requested. The request may have come while a worker was handing them
-- over, or from a later run that replaces them.
create or replace function hourbell.cancel_requested(p_node uuid, p_epoch bigint, p_now timestamptz) returns void
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  if not exists (select from hourbell.cancellations) then return; end if;
  perform hourbell.check_epoch(p_node, p_epoch);
  perform hourbell.cancel_awaiting(array(
    select c.id from hourbell.cancellations as c
    where exists (select from hourbell.awaiting as a where a.id = c.id and hourbell.is_awaiting(a) offset 0)
    limit 1000), p_now);
end $$;

-- Ends executions that their targets did not complete in time. p_settled … p_results are as in hourbell.settle, for
-- those that are still leased. All of p_ids with p_fences stop waiting, settled or not. Returns what hourbell.settle
-- does.
create or replace function hourbell.end_overdue(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_ids bigint[], p_fences bigint[],
  p_settled bigint[], p_settled_fences bigint[], p_begun_ms int[], p_took_ms int[], p_others int[], p_kinds smallint[],
  p_delays float8[], p_reasons text[], p_errors text[], p_results json[], p_failures text[],
  out refused bigint[], out freed boolean, out cancelled bigint[]
)
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  select s.* into refused, freed, cancelled from hourbell.settle(
    hourbell.awaiting_session(), hourbell.awaiting_token(), p_now, p_settled, p_settled_fences, p_begun_ms, p_took_ms,
    p_others, p_kinds, p_delays, p_reasons, p_errors, p_results, p_failures) as s;
  update hourbell.awaiting as a set outcome = 'ENDED' from unnest(p_ids, p_fences) as o(id, fence)
  where a.id = o.id and a.fence = o.fence and a.id = any (p_ids) and hourbell.is_awaiting(a);
end $$;
