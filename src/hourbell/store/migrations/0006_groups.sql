-- Groups of executions: when a group is closed and all its members have ended, its callback is created once: a webhook
-- (`url`), or a job of a task (`term`).
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
  term       text,                          -- of the job that is the callback, as hourbell.try_enqueue takes it
  payload    text,
  callback   bigint,                        -- the execution that is the callback, once the group has ended
  problem    text,                          -- why the callback cannot be created at present
  check ((url is null) <> (term is null))
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
