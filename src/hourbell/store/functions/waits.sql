-- Waits: handlers that wait for an outside system (`ctx.wait_for_completion`). The handler does not stay in memory: the
-- execution is AWAITING, as one that its target has accepted (awaiting.sql), and when the outside system reports with
-- its token, or the time is over, it is due again, in the same attempt. The handler then runs from its top, asks for
-- the same wait, and gets the report.

-- A wait that has ended without success (FAILED, TIMED_OUT) is open again as soon as the attempt that got this outcome
-- has failed: the next attempt waits again, under the same token. Runs of one attempt, whether they follow a snooze, a
-- release or an interruption, all get the same outcome. A success stays, because each run begins at the top of the
-- handler.

-- Whether a wait has ended without success, in an attempt before this one.
create or replace function hourbell.is_past(w hourbell.waits, p_attempt int) returns boolean
language sql immutable
return coalesce(w.outcome <> 'SUCCEEDED' and w.seen_attempt < p_attempt, false);

-- The wait of an execution by its name; with p_waits it is opened, if nothing was reported yet. A wait that does not
-- exist gets the token p_token. `held` is false if the session does not hold the execution under this fence: then
-- nothing was written.
create or replace function hourbell.wait_of(
  p_session bigint, p_session_token uuid, p_id bigint, p_fence bigint, p_name text, p_token text, p_waits boolean,
  out held boolean, out token text, out outcome text, out value json
)
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare this_attempt int;
begin
  held := false;
  perform from hourbell.sessions where id = p_session and token = p_session_token for key share;
  if not found then return; end if;
  perform from hourbell.leased where session = p_session and fence = p_fence and p_id = any (ids) for key share;
  if not found or exists (select from hourbell.outcomes as o where o.id = p_id) then return; end if;
  held := true;
  select attempt into this_attempt from hourbell.executions where id = p_id;
  update hourbell.waits as w set outcome = null, value = null, seen_attempt = null
  where id = p_id and name = p_name and hourbell.is_past(w, this_attempt);
  insert into hourbell.waits as w (id, name, token, is_open, fence) values (p_id, p_name, p_token, p_waits, p_fence)
  on conflict (id, name) do update
  set is_open = p_waits and w.outcome is null, fence = p_fence,
    seen_attempt = coalesce(w.seen_attempt, case when p_waits and w.outcome is not null then this_attempt end)
  returning w.token, w.outcome, w.value into token, outcome, value;
end $$;

-- Notes what an outside system reports, and makes the execution due again if it waits for that. Returns the outcome
-- that counts, which is another one if something was reported before. Between two attempts, a repetition of what the
-- last one got changes nothing.
create or replace function hourbell.report_wait(
  p_id bigint, p_name text, p_outcome text, p_value json, p_now timestamptz
) returns text
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare counts text;
begin
  update hourbell.waits as w set outcome = p_outcome, value = p_value, seen_attempt = null
  where id = p_id and name = p_name and (outcome is null
    or (outcome <> p_outcome or value::text is distinct from p_value::text)
      and hourbell.is_past(w, (select attempt from hourbell.executions where id = p_id)));
  if found then
    perform hourbell.requeue_awaiting(array[p_id], p_now);
  else
    perform hourbell.confirm();
  end if;
  select outcome into counts from hourbell.waits where id = p_id and name = p_name;
  return counts;
end $$;

-- Makes those of these executions due again for which something was reported while they await it. One whose worker has
-- not recorded yet that it waits is found later, by `end_waits`.
create or replace function hourbell.requeue_awaiting(p_ids bigint[], p_now timestamptz) returns void
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  ids bigint[]; fences bigint[]; begun int[]; took int[];
  refused bigint[];
  n int;
begin
  with noted as (
    update hourbell.awaiting as a set outcome = 'ENDED' where a.id = any (p_ids) and hourbell.is_awaiting(a)
      and a.token = any (array(
        select sha256(convert_to(w.token, 'UTF8')) from hourbell.waits as w
        where w.id = any (p_ids) and w.is_open and w.outcome is not null))
    returning a.*)
  select array_agg(a.id), array_agg(a.fence), array_agg(a.begun_ms), array_agg(
    greatest(least(extract(epoch from p_now - l.claimed_at) * 1000, 2000000000) - a.begun_ms, 0)::int)
  into ids, fences, begun, took
  from noted as a cross join lateral (
    select claimed_at from hourbell.leased as l
    where l.session = hourbell.awaiting_session() and l.fence = a.fence and l.ids = array[a.id] offset 0) as l;
  if ids is null then return; end if;
  n := cardinality(ids);
  -- As if its handler had asked to run again now.
  perform hourbell.settle(
    hourbell.awaiting_session(), hourbell.awaiting_token(), p_now, ids, fences, begun, took,
    array(select generate_series(1, n)), array_fill(hourbell.settlement_snoozed(), array[n]),
    array_fill(0::float8, array[n]), array_fill(null::text, array[n]), array_fill(null::text, array[n]),
    array_fill(null::json, array[n]), array_fill(null::text, array[n]));
  update hourbell.waits set is_open = false where id = any (ids) and outcome is not null;
end $$;

-- Ends waits whose time is over, and makes due again what was reported before its worker had recorded that it waits.
-- Returns how many executions it has examined.
create or replace function hourbell.end_waits(p_node uuid, p_epoch bigint, p_now timestamptz, p_limit int) returns int
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  late bigint[];
  over bigint[];
begin
  late := array(
    select a.id from (
      select * from hourbell.awaiting where outcome is null and until <= p_now order by until limit p_limit) as a
    where exists (select from hourbell.waits as w where w.id = a.id and w.is_open offset 0));
  over := array(select id from hourbell.waits where is_open and outcome is not null order by id limit p_limit);
  if late || over = '{}' then return 0; end if;
  perform hourbell.check_epoch(p_node, p_epoch);
  update hourbell.waits set outcome = 'TIMED_OUT' where id = any (late) and is_open and outcome is null;
  perform hourbell.requeue_awaiting(late || over, p_now);
  -- A run that has ended otherwise (its worker died, its handler has not waited after all) records no wait any more.
  update hourbell.waits as w set is_open = false where id = any (over) and is_open and (
    exists (select from hourbell.outcomes as o where o.id = w.id offset 0)
    or exists (select from hourbell.executions as e where e.id = w.id and e.fence >= w.fence offset 0));
  return cardinality(late || over);
end $$;

-- Deletes the waits of executions that have ended. The cursor wraps around, as those of reruns.sql.
create or replace function hourbell.delete_waits(p_limit int) returns int
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  ids bigint[];
  n int;
begin
  ids := array(
    select distinct id from hourbell.waits where id > (select last_value from hourbell.waits_cursor)
    order by id limit p_limit);
  perform setval('hourbell.waits_cursor', case when cardinality(ids) < p_limit then 0 else ids[p_limit] end);
  delete from hourbell.waits where id = any (array(
    select i.id from unnest(ids) as i(id)
    where not exists (select from hourbell.dead_letters as d where d.id = i.id offset 0)
      and (not exists (select from hourbell.executions as e where e.id = i.id offset 0)
        or exists (select from hourbell.outcomes as o where o.id = i.id offset 0))));
  get diagnostics n = row_count;
  return n;
end $$;
