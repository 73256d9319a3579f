-- How long executions ran, by minute and queue, for the seconds of backlog.
alter table hourbell.minutes
  add queues        smallint[] not null default '{}',  -- the 100 with the most runs that ended here,
  add queue_runs    int[] not null default '{}',       -- how many,
  add queue_seconds float8[] not null default '{}';    -- and how long they took together
