-- Sign-ins of the dashboard: a browser holds 32 random bytes in a cookie in place of an API key. A sign-in ends with its
-- key, by its age, or when it was not used for some time.
create table hourbell.sign_ins (
  digest     bytea primary key,   -- SHA-256 of the cookie; the cookie itself is not stored
  key        bigint not null references hourbell.api_keys,
  created_at timestamptz not null,
  used_at    timestamptz not null -- within minutes
) with (fillfactor = 70);
create index sign_ins_by_key on hourbell.sign_ins (key, created_at);
create index sign_ins_by_use on hourbell.sign_ins (used_at);

-- Activity: what ended in each minute, counted by the leader from `outcomes` and `failed_attempts`, so that every node
-- shows the same and a restart loses nothing.
create table hourbell.minutes (
  minute     timestamptz primary key,
  counted_at timestamptz not null,
  final      boolean not null,        -- nothing more is recorded in this minute
  succeeded  int not null,            -- executions, by how they ended
  dead       int not null,
  cancelled  int not null,
  superseded int not null,
  skipped    int not null,            -- occurrences
  failed     int not null,            -- attempts
  started_in timestamptz[] not null,  -- the minutes in which the attempts that ended here had started,
  starts     int[] not null,          -- and how many in each
  reasons    jsonb not null,          -- of executions that are dead, skipped, superseded or cancelled: by reason, how many
  sampled    int not null,            -- the following were taken from one in so many attempts, and multiplied by it
  lateness   int[] not null,          -- of first starts: below 1 ms, below 2, below 4, …, 2^22 ms and above
  tenants    int[] not null,          -- the 100 with the most starts,
  tenant_starts int[] not null,       -- and how many
  skips      jsonb not null           -- up to 20 jobs of which occurrences were skipped
);
create index minutes_open on hourbell.minutes (minute) where not final;

-- Outcomes are inserted in the order of time, so an index of a few pages finds those of a minute.
create index outcomes_by_time on hourbell.outcomes using brin (recorded_at) with (autosummarize = on);

-- Attempts that have failed and will be retried, until their minute is counted.
create table hourbell.failed_attempts (
  at         timestamptz not null,
  started_at timestamptz not null,
  tenant     int not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index failed_attempts_by_time on hourbell.failed_attempts (at);

-- The terms of leaders.
create table hourbell.terms (
  epoch    bigint primary key,
  node     uuid not null,
  began_at timestamptz not null
);

-- Processes: each says every few seconds that it lives.
create table hourbell.nodes (
  id          uuid primary key,
  name        text not null,
  roles       text[] not null,
  version     text not null,
  tz_version  text not null,
  started_at  timestamptz not null,
  seen_at     timestamptz not null,
  drift_ms    float8,            -- of its clock, ahead of the database's; null: not measured
  connections int not null,      -- to the database that are in use,
  max_connections int not null,  -- and that it may open
  circuits    jsonb not null     -- its open circuits
) with (fillfactor = 50);

-- How many executions were returned when the lease of its session had expired; null: its worker closed it.
alter table hourbell.past_sessions add returned int;
