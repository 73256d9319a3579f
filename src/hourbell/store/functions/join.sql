-- A membership joins its timetable: under the timetable's lock it learns how far planning has come, gets its own executions
-- up to there, and leaves the rest to the fires. Anybody may complete a join; it is one statement.
--
-- p_occurrences are the timetable's occurrences in (p_from, p_through]. If planning has gone beyond p_through, nothing is
-- done and that moment is returned as `beyond`: compute further and call again. Members active since before p_from are
-- left to a caller with an earlier p_from. Members that somebody is changing just now are left to him.
create or replace function hourbell.join_timetable(
  p_timetable bigint, p_now timestamptz, p_occurrences timestamptz[], p_from timestamptz, p_through timestamptz,
  p_grace interval, out joined int, out beyond timestamptz
)
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  planned timestamptz;
  joiners hourbell.members[];
  occurrences timestamptz[];
  everybody hourbell.members[];
  changed hourbell.members;
  living bigint[];
  had timestamptz[];
begin
  joined := 0;
  select planned_through into planned from hourbell.timetables where id = p_timetable for no key update;
  if not found then return; end if;
  if planned > p_through then beyond := planned; return; end if;

  joiners := array(
    select m from hourbell.members as m
    where timetable = p_timetable and joined_through is null and active_since >= p_from
    order by priority, job limit 5000 for update skip locked);
  joined := cardinality(joiners);
  if joined = 0 then return; end if;
  everybody := joiners;

  -- A change of a job says from when on it holds, and commits later; until then the membership before it goes on. What
  -- the job has had since is not produced again: what lives is locked, and stays; what has ended is in the ledger; what
  -- somebody is ending just now will be there soon, and is not waited for.
  living := array(
    select id from hourbell.executions
    where job = any (array(select job from unnest(joiners) where version > 1)) and origin = 0 for key share skip locked);
  occurrences := array(select at from unnest(p_occurrences) as at where at <= planned order by at);
  foreach changed in array everybody loop
    continue when changed.version = 1;
    had := array(
      select at from hourbell.ledger as l
      join unnest(occurrences) as at on at between l.scheduled_for and coalesce(l.missed_through, l.scheduled_for)
      where l.job = changed.job and l.job <> l.id and l.origin = 0 and at > changed.active_since
        and l.status <> 3  -- superseded by this very change: it is this version's to run
        -- What was planned ahead may have been cancelled ahead, and a missed stretch may begin before the change; a day
        -- is more than either takes.
        and l.scheduled_for > changed.active_since - interval '1 day'
        and l.recorded_at >= changed.active_since - interval '1 day'
      union all
      select occurrence from hourbell.executions
      where job = changed.job and origin = 0 and occurrence > changed.active_since and not id = any (living));
    continue when cardinality(had) = 0;
    joiners := array_remove(joiners, changed);
    perform hourbell.produce(
      array[changed], array(select at from unnest(occurrences) as at where not at = any (had) order by at),
      p_now, p_occurrences[1] < p_now - p_grace, true, p_grace, p_now);
  end loop;
  perform hourbell.produce(joiners, occurrences, p_now, p_occurrences[1] < p_now - p_grace, true, p_grace, p_now);

  update hourbell.members as m set joined_through = greatest(planned, m.active_since)
  from unnest(everybody) as j
  where m.timetable = j.timetable and m.priority = j.priority and m.job = j.job and m.version = j.version;
end $$;
