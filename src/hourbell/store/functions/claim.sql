-- Claims: the move from ready to leased.
-- A worker calls `claim`, which calls `take_ready` and commits. `take_ready` takes slabs (`take_slabs`), leases what is
-- plain at once, and leaves the rest to `claim_uncommon`; executions under a rate limit get the moment of their start
-- (`start_rate_limited`). Rows that another claim has locked are skipped, never waited for.
-- Example: a session asks for 250. Three slabs of 100 are ready: it takes two and a half, and the rest of the third is
-- put back for others. They are leased as three slabs, each under a fence of its own.

-- The statement inside `claim`. Takes up to p_limit executions for a live session, most urgent first, then fairest
-- first, and returns them as arrays; p_reserved of them are for CRITICAL only. p_lowest_first: start with the least
-- urgent priority, so that it makes progress too. A claim that is repeated under its number gets the same rows: the
-- first answer was lost. Number 0 marks unnumbered claims, which cannot be repeated.
-- A rate limit may delay a start slightly (`start_rate_limited`): `waits` has the seconds until each execution may
-- start; null: all may start at once. p_same_start: take only executions that may start at the same moment, for a
-- worker that cannot wait.
-- fences: one for each of `ids`, or one for each hundred of them.
-- recalled: the claim took executions that may no longer start, and returned them to the gate.
create or replace function hourbell.take_ready(
  p_session bigint, p_token uuid, p_claim int, p_repeated boolean, p_limit int, p_reserved int, p_lowest_first boolean,
  p_same_start boolean, p_now timestamptz, p_patience interval,
  inout alive boolean, inout ids bigint[], inout jobs bigint[], inout tenants int[], inout attempts int[],
  inout fences bigint[], inout scheduled_for float8[], inout finish_by timestamptz[], inout specs text[],
  inout waits float8[], out recalled boolean
)
language plpgsql set plan = lookups_one_by_one
set enable_material = off as $$
#variable_conflict use_column
declare
  session hourbell.sessions;
  popped bigint[] := '{}';
  limited bigint[] := '{}';
  more bigint[];
  p smallint;
  room int;
  queues smallint[];
  task_of int[];  -- for each of `queues`: the task to take from it; null: all
  mixed smallint[] := '{}';  -- queues in which the session looks up its tasks one by one
  fitting int[];  -- tasks that this session serves; null: all
  shares int[];
  slabs hourbell.ready[];
  must_drain boolean;
  solo boolean := false;
  cancelling boolean;  -- whether cancellation of any execution is requested
  at timestamptz;
  newest int;
  stale bigint[] := '{}';  -- made ready under older limits
  older bigint[];
  tags float8[] := '{}';  -- of `limited`, because some of those rows may have to go back
  generations int[] := '{}';
  late bigint[];
  versions int[];
  last_fence bigint;  -- the highest that any of them had before
  noting boolean;  -- some of them have notifications
  least_fence constant bigint := (extract(epoch from p_now)::float8 * 1000000)::bigint;
begin
  select * into session from hourbell.sessions where id = p_session and token = p_token for key share;
  alive := found; recalled := false;
  if not alive then return; end if;
  newest := hourbell.generation();
  if session.all_queues then session.queues := hourbell.all_queues(); end if;
  if session.tasks is not null then
    fitting := session.tasks || hourbell.task_any();
    mixed := array(select f.queue from hourbell.queue_workers as f where f.mixed and f.queue = any (session.queues));
  end if;

  -- All unnumbered claims share number 0, so it identifies none of them.
  if p_repeated and p_claim > 0 then
    more := array(select id from hourbell.leases where leases.session = p_session and claim = p_claim);
    if more <> '{}' then
      select h.* into ids, jobs, tenants, attempts, fences, scheduled_for, finish_by, specs
      from hourbell.claimed_by(p_session, p_token, more) as h;
      -- As of the claim, which its fences say, if the clock has been set back since: no longer than was answered then.
      waits := hourbell.start_delays(p_session, ids,
        greatest(p_now, to_timestamp((select min(f) from unnest(fences) as f) / 1000000.0)));
      return;
    end if;
  end if;

  if session.quarantine or exists (
      select from hourbell.suspects
      where queue = any (session.queues) and (fitting is null or task = any (fitting))) then
    select q.* into must_drain, popped, limited, stale
    from hourbell.take_suspect(session, fitting, newest, p_now, p_patience) as q;
    if must_drain then return; end if;
    solo := popped <> '{}';
  end if;

  if not solo then
    foreach p in array case when p_lowest_first then '{3,2,1,0}' else '{0,1,2,3}' end::smallint[] loop
      room := p_limit - cardinality(popped) - case when p > 0 then p_reserved else 0 end;
      continue when room <= 0;
      -- What this session may take is looked up by queue, and in a mixed queue by each task that the session serves.
      -- Usually there are slabs of this priority for only one of these.
      queues := session.queues; task_of := array[null::int]; shares := array[room];
      if cardinality(queues) > 1 or mixed <> '{}' then
        select coalesce(array_agg(l.queue), '{}'), array_agg(l.task) into queues, task_of
        from (
          select queue, null::int as task from unnest(session.queues) as q(queue) where not queue = any (mixed)
          union all
          select queue, task from unnest(mixed) as q(queue) cross join unnest(fitting) as t(task)) as l
        cross join lateral (
          select v from hourbell.virtual_time as v where v.queue = l.queue and v.priority = p
          order by pass desc limit 1) as v
        where case when l.task is null then exists (
            select from hourbell.ready as r where r.queue = l.queue and r.priority = p and r.tag >= v.v offset 0)
          else exists (
            -- A row comparison, which only the index by task supports: statistics might favour the other index.
            select from hourbell.ready as r
            where r.queue = l.queue and r.priority = p and r.task = l.task
              and (r.task, r.tag) >= (l.task, v.v) offset 0) end;
        continue when queues = '{}';
      end if;
      if cardinality(queues) > 1 then shares := hourbell.shares_by_queue(queues, task_of, p, room); end if;
      for k in 1 .. cardinality(queues) loop
        slabs := hourbell.take_slabs(queues[k], p, task_of[k], fitting, shares[k]);
        continue when slabs = '{}';
        popped := popped || array(select unnest(s.ids) from unnest(slabs) as s);
        continue when not exists (select from unnest(slabs) as s where s.generation < newest or s.limited);
        select stale || array_agg(i.id) filter (where s.generation < newest),
          limited || array_agg(i.id order by s.pos) filter (where s.single),
          tags || array_agg(s.tag order by s.pos) filter (where s.single),
          generations || array_agg(s.generation order by s.pos) filter (where s.single)
        into stale, limited, tags, generations
        -- `single` is the column `limited`: such a slab has one execution.
        from unnest(slabs) with ordinality as s(tag, last_tag, generation, task, queue, priority, single, ids, pos)
        cross join lateral unnest(s.ids) as i(id);
      end loop;
    end loop;
  end if;
  if cardinality(popped) = 0 then return; end if;

  -- By the clock: p_now may be older than the due time of the rows taken, or even than the rows themselves.
  at := greatest(p_now, hourbell.clock());
  if p_same_start and tags <> '{}' then
    late := hourbell.put_back_late(popped, limited, tags, generations, at);
    if late <> '{}' then
      popped := array(select id from unnest(popped) with ordinality as p(id, pos) where id <> all (late) order by pos);
      limited := array(
        select id from unnest(limited) with ordinality as h(id, pos) where id <> all (late) order by pos);
      stale := array(select id from unnest(stale) as s(id) where id <> all (late));
    end if;
  end if;
  cancelling := exists (select from hourbell.cancellations);
  if not cancelling and stale = '{}' then
    select p.* into tenants, scheduled_for, specs, noting from hourbell.read_plain(popped) as p;
  end if;
  if specs is not null then
    ids := popped; more := null;
    fences := hourbell.lease(p_session, p_claim, ids, null, limited, noting, least_fence, at, solo);
  else
    -- One pass over what was taken, in its order: left joins, so that executions are looked up for `popped` and never
    -- the other way round (stale statistics may say that `executions` has fewer rows).
    -- `common`: it may start now; all others are left to claim_uncommon.
    select array_agg(f.id) filter (where f.common),
      case when count(f.job) > 0 then array_agg(coalesce(f.job, f.id)) filter (where f.common) end,
      array_agg(f.tenant) filter (where f.common),
      case when max(f.attempt) > 0 then array_agg(f.attempt + 1) filter (where f.common) end,
      array_agg(date_part('epoch', f.occurrence)) filter (where f.common),
      case when count(f.finish_by) > 0 then array_agg(f.finish_by) filter (where f.common) end,
      array_agg(f.spec) filter (where f.common),
      case when count(f.job) > 0 then array_agg(f.version) filter (where f.common) end,
      max(f.fence), bool_or(f.notifies <> 0), array_agg(f.taken) filter (where not f.common)
    into ids, jobs, tenants, attempts, scheduled_for, finish_by, specs, versions, last_fence, noting, more
    from (
      select e.id, e.job, e.tenant, e.attempt, e.occurrence, e.finish_by, e.fence, e.notifies, r.id as taken,
        hourbell.sent_spec(e.spec, j.spec, e.replayed_attempt) as spec, coalesce(j.version, e.version) as version,
        -- Never null, or the execution would be neither leased nor left over: its job may have no row.
        e.id is not null
          and (e.job is null or coalesce(
            e.version >= j.valid_from and j.max_runs is null and e.queue = j.queue
              and e.target is not distinct from j.target and e.key is not distinct from j.key, false))
          and (e.start_by is null or e.attempt > 0 or e.start_by >= p_now)
          and (e.finish_by is null or e.finish_by >= p_now)
          and not (cancelling and exists (select from hourbell.cancellations as c where c.id = e.id offset 0))
          and not (e.id = any (stale) and hourbell.is_limited(e)) as common
      from unnest(popped) as r(id)
      left join hourbell.executions as e on e.id = r.id
      left join hourbell.jobs as j on j.id = e.job) as f;
    if ids is not null then
      if last_fence > 0 then specs := hourbell.with_reruns(ids, specs); end if;  -- some were claimed before
      fences := hourbell.lease(p_session, p_claim, ids, versions, limited, noting,
        greatest(least_fence, last_fence + 1), at, solo);
    end if;
  end if;

  if more is not null then
    if stale <> '{}' then
      older := hourbell.readmit(array(select id from unnest(more) as m(id) where id = any (stale)), p_now);
      recalled := older <> '{}';
      more := array(select id from unnest(more) with ordinality as m(id, pos) where not id = any (older) order by pos);
    end if;
    perform hourbell.claim_uncommon(p_session, p_claim, more, limited, p_now, least_fence, solo);
  end if;
  -- Counted runs are leased by `claim_uncommon`, so the answer is read again: by the ids taken, not by the number of
  -- the claim.
  if more is not null and exists (
      select from hourbell.leases as l where l.session = p_session and l.id = any (more)) then
    select h.* into ids, jobs, tenants, attempts, fences, scheduled_for, finish_by, specs
    from hourbell.claimed_by(p_session, p_token, popped) as h;
  end if;
  if limited <> '{}' and hourbell.start_rate_limited(p_session, limited, least_fence, p_now, p_same_start) then
    waits := hourbell.start_delays(p_session, ids, hourbell.clock());
  end if;
end $$;

-- Quarantine: one session at a time drains, and then runs the executions whose workers died twice in a row, one by one
-- and with nothing else running. Only this shows which of them kills its worker. A session whose current work takes
-- long leaves this to another session: it would be idle until the last of that work ended. But if the executions have
-- waited for long (20 * p_patience), even such a session must take them.
-- Returns the suspect that the session takes, or none; must_drain: it takes nothing until its current work has ended.
create or replace function hourbell.take_suspect(
  p_session hourbell.sessions, p_fitting int[], p_newest int, p_now timestamptz, p_patience interval,
  out must_drain boolean, out popped bigint[], out limited bigint[], out stale bigint[]
)
language plpgsql as $$
#variable_conflict use_column
declare
  in_hand constant boolean := exists (select from hourbell.leases where leases.session = p_session.id);
  takes_long constant boolean := exists (
      select from hourbell.leases where leases.session = p_session.id and not alone and claimed_at < p_now - p_patience)
    and not exists (
      select from hourbell.suspects
      where queue = any (p_session.queues) and (p_fitting is null or task = any (p_fitting))
        and since < p_now - 20 * p_patience);
begin
  must_drain := false; popped := '{}'; limited := '{}'; stale := '{}';
  if p_session.quarantine and takes_long then
    update hourbell.sessions set quarantine = false where id = p_session.id;
    return;
  end if;
  if not p_session.quarantine then
    if takes_long or in_hand and not exists (
        select from hourbell.suspects
        where queue = any (p_session.queues) and (p_fitting is null or task = any (p_fitting))
          and since < p_now - p_patience) then
      return;
    end if;
    begin
      update hourbell.sessions set quarantine = true where id = p_session.id;
    exception when unique_violation then return;  -- another session is in quarantine
    end;
  end if;
  must_drain := in_hand;
  if must_drain then return; end if;
  delete from hourbell.suspects where ctid = (
    select ctid from hourbell.suspects where queue = any (p_session.queues)
      and (p_fitting is null or task = any (p_fitting))
    order by priority, tag limit 1 for update skip locked)
  returning array[id], case when limited then array[id] else '{}' end,
    case when generation < p_newest then array[id] else '{}' end into popped, limited, stale;
  if popped is null then
    popped := '{}'; limited := '{}'; stale := '{}';
    update hourbell.sessions set quarantine = false where id = p_session.id;
  end if;
end $$;

-- How many executions a claim of p_room takes of each queue p_queues[k], or in a mixed queue of its task p_tasks[k].
-- That depends on how far their next tags are ahead of the virtual time of the queue. Example: the room is 60,
-- and slabs have 50. Queue A has slabs 1 and 51 ahead, B one 10 ahead: A gets 50, B gets 10.
create or replace function hourbell.shares_by_queue(p_queues smallint[], p_tasks int[], p_priority smallint, p_room int)
returns int[]
language plpgsql stable as $$
begin
  return array(
    select coalesce(sum(least(t.n, p_room - t.before)), 0) from unnest(p_queues) with ordinality as l(queue, pos)
    left join (
      select l.pos, r.n, sum(r.n) over (order by r.tag - v.v, l.pos rows unbounded preceding) - r.n as before
      from unnest(p_queues, p_tasks) with ordinality as l(queue, task, pos)
      cross join lateral (
        select v from hourbell.virtual_time as v
        where v.queue = l.queue and v.priority = p_priority order by pass desc limit 1) as v
      cross join lateral (
        (select tag, cardinality(ids) as n from hourbell.ready as r
         where l.task is null and r.queue = l.queue and r.priority = p_priority and r.tag >= v.v
         order by r.tag limit p_room)
        union all
        (select tag, cardinality(ids) from hourbell.ready as r
         where r.queue = l.queue and r.priority = p_priority and r.task = l.task and (r.task, r.tag) >= (l.task, v.v)
         order by r.task, r.tag limit p_room)) as r) as t on t.pos = l.pos and t.before < p_room
    group by l.pos order by l.pos);
end $$;

-- Makes those of p_limited ready again that a rate limit does not let start now; p_tags and p_generations are theirs.
-- If nothing of p_popped can start now, the first one stays: it waits. Returns what was put back.
create or replace function hourbell.put_back_late(
  p_popped bigint[], p_limited bigint[], p_tags float8[], p_generations int[], p_at timestamptz
) returns bigint[]
language plpgsql as $$
#variable_conflict use_column
declare late bigint[] := hourbell.without_token(p_limited, p_at);
begin
  if late @> p_popped then late := late[2:]; end if;
  insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, limited, ids)
  select h.tag, h.tag, h.generation, hourbell.task(e.target), e.queue, e.priority, true, array[h.id]
  from unnest(p_limited, p_tags, p_generations) as h(id, tag, generation)
  cross join lateral (select * from hourbell.executions as e where e.id = h.id offset 0) as e
  where h.id = any (late);
  return late;
end $$;

-- What a worker is sent of plain executions, in the given order: one-time, without a deadline, never claimed before.
-- notifies: whether some of them have notifications. All null: some are not plain, so each must be looked up.
create or replace function hourbell.read_plain(
  p_ids bigint[], out tenants int[], out scheduled_for float8[], out specs text[], out notifies boolean
)
language plpgsql stable set plan = lookups_by_hash
set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  lowest bigint;
  highest bigint;
  plain int;
begin
  -- Mostly all are of one kind. Check the first: reading them all in vain would double the cost of the claim.
  perform from hourbell.executions where id = p_ids[1] and job is null;
  if not found then return; end if;
  -- Only the partitions between these are opened.
  select min(id), max(id) into lowest, highest from (select unnest(p_ids) as id) as i;
  -- Read by one scan and put into the given order by a hash join, in half the time that one look-up each takes. The
  -- planner expects a thousand rows of a series and ten of `any`, so it is the executions that are hashed.
  select array_agg(e.tenant), array_agg(date_part('epoch', e.occurrence)), array_agg(e.spec), bool_or(e.notifies <> 0),
    count(*) filter (where e.job is null and e.fence = 0 and e.attempt = 0 and e.start_by is null
      and e.finish_by is null and e.replayed_attempt is null)
  into tenants, scheduled_for, specs, notifies, plain
  from (select p_ids[k] as id from (select generate_series(1, cardinality(p_ids)) as k) as k) as i
  left join (
    select id, tenant, occurrence, spec, notifies, job, fence, attempt, start_by, finish_by, replayed_attempt
    from hourbell.executions where id = any (p_ids) and id >= lowest and id <= highest) as e on e.id = i.id;
  if plain < cardinality(p_ids) then tenants := null; scheduled_for := null; specs := null; notifies := null; end if;
end $$;

-- Leases executions to a session, in slabs of up to a hundred in the given order; what counts against a limit
-- (p_limited) is leased one by one. Each slab has a fence of its own, from p_fence on. p_versions: null: all are
-- one-time jobs. p_notifies: whether some of them have notifications. Returns the fence of each execution or, if
-- nothing is limited, of each hundred.
create or replace function hourbell.lease(
  p_session bigint, p_claim int, p_ids bigint[], p_versions int[], p_limited bigint[], p_notifies boolean,
  p_fence bigint, p_at timestamptz, p_alone boolean
) returns bigint[]
language plpgsql as $$
#variable_conflict use_column
declare fences bigint[];
begin
  if p_limited = '{}' then
    insert into hourbell.leased (session, fence, claimed_at, claim, alone, limited, notifies, ids, versions)
    select p_session, p_fence + k, p_at, p_claim, p_alone, false, p_notifies, p_ids[100 * k + 1:100 * k + 100],
      p_versions[100 * k + 1:100 * k + 100]
    from generate_series(0, (cardinality(p_ids) - 1) / 100) as k;
    return array(select p_fence + k from generate_series(0, (cardinality(p_ids) - 1) / 100) as k);
  end if;
  with numbered as materialized (
    select id, version, pos, limited,
      p_fence + case when limited then plain_slabs + nth else nth / 100 end as fence
    from (
      select id, version, pos, limited, row_number() over (partition by limited order by pos) - 1 as nth,
        (count(*) filter (where not limited) over () + 99) / 100 as plain_slabs
      from (
        select id, version, pos, id = any (p_limited) as limited
        from unnest(p_ids, p_versions) with ordinality as i(id, version, pos)) as i) as i),
  slabs as (
    insert into hourbell.leased (session, fence, claimed_at, claim, alone, limited, notifies, ids, versions)
    select p_session, fence, p_at, p_claim, p_alone, limited, p_notifies, array_agg(id order by pos),
      case when p_versions is not null then array_agg(version order by pos) end
    from numbered group by fence, limited)
  select array_agg(fence order by pos) into fences from numbered;
  return fences;
end $$;

-- Takes p_room executions of a queue and task out of `ready`, or fewer: whole slabs in the order of their tags, and a
-- part of the last one. The rest of that slab goes back; how its tags are spread is not stored, so its first one is
-- interpolated. p_task: null: the tasks p_fitting (null: all). Called by `take_ready`, whose plan settings apply.
create or replace function hourbell.take_slabs(
  p_queue smallint, p_priority smallint, p_task int, p_fitting int[], p_room int
) returns hourbell.ready[]
language plpgsql as $$
#variable_conflict use_column
declare
  v float8;
  slabs hourbell.ready[] := '{}';
  more hourbell.ready[];
  last hourbell.ready;
  got int := 0;  -- executions of `slabs`
  n int;
  kept int;
  wanted int := greatest(p_room / 100, 1);  -- slabs: rather too few, because what is too much has to be put back
begin
  if p_room <= 0 then return '{}'; end if;
  select t.v into v from hourbell.virtual_time as t where t.queue = p_queue and t.priority = p_priority
  order by pass desc limit 1;
  loop
    if p_task is null then
      with gone as (
        delete from hourbell.ready where ctid = any (array(
          select ctid from hourbell.ready as r
          where r.queue = p_queue and r.priority = p_priority and r.tag >= v
            and (p_fitting is null or r.task = any (p_fitting))
          order by r.tag limit wanted for update skip locked))
        returning ready)
      select array_agg(ready order by (ready).tag), sum(cardinality((ready).ids)) into more, n from gone;
    else
      with gone as (
        delete from hourbell.ready where ctid = any (array(
          select ctid from hourbell.ready as r
          where r.queue = p_queue and r.priority = p_priority and r.task = p_task and (r.task, r.tag) >= (p_task, v)
          order by r.task, r.tag limit wanted for update skip locked))
        returning ready)
      select array_agg(ready order by (ready).tag), sum(cardinality((ready).ids)) into more, n from gone;
    end if;
    exit when more is null;
    slabs := slabs || more; got := got + n;
    exit when got >= p_room or cardinality(more) < wanted;
    wanted := ceil((p_room - got)::float8 * cardinality(slabs) / got);
  end loop;
  while got > p_room loop
    last := slabs[cardinality(slabs)];
    n := cardinality(last.ids);
    slabs := slabs[:cardinality(slabs) - 1];
    if got - n < p_room then
      kept := p_room - got + n;
      slabs := slabs || row(last.tag, last.last_tag, last.generation, last.task, last.queue, last.priority,
        last.limited, last.ids[:kept])::hourbell.ready;
      last.ids := last.ids[kept + 1:];
      last.tag := last.tag + (last.last_tag - last.tag) * kept / (n - 1);
    end if;
    insert into hourbell.ready values (last.*);
    got := got - cardinality(last.ids);
  end loop;
  return slabs;
end $$;

-- The seconds until each of these executions of a session may start, in the given order.
create or replace function hourbell.start_delays(p_session bigint, p_ids bigint[], p_now timestamptz) returns float8[]
language sql stable set plan = lookups_unsorted as $$
  select array_agg(extract(epoch from l.claimed_at - p_now)::float8 order by i.pos)
  from unnest(p_ids) with ordinality as i(id, pos)
  join hourbell.leases as l on l.session = p_session and l.id = i.id
$$;

-- The job as it is sent to a worker. A replayed execution carries the number of attempts that no longer count.
create or replace function hourbell.sent_spec(p_own text, p_job text, p_replayed_attempt int) returns text
language sql immutable
return case when p_replayed_attempt is null then coalesce(p_own, p_job)
  else '{"attempts_before":' || p_replayed_attempt::text || ',' || substr(coalesce(p_own, p_job), 2) end;

-- The uncommon cases of a claim: cancellation requested, out of date, too late, or a job with a limited number of runs.
-- Such runs are counted here, when they start.
create or replace function hourbell.claim_uncommon(
  p_session bigint, p_claim int, p_ids bigint[], p_limited bigint[], p_now timestamptz, p_least_fence bigint,
  p_solo boolean
) returns void language plpgsql set plan = lookups as $$
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
        fate := hourbell.fate_cancelled(); why := 'cancelled';
      elsif e.job is not null and (j.id is null or e.version < j.valid_from) then
        fate := hourbell.fate_superseded(); why := j.outdated;
      elsif e.job is not null and not hourbell.is_routed(e, j) then
        -- The job was changed while this was on its way here: this worker may not run its task.
        insert into hourbell.tag_refunds (queue, priority, tenant) values (e.queue, e.priority, e.tenant);
        perform hourbell.requeue(array[e.id]);
        continue;
      elsif e.attempt = 0 and e.start_by < p_now then
        fate := hourbell.fate_skipped(); why := 'start_deadline';
      elsif e.finish_by < p_now then
        fate := hourbell.fate_dead(); why := 'deadline';
      elsif j.max_runs is not null and e.origin = hourbell.origin_schedule() and e.attempt = 0 and e.fence = 0 then
        perform from hourbell.jobs where id = j.id for no key update skip locked;
        if not found then
          -- Another transaction is changing the job. Its client may have stopped, which cannot be detected, so the
          -- claim does not wait: the execution is retried a little later.
          perform hourbell.delay_claimed(e, p_now + interval '200 milliseconds', p_now);
          continue;
        end if;
        update hourbell.jobs set runs = runs + 1 where id = j.id and runs < max_runs;
        if not found then
          fate := hourbell.fate_skipped(); why := 'max_runs';
        end if;
        if fate is not null or j.runs + 1 >= j.max_runs then
          perform hourbell.complete_job(p_now, j.id);
        end if;
      end if;
      if fate is null then
        insert into hourbell.leased (session, fence, claimed_at, claim, alone, limited, notifies, ids, versions)
        values (p_session, greatest(e.fence + 1, p_least_fence), greatest(p_now, hourbell.clock()), p_claim, p_solo,
          e.id = any (p_limited), e.notifies <> 0, array[e.id], array[coalesce(j.version, e.version)]);
      else
        insert into hourbell.tag_refunds (queue, priority, tenant) values (e.queue, e.priority, e.tenant);
        perform hourbell.end_executions(array[e.id], array[fate], array[why], p_now);
      end if;
    exception when data_exception or integrity_constraint_violation then
      -- An execution that raises an error here must not keep the others from being claimed.
      raise warning 'execution % cannot be claimed and is delayed: %', e.id, sqlerrm;
      perform hourbell.delay_claimed(e, p_now + interval '1 minute', p_now);
    end;
  end loop;
end $$;

-- Moves an execution from a claim back to due, to run at p_until.
create or replace function hourbell.delay_claimed(e hourbell.executions, p_until timestamptz, p_now timestamptz)
returns void
language plpgsql set plan = lookups as $$
begin
  insert into hourbell.tag_refunds (queue, priority, tenant) values (e.queue, e.priority, e.tenant);
  perform hourbell.release_limits(array[e.id], false, p_now);
  update hourbell.executions set run_at = p_until, waits_for = null where id = e.id;
  perform hourbell.requeue(array[e.id]);
end $$;

-- The claim as workers call it. It commits before it answers: a worker that is stopped while the rows are sent to it
-- holds no lock, so no transaction waits for it. ended: how executions have ended that may not start any more, as
-- `count_fates` notes it.
create or replace procedure hourbell.claim(
  p_session bigint, p_token uuid, p_claim int, p_repeated boolean, p_limit int, p_reserved int, p_lowest_first boolean,
  p_same_start boolean, p_now timestamptz, p_patience interval,
  inout alive boolean, inout ids bigint[], inout jobs bigint[], inout tenants int[], inout attempts int[],
  inout fences bigint[], inout scheduled_for float8[], inout finish_by timestamptz[], inout specs text[],
  inout waits float8[], inout ended text
)
language plpgsql as $$
#variable_conflict use_column
declare
  recalled boolean;
begin
  -- If none of the rows taken may start any more, send back the next ones too and retry: rows that may start wait
  -- behind them.
  for round in 1 .. 5 loop
    select t.* into alive, ids, jobs, tenants, attempts, fences, scheduled_for, finish_by, specs, waits, recalled
    from hourbell.take_ready(
      p_session, p_token, p_claim, p_repeated, p_limit, p_reserved, p_lowest_first, p_same_start, p_now, p_patience,
      alive, ids, jobs, tenants, attempts, fences, scheduled_for, finish_by, specs, waits) as t;
    ended := nullif(concat_ws(' ', ended, hourbell.ended()), '');  -- the commit forgets it
    commit;
    exit when ids is not null or not alive;
    if recalled then
      perform hourbell.readmit_next(p_session, p_now);
    else
      exit when round > 1 or not hourbell.wait_for_slab(p_session);
    end if;
    commit;
  end loop;
end $$;

-- Waits a little for the first slab that a session might take: another claim has it, and puts back what it does not
-- take. False: there is none.
create or replace function hourbell.wait_for_slab(p_session bigint) returns boolean
language plpgsql set plan = lookups_one_by_one
set lock_timeout = '20ms' as $$
#variable_conflict use_column
declare slab tid;
begin
  select r.row into slab
  from hourbell.sessions as s cross join lateral unnest(hourbell.queues_of(s)) as q(queue)
  cross join unnest('{0,1,2,3}'::smallint[]) as p(priority)
  cross join lateral (
    select v from hourbell.virtual_time as v where v.queue = q.queue and v.priority = p.priority
    order by pass desc limit 1) as v
  cross join lateral (
    select ctid as row from hourbell.ready as r
    where r.queue = q.queue and r.priority = p.priority and r.tag >= v.v
      and (s.tasks is null or r.task = any (s.tasks || hourbell.task_any()))
    order by r.tag limit 1) as r
  where s.id = p_session order by p.priority limit 1;
  if slab is null then return false; end if;
  perform from hourbell.ready where ctid = slab for update;
  return true;
exception when lock_not_available then
  return true;
end $$;
