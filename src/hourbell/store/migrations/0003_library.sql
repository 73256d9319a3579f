-- How often a worker has returned an execution that it had begun, without an ended attempt: interrupted because the
-- worker was stopped, or snoozed because the handler asked to run again later. Both are bounded.
create table hourbell.reruns (
  id            bigint primary key,
  attempt       int not null,  -- attempts of the execution that had ended when it was last returned
  interruptions int not null,  -- in a row, since that attempt and since the last snooze
  snoozes       int not null   -- since the execution was created or replayed
) with (fillfactor = 70, autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
-- Up to which execution housekeeping has looked for rows of executions that have ended.
create sequence hourbell.reruns_cursor minvalue 0 start 0;

-- The last checkpoint of an execution, written by the session that held it under this fence, and sent with its next
-- claim. Kept until the execution has ended and has no dead letter.
create table hourbell.checkpoints (
  id    bigint primary key,
  fence bigint not null,
  value json not null check (octet_length(value::text) <= 65536),
  at    timestamptz not null
) with (fillfactor = 70, autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create sequence hourbell.checkpoints_cursor minvalue 0 start 0;  -- as reruns_cursor
