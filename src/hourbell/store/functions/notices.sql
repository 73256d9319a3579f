-- Notices: each event that has notifications leaves a row in the outbox, in the transaction that decides it. The leader
-- turns these rows into executions of their own, which cause no notices themselves.

-- Writes notices of executions that have just been recorded, if their end has notifications.
create or replace function hourbell.write_end_notices(p_ids bigint[]) returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
begin
  insert into hourbell.notices (event, at, scheduled_for, execution, job, tenant, attempt, reason, error, spec)
  select case o.fate
      when hourbell.fate_succeeded() then hourbell.event_success() else hourbell.event_dead_letter() end,
    o.finished_at, e.occurrence, e.id, coalesce(e.job, e.id), e.tenant, e.attempt + (o.session is not null)::int,
    o.reason, o.error, e.spec
  from hourbell.executions as e join hourbell.outcomes as o on o.id = e.id
  where e.id = any (p_ids) and o.id = any (p_ids) and e.notifies & case o.fate
    when hourbell.fate_succeeded() then hourbell.event_success()
    when hourbell.fate_dead() then hourbell.event_dead_letter() else 0 end <> 0;
end $$;

-- Writes notices of executions of which an attempt has just failed and that will be retried.
create or replace function hourbell.write_failure_notices(p_ids bigint[]) returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
begin
  insert into hourbell.notices (event, at, scheduled_for, execution, job, tenant, attempt, reason, error, spec)
  select hourbell.event_failure(), (last ->> 'finished_at')::timestamptz, e.occurrence, e.id, coalesce(e.job, e.id),
    e.tenant, e.attempt, last ->> 'reason', last ->> 'error', e.spec
  from hourbell.executions as e cross join lateral (select e.history -> -1 as last) as h
  where e.id = any (p_ids) and e.notifies & hourbell.event_failure() <> 0;
end $$;

-- Creates webhook executions of origin notification, which are due at once: the k-th is p_ids[k]. Notifications of one
-- tenant take a lower level the more of them there are, as the jobs of a batch do.
create or replace function hourbell.insert_notifications(
  p_now timestamptz, p_queue smallint, p_ids bigint[], p_tenants int[], p_targets int[], p_specs text[]
) returns int
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare inserted int;
begin
  with made as (
    insert into hourbell.executions
      (id, occurrence, run_at, tenant, version, queue, priority, origin, spec, target)
    select n.id, p_now, p_now, n.tenant, 1, p_queue, hourbell.priority_low(), hourbell.origin_notification(), n.spec,
      n.target
    from unnest(p_ids, p_tenants, p_targets, p_specs) as n(id, tenant, target, spec)
    returning id, tenant, target)
  insert into hourbell.due (run_at, id, tenant, queue, priority, flags, target)
  select p_now, id, tenant, p_queue, hourbell.priority_low(),
    hourbell.flags_level(hourbell.level_of(row_number() over (partition by tenant))), target
  from made;
  get diagnostics inserted = row_count;
  return inserted;
end $$;

-- Takes notices out of the outbox and creates their notifications: notification k is about the notice p_about[k]. A
-- notice that another transaction has taken creates none.
create or replace function hourbell.send_notices(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_notices bigint[], p_queue smallint, p_about bigint[],
  p_targets int[], p_specs text[]
) returns int
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  base constant bigint := hourbell.id_base(p_now);
  sent int;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  with gone as (delete from hourbell.notices where id = any (p_notices) returning id, tenant)
  select hourbell.insert_notifications(p_now, p_queue, array_agg(hourbell.next_id(base)), array_agg(gone.tenant),
    array_agg(n.target), array_agg(n.spec)) into sent
  from unnest(p_about, p_targets, p_specs) as n(about, target, spec) join gone on gone.id = n.about;
  return sent;
end $$;

-- Stores the results of checking monitors, unless a monitor has changed since it was read (p_versions). An event other
-- than 0 goes to the outbox.
create or replace function hourbell.judge_monitors(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_ids bigint[], p_versions int[], p_since timestamptz[],
  p_expected timestamptz[], p_check timestamptz[], p_successes timestamptz[], p_down_since timestamptz[],
    p_events smallint[]
) returns int
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare told int;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  with judged as (
    update hourbell.monitors as m
    set since = j.since, expected_at = j.expected_at, check_at = j.check_at, down_since = j.down_since,
      looked_at = p_now, last_success_at = coalesce(j.success_at, m.last_success_at), version = m.version + 1
    from unnest(p_ids, p_versions, p_since, p_expected, p_check, p_successes, p_down_since, p_events)
      as j(id, version, since, expected_at, check_at, success_at, down_since, event)
    where m.id = j.id and m.id = any (p_ids) and m.version = j.version
    returning m.id, m.job, m.tenant, m.since, m.expected_at, j.event)
  insert into hourbell.notices (event, at, scheduled_for, job, monitor, tenant)
  select event, p_now, coalesce(expected_at, since), job, id, tenant from judged where event <> 0;
  get diagnostics told = row_count;
  return told;
end $$;
