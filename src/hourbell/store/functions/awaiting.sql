-- Awaiting: executions that were accepted by their targets. They are leased by session 0, which never ends.

-- Whether nobody has said yet how it ended. Not `outcome is null`, which is the condition of the index in the order of time: the
-- planner would walk through all of that in search of one id.
create or replace function hourbell.waits(a hourbell.awaiting) returns boolean
language sql immutable
return coalesce(a.outcome, '') = '';

-- Ends those of these executions that wait for their target, as cancelled; returns which.
create or replace function hourbell.cancel_awaiting(p_ids bigint[], p_now timestamptz) returns bigint[]
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  ids bigint[]; fences bigint[]; begun int[]; took int[];
  refused bigint[];
  n int;
begin
  with noted as (
    update hourbell.awaiting as a set outcome = 'ENDED' where a.id = any (p_ids) and hourbell.waits(a) returning a.*)
  select array_agg(a.id), array_agg(a.fence), array_agg(a.begun_ms), array_agg(
    greatest(least(extract(epoch from p_now - l.claimed_at) * 1000, 2000000000) - a.begun_ms, 0)::int)
  into ids, fences, begun, took
  from noted as a cross join lateral (
    select claimed_at from hourbell.leased as l where l.session = 0 and l.id = a.id and l.fence = a.fence offset 0) as l;
  if ids is null then return '{}'; end if;
  n := cardinality(ids);
  select s.refused into refused from hourbell.settle(
    0, '00000000-0000-0000-0000-000000000000', p_now, ids, fences, begun, took, array(select generate_series(1, n)),
    array_fill(3::smallint, array[n]), array_fill(null::float8, array[n]), array_fill(null::text, array[n]),
    array_fill(null::text, array[n]), array_fill(null::json, array[n])) as s;
  return array(select unnest(ids) except select unnest(refused));
end $$;

-- Ends those that somebody wishes to cancel: the wish may have come while a worker was just handing them over, or from a later
-- run that is to replace them.
create or replace function hourbell.cancel_wished(p_now timestamptz) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
  if not exists (select from hourbell.cancellations) then return; end if;
  perform hourbell.cancel_awaiting(array(
    select c.id from hourbell.cancellations as c
    where exists (select from hourbell.awaiting as a where a.id = c.id and hourbell.waits(a) offset 0) limit 1000), p_now);
end $$;
