-- Housekeeping: partitions of executions and outcomes, and everything that expires.

-- The partitions of executions, with the days of their ids, without the last; those of outcomes have the same bounds.
-- They are read from the names, because the bounds themselves cannot be read while another transaction drops one.
create or replace function hourbell.partitions(out name text, out first date, out after date) returns setof record
language sql stable as $$
  select p.days[1] || '_' || p.days[2], to_date(p.days[1], 'YYYYMMDD'), to_date(p.days[2], 'YYYYMMDD')
  from pg_inherits as i join pg_class as c on c.oid = i.inhrelid
  cross join lateral (select regexp_match(c.relname, '^executions_(\d{8})_(\d{8})$') as days) as p
  where i.inhparent = 'hourbell.executions'::regclass and p.days is not null
$$;

-- The first id of a day.
create or replace function hourbell.first_id(p_day date) returns bigint
language sql immutable
return hourbell.id_base(p_day::timestamp at time zone 'UTC');

-- Creates the partitions for ids of p_now and of p_days ahead, p_span days each. Executions of a time without a
-- partition go to `executions_rest`, and a stretch that already has rows there stays there.
-- This and the drop need an exclusive lock on both tables, and later transactions queue behind it. So they do not wait
-- long for an open transaction: the next round is soon enough.
create or replace function hourbell.make_partitions(p_now timestamptz, p_days int, p_span int) returns int
language plpgsql set lock_timeout = '50ms' as $$
#variable_conflict use_column
declare
  today constant date := (p_now at time zone 'UTC')::date;
  day date := today;
  next_day date;
  days text;
  made int := 0;
begin
  while day <= today + p_days loop
    next_day := (select max(p.after) from hourbell.partitions() as p where p.first <= day and p.after > day);
    if next_day is null then
      next_day := least(day + p_span, (select min(p.first) from hourbell.partitions() as p where p.first > day));
      days := to_char(day, 'YYYYMMDD') || '_' || to_char(next_day, 'YYYYMMDD');
      begin
        -- Most rows are inserted and never change, so statistics change slowly: analyze a partition when it has
        -- doubled.
        execute format(
          'create table hourbell.%I partition of hourbell.executions for values from (%s) to (%s)'
          ' with (fillfactor = 90, autovacuum_analyze_scale_factor = 1)',
          'executions_' || days, hourbell.first_id(day), hourbell.first_id(next_day));
        -- A partition does not inherit this.
        execute format('alter table hourbell.%I alter spec set statistics 0', 'executions_' || days);
        execute format(
          'create table hourbell.%I partition of hourbell.outcomes for values from (%s) to (%s)'
          ' with (autovacuum_analyze_scale_factor = 1)',
          'outcomes_' || days, hourbell.first_id(day), hourbell.first_id(next_day));
        made := made + 1;
      exception
        when check_violation or duplicate_table or invalid_object_definition then null;
        when lock_not_available then return made;
      end;
    end if;
    day := next_day;
  end loop;
  return made;
end $$;

-- The next p_rows executions of a partition after the id p_after: those that must outlive it, because they have not
-- ended or ended at p_until or later, and the last id that was read; null: there are no more.
create or replace function hourbell.scan_partition(
  p_name text, p_after bigint, p_until timestamptz, p_rows int, out kept bigint[], out last bigint
)
language plpgsql set plan = lookups_one_by_one as $$
declare n int;
begin
  execute format(
    'select array_agg(e.id) filter (where o.id is null or o.recorded_at >= $2), max(e.id), count(*)
     from (select id from hourbell.%I where id > $1 order by id limit $3) as e
     left join lateral (select * from hourbell.%I as o where o.id = e.id offset 0) as o on true',
    'executions_' || p_name, 'outcomes_' || p_name) into kept, last, n using p_after, p_until, p_rows;
  kept := coalesce(kept, '{}');
  if n < p_rows then last := null; end if;
end $$;

-- Drops a partition. Carries p_kept over to `executions_rest` (`scan_partition`), and what was replayed since p_since,
-- when the scan began: nothing else can have come to life again. False: another transaction uses the tables, or the
-- partition is gone.
create or replace function hourbell.drop_partition(
  p_node uuid, p_epoch bigint, p_name text, p_kept bigint[], p_since timestamptz
) returns boolean
language plpgsql set lock_timeout = '50ms' as $$
#variable_conflict use_column
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  execute format('alter table hourbell.executions detach partition hourbell.%I', 'executions_' || p_name);
  execute format('alter table hourbell.outcomes detach partition hourbell.%I', 'outcomes_' || p_name);
  execute format(
    'with kept as (
       select unnest($1) as id union select id from hourbell.replays where replayed_at >= $2),
     carried as (
       insert into hourbell.executions select e.* from hourbell.%I as e where e.id = any (array(select id from kept)))
     insert into hourbell.outcomes select o.* from hourbell.%I as o where o.id = any (array(select id from kept))',
    'executions_' || p_name, 'outcomes_' || p_name) using p_kept, p_since;
  execute format('drop table hourbell.%I, hourbell.%I', 'executions_' || p_name, 'outcomes_' || p_name);
  delete from hourbell.thinned_partitions where name = p_name;
  return true;
exception
  when undefined_table or lock_not_available then return false;
end $$;

-- Deletes executions that ended before p_until out of a partition that is not dropped, or not yet: of the next p_rows
-- outcomes by id, from where the last call has stopped, so that what stays is not read again by each call.
-- deleted: how many; finished: it has reached the end; the next call starts at the beginning.
create or replace function hourbell.thin_partition(
  p_node uuid, p_epoch bigint, p_name text, p_until timestamptz, p_rows int, out deleted int, out finished boolean
)
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  through bigint;
  ended bigint[];
  last bigint;
  n int;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  select through_id into through from hourbell.thinned_partitions where name = p_name;
  execute format(
    'select coalesce(array_agg(o.id) filter (where o.recorded_at < $2), ''{}''), max(o.id), count(*)
     from (select id, recorded_at from hourbell.%I where id > $1 order by id limit $3) as o',
    'outcomes_' || p_name) into ended, last, n using coalesce(through, 0), p_until, p_rows;
  finished := n < p_rows;
  if finished then
    delete from hourbell.thinned_partitions where name = p_name;
  else
    insert into hourbell.thinned_partitions values (p_name, last)
    on conflict (name) do update set through_id = excluded.through_id;
  end if;
  deleted := hourbell.delete_ended(ended, p_until);
end $$;

-- Deletes these executions, with their outcomes, unless a replay has undone their end; returns how many.
create or replace function hourbell.delete_ended(p_ids bigint[], p_until timestamptz) returns int
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare deleted int;
begin
  with gone as (delete from hourbell.outcomes where id = any (p_ids) and recorded_at < p_until returning id)
  delete from hourbell.executions where id = any (array(select id from gone));
  get diagnostics deleted = row_count;
  return deleted;
end $$;

-- Deletes the records of deaths that were replayed longer than p_keep ago, and of sessions that ended before that;
-- counts of minutes and terms of leaders that are older than any page shows; processes that are gone.
create or replace function hourbell.delete_old_records(p_node uuid, p_epoch bigint, p_now timestamptz, p_keep interval)
returns void
language plpgsql as $$
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  delete from hourbell.replays where ctid = any (array(
    select ctid from hourbell.replays where died_at < p_now - p_keep - interval '1 day' order by died_at limit 10000));
  delete from hourbell.past_sessions where ctid = any (array(
    select ctid from hourbell.past_sessions where ended_at < p_now - p_keep - interval '1 day'
    order by ended_at limit 10000));
  delete from hourbell.minutes where minute = any (array(
    select minute from hourbell.minutes where minute < p_now - interval '8 days' order by minute limit 10000));
  delete from hourbell.failed_attempts where ctid = any (array(
    select ctid from hourbell.failed_attempts where at < p_now - interval '2 days' order by at limit 10000));
  delete from hourbell.terms where began_at < p_now - interval '8 days'
    and epoch < (select max(epoch) from hourbell.terms);
  delete from hourbell.nodes where seen_at < p_now - interval '1 hour';
end $$;

-- Deletes executions of p_tenants that ended before p_until, with their outcomes, out of one table of executions. At
-- most p_limit; returns how many.
create or replace function hourbell.delete_ended_of(p_table text, p_tenants int[], p_until timestamptz, p_limit int)
returns int
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare ids bigint[];
begin
  execute format(
    'select array_agg(id) from (
       select e.id from unnest($1) as t(id) cross join lateral (
         select id from hourbell.%1$I as e where e.tenant = t.id and e.job is null
         union all select id from hourbell.%1$I as e where e.tenant = t.id and e.job is not null) as e
       where exists (select from hourbell.outcomes as o where o.id = e.id and o.recorded_at < $2 offset 0)
       limit $3) as e',
    p_table) into ids using p_tenants, p_until, p_limit;
  return hourbell.delete_ended(coalesce(ids, '{}'), p_until);
end $$;

-- Deletes what is no longer needed: answers to idempotent writes, tokens of completions, deleted monitors, expired
-- sign-ins; progress, cancellation requests, counts of reruns and checkpoints of executions that have ended; timetables
-- without members, lanes that virtual time has passed, unique keys of jobs that have ended, manifests.
create or replace function hourbell.delete_expired(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_keep_answers interval, p_limit int
) returns int
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  n int;
  total int := 0;
  holders bigint[]; held tid[];
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
  delete from hourbell.sign_ins where ctid = any (array(
    select ctid from hourbell.sign_ins where used_at < p_now - interval '12 hours'
    order by used_at limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.progress where ctid = any (array(
    select p.ctid from hourbell.progress as p
    where exists (select from hourbell.outcomes as o where o.id = p.id offset 0)
      or not exists (select from hourbell.executions as e where e.id = p.id and e.fence < p.fence offset 0)
    order by id limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.planned_counts where ctid = any (array(
    select ctid from hourbell.planned_counts where at < p_now order by at limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.cancellations where ctid = any (array(
    select ctid from hourbell.cancellations as c
    where exists (select from hourbell.outcomes as o where o.id = c.id offset 0)
      or not exists (select from hourbell.executions as e where e.id = c.id offset 0)
    order by id limit p_limit for update skip locked));
  get diagnostics n = row_count; total := total + n;
  delete from hourbell.timetables where ctid = any (array(
    select ctid from hourbell.timetables as t
    where not exists (select from hourbell.memberships as m where m.timetable = t.id)
      and not exists (select from hourbell.fires as f where f.timetable = t.id)
      and not exists (select from hourbell.gaps as g where g.timetable = t.id)
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
  total := total + hourbell.delete_reruns(p_limit);
  total := total + hourbell.delete_waits(p_limit);
  total := total + hourbell.delete_manifests(p_now, interval '90 days', p_limit);
  -- The cursor wraps around, so that a million live keys are not scanned each time.
  select coalesce(array_agg(job), '{}'), coalesce(array_agg(row), '{}') into holders, held
  from (
    select job, ctid as row from hourbell.unique_keys
    where job > (select last_value from hourbell.unique_keys_cursor) order by job limit p_limit) as k;
  perform setval('hourbell.unique_keys_cursor',
    case when cardinality(holders) < p_limit then 0 else holders[p_limit] end);
  live := hourbell.live_jobs(holders);
  -- A replay that has made a job live since then has written its row again, at another place (`take_keys_back`).
  delete from hourbell.unique_keys where ctid = any (array(
    select ctid from hourbell.unique_keys
    where ctid = any (array(
      select h.row from unnest(held, holders) as h(row, job) where h.job not in (select * from unnest(live))))
    for update skip locked));
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
-- entries, and executions of tenants that keep less than the cell. Partitions that no tenant keeps any longer are
-- dropped whole by `drop_partition`; `executions_rest` is never dropped, so it is thinned (`thin_partition`).
-- A round covers the next p_tenants tenants and deletes at most p_limit rows of each kind; the cursor stays until they
-- have no more. Executions are kept for whole days.
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
  days int;  -- that some tenants keep executions,
  short int[];  -- and these tenants
  until timestamptz;
  name text;
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

  left_over := p_limit;
  for days, short in
    select t.ledger_days, array_agg(t.id) from unnest(tenants) as w(id)
    cross join lateral (select * from hourbell.tenants as t where t.id = w.id offset 0) as t
    where t.ledger_days < p_ledger_days group by t.ledger_days
  loop
    until := date_trunc('day', p_now - make_interval(days => days), 'UTC');
    for name in
      select 'executions_' || p.name from hourbell.partitions() as p where p.first < (until at time zone 'UTC')::date
      union all select 'executions_rest'
    loop
      begin
        left_over := left_over - hourbell.delete_ended_of(name, short, until, left_over);
      exception
        when undefined_table then null;  -- dropped meanwhile
      end;
      exit when left_over <= 0;
    end loop;
    exit when left_over <= 0;
  end loop;
  most := greatest(most, p_limit - left_over);

  if most < p_limit then
    perform setval('hourbell.retention_cursor',
      case when cardinality(tenants) < p_tenants then 0 else tenants[p_tenants] end);
  end if;
  return most;
end $$;
