-- Making executions out of memberships: shared by plan (fires) and join (own stretch), so that there is one producer.

-- Which of a late stretch's occurrences a member runs, by its misfire policy (R6).
create or replace function hourbell.to_run(
  m hourbell.members, p_occurrences timestamptz[], p_opened_at timestamptz, p_tail boolean, p_grace interval
) returns timestamptz[]
language sql stable as $$
  select coalesce(array_agg(at) filter (where
    case
      when first >= p_opened_at - p_grace then true
      when m.misfire = 0 then at >= p_opened_at - p_grace
      when m.misfire = 1 then p_tail and pos = n
      else p_tail and pos > n - m.catch_up_limit and at > p_opened_at - make_interval(secs => m.catch_up_seconds)
    end), '{}')
  from (
    select at, row_number() over (order by at) as pos, count(*) over () as n, min(at) over () as first
    from unnest(p_occurrences) as at
    where at > coalesce(m.joined_through, m.active_since) and (m.until is null or at <= m.until)) as mine
$$;

-- Writes executions for these members and occurrences, and one ledger row per member for the stretch it missed.
-- An execution of the same occurrence left by an older version of the job is taken over, never doubled.
create or replace function hourbell.produce(
  p_members hourbell.members[], p_occurrences timestamptz[], p_opened_at timestamptz,
  p_late boolean, p_tail boolean, p_grace interval, p_now timestamptz
) returns int
language plpgsql as $$
#variable_conflict use_column
declare
  base constant bigint := hourbell.id_base(p_now);
  made int;
begin
  with made as (
    insert into hourbell.executions as e
      (id, job, occurrence, run_at, start_by, finish_by, tenant, version, queue, priority, origin, overlap, at_most_once)
    select base | (nextval('hourbell.ids') & 4194303), m.job, o.at, o.at,
      o.at + make_interval(secs => m.start_deadline_seconds), o.at + make_interval(secs => m.deadline_seconds),
      m.tenant, m.version, m.queue, m.priority, 0, m.overlap, m.at_most_once
    from unnest(p_members) as m
    cross join unnest(case when p_late then hourbell.to_run(m, p_occurrences, p_opened_at, p_tail, p_grace)
                           else p_occurrences end) as o(at)
    where o.at > coalesce(m.joined_through, m.active_since) and (m.until is null or o.at <= m.until)
    on conflict (job, occurrence, origin) where job is not null and origin in (0, 2) do update
      set version = excluded.version where e.version < excluded.version
    returning e.id, e.run_at, e.tenant, e.queue, e.priority, e.overlap, e.start_by, e.finish_by, e.xmax = 0 as fresh
  ), timed as (
    insert into hourbell.deadlines (at, id, kind)
    select t.at, made.id, t.kind
    from made cross join lateral (values (start_by, 0), (finish_by, 1)) as t(at, kind)
    where fresh and t.at is not null
  )
  insert into hourbell.due (run_at, id, tenant, queue, priority, checks)
  select run_at, id, tenant, queue, priority, (overlap > 0)::int from made where fresh;
  get diagnostics made = row_count;

  if p_late then
    insert into hourbell.ledger
      (id, job, fence, scheduled_for, recorded_at, missed_through, tenant, version, attempt, missed,
       queue, priority, origin, status, reason)
    select base | (nextval('hourbell.ids') & 4194303), m.job, 0, s.first, p_now, s.last, m.tenant, m.version, 0, s.n,
      m.queue, m.priority, 0, 4, 'misfire'
    from unnest(p_members) as m
    cross join lateral (
      select min(at) as first, max(at) as last, count(*) as n
      from unnest(p_occurrences) as at
      where at > coalesce(m.joined_through, m.active_since) and (m.until is null or at <= m.until)
        and not at = any (hourbell.to_run(m, p_occurrences, p_opened_at, p_tail, p_grace))) as s
    where s.n > 0;
  end if;
  return made;
end $$;
