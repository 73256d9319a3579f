-- Reaping: executions whose worker died come back, executions that missed their deadline end.

-- Ends expired sessions. The session row and its slabs are locked first and its executions are read by a second
-- statement, so a concurrent claim or settle is seen whole or refused. Sessions locked by another transaction are left to the next
-- round.
-- Executions come back as due. One that was lost twice in a row is claimed alone from then on (`checks_suspect`). Only
-- deaths of the worker under an execution that ran alone count against it: after as many in a row as max_crashes of its
-- retry policy says, or else p_crash_limit, it is dead.
create or replace function hourbell.reap(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_crash_limit int, out sessions int, out returned int, out ended int
)
language plpgsql set plan = lookups_by_hash as $$
#variable_conflict use_column
declare
  expired bigint;
  back bigint[];
  over bigint[];
  failing bigint[];
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  sessions := 0; returned := 0; ended := 0;
  -- Renewed in the future: the clock was set back. The lease keeps its length.
  update hourbell.sessions set renewed_at = p_now, expires_at = p_now + (expires_at - renewed_at) where id = any (array(
    select id from hourbell.sessions
    where expires_at > p_now and renewed_at > p_now + interval '5 seconds' for update skip locked));
  for expired in
    select id from hourbell.sessions where expires_at <= p_now order by expires_at limit 16 for update skip locked
  loop
    begin
      perform from hourbell.leased where session = expired order by fence for update;
      with lost as materialized (select * from hourbell.leases as l where l.session = expired),
      judged as materialized (
        select e, e.notifies, h.*, case
          when exists (select from hourbell.cancellations as c where c.id = h.id offset 0)
            then hourbell.fate_cancelled()
          when e.at_most_once then hourbell.fate_dead()
          when h.alone and e.crashes - 1 >= hourbell.max_crashes(hourbell.job_spec(e.job, e.spec), p_crash_limit)
            then hourbell.fate_dead()
        end as fate, case when e.at_most_once then 'lost' else 'crashed' end as why
        from lost as h
        join hourbell.executions as e on e.id = h.id and e.id = any (array(select id from lost))),
      letters as (
        insert into hourbell.dead_letters (id, job, tenant, died_at, reason, error, execution)
        select j.id, (j.e).job, (j.e).tenant, p_now, j.why, 'the worker was lost',
          hourbell.dead_letter_of(j.e, null, j.fence, j.claimed_at, p_now, j.why, 'the worker was lost', expired)
        from judged as j where j.fate = hourbell.fate_dead()),
      granted as (
        delete from hourbell.cancellations where id = any (array(select id from judged where fate is not null))),
      recorded as (
        insert into hourbell.outcomes
          (id, fence, started_at, finished_at, recorded_at, session, version, status, reason, error)
        select j.id, j.fence, j.claimed_at, p_now, p_now, expired, j.version, j.fate,
          case j.fate when hourbell.fate_cancelled() then 'cancelled' else j.why end, 'the worker was lost'
        from judged as j where j.fate is not null),
      again as (
        update hourbell.executions as e
        set fence = j.fence, attempt = e.attempt + 1, crashes = e.crashes + 1, run_at = p_now,
            first_started_at = coalesce(e.first_started_at, j.claimed_at),
            history = hourbell.add_attempt(
              e.history, null, e.attempt + 1, j.claimed_at, p_now, j.fence, 'lost', 'the worker was lost', expired)
        from judged as j
        where e.id = j.id and e.id = any (array(select id from judged where fate is null)))
      select array_agg(j.id) filter (where j.fate is null), array_agg(j.id) filter (where j.fate is not null),
        array_agg(j.id) filter (where j.fate is null and j.notifies & hourbell.event_failure() <> 0)
      into back, over, failing from judged as j;
      if failing is not null then perform hourbell.note_failures(failing); end if;
      if over is not null then
        perform hourbell.note_ends(over);
        perform hourbell.close_runs(over, p_now);
      end if;
      perform hourbell.release_limits(back, false, p_now);
      perform hourbell.release_limits(over, true, p_now);
      perform hourbell.requeue(back);
      delete from hourbell.leased where session = expired;
      perform hourbell.remember_session(expired, p_now);
      perform hourbell.end_session(expired, p_now);
      sessions := sessions + 1;
      returned := returned + coalesce(cardinality(back), 0); ended := ended + coalesce(cardinality(over), 0);
    exception when data_exception or integrity_constraint_violation then
      -- A session that raises an error here must not keep the others from being reaped.
      raise warning 'session % cannot be reaped: %', expired, sqlerrm;
    end;
  end loop;
end $$;

-- How many worker deaths in a row, running alone, a job allows. An unreadable spec gets the default: one bad spec must
-- not stop the reaper.
create or replace function hourbell.max_crashes(p_spec text, p_default int) returns int
language plpgsql stable as $$
begin
  return coalesce((p_spec::json -> 'retry_policy' ->> 'max_crashes')::int, p_default);
exception when data_exception then
  return p_default;
end $$;

-- Applies deadlines that have passed: an execution not started in time is SKIPPED, one not finished in time is DEAD,
-- wherever it is.
-- `ready` has no index by id, so an execution there is found by scanning all ready rows of its queue and priority. That
-- is done some seconds later, at the next multiple of 5 s, once for all such executions (`deadline_in_ready`).
-- A running execution is taken from its worker. Rows locked by another transaction are left to it, and later to the
-- claim, which checks the same deadline: a client that stops in the middle of a change must not stop the reaper.
create or replace function hourbell.expire(p_node uuid, p_epoch bigint, p_now timestamptz, p_limit int) returns int
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  ids bigint[]; statuses smallint[]; reasons text[];
  come hourbell.deadlines[];
  finishing bigint[];  -- those that should have finished by now
  slabs tid[];  -- the slabs of those that run
  ran bigint[];
  taken bigint[];
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  with popped as (
    delete from hourbell.deadlines where ctid = any (array(
      select ctid from hourbell.deadlines where at < p_now order by at limit p_limit for update skip locked))
    returning deadlines)
  select array_agg(deadlines) into come from popped;
  if come is null then return 0; end if;
  taken := hourbell.remove_waiting(array(
    select e.id from unnest(come) as c cross join lateral (
      select * from hourbell.executions as e where e.id = c.id offset 0) as e
    where hourbell.is_deadline_passed(c.kind, e, p_now)));
  finishing := array(
    select e.id from unnest(come) as c cross join lateral (
      select * from hourbell.executions as e where e.id = c.id offset 0) as e
    where c.kind % hourbell.deadline_in_ready() = hourbell.deadline_finish()
      and hourbell.is_deadline_passed(c.kind, e, p_now));
  if finishing <> '{}' then
    slabs := array(
      select ctid from hourbell.leased where ctid = any (array(
        select l.slab from (select ctid as slab, unnest(ids) as id from hourbell.leased) as l
        where l.id = any (finishing)))
      order by session, fence for update skip locked);
  end if;
  with over as materialized (
    select e.id, e.queue, e.priority, min(c.kind % hourbell.deadline_in_ready()) as kind,
      max(c.kind % hourbell.deadline_in_ready()) as last_kind, bool_or(c.kind >= hourbell.deadline_in_ready()) as again
    from unnest(come) as c cross join lateral (select * from hourbell.executions as e where e.id = c.id offset 0) as e
    where hourbell.is_deadline_passed(c.kind, e, p_now)
      and not exists (select from hourbell.outcomes as o where o.id = e.id offset 0)
    group by e.id, e.queue, e.priority),
  from_paused as (
    delete from hourbell.paused where ctid = any (array(
      select h.row from over as o cross join lateral (
        select ctid as row from hourbell.paused as h where h.id = o.id for update skip locked) as h))
    returning id),
  running as materialized (
    select l.session, i.id, l.fence, l.claimed_at
    from hourbell.leased as l cross join lateral unnest(l.ids) as i(id)
    where l.ctid = any (slabs)
      and i.id = any (array(select id from over where last_kind = hourbell.deadline_finish()))),
  fenced as (
    update hourbell.executions as e
    set fence = l.fence, attempt = attempt + 1, first_started_at = coalesce(first_started_at, l.claimed_at),
        history = hourbell.add_attempt(history, null, attempt + 1, l.claimed_at, p_now, l.fence, 'deadline',
          'the total deadline passed while it ran', l.session)
    from running as l
    where e.id = l.id and e.id = any (array(
      select f.id from hourbell.executions as f
      where f.id = any (array(select id from running)) for no key update skip locked))
    returning e.id),
  missing as materialized (
    select o.* from over as o where not o.id = any (taken || array(
      select id from from_paused union all select id from fenced))),
  looked_for as (
    insert into hourbell.deadlines (at, id, kind)
    select date_bin('5 seconds', p_now, '2000-01-01') + interval '5 seconds', id,
      kind + hourbell.deadline_in_ready()
    from missing where not again
    union all  -- the slab in which it runs is locked by another transaction
    select p_now + interval '1 second', id, last_kind from missing
    where again and last_kind = hourbell.deadline_finish()),
  places as materialized (select distinct queue, priority from missing where again),
  slabs as (
    delete from hourbell.ready where ctid = any (array(
      select r.row from places as p cross join lateral (
        select ctid as row from hourbell.ready as r where r.queue = p.queue and r.priority = p.priority
          and r.ids && array(select id from missing where again) for update skip locked) as r))
    returning *),
  from_ready as materialized (
    select i.id, s.queue, s.priority from slabs as s cross join lateral unnest(s.ids) as i(id)
    where i.id = any (array(select id from missing where again))),
  put_back as (
    insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, limited, ids)
    select s.tag, s.last_tag, s.generation, s.task, s.queue, s.priority, s.limited, r.ids
    from slabs as s cross join lateral (
      select array_agg(i.id order by i.pos) as ids from unnest(s.ids) with ordinality as i(id, pos)
      where not i.id = any (array(select id from missing where again))) as r
    where r.ids is not null),
  refunded as (
    insert into hourbell.tag_refunds (queue, priority, tenant)
    select r.queue, r.priority, e.tenant from from_ready as r cross join lateral (
      select tenant from hourbell.executions as e where e.id = r.id offset 0) as e),
  from_suspects as (
    delete from hourbell.suspects where ctid = any (array(
      select s.row from places as p cross join lateral (
        select ctid as row from hourbell.suspects as s where s.queue = p.queue and s.priority = p.priority
          and s.id = any (array(select id from missing where again)) for update skip locked) as s))
    returning id),
  owned as (
    select o.id, o.kind from over as o where o.id = any (taken || array(
      select id from from_paused union all select id from from_ready union all select id from from_suspects))
    union all
    select id, hourbell.deadline_finish() from fenced)
  select array_agg(id), array_agg(case kind
      when hourbell.deadline_start() then hourbell.fate_skipped() else hourbell.fate_dead() end),
    array_agg(case kind when hourbell.deadline_start() then 'start_deadline' else 'deadline' end),
    (select array_agg(id) from fenced)
  into ids, statuses, reasons, ran from owned;
  if ids is not null then perform hourbell.end_executions(ids, statuses, reasons, p_now); end if;
  if ran is not null then perform hourbell.shrink_slabs(slabs, ran); end if;
  taken := array(select unnest(taken) except select unnest(ids));
  if taken <> '{}' then perform hourbell.requeue(taken); end if;  -- their deadlines were changed meanwhile
  return cardinality(come);
end $$;

-- Whether an execution still has this deadline and it has passed. Its own columns decide: the job may have been
-- rescheduled.
create or replace function hourbell.is_deadline_passed(p_kind smallint, e hourbell.executions, p_now timestamptz)
returns boolean
language sql immutable
return case p_kind % hourbell.deadline_in_ready()
  when hourbell.deadline_start() then e.attempt = 0 and e.start_by < p_now
  else e.finish_by < p_now end;
