-- Long stretches of occurrences that were missed, and are being caught up in slices: from `next_at` to before the first
-- of `newer`, the due occurrences that were planned when planning resumed.
create table hourbell.gaps (
  timetable bigint not null,
  next_at   timestamptz not null,       -- the cursor: the first occurrence of the next slice
  opened_at timestamptz not null,       -- misfires are judged by this moment
  newer     timestamptz[] not null,
  slices    int not null default 0,     -- so many are done: gaps take turns
  primary key (timetable, opened_at)
);

-- A slice of a gap is a fire, which comes after all others.
alter table hourbell.fires
  add past boolean not null default false,          -- a slice of a gap
  add newer timestamptz[] not null default '{}';    -- what follows a slice: the first of the next slice, or `gaps.newer`
create index fires_past_last on hourbell.fires (past, fire_at);
