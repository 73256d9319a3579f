-- How many jobs a tenant has that count in a quota: its rows of `quota_jobs`, and its recurring jobs that are scheduled
-- or paused. The number is `quota_counts.jobs` and all its `quota_changes` together. Every statement that changes the
-- number adds a row to `quota_changes` (the triggers below), so no transaction waits for another one to count. Creates
-- under the lock of the quota, and housekeeping, add these rows to `quota_counts`.
-- Example: a tenant has 3 recurring jobs and is given a quota. Its count was 3 all along. Two one-time jobs are created
-- and one of them ends: the changes are 2 and -1, the number is 4.
create table hourbell.quota_counts (
  tenant int primary key,
  jobs   bigint not null
) with (fillfactor = 50, autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create table hourbell.quota_changes (
  tenant int not null,
  jobs   bigint not null  -- more, or (negative) fewer
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index quota_changes_by_tenant on hourbell.quota_changes (tenant);

-- An end deletes rows of `quota_jobs` by their ids.
create index quota_jobs_by_id on hourbell.quota_jobs (id);
-- Up to which job housekeeping has looked for rows of `quota_jobs` that should not be there.
create sequence hourbell.quota_jobs_cursor minvalue 0 start 0;
-- Tenants that may have rows in `quota_jobs`. When a quota is removed, `quota_listed_to` is 0 until they are deleted.
create index tenants_with_quota_jobs on hourbell.tenants (id) where max_jobs is not null or quota_listed_to is not null;

-- Triggers, because builds that know nothing of the count use these tables too.
create function hourbell.count_quota_jobs() returns trigger
language plpgsql as $$
begin
  insert into hourbell.quota_changes (tenant, jobs)
  select tenant, case tg_op when 'INSERT' then count(*) else -count(*) end from changed group by tenant;
  return null;
end $$;
create function hourbell.count_new_jobs() returns trigger
language plpgsql as $$
begin
  insert into hourbell.quota_changes (tenant, jobs)
  select tenant, count(*) from changed where status in (0, 1) group by tenant;
  return null;
end $$;
create function hourbell.count_changed_job() returns trigger
language plpgsql as $$
begin
  insert into hourbell.quota_changes (tenant, jobs)
  values (new.tenant, case when new.status in (0, 1) then 1 else -1 end);
  return null;
end $$;

lock table hourbell.jobs, hourbell.quota_jobs in share row exclusive mode;
insert into hourbell.quota_counts (tenant, jobs)
select tenant, count(*) from (
  select tenant from hourbell.jobs where status in (0, 1) union all select tenant from hourbell.quota_jobs) as j
group by tenant;
create trigger count_listed after insert on hourbell.quota_jobs
  referencing new table as changed for each statement execute function hourbell.count_quota_jobs();
create trigger count_unlisted after delete on hourbell.quota_jobs
  referencing old table as changed for each statement execute function hourbell.count_quota_jobs();
create trigger count_new after insert on hourbell.jobs
  referencing new table as changed for each statement execute function hourbell.count_new_jobs();
create trigger count_changed after update of status on hourbell.jobs
  for each row when ((old.status in (0, 1)) <> (new.status in (0, 1)))
  execute function hourbell.count_changed_job();
