-- A progress report updates its row in place: leave room on the page for that, and vacuum early as for other tables that
-- churn. Affects pages written from now on, and takes no lock that readers or writers wait for.
alter table hourbell.progress
  set (fillfactor = 50, autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
