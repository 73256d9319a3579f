-- Reruns: what an execution carries over from one run to the next.
-- Executions that were begun can go back without an ended attempt, because their worker was stopped (interrupted) or
-- their handler asked for it (snoozed). `settle` returns them; how often is counted here and sent with the next claim,
-- and engine/life/settlement.py decides by it when it is enough. An execution whose arguments do not fit its task is
-- returned before it is begun (`payload_mismatch`), and counts as interrupted; sdk/running.py decides. A checkpoint is
-- sent with every later claim, whatever ended the run that wrote it.
-- Example: attempt 1 writes {"done": 500} and its worker is killed. The reaper makes the execution due again; the claim
-- of attempt 2 has {"done": 500}, and attempt 1, should it still run, can write no more: its fence is no longer held.

-- Counts executions that `settle` has just returned. An attempt that has ended, or a snooze, resets the count of
-- interruptions in a row.
create or replace function hourbell.count_reruns(p_interrupted bigint[], p_snoozed bigint[]) returns void
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  insert into hourbell.reruns as r (id, attempt, interruptions, snoozes)
  select e.id, e.attempt, n.interrupted, 1 - n.interrupted
  from (
    select unnest(p_interrupted) as id, 1 as interrupted union all select unnest(p_snoozed), 0) as n
  cross join lateral (select id, attempt from hourbell.executions as e where e.id = n.id offset 0) as e
  on conflict (id) do update set attempt = excluded.attempt, interruptions = case
      when excluded.snoozes > 0 then 0
      when r.attempt = excluded.attempt then r.interruptions + 1
      else 1 end,
    snoozes = r.snoozes + excluded.snoozes;
end $$;

-- Stores the checkpoint of an execution, as long as it is held under this fence; false: it is not. Locks the session
-- and the slab against every transaction that takes the execution from this run: it is taken before, and this sees it,
-- or after the checkpoint is stored, and the next run has it.
create or replace function hourbell.set_checkpoint(
  p_session bigint, p_token uuid, p_id bigint, p_fence bigint, p_value text
) returns boolean
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  perform from hourbell.sessions where id = p_session and token = p_token for key share;
  if not found then return false; end if;
  perform from hourbell.leased where session = p_session and fence = p_fence and p_id = any (ids) for key share;
  if not found then return false; end if;
  insert into hourbell.checkpoints (id, value)
  select id, p_value::json from hourbell.leases where session = p_session and fence = p_fence and id = p_id
  on conflict (id) do update set value = excluded.value;
  return found;
end $$;

-- The specs of claimed executions, with what these carry over from their last run.
create or replace function hourbell.with_reruns(p_ids bigint[], p_specs text[]) returns text[]
language plpgsql stable set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  if not exists (select from hourbell.reruns) and not exists (select from hourbell.checkpoints) then
    return p_specs;
  end if;
  return (
    select array_agg(
      '{' || coalesce('"interruptions":' || r.interruptions || ',"snoozes":' || r.snoozes || ',', '')
        || coalesce('"checkpoint":' || c.value::text || ',', '') || substr(s.spec, 2)
      order by s.pos)
    from unnest(p_ids, p_specs) with ordinality as s(id, spec, pos)
    left join lateral (
      select r.snoozes, case when r.attempt = e.attempt then r.interruptions else 0 end as interruptions
      from hourbell.reruns as r join hourbell.executions as e on e.id = r.id
      where r.id = s.id offset 0) as r on true
    left join lateral (select value from hourbell.checkpoints as c where c.id = s.id offset 0) as c on true);
end $$;

-- Deletes the counts and checkpoints of executions that have ended; a checkpoint not before its dead letter, because a
-- replay continues from it. The cursors wrap around, so that a million live ones are not read each time.
create or replace function hourbell.delete_reruns(p_limit int) returns int
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  ids bigint[];
  n int;
  deleted int;
begin
  ids := array(
    select id from hourbell.reruns where id > (select last_value from hourbell.reruns_cursor) order by id
      limit p_limit);
  perform setval('hourbell.reruns_cursor', case when cardinality(ids) < p_limit then 0 else ids[p_limit] end);
  delete from hourbell.reruns where id = any (array(
    select i.id from unnest(ids) as i(id)
    where not exists (select from hourbell.executions as e where e.id = i.id offset 0)
      or exists (select from hourbell.outcomes as o where o.id = i.id offset 0)));
  get diagnostics n = row_count;
  deleted := n;
  ids := array(
    select id from hourbell.checkpoints where id > (select last_value from hourbell.checkpoints_cursor)
    order by id limit p_limit);
  perform setval('hourbell.checkpoints_cursor', case when cardinality(ids) < p_limit then 0 else ids[p_limit] end);
  delete from hourbell.checkpoints where id = any (array(
    select i.id from unnest(ids) as i(id)
    where not exists (select from hourbell.dead_letters as d where d.id = i.id offset 0)
      and (not exists (select from hourbell.executions as e where e.id = i.id offset 0)
        or exists (select from hourbell.outcomes as o where o.id = i.id offset 0))));
  get diagnostics n = row_count;
  return deleted + n;
end $$;
