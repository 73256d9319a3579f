-- The data of DESIGN §3: what an execution is stands once in `executions`; where it is stands in one narrow table.
-- Clocks: no statement calls now(); every verb is given `now`, read once from hourbell.clock().

create function hourbell.clock() returns timestamptz language sql volatile
return clock_timestamp();
comment on function hourbell.clock() is 'The only clock. The testing kit replaces it to travel in time.';

-- Ids: 41 bits of milliseconds since 2024, 22 bits of a sequence. Ordered by time, and never handed out twice,
-- even when a failover loses the sequence's last values.
create sequence hourbell.ids cache 64;

create function hourbell.id_base(at timestamptz) returns bigint language sql immutable
return (floor(extract(epoch from at)::float8 * 1000)::bigint - 1704067200000) << 22;

create table hourbell.tenants (
  id         int generated always as identity primary key,
  name       text not null unique,
  weight     float8 not null default 1 check (weight > 0),
  created_at timestamptz not null
);

create table hourbell.queues (
  id         smallint generated always as identity primary key,
  name       text not null unique,
  created_at timestamptz not null
);

-- One row per rhythm: a million jobs with one rule in one zone are one row.
create table hourbell.timetables (
  id              bigint generated always as identity primary key,
  rule            text not null,
  zone            text not null,
  dst_gap         text not null,
  dst_overlap     text not null,
  planned_through timestamptz not null,  -- every occurrence up to here is produced, or in an open fire
  next_fire_at    timestamptz,           -- null: the rule has no further occurrence
  plan_from       timestamptz,           -- next_fire_at, earlier by what a big fire needs to be fanned out
  size            int not null default 0,  -- members of the last big fire
  tz_version      text not null,
  unique (rule, zone, dst_gap, dst_overlap)
) with (fillfactor = 70);
create index timetables_by_plan_from on hourbell.timetables (plan_from) where plan_from is not null;
create index timetables_by_tz_version on hourbell.timetables (tz_version);

-- Recurring jobs only; a one-time job is its execution.
create table hourbell.jobs (
  id         bigint primary key,
  tenant     int not null references hourbell.tenants,
  queue      smallint not null references hourbell.queues,
  priority   smallint not null,
  status     smallint not null default 0,  -- 0 SCHEDULED 1 PAUSED 2 COMPLETED 3 CANCELLED
  version    int not null default 1,
  valid_from int not null default 1,  -- executions of an older version are superseded
  outdated   text not null default 'updated',  -- why they are
  timetable  bigint not null,
  max_runs   int,
  runs       int not null default 0,  -- runs started; kept only when max_runs is set
  starts_at  timestamptz,
  ends_at    timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  name       text not null,
  spec       text not null  -- the job as its owner wrote it, as JSON: schedule, action, policies
);
create index jobs_by_tenant on hourbell.jobs (tenant, status, (-id));  -- for lists, newest first

-- Who rides a timetable, and for which stretch of it. A change of a job ends one membership and begins another, so the
-- stretches of a job are disjoint and every occurrence has one producer.
create table hourbell.members (
  timetable       bigint not null references hourbell.timetables,
  priority        smallint not null,
  job             bigint not null,
  version         int not null,
  active_since    timestamptz not null,  -- no occurrence at or before this
  joined_through  timestamptz,           -- produced by the join up to here, by fires afterwards; null: still to join
  until           timestamptz,           -- no occurrence after this
  tenant          int not null,
  queue           smallint not null,
  misfire         smallint not null,     -- 0 skip 1 latest 2 all
  catch_up_seconds int not null,
  catch_up_limit  int not null,
  overlap         smallint not null,     -- 0 allow 1 forbid 2 replace 3 queue_one
  at_most_once    boolean not null,
  start_deadline_seconds int,
  deadline_seconds int,
  primary key (timetable, priority, job, version)
);
create index members_joining on hourbell.members (timetable, priority, job) where joined_through is null;
create index members_ending on hourbell.members (until) where until is not null;

-- Fires that are being fanned out, or that a dead leader left open.
create table hourbell.fires (
  timetable   bigint not null,
  fire_at     timestamptz not null,       -- the last of its occurrences
  occurrences timestamptz[] not null,     -- one; several when planning comes late
  opened_at   timestamptz not null,       -- misfires are judged by this moment, whoever ends the fire
  late        boolean not null,           -- past the grace: each job's misfire policy decides
  tail        boolean not null,           -- the newest of a late stretch is among these occurrences
  after_priority smallint not null default -1,  -- the cursor: members up to here are done
  after_job   bigint not null default 0,
  after_version int not null default 0,
  planned     int not null default 0,
  primary key (timetable, fire_at)
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);

create index fires_in_order on hourbell.fires (fire_at);

create table hourbell.executions (
  id          bigint primary key,
  job         bigint,                -- null: one-time, the execution is the job
  occurrence  timestamptz not null,  -- the nominal time
  run_at      timestamptz not null,  -- not before this; equals due.run_at
  fence       bigint not null default 0,  -- of the last claim that ended
  start_by    timestamptz,
  finish_by   timestamptz,
  first_started_at timestamptz,      -- set when the first attempt has ended
  tenant      int not null,
  version     int not null,
  attempt     int not null default 0,  -- attempts ended
  queue       smallint not null,
  priority    smallint not null,
  origin      smallint not null,       -- 0 schedule 1 run now 2 backfill
  crashes     smallint not null default 0,
  overlap     smallint not null default 0,
  at_most_once boolean not null default false,
  spec        text,                    -- one-time only
  history     jsonb,                   -- attempts ended before the present one
  updated_at  timestamptz              -- one-time only: when its owner last changed it
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create unique index executions_by_occurrence on hourbell.executions (job, occurrence, origin)
  where job is not null and origin in (0, 2);
create index executions_manual on hourbell.executions (job) where job is not null and origin not in (0, 2);
create index executions_one_time on hourbell.executions (tenant, id) where job is null;

-- Where an execution is. `checks`: 1 overlap, 2 suspected of killing its worker.
create table hourbell.due (
  run_at   timestamptz not null,
  id       bigint not null,
  tenant   int not null,
  queue    smallint not null,
  priority smallint not null,
  checks   smallint not null default 0
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index due_in_order on hourbell.due (priority, run_at, id);

create table hourbell.parked (
  job      bigint not null,  -- waits until this job has no live execution
  id       bigint not null,
  tenant   int not null,
  queue    smallint not null,
  priority smallint not null,
  checks   smallint not null,
  primary key (job, id)
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);

-- Up to which job the gate has looked for what is parked and forgotten. A sequence, because a row that is updated every
-- second would be walked over for as long as somebody holds a snapshot.
create sequence hourbell.parked_cursor;

-- One-time jobs that are paused.
create table hourbell.held (
  id bigint primary key
);

create table hourbell.ready (
  tag      float8 not null,
  id       bigint not null,
  queue    smallint not null,
  priority smallint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index ready_in_order on hourbell.ready (queue, priority, tag);

-- Ready too, but only for a worker that runs nothing beside them.
create table hourbell.suspects (
  tag      float8 not null,
  id       bigint not null,
  queue    smallint not null,
  priority smallint not null,
  since    timestamptz not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index suspects_in_order on hourbell.suspects (queue, priority, tag);

create table hourbell.leased (
  session    bigint not null,
  id         bigint not null,
  fence      bigint not null,
  claimed_at timestamptz not null,
  claim      int not null,
  version    int not null,
  alone      boolean not null,  -- nothing else runs in that process: if it dies, this was it
  primary key (session, id)
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);

-- Wishes to cancel what is ready or running: whoever meets the execution next grants them. Not unique: a second wish must
-- not wait for the transaction of the first.
create table hourbell.cancellations (
  id        bigint not null,
  wished_at timestamptz not null
);
create index cancellations_by_id on hourbell.cancellations (id);

-- Popped when their time comes; a row whose execution has ended meanwhile is just dropped.
create table hourbell.deadlines (
  at   timestamptz not null,
  id   bigint not null,
  kind smallint not null  -- 0 must have started, 1 must have finished
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index deadlines_in_order on hourbell.deadlines (at);

-- Lanes and virtual time are written as new rows and read newest first: an updated row would be walked over for as
-- long as somebody holds a snapshot.
create sequence hourbell.passes;
create table hourbell.lanes (
  queue    smallint not null,
  priority smallint not null,
  tenant   int not null,
  last     float8 not null,
  pass     bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index lanes_newest on hourbell.lanes (queue, priority, tenant, pass desc);

create table hourbell.virtual_time (
  queue    smallint not null,
  priority smallint not null,
  v        float8 not null,   -- nothing ready lies below it; claims scan from here
  highest  float8 not null,   -- the highest tag ever given
  pass     bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index virtual_time_newest on hourbell.virtual_time (queue, priority, pass desc);

-- How far the due index is known to be empty, by priority.
create table hourbell.due_marks (
  priority smallint not null,
  due_from timestamptz not null,
  swept_at timestamptz not null,
  pass     bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index due_marks_newest on hourbell.due_marks (priority, pass desc);

create sequence hourbell.session_ids;
create table hourbell.sessions (
  id         bigint primary key,
  token      uuid not null,
  worker     text not null,
  queues     smallint[] not null,
  slots      int not null,
  started_at timestamptz not null,
  renewed_at timestamptz not null,
  expires_at timestamptz not null,
  quarantine boolean not null default false  -- drains, then runs suspects one by one
) with (fillfactor = 50);
create index sessions_by_expiry on hourbell.sessions (expires_at);
create unique index sessions_quarantine on hourbell.sessions (quarantine) where quarantine;

create table hourbell.leadership (
  cell       smallint primary key default 1 check (cell = 1),
  epoch      bigint not null,
  node       uuid not null,
  renewed_at timestamptz not null,
  expires_at timestamptz not null
) with (fillfactor = 50);

-- Status: 0 SUCCEEDED 1 DEAD 2 CANCELLED 3 SUPERSEDED 4 SKIPPED.
create table hourbell.ledger (
  id            bigint not null,
  job           bigint not null,   -- equals id for a one-time job
  fence         bigint not null,
  scheduled_for timestamptz not null,
  started_at    timestamptz,
  finished_at   timestamptz,
  recorded_at   timestamptz not null,
  missed_through timestamptz,      -- SKIPPED(misfire): the last of a stretch that begins at scheduled_for
  tenant        int not null,
  version       int not null,
  attempt       int not null,
  lateness_ms   bigint,
  missed        int,               -- how many occurrences that stretch has
  session       bigint,
  queue         smallint not null,
  priority      smallint not null,
  origin        smallint not null,
  status        smallint not null,
  reason        text,
  error         text,
  result        json,
  spec          text,              -- one-time only
  history       jsonb
) partition by range (recorded_at);
-- Two for every row: recurring jobs are asked for their runs, one-time jobs are listed themselves.
create index ledger_by_id on hourbell.ledger (id) where job <> id;
create index ledger_by_job on hourbell.ledger (job, scheduled_for) where job <> id;
create index ledger_one_time_by_id on hourbell.ledger (id) where job = id;
create index ledger_one_time_by_tenant on hourbell.ledger (tenant, id) where job = id;
create table hourbell.ledger_rest partition of hourbell.ledger default;

-- What exhausted its tries, whole, until it is replayed or purged.
create table hourbell.dead_letters (
  id      bigint primary key,
  job     bigint,
  tenant  int not null,
  died_at timestamptz not null,
  reason  text not null,
  error   text,
  execution jsonb not null  -- the row of `executions` as it was
);
create index dead_letters_by_tenant on hourbell.dead_letters (tenant, died_at);

-- The first answer to a write, in the same transaction as its effect.
create table hourbell.idempotency (
  tenant      int not null,
  key         text not null,
  fingerprint bytea not null,
  status      smallint not null,
  response    json,
  created_at  timestamptz not null,
  primary key (tenant, key)
);
create index idempotency_by_age on hourbell.idempotency (created_at);

create table hourbell.audit (
  id        bigint generated always as identity primary key,
  at        timestamptz not null,
  tenant    int not null,
  job       bigint not null,
  actor     text not null,
  operation text not null,
  before    json,
  after     json
);
create index audit_by_job on hourbell.audit (job, id);
