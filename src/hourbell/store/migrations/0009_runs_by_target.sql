-- What each minute counts of runs by what they call, for the page of tasks. In rows of an older build, an attempt that
-- failed does not say what it called, and a minute counts nothing.
alter table hourbell.failed_attempts add column id bigint, add column target int;
-- Parallel arrays: for each of the 100 targets with the most attempts that ended in the minute, and each class of
-- durations that it has (as those of `lateness`), the attempts and what they came to.
alter table hourbell.minutes
  add column run_targets  int[] not null default '{}',      -- as in executions.target
  add column run_classes  smallint[] not null default '{}',
  add column run_counts   int[] not null default '{}',
  add column run_failures int[] not null default '{}',
  add column run_longest  float8[] not null default '{}',   -- seconds
  add column run_failed   bigint[] not null default '{}',   -- an execution that failed; null: none
  add column other_runs   int not null default 0;           -- attempts of the other targets
