-- Timetables that the leader cannot compute: planning passes over them, and looks at them again later.
alter table hourbell.timetables
  add broken  text,         -- why: unknown_timezone (tz_version has no such zone) or invalid_schedule; null: it is not
  add look_at timestamptz;  -- when to try again; null unless broken
create index timetables_broken on hourbell.timetables (look_at) where look_at is not null;
