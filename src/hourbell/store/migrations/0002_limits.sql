-- Limits: what a queue, a tenant, a target or a key may have at once, and who has it.

-- Functions are loaded anew after the migrations; those whose answer has changed could not be replaced.
do $$
declare old regprocedure;
begin
  for old in
    select oid::regprocedure from pg_proc
    where pronamespace = 'hourbell'::regnamespace and proname not in ('clock', 'id_base')
  loop
    if exists (select from pg_proc where oid = old) then execute format('drop routine %s cascade', old); end if;
  end loop;
end $$;

-- Blockers, wherever `kind` stands: 1 queue, 2 tenant, 3 target (a host), 4 concurrency key, 5 job (overlap).

create table hourbell.targets (
  id         int generated always as identity primary key,
  host       text not null unique,
  created_at timestamptz not null
);

alter table hourbell.tenants add max_jobs int check (max_jobs >= 0);  -- how many may wait or be scheduled
-- For jobs that say nothing about it themselves.
alter table hourbell.queues add timeout_seconds int, add retry_policy text;

create index tenants_weighted on hourbell.tenants (id) where weight <> 1;

alter table hourbell.audit alter job drop not null;  -- also of what is not about a job

create table hourbell.limits (
  kind            smallint not null check (kind in (1, 2, 3)),
  key             bigint not null,
  max_concurrency int check (max_concurrency >= 0),
  rate            float8 check (rate > 0),   -- starts per second
  burst           int check (burst >= 1),    -- starts at once
  primary key (kind, key),
  check ((rate is null) = (burst is null))
);

-- One row for every time that a limit was set or made stricter. What was made ready before that is looked at again by its claim.
create table hourbell.generations (
  id int generated always as identity primary key
);

-- `key` is a hash of tenant and text; key_limit executions that share it may be under way at once.
alter table hourbell.jobs add target int, add key bigint, add key_limit int;
alter table hourbell.members add target int, add key bigint, add key_limit int;
alter table hourbell.executions add target int, add key bigint, add key_limit int;
alter table hourbell.due add target int, add key bigint;
create index due_by_key on hourbell.due (key, run_at, id) where key is not null;

-- The hosts that jobs of before call.
create function pg_temp.host(p_spec text) returns text language sql immutable
return rtrim(lower(trim(both '[]' from
  substring(p_spec::json -> 'action' ->> 'url' from '(?i)^https?://(\[[0-9A-Fa-f:.]+\]|[^/:?#]+)'))), '.');
insert into hourbell.targets (host, created_at)
select distinct host, hourbell.clock() from (
  select pg_temp.host(spec) as host from hourbell.jobs
  union all select pg_temp.host(spec) from hourbell.executions where spec is not null) as called
where host is not null;
update hourbell.jobs as j set target = t.id from hourbell.targets as t where t.host = pg_temp.host(j.spec);
update hourbell.members as m set target = j.target from hourbell.jobs as j where j.id = m.job;
update hourbell.executions as e set target = j.target from hourbell.jobs as j where j.id = e.job;
update hourbell.executions as e set target = t.id from hourbell.targets as t
where e.spec is not null and t.host = pg_temp.host(e.spec);
update hourbell.due as d set target = e.target from hourbell.executions as e where e.id = d.id;

-- Whether an execution has something of a limit: who ends or moves it has to let go.
alter table hourbell.ready add held boolean not null default false, add generation int not null default 0;
alter table hourbell.suspects add held boolean not null default false, add generation int not null default 0;
create index ready_held on hourbell.ready (queue) where held;
alter table hourbell.leased add held boolean not null default false;

-- What is ready or leased counts against a limit as one row; a key is held until the execution has ended. Counted under
-- the gate's lock and written by it alone, deleted by whoever ends the execution, in the same transaction.
create table hourbell.holds (
  kind smallint not null,
  key  bigint not null,
  id   bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index holds_by_key on hourbell.holds (kind, key);
create index holds_by_id on hourbell.holds (id);

-- What was admitted under a rate and is not claimed yet: tokens that are spent and not yet used.
create table hourbell.offers (
  kind smallint not null,
  key  bigint not null,
  id   bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index offers_by_key on hourbell.offers (kind, key);
create index offers_by_id on hourbell.offers (id);

-- Tokens of a rate limit, as of a moment; the newest row counts. level + offers never exceeds burst.
create table hourbell.buckets (
  kind  smallint not null,
  key   bigint not null,
  level float8 not null,
  at    timestamptz not null,
  pass  bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index buckets_newest on hourbell.buckets (kind, key, pass desc);

-- What is blocked waits here, by the one thing that blocks it, in the order in which it will be let on: for a key its time,
-- otherwise a fair tag of its own.
drop sequence hourbell.parked_cursor;
alter table hourbell.parked rename to parked_by_job;
create table hourbell.parked (
  kind     smallint not null,
  key      bigint not null,
  priority smallint not null,  -- 0 for a key: there only time counts
  rank     float8 not null,
  id       bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index parked_in_order on hourbell.parked (kind, key, priority, rank, id);
create index parked_by_id on hourbell.parked (id);

-- Something about a blocker may have changed: the gate looks at what is parked there, once `at` has come. `starts` says
-- how many offers were claimed at that moment; below 0, how many were given back. Only inserted, never updated: nobody waits for anybody.
create table hourbell.wakes (
  at     timestamptz not null,
  kind   smallint not null,
  key    bigint not null,
  starts int not null default 0
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index wakes_in_order on hourbell.wakes (at);
create index wakes_by_key on hourbell.wakes (kind, key);

insert into hourbell.parked (kind, key, priority, rank, id)
select 5, p.job, 0, extract(epoch from e.occurrence), p.id
from hourbell.parked_by_job as p join hourbell.executions as e on e.id = p.id;
insert into hourbell.wakes (at, kind, key) select distinct hourbell.clock(), 5, job from hourbell.parked_by_job;
drop table hourbell.parked_by_job;

-- A limit was set: what runs under it has to be counted, until whoever may not have seen the limit has ended (`ahead`).
create table hourbell.countings (
  id        bigint generated always as identity primary key,
  kind      smallint not null,
  key       bigint not null,
  ahead     xid8,
  looked_at timestamptz,
  looks     int not null default 0
);

-- A tenant was given another weight: the gate stretches or shrinks its tags, a part of them in each pass.
create table hourbell.reweighings (
  id     bigint generated always as identity primary key,
  tenant int not null,
  weight float8 not null check (weight > 0)
);

-- Where that is under way, in spaces of tags as in `lanes`: the tags from v to `last` are multiplied, seen from v, and it has come to `upto`.
create table hourbell.stretches (
  space    bigint not null,
  priority smallint not null,
  tenant   int not null,
  factor   float8 not null,
  v        float8 not null,
  last     float8 not null,
  upto     float8 not null
);

-- What was ready and left without having been served: its tenant is not charged for it.
create table hourbell.refunds (
  queue    smallint not null,
  priority smallint not null,
  tenant   int not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);

-- Whether most of what the last pass took was under a limit, or had a key: the next one then takes less.
alter table hourbell.due_marks add mostly_limited boolean not null default false;

-- Lanes of the ready, and of what is parked: each has its own space of tags, see hourbell.space(). 64 tenants to a row, and
-- only those that are ahead of the others.
drop table hourbell.lanes;
create table hourbell.lanes (
  space    bigint not null,
  priority smallint not null,
  block    int not null,
  tenants  int[] not null,
  lasts    float8[] not null,
  pass     bigint not null
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
create index lanes_newest on hourbell.lanes (space, priority, block, pass desc);
