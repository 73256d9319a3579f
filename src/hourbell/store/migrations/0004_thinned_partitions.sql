-- Partitions that cannot be dropped yet, out of which housekeeping is deleting what has ended: the id through which it
-- has done so. A row is deleted when its partition has been gone through once.
create table hourbell.thinned_partitions (
  name       text primary key,
  through_id bigint not null
);
