-- Misfires at the gate: an occurrence that was planned in time but waited too long in `due`, because nothing admitted
-- it, follows the misfire policy of its job, like one that is planned too late (hourbell.member_share).

-- The due rows p_rows without those that are recorded as missed. A row is judged once, when the gate first takes it:
-- not after it was parked, returned or retried, which makes its run_at differ from its occurrence (hourbell.requeue).
-- Only occurrences of a schedule can be misfires.
create or replace function hourbell.without_misfires(p_rows hourbell.due[], p_now timestamptz, p_grace interval)
returns hourbell.due[]
language plpgsql set plan = lookups_unsorted as $$
#variable_conflict use_column
declare missed bigint[];
begin
  missed := array(
    with late as materialized (
      select e.id, e.job, e.occurrence, j.timetable, coalesce(j.spec ->> 'misfire_policy', 'latest') as policy,
        coalesce((j.spec ->> 'catch_up_window_seconds')::int, 86400) as catch_up_seconds,
        case when j.excludes then hourbell.excluded_times(e.tenant, j.spec -> 'schedule', e.occurrence, p_now)
          else '{}' end as excluded
      from unnest(p_rows) as r
      cross join lateral (select * from hourbell.executions as e where e.id = r.id offset 0) as e
      cross join lateral (
        select timetable, valid_from, spec::json as spec, spec like '%"exclude":%' as excludes
        from hourbell.jobs as j where j.id = e.job offset 0) as j
      where r.run_at < p_now - p_grace and e.origin = hourbell.origin_schedule() and e.run_at = e.occurrence
        and e.version >= j.valid_from)  -- otherwise its claim supersedes it
    select id from late where case policy
      when 'skip' then true
      when 'all' then occurrence <= p_now - make_interval(secs => catch_up_seconds)
      -- `latest`: whether the job has an occurrence after this one and up to now, and not at an excluded time: one that
      -- is planned,
      else exists (
          select from hourbell.open_runs as r
          where r.job = late.job and r.origin = hourbell.origin_schedule() and r.occurrence > late.occurrence
            and r.occurrence <= p_now and not excluded @> r.occurrence offset 0)
        -- or the next one of its timetable, or one in a fire that is being fanned out, or the next one in a gap or one
        -- after it. (Those after them are not computed yet. If only these are allowed, this one runs, too.)
        or exists (
          select from hourbell.timetables as t
          -- One lookup per priority: PostgreSQL 15 may use `= any` as a filter, and scan the whole timetable.
          cross join unnest('{0,1,2,3}'::smallint[]) as p(priority)
          cross join lateral (
            select greatest(late.occurrence, m.active_since) as since, least(p_now, m.until) as until
            from hourbell.memberships as m
            where m.timetable = t.id and m.priority = p.priority and m.job = late.job offset 0) as m
          where t.id = late.timetable and (
            (t.next_fire_at > m.since and t.next_fire_at <= m.until and not excluded @> t.next_fire_at)
            or exists (
              select from hourbell.fires as f
              where f.timetable = t.id and hourbell.latest_allowed(f.occurrences,
                width_bucket(m.since, f.occurrences) + 1, width_bucket(m.until, f.occurrences), excluded) is not null)
            or exists (
              select from hourbell.gaps as g
              cross join unnest(g.next_at || g.newer) as o(at)
              where g.timetable = t.id and o.at > m.since and o.at <= m.until and not excluded @> o.at))
          offset 0)
        -- or one that has ended. (Occurrences planned ahead may have been cancelled before their time.)
        or exists (
          select from hourbell.executions as e cross join lateral (
            select * from hourbell.outcomes as o where o.id = e.id offset 0) as o
          where e.job = late.job and e.occurrence > late.occurrence and e.occurrence <= p_now
            and not excluded @> e.occurrence
            and e.origin = hourbell.origin_schedule() and o.recorded_at >= late.occurrence - interval '1 day'
            and o.fate <> hourbell.fate_superseded() offset 0)
      end);
  if missed = '{}' then return p_rows; end if;
  perform hourbell.end_executions(missed, array_fill(hourbell.fate_skipped(), array[cardinality(missed)]),
    array_fill('misfire'::text, array[cardinality(missed)]), p_now);
  return array(
    select r from (select r, row_number() over () as pos from unnest(p_rows) as r) as rows
    where not exists (select from unnest(missed) as m(id) where m.id = (r).id) order by pos);
end $$;
