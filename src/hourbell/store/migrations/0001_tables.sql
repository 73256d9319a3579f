-- The tables of Hourbell.
--
-- The data of an execution is stored once, in `executions`, and stays there; how it ended is a narrow row of `outcomes`.
-- An execution is live until it has an outcome. Where a live one is, a row of one other narrow table says (`due`,
-- `due_slabs`, `parked`, `paused`, `ready`, `suspects`, `leased`). It moves by `delete … returning` and `insert`, in one
-- transaction.
-- Only a row of `leased` may name executions that have an outcome.
-- Clocks: no statement calls now(); every verb is given the time, read once from hourbell.clock().
-- Codes: functions/codes.sql names the numbers that columns such as `fate`, `kind` and `origin` hold.
-- Tables that churn are vacuumed early and without delay.

create function hourbell.clock() returns timestamptz language sql volatile
return clock_timestamp();
comment on function hourbell.clock() is 'The only clock. The testing kit replaces it to travel in time.';

-- Ids: 41 bits of milliseconds since 2024, 22 bits of a sequence. Ordered by time, and never assigned twice, even when
-- a failover loses the last values of the sequence.
create sequence hourbell.ids cache 64;

create function hourbell.id_base(at timestamptz) returns bigint language sql immutable
return (floor(extract(epoch from at)::float8 * 1000)::bigint - 1704067200000) << 22;

alter table hourbell.migrations
  add requires text;  -- the newest migration that a program must know to work with these tables; null: any program can

-- Each build of the program loads and calls its own copies of the SQL functions.
create table hourbell.function_sets (
  digest    text primary key,      -- the suffix of its functions' names
  version   text not null,         -- of the program that loaded it
  used_at   timestamptz not null,  -- renewed by running processes; a set unused for days is dropped
  -- The functions with fixed names (hourbell.enqueue and others) call this set, so it is not dropped.
  is_public boolean not null default false
);


-- Names

create table hourbell.tenants (
  id         int generated always as identity primary key,
  name       text not null unique,
  weight     float8 not null default 1 check (weight > 0),
  created_at timestamptz not null,
  max_jobs   int check (max_jobs >= 0),  -- quota; null: none
  -- Which of its one-time jobs are still to be listed in quota_jobs: those with a lower id; null: none. They are listed
  -- when every transaction that may not have seen the quota has ended (quota_ahead).
  quota_listed_to bigint,
  quota_ahead xid8,
  -- How long history is kept, in days; null: as the cell says. Days of the ledger are dropped whole by the cell's
  -- setting, so a tenant can keep less of the ledger than the cell, not more.
  ledger_days      int check (ledger_days >= 1),
  dead_letter_days int check (dead_letter_days >= 1),
  audit_days       int check (audit_days >= 1)
);
create index tenants_weighted on hourbell.tenants (id) where weight <> 1;
create index tenants_with_quota on hourbell.tenants (id) where max_jobs is not null;

create table hourbell.queues (
  id         smallint generated always as identity primary key,
  name       text not null unique,
  created_at timestamptz not null,
  -- Defaults for jobs that do not set these.
  timeout_seconds int,
  retry_policy    text,
  made_by    int references hourbell.tenants  -- the tenant whose job named it first; null: an administrator or a worker
);
create index queues_by_maker on hourbell.queues (made_by) where made_by is not null;

-- Hosts that webhooks call.
create table hourbell.targets (
  id         int generated always as identity primary key,
  host       text not null unique,
  created_at timestamptz not null
);

-- Handlers that jobs and workers name. 1 stands for every webhook and has no row.
create table hourbell.tasks (
  id         int generated always as identity (start with 2) primary key,
  name       text not null unique,
  created_at timestamptz not null,
  made_by    int references hourbell.tenants,  -- as in queues
  -- What jobs of the task have if the caller of hourbell.enqueue says nothing: options for hourbell.try_enqueue, as JSON.
  -- Declared by the workers that serve the task; null: by none.
  defaults   text
);
create index tasks_by_maker on hourbell.tasks (made_by) where made_by is not null;


-- Jobs and timetables

-- One row per distinct rule, zone and DST policy: a million jobs with one rule in one zone are one row.
create table hourbell.timetables (
  id              bigint generated always as identity primary key,
  rule            text not null,
  zone            text not null,
  dst_gap         text not null,
  dst_overlap     text not null,
  planned_through timestamptz not null,    -- every occurrence up to here is produced, or in an open fire
  next_fire_at    timestamptz,             -- null: the rule has no further occurrence
  plan_from       timestamptz,             -- next_fire_at, earlier by what a big fire needs to be fanned out
  size            int not null default 0,  -- members of the last big fire
  tz_version      text not null,
  broken          text,         -- why the leader cannot compute it: unknown_timezone, invalid_schedule; null: it can
  look_at         timestamptz,  -- when to try again; null unless broken
  unique (rule, zone, dst_gap, dst_overlap)
) with (fillfactor = 70);
create index timetables_by_plan_from on hourbell.timetables (plan_from) where plan_from is not null;
create index timetables_by_tz_version on hourbell.timetables (tz_version);
create index timetables_broken on hourbell.timetables (look_at) where look_at is not null;

-- Recurring jobs only; a one-time job is its execution.
-- `target` of jobs, memberships, executions and due rows: above 0 a host that a webhook calls (`targets`), below 0 a task
-- (minus its number); null: any worker may take it.
-- `key`: the concurrency key, as a hash of tenant and text; key_limit executions that share it may run at once.
create table hourbell.jobs (
  id         bigint primary key,
  tenant     int not null references hourbell.tenants,
  queue      smallint not null references hourbell.queues,
  priority   smallint not null,
  status     smallint not null default 0,
  version    int not null default 1,
  valid_from int not null default 1,           -- executions of an older version are superseded,
  outdated   text not null default 'updated',  -- for this reason
  timetable  bigint not null,
  max_runs   int,
  runs       int not null default 0,           -- runs started; counted only when max_runs is set
  starts_at  timestamptz,
  ends_at    timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  name       text not null,
  spec       text not null,                    -- the job as its owner wrote it, as JSON
  target     int,
  key        bigint,
  key_limit  int
);
create index jobs_by_tenant on hourbell.jobs (tenant, status, (-id));  -- for lists, newest first

-- Which jobs follow a timetable, and for which part of it. A change of a job ends one membership and begins another, so
-- the parts of a job are disjoint and every occurrence has one producer.
create table hourbell.memberships (
  timetable       bigint not null references hourbell.timetables,
  priority        smallint not null,
  job             bigint not null,
  version         int not null,
  active_since    timestamptz not null,  -- no occurrence at or before this
  joined_through  timestamptz,           -- produced by the join up to here, by fires afterwards; null: still to join
  until           timestamptz,           -- no occurrence after this
  tenant          int not null,
  queue           smallint not null,
  misfire         smallint not null,
  catch_up_seconds int not null,
  catch_up_limit  int not null,
  overlap         smallint not null,
  at_most_once    boolean not null,
  start_deadline_seconds int,
  deadline_seconds int,
  target          int,
  key             bigint,
  key_limit       int,
  notifies        smallint not null default 0,
  primary key (timetable, priority, job, version)
);
create index memberships_joining on hourbell.memberships (timetable, priority, job) where joined_through is null;
create index memberships_ending on hourbell.memberships (until) where until is not null;

-- Fires that are being fanned out, or that a dead leader left open.
create table hourbell.fires (
  timetable   bigint not null,
  fire_at     timestamptz not null,       -- the last of its occurrences
  occurrences timestamptz[] not null,     -- one; several when planning comes late
  opened_at   timestamptz not null,       -- misfires are judged by this moment, whichever leader ends the fire
  late        boolean not null,           -- past the grace: each job's misfire policy decides
  tail        boolean not null,           -- the newest of a late stretch is among these occurrences
  after_priority smallint not null default -1,  -- the cursor: members up to here are done
  after_job   bigint not null default 0,
  after_version int not null default 0,
  planned     int not null default 0,
  primary key (timetable, fire_at)
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index fires_in_order on hourbell.fires (fire_at);

-- How many executions of a tenant have been planned for one moment, where these are many. Rows are only inserted; the
-- highest count is the newest. Housekeeping deletes them when their moment has passed.
create table hourbell.planned_counts (
  at      timestamptz not null,
  tenant  int not null,
  planned int not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index planned_counts_by_time on hourbell.planned_counts (at);

-- Why and until when jobs are paused, if their owner said so. A row may outlive the pause of its job: the leader looks
-- at each row at `look_at`, and deletes it then.
create table hourbell.pauses (
  job     bigint primary key,
  at      timestamptz not null,
  actor   text not null,
  reason  text,
  until   timestamptz,          -- the leader resumes the job then; null: it does not
  look_at timestamptz not null, -- `until`, or when to check whether the job is still paused
  operation bigint              -- that paused it; null: none did
);
create index pauses_by_look_at on hourbell.pauses (look_at);

-- Named lists of dates that schedules skip.
create table hourbell.calendars (
  tenant     int not null references hourbell.tenants,
  name       text not null,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (tenant, name)
);
create table hourbell.calendar_dates (
  tenant   int not null,
  calendar text not null,
  day      date not null,
  primary key (tenant, calendar, day),
  foreign key (tenant, calendar) references hourbell.calendars on delete cascade
);
create index calendar_dates_by_day on hourbell.calendar_dates (day);

-- Unique keys of jobs. A row outlives its job: a request for the key checks whether the job is live, so ending an
-- execution costs nothing. Spaces: 0 unique_key, 1 the name of a job created by PUT.
create table hourbell.unique_keys (
  tenant int not null,
  space  smallint not null,
  key    text not null,
  job    bigint not null,
  primary key (tenant, space, key)
);
create index unique_keys_by_job on hourbell.unique_keys (job);
-- Up to which job housekeeping has looked for keys of jobs that have ended.
create sequence hourbell.unique_keys_cursor minvalue 0 start 0;


-- Executions, and where they are

-- Live and ended ones. Partitions are ranges of ids, and so of creation times; they are dropped whole (retain.sql).
create table hourbell.executions (
  id          bigint primary key,
  job         bigint,                     -- null: one-time, the execution is the job
  occurrence  timestamptz not null,       -- the nominal time
  run_at      timestamptz not null,       -- not before this; equals due.run_at
  fence       bigint not null default 0,  -- of the last claim that was given back or has failed
  start_by    timestamptz,
  finish_by   timestamptz,
  first_started_at timestamptz,           -- set when the first attempt has failed
  tenant      int not null,
  version     int not null,
  attempt     int not null default 0,     -- attempts that have failed
  queue       smallint not null,
  priority    smallint not null,
  origin      smallint not null,
  crashes     smallint not null default 0,
  overlap     smallint not null default 0,
  at_most_once boolean not null default false,
  spec        text,                       -- one-time only
  history     jsonb,                      -- attempts that have failed, without the last one of an execution that is dead
  updated_at  timestamptz,                -- one-time only: when its owner last changed it
  target      int,
  key         bigint,
  key_limit   int,
  replayed_attempt int,                   -- attempts that had ended when it was last replayed; null: never replayed
  replayed_fence   bigint,                -- the fence that it had then
  waits_for   text,                       -- what it waits for until run_at, if a worker has put it off
  notifies    smallint not null default 0 -- events that are notified: bits as in functions/codes.sql
) partition by range (id);
create index executions_by_job on hourbell.executions (job, occurrence) where job is not null;
-- Two for every row: recurring jobs are asked for their runs, one-time jobs are listed themselves.
create index executions_one_time on hourbell.executions (tenant, id) where job is null;
create index executions_recurring on hourbell.executions (tenant, id) where job is not null;
-- What has no partition of its own: ids of other times, and what outlives its partition. A failed attempt updates the
-- row in place: leave room on the page.
create table hourbell.executions_rest partition of hourbell.executions default with (fillfactor = 90);
-- No plan depends on the contents of documents or slabs (here and below), and autovacuum would spend most of its time on
-- their statistics.
alter table hourbell.executions alter spec set statistics 0;

-- How executions ended, with the same partitions.
create table hourbell.outcomes (
  id            bigint primary key,
  fence         bigint not null,
  started_at    timestamptz,
  finished_at   timestamptz,
  recorded_at   timestamptz not null,
  session       bigint,      -- that ran the attempt with which it ended; null: it ended without one
  version       int,         -- of the job that was run; null: that of the execution
  fate          smallint not null,
  reason        text,
  error         text,
  result        json,
  failure_kind  text,        -- of the last attempt; null if it did not fail
  missed        int,         -- SKIPPED(misfire): how many occurrences were missed, from that of the execution
  missed_through timestamptz -- to this one
) partition by range (id);
create table hourbell.outcomes_rest partition of hourbell.outcomes default;
-- Outcomes are inserted in the order of time, so an index of a few pages finds those of a minute.
create index outcomes_by_time on hourbell.outcomes using brin (recorded_at) with (autosummarize = on);

-- Executions that have not ended.
create view hourbell.live as
select e.* from hourbell.executions as e
where not exists (select from hourbell.outcomes as o where o.id = e.id offset 0);

-- Executions that have ended, with how they ended: the status of each is its fate.
create view hourbell.ledger as
select e.id, coalesce(e.job, e.id) as job, o.fence, e.occurrence as scheduled_for, o.started_at, o.finished_at,
  o.recorded_at, o.missed_through, e.tenant, coalesce(o.version, e.version) as version,
  e.attempt + (o.session is not null)::int as attempt, e.first_started_at, o.missed, o.session, e.queue, e.priority,
  e.origin, o.fate as status, o.reason, o.error, o.result, e.spec, e.history, o.failure_kind
from hourbell.executions as e join hourbell.outcomes as o on o.id = e.id;

-- The runs of recurring jobs that have not ended. An occurrence has at most one; the end of a run deletes its row.
create table hourbell.open_runs (
  job        bigint not null,
  occurrence timestamptz not null,
  origin     smallint not null,
  wakes      boolean not null,  -- other runs of the job may wait for its end
  id         bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create unique index open_runs_by_occurrence on hourbell.open_runs (job, occurrence, origin) where origin in (0, 2);
create index open_runs_requested on hourbell.open_runs (job) where origin not in (0, 2);

-- The one-time jobs of tenants with a quota, from their creation on. Rows of jobs that have ended are deleted when the
-- quota is counted.
create table hourbell.quota_jobs (
  tenant int not null,
  id     bigint not null,
  primary key (tenant, id)
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);

-- Waiting for their time. `flags`: bits as in functions/codes.sql, and the level of the row (hourbell.level_of).
create table hourbell.due (
  run_at   timestamptz not null,
  id       bigint not null,
  tenant   int not null,
  queue    smallint not null,
  priority smallint not null,
  flags    smallint not null default 0,
  target   int,
  key      bigint
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
-- The tier of a due row: its priority, and four times its level. The due rows of one priority wait in four tiers, so
-- that a tenant with many does not delay one with few.
create function hourbell.tier(p_priority smallint, p_flags smallint) returns int
language sql immutable parallel safe
return p_priority + (p_flags & 12);
create index due_by_tier on hourbell.due (hourbell.tier(priority, flags), run_at, id);
create index due_by_key on hourbell.due (key, run_at, id) where key is not null;

-- Waiting for their time too, in slabs: a row has up to 64 one-time executions that were created together and fall due
-- together. They have no key, no deadline and no unique key, so nothing but an operation that names one of them has to
-- look for it; it takes that one out of `ids` and `tenants`, which may both become empty. No transaction that waits for
-- its client may lock a slab: the others in it would wait as well.
create table hourbell.due_slabs (
  run_at   timestamptz not null,
  slab     bigint not null,    -- hourbell.slab_of each of its executions; two rows may have the same
  queue    smallint not null,
  priority smallint not null,
  flags    smallint not null,  -- only the level
  target   int,
  ids      bigint[] not null,
  tenants  int[] not null      -- of the same executions, in the same order
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
alter table hourbell.due_slabs alter ids set statistics 0, alter tenants set statistics 0;
create index due_slabs_by_tier on hourbell.due_slabs (hourbell.tier(priority, flags), run_at, slab);

-- How far each tier is known to be empty. mostly_limited: most of what the last pass took was under a limit or had a
-- key, so the next pass takes less.
create table hourbell.due_marks (
  tier     smallint not null,
  due_from timestamptz not null,
  swept_at timestamptz not null,
  pass     bigint not null,
  mostly_limited boolean not null default false
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index due_marks_newest on hourbell.due_marks (tier, pass desc);

-- Waiting for a blocker (`kind`, `key`), in the order in which they will be admitted: for a concurrency key by time,
-- otherwise by a fair tag of their own.
create table hourbell.parked (
  kind     smallint not null,
  key      bigint not null,
  priority smallint not null,  -- 0 for a concurrency key: there only time counts
  rank     float8 not null,
  id       bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index parked_in_order on hourbell.parked (kind, key, priority, rank, id);
create index parked_by_id on hourbell.parked (id);

-- One-time jobs that are paused.
create table hourbell.paused (
  id bigint primary key
);

-- Waiting for a worker, in slabs: a row has up to a hundred executions of one queue, priority and task, in the order of
-- their tags.
create table hourbell.ready (
  tag        float8 not null,   -- of the first execution,
  last_tag   float8 not null,   -- and of the last
  generation int not null,      -- of limits, when it was admitted
  task       int not null,      -- 0 any worker may take it, 1 a webhook, otherwise a number of `tasks`
  queue      smallint not null,
  priority   smallint not null,
  limited    boolean not null,  -- its single execution counts against a limit
  ids        bigint[] not null check (ids <> '{}')
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
alter table hourbell.ready alter ids set statistics 0;
create index ready_in_order on hourbell.ready (queue, priority, tag);
create index ready_by_task on hourbell.ready (queue, priority, task, tag);
create index ready_limited on hourbell.ready (queue) where limited;

-- Ready too, but only for a worker that runs nothing beside them.
create table hourbell.suspects (
  tag        float8 not null,
  id         bigint not null,
  queue      smallint not null,
  priority   smallint not null,
  since      timestamptz not null,
  limited    boolean not null default false,
  generation int not null default 0,
  task       int not null default 0
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index suspects_in_order on hourbell.suspects (queue, priority, tag);

-- With a worker, in slabs: the executions of a row were claimed together, under one fence. One that ends stays in its
-- slab until the whole slab is deleted; one that leaves it without an outcome is taken out of `ids`. Both lock the row.
create table hourbell.leased (
  session    bigint not null,
  fence      bigint not null,
  claimed_at timestamptz not null,
  claim      int not null,
  alone      boolean not null,  -- nothing else runs in that process: if it dies, this execution is the cause
  limited    boolean not null,  -- some of them may count against a limit
  notifies   boolean not null,  -- some of them have notifications
  ids        bigint[] not null check (ids <> '{}'),
  versions   int[]              -- of their jobs, as they were sent to the worker; null: all are one-time
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
alter table hourbell.leased alter ids set statistics 0, alter versions set statistics 0;
create index leased_by_fence on hourbell.leased (session, fence);
-- For readers that look for an execution: slabs of one can be looked up, the few others are all read.
create index leased_alone on hourbell.leased ((ids[1])) where cardinality(ids) = 1;
create index leased_together on hourbell.leased (fence) where cardinality(ids) > 1;

-- What the sessions hold. The only place that decides it.
create view hourbell.leases as
select l.session, i.id, l.fence, l.claimed_at, l.claim, i.version, l.alone, l.limited
from hourbell.leased as l
cross join lateral unnest(l.ids, l.versions) as i(id, version)
where not exists (select from hourbell.outcomes as o where o.id = i.id offset 0);

-- The last progress report of a leased execution, as JSON. A report with the fence of an ended claim means nothing.
-- A new report updates the row in place: leave room on the page.
create table hourbell.progress (
  id       bigint primary key,
  fence    bigint not null,
  progress text not null
) with (fillfactor = 50, autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);

-- Executions that their targets have accepted and will complete; they are leased by session 0.
create table hourbell.awaiting (
  id       bigint not null,
  fence    bigint not null,
  until    timestamptz not null,  -- the attempt fails if its target has reported nothing by then
  begun_ms int not null,          -- from the claim to the start of the attempt
  token    bytea not null,        -- SHA-256 of the token that the target must present
  outcome  text,                  -- null: it waits; SUCCEEDED, FAILED: reported; ENDED: without a report
  primary key (id, fence)
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index awaiting_in_order on hourbell.awaiting (until) where outcome is null;
create index awaiting_ended on hourbell.awaiting (until) where outcome is not null;

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

-- The last checkpoint of an execution, sent with its next claim. Kept until the execution has ended and has no dead
-- letter.
create table hourbell.checkpoints (
  id    bigint primary key,
  value json not null check (octet_length(value::text) <= 65536)
) with (fillfactor = 70, autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create sequence hourbell.checkpoints_cursor minvalue 0 start 0;  -- as reruns_cursor

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
-- Executions that are to be due again; mostly none.
create index waits_over on hourbell.waits (id) where is_open and outcome is not null;
create sequence hourbell.waits_cursor minvalue 0 start 0;  -- up to which execution housekeeping has looked

-- Requests to cancel what is ready or running: its claim, heartbeat or settle acts on them. Not unique: a second
-- request must not wait for the transaction of the first.
create table hourbell.cancellations (
  id           bigint not null,
  requested_at timestamptz not null
);
create index cancellations_by_id on hourbell.cancellations (id);

-- Removed when their time comes; a row whose execution has ended is dropped.
create table hourbell.deadlines (
  at   timestamptz not null,
  id   bigint not null,
  kind smallint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index deadlines_in_order on hourbell.deadlines (at);

-- Groups of executions: when a group is closed and all its members have ended, its callback is created once: a webhook
-- (`url`), or a job of a task (`options`).
create table hourbell.execution_groups (
  id         bigint primary key,
  tenant     int not null references hourbell.tenants,
  name       text not null,
  created_at timestamptz not null,
  closed_at  timestamptz,                   -- no member can be added any more
  ended_at   timestamptz,                   -- all members have ended, and the callback was created
  look_at    timestamptz,                   -- when the leader looks next; null: it is open, or has ended
  members    int not null default 0,
  ended_upto bigint not null default 0,     -- members up to this id have ended
  fates      int[] not null default '{0,0,0,0,0}',  -- how many of these ended in each fate, by its number
  url        text,
  headers    json,
  options    text,                          -- of the job that is the callback, as hourbell.try_enqueue takes them
  payload    text,
  callback   bigint,                        -- the execution that is the callback, once the group has ended
  problem    text,                          -- why the callback cannot be created at present
  check ((url is null) <> (options is null))
);
create index execution_groups_by_look_at on hourbell.execution_groups (look_at) where look_at is not null;
-- Those that retention may delete: they have ended, or were never closed.
create index execution_groups_by_age on hourbell.execution_groups (coalesce(ended_at, created_at))
  where ended_at is not null or closed_at is null;
-- Without a foreign key: a group is deleted after its members, in bounded steps.
create table hourbell.group_members (
  group_id  bigint not null,
  execution bigint not null,
  primary key (group_id, execution)
);


-- Fairness. Small rows that change often are written as new rows and read newest first: an updated row would be walked
-- over for as long as a transaction holds a snapshot.

create sequence hourbell.passes;

-- The last tag of each tenant in a space of tags (hourbell.tag_space): 64 tenants to a row, and only those that are
-- ahead of the others.
create table hourbell.lanes (
  space    bigint not null,
  priority smallint not null,
  block    int not null,
  tenants  int[] not null,
  lasts    float8[] not null,
  pass     bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index lanes_newest on hourbell.lanes (space, priority, block, pass desc);

create table hourbell.virtual_time (
  queue    smallint not null,
  priority smallint not null,
  v        float8 not null,   -- nothing ready lies below it; claims scan from here
  highest  float8 not null,   -- the highest tag ever given
  pass     bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index virtual_time_newest on hourbell.virtual_time (queue, priority, pass desc);

-- Executions that were ready and left without being served: the next pass gives their tenants the tags back.
create table hourbell.tag_refunds (
  queue    smallint not null,
  priority smallint not null,
  tenant   int not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);

-- A tenant has a new weight: the gate adjusts the tags that it already has, a part of them in each pass.
create table hourbell.weight_changes (
  id     bigint generated always as identity primary key,
  tenant int not null,
  weight float8 not null check (weight > 0)
);
-- Where that is under way: tags from v to `last` are multiplied by `factor`, measured from v; done up to `upto`.
create table hourbell.retaggings (
  space    bigint not null,
  priority smallint not null,
  tenant   int not null,
  factor   float8 not null,
  v        float8 not null,
  last     float8 not null,
  upto     float8 not null
);


-- Limits. A blocker is a (kind, key): functions/codes.sql names the kinds.

create table hourbell.limits (
  kind            smallint not null check (kind in (1, 2, 3)),
  key             bigint not null,
  max_concurrency int check (max_concurrency >= 0),
  rate            float8 check (rate > 0),   -- starts per second
  burst           int check (burst >= 1),    -- starts at once
  primary key (kind, key),
  check ((rate is null) = (burst is null))
);

-- One row for each time that a limit was set or changed. Executions that were made ready before that are checked
-- again by their claim.
create table hourbell.limit_generations (
  id int generated always as identity primary key
);

-- Ready and leased executions that count against a limit, a row each; a concurrency key is held until the execution has
-- ended. Counted and inserted by the gate alone, under its lock; deleted by the transaction that ends the execution.
create table hourbell.limit_holds (
  kind smallint not null,
  key  bigint not null,
  id   bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index limit_holds_by_key on hourbell.limit_holds (kind, key);
create index limit_holds_by_id on hourbell.limit_holds (id);

-- Executions admitted under a rate limit and not claimed yet.
create table hourbell.rate_reservations (
  kind smallint not null,
  key  bigint not null,
  id   bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index rate_reservations_by_key on hourbell.rate_reservations (kind, key);
create index rate_reservations_by_id on hourbell.rate_reservations (id);

-- Tokens of a rate limit, as of a moment; the newest row counts.
create table hourbell.rate_buckets (
  kind  smallint not null,
  key   bigint not null,
  level float8 not null,
  at    timestamptz not null,
  pass  bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index rate_buckets_newest on hourbell.rate_buckets (kind, key, pass desc);

-- A blocker may have changed: the gate looks at what is parked there, once `at` has come. Rows are only inserted and
-- deleted, so no transaction waits for another.
create table hourbell.gate_wakeups (
  at   timestamptz not null,
  kind smallint not null,
  key  bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index gate_wakeups_in_order on hourbell.gate_wakeups (at);
create index gate_wakeups_by_key on hourbell.gate_wakeups (kind, key);

-- A limit was set: what runs under it has to be counted, until every transaction that may not have seen the limit has
-- ended (`ahead`).
create table hourbell.limit_recounts (
  id        bigint generated always as identity primary key,
  kind      smallint not null,
  key       bigint not null,
  ahead     xid8,
  looked_at timestamptz,
  looks     int not null default 0
);


-- Processes

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
  quarantine boolean not null default false,  -- drains, then runs suspects one by one
  all_queues boolean not null default false,  -- serves every queue; `queues` is then empty or out of date
  tasks      int[],                           -- in order; null: all
  manifest   bigint                           -- that its worker runs by; null: none
) with (fillfactor = 50);
create index sessions_by_manifest on hourbell.sessions (manifest) where manifest is not null;
create index sessions_by_expiry on hourbell.sessions (expires_at);
create unique index sessions_quarantine on hourbell.sessions (quarantine) where quarantine;

-- Sessions that have ended: for workers that repeat an outcome whose answer was lost, and for the names of workers.
create table hourbell.past_sessions (
  id       bigint primary key,
  token    uuid not null,
  ended_at timestamptz not null,
  worker   text,
  returned int  -- how many executions were returned when its lease had expired; null: its worker closed it
);
create index past_sessions_by_age on hourbell.past_sessions (ended_at);

-- The tasks that the sessions of a queue serve, as the gate last saw them.
create table hourbell.queue_workers (
  queue   smallint primary key,
  tasks   int[],              -- that all of them serve, if `uniform`; null: all tasks
  uniform boolean not null,   -- all of them serve the same tasks
  mixed   boolean not null    -- claims look up what is ready by task
);
create index queue_workers_mixed on hourbell.queue_workers (queue) where mixed;

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

-- What was last applied of the schedules that apps declare: a job each.
create table hourbell.declared (
  app            text not null,
  key            text not null,
  tenant         text,         -- of its job; null: it never had one
  job            bigint,       -- null: not created yet, or retired
  applied_digest text,         -- of the declaration; null: it is being applied
  unwanted_since timestamptz,  -- no live manifest declares it since then; null: one does, or none is live
  retired_at     timestamptz,  -- its job is deleted, or about to be
  problem        text,         -- why problem_digest could not be applied
  problem_digest text,
  problem_at     timestamptz,
  primary key (app, key)
);

create table hourbell.leadership (
  cell       smallint primary key default 1 check (cell = 1),
  epoch      bigint not null,
  node       uuid not null,
  renewed_at timestamptz not null,
  expires_at timestamptz not null
) with (fillfactor = 50);

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


-- History

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
  skips      jsonb not null,          -- up to 20 jobs of which occurrences were skipped
  queues        smallint[] not null,  -- the 100 with the most runs that ended here,
  queue_runs    int[] not null,       -- how many,
  queue_seconds float8[] not null     -- and how long they took together, for the seconds of backlog
);
create index minutes_open on hourbell.minutes (minute) where not final;

-- Attempts that have failed and will be retried, until their minute is counted.
create table hourbell.failed_attempts (
  at         timestamptz not null,
  started_at timestamptz not null,
  tenant     int not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index failed_attempts_by_time on hourbell.failed_attempts (at);

-- Executions that will not be retried, whole, until they are replayed or purged.
create table hourbell.dead_letters (
  id      bigint primary key,
  job     bigint,
  tenant  int not null,
  died_at timestamptz not null,
  reason  text not null,
  error   text,
  execution jsonb not null  -- the row of `executions` as it was, with every attempt and the job's document
);
create index dead_letters_in_order on hourbell.dead_letters (died_at, id);
create index dead_letters_by_tenant on hourbell.dead_letters (tenant, died_at, id);
create index dead_letters_by_job on hourbell.dead_letters (coalesce(job, id), died_at, id);

-- Deaths that a replay has undone.
create table hourbell.replays (
  id          bigint not null,
  died_at     timestamptz not null,
  replayed_at timestamptz not null,
  primary key (id, died_at)
);
create index replays_by_age on hourbell.replays (died_at);

create table hourbell.audit (
  id        bigint generated always as identity primary key,
  at        timestamptz not null,
  tenant    int not null,
  job       bigint,  -- null: not about a job
  actor     text not null,
  operation text not null,
  before    json,
  after     json,
  -- The one-time jobs that a request created for a tenant, if there are several; `job` is the first of them. Their
  -- documents are the jobs themselves. Not compressed: that takes longer than writing them.
  jobs      bigint[]
);
alter table hourbell.audit alter jobs set storage external, alter jobs set statistics 0;
create index audit_by_job on hourbell.audit (job, id);
create index audit_by_tenant on hourbell.audit (tenant, id);

-- The tenant after which the next round of `hourbell.retain` begins.
create sequence hourbell.retention_cursor minvalue 0 start 0;


-- The service

-- The first answer to a write, in the same transaction as its effect.
create table hourbell.idempotency (
  tenant      int not null,
  key         text not null,
  fingerprint bytea not null,
  response    json,
  created_at  timestamptz not null,
  primary key (tenant, key)
);
create index idempotency_by_age on hourbell.idempotency (created_at);

create table hourbell.api_keys (
  id         bigint primary key,
  tenant     int references hourbell.tenants,  -- null: of all tenants
  role       text not null,
  name       text not null,
  digest     bytea not null unique,            -- SHA-256; the key itself is not stored
  created_at timestamptz not null,
  revoked_at timestamptz
);
create index api_keys_by_tenant on hourbell.api_keys (tenant, id);
create index api_keys_of_admins on hourbell.api_keys (id) where role = 'admin' and tenant is null and revoked_at is null;

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

create table hourbell.secrets (
  tenant     int not null references hourbell.tenants,
  name       text not null,
  sealed     bytea not null,      -- AES-256-GCM: nonce, then ciphertext; bound to tenant and name
  sealed_by  text not null,       -- the name of the key that decrypts it
  previous   bytea,               -- the previous value, while signatures are made with both
  previous_by text,
  previous_until timestamptz,
  created_at timestamptz not null,
  updated_at timestamptz not null,
  primary key (tenant, name)
);

-- Jobs whose target answered 410, as of a version: to be paused, if that is still their version.
create table hourbell.abandoned_jobs (
  job     bigint not null,
  version int not null
);

-- The outbox of notifications: written in the transaction that decides the event; the leader turns rows into
-- executions.
create table hourbell.notices (
  id            bigint generated always as identity primary key,
  at            timestamptz not null,
  scheduled_for timestamptz not null,
  execution     bigint,             -- null: of a monitor
  job           bigint not null,    -- equals execution for a one-time job
  monitor       bigint,
  tenant        int not null,
  attempt       int not null default 0,
  event         smallint not null,
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
  expected_at   timestamptz,           -- the first occurrence after that; null: not computed yet, or there is none
  check_at      timestamptz,           -- when to check; null: nothing is expected
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

-- Bulk operations: an act on everything that a filter selects, which the leader carries out in batches. A batch and its
-- progress here are committed together, so nothing is done twice, whichever node leads.
create table hourbell.operations (
  id          bigint primary key,
  tenant      int not null references hourbell.tenants,  -- of its audit entries
  only_tenant int references hourbell.tenants,           -- it concerns this tenant alone; null: all tenants
  act         text not null,                             -- pause, resume, replay, purge
  filter      json not null,                             -- as the request gave it
  reason      text,
  until       timestamptz,                               -- of a pause
  rate        int,                                       -- of a replay: executions that fall due per second
  actor       text not null,
  created_at  timestamptz not null,
  state       text not null default 'RUNNING',           -- RUNNING, STOPPED, DONE, FAILED
  continue_at timestamptz,                               -- when the leader goes on; null: it has ended
  position    text,                                      -- the page token with which it goes on
  batches     int not null default 0,                    -- that were committed
  paced_until timestamptz,                               -- what was replayed falls due until then
  total       int not null,                              -- selected when it was created,
  total_at_least boolean not null,                       -- or more
  done        int not null default 0,
  left_over   json not null default '{}',                -- how many could not be changed, by reason
  error       text,                                      -- why it failed
  updated_at  timestamptz not null,
  ended_at    timestamptz
);
create index operations_running on hourbell.operations (continue_at) where continue_at is not null;
create index operations_by_tenant on hourbell.operations (only_tenant, id);
create index operations_by_end on hourbell.operations (ended_at) where ended_at is not null;
