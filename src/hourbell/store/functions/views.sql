-- Reading jobs and executions: what is decided for each row that a read or a list returns. The status of a live
-- execution is not stored; it follows from the place in which the execution is (`location_of`, `live_status`).
-- Example: an execution in `due` whose time has come is QUEUED. One whose time has not come is SCHEDULED, or RETRYING
-- if an attempt has failed.

-- Whether a stored job has this name prefix and this label (`name:value`); null: any. If both are null, it is not
-- parsed.
create or replace function hourbell.is_wanted(p_spec text, p_prefix text, p_label text) returns boolean
language plpgsql immutable as $$
begin
  if p_prefix is null and p_label is null then return true; end if;
  begin
    return (p_prefix is null or coalesce(starts_with(p_spec::json ->> 'name', p_prefix), p_prefix = ''))
      and (p_label is null or exists (
        select from json_each_text(p_spec::json -> 'labels') as l where l.key || ':' || l.value = p_label));
  exception when data_exception then  -- it cannot be read
    return p_label is null and p_prefix = '';
  end;
end $$;

-- As is_found, for a job that is parsed.
create or replace function hourbell.is_found_in(p_spec text, p_text text) returns boolean
language sql immutable
return exists (
  select from (select hourbell.as_json(p_spec) as job) as s
  where position(p_text in lower(job ->> 'name')) > 0
    or position(p_text in lower(job -> 'action' ->> 'name')) > 0
    or position(p_text in lower(substring(job -> 'action' ->> 'url' from '^[^/]*//(?:[^/?#@]*@)?([^/?#]*)'))) > 0
    or exists (
      select from json_each_text(case json_typeof(job -> 'labels') when 'object' then job -> 'labels' end) as l
      where position(p_text in lower(l.key || ':' || l.value)) > 0));

-- Whether a text, in lower case, is in what identifies a job: its name (null: that in p_spec), its task, the host that
-- it calls, or the name or value of a label; null: any. Only a job that has the text somewhere is parsed. (In JSON, a
-- quotation mark, a backslash and the colon of a label are written otherwise.)
-- The planner puts its expression into a statement, because it has no subquery.
create or replace function hourbell.is_found(p_name text, p_spec text, p_text text) returns boolean
language sql immutable
return p_text is null
  or position(p_text in lower(p_name)) > 0
  or (position(p_text in lower(p_spec)) > 0 or p_text ~ '["\\:]') and hourbell.is_found_in(p_spec, p_text);

-- The status of an execution that has not ended, derived from where it is; the only place that decides it.
--   SCHEDULED  its time has not come, or its job is paused
--   QUEUED     its time has come: it waits for the gate, a limit, its target or a worker
--   RETRYING   an attempt failed, and the time of the next one has not come
create or replace function hourbell.live_status(
  e hourbell.executions, p_in_due boolean, p_in_paused boolean, p_session bigint, p_now timestamptz
) returns text
language sql immutable
return case
  when p_session = hourbell.awaiting_session() then 'AWAITING'
  when p_session is not null then 'RUNNING'
  when not p_in_paused and (not p_in_due or e.run_at <= p_now) then 'QUEUED'
  when e.attempt > 0 then 'RETRYING'
  when not p_in_paused and e.waits_for <> 'snoozed'
    then 'QUEUED'  -- returned by a worker: its target's circuit is open
  else 'SCHEDULED' end;

-- Whether a list of one-time jobs shows one that has not ended. p_statuses: of jobs, null: any; p_due_by: only those
-- that were due by then, null: all.
create or replace function hourbell.is_listed(
  p_status text, p_in_paused boolean, p_run_at timestamptz, p_statuses text[], p_due_by timestamptz
) returns boolean
language sql immutable
return coalesce(case when p_in_paused then 'PAUSED' else p_status end = any (p_statuses), true)
  and coalesce(p_run_at <= p_due_by, true);

-- How an execution ended; no row: it has not.
create or replace function hourbell.end_of(
  p_id bigint, out end_fence bigint, out started_at timestamptz, out finished_at timestamptz,
  out recorded_at timestamptz, out end_session bigint, out end_version int, out fate smallint, out reason text,
  out error text, out result json, out failure_kind text, out missed int, out missed_through timestamptz
) returns setof record
language sql stable as $$
  select fence, started_at, finished_at, recorded_at, session, version, fate, reason, error, result, failure_kind,
    missed, missed_through
  from hourbell.outcomes where id = p_id offset 0
$$;

-- All leased executions that are named by slabs of more than one, in order, and the slab of each: read once by a list,
-- and searched for each of its rows. p_only: this one only, or null. p_needed: false if the list shows no live ones;
-- nothing is read then.
create or replace function hourbell.slab_index(p_only bigint, p_needed boolean, out ids bigint[], out slabs tid[])
language sql stable set plan = lookups set enable_sort = on as $$
  select array_agg(i.id order by i.id, l.fence), array_agg(l.slab order by i.id, l.fence)
  from (
    select ctid as slab, fence, ids from hourbell.leased
    where p_needed and cardinality(ids) > 1 and (p_only is null or p_only = any (ids)) order by fence) as l
  cross join lateral unnest(l.ids) as i(id) where p_only is null or i.id = p_only
$$;

-- Where a live execution is, and its status at p_now. p_live: false if the execution has ended; nothing is looked up
-- then, and there is no row. p_ids and p_slabs: as `slab_index` returns them; slabs of one are looked up.
create or replace function hourbell.location_of(
  e hourbell.executions, p_ids bigint[], p_slabs tid[], p_live boolean, p_now timestamptz, out in_due boolean,
  out in_parked boolean, out in_paused boolean, out claimed_at timestamptz, out lease_fence bigint, out session bigint,
  out progress text, out worker text, out expires_at timestamptz, out status text, out waiting_for text
) returns setof record
language sql stable as $$
  select p.*, l.*, (select o.progress from hourbell.progress as o where o.id = e.id and o.fence = l.fence), s.*,
    hourbell.live_status(e, p.in_due, p.in_paused, l.session, p_now),
    -- As the codes of `explain`, as far as the place says it; `parked`: its blocker is still to be looked up.
    case
      when l.session is not null then null
      when p.in_paused then 'paused'
      when p.in_due and e.run_at > p_now
        then coalesce(e.waits_for, case when e.attempt > 0 then 'retrying' else 'not_due' end)
      when p.in_parked then 'parked'
      when p.in_due then 'admission'
      else 'worker_slot' end
  from (values (e.id)) as w(id)
  left join lateral (
    select claimed_at, fence, session from hourbell.leased
    where cardinality(ids) = 1 and ids[1] = w.id and fence > e.fence
    union all
    select claimed_at, fence, session from hourbell.leased
    where ctid = case when p_ids[width_bucket(e.id, p_ids)] = e.id then p_slabs[width_bucket(e.id, p_ids)] end
      and fence > e.fence
    limit 1) as l on true
  cross join lateral (
    select
      l.session is null and exists (select from hourbell.due_of(e)) as in_due,
      l.session is null and exists (select from hourbell.parked as p where p.id = e.id offset 0) as in_parked,
      l.session is null and exists (select from hourbell.paused as h where h.id = e.id offset 0) as in_paused
    offset 0) as p  -- once; most of what is neither due nor ended is leased
  left join lateral (select s.worker, s.expires_at from hourbell.sessions as s
    where s.id = l.session offset 0) as s on true
  where p_live offset 0  -- decided before anything is looked up
$$;

-- The workers of the attempts of an execution, as an object keyed by session number; unknown workers are left out.
-- p_session: the session of the attempt that is not in the history.
create or replace function hourbell.workers_of(p_history jsonb, p_session bigint) returns text
language sql stable
return (
  select json_object_agg(s.id, w.worker)::text
  from (
    select p_session as id
    union
    select coalesce(h.session, h.taken_from)
    from jsonb_to_recordset(p_history) as h(session bigint, taken_from bigint)) as s
  cross join lateral (
    (select worker from hourbell.sessions as l where l.id = s.id offset 0)
    union all
    (select worker from hourbell.past_sessions as l where l.id = s.id offset 0)
    limit 1) as w
  where s.id <> hourbell.awaiting_session());

-- What is shown with an execution in addition to its own row, with names instead of numbers.
create or replace function hourbell.display_columns(
  p_id bigint, p_job bigint, p_tenant int, p_queue smallint, p_spec text, p_history jsonb, p_session bigint,
  out tenant_name text, out queue_name text, out job_name text, out workers text, out replayed boolean
) returns setof record
language sql stable as $$
  select
    (select name from hourbell.tenants as t where t.id = p_tenant),
    (select name from hourbell.queues as q where q.id = p_queue),
    coalesce((select name from hourbell.jobs as j where j.id = p_job), hourbell.as_json(p_spec) ->> 'name'),
    hourbell.workers_of(p_history, p_session),
    exists (select from hourbell.replays as r where r.id = p_id offset 0)
$$;
