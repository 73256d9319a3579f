-- Quotas: how many jobs a tenant may have (`tenants.max_jobs`). They are counted under a lock, never kept in a counter.
-- Recurring jobs are counted in `jobs`. The one-time jobs of a tenant with a quota are listed in `quota_jobs`: new ones
-- when they are created, those that were there before the quota by the leader (`list_quota_jobs`).
-- Example: a tenant with 3 recurring jobs and 5 waiting one-time jobs gets max_jobs 10. At once there is room for 2
-- more; a batch of 4 creates 2 of them and refuses 2.

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
