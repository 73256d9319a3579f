-- What handlers wait for outside of Hourbell: a token for each name that a handler has asked for, and what was reported
-- with it. Kept until the execution has ended and has no dead letter.
create table hourbell.waits (
  id       bigint not null,
  name     text not null check (length(name) <= 100),
  token    text not null,         -- not its digest: a handler that runs again gets the same token
  is_open  boolean not null default false,  -- the execution awaits it, or is about to
  fence    bigint not null,       -- of the run that has asked last
  outcome  text,                  -- SUCCEEDED, FAILED: reported; TIMED_OUT; null: none of them yet
  value    json,                  -- what was reported: the result, or the text of the failure
  primary key (id, name)
) with (fillfactor = 70, autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
-- Executions that are to be resumed; mostly none.
create index waits_over on hourbell.waits (id) where is_open and outcome is not null;
create sequence hourbell.waits_cursor minvalue 0 start 0;  -- up to which execution housekeeping has looked
