-- Crashes: tasks in processes of their own (`@app.task(process=True)`), whose process died while the worker lived. The
-- worker reports them as retries with the reason 'crashed', and the last one as a death.

-- How often in a row the process of an execution has died under it, up to its last attempt; not counting attempts
-- before a replay.
create or replace function hourbell.crashes_in_a_row(p_id bigint, p_attempts_before int) returns int
language sql stable
return (
  select count(*)::int
  from hourbell.executions as e
  cross join lateral jsonb_array_elements(coalesce(e.history, '[]')) as h
  where e.id = p_id and (h ->> 'attempt')::int > greatest(p_attempts_before, (
    select max((g ->> 'attempt')::int) from jsonb_array_elements(coalesce(e.history, '[]')) as g
    where g ->> 'reason' <> 'crashed')));
