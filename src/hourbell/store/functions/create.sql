-- Creating jobs: one read of what must be known, then one statement for the jobs of all concurrent requests.

-- Returns what must be known before documents can be read: the time, ids for p_count jobs, the defaults of queues, the
-- quotas of tenants and how much room they leave, and answers that were already given: answered[k] is an index into
-- p_keys.
-- Jobs that other transactions are creating are not seen; `create_jobs` counts again, under the lock of the quota.
create or replace function hourbell.before_create(
  p_count int, p_queues text[], p_tenants text[], p_key_tenants text[], p_keys text[],
  out now timestamptz, out ids bigint[],
  out queues text[], out timeouts int[], out retry_policies text[],
  out limited text[], out quotas int[], out rooms int[],
  out answered int[], out fingerprints bytea[], out answers text[]
)
language plpgsql
set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare base bigint;
begin
  now := hourbell.clock();
  base := hourbell.id_base(now);
  ids := array(select base | (nextval('hourbell.ids') & 4194303) from generate_series(1, p_count));
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

-- How many more jobs a tenant may have: its quota minus its jobs that are scheduled, paused, waiting or running. Until
-- `list_quota_jobs` has listed the one-time jobs that were there before the quota, those among the 10,000 newest count.
create or replace function hourbell.room_in_quota(t hourbell.tenants) returns int
language sql stable
set plan = lookups_one_by_one as $$
  select t.max_jobs - (
      select count(*) from (
        select from unnest(array[hourbell.job_scheduled(), hourbell.job_paused()]) as s(status) cross join lateral (
          select from hourbell.jobs as j where j.tenant = t.id and j.status = s.status
            limit t.max_jobs) as j) as recurring)::int
    - (
      select count(*) from (
        select from (
          select q.id from hourbell.quota_jobs as q where q.tenant = t.id
          union
          select e.id from (
            select e.id, e.origin from hourbell.executions as e
            where e.job is null and (e.tenant, e.id) <= (t.id, 9223372036854775807) and e.tenant >= t.id
              and t.quota_listed_to is not null
            order by e.tenant desc, e.id desc limit 10000) as e
          where e.origin = hourbell.origin_schedule()) as j
        cross join lateral (select from hourbell.live as e where e.id = j.id offset 0) as e
        limit t.max_jobs) as one_time)::int
$$;

-- Lists one-time jobs that a tenant had before it got a quota: the next p_limit of one tenant. They are listed when
-- every transaction that may not have seen the quota has ended; all later ones are listed when they are created. Also
-- deletes the lists of tenants that have no quota any more. Returns whether there is more to do at once.
create or replace function hourbell.list_quota_jobs(p_node uuid, p_epoch bigint, p_limit int) returns boolean
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  this hourbell.tenants;
  last bigint;
  n int;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  update hourbell.tenants set quota_ahead = pg_snapshot_xmax(pg_current_snapshot()) where id = any (array(
    select id from hourbell.tenants where max_jobs is not null and quota_listed_to is not null and quota_ahead is null
    for no key update skip locked));
  select * into this from hourbell.tenants
  where max_jobs is not null and quota_listed_to is not null
    and quota_ahead <= pg_snapshot_xmin(pg_current_snapshot())
  order by id limit 1 for no key update skip locked;
  if found then
    with next as materialized (
      select e.id, e.origin from hourbell.executions as e
      where e.job is null and (e.tenant, e.id) < (this.id, this.quota_listed_to) and e.tenant >= this.id
      order by e.tenant desc, e.id desc limit p_limit),
    listed as (
      insert into hourbell.quota_jobs (tenant, id)
      select this.id, next.id from next
      where next.origin = hourbell.origin_schedule()
        and not exists (select from hourbell.outcomes as o where o.id = next.id offset 0)
      on conflict do nothing)
    select min(id), count(*) into last, n from next;
    update hourbell.tenants set quota_listed_to = case when n = p_limit then last end where id = this.id;
    return true;
  end if;
  delete from hourbell.quota_jobs where ctid = any (array(
    select q.ctid from hourbell.quota_jobs as q cross join lateral (
      select from hourbell.tenants as t where t.id = q.tenant and t.max_jobs is null offset 0) as t
    limit p_limit));
  return false;
end $$;

-- Locks quotas until the end of the transaction: one transaction at a time counts the jobs of a tenant and adds to
-- them. Transactions lock quotas before they wait for keys, in the order of their tenants, so they cannot deadlock.
-- lock_not_available with the constraint `quota`: another transaction has held one for longer than p_ms.
create or replace function hourbell.lock_quotas(p_tenants int[], p_ms int) returns void
language plpgsql as $$
declare before constant text := current_setting('lock_timeout');
begin
  perform set_config('lock_timeout', p_ms::text, true);
  perform pg_advisory_xact_lock((32::bigint << 56) + t.id)
  from (select distinct unnest(p_tenants) as id order by id) as t;
  perform set_config('lock_timeout', before, true);
  -- A batch has round trips before its commit. A client that stops there must not block other creators for long.
  perform set_config('idle_in_transaction_session_timeout', '2s', true);
exception when lock_not_available then
  raise lock_not_available using message = 'another transaction is creating jobs for this tenant', constraint = 'quota';
end $$;

-- The numbers of queues; a new name becomes a new queue. p_makers[k] is the tenant whose jobs name p_names[k]; null:
-- not created for a job, and not counted. check_violation, whose detail is a tenant: the tenant would have created more
-- than p_most. Concurrent calls do not see each other's names, so the bound is not exact: an exact one would need a
-- lock on the tenant, held while waiting for a name.
create or replace function hourbell.ensure_queues(p_names text[], p_now timestamptz, p_makers text[], p_most int)
returns table (id smallint, name text)
language plpgsql
set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  excessive text;
begin
  if exists (
    select from unnest(p_names) as n(name) where not exists (select from hourbell.queues as q
      where q.name = n.name offset 0))
  then
    select t.name into excessive
    from hourbell.tenants as t
    cross join lateral (select count(*) as n from hourbell.queues as q where q.made_by = t.id) as made
    cross join lateral (
      select count(*) as n from unnest(p_names, p_makers) as a(name, maker)
      where a.maker = t.name and not exists (select from hourbell.queues as q where q.name = a.name offset 0)) as more
    where t.name = any (p_makers) and more.n > 0 and made.n + more.n > p_most
    limit 1;
    if excessive is not null then
      raise check_violation using message = 'the tenant would create too many queues', detail = excessive;
    end if;
    insert into hourbell.queues (name, created_at, made_by)
    select a.name, p_now, t.id from unnest(p_names, p_makers) as a(name, maker)
    left join hourbell.tenants as t on t.name = a.maker
    where not exists (select from hourbell.queues as q where q.name = a.name offset 0) order by a.name
    on conflict (name) do nothing;
  end if;
  return query select q.id, q.name from hourbell.queues as q where q.name = any (p_names);
end $$;

-- Those of these jobs that have not ended. Volatile: a caller that waited for a lock must see the current state.
create or replace function hourbell.live_jobs(p_jobs bigint[]) returns bigint[]
language plpgsql set plan = lookups as $$
begin
  if p_jobs = '{}' then return '{}'; end if;  -- for an empty array the planner would read everything
  return array(
    select id from hourbell.jobs where id = any (p_jobs) and status in (0, 1)
    union all
    select id from (select id, job from hourbell.live where id = any (p_jobs) offset 0) as e where job is null);
end $$;

-- Gives unique keys to new jobs, to all or to those that can have theirs. Returns the jobs that replaced a waiting job
-- (replacing), and those that got no key (refused) because a job that has not ended holds it (holders).
-- p_jobs[k] requests p_keys[k] in p_spaces[k]; no key twice. p_replaces[k]: a waiting job that holds the key is
-- removed. That is done one by one, thousands of times in a batch: planning each time would take four times as long as
-- doing it.
create or replace function hourbell.give_unique_keys(
  p_now timestamptz, p_jobs bigint[], p_tenants int[], p_spaces smallint[], p_keys text[], p_replaces boolean[],
  p_actors text[], out refused bigint[], out holders bigint[], out replacing bigint[]
)
language plpgsql
set plan = lookups_one_by_one set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  missing int;
  places int[];  -- positions of the keys that other jobs hold,
  others bigint[];  -- and those jobs
  place int;
  other bigint;
begin
  for try in 1 .. 5 loop  -- a conflicting row may be deleted before it is locked
    insert into hourbell.unique_keys (tenant, space, key, job)
    select * from unnest(p_tenants, p_spaces, p_keys, p_jobs) as w(tenant, space, key, job) order by tenant, space, key
    on conflict do nothing;
    with locked as materialized (
      select w.place, k.job
      from unnest(p_tenants, p_spaces, p_keys, p_jobs) with ordinality as w(tenant, space, key, job, place)
      join hourbell.unique_keys as k
        on k.tenant = w.tenant and k.space = w.space and k.key = w.key and k.job <> w.job
      order by k.tenant, k.space, k.key for update of k)
    select coalesce(array_agg(place), '{}'), coalesce(array_agg(job), '{}') into places, others from locked;
    select count(*) into missing from unnest(p_tenants, p_spaces, p_keys) as w(tenant, space, key)
    where not exists (
      select from hourbell.unique_keys as k where k.tenant = w.tenant and k.space = w.space and k.key = w.key);
    exit when missing = 0;
  end loop;
  if missing > 0 then raise lock_not_available; end if;

  refused := '{}'; holders := '{}'; replacing := '{}';
  for n in 1 .. cardinality(places) loop
    place := places[n]; other := others[n];
    if hourbell.live_jobs(array[other]) <> '{}' then
      if not (p_replaces[place] and hourbell.replace_job(p_now, other, p_tenants[place], p_actors[place])) then
        refused := refused || p_jobs[place]; holders := holders || other;
        continue;
      end if;
      replacing := replacing || p_jobs[place];
    end if;
    update hourbell.unique_keys as k set job = p_jobs[place]
    where k.tenant = p_tenants[place] and k.space = p_spaces[place] and k.key = p_keys[place];
  end loop;
end $$;

-- Creates the jobs of several requests, with their audit rows and the answers that are stored for their keys: one
-- statement, one commit. Requests are counted from 1.
--   p_keys_ms         how long to wait for the transaction that holds a key
--   p_quotas_ms       how long to wait for the lock of a quota
--   p_limited         tenants with a quota, as before_create saw them
--   p_tenants …       the requests; a null in p_keys: nothing is stored. No key twice.
--   p_ids …           one-time jobs of the requests p_requests, at p_instants (microseconds since 1970: a client
--                     encodes them twice as fast as timestamps), with the settings p_settings
--   p_run_settings    the settings, as JSON, with their number k: many jobs, few settings; for level see
--                     hourbell.level_of
--   p_recurring       recurring jobs that have not joined their timetables yet, as JSON; null: none
--   p_unique          jobs that request a unique key, as JSON, see give_unique_keys; null: none
-- Left out, and returned: requests whose key already has an answer (repeated), jobs whose unique key another job holds
-- (refused), and jobs beyond the quota (excessive). Jobs that replace another need no room, and are returned as well
-- (replacing).
create or replace function hourbell.create_jobs(
  p_now timestamptz, p_keys_ms int, p_quotas_ms int, p_limited int[],
  p_tenants int[], p_actors text[], p_keys text[], p_fingerprints bytea[], p_answers text[],
  p_ids bigint[], p_requests int[], p_instants bigint[], p_job_tenants int[], p_settings int[], p_specs text[],
  p_run_settings json, p_recurring json, p_unique json,
  out repeated int[], out refused bigint[], out holders bigint[], out replacing bigint[], out excessive bigint[]
)
language plpgsql
set plan = lookups as $$
#variable_conflict use_column
declare
  patience constant text := current_setting('lock_timeout');
  dropped bigint[];
  rooms int[];  -- of p_limited; null: the tenant has no quota any more
begin
  repeated := '{}'; refused := '{}'; holders := '{}'; replacing := '{}'; excessive := '{}';
  if p_limited <> '{}' then
    perform hourbell.lock_quotas(p_limited, p_quotas_ms);
    delete from hourbell.quota_jobs as q where q.tenant = any (p_limited) and not exists (
      select from hourbell.live as e where e.id = q.id offset 0);
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
      insert into hourbell.idempotency (tenant, key, fingerprint, status, response, created_at)
      select tenant, key, fingerprint, 0, answer::json, p_now from asked order by tenant, key
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
      select id, request, tenant from unnest(p_ids, p_requests, p_job_tenants) as n(id, request, tenant)
      union all
      select id, request, tenant from json_to_recordset(p_recurring) as n(id bigint, request int, tenant int)),
    placed as (
      select n.id, r.room, row_number() over (partition by n.tenant order by n.request, n.id) as place
      from new as n join unnest(p_limited, rooms) as r(tenant, room) on r.tenant = n.tenant
      where n.request <> all (repeated) and n.id <> all (refused) and n.id <> all (replacing))
    -- A unique key that one of them got has no live owner: the next request takes it, or it is deleted.
    select coalesce(array_agg(id), '{}') into excessive from placed where place > room;
  end if;

  dropped := refused || excessive;
  if dropped <> '{}' then  -- a refusal is not stored: the same request may succeed later
    delete from hourbell.idempotency as i
    using (
      select id, request from unnest(p_ids, p_requests) as n(id, request)
      union all
      select id, request from json_to_recordset(p_recurring) as n(id bigint, request int)) as n
    where n.id = any (dropped) and i.tenant = p_tenants[n.request] and i.key = p_keys[n.request];
  end if;

  if p_ids <> '{}' then
    with settings as materialized (
      select * from json_to_recordset(p_run_settings) as s(
        k int, queue smallint, target int, priority smallint, at_most_once boolean, start_seconds int,
        finish_seconds int, key bigint, key_limit int, notifies smallint, level int)),
    new as materialized (
      select n.id, n.request, i.at, n.tenant, n.spec, s.queue, s.target, s.priority, s.at_most_once, s.key,
        s.key_limit, s.notifies, s.level, u.job is not null as is_unique,
        i.at + make_interval(secs => s.start_seconds) as start_by,
        i.at + make_interval(secs => s.finish_seconds) as finish_by
      from unnest(p_ids, p_requests, p_instants, p_job_tenants, p_settings, p_specs)
        as n(id, request, instant, tenant, settings, spec)
      join settings as s on s.k = n.settings
      left join json_to_recordset(p_unique) as u(job bigint) on u.job = n.id
      cross join lateral (select timestamptz 'epoch' + n.instant * interval '1 microsecond' as at) as i
      where n.request <> all (repeated) and n.id <> all (dropped)),
    made as (
      insert into hourbell.executions
        (id, occurrence, run_at, tenant, queue, priority, start_by, finish_by, version, origin, at_most_once, spec,
         target, key, key_limit, notifies)
      select id, at, at, tenant, queue, priority, start_by, finish_by, 1, 0, at_most_once, spec, target, key, key_limit,
        notifies
      from new),
    -- All tenants that have a quota now, not only those of p_limited: `list_quota_jobs` relies on it.
    counted as (
      insert into hourbell.quota_jobs (tenant, id)
      select tenant, id from new where tenant = any (array(
        select id from hourbell.tenants where max_jobs is not null))),
    timed as (
      insert into hourbell.deadlines (at, id, kind)
      select start_by, id, 0 from new where start_by is not null
      union all
      select finish_by, id, 1 from new where finish_by is not null),
    -- The job itself records what was requested; the audit row records by whom, once for all jobs that a request
    -- created for a tenant.
    noted as (
      insert into hourbell.audit (at, tenant, job, actor, operation, jobs)
      select p_now, tenant, min(id), p_actors[request], 'create', case when count(*) > 1 then array_agg(id) end
      from new group by request, tenant order by request, tenant),
    -- Those that may share a slab are grouped; each of the others is a group of its own.
    grouped as materialized (
      select at, slab, queue, priority, level, target, key, array_agg(id) as ids, array_agg(tenant) as tenants
      from (
        select *, hourbell.slab_of(id) as slab, case
          when key is not null or start_by is not null or finish_by is not null or is_unique then id end as apart
        from new) as n
      group by at, slab, queue, priority, level, target, key, apart),
    together as (
      insert into hourbell.due_slabs (run_at, slab, queue, priority, checks, target, ids, tenants)
      select at, slab, queue, priority, 4 * level, target, ids, tenants from grouped where cardinality(ids) > 1)
    insert into hourbell.due (run_at, id, tenant, queue, priority, checks, target, key)
    select at, ids[1], tenants[1], queue, priority, 4 * level, target, key from grouped where cardinality(ids) = 1;
  end if;

  if p_recurring is not null then
    with new as materialized (
      select * from json_to_recordset(p_recurring) as n(
        id bigint, request int, tenant int, queue smallint, priority smallint, timetable bigint, max_runs int,
        starts_at timestamptz, ends_at timestamptz, name text, spec text, target int, key bigint, key_limit int,
        since timestamptz, misfire smallint, catch_up_seconds int, catch_up_limit int, overlap smallint,
        at_most_once boolean, start_seconds int, finish_seconds int, notifies smallint)
      where n.request <> all (repeated) and n.id <> all (dropped)),
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
  perform set_config('lock_timeout', patience, true);
end $$;
