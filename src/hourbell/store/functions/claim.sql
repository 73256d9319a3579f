-- Claims: the move from ready to leased.

-- Records executions that a claim found to be out of date instead of leasing them. reasons[k] belongs to ids[k].
create or replace function hourbell.discard(p_ids bigint[], p_statuses smallint[], p_reasons text[], p_now timestamptz)
returns void language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_nestloop = off as $$
#variable_conflict use_column
declare freed bigint[];
begin
  with gone as (
    delete from hourbell.executions as e using unnest(p_ids, p_statuses, p_reasons) as d(id, status, reason)
    where e.id = d.id and e.id = any (p_ids) returning e.*, d.status, d.reason),
  letters as (
    insert into hourbell.dead_letters (id, job, tenant, died_at, reason, execution)
    select id, job, tenant, p_now, reason, to_jsonb(gone) - 'status' - 'reason' from gone where status = 1),
  granted as (delete from hourbell.cancellations where id = any (array(select id from gone))),
  recorded as (
    insert into hourbell.ledger
      (id, job, fence, scheduled_for, started_at, finished_at, recorded_at, tenant, version, attempt, lateness_ms, queue,
       priority, origin, status, reason, spec, history)
    select id, coalesce(job, id), fence, occurrence, first_started_at, p_now, p_now, tenant, version, attempt,
      case when first_started_at is not null then hourbell.lateness_ms(occurrence, first_started_at) end, queue,
      priority, origin, status, reason, spec, history
    from gone)
  select array_agg(job) into freed from gone where overlap > 0;
  if freed is not null then perform hourbell.unpark(freed, p_now); end if;
end $$;

-- What waited for these jobs becomes due again, now; the gate looks at it anew. A row that somebody is about to take (a
-- cancel that has not committed) is left to him: nobody may wait for his client.
create or replace function hourbell.unpark(p_jobs bigint[], p_now timestamptz) returns bigint
language sql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
  with freed as (
    delete from hourbell.parked where ctid = any (array(
      select ctid from hourbell.parked where job = any (p_jobs) for update skip locked)) returning *),
  again as (update hourbell.executions set run_at = p_now where id = any (array(select id from freed))),
  queued as (
    insert into hourbell.due (run_at, id, tenant, queue, priority, checks)
    select p_now, id, tenant, queue, priority, checks from freed)
  select count(*) from freed
$$;

-- The statement inside `claim`. Takes up to p_limit executions for a living session, most urgent first, fairest first,
-- and returns them as arrays. A claim that is repeated under its number gets the same rows: the first answer was lost.
create or replace function hourbell.take(
  p_session bigint, p_token uuid, p_claim int, p_repeated boolean, p_limit int, p_now timestamptz, p_patience interval,
  inout alive boolean, inout ids bigint[], inout jobs bigint[], inout tenants int[], inout attempts int[],
  inout fences bigint[], inout scheduled_for timestamptz[], inout finish_by timestamptz[], inout specs text[]
)
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off
set enable_material = off as $$
#variable_conflict use_column
declare
  session hourbell.sessions;
  popped bigint[] := '{}';
  more bigint[];
  p smallint;
  q smallint;
  low float8;
  in_hand boolean;
  takes_long boolean;
  solo boolean := false;
  wishes boolean;
  least_fence constant bigint := (extract(epoch from p_now)::float8 * 1000000)::bigint;
begin
  select * into session from hourbell.sessions where id = p_session and token = p_token for key share;
  alive := found;
  if not alive then return; end if;

  if p_repeated and exists (select from hourbell.leased where leased.session = p_session and claim = p_claim) then
    select array_agg(e.id), array_agg(coalesce(e.job, e.id)), array_agg(e.tenant), array_agg(e.attempt + 1),
      array_agg(l.fence), array_agg(e.occurrence), array_agg(e.finish_by), array_agg(coalesce(e.spec, j.spec))
    into ids, jobs, tenants, attempts, fences, scheduled_for, finish_by, specs
    from hourbell.leased as l join hourbell.executions as e on e.id = l.id left join hourbell.jobs as j on j.id = e.job
    where l.session = p_session and l.claim = p_claim;
    return;
  end if;

  -- Quarantine: one session at a time drains and then runs, one by one and with nothing beside them, the executions whose
  -- workers died twice in a row. Only so is it known which of them kills. A session whose work takes long leaves that to
  -- another one: it would stand idle until the last of it has ended. But if they have waited for long, somebody has to.
  if session.quarantine or exists (select from hourbell.suspects where queue = any (session.queues)) then
    in_hand := exists (select from hourbell.leased where leased.session = p_session);
    takes_long := exists (
        select from hourbell.leased where leased.session = p_session and not alone and claimed_at < p_now - p_patience)
      and not exists (
        select from hourbell.suspects where queue = any (session.queues) and since < p_now - 20 * p_patience);
    if session.quarantine and takes_long then
      update hourbell.sessions set quarantine = false where id = p_session;
      session.quarantine := false;
    elsif not session.quarantine and not takes_long and (not in_hand or exists (
        select from hourbell.suspects where queue = any (session.queues) and since < p_now - p_patience)) then
      begin
        update hourbell.sessions set quarantine = true where id = p_session;
        session.quarantine := true;
      exception when unique_violation then null;  -- another session is at it
      end;
    end if;
    if session.quarantine then
      if in_hand then return; end if;
      delete from hourbell.suspects where ctid = (
        select ctid from hourbell.suspects where queue = any (session.queues)
        order by priority, tag limit 1 for update skip locked) returning array[id] into popped;
      if popped is null then
        popped := '{}';
        update hourbell.sessions set quarantine = false where id = p_session;
      else
        solo := true;
      end if;
    end if;
  end if;

  if not solo then
    for p in 0..3 loop
      foreach q in array session.queues loop
        exit when cardinality(popped) >= p_limit;
        select v into low from hourbell.virtual_time where queue = q and priority = p order by pass desc limit 1;
        continue when not found;
        with taken as (
          delete from hourbell.ready where ctid = any (array(
            select ctid from hourbell.ready where queue = q and priority = p and tag >= low
            order by tag limit p_limit - cardinality(popped) for update skip locked))
          returning id, tag)
        select array_agg(id order by tag) into more from taken;
        if more is not null then popped := popped || more; end if;
      end loop;
    end loop;
  end if;
  if cardinality(popped) = 0 then return; end if;

  wishes := exists (select from hourbell.cancellations);
  with found as materialized (
    select e.id, e.job, e.tenant, e.attempt, e.occurrence, e.finish_by, coalesce(e.spec, j.spec) as spec,
      greatest(e.fence + 1, least_fence) as fence, coalesce(j.version, e.version) as version, r.pos,
      -- the plain case, or to be looked at by set_aside
      e.id is not null and (e.job is null or (e.version >= j.valid_from and j.max_runs is null))
        and (e.start_by is null or e.attempt > 0 or e.start_by >= p_now)
        and (e.finish_by is null or e.finish_by >= p_now)
        and not (wishes and exists (select from hourbell.cancellations as c where c.id = e.id offset 0)) as plain
    -- Left joins (and nothing materialised), so that executions are looked up for `popped` and never the other way round:
    -- statistics of the night say that there are fewer of them.
    from unnest(popped) with ordinality as r(id, pos)
    left join hourbell.executions as e on e.id = r.id
    left join hourbell.jobs as j on j.id = e.job),
  kept as (
    insert into hourbell.leased (session, id, fence, claimed_at, claim, version, alone)
    select p_session, id, fence, p_now, p_claim, version, solo from found where plain)
  select array_agg(id) filter (where plain), array_agg(coalesce(job, id)) filter (where plain),
    array_agg(tenant) filter (where plain), array_agg(attempt + 1) filter (where plain),
    array_agg(fence) filter (where plain), array_agg(occurrence) filter (where plain),
    array_agg(found.finish_by) filter (where plain), array_agg(spec) filter (where plain),
    array_agg(id) filter (where not plain)
  into ids, jobs, tenants, attempts, fences, scheduled_for, finish_by, specs, more from found;

  if more is not null then
    perform hourbell.set_aside(p_session, p_claim, more, p_now, least_fence, solo);
    -- Some of them may have been leased after all (a counted run): read the claim as a repetition would.
    if exists (select from hourbell.leased as l where l.session = p_session and l.id = any (more)) then
      select t.ids, t.jobs, t.tenants, t.attempts, t.fences, t.scheduled_for, t.finish_by, t.specs
      into ids, jobs, tenants, attempts, fences, scheduled_for, finish_by, specs
      from hourbell.take(p_session, p_token, p_claim, true, p_limit, p_now, p_patience,
        alive, ids, jobs, tenants, attempts, fences, scheduled_for, finish_by, specs) as t;
    end if;
  end if;
end $$;

-- The uncommon cases of a claim: wished away, out of date, too late, or a job with a limited number of runs, whose runs
-- are counted here, when they start.
create or replace function hourbell.set_aside(
  p_session bigint, p_claim int, p_ids bigint[], p_now timestamptz, p_least_fence bigint, p_solo boolean
) returns void language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  e hourbell.executions;
  j hourbell.jobs;
  fate smallint;
  why text;
begin
  for e in select x.* from unnest(p_ids) with ordinality as r(id, pos) join hourbell.executions as x on x.id = r.id
           order by r.pos loop
    begin
      fate := null; j := null;
      if e.job is not null then
        select * into j from hourbell.jobs where id = e.job;
      end if;
      if exists (select from hourbell.cancellations where id = e.id) then
        fate := 2; why := 'cancelled';
      elsif e.job is not null and (j.id is null or e.version < j.valid_from) then
        fate := 3; why := j.outdated;
      elsif e.attempt = 0 and e.start_by < p_now then
        fate := 4; why := 'start_deadline';
      elsif e.finish_by < p_now then
        fate := 1; why := 'deadline';
      elsif j.max_runs is not null and e.origin = 0 and e.attempt = 0 and e.fence = 0 then
        perform from hourbell.jobs where id = j.id for no key update skip locked;
        if not found then
          -- Somebody is changing the job. Whether his client has stopped cannot be known, so nobody waits: a little later.
          update hourbell.executions as x set run_at = p_now + interval '200 milliseconds' where x.id = e.id;
          insert into hourbell.due (run_at, id, tenant, queue, priority, checks)
          values (p_now + interval '200 milliseconds', e.id, e.tenant, e.queue, e.priority, (e.overlap > 0)::int);
          continue;
        end if;
        update hourbell.jobs set runs = runs + 1 where id = j.id and runs < max_runs;
        if not found then
          fate := 4; why := 'max_runs';
        end if;
        if fate = 4 or j.runs + 1 >= j.max_runs then
          perform hourbell.complete(j.id, p_now);
        end if;
      end if;
      if fate is null then
        insert into hourbell.leased (session, id, fence, claimed_at, claim, version, alone)
        values (p_session, e.id, greatest(e.fence + 1, p_least_fence), p_now, p_claim, coalesce(j.version, e.version), p_solo);
      else
        perform hourbell.discard(array[e.id], array[fate], array[why], p_now);
      end if;
    exception when data_exception or integrity_constraint_violation then
      -- One that cannot be judged must not keep the others from being claimed.
      raise warning 'execution % is put off: %', e.id, sqlerrm;
      update hourbell.executions as x set run_at = p_now + interval '1 minute' where x.id = e.id;
      insert into hourbell.due (run_at, id, tenant, queue, priority, checks)
      values (p_now + interval '1 minute', e.id, e.tenant, e.queue, e.priority, (e.overlap > 0)::int);
    end;
  end loop;
end $$;

-- A job that has started its last run: no further occurrence, and what was planned ahead is taken back.
create or replace function hourbell.complete(p_job bigint, p_now timestamptz) returns void
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
begin
  update hourbell.members as m set until = least(m.until, p_now)
  from hourbell.jobs as j
  where j.id = p_job and m.timetable = j.timetable and m.priority = j.priority and m.job = j.id and m.version = j.version;
  update hourbell.jobs set status = 2, updated_at = p_now where id = p_job and status in (0, 1);
  perform hourbell.take_back(p_job, p_now);
end $$;

-- Takes back what was planned ahead for a job: executions whose time has not come. Nobody has seen them happen. What
-- somebody is just taking (a cancel that stands) is left to him, and later to its claim.
create or replace function hourbell.take_back(p_job bigint, p_now timestamptz) returns int
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare taken int;
begin
  with taken as (
    delete from hourbell.due where ctid = any (array(
      select d.row from hourbell.executions as e cross join lateral (
        select ctid as row from hourbell.due as d where d.priority = e.priority and d.run_at = e.run_at and d.id = e.id
        for update skip locked) as d
      where e.job = p_job and e.origin = 0 and e.occurrence > p_now and e.attempt = 0))
    returning id)
  delete from hourbell.executions as e using taken where e.id = taken.id;
  get diagnostics taken = row_count;
  return taken;
end $$;

-- A change has made what waits of a job out of date: recorded at once, so that nobody waits for it. What is ready or taken
-- by somebody is found out of date by its claim; what was planned ahead is taken back, or the new version's.
create or replace function hourbell.supersede(p_job bigint, p_now timestamptz) returns void
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  ids bigint[];
  why text;
begin
  with old as materialized (
    select e.* from hourbell.live_executions(p_job) as e join hourbell.jobs as j on j.id = e.job
    where e.version < j.valid_from and (e.occurrence <= p_now or e.attempt > 0 or e.origin <> 0)),
  from_due as (
    delete from hourbell.due where ctid = any (array(
      select d.row from old as e cross join lateral (
        select ctid as row from hourbell.due as d where d.priority = e.priority and d.run_at = e.run_at and d.id = e.id
        for update skip locked) as d))
    returning id),
  from_parked as (
    delete from hourbell.parked where ctid = any (array(
      select p.row from old as e cross join lateral (
        select ctid as row from hourbell.parked as p where p.job = e.job and p.id = e.id for update skip locked) as p))
    returning id)
  select array_agg(id) into ids from (select id from from_due union all select id from from_parked) as taken;
  if ids is null then return; end if;
  select outdated into why from hourbell.jobs where id = p_job;
  perform hourbell.discard(ids, array_fill(3::smallint, array[cardinality(ids)]), array_fill(why, array[cardinality(ids)]), p_now);
end $$;

-- The claim as workers call it. It commits before it answers: a worker that is stopped while the rows are sent to it holds
-- no lock, so nobody waits for it.
create or replace procedure hourbell.claim(
  p_session bigint, p_token uuid, p_claim int, p_repeated boolean, p_limit int, p_now timestamptz, p_patience interval,
  inout alive boolean, inout ids bigint[], inout jobs bigint[], inout tenants int[], inout attempts int[],
  inout fences bigint[], inout scheduled_for timestamptz[], inout finish_by timestamptz[], inout specs text[]
)
language plpgsql as $$
#variable_conflict use_column
begin
  select t.* into alive, ids, jobs, tenants, attempts, fences, scheduled_for, finish_by, specs
  from hourbell.take(p_session, p_token, p_claim, p_repeated, p_limit, p_now, p_patience,
    alive, ids, jobs, tenants, attempts, fences, scheduled_for, finish_by, specs) as t;
  commit;
end $$;
