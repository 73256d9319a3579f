-- Quotas: how many jobs a tenant may have (`tenants.max_jobs`). How many it has is known without counting them: it is
-- the number of its recurring jobs that are scheduled or paused, and of its rows in `quota_jobs`; triggers write each
-- change of that number to `quota_changes`. `quota_jobs` lists the one-time jobs of tenants with a quota: new ones when
-- they are created, those that were there before the quota by the leader (`list_quota_jobs`). Their end deletes them.
-- Example: a tenant with 3 recurring jobs and 5 waiting one-time jobs gets max_jobs 10. At once there is room for 2
-- more; a batch of 4 creates 2 of them and refuses 2.

-- How many more jobs a tenant may have: its quota minus its jobs that are scheduled, paused, waiting or running. Until
-- `list_quota_jobs` has listed the one-time jobs that were there before the quota, those among the 10,000 newest count.
create or replace function hourbell.room_in_quota(t hourbell.tenants) returns int
language sql stable
set plan = lookups_one_by_one as $$
  select (t.max_jobs
    - coalesce((select jobs from hourbell.quota_counts as c where c.tenant = t.id), 0)
    - coalesce((select sum(jobs) from hourbell.quota_changes as c where c.tenant = t.id), 0)
    - case when t.quota_listed_to is null then 0 else (
        select count(*) from (
          select e.id, e.origin from hourbell.executions as e
          where e.job is null and (e.tenant, e.id) <= (t.id, 9223372036854775807) and e.tenant >= t.id
          order by e.tenant desc, e.id desc limit 10000) as e
        where e.origin = hourbell.origin_schedule()
          and not exists (select from hourbell.outcomes as o where o.id = e.id offset 0)
          and not exists (select from hourbell.quota_jobs as q where q.tenant = t.id and q.id = e.id offset 0))
      end)::int
$$;

-- Adds the changes of tenants that have more than p_most of them to their counts, at most 10,000 of each tenant. The
-- caller has locked their quotas.
create or replace function hourbell.add_quota_changes(p_tenants int[], p_most int) returns void
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  with changes as materialized (
    select c.* from unnest(p_tenants) as t(id) cross join lateral (
      select ctid as row, tenant, count(*) over () as number from (
        select ctid, tenant from hourbell.quota_changes as c where c.tenant = t.id limit 10000) as c) as c),
  added as (
    delete from hourbell.quota_changes
    where ctid = any (array(select row from changes where number > p_most))
    returning tenant, jobs)
  insert into hourbell.quota_counts as c (tenant, jobs)
  select tenant, sum(jobs) from added group by tenant order by tenant
  on conflict (tenant) do update set jobs = c.jobs + excluded.jobs;
end $$;

-- These executions have ended. The one-time jobs among them take no room in a quota any more.
create or replace function hourbell.leave_quotas(p_ids bigint[]) returns void
language plpgsql as $$
begin
  if exists (select from hourbell.tenants where max_jobs is not null or quota_listed_to is not null) then
    delete from hourbell.quota_jobs where id = any (p_ids);
  end if;
end $$;

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
  -- First of all: every transaction that has not seen a quota has a lower number than one that is assigned after it was
  -- seen. The end of a snapshot is no such number: it is that of the first transaction after the last one that ended.
  if pg_current_xact_id_if_assigned() is null then
    update hourbell.tenants set quota_ahead = pg_current_xact_id() where id = any (array(
      select id from hourbell.tenants where max_jobs is not null and quota_listed_to is not null and quota_ahead is null
      for no key update skip locked));
  end if;
  perform hourbell.check_epoch(p_node, p_epoch);
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
  select * into this from hourbell.tenants where max_jobs is null and quota_listed_to is not null
  order by id limit 1 for no key update skip locked;
  if not found then return false; end if;
  delete from hourbell.quota_jobs where ctid = any (array(
    select ctid from hourbell.quota_jobs where tenant = this.id order by id limit p_limit for update skip locked));
  get diagnostics n = row_count;
  update hourbell.tenants set quota_listed_to = null where id = this.id and n < p_limit;
  return true;
end $$;

-- Looks at the next p_limit rows of `quota_jobs`, and deletes those that should not be there. A job can end while it is
-- being listed, and builds that know nothing of the count leave rows behind. Also adds changes to counts, for tenants
-- for which no transaction creates jobs.
create or replace function hourbell.check_quota_jobs(p_node uuid, p_epoch bigint, p_limit int) returns void
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  tenants int[];
  ids bigint[];
  rows tid[];
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  select coalesce(array_agg(tenant), '{}'), coalesce(array_agg(id), '{}'), array_agg(row) into tenants, ids, rows
  from (
    select tenant, id, ctid as row from hourbell.quota_jobs
    where id > (select last_value from hourbell.quota_jobs_cursor) order by id limit p_limit) as q;
  -- The cursor wraps around, so that a million rows are not read each time.
  perform setval('hourbell.quota_jobs_cursor', case when cardinality(ids) < p_limit then 0 else ids[p_limit] end);
  -- A replay that has made a job live since then has written its row again, at another place.
  delete from hourbell.quota_jobs where ctid = any (array(
    select ctid from hourbell.quota_jobs
    where ctid = any (array(
      select q.row from unnest(rows, ids, tenants) as q(row, id, tenant)
      where not exists (select from hourbell.live as e where e.id = q.id offset 0)
        or not exists (
          select from hourbell.tenants as t
          where t.id = q.tenant and (t.max_jobs is not null or t.quota_listed_to is not null) offset 0)))
    for update skip locked));
  perform hourbell.add_quota_changes(array(
    select tenant from (
      select tenant from (select tenant from hourbell.quota_changes limit p_limit) as c
      group by tenant order by random() limit 1000) as c  -- each takes a lock
    where pg_try_advisory_xact_lock(hourbell.quota_lock(tenant))), 0);
end $$;

-- The number of the advisory lock of a quota.
create or replace function hourbell.quota_lock(p_tenant int) returns bigint
language sql immutable
return (32::bigint << 56) + p_tenant;

-- Locks quotas until the end of the transaction: one transaction at a time counts the jobs of a tenant and adds to
-- them. Transactions lock quotas before they wait for keys, in the order of their tenants, so they cannot deadlock.
-- lock_not_available with the constraint `quota`: another transaction has held one for longer than p_ms.
create or replace function hourbell.lock_quotas(p_tenants int[], p_ms int) returns void
language plpgsql as $$
declare before constant text := current_setting('lock_timeout');
begin
  perform set_config('lock_timeout', p_ms::text, true);
  perform pg_advisory_xact_lock(hourbell.quota_lock(t.id))
  from (select distinct unnest(p_tenants) as id order by id) as t;
  perform set_config('lock_timeout', before, true);
  -- A batch has round trips before its commit. A client that stops there must not block other creators for long.
  perform set_config('idle_in_transaction_session_timeout', '2s', true);
exception when lock_not_available then
  raise lock_not_available using message = 'another transaction is creating jobs for this tenant', constraint = 'quota';
end $$;
