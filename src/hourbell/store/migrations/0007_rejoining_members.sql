-- Members on which planning has failed join their timetable again, and must not get twice what they already have.
alter table hourbell.memberships add column rejoins boolean not null default false;
