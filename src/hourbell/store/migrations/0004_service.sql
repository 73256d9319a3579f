-- Why and until when jobs are paused, if their owner said so. A row may outlive the pause of its job: the leader looks
-- at each row at `look_at`, and deletes it then.
create table hourbell.pauses (
  job     bigint primary key,
  at      timestamptz not null,
  actor   text not null,
  reason  text,
  until   timestamptz,          -- the leader resumes the job then; null: it does not
  look_at timestamptz not null  -- `until`, or when to check whether the job is still paused
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
