-- Completion in the transaction of a handler's own database work: `ctx.complete(connection=…)`.

-- Ends an execution as succeeded, in the caller's transaction; raises HB008 if the session does not hold it under this
-- fence: then the caller's writes must not be committed either, because another worker may have run it.
create or replace function hourbell.complete_execution(
  p_id bigint, p_fence bigint, p_session bigint, p_token uuid, p_took_ms int, p_result json
) returns void
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare refused bigint[];
begin
  select s.refused into refused from hourbell.settle(
    p_session, p_token, hourbell.clock(), array[p_id], array[p_fence], array[null::int], array[p_took_ms],
    case when p_result is null then '{}'::int[] else '{1}' end,
    case when p_result is null then '{}'::smallint[] else array[hourbell.settlement_succeeded()] end,
    array[null::float8], array[null::text], array[null::text], array[p_result], array[null::text]) as s;
  if refused <> '{}' then
    raise exception using errcode = 'HB008', message = 'this worker no longer holds the execution',
      detail = 'Its lease was lost, or it has ended.', hint = 'Roll back: another worker may run it.';
  end if;
end $$;

-- Whether an execution has succeeded under this fence: then its worker does not settle it.
create or replace function hourbell.is_completed(p_id bigint, p_fence bigint) returns boolean
language plpgsql set plan = lookups_one_by_one as $$
begin
  perform from hourbell.outcomes as o
  where o.id = p_id and o.fence = p_fence and o.fate = hourbell.fate_succeeded();
  if found then perform hourbell.confirm(); return true; end if;
  return false;
end $$;
