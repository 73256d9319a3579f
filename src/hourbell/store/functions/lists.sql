-- What lists ask about each row that they look at.

-- Whether a job, as stored, has this beginning of a name and this label, as `name:value`; null: any. (Nobody asks: nothing is
-- read of it.)
create or replace function hourbell.is_wanted(p_spec text, p_prefix text, p_label text) returns boolean
language sql immutable
return (p_prefix is null or starts_with(p_spec::json ->> 'name', p_prefix))
  and (p_label is null or exists (
    select from json_each_text(p_spec::json -> 'labels') as l where l.key || ':' || l.value = p_label));

-- Whether a row of the ledger is a death that was undone: the execution lives again, or has ended again later.
create or replace function hourbell.was_replayed(p_id bigint, p_status smallint, p_recorded_at timestamptz) returns boolean
language sql stable
return p_status = 1
  and exists (select from hourbell.replays as r where r.id = p_id and r.died_at = p_recorded_at);

-- Where an execution is that has not ended, and what that is called; nothing if nobody asks. p_wanted: the status that is asked for,
-- or null. Every session has to be asked whether it holds something, so that is left out if the status cannot be such.
create or replace function hourbell.whereabouts(
  e hourbell.executions, p_asked boolean, p_wanted text, out in_due boolean, out in_parked boolean, out in_held boolean, out claimed_at timestamptz,
  out lease_fence bigint, out session bigint, out progress text, out status text
) returns setof record
language sql stable as $$
  select p.*, l.claimed_at, l.fence, l.session, l.progress, case
    when l.session = 0 then 'AWAITING'
    when l.claimed_at is not null then 'RUNNING'
    when not (in_due or in_parked or in_held) then 'QUEUED'
    when e.attempt > 0 then 'RETRYING'
    else 'SCHEDULED' end
  from (
    select
      exists (select from hourbell.due as d
              where hourbell.tier(d.priority, d.checks) = any (hourbell.tiers_of(e.priority))
                and d.run_at = e.run_at and d.id = e.id offset 0) as in_due,
      exists (select from hourbell.parked as p where p.id = e.id offset 0) as in_parked,
      exists (select from hourbell.held as h where h.id = e.id offset 0) as in_held) as p
  left join lateral (
    select l.claimed_at, l.fence, l.session, l.progress from hourbell.sessions as s cross join lateral (
      select * from hourbell.leased as l where l.session = s.id and l.id = e.id offset 0) as l
    where not (p.in_due or p.in_parked or p.in_held) and coalesce(p_wanted not in ('SCHEDULED', 'RETRYING'), true)
    limit 1) as l on true
  where p_asked offset 0  -- decided before anything is looked up
$$;
