-- Unique keys of jobs, and names of jobs that were put: at most one live job has each. A row of `unique_keys` outlives
-- its job, so that ending an execution costs nothing; whether the job is live is checked by the next request for the
-- key.

-- Those of these jobs that have not ended. Volatile: a caller that waited for a lock must see the current state.
create or replace function hourbell.live_jobs(p_jobs bigint[]) returns bigint[]
language plpgsql set plan = lookups as $$
begin
  if p_jobs = '{}' then return '{}'; end if;  -- for an empty array the planner would read everything
  return array(
    select id from hourbell.jobs where id = any (p_jobs)
      and status in (hourbell.job_scheduled(), hourbell.job_paused())
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
  taken int[];  -- positions of the keys that other jobs hold,
  others bigint[];  -- and those jobs
  at int;
  other bigint;
begin
  for try in 1 .. 5 loop  -- a conflicting row may be deleted before it is locked
    insert into hourbell.unique_keys (tenant, space, key, job)
    select * from unnest(p_tenants, p_spaces, p_keys, p_jobs) as w(tenant, space, key, job) order by tenant, space, key
    on conflict do nothing;
    with locked as materialized (
      select w.pos, k.job
      from unnest(p_tenants, p_spaces, p_keys, p_jobs) with ordinality as w(tenant, space, key, job, pos)
      join hourbell.unique_keys as k
        on k.tenant = w.tenant and k.space = w.space and k.key = w.key and k.job <> w.job
      order by k.tenant, k.space, k.key for update of k)
    select coalesce(array_agg(pos), '{}'), coalesce(array_agg(job), '{}') into taken, others from locked;
    select count(*) into missing from unnest(p_tenants, p_spaces, p_keys) as w(tenant, space, key)
    where not exists (
      select from hourbell.unique_keys as k where k.tenant = w.tenant and k.space = w.space and k.key = w.key);
    exit when missing = 0;
  end loop;
  if missing > 0 then raise lock_not_available; end if;

  refused := '{}'; holders := '{}'; replacing := '{}';
  for n in 1 .. cardinality(taken) loop
    at := taken[n]; other := others[n];
    if hourbell.live_jobs(array[other]) <> '{}' then
      if not (p_replaces[at] and hourbell.replace_job(p_now, other, p_tenants[at], p_actors[at])) then
        refused := refused || p_jobs[at]; holders := holders || other;
        continue;
      end if;
      replacing := replacing || p_jobs[at];
    end if;
    update hourbell.unique_keys as k set job = p_jobs[at]
    where k.tenant = p_tenants[at] and k.space = p_spaces[at] and k.key = p_keys[at];
  end loop;
end $$;

-- The unique key that the job of a dead letter had; no row: it had none, or the letter is a run of a recurring job.
-- (The previous release did not store it.)
create or replace function hourbell.key_of_letter(d hourbell.dead_letters)
returns table (tenant int, space smallint, key text)
language sql stable as $$
  select d.tenant, (k.stored ->> 'space')::smallint, k.stored ->> 'key'
  from (
    select coalesce(
      d.execution -> 'unique_key', hourbell.key_of(d.id),
      jsonb_build_object(
        'space', hourbell.key_space_unique(), 'key', hourbell.as_json(d.execution ->> 'spec') -> 'unique_key')
    ) as stored where d.job is null) as k
  where k.stored ->> 'key' is not null
$$;

-- The job that has the unique key of a dead letter, and has not ended; null: none has.
create or replace function hourbell.holder_of_key(d hourbell.dead_letters) returns bigint
language sql volatile as $$
  select u.job from hourbell.key_of_letter(d) as k
  cross join lateral (
    select job from hourbell.unique_keys as u where u.tenant = k.tenant and u.space = k.space and u.key = k.key
    offset 0) as u
  where u.job <> d.id and hourbell.live_jobs(array[u.job]) <> '{}'
$$;

-- Gives the jobs of dead letters, which the caller has locked, their unique keys back. Returns the letters that must
-- stay dead, because another job has their key; of several with one key, the first gets it.
create or replace function hourbell.take_keys_back(p_now timestamptz, p_letters bigint[]) returns bigint[]
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  ids bigint[]; tenants int[]; spaces smallint[]; keys text[];
  later bigint[];
  n int;
  refused bigint[];
begin
  with keyed as materialized (
    select l.id, k.*, row_number() over (partition by k.tenant, k.space, k.key order by l.pos) as nth
    from unnest(p_letters) with ordinality as l(id, pos)
    cross join lateral (select * from hourbell.dead_letters as d where d.id = l.id offset 0) as d
    cross join lateral hourbell.key_of_letter(d) as k)
  select array_agg(id) filter (where nth = 1), array_agg(tenant) filter (where nth = 1),
    array_agg(space) filter (where nth = 1), array_agg(key) filter (where nth = 1),
    coalesce(array_agg(id) filter (where nth > 1), '{}')
  into ids, tenants, spaces, keys, later from (select * from keyed order by tenant, space, key) as k;
  if ids is null then return '{}'; end if;
  -- The rows that name these jobs already are written again: so no other request can take them, and housekeeping, which
  -- may have found the jobs not live, does not delete them.
  update hourbell.unique_keys set job = job where ctid = any (array(
    select k.row from unnest(tenants, spaces, keys, ids) as w(tenant, space, key, job) cross join lateral (
      select k.ctid as row from hourbell.unique_keys as k
      where k.tenant = w.tenant and k.space = w.space and k.key = w.key and k.job = w.job for update) as k));
  n := cardinality(ids);
  select u.refused into refused from hourbell.give_unique_keys(
    p_now, ids, tenants, spaces, keys, array_fill(false, array[n]), array_fill(null::text, array[n])) as u;
  return refused || later;
end $$;
