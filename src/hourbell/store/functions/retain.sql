-- Housekeeping: partitions of the ledger, and everything that expires.

-- Creates the partitions of the ledger from the day of p_now to p_days ahead. Rows of a day without a partition go to
-- `ledger_rest`; a day that already has rows there stays there.
-- Both this and the drop need an exclusive lock on the ledger, and later transactions queue behind it. So they do not
-- wait long for an open transaction: the next round is soon enough.
create or replace function hourbell.make_partitions(p_now timestamptz, p_days int) returns int
language plpgsql set lock_timeout = '50ms' as $$
#variable_conflict use_column
declare
  day date;
  name text;
  made int := 0;
begin
  for day in select generate_series(0, p_days) + (p_now at time zone 'UTC')::date loop
    name := 'ledger_' || to_char(day, 'YYYYMMDD');
    continue when to_regclass('hourbell.' || name) is not null;
    begin
      execute format('create table hourbell.%I partition of hourbell.ledger for values from (%L) to (%L)',
        name, day::timestamp at time zone 'UTC', (day + 1)::timestamp at time zone 'UTC');
      made := made + 1;
    exception
      when check_violation or duplicate_table then null;
      when lock_not_available then return made;
    end;
  end loop;
  return made;
end $$;

-- Drops whole days of the ledger that are older than p_keep, the records of which of their deaths were replayed, and
-- the sessions that only they refer to.
create or replace function hourbell.drop_partitions(p_node uuid, p_epoch bigint, p_now timestamptz, p_keep interval)
returns int
language plpgsql set lock_timeout = '50ms' as $$
#variable_conflict use_column
declare
  name text;
  dropped int := 0;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  for name in
    select c.relname from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'hourbell.ledger'::regclass and c.relname ~ '^ledger_[0-9]{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') < ((p_now - p_keep) at time zone 'UTC')::date
  loop
    begin
      execute format('drop table hourbell.%I', name);
      dropped := dropped + 1;
    exception
      when undefined_table then null;  -- another transaction dropped it first
      when lock_not_available then return dropped;
    end;
  end loop;
  delete from hourbell.replays where ctid = any (array(
    select ctid from hourbell.replays where died_at < p_now - p_keep - interval '1 day' order by died_at limit 10000));
  delete from hourbell.past_sessions where ctid = any (array(
    select ctid from hourbell.past_sessions where ended_at < p_now - p_keep - interval '1 day'
    order by ended_at limit 10000));
  return dropped;
end $$;

-- Deletes what is no longer needed: answers to idempotent writes, tokens of completions, deleted monitors, progress and
-- cancellation requests whose execution has ended, timetables without members, lanes that virtual time has passed,
-- unique keys of jobs that have ended.
create or replace function hourbell.delete_expired(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_keep_answers interval, p_limit int
) returns int
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  n int;
  total int := 0;
  holders bigint[];
  live bigint[];
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  delete from hourbell.idempotency where ctid = any (array(
    select ctid from hourbell.idempotency where created_at < p_now - p_keep_answers
    order by created_at limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.awaiting where ctid = any (array(
    select ctid from hourbell.awaiting where outcome is not null and until < p_now - p_keep_answers
    order by until limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.monitors where ctid = any (array(
    select ctid from hourbell.monitors where deleted_at < p_now - p_keep_answers
    order by deleted_at limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.progress where ctid = any (array(
    select p.ctid from hourbell.progress as p
    where not exists (select from hourbell.executions as e where e.id = p.id and e.fence < p.fence offset 0)
    limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.planned_counts where ctid = any (array(
    select ctid from hourbell.planned_counts where at < p_now order by at limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.cancellations where ctid = any (array(
    select ctid from hourbell.cancellations as c
    where not exists (select from hourbell.executions as e where e.id = c.id) limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.timetables where ctid = any (array(
    select ctid from hourbell.timetables as t
    where not exists (select from hourbell.memberships as m where m.timetable = t.id)
      and not exists (select from hourbell.fires as f where f.timetable = t.id)
      and planned_through < p_now - interval '1 hour'
    limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.lanes where ctid = any (array(
    select l.ctid from (
      select distinct on (queue, priority) queue, priority, v
      from hourbell.virtual_time order by queue, priority, pass desc) as v
    join hourbell.lanes as l on l.space = v.queue and l.priority = v.priority
    where not v.v < any (l.lasts) limit p_limit for update of l skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.limit_generations where id = any (array(
    select id from hourbell.limit_generations where id < (select max(id) from hourbell.limit_generations)
    order by id limit p_limit));
  get diagnostics n = row_count; total := total + n;
  -- Lanes of blockers under which nothing is parked any more.
  delete from hourbell.lanes where ctid = any (array(
    select l.ctid from hourbell.lanes as l
    where l.space >= hourbell.tag_space(hourbell.blocker_queue(), 0) and not exists (
      select from hourbell.parked as p
      where p.kind = (l.space >> 56) and p.key = l.space - ((l.space >> 56) << 56) offset 0)
    limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  -- The cursor wraps around, so that a million live keys are not scanned each time.
  holders := array(
    select job from hourbell.unique_keys where job > (select last_value from hourbell.unique_keys_cursor)
    order by job limit p_limit);
  perform setval('hourbell.unique_keys_cursor',
    case when cardinality(holders) < p_limit then 0 else holders[p_limit] end);
  live := hourbell.live_jobs(holders);
  delete from hourbell.unique_keys where ctid = any (array(
    select ctid from hourbell.unique_keys
    where job = any (array(select * from unnest(holders) except select * from unnest(live))) for update skip locked));
  get diagnostics n = row_count; total := total + n;
  return total;
end $$;

-- The number of the first audit entry that is not older than p_at. Entries are numbered in order of time, or nearly, so
-- a binary search finds it without an index by time.
create or replace function hourbell.audit_from(p_at timestamptz) returns bigint
language plpgsql stable set plan = lookups as $$
#variable_conflict use_column
declare
  low bigint := coalesce((select id from hourbell.audit order by id limit 1), 0);
  high bigint := coalesce((select id from hourbell.audit order by id desc limit 1), -1) + 1;
  middle bigint;
  entry record;
begin
  while low < high loop
    middle := low + (high - low) / 2;
    select id, at into entry from hourbell.audit where id >= middle order by id limit 1;
    if entry.at < p_at then low := entry.id + 1; else high := middle; end if;
  end loop;
  return low;
end $$;

-- Deletes history that is older than its tenant's retention, or the cell's ($4 to $6, in days): dead letters, audit
-- entries, and ledger rows of tenants that keep less than the cell. Days that no tenant keeps any longer are dropped
-- whole by `drop_partitions`.
-- A round covers the next p_tenants tenants and deletes at most p_limit rows of each kind; the cursor stays until they
-- have no more. Ledger rows are deleted by whole days, as partitions are. `ledger_rest` has no day, so its rows are
-- deleted by their time.
create or replace function hourbell.retain(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_ledger_days int, p_letter_days int, p_audit_days int,
  p_tenants int, p_limit int
) returns int
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  n int;
  most int := 0;
  tenants int[];
  short int[];  -- tenants that have a ledger retention of their own,
  since date[];  -- and the first day that each keeps
  over int[];  -- tenants that do not keep a partition any longer
  name text;
  day date;
  left_over int;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  tenants := array(
    select id from hourbell.tenants where id > (select last_value from hourbell.retention_cursor)
    order by id limit p_tenants);

  delete from hourbell.dead_letters where id = any (array(
    select d.id from unnest(tenants) as w(id)
    cross join lateral (select * from hourbell.tenants as t where t.id = w.id offset 0) as t
    cross join lateral (
      select id from hourbell.dead_letters as d
      where d.tenant = t.id and d.died_at < p_now - make_interval(days => coalesce(t.dead_letter_days, p_letter_days))
      order by d.tenant, d.died_at, d.id limit p_limit for update skip locked) as d
    limit p_limit));
  get diagnostics n = row_count; most := greatest(most, n);

  delete from hourbell.audit where id = any (array(
    with bounds as materialized (
      select d.days, hourbell.audit_from(p_now - make_interval(days => d.days)) as id from (
        select distinct coalesce(t.audit_days, p_audit_days) as days from unnest(tenants) as w(id)
        cross join lateral (select * from hourbell.tenants as t where t.id = w.id offset 0) as t) as d)
    select a.id from unnest(tenants) as w(id)
    cross join lateral (select * from hourbell.tenants as t where t.id = w.id offset 0) as t
    join bounds as b on b.days = coalesce(t.audit_days, p_audit_days)
    cross join lateral (
      select id from hourbell.audit as a where a.tenant = t.id and a.id < b.id
      order by a.tenant, a.id limit p_limit offset 0) as a
    limit p_limit));
  get diagnostics n = row_count; most := greatest(most, n);

  select array_agg(t.id), array_agg(((p_now - make_interval(days => t.ledger_days)) at time zone 'UTC')::date)
  into short, since
  from unnest(tenants) as w(id)
  cross join lateral (select * from hourbell.tenants as t where t.id = w.id offset 0) as t
  where t.ledger_days is not null;
  left_over := p_limit;
  for name, day in
    select c.relname, to_date(right(c.relname, 8), 'YYYYMMDD') from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'hourbell.ledger'::regclass and c.relname ~ '^ledger_[0-9]{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') < (p_now at time zone 'UTC')::date
    order by c.relname
  loop
    over := array(select s.id from unnest(short, since) as s(id, since) where day < s.since);
    continue when over = '{}';
    begin
      for i in 0..1 loop  -- recurring and one-time: each has its own index
        execute format(
          'delete from hourbell.%1$I where ctid = any (array(
             select l.ctid from unnest($1) as w(id)
             cross join lateral (
               select ctid from hourbell.%1$I as l where l.tenant = w.id and %2$s
               order by l.tenant, l.id limit $2 offset 0) as l
             limit $2))',
          name, case i when 0 then 'l.job <> l.id' else 'l.job = l.id' end) using over, left_over;
        get diagnostics n = row_count; left_over := left_over - n;
      end loop;
    exception
      when undefined_table then null;  -- dropped meanwhile
    end;
    exit when left_over <= 0;
  end loop;
  most := greatest(most, p_limit - left_over);

  delete from hourbell.ledger_rest where ctid = any (array(
    select l.ctid from hourbell.ledger_rest as l
    left join lateral (select ledger_days from hourbell.tenants as t where t.id = l.tenant offset 0) as t on true
    where l.recorded_at < p_now - make_interval(days => least(t.ledger_days, p_ledger_days) + 1) limit p_limit));
  get diagnostics n = row_count; most := greatest(most, n);

  if most < p_limit then
    perform setval('hourbell.retention_cursor',
      case when cardinality(tenants) < p_tenants then 0 else tenants[p_tenants] end);
  end if;
  return most;
end $$;
