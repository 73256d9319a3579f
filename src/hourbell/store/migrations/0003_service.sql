-- The service: who may call it, and what it keeps for them.

create table hourbell.api_keys (
  id         bigint primary key,
  tenant     int references hourbell.tenants,  -- null: of all tenants
  role       text not null,
  name       text not null,
  digest     bytea not null unique,            -- SHA-256; the key itself is nowhere
  created_at timestamptz not null,
  revoked_at timestamptz
);
create index api_keys_by_tenant on hourbell.api_keys (tenant, id);
create index api_keys_of_admins on hourbell.api_keys (id) where role = 'admin' and tenant is null and revoked_at is null;

create table hourbell.secrets (
  tenant     int not null references hourbell.tenants,
  name       text not null,
  sealed     bytea not null,      -- AES-256-GCM: nonce, then ciphertext; bound to tenant and name
  sealed_by  text not null,       -- the name of the key that opens it
  previous   bytea,               -- the value before, while signatures are made by both
  previous_by text,
  previous_until timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (tenant, name)
);

-- Who brought a queue into being by naming it in a job; null: an administrator, a worker, or nobody knows.
alter table hourbell.queues add made_by int references hourbell.tenants;
create index queues_by_maker on hourbell.queues (made_by) where made_by is not null;

-- Who has a key that only one living job of a tenant can have. A row outlives its job: whoever wants the key looks whether
-- the job still lives, so that ending an execution costs nothing. Spaces: 0 unique_key, 1 the name of a job made by PUT.
create table hourbell.unique_keys (
  tenant int not null,
  space  smallint not null,
  key    text not null,
  job    bigint not null,
  primary key (tenant, space, key)
);
create index unique_keys_by_job on hourbell.unique_keys (job);

-- Up to which job housekeeping has looked for keys of jobs that are over.
create sequence hourbell.unique_keys_cursor minvalue 0 start 0;

-- Replays. An execution that was replayed goes on under its id: its attempts and its fence go on counting, its retries are
-- counted anew. Null for all that was never replayed.
alter table hourbell.executions
  add replayed_attempt int,    -- attempts that had ended when it was replayed last
  add replayed_fence   bigint; -- the fence that it had then

-- Deaths that were undone: the row of the ledger (id, recorded_at = died_at) stays and is no longer how it ended.
create table hourbell.replays (
  id          bigint not null,
  died_at     timestamptz not null,
  replayed_at timestamptz not null,
  primary key (id, died_at)
);
create index replays_by_age on hourbell.replays (died_at);

-- A dead letter has every attempt in it, and the job as it was.
drop function if exists hourbell.letter(hourbell.executions, int, bigint);
-- An attempt says which session brought it.
drop function if exists hourbell.add_attempt(jsonb, int, timestamptz, timestamptz, bigint, text, text);

drop index hourbell.dead_letters_by_tenant;
create index dead_letters_in_order on hourbell.dead_letters (died_at, id);
create index dead_letters_by_tenant on hourbell.dead_letters (tenant, died_at, id);
create index dead_letters_by_job on hourbell.dead_letters (coalesce(job, id), died_at, id);

-- Lists of executions across jobs.
create index ledger_by_tenant on hourbell.ledger (tenant, id) where job <> id;

create index audit_by_tenant on hourbell.audit (tenant, id);

-- Executions that their targets have accepted and will complete; they are leased by session 0, see settle.
create table hourbell.awaiting (
  id       bigint not null,
  fence    bigint not null,
  until    timestamptz not null,  -- its attempt fails if nobody has said anything by then
  begun_ms int not null,          -- from the claim to the start of the attempt
  token    bytea not null,        -- SHA-256 of what the target has to bring
  outcome  text,                  -- null: it waits; SUCCEEDED, FAILED: so said the target; ENDED: without it. Kept for repetitions
  primary key (id, fence)
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index awaiting_in_order on hourbell.awaiting (until) where outcome is null;
create index awaiting_ended on hourbell.awaiting (until) where outcome is not null;

-- Sessions that are over, for workers that repeat an outcome whose answer was lost.
create table hourbell.past_sessions (
  id       bigint primary key,
  token    uuid not null,
  ended_at timestamptz not null
);
create index past_sessions_by_age on hourbell.past_sessions (ended_at);

-- Jobs that their target wants no more of, as of a version: to be paused, if that is still their version.
create table hourbell.gone (
  job     bigint not null,
  version int not null
);

-- What an execution waits for until run_at, if that is neither its time nor its next attempt.
alter table hourbell.executions add waits_for text;

-- How far what is held has come, as JSON, in the words of its worker; '' is nothing. Not null, because a null would cost every
-- row of the hot path eight bytes.
alter table hourbell.leased add progress text not null default '';

-- Notices: whom to tell what became of an execution. Bits of `notifies`: 1 success, 2 an attempt failed, 4 dead letter.
alter table hourbell.members add notifies smallint not null default 0;
alter table hourbell.executions add notifies smallint not null default 0;

-- The outbox: written by whoever decides the event, in the same transaction; the leader makes executions out of it.
create table hourbell.notices (
  id            bigint generated always as identity primary key,
  at            timestamptz not null,
  scheduled_for timestamptz not null,
  execution     bigint,             -- null: a monitor's
  job           bigint not null,    -- equals execution for a one-time job
  monitor       bigint,
  tenant        int not null,
  attempt       int not null default 0,
  event         smallint not null,  -- the bits above, and of monitors: 8 missed, 16 recovered
  reason        text,
  error         text,
  spec          text                -- one-time only
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);

-- Dead-man switches: a success of the job is expected at or after `expected_at`, and within the grace.
create table hourbell.monitors (
  id            bigint primary key,
  tenant        int not null references hourbell.tenants,
  job           bigint not null,
  created_at    timestamptz not null,
  deleted_at    timestamptz,
  since         timestamptz not null,  -- of the watch: its creation, the last success, a resume or another schedule
  expected_at   timestamptz,           -- the first occurrence after that; null: still to be reckoned, or there is none
  check_at      timestamptz,           -- when to look; null: nothing is expected
  looked_at     timestamptz not null,
  last_success_at timestamptz,
  down_since    timestamptz,           -- an alert was sent, and no success has come since
  version       int not null default 1,  -- of this row
  grace_seconds int not null,
  url           text not null,
  headers       json not null
) with (fillfactor = 70);
create index monitors_by_check on hourbell.monitors (check_at) where check_at is not null;
create index monitors_deleted on hourbell.monitors (deleted_at) where deleted_at is not null;
create index monitors_by_job on hourbell.monitors (job) where deleted_at is null;
create index monitors_by_tenant on hourbell.monitors (tenant, id) where deleted_at is null;
