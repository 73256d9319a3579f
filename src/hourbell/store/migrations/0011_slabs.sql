-- Slabs: a row of `ready` and of `leased` holds up to a hundred executions, so moving one costs a hundredth of a row.
-- requires: 0011_slabs.sql

-- The executions of a slab have one queue, priority and task, and are ordered by their tags; `tag` and `last_tag` are the
-- first and the last of these.
-- `held`: it has one execution, which holds something of a limit.
alter table hourbell.ready rename to ready_before;
create table hourbell.ready (
  tag        float8 not null,
  last_tag   float8 not null,
  generation int not null,
  task       int not null,   -- 0 any worker may take it, 1 a webhook, otherwise a number of `tasks`
  queue      smallint not null,
  priority   smallint not null,
  held       boolean not null,
  ids        bigint[] not null check (ids <> '{}')
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, held, ids)
select tag, tag, generation, task, queue, priority, held, array[id] from hourbell.ready_before;
drop table hourbell.ready_before;
create index ready_in_order on hourbell.ready (queue, priority, tag);
create index ready_by_task on hourbell.ready (queue, priority, task, tag);
create index ready_held on hourbell.ready (queue) where held;

-- The executions of a slab were claimed together, under one fence. A slab is written once: an execution has left it as soon
-- as its row in `executions` is gone, or has this fence or a higher one. `held`: some of them may hold something of a limit.
alter table hourbell.leased rename to leased_before;
create table hourbell.leased (
  session    bigint not null,
  fence      bigint not null,
  claimed_at timestamptz not null,
  claim      int not null,
  alone      boolean not null,  -- nothing else runs in that process: if it dies, this was it
  held       boolean not null,
  ids        bigint[] not null check (ids <> '{}'),
  versions   int[]              -- of their jobs, as they were sent to the worker; null: all are one-time
) with (autovacuum_vacuum_cost_delay = 0, autovacuum_vacuum_scale_factor = 0.02);
insert into hourbell.leased (session, fence, claimed_at, claim, alone, held, ids, versions)
select session, fence, claimed_at, claim, alone, held, array[id], array[version] from hourbell.leased_before;

-- How far an execution has come, in the words of its worker, as JSON; of a claim that has ended it means nothing.
create table hourbell.progress (
  id       bigint primary key,
  fence    bigint not null,
  progress text not null
);
insert into hourbell.progress (id, fence, progress)
select id, fence, progress from hourbell.leased_before where progress <> '';
drop table hourbell.leased_before;
create index leased_by_fence on hourbell.leased (session, fence);
-- For readers that look for an execution: slabs of one can be looked up, the few others are all read.
create index leased_alone on hourbell.leased ((ids[1])) where cardinality(ids) = 1;
create index leased_together on hourbell.leased (fence) where cardinality(ids) > 1;

-- What the sessions hold. The only place that decides it.
create view hourbell.leases as
select l.session, i.id, l.fence, l.claimed_at, l.claim, coalesce(i.version, e.version) as version, l.alone, l.held
from hourbell.leased as l
cross join lateral unnest(l.ids, l.versions) as i(id, version)
cross join lateral (select e.version from hourbell.executions as e where e.id = i.id and e.fence < l.fence offset 0) as e;

-- Every slab of `ready` can be found by its task, so nothing has to be made so any more.
drop table hourbell.regroupings;
