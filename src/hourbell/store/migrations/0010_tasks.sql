-- Tasks: a worker is given only what it can run.

-- The handlers that jobs and workers name. 1 stands for every webhook and has no row.
create table hourbell.tasks (
  id         int generated always as identity (start with 2) primary key,
  name       text not null unique,
  created_at timestamptz not null,
  made_by    int references hourbell.tenants  -- the tenant whose job named it first; null: a worker did
);
create index tasks_by_maker on hourbell.tasks (made_by) where made_by is not null;

-- `target` of jobs, members, executions and due says what an execution runs on: above 0 a host that a webhook calls
-- (`targets`), below 0 a task (minus its number). Null: it was made by a version that did not number tasks, and any worker may
-- take it. A column of its own in `due` would break the functions of that version, which build rows of that type.
insert into hourbell.tasks (name, created_at)
select name, hourbell.clock() from (
  select distinct spec::json -> 'action' ->> 'name' as name from hourbell.jobs
  where target is null and spec::json -> 'action' ->> 'type' = 'TASK') as named;
update hourbell.jobs as j set target = -t.id from hourbell.tasks as t
where j.target is null and j.spec::json -> 'action' ->> 'type' = 'TASK' and t.name = j.spec::json -> 'action' ->> 'name';
update hourbell.members as m set target = j.target from hourbell.jobs as j
where j.id = m.job and j.target < 0 and m.target is null;

-- What a session serves. `queues` of one that serves all of them has those of its beginning, for older versions.
alter table hourbell.sessions
  add all_queues boolean not null default false,
  add tasks int[];  -- in order; null: all

-- `task`: 0 any worker may take it, 1 a webhook, otherwise a number of `tasks`. `apart`: the sessions of its queue do not all
-- serve the same tasks, so it can be found by its task, without walking over the rows of others. Where all serve the same, the
-- second index has no entry: it would make the gate slower by a fifth.
alter table hourbell.ready add task int not null default 0, add apart boolean not null default false;
alter table hourbell.suspects add task int not null default 0;
create index ready_by_task on hourbell.ready (queue, priority, task, tag) where apart;

-- The sessions of a queue, as the gate last saw them.
create table hourbell.fleets (
  queue   smallint primary key,
  tasks   int[],              -- that all of them serve, if `uniform`; null: all tasks
  uniform boolean not null,   -- all of them serve the same tasks
  mixed   boolean not null    -- what is ready is `apart`, or being made so
);
create index fleets_mixed on hourbell.fleets (queue) where mixed;

-- Where the gate still has to set `apart`: the tags above `upto`, up to `last`.
create table hourbell.regroupings (
  queue    smallint not null,
  priority smallint not null,
  upto     float8 not null,
  last     float8 not null
);
