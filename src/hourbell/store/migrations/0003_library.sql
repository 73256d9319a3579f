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

-- What the code of an app declares, as its workers have said it when they opened their sessions; a row for each
-- distinct one, however many workers.
create table hourbell.manifests (
  id         bigint generated always as identity primary key,
  app        text not null check (app ~ '^[a-z][a-z0-9_-]{0,39}$'),
  digest     text not null,
  revision   bigint,               -- of the app; null: the manifest that was first seen last leads
  first_seen timestamptz not null,
  body       json not null,        -- tasks, and schedules: by key the digest of the declaration, and the job's document
  unique (app, digest)
);
alter table hourbell.sessions add manifest bigint;  -- that its worker runs by; null: none
create index sessions_by_manifest on hourbell.sessions (manifest) where manifest is not null;

-- What was last applied of the schedules that apps declare: a job each.
create table hourbell.declared (
  app            text not null,
  key            text not null,
  tenant         text,         -- of its job; null: it never had one
  job            bigint,       -- null: not created yet, or retired
  applied_digest text,         -- of the declaration; null: it is being applied
  revision       bigint,       -- of the manifest that had it
  unwanted_since timestamptz,  -- no live manifest declares it since then; null: one does, or none is live
  retired_at     timestamptz,  -- its job is deleted, or about to be
  problem        text,         -- why problem_digest could not be applied
  problem_digest text,
  problem_at     timestamptz,
  primary key (app, key)
);
