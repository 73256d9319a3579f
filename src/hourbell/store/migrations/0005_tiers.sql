-- Tiers: the due of one priority wait in four of them, so that the many of one tenant do not delay the few of another.

-- The tier of a row of `due`: its priority, and four times its level (see hourbell.level_of).
create function hourbell.tier(p_priority smallint, p_checks smallint) returns int
language sql immutable parallel safe
return p_priority + (p_checks & 12);

create index due_by_tier on hourbell.due (hourbell.tier(priority, checks), run_at, id);

-- The version before finds the due by `due_in_order`. A database that has been in use keeps that index until a later
-- migration drops it, and pays for one more index entry for each row; a new database starts without it.
do $$
begin
  if not (select is_called from hourbell.ids) then drop index hourbell.due_in_order; end if;
end $$;

-- How many executions of a tenant have been planned for one moment, where these are many. Rows are only inserted; the
-- highest count is the newest. Housekeeping deletes them when their moment has passed.
create table hourbell.crowds (
  at      timestamptz not null,
  tenant  int not null,
  planned int not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index crowds_by_time on hourbell.crowds (at);
