-- Manifests: what the code of an app declares, and which of it leads. engine/operations/reconcile.py compares it with
-- what was applied, and applies the rest by the ordinary operations on jobs.
-- Example: revision 41 declares `nightly`, revision 42 declares `nightly` with another rule, and `hourly`. While
-- workers of both live, both schedules exist, `nightly` as in 42. When the last worker of 42 has ended, `nightly` is
-- as in 41 again, and `hourly`, which no live worker declares, is retired after a grace.

-- The lock of an app: shared by sessions that open, exclusive for a retirement. So a session that declares a schedule
-- is seen before the schedule is retired, or sees that it was.
create or replace function hourbell.app_lock(p_app text) returns bigint
language sql immutable
return hashtextextended('hourbell.app:' || p_app, 0);

-- The number of a manifest; a new one is stored.
create or replace function hourbell.register_manifest(
  p_now timestamptz, p_app text, p_digest text, p_revision bigint, p_body text
) returns bigint
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare found_id bigint;
begin
  select id into found_id from hourbell.manifests where app = p_app and digest = p_digest;
  if found_id is null then
    insert into hourbell.manifests (app, digest, revision, first_seen, body)
    values (p_app, p_digest, p_revision, p_now, p_body::json)
    on conflict (app, digest) do nothing;
    select id into found_id from hourbell.manifests where app = p_app and digest = p_digest;
  end if;
  return found_id;
end $$;

-- Opens a session whose worker runs by a manifest; other arguments as in `open_session`.
create or replace function hourbell.open_declaring_session(
  p_now timestamptz, p_lease interval, p_worker text, p_queues smallint[], p_tasks int[], p_slots int, p_app text,
  p_digest text, p_revision bigint, p_body text, out id bigint, out token uuid
)
language plpgsql as $$
#variable_conflict use_column
declare
  manifest_id bigint;
  session hourbell.sessions;
begin
  perform pg_advisory_xact_lock_shared(hourbell.app_lock(p_app));
  manifest_id := hourbell.register_manifest(p_now, p_app, p_digest, p_revision, p_body);
  select s.id, s.token into session.id, session.token
  from hourbell.open_session(p_now, p_lease, p_worker, p_queues, p_tasks, p_slots) as s;
  update hourbell.sessions as s set manifest = manifest_id where s.id = session.id;
  id := session.id; token := session.token;
end $$;

-- The schedules that live manifests declare, each as the leading one does: that of the highest revision, or else the
-- one that was first seen last. p_app: null: of all apps.
create or replace function hourbell.wanted_schedules(
  p_app text, out app text, out key text, out digest text, out document text, out revision bigint
) returns setof record
language sql stable as $$
  select distinct on (m.app, s.key) m.app, s.key, s.value ->> 'digest', s.value ->> 'document', m.revision
  from hourbell.manifests as m cross join lateral json_each(
    case json_typeof(m.body -> 'schedules') when 'object' then m.body -> 'schedules' end) as s
  where m.id = any (array(select manifest from hourbell.sessions where manifest is not null))
    and (p_app is null or m.app = p_app)
  order by m.app, s.key, m.revision desc nulls last, m.first_seen desc, m.id desc
$$;

-- What is left to do for the schedules of an app, or of all apps:
--   apply    declared, and not applied like this
--   wanted   declared again before it was retired
--   missing  no longer declared by any live manifest
--   retire   not declared for longer than p_grace; or a retirement that was begun
--   forget   the last worker of the app has ended: the grace begins again with the next one
-- An app of which no worker lives retires nothing. What could not be applied is left alone for a minute.
create or replace function hourbell.reconciliation(
  p_app text, p_now timestamptz, p_grace interval,
  out app text, out key text, out step text, out digest text, out document text, out revision bigint,
  out seen_digest text, out job bigint, out retired boolean
) returns setof record
language sql stable as $$
  with wanted as materialized (select * from hourbell.wanted_schedules(p_app)),
  live as materialized (
    select distinct m.app from hourbell.manifests as m
    where m.id = any (array(select manifest from hourbell.sessions where manifest is not null))),
  compared as (
    select coalesce(w.app, d.app) as app, coalesce(w.key, d.key) as key, w.digest, w.document, w.revision,
      d.applied_digest as seen_digest, d.job, d.retired_at is not null as retired,
      case
        when w.key is not null and (d.key is null or d.applied_digest is distinct from w.digest
            or d.retired_at is not null) then case
          when d.problem_digest = w.digest and d.problem_at > p_now - interval '1 minute' then null
          else 'apply' end
        when w.key is not null then case when d.unwanted_since is not null then 'wanted' end
        when not exists (select from live as l where l.app = d.app) then
          case when d.unwanted_since is not null and d.retired_at is null then 'forget' end
        when d.retired_at is not null then case when d.job is not null then 'retire' end
        when d.unwanted_since is null then 'missing'
        when d.unwanted_since <= p_now - p_grace then 'retire'
      end as step
    from wanted as w full join (select * from hourbell.declared where p_app is null or declared.app = p_app) as d
      on d.app = w.app and d.key = w.key)
  select app, key, step, digest, document, revision, seen_digest, job, retired
  from compared where step is not null order by app, key
$$;

-- Notes that a declaration is about to be applied: until it is recorded, it counts as not applied. False: another
-- process has applied one since p_seen was read (null: none was).
create or replace function hourbell.begin_declaration(
  p_app text, p_key text, p_tenant text, p_seen text
) returns boolean
language plpgsql set plan = lookups as $$
#variable_conflict use_column
begin
  insert into hourbell.declared (app, key) values (p_app, p_key) on conflict (app, key) do nothing;
  update hourbell.declared
  set tenant = p_tenant, applied_digest = null, unwanted_since = null, retired_at = null,
    job = case when retired_at is null then job end
  where app = p_app and key = p_key and applied_digest is not distinct from p_seen;
  return found;
end $$;

-- Records the job of a schedule, and that a declaration was applied to it, if it still has the version that it got from
-- it and no other declaration leads by now. False: it must be compared again.
create or replace function hourbell.record_declaration(
  p_app text, p_key text, p_digest text, p_job bigint, p_version int
) returns boolean
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare valid boolean;
begin
  perform from hourbell.jobs where id = p_job and version = p_version for share;
  valid := found and exists (
    select from hourbell.wanted_schedules(p_app) as w where w.key = p_key and w.digest = p_digest);
  update hourbell.declared
  set job = p_job, applied_digest = case when valid then p_digest end, problem = null, problem_digest = null,
    problem_at = null
  where app = p_app and key = p_key and retired_at is null;
  return valid and found;
end $$;

-- Notes why a declaration could not be applied.
create or replace function hourbell.note_problem(
  p_app text, p_key text, p_digest text, p_problem text, p_now timestamptz
) returns void
language sql volatile as $$
  insert into hourbell.declared as d (app, key, problem, problem_digest, problem_at)
  values (p_app, p_key, p_problem, p_digest, p_now)
  on conflict (app, key) do update
  set problem = excluded.problem, problem_digest = excluded.problem_digest, problem_at = excluded.problem_at
$$;

-- Notes since when schedules are not declared any more, or that they are again, as `reconciliation` says: only if it
-- still says so.
create or replace function hourbell.note_unwanted(
  p_node uuid, p_epoch bigint, p_app text, p_now timestamptz, p_grace interval
) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  update hourbell.declared as d set unwanted_since = case when r.step = 'missing' then p_now end
  from hourbell.reconciliation(p_app, p_now, p_grace) as r
  where d.app = r.app and d.key = r.key and r.step in ('missing', 'wanted', 'forget');
end $$;

-- Retires a schedule: its job will be deleted, even if the schedule is declared again later (that creates another job).
-- Returns the job, or null: it is declared again, or another process was faster.
create or replace function hourbell.begin_retirement(
  p_node uuid, p_epoch bigint, p_app text, p_key text, p_now timestamptz, p_grace interval
) returns bigint
language plpgsql as $$
#variable_conflict use_column
declare retired bigint;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  perform pg_advisory_xact_lock(hourbell.app_lock(p_app));
  -- A second statement, with a snapshot from after the lock.
  update hourbell.declared as d
  set retired_at = coalesce(d.retired_at, p_now), applied_digest = null, job = coalesce((
      select k.job from hourbell.unique_keys as k
      where k.tenant = (select t.id from hourbell.tenants as t where t.name = d.tenant)
        and k.space = hourbell.key_space_name() and k.key = 'app:' || p_app || '/' || p_key
        and hourbell.live_jobs(array[k.job]) <> '{}'), d.job)
  from hourbell.reconciliation(p_app, p_now, p_grace) as r
  where d.app = p_app and d.key = p_key and r.key = p_key and r.step = 'retire'
  returning d.job into retired;
  return retired;
end $$;

-- Notes that the job of a retired schedule is deleted.
create or replace function hourbell.end_retirement(p_app text, p_key text, p_job bigint) returns void
language sql volatile as $$
  update hourbell.declared set job = null
  where app = p_app and key = p_key and job = p_job and retired_at is not null
$$;

-- The jobs that will be retired unless their schedules are declared again: workers of their apps are live, and none of
-- these declares them.
create or replace function hourbell.retiring_jobs() returns bigint[]
language sql stable
return (
  select coalesce(array_agg(job), '{}') from (
    select job from hourbell.declared where unwanted_since is not null and job is not null
    order by unwanted_since limit 1000) as d);

-- Deletes manifests that no session runs by, that were first seen p_keep ago, and that are not the newest of their app.
create or replace function hourbell.delete_manifests(p_now timestamptz, p_keep interval, p_limit int) returns int
language plpgsql as $$
#variable_conflict use_column
declare n int;
begin
  delete from hourbell.manifests where id = any (array(
    select m.id from hourbell.manifests as m
    where m.first_seen < p_now - p_keep
      and not exists (select from hourbell.sessions as s where s.manifest = m.id offset 0)
      and exists (select from hourbell.manifests as n where n.app = m.app and n.first_seen > m.first_seen offset 0)
    order by m.id limit p_limit for update skip locked));
  get diagnostics n = row_count;
  return n;
end $$;
