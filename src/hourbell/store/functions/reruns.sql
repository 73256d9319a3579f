-- Reruns: executions that were begun and go back without an ended attempt, because their worker was stopped
-- (interrupted) or their handler asked for it (snoozed). `settle` returns them; how often is counted here and sent with
-- the next claim, and engine/life/outcomes.py decides by it when it is enough.

-- Counts executions that `settle` has just returned. An attempt that has ended, or a snooze, shows that the handler can
-- come to an end between two interruptions: these are counted from there.
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

-- The specs of claimed executions, with what these carry over from their last run.
create or replace function hourbell.with_reruns(p_ids bigint[], p_specs text[]) returns text[]
language sql stable set plan = lookups_one_by_one as $$
  select array_agg(case when r.id is null then s.spec
    else format('{"interruptions":%s,"snoozes":%s,', r.interruptions, r.snoozes) || substr(s.spec, 2) end order by s.pos)
  from unnest(p_ids, p_specs) with ordinality as s(id, spec, pos)
  left join lateral (
    select r.id, r.snoozes, case when r.attempt = e.attempt then r.interruptions else 0 end as interruptions
    from hourbell.reruns as r join hourbell.executions as e on e.id = r.id
    where r.id = s.id offset 0) as r on true
$$;

-- Deletes the counts of executions that have ended. The cursor wraps around, so that a million live ones are not read
-- each time.
create or replace function hourbell.delete_reruns(p_limit int) returns int
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  ids bigint[];
  n int;
begin
  ids := array(
    select id from hourbell.reruns where id > (select last_value from hourbell.reruns_cursor) order by id limit p_limit);
  perform setval('hourbell.reruns_cursor', case when cardinality(ids) < p_limit then 0 else ids[p_limit] end);
  delete from hourbell.reruns where id = any (array(
    select i.id from unnest(ids) as i(id)
    where not exists (select from hourbell.executions as e where e.id = i.id offset 0)
      or exists (select from hourbell.outcomes as o where o.id = i.id offset 0)));
  get diagnostics n = row_count;
  return n;
end $$;
