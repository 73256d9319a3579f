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

-- The operation that paused a job; null: none did.
alter table hourbell.pauses add operation bigint;
