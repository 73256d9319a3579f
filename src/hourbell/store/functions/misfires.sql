-- Misfires at the gate: what was planned in time and waited too long in `due`, because nothing admitted it, follows the
-- misfire policy of its job like what is planned too late (hourbell.share_of).

-- Due rows (p_rows) without those that are recorded as missed. A row is judged once, when the gate first takes it: not after
-- it was parked, given back or retried, which leaves it with another run_at than its occurrence (hourbell.requeue). Only
-- occurrences of a schedule can be misfires.
create or replace function hourbell.without_misfires(p_rows hourbell.due[], p_now timestamptz, p_grace interval)
returns hourbell.due[]
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare missed bigint[];
begin
  missed := array(
    select e.id from unnest(p_rows) as r
    cross join lateral (select * from hourbell.executions as e where e.id = r.id offset 0) as e
    cross join lateral (
      select timetable, valid_from, spec::json as spec from hourbell.jobs as j where j.id = e.job offset 0) as j
    where r.run_at < p_now - p_grace and e.origin = 0 and e.run_at = e.occurrence
      and e.version >= j.valid_from  -- otherwise it is superseded by its claim
      and case coalesce(j.spec ->> 'misfire_policy', 'latest')
        when 'skip' then true
        when 'latest' then hourbell.has_newer(e.job, j.timetable, e.occurrence, p_now)
        else e.occurrence <= p_now - make_interval(secs => coalesce((j.spec ->> 'catch_up_window_seconds')::int, 86400))
      end);
  if missed = '{}' then return p_rows; end if;
  perform hourbell.discard(missed, array_fill(4::smallint, array[cardinality(missed)]),
    array_fill('misfire'::text, array[cardinality(missed)]), p_now);
  return array(
    select r from (select r, row_number() over () as pos from unnest(p_rows) as r) as rows
    where not exists (select from unnest(missed) as m(id) where m.id = (r).id) order by pos);
end $$;

-- Whether a job has an occurrence after p_occurrence and up to now: planned, ended, in a fire that is being fanned out, or
-- the next that its timetable owes.
create or replace function hourbell.has_newer(
  p_job bigint, p_timetable bigint, p_occurrence timestamptz, p_now timestamptz
) returns boolean
language sql stable as $$
  select exists (
      select from hourbell.executions
      where job = p_job and origin = 0 and occurrence > p_occurrence and occurrence <= p_now)
    or exists (
      select from hourbell.timetables as t
      cross join lateral (
        select greatest(p_occurrence, m.active_since) as since, least(p_now, m.until) as until
        from hourbell.members as m
        where m.timetable = t.id and m.priority = any ('{0,1,2,3}'::smallint[]) and m.job = p_job offset 0) as m
      where t.id = p_timetable and (
        (t.next_fire_at > m.since and t.next_fire_at <= m.until)
        or exists (
          select from hourbell.fires as f
          where f.timetable = t.id and width_bucket(m.until, f.occurrences) > width_bucket(m.since, f.occurrences))))
    or exists (
      select from hourbell.ledger
      where job = p_job and job <> id and scheduled_for > p_occurrence and scheduled_for <= p_now
        and recorded_at >= p_occurrence - interval '1 day'  -- what is planned ahead may be cancelled ahead
        and origin = 0 and status <> 3)
$$;
