-- Rows on which a step of the leader, or a worker, has failed: for example a job that this version cannot read. The
-- step goes on without them and tries them again after a minute (functions/isolation.sql).
create table hourbell.failing_rows (
  step      text not null,         -- that failed on it
  id        bigint not null,       -- of the row, as the step counts its rows: an execution, a job, a notice …
  job       bigint,                -- that it is about; null: none
  execution bigint,
  since     timestamptz not null,  -- it failed first
  until     timestamptz not null,  -- it is left out
  problem   text not null,         -- why
  primary key (step, id)
);
create index failing_rows_until on hourbell.failing_rows (until);
