-- Creating jobs: one read of what must be known (`before_create`), then one statement for the jobs of all concurrent
-- requests (`create_jobs`). Quotas are in quotas.sql, unique keys in unique_keys.sql.
-- Example: three concurrent requests create one job each. The second repeats an idempotency key, the third names a
-- unique key that another job has: `create_jobs` stores the job of the first and returns repeated = {2}, refused = {the
-- id of the third}.

-- An id that nothing has yet: the time in its upper bits (hourbell.id_base), 22 bits of a sequence below.
create or replace function hourbell.next_id(p_base bigint) returns bigint
language sql volatile
return p_base | (nextval('hourbell.ids') & 4194303);

-- Returns what must be known before documents can be read: the time, ids for p_count jobs, the defaults of queues, the
-- tenants with a quota (limited) and how much room it leaves, and answers that were already given: answered[k] is an
-- index into p_keys. manifest: the newest; another one may declare other options for the jobs of tasks.
-- Jobs that other transactions are creating are not seen; `create_jobs` counts again, under the lock of the quota.
create or replace function hourbell.before_create(
  p_count int, p_queues text[], p_tenants text[], p_key_tenants text[], p_keys text[],
  out now timestamptz, out ids bigint[],
  out queues text[], out timeouts int[], out retry_policies text[],
  out limited text[], out quotas int[], out rooms int[],
  out answered int[], out fingerprints bytea[], out answers text[], out manifest bigint
)
language plpgsql
set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare base bigint;
begin
  now := hourbell.clock();
  base := hourbell.id_base(now);
  ids := array(select hourbell.next_id(base) from generate_series(1, p_count));
  manifest := (select max(id) from hourbell.manifests);
  select array_agg(name), array_agg(timeout_seconds), array_agg(retry_policy) into queues, timeouts, retry_policies
  from hourbell.queues where name = any (p_queues) and (timeout_seconds is not null or retry_policy is not null);
  select array_agg(t.name), array_agg(t.max_jobs), array_agg(hourbell.room_in_quota(t))
  into limited, quotas, rooms
  from (select * from hourbell.tenants where name = any (p_tenants) offset 0) as t where t.max_jobs is not null;
  if p_keys <> '{}' then
    select array_agg(asked.k), array_agg(i.fingerprint), array_agg(i.response::text)
    into answered, fingerprints, answers
    from unnest(p_key_tenants, p_keys) with ordinality as asked(tenant, key, k)
    join hourbell.tenants as t on t.name = asked.tenant
    cross join lateral (
      select * from hourbell.idempotency as i where i.tenant = t.id and i.key = asked.key offset 0) as i;
  end if;
end $$;

-- Inserts the one-time jobs of `create_jobs`, which explains the arguments, without those of the requests p_repeated
-- and without p_dropped. A function of its own, so that its plans are made once for any number of jobs.
create or replace function hourbell.insert_one_time(
  p_now timestamptz, p_actors text[], p_ids bigint[], p_requests int[], p_at timestamptz, p_instants bigint[],
  p_job_tenants int[], p_settings int[], p_specs text[], p_run_settings json, p_unique json, p_repeated int[],
  p_dropped bigint[]
) returns void
language plpgsql
set plan = lookups set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
begin
  if p_repeated <> '{}' or p_dropped <> '{}' then
    select array_agg(id), array_agg(coalesce(request, 1)), array_agg(instant), array_agg(tenant), array_agg(settings),
      array_agg(spec)
    into p_ids, p_requests, p_instants, p_job_tenants, p_settings, p_specs
    from unnest(p_ids, p_requests, p_instants, p_job_tenants, p_settings, p_specs)
      as n(id, request, instant, tenant, settings, spec)
    where coalesce(request, 1) <> all (p_repeated)
      and not exists (select from unnest(p_dropped) as d(id) where d.id = n.id);
    if p_ids is null then return; end if;
  end if;

  -- The documents are read once, straight from their array, and inserted in the order of their ids. The series has one
  -- row, but the planner expects a thousand, so it hashes the settings and not the documents.
  insert into hourbell.executions
    (id, occurrence, run_at, tenant, queue, priority, start_by, finish_by, version, origin, at_most_once, spec,
     target, key, key_limit, notifies)
  select n.id, n.at, n.at, n.tenant, s.queue, s.priority, n.at + make_interval(secs => s.start_seconds),
    n.at + make_interval(secs => s.finish_seconds), 1, hourbell.origin_schedule(), s.at_most_once,
    coalesce(s.head || n.spec || s.tail, n.spec), s.target, s.key, s.key_limit, s.notifies
  from (
    select id, tenant, settings, coalesce(p_at, timestamptz 'epoch' + instant * interval '1 microsecond') as at, spec
    from (
      select unnest(p_ids) as id, unnest(p_job_tenants) as tenant, unnest(p_settings) as settings,
        unnest(p_instants) as instant, unnest(p_specs) as spec
      from generate_series(1, least(cardinality(p_ids), 1))) as n) as n
  join json_to_recordset(p_run_settings) as s(
    k int, queue smallint, target int, priority smallint, at_most_once boolean, start_seconds int, finish_seconds int,
    key bigint, key_limit int, notifies smallint, head text, tail text) on s.k = n.settings;

  with settings as materialized (
    select * from json_to_recordset(p_run_settings) as s(
      k int, queue smallint, target int, priority smallint, start_seconds int, finish_seconds int,
      key bigint, level int)),
  new as materialized (
    select id, request, tenant, settings, coalesce(p_at, timestamptz 'epoch' + instant * interval '1 microsecond') as at
    from (
      select unnest(p_ids) as id, unnest(p_requests) as request, unnest(p_job_tenants) as tenant,
        unnest(p_settings) as settings, unnest(p_instants) as instant) as n),
  timed as (
    insert into hourbell.deadlines (at, id, kind)
    select n.at + make_interval(secs => s.start_seconds), n.id, hourbell.deadline_start()
    from settings as s join new as n on n.settings = s.k where s.start_seconds is not null
    union all
    select n.at + make_interval(secs => s.finish_seconds), n.id, hourbell.deadline_finish()
    from settings as s join new as n on n.settings = s.k where s.finish_seconds is not null),
  -- The job itself records what was requested; the audit row records by whom, once for all jobs that a request
  -- created for a tenant.
  noted as (
    insert into hourbell.audit (at, tenant, job, actor, operation, jobs)
    select p_now, tenant, min(id), p_actors[coalesce(request, 1)], 'create',
      case when count(*) > 1 then array_agg(id) end
    from new group by request, tenant order by request, tenant),
  -- Those that may share a slab are grouped; each of the others is a group of its own.
  alone as materialized (
    select k from settings where key is not null or start_seconds is not null or finish_seconds is not null),
  grouped as materialized (
    select at, settings, hourbell.slab_of(id) as slab, array_agg(id) as ids, array_agg(tenant) as tenants
    from new
    group by at, settings, slab, case
      when settings = any (array(select k from alone))
        or p_unique is not null and id in (select job from json_to_recordset(p_unique) as u(job bigint)) then id end),
  together as (
    insert into hourbell.due_slabs (run_at, slab, queue, priority, flags, target, ids, tenants)
    select g.at, g.slab, s.queue, s.priority, hourbell.flags_level(s.level), s.target, g.ids, g.tenants
    from grouped as g join settings as s on s.k = g.settings where cardinality(g.ids) > 1)
  insert into hourbell.due (run_at, id, tenant, queue, priority, flags, target, key)
  select g.at, g.ids[1], g.tenants[1], s.queue, s.priority, hourbell.flags_level(s.level), s.target, s.key
  from grouped as g join settings as s on s.k = g.settings where cardinality(g.ids) = 1;

  -- All tenants that have a quota now, not only those that `create_jobs` locks: `list_quota_jobs` relies on it.
  if exists (select from hourbell.tenants where max_jobs is not null) then
    insert into hourbell.quota_jobs (tenant, id)
    select n.tenant, n.id from unnest(p_ids, p_job_tenants) as n(id, tenant)
    where n.tenant = any (array(select id from hourbell.tenants where max_jobs is not null));
  end if;
end $$;

-- Creates the jobs of several requests, with their audit rows and the answers that are stored for their keys: one
-- statement, one commit. Requests are counted from 1.
--   p_keys_ms         how long to wait for the transaction that holds a key
--   p_quotas_ms       how long to wait for the lock of a quota
--   p_limited         tenants with a quota, as before_create saw them
--   p_tenants …       the requests; a null in p_keys: nothing is stored. No key twice.
--   p_ids …           one-time jobs of the requests p_requests (null: all of the first), with the settings p_settings
--   p_at              when they run; null: at p_instants (microseconds since 1970: a client encodes them twice as fast
--                     as timestamps)
--   p_run_settings    the settings, as JSON, with their number k: many jobs, few settings; for level see
--                     hourbell.level_of. The document of a job is head || spec || tail if the settings have these.
--   p_recurring       recurring jobs that have not joined their timetables yet, as JSON; null: none
--   p_unique          jobs that request a unique key, as JSON, see give_unique_keys; null: none
-- Left out, and returned: requests whose key already has an answer (repeated), jobs whose unique key another job holds
-- (refused), and jobs beyond the quota (excessive). Jobs that replace another need no room, and are returned as well
-- (replacing).
create or replace function hourbell.create_jobs(
  p_now timestamptz, p_keys_ms int, p_quotas_ms int, p_limited int[],
  p_tenants int[], p_actors text[], p_keys text[], p_fingerprints bytea[], p_answers text[],
  p_ids bigint[], p_requests int[], p_at timestamptz, p_instants bigint[], p_job_tenants int[], p_settings int[],
  p_specs text[], p_run_settings json, p_recurring json, p_unique json,
  out repeated int[], out refused bigint[], out holders bigint[], out replacing bigint[], out excessive bigint[]
)
language plpgsql
set plan = lookups as $$
#variable_conflict use_column
declare
  lock_timeout_before constant text := current_setting('lock_timeout');
  dropped bigint[];
  rooms int[];  -- of p_limited; null: the tenant has no quota any more
begin
  repeated := '{}'; refused := '{}'; holders := '{}'; replacing := '{}'; excessive := '{}';
  if p_limited <> '{}' then
    perform hourbell.lock_quotas(p_limited, p_quotas_ms);
    perform hourbell.add_quota_changes(p_limited, 100);
    -- Before any job is withdrawn: a job that replaces another needs no room.
    rooms := array(
      select (select hourbell.room_in_quota(t) from hourbell.tenants as t where t.id = l.id and t.max_jobs is not null)
      from unnest(p_limited) with ordinality as l(id, pos) order by pos);
  end if;
  perform set_config('lock_timeout', p_keys_ms::text, true);

  if array_remove(p_keys, null) <> '{}' then
    with asked as (
      select * from unnest(p_tenants, p_keys, p_fingerprints, p_answers) with ordinality
        as r(tenant, key, fingerprint, answer, k)
      where key is not null),
    kept as (
      insert into hourbell.idempotency (tenant, key, fingerprint, response, created_at)
      select tenant, key, fingerprint, answer::json, p_now from asked order by tenant, key
      on conflict do nothing returning tenant, key)
    select coalesce(array_agg(k), '{}') into repeated from asked
    where (tenant, key) not in (select tenant, key from kept);
  end if;

  if p_unique is not null then
    select u.refused, u.holders, u.replacing into refused, holders, replacing
    from (
      select array_agg(w.job) as jobs, array_agg(w.tenant) as tenants, array_agg(w.space) as spaces,
        array_agg(w.key) as keys, array_agg(w.replaces) as replaces, array_agg(p_actors[w.request]) as actors
      from json_to_recordset(p_unique)
        as w(job bigint, request int, tenant int, space smallint, key text, replaces boolean)
      where w.request <> all (repeated)) as w
    cross join lateral hourbell.give_unique_keys(
      p_now, w.jobs, w.tenants, w.spaces, w.keys, w.replaces, w.actors) as u
    where w.jobs is not null;
    refused := coalesce(refused, '{}'); holders := coalesce(holders, '{}'); replacing := coalesce(replacing, '{}');
  end if;

  if p_limited <> '{}' then
    with new as (
      select id, coalesce(request, 1) as request, tenant
      from unnest(p_ids, p_requests, p_job_tenants) as n(id, request, tenant)
      union all
      select id, request, tenant from json_to_recordset(p_recurring) as n(id bigint, request int, tenant int)),
    numbered as (
      select n.id, r.room, row_number() over (partition by n.tenant order by n.request, n.id) as nth
      from new as n join unnest(p_limited, rooms) as r(tenant, room) on r.tenant = n.tenant
      where n.request <> all (repeated)
        and not exists (select from unnest(refused || replacing) as known(id) where known.id = n.id))
    -- A unique key that one of them got has no live owner: the next request takes it, or it is deleted.
    select coalesce(array_agg(id), '{}') into excessive from numbered where nth > room;
  end if;

  dropped := refused || excessive;
  if dropped <> '{}' then  -- a refusal is not stored: the same request may succeed later
    delete from hourbell.idempotency as i
    using (
      select id, coalesce(request, 1) as request from unnest(p_ids, p_requests) as n(id, request)
      union all
      select id, request from json_to_recordset(p_recurring) as n(id bigint, request int)) as n
    where n.id = any (dropped) and i.tenant = p_tenants[n.request] and i.key = p_keys[n.request];
  end if;

  if p_ids <> '{}' then
    perform pg_current_xact_id();  -- assigned before the next snapshot: `list_quota_jobs` relies on it
    perform hourbell.insert_one_time(
      p_now, p_actors, p_ids, p_requests, p_at, p_instants, p_job_tenants, p_settings, p_specs, p_run_settings,
        p_unique,
      repeated, dropped);
  end if;

  if p_recurring is not null then
    with new as materialized (
      select * from json_to_recordset(p_recurring) as n(
        id bigint, request int, tenant int, queue smallint, priority smallint, timetable bigint, max_runs int,
        starts_at timestamptz, ends_at timestamptz, name text, spec text, target int, key bigint, key_limit int,
        since timestamptz, misfire smallint, catch_up_seconds int, catch_up_limit int, overlap smallint,
        at_most_once boolean, start_seconds int, finish_seconds int, notifies smallint)
      where n.request <> all (repeated)
        and not exists (select from unnest(dropped) as d(id) where d.id = n.id)),
    made as (
      insert into hourbell.jobs
        (id, tenant, queue, priority, timetable, max_runs, starts_at, ends_at, created_at, updated_at, name, spec,
         target, key, key_limit)
      select id, tenant, queue, priority, timetable, max_runs, starts_at, ends_at, p_now, p_now, name, spec, target,
        key, key_limit from new),
    noted as (
      insert into hourbell.audit (at, tenant, job, actor, operation, after)
      select p_now, tenant, id, p_actors[request], 'create', spec::json from new)
    insert into hourbell.memberships
      (timetable, priority, job, version, active_since, until, tenant, queue, misfire, catch_up_seconds, catch_up_limit,
       overlap, at_most_once, start_deadline_seconds, deadline_seconds, target, key, key_limit, notifies)
    select timetable, priority, id, 1, since, ends_at, tenant, queue, misfire, catch_up_seconds, catch_up_limit,
      overlap, at_most_once, start_seconds, finish_seconds, target, key, key_limit, notifies from new;
  end if;
  perform set_config('lock_timeout', lock_timeout_before, true);
end $$;
