-- Joining: a job that is created or changed becomes a member of its timetable, and gets its own executions for the
-- occurrences that the timetable's fires have already produced. Called by whatever creates or changes a job, and by the
-- leader for joins that were left over. `join_timetable` locks the timetable and then the new memberships; `catch_up`
-- writes their executions, by the same producer as the fires (`produce`).
-- Example: a timetable fires every minute and is planned through 12:05. A job that joins it at 12:03:30 gets executions
-- for 12:04 and 12:05 here, and the one for 12:06 with the next fire.

-- The occurrences of a job after a moment that have ended, as ranges. Superseded ones are not included: the next
-- version runs them. A missed stretch may begin before that moment; only the last one that does can reach beyond it.
-- Occurrences planned ahead may have been cancelled before their time, but by less than a day.
create or replace function hourbell.recorded_since(
  p_job bigint, p_since timestamptz, out first timestamptz, out last timestamptz
) returns setof record
language sql stable as $$
  with origins as not materialized (
    select e.id, e.occurrence as first, coalesce(o.missed_through, e.occurrence) as last
    from hourbell.executions as e cross join lateral (
      select * from hourbell.outcomes as o where o.id = e.id offset 0) as o
    where e.job = p_job and e.origin = hourbell.origin_schedule() and o.fate <> hourbell.fate_superseded()
      and o.recorded_at >= p_since - interval '1 day')
  select first, last from origins where first > p_since
  union all
  (select first, last from (
     select * from origins where first <= p_since and id >= hourbell.id_base(p_since - interval '1 day')
     order by first desc limit 1) as latest
   where last > p_since)
$$;

-- Produces a stretch for members that join it late: past occurrences by their misfire policies, future ones as if the
-- members had been there from the start.
create or replace function hourbell.catch_up(
  p_members hourbell.memberships[], p_occurrences timestamptz[], p_now timestamptz, p_grace interval
) returns void
language plpgsql as $$
declare
  passed int := width_bucket(p_now, p_occurrences);
begin
  if passed > 0 then
    perform hourbell.produce(
      p_members, p_occurrences[:passed], p_now, p_occurrences[1] < p_now - p_grace, true, p_grace, p_now);
  end if;
  perform hourbell.produce(p_members, p_occurrences[passed + 1:], p_now, false, true, p_grace, p_now);
end $$;

-- Joins memberships to their timetable. Under the timetable's lock a membership learns how far planning has come, gets
-- its own executions up to there, and leaves the rest to the fires. Any caller may complete a join; it is one
-- statement.
--
-- p_occurrences are the timetable's occurrences in (p_from, p_through]. If planning has gone beyond p_through, nothing
-- is done and that moment is returned as `beyond`: compute further and call again. Members active since before p_from
-- are left to a caller with an earlier p_from. Members that another transaction is changing are skipped, and so are
-- those whose join has failed (`note_failing`), until it is time to retry it. p_jobs: only these join; null: all.
create or replace function hourbell.join_timetable(
  p_timetable bigint, p_now timestamptz, p_occurrences timestamptz[], p_from timestamptz, p_through timestamptz,
  p_grace interval, p_jobs bigint[], out joined int, out beyond timestamptz
)
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  planned timestamptz;
  joining hourbell.memberships[];
  open_ids bigint[];  -- live executions of jobs that were changed
  continuing hourbell.memberships[];  -- members whose job already has some of their occurrences,
  already tstzmultirange[];  -- which ones,
  reached_through timestamptz[];  -- and how far they join
begin
  joined := 0;
  select planned_through into planned from hourbell.timetables where id = p_timetable for no key update;
  if not found then return; end if;
  if planned > p_through then beyond := planned; return; end if;

  joining := array(
    select m from hourbell.memberships as m
    where timetable = p_timetable and joined_through is null and active_since >= p_from
      and (p_jobs is null or job = any (p_jobs))
      and not exists (
        select from hourbell.failing_rows as f where f.step = 'join' and f.id = m.job and f.until > p_now offset 0)
    order by priority, job limit 5000 for update skip locked);
  if joining = '{}' then return; end if;

  -- A change of a job states from when on it is valid, and commits later. Until then the previous membership stays
  -- active, maybe on another timetable. Occurrences that the job has had since are not produced again: live executions
  -- are locked, and belong to this version from now on; ended ones have an outcome; those that another transaction is
  -- just ending will have one soon, and are not waited for. Such a member joins as far as its job has come, if that is
  -- further than its timetable.
  open_ids := array(
    select id from hourbell.open_runs
    where job = any (array(select job from unnest(joining) where version > 1 or rejoins))
      and origin = hourbell.origin_schedule()
    for key share skip locked);
  select array_agg(m), array_agg(had), array_agg(reached) into continuing, already, reached_through
  from unnest(joining) as m
  cross join lateral (
    select coalesce(range_agg(tstzrange(first, last, '[]')), '{}') as had, max(last) as reached
    from (
      select first, last from hourbell.recorded_since(m.job, m.active_since)
      union all
      select occurrence, occurrence from hourbell.open_runs
      where job = m.job and origin = hourbell.origin_schedule()
        and occurrence > m.active_since) as ranges) as since
  where (m.version > 1 or m.rejoins) and not isempty(had);
  beyond := (select max(at) from unnest(reached_through) as at where at > p_through);
  if beyond is not null then return; end if;

  update hourbell.executions as e set version = m.version from unnest(continuing) as m
  where e.id = any (open_ids) and e.job = m.job and e.version < m.version
    and e.occurrence > m.active_since and e.occurrence <= coalesce(m.until, 'infinity')
    and e.occurrence = any (p_occurrences);
  for k in 1 .. coalesce(cardinality(continuing), 0) loop
    perform hourbell.catch_up(
      array[continuing[k]],
      array(
        select at from unnest(p_occurrences) as at
        where at <= greatest(planned, reached_through[k]) and not already[k] @> at order by at),
      p_now, p_grace);
  end loop;
  perform hourbell.catch_up(
    array(select m from unnest(joining) as m where (job, version) not in (select job, version from unnest(continuing))),
    array(select at from unnest(p_occurrences) as at where at <= planned order by at),
    p_now, p_grace);

  update hourbell.memberships as m set joined_through = greatest(planned, reached_through[a.ordinality], m.active_since)
  from unnest(joining) as j
  left join unnest(continuing) with ordinality as a
    on a.job = j.job and a.version = j.version
  where m.timetable = j.timetable and m.priority = j.priority and m.job = j.job and m.version = j.version;
  get diagnostics joined = row_count;
  -- What was just being planned when the jobs were changed.
  perform hourbell.reroute(p_now, job) from unnest(joining) where version > 1;
end $$;
