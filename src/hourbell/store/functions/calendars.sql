-- Calendars: named lists of dates that schedules skip. The gate decides, when the time of an execution has come, so a
-- change of a calendar reaches everything that was planned and not admitted. Jobs without calendars cost nothing on
-- days that are in none.

-- The rows p_rows without those whose date is in a calendar that their job excludes; these are recorded as skipped.
-- Only occurrences of a schedule that have not started are skipped.
create or replace function hourbell.without_excluded_dates(p_rows hourbell.due[], p_now timestamptz)
returns hourbell.due[]
language plpgsql set plan = lookups_unsorted as $$
#variable_conflict use_column
declare excluded bigint[];
begin
  if p_rows = '{}' or not exists (select from hourbell.calendar_dates) then return p_rows; end if;
  if not exists (
    select from (
      select min(run_at) as first, max(run_at) as last from unnest(p_rows)) as r
    cross join lateral (
      select from hourbell.calendar_dates as d
      -- No zone is a day from UTC.
      where d.day between (r.first at time zone 'UTC')::date - 1 and (r.last at time zone 'UTC')::date + 1
      limit 1) as d) then
    return p_rows;
  end if;
  excluded := array(
    select e.id
    from unnest(p_rows) as r
    cross join lateral (select * from hourbell.executions as e where e.id = r.id offset 0) as e
    cross join lateral (
      select spec, valid_from from hourbell.jobs as j where j.id = e.job offset 0) as j
    where e.origin = hourbell.origin_schedule() and e.attempt = 0
      and e.version >= j.valid_from  -- otherwise its claim supersedes it
      and j.spec like '%"exclude":%'
      and hourbell.is_excluded(e.tenant, j.spec::json -> 'schedule', e.occurrence));
  if excluded = '{}' then return p_rows; end if;
  perform hourbell.end_executions(excluded, array_fill(hourbell.fate_skipped(), array[cardinality(excluded)]),
    array_fill('calendar'::text, array[cardinality(excluded)]), p_now);
  return array(
    select r from (select r, row_number() over () as pos from unnest(p_rows) as r) as rows
    where (r).id <> all (excluded) order by pos);
end $$;

-- Whether a calendar that a schedule excludes has the date of an occurrence, in the zone of the schedule.
create or replace function hourbell.is_excluded(p_tenant int, p_schedule json, p_at timestamptz) returns boolean
language plpgsql as $$
#variable_conflict use_column
declare
  local_day date;
begin
  if json_typeof(p_schedule -> 'exclude') is distinct from 'array' then return false; end if;
  -- A job that is delayed by its jitter is judged by the date of the run.
  local_day := hourbell.local_day(coalesce(p_schedule ->> 'timezone', 'UTC'), p_at);
  return exists (
    select from json_array_elements_text(p_schedule -> 'exclude') as c(name)
    cross join lateral (
      select from hourbell.calendar_dates as d
      where d.tenant = p_tenant and d.calendar = c.name and d.day = local_day) as d);
end $$;

-- The date in a zone. One that PostgreSQL does not know counts as UTC: an error would stop the gate.
-- `at time zone` takes CET, EET or MST for an abbreviation, which has the same offset all year; the setting `timezone`
-- means the zone. It is restored at the end of this function.
create or replace function hourbell.local_day(p_zone text, p_at timestamptz) returns date
language plpgsql set timezone = 'UTC' as $$
begin
  perform set_config('timezone', p_zone, true);
  return p_at::date;
exception when invalid_parameter_value then
  raise warning 'the time zone % is unknown here', p_zone;
  return (p_at at time zone 'UTC')::date;
end $$;

-- The times of dates in a zone.
create or replace function hourbell.times_of(p_zone text, p_days date[]) returns tstzmultirange
language plpgsql set timezone = 'UTC' as $$
begin
  begin
    perform set_config('timezone', p_zone, true);
  exception when invalid_parameter_value then
    raise warning 'the time zone % is unknown here', p_zone;
  end;
  -- A midnight that happens twice is the second one for PostgreSQL.
  return (
    select coalesce(range_agg(tstzrange(
      case when (first - interval '1 hour')::date = day then first - interval '1 hour' else first end,
      case when (next - interval '1 hour')::date > day then next - interval '1 hour' else next end)), '{}')
    from (select day, day::timestamptz as first, (day + 1)::timestamptz as next from unnest(p_days) as day) as days);
end $$;

-- The times from p_from to p_through on the dates that a schedule excludes.
create or replace function hourbell.excluded_times(
  p_tenant int, p_schedule json, p_from timestamptz, p_through timestamptz
) returns tstzmultirange
language plpgsql set plan = lookups as $$
#variable_conflict use_column
begin
  if json_typeof(p_schedule -> 'exclude') is distinct from 'array' then return '{}'; end if;
  return hourbell.times_of(coalesce(p_schedule ->> 'timezone', 'UTC'), array(
    select distinct d.day from json_array_elements_text(p_schedule -> 'exclude') as c(name)
    cross join lateral (
      select day from hourbell.calendar_dates as d
      where d.tenant = p_tenant and d.calendar = c.name
        -- No zone is a day from UTC.
        and d.day between (p_from at time zone 'UTC')::date - 1 and (p_through at time zone 'UTC')::date + 1) as d));
end $$;

-- Those of these members whose policy is `latest` and whose schedules exclude dates from p_from to p_through: their
-- jobs, and the times of these dates. Null: there are none.
create or replace function hourbell.excluded_of(
  p_members hourbell.memberships[], p_from timestamptz, p_through timestamptz, out jobs bigint[],
  out times tstzmultirange[]
)
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
begin
  if not exists (
    select from hourbell.calendar_dates
    where day between (p_from at time zone 'UTC')::date - 1 and (p_through at time zone 'UTC')::date + 1) then
    return;
  end if;
  -- Many members may exclude the same dates.
  select array_agg(job), array_agg(e.times) into jobs, times
  from (
    select s.jobs, hourbell.excluded_times(s.tenant, s.schedule::json, p_from, p_through) as times
    from (
      select m.tenant, array_agg(distinct m.job) as jobs, json_build_object(
          'timezone', s.schedule ->> 'timezone', 'exclude', s.schedule -> 'exclude')::text as schedule
      from unnest(p_members) as m
      cross join lateral (
        select spec from hourbell.jobs as j where j.id = m.job and j.spec like '%"exclude":%' offset 0) as j
      cross join lateral (select hourbell.as_json(j.spec) -> 'schedule' as schedule) as s
      where m.misfire = hourbell.misfire_latest()
      group by m.tenant, 3) as s) as e
  cross join lateral unnest(e.jobs) as job
  where e.times <> '{}';
end $$;
