-- Limits as the gate sees them. A blocker is a (kind, key); codes.sql names the kinds.
-- `kind + 0`: a lookup by id must not become one by kind: statistics may say that no row of the kind exists.

-- The tag space of rows parked by a blocker. The tag space of the ready rows of a queue is the queue's number.
create or replace function hourbell.tag_space(p_kind smallint, p_key bigint) returns bigint
language sql immutable
return (p_kind::bigint << 56) + p_key;

-- The task number of an execution.
create or replace function hourbell.task(p_target int) returns int
language sql immutable
return case when p_target > 0 then hourbell.task_webhook() else coalesce(-p_target, hourbell.task_any()) end;

-- The key of a queue and a task as a blocker.
create or replace function hourbell.task_key(p_queue bigint, p_task int) returns bigint
language sql immutable
return (p_queue << 32) + p_task;

-- The key of the blocker of a kind that applies to an execution; null: none.
create or replace function hourbell.blocker_id(
  p_kind smallint, p_queue smallint, p_tenant int, p_target int, p_key bigint
) returns bigint
language sql immutable
return case p_kind
  when hourbell.blocker_queue() then p_queue
  when hourbell.blocker_tenant() then p_tenant
  when hourbell.blocker_target() then p_target
  when hourbell.blocker_key() then p_key
  when hourbell.blocker_task() then hourbell.task_key(p_queue, hourbell.task(p_target)) end;

-- Releases the limits that executions hold. An execution that has not ended keeps its concurrency key: the next one
-- with that key waits for its end. Offers that were not claimed have cost no token.
create or replace function hourbell.release_limits(p_ids bigint[], p_ended boolean, p_now timestamptz) returns void
language sql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
  with released as (
    delete from hourbell.limit_holds where id = any (p_ids) and (p_ended or kind <> hourbell.blocker_key())
    returning kind, key),
  offered as (delete from hourbell.rate_reservations where id = any (p_ids) returning kind, key)
  insert into hourbell.gate_wakeups (at, kind, key)
  select p_now, kind, key from released union select p_now, kind, key from offered
$$;

-- Wakes the blockers of parked executions that have ended: other executions may have been waiting behind them.
create or replace function hourbell.wake_blockers(
  p_queues smallint[], p_tenants int[], p_targets int[], p_keys bigint[], p_now timestamptz
) returns void language sql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
  insert into hourbell.gate_wakeups (at, kind, key)
  select distinct p_now, s.kind, s.key
  from (
    select hourbell.blocker_queue() as kind, unnest(p_queues)::bigint as key union all
    select hourbell.blocker_tenant(), unnest(p_tenants) union all
    select hourbell.blocker_target(), unnest(p_targets) union all
    select hourbell.blocker_key(), unnest(p_keys)) as s
  where exists (select from hourbell.parked as p where p.kind = s.kind and p.key = s.key offset 0)
$$;

-- Wakes jobs of which an execution that restricts overlap has ended.
create or replace function hourbell.wake_jobs(p_jobs bigint[], p_now timestamptz) returns void
language sql as $$
  insert into hourbell.gate_wakeups (at, kind, key)
  select distinct p_now, hourbell.blocker_job(), job from unnest(p_jobs) as j(job)
$$;

-- Rate limits. A start takes a token out of its bucket at the moment of the start, so at most rate * T + burst
-- executions start in any T seconds. The claim decides that moment (`start_rate_limited`): at once if there is a token,
-- otherwise when the next token arrives, up to `lead_seconds` ahead. The worker waits for that moment, so the time
-- taken by the gate, the notification and the claim is not lost, even with a burst of 1. The gate offers no more than
-- can start within `lead_seconds`. An offer costs nothing until it is claimed, and an offer that is claimed late takes
-- its token then.

-- How far ahead of its start a claim may take an execution. Longer than a gate pass, a notification and a claim take.
create or replace function hourbell.lead_seconds() returns float8
language sql immutable
return 0.25;

-- The tokens in a bucket at p_now; negative if starts ahead have taken tokens that have not arrived yet.
create or replace function hourbell.tokens(l hourbell.limits, p_now timestamptz) returns float8
language sql stable as $$
  select least(l.burst, coalesce(b.level + greatest(extract(epoch from p_now - b.at)::float8, 0) * l.rate, l.burst))
  from (values (1)) as one
  left join lateral (
    select level, at from hourbell.rate_buckets as b where b.kind = l.kind and b.key = l.key order by pass desc limit 1) as b on true
$$;

-- How many more executions the gate may offer at p_now: what can start within `lead_seconds`, minus unclaimed offers.
create or replace function hourbell.reservable(l hourbell.limits, p_now timestamptz) returns float8
language sql stable as $$
  select hourbell.tokens(l, p_now) + l.rate * hourbell.lead_seconds()
    - (select count(*) from hourbell.rate_reservations as o where o.kind = l.kind and o.key = l.key) + 1e-6  -- for rounding
$$;

-- How many more executions a limit admits now.
create or replace function hourbell.limit_room(l hourbell.limits, p_now timestamptz) returns int
language sql stable as $$
  select greatest(least(
    l.max_concurrency - (select count(*) from hourbell.limit_holds as h where h.kind = l.kind and h.key = l.key),
    case when l.rate is not null then floor(hourbell.reservable(l, p_now)) end,
    case when hourbell.is_recount_pending(l.kind, l.key) then 0 end,
    1000000), 0)::int
$$;

-- Whether a limit was set and the executions running under it are not counted yet. Until then it admits none.
create or replace function hourbell.is_recount_pending(p_kind smallint, p_key bigint) returns boolean
language sql stable as $$
  select exists (select from hourbell.limit_recounts as c where c.kind = p_kind and c.key = p_key and c.looked_at is null)
$$;

-- Starts executions that a session has just claimed under rate limits: each takes its tokens, and `claimed_at` becomes
-- the moment of its start; each is a slab of its own, and none has a fence below p_least_fence. p_at_once: all of them
-- start at the same moment. Returns whether any has to wait for its start.
-- Buckets are locked until the commit, in a fixed order; the caller takes no other lock after this.
create or replace function hourbell.start_rate_limited(
  p_session bigint, p_ids bigint[], p_least_fence bigint, p_now timestamptz, p_at_once boolean
) returns boolean
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  taken hourbell.rate_reservations[];
  buckets hourbell.limits[] := '{}';
  l hourbell.limits;
  now timestamptz;
  started bigint[];
  starts float8[];  -- the start of each of `started`, in seconds from now
  fulls float8[] := '{}';  -- when each bucket will be full if nothing more starts, in seconds from now
  one record;
  k int;
  start float8;
  earliest float8 := 0;
begin
  with used as (delete from hourbell.rate_reservations where id = any (p_ids) returning rate_reservations)
  select array_agg(rate_reservations) into taken from used;
  if taken is null then return false; end if;
  for l in
    select * from hourbell.limits where rate is not null and (kind, key) in (select kind, key from unnest(taken)) order by kind, key
  loop
    perform pg_advisory_xact_lock(hourbell.tag_space(l.kind, l.key));
    buckets := buckets || l;
  end loop;
  -- Read under the lock, so that it is not before what is already written; not the caller's time, which may be old.
  now := greatest(p_now, hourbell.clock());
  insert into hourbell.gate_wakeups (at, kind, key) select distinct now, kind, key from unnest(taken);

  for round in 1 .. case when p_at_once then 2 else 1 end loop
    started := '{}'; starts := '{}';
    for k in 1 .. cardinality(buckets) loop
      fulls[k] := ((buckets[k]).burst - hourbell.tokens(buckets[k], now)) / (buckets[k]).rate;
    end loop;
    for one in
      -- An execution that must wait for a bucket of its own comes after one that need not: otherwise both would wait.
      select id, array_agg(place) as places
      from (
        select w.id, w.pos as turn, b.pos as place,
          fulls[b.pos] + (row_number() over (partition by b.pos order by w.pos) - b.burst) / b.rate as earliest
        from unnest(p_ids) with ordinality as w(id, pos)
        join unnest(taken) as o on o.id = w.id
        join unnest(buckets) with ordinality as b(kind, key, max_concurrency, rate, burst, pos)
          on b.kind = o.kind and b.key = o.key) as waiting
      group by id, turn order by max(waiting.earliest), turn
    loop
      start := earliest;
      foreach k in array one.places loop
        start := greatest(start, fulls[k] - ((buckets[k]).burst - 1) / (buckets[k]).rate);
      end loop;
      start := ceil(start * 1e6 - 1e-3) / 1e6;  -- never early, at the precision of a timestamp
      foreach k in array one.places loop
        fulls[k] := greatest(fulls[k], start) + 1 / (buckets[k]).rate;
      end loop;
      started := started || one.id; starts := starts || start;
    end loop;
    earliest := (select max(s) from unnest(starts) as s);
  end loop;

  perform hourbell.write_bucket(b.kind, b.key, b.burst - b.rate * fulls[b.pos], now)
  from unnest(buckets) with ordinality as b(kind, key, max_concurrency, rate, burst, pos);
  update hourbell.leased as l set claimed_at = now + make_interval(secs => s.start)
  from unnest(started, starts) as s(id, start)
  where l.session = p_session and l.fence >= p_least_fence and l.ids = array[s.id];
  return coalesce(earliest > 0, false);
end $$;

-- Writes the level of a bucket. The caller holds the lock of the bucket.
create or replace function hourbell.write_bucket(p_kind smallint, p_key bigint, p_level float8, p_at timestamptz) returns void
language sql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
  with old as (
    delete from hourbell.rate_buckets where ctid = any (array(
      select ctid from hourbell.rate_buckets where kind = p_kind and key = p_key order by pass desc limit 1)))
  insert into hourbell.rate_buckets (kind, key, level, at, pass) values (p_kind, p_key, p_level, p_at, nextval('hourbell.passes'))
$$;

-- Takes rows that may proceed out of `parked`: for every blocker with a wake, as many as it has room for, in order.
-- They are returned as due rows whose `checks` say for what they were parked; the gate checks them again.
create or replace function hourbell.unpark(p_now timestamptz, p_limit int, p_from_below boolean, p_pass bigint)
returns hourbell.due[]
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
  kinds smallint[]; keys bigint[];
  served hourbell.sessions[];
  queues bigint[];  -- queues with a wake: workers may have come or gone
  share int;
  rooms int[];
  counts int[];
  taken hourbell.due[];
begin
  with popped as (
    delete from hourbell.gate_wakeups where ctid = any (array(
      select ctid from hourbell.gate_wakeups where at <= p_now order by at limit p_limit for update skip locked))
    returning kind, key)
  select array_agg(kind order by kind, key), array_agg(key order by kind, key) into kinds, keys
  from (select distinct kind, key from popped) as news;
  if kinds is null then return '{}'; end if;
  served := hourbell.serving_sessions();  -- after the wakes were read, so that it is not older than they are
  queues := array(select key from unnest(kinds, keys) as n(kind, key) where kind = hourbell.blocker_queue());
  if queues <> '{}' then
    perform hourbell.note_queue_workers(q::smallint, served) from unnest(queues) as q;
    perform hourbell.unready_unserved(
      array(select q from unnest(queues) as q where not hourbell.is_queue_served(served, q)), p_limit, p_now);
    perform hourbell.unready_unserved_tasks(queues, served, p_limit, p_now);
    select array_agg(kind order by kind, key), array_agg(key order by kind, key) into kinds, keys
    from (
      select kind, key from unnest(kinds, keys) as n(kind, key)
      union  -- each once: a row parked under a blocker would be picked once per duplicate
      select hourbell.blocker_task(), t.key
      from unnest(queues) as q cross join lateral hourbell.parked_task_keys(q) as t(key)
      where not hourbell.lacks_task(served, t.key)) as n(kind, key);
  end if;
  share := greatest(p_limit / cardinality(kinds), 1);  -- a blocker with many rows does not delay the others

  select array_agg(room order by pos) into rooms
  from (
    select pos, case
      when n.kind = hourbell.blocker_job() then 1000
      when n.kind = hourbell.blocker_key() then (
        select e.key_limit from (
          select id from hourbell.parked as p where p.kind = hourbell.blocker_key() and p.key = n.key
          order by p.priority, p.rank, p.id limit 1) as p
        cross join lateral (select key_limit from hourbell.executions as e where e.id = p.id offset 0) as e)
        - (select count(*) from hourbell.limit_holds as h where h.kind = hourbell.blocker_key() and h.key = n.key)
      when n.kind = hourbell.blocker_queue() and not hourbell.is_queue_served(served, n.key) then 0
      when n.kind = hourbell.blocker_task() and hourbell.lacks_task(served, n.key) then 0
      else coalesce((
        select hourbell.limit_room(l, p_now) from hourbell.limits as l where l.kind = n.kind and l.key = n.key), 1000000)
    end::int as room
    from unnest(kinds, keys) with ordinality as n(kind, key, pos)) as known;

  -- With p_from_below the least urgent go first, so that they make progress too.
  with picked as materialized (
    select n.pos, p.row, p.id
    from unnest(kinds, keys, rooms) with ordinality as n(kind, key, room, pos)
    left join lateral (
      select priority from hourbell.parked as p
      where p.kind = n.kind and p.key = n.key and p_from_below
        and n.kind not in (hourbell.blocker_key(), hourbell.blocker_job())
      order by p.priority desc limit 1) as least_urgent on true
    cross join lateral (
      select ctid as row, id from hourbell.parked as p
      where p.kind = n.kind and p.key = n.key and p.priority >= coalesce(least_urgent.priority, 0)
      order by p.priority, p.rank, p.id limit least(n.room, share) for update skip locked) as p
    where n.room > 0),
  gone as (
    delete from hourbell.parked where ctid = any (array(select row from picked)) returning kind, id)
  select array_agg(row(e.run_at, e.id, e.tenant, e.queue, e.priority,
      hourbell.checks_of(e.overlap, e.crashes) + hourbell.checks_parked(g.kind), e.target, e.key)::hourbell.due
      order by p.pos, p.id),
    array(
      select count(p.pos)::int from unnest(kinds) with ordinality as n(kind, pos) left join picked as p on p.pos = n.pos
      group by n.pos order by n.pos)
  into taken, counts
  from gone as g join picked as p on p.id = g.id cross join lateral (
    select * from hourbell.executions as e where e.id = g.id offset 0) as e;

  -- Blockers with room that still have parked rows are checked again: at once if there were too many rows, a little
  -- later if the rows are locked, and under a rate limit when it can offer more.
  insert into hourbell.gate_wakeups (at, kind, key)
  select case when n.room <= n.taken then hourbell.next_reservation_at(n.kind, n.key, p_now)
      when n.taken >= share then p_now else p_now + interval '100 milliseconds' end, n.kind, n.key
  from unnest(kinds, keys, rooms, counts) as n(kind, key, room, taken)
  where exists (select from hourbell.parked as p where p.kind = n.kind and p.key = n.key offset 0)
    and (n.room > n.taken or (
      n.kind = any (hourbell.limit_kinds()) and hourbell.next_reservation_at(n.kind, n.key, p_now) is not null));
  return coalesce(taken, '{}');
end $$;

-- No session serves these queues any more. Their ready rows release the limits they hold, which other rows wait for,
-- and go through the gate again.
create or replace function hourbell.unready_unserved(p_queues bigint[], p_limit int, p_now timestamptz) returns void
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare left_behind bigint[];
begin
  if p_queues = '{}' then return; end if;
  with from_ready as (
    delete from hourbell.ready where ctid = any (array(
      select ctid from hourbell.ready where queue = any (p_queues) and limited limit p_limit for update skip locked))
    returning ids[1] as id, queue, priority),
  from_suspects as (
    delete from hourbell.suspects where ctid = any (array(
      select ctid from hourbell.suspects where queue = any (p_queues) and limited limit p_limit for update skip locked))
    returning id),
  refunded as (
    insert into hourbell.tag_refunds (queue, priority, tenant)
    select r.queue, r.priority, e.tenant from from_ready as r cross join lateral (
      select tenant from hourbell.executions as e where e.id = r.id offset 0) as e)
  select array_agg(id) into left_behind from (select id from from_ready union all select id from from_suspects) as gone;
  if left_behind is null then return; end if;
  perform hourbell.release_limits(left_behind, false, p_now);
  perform hourbell.requeue(left_behind);
  insert into hourbell.gate_wakeups (at, kind, key) select p_now, hourbell.blocker_queue(), unnest(p_queues);
end $$;

-- The earliest time at which the next row parked under a rate limit can start; null: it is no rate limit.
create or replace function hourbell.next_token_at(p_kind smallint, p_key bigint, p_now timestamptz) returns timestamptz
language sql stable as $$
  select p_now + make_interval(secs => greatest(1 + o.n - hourbell.tokens(l, p_now), 0) / l.rate)
  from hourbell.limits as l
  cross join lateral (select count(*) as n from hourbell.rate_reservations as o where o.kind = l.kind and o.key = l.key) as o
  where l.kind = p_kind and l.key = p_key and l.rate is not null
$$;

-- When the gate checks again what is parked under a rate limit: as soon as it can offer one more, or as many as arrive
-- in 50 ms if that is more. Null: it is no rate limit.
create or replace function hourbell.next_reservation_at(p_kind smallint, p_key bigint, p_now timestamptz) returns timestamptz
language sql stable as $$
  select p_now + make_interval(secs => greatest(
    (greatest(floor(l.rate * 0.05), 1) - (o.n - floor(o.n))) / l.rate, 0.005))
  from hourbell.limits as l
  cross join lateral (select hourbell.reservable(l, p_now) as n) as o
  where l.kind = p_kind and l.key = p_key and l.rate is not null
$$;

-- Parks rows that may not proceed, each under its blocker. A key admits by due time; every other blocker gives each
-- tenant its share.
create or replace function hourbell.park(
  p_kind smallint, p_rows hourbell.due[], p_priority smallint, p_now timestamptz, p_pass bigint
) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  spaces bigint[];
  places bigint[];
  floors float8[];
  tags float8[];
begin
  if p_kind = hourbell.blocker_key() then
    insert into hourbell.parked (kind, key, priority, rank, id)
    select hourbell.blocker_key(), r.key, 0, extract(epoch from r.run_at), r.id from unnest(p_rows) as r;
    return;
  end if;
  spaces := array(
    select hourbell.tag_space(p_kind, hourbell.blocker_id(p_kind, queue, tenant, target, key)) from unnest(p_rows));
  -- With an empty line, restart from the highest tag handed out so far.
  select array_agg(s.space), array_agg(coalesce(p.rank, (
    select max(last) from hourbell.lanes as l cross join lateral unnest(l.lasts) as last
    where l.space = s.space and l.priority = p_priority), 0)) into places, floors
  from (select distinct unnest(spaces) as space) as s
  left join lateral (
    select rank from hourbell.parked as p
    where p.kind = p_kind and p.key = s.space - hourbell.tag_space(p_kind, 0) and p.priority = p_priority
    order by rank limit 1) as p on true;
  tags := hourbell.tag(spaces, array(select tenant from unnest(p_rows)), p_priority, places, floors, p_pass);
  insert into hourbell.parked (kind, key, priority, rank, id)
  select p_kind, space - hourbell.tag_space(p_kind, 0), p_priority, tag, id
  from unnest(p_rows, spaces, tags) as r(run_at, id, tenant, queue, priority, checks, target, key, space, tag);
end $$;

-- Of these due executions, those that may proceed as far as their keys are concerned. They take their keys; the others
-- are parked. A key goes to the execution that is due first, whatever the priorities. Executions that were parked for
-- it go before newly due ones.
create or replace function hourbell.acquire_keys(p_rows hourbell.due[], p_now timestamptz, p_pass bigint) returns hourbell.due[]
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_nestloop = off as $$
#variable_conflict use_column
declare staying hourbell.due[];
begin
  if not exists (select from unnest(p_rows) where key is not null) then return p_rows; end if;
  with candidates as materialized (
    select r, k.most, k.holding from unnest(p_rows) as r
    cross join lateral (
      select e.key_limit as most,
        exists (
          select from hourbell.limit_holds as h
          where h.id = e.id and h.kind + 0 = hourbell.blocker_key() offset 0) as holding
      from hourbell.executions as e where e.id = r.id offset 0) as k
    where (r).key is not null),
  used as materialized (
    select key,
      (select count(*) from hourbell.limit_holds as h where h.kind = hourbell.blocker_key() and h.key = k.key) as n,
      exists (
        select from hourbell.parked as p where p.kind = hourbell.blocker_key() and p.key = k.key offset 0) as waited_for,
      d.run_at as next_at, d.id as next_id
    from (
      select distinct on ((r).key) (r).key as key, (r).run_at as first_at, (r).id as first_id
      from candidates where not holding order by (r).key, (r).run_at, (r).id) as k
    -- The first due execution with this key that is not among p_rows.
    left join lateral (
      select run_at, id from hourbell.due as d where d.key = k.key and d.run_at <= p_now
      order by run_at, id limit 1) as found on true
    -- Do not wait for an earlier one that a client has locked: the lock may never be released.
    left join lateral (
      select run_at, id from hourbell.due as d
      where d.key = k.key and d.run_at <= p_now and (found.run_at, found.id) < (k.first_at, k.first_id)
      order by run_at, id limit 1 for update skip locked) as earlier on true
    cross join lateral (
      select
        case when (found.run_at, found.id) < (k.first_at, k.first_id) then earlier.run_at else found.run_at end as run_at,
        case when (found.run_at, found.id) < (k.first_at, k.first_id) then earlier.id else found.id end as id) as d),
  fit as (
    select (r).id, u.key, bool_and(
        u.n + place <= most and (u.next_id is null or ((r).run_at, (r).id) < (u.next_at, u.next_id))) over (
      partition by u.key order by (r).run_at, (r).id) as fits
    from (
      select c.*, row_number() over (partition by (c.r).key order by (c.r).run_at, (c.r).id) as place
      from candidates as c where not c.holding) as c
    join used as u on u.key = (c.r).key
    where not u.waited_for or hourbell.parked_for((c.r).checks) = hourbell.blocker_key()),
  taken as (
    insert into hourbell.limit_holds (kind, key, id) select hourbell.blocker_key(), key, id from fit where fits),
  -- Keys with free places whose executions are parked anyway are checked again.
  again as (
    insert into hourbell.gate_wakeups (at, kind, key)
    select distinct p_now + interval '10 milliseconds', hourbell.blocker_key(), u.key
    from candidates as c join used as u on u.key = (c.r).key
    left join (select key, count(*) as n from fit where fits group by key) as f on f.key = u.key
    where not c.holding and (c.r).id not in (select id from fit where fits) and u.n + coalesce(f.n, 0) < c.most)
  select array_agg(r) into staying from candidates
  where not holding and (r).id not in (select id from fit where fits);
  if staying is null then return p_rows; end if;
  perform hourbell.park(hourbell.blocker_key(), staying, 0::smallint, p_now, p_pass);
  perform hourbell.wake_next(hourbell.blocker_key(), staying, p_now);
  return array(select r from unnest(p_rows) as r where id not in (select id from unnest(staying)));
end $$;

-- Of these due executions, all of one priority, those that may proceed. They take what they need; the others are
-- parked. `checks` of an execution that proceeds has `checks_limited` if it holds something.
-- First comes the key, which a parked execution keeps; then target, tenant and queue, which only executions that
-- proceed take. An execution that was parked at one of these has passed those before it, and does not wait there again.
create or replace function hourbell.apply_limits(
  p_rows hourbell.due[], p_priority smallint, p_served hourbell.sessions[], p_now timestamptz, p_pass bigint
) returns hourbell.due[]
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off set enable_nestloop = off as $$
#variable_conflict use_column
declare
  going hourbell.due[] := hourbell.acquire_keys(p_rows, p_now, p_pass);
  staying hourbell.due[];
  blocker smallint;
begin
  foreach blocker in array array[
    hourbell.blocker_task(), hourbell.blocker_target(), hourbell.blocker_tenant(), hourbell.blocker_queue()]
  loop
    with candidates as materialized (
      select r, hourbell.blocker_id(blocker, r.queue, r.tenant, r.target, r.key) as key, row_number() over () as pos
      from unnest(going) as r),
    limited as materialized (
      select s.key, case
          when l.key is null or (
            blocker = hourbell.blocker_queue() and not hourbell.is_queue_served(p_served, s.key)) then 0
          else hourbell.limit_room(l, p_now) end as room,
        exists (
          select from hourbell.parked as p
          where p.kind = blocker and p.key = s.key and p.priority <= p_priority offset 0) as waited_for
      from (select distinct key from candidates where key is not null) as s
      left join lateral (select * from hourbell.limits as l where l.kind = blocker and l.key = s.key) as l on true
      where l.key is not null
        or (blocker = hourbell.blocker_queue() and not hourbell.is_queue_served(p_served, s.key))
        or (blocker = hourbell.blocker_task() and hourbell.lacks_task(p_served, s.key))),
    fit as (
      select (r).id, l.room >= row_number() over (partition by l.key order by pos) as fits
      from candidates as c join limited as l using (key)
      where not l.waited_for or hourbell.parked_for((c.r).checks) between hourbell.blocker_queue() and blocker)
    select array_agg(r order by pos) into staying from candidates as c join limited as l using (key)
    where (c.r).id not in (select id from fit where fits);
    continue when staying is null;
    going := array(select r from unnest(going) as r where id not in (select id from unnest(staying)));
    staying := staying || hourbell.followers_of(blocker, staying, p_priority);
    perform hourbell.park(blocker, staying, p_priority, p_now, p_pass);
    perform hourbell.wake_next(blocker, staying, p_now);
  end loop;

  -- Executions that proceed take what they need.
  with known as materialized (
    select l as limit, l.kind, l.key
    from (
      select distinct hourbell.blocker_queue() as kind, queue::bigint as key from unnest(going)
      union all select distinct hourbell.blocker_tenant(), tenant from unnest(going)
      union all select distinct hourbell.blocker_target(), target from unnest(going) where target is not null) as s
    cross join lateral (select * from hourbell.limits as l where l.kind = s.kind and l.key = s.key offset 0) as l),
  limited as materialized (
    select l.limit, s.id
    from (
      select hourbell.blocker_queue() as kind, queue::bigint as key, id from unnest(going)
      union all select hourbell.blocker_tenant(), tenant, id from unnest(going)
      union all select hourbell.blocker_target(), target, id from unnest(going) where target is not null) as s
    join known as l on l.kind = s.kind and l.key = s.key),
  holding as (
    insert into hourbell.limit_holds (kind, key, id)
    select (l.limit).kind, (l.limit).key, id from limited as l where (l.limit).max_concurrency is not null),
  offered as (
    insert into hourbell.rate_reservations (kind, key, id)
    select (l.limit).kind, (l.limit).key, id from limited as l where (l.limit).rate is not null)
  select array_agg(row(r.run_at, r.id, r.tenant, r.queue, r.priority,
      (r.checks & (hourbell.checks_overlap() | hourbell.checks_suspect())) + case
        when r.key is not null or r.id in (select id from limited) then hourbell.checks_limited() else 0 end,
      r.target, r.key)::hourbell.due order by r.pos)
  into going
  from unnest(going) with ordinality as r(run_at, id, tenant, queue, priority, checks, target, key, pos);
  return coalesce(going, '{}');
end $$;

-- Some rows reached the head of one line only to be stopped by another blocker. Rows behind them in the first line that
-- the same blocker would stop are moved along at once: one by one, a million of them would keep the gate busy for
-- hours.
create or replace function hourbell.followers_of(p_kind smallint, p_rows hourbell.due[], p_priority smallint)
returns hourbell.due[]
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare followers hourbell.due[];
begin
  with lines as materialized (
    select distinct hourbell.parked_for(checks) as kind,
      hourbell.blocker_id(hourbell.parked_for(checks), queue, tenant, target, key) as key,
      hourbell.blocker_id(p_kind, queue, tenant, target, key) as blocked
    from unnest(p_rows)
    where hourbell.parked_for(checks) = any (hourbell.limit_kinds())
      and (p_kind = hourbell.blocker_task() or hourbell.parked_for(checks) > p_kind)),
  picked as materialized (
    select p.row, e.executions as e, l.kind
    from lines as l
    cross join lateral (
      select ctid as row, id from hourbell.parked as p where p.kind = l.kind and p.key = l.key and p.priority = p_priority
      order by p.rank, p.id limit 1000 for update skip locked) as p
    cross join lateral (select e as executions from hourbell.executions as e where e.id = p.id offset 0) as e
    where l.blocked = hourbell.blocker_id(
      p_kind, (e.executions).queue, (e.executions).tenant, (e.executions).target, (e.executions).key)),
  gone as (delete from hourbell.parked where ctid = any (array(select row from picked)) returning id)
  select array_agg(row((e).run_at, (e).id, (e).tenant, (e).queue, (e).priority,
      hourbell.checks_of((e).overlap, (e).crashes) + hourbell.checks_parked(kind), (e).target, (e).key)::hourbell.due)
  into followers from picked where exists (select from gone where gone.id = (e).id);
  return coalesce(followers, '{}');
end $$;

-- After parking: a rate limit gets a wake for the time when it can offer more. An execution that was counted at one
-- limit and then stopped by another has left a free place at the first, so the first gets a wake too.
create or replace function hourbell.wake_next(p_kind smallint, p_rows hourbell.due[], p_now timestamptz) returns void
language sql set jit = off set enable_seqscan = off set enable_bitmapscan = off as $$
  insert into hourbell.gate_wakeups (at, kind, key)
  select w.at, s.kind, s.key
  from (
    select distinct p_kind as kind, hourbell.blocker_id(p_kind, r.queue, r.tenant, r.target, r.key) as key
    from unnest(p_rows) as r where p_kind = any (hourbell.limit_kinds())) as s
  cross join lateral (select hourbell.next_reservation_at(s.kind, s.key, p_now) as at) as w
  where w.at is not null and not exists (
    select from hourbell.gate_wakeups as p where p.kind = s.kind and p.key = s.key and p.at <= w.at offset 0)
  union all
  select p_now, s.kind, s.key
  from (
    select distinct k.kind, hourbell.blocker_id(k.kind, r.queue, r.tenant, r.target, r.key) as key
    from unnest(p_rows) as r
    cross join unnest(hourbell.limit_kinds()) as k(kind)
    where k.kind <> p_kind and (k.kind > p_kind or k.kind = hourbell.parked_for(r.checks))) as s
  where exists (select from hourbell.parked as p where p.kind = s.kind and p.key = s.key offset 0)
$$;

-- Counts running executions under newly set limits. A claim in progress may not have seen a limit, so this is repeated
-- until every transaction of that time has ended. Ready rows are checked by their claim (`may_start`).
create or replace function hourbell.recount_running(p_now timestamptz) returns void
language plpgsql
set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  these hourbell.limit_recounts[];
  found_some hourbell.limit_recounts[];
  over bigint[];
begin
  these := array(
    select c from hourbell.limit_recounts as c
    -- At growing intervals, up to 5 s: a transaction may stay open for hours.
    where looked_at is null or not looked_at between p_now - least(looks, 50) * interval '100 milliseconds' and p_now
    order by looked_at nulls first, id limit 1000 for update skip locked);
  if these = '{}' then return; end if;
  with running as materialized (
    select l.session, l.fence, e.id, s.kind, s.key
    from (select * from hourbell.leases offset 0) as l
    -- A transaction that ends one of them waits until this commits, and then sees `limited`.
    cross join lateral (select * from hourbell.executions as e where e.id = l.id for no key update skip locked) as e
    cross join lateral (values
      (hourbell.blocker_queue(), e.queue::bigint), (hourbell.blocker_tenant(), e.tenant),
      (hourbell.blocker_target(), e.target)) as s(kind, key)
    where e.fence < l.fence),
  limited as materialized (
    select distinct c.kind, c.key from unnest(these) as c cross join lateral (
      select from hourbell.limits as m where m.kind = c.kind and m.key = c.key and m.max_concurrency is not null offset 0) as m),
  uncounted as materialized (
    select r.* from limited as l join running as r on r.kind = l.kind and r.key = l.key
    where not exists (select from hourbell.limit_holds as h where h.id = r.id and h.kind + 0 = r.kind offset 0)),
  counted as (
    update hourbell.leased as l set limited = true from (select distinct session, fence from uncounted) as u
    where l.session = u.session and l.fence = u.fence),
  noted as (insert into hourbell.limit_holds (kind, key, id) select kind, key, id from uncounted)
  select array_agg(c) into found_some from unnest(these) as c
  where exists (select from uncounted as u where u.kind = c.kind and u.key = c.key);
  over := array(
    select id from unnest(these) as c
    where ahead <= pg_snapshot_xmin(pg_current_snapshot()) and not exists (
      select from unnest(found_some) as f where f.id = c.id));
  insert into hourbell.gate_wakeups (at, kind, key) select p_now, kind, key from unnest(these) where id = any (over);
  delete from hourbell.limit_recounts where id = any (over);
  update hourbell.limit_recounts
  set ahead = coalesce(ahead, pg_snapshot_xmax(pg_current_snapshot())), looked_at = p_now, looks = looks + 1
  where id = any (array(select id from unnest(these)));
end $$;

-- Whether an execution made ready some time ago holds all that the current limits require, and none is exceeded.
create or replace function hourbell.may_start(e hourbell.executions) returns boolean
language sql volatile as $$
  select not exists (
    select from (values
      (hourbell.blocker_queue(), e.queue::bigint), (hourbell.blocker_tenant(), e.tenant),
      (hourbell.blocker_target(), e.target)) as s(kind, key)
    cross join lateral (select * from hourbell.limits as l where l.kind = s.kind and l.key = s.key offset 0) as l
    where hourbell.is_recount_pending(l.kind, l.key)
      or l.max_concurrency < (select count(*) from hourbell.limit_holds as h where h.kind = l.kind and h.key = l.key)
      or hourbell.reservable(l, hourbell.clock()) < 0
      or (l.max_concurrency is not null and not exists (
        select from hourbell.limit_holds as h where h.id = e.id and h.kind + 0 = l.kind offset 0))
      or (l.rate is not null and not exists (
        select from hourbell.rate_reservations as o where o.id = e.id and o.kind + 0 = l.kind offset 0)))
$$;

-- The newest generation of limits.
create or replace function hourbell.generation() returns int
language sql stable as $$
  select coalesce(max(id), 0) from hourbell.limit_generations
$$;

-- Gives back to lanes what was charged for executions that were ready and were not served.
create or replace function hourbell.apply_refunds(p_limit int, p_pass bigint) returns void
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
begin
  with gone as (
    delete from hourbell.tag_refunds where ctid = any (array(
      select ctid from hourbell.tag_refunds limit p_limit for update skip locked)) returning *),
  owed as materialized (
    select g.queue, g.priority, g.tenant, g.n / t.weight as back
    from (select queue, priority, tenant, count(*) as n from gone group by queue, priority, tenant) as g
    cross join lateral (select weight from hourbell.tenants as t where t.id = g.tenant offset 0) as t),
  blocks as materialized (
    select o.queue, o.priority, o.block, l.row, l.tenants, l.lasts
    from (select distinct queue, priority, tenant >> 6 as block from owed) as o
    cross join lateral (
      select ctid as row, tenants, lasts from hourbell.lanes as l
      where l.space = o.queue and l.priority = o.priority and l.block = o.block order by pass desc limit 1) as l),
  old as (delete from hourbell.lanes where ctid = any (array(select row from blocks)))
  insert into hourbell.lanes (space, priority, block, tenants, lasts, pass)
  select b.queue, b.priority, b.block, b.tenants, array(
      select l.last - coalesce(o.back, 0) from unnest(b.tenants, b.lasts) with ordinality as l(tenant, last, pos)
      left join owed as o on o.queue = b.queue and o.priority = b.priority and o.tenant = l.tenant order by l.pos), p_pass
  from blocks as b;
end $$;

-- Applies a changed weight of a tenant. New rows use it at once. For ready and parked rows, the distance of the
-- tenant's tags from the first in line shrinks or stretches, a part of it in each pass, from the end where no tag can
-- be met twice. Rows that arrive meanwhile are placed behind all of them. Returns whether there is more to do.
create or replace function hourbell.retag(p_limit int, p_pass bigint) returns boolean
language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off set enable_mergejoin = off as $$
#variable_conflict use_column
declare
  this hourbell.weight_changes;
  s hourbell.retaggings;
  old float8;
  seen int;
  come_to float8;
begin
  if not exists (select from hourbell.retaggings) then
    -- A client may have stalled in the middle of changing a tenant: its row is skipped.
    select r.* into this from (select * from hourbell.weight_changes order by id offset 0) as r cross join lateral (
      select from hourbell.tenants as t where t.id = r.tenant for no key update skip locked) as t
    limit 1;
    if not found then return false; end if;
    select weight into old from hourbell.tenants where id = this.tenant;
    delete from hourbell.weight_changes where id = this.id;
    update hourbell.tenants set weight = this.weight where id = this.tenant;
    if old <> this.weight then
      insert into hourbell.retaggings (space, priority, tenant, factor, v, last, upto)
      select b.space, b.priority, this.tenant, old / this.weight, b.v, l.last, case when old < this.weight then '-infinity' else 'infinity' end::float8
      from (
        select distinct on (b.space, b.priority) b.space, b.priority, b.tenants, b.lasts, coalesce(
          (select v from hourbell.virtual_time as v where v.queue = b.space and v.priority = b.priority order by pass desc limit 1),
          (select rank - 1 / old from hourbell.parked as p
           where p.kind = b.space >> 56 and p.key = b.space - ((b.space >> 56) << 56) and p.priority = b.priority
           order by rank limit 1)) as v
        from hourbell.lanes as b where b.block = this.tenant >> 6 order by b.space, b.priority, b.pass desc) as b
      cross join lateral unnest(b.tenants, b.lasts) as l(tenant, last)
      where l.tenant = this.tenant and l.last > b.v;
    end if;
  end if;
  select * into s from hourbell.retaggings limit 1;
  if not found then return exists (select from hourbell.weight_changes); end if;

  if s.space < hourbell.tag_space(hourbell.blocker_queue(), 0) then  -- of ready rows
    -- No tag may end up below the virtual time, which has moved since the stretch began.
    if s.factor < 1 then
      s.v := greatest(s.v, (
        select v from hourbell.virtual_time as v where v.queue = s.space and v.priority = s.priority order by pass desc limit 1));
    end if;
    with next as materialized (
      (select tag, ids, ctid as row from hourbell.ready
       where s.factor < 1 and queue = s.space and priority = s.priority and tag > s.upto and tag <= s.last
       order by tag fetch first p_limit rows with ties)
      union all
      (select tag, ids, ctid from hourbell.ready
       where s.factor > 1 and queue = s.space and priority = s.priority and last_tag > s.v and tag <= s.last and tag < s.upto
       order by tag desc fetch first p_limit rows with ties)),
    its as materialized (
      select n.row, i.id from next as n cross join lateral unnest(n.ids) as i(id) cross join lateral (
        select tenant from hourbell.executions as e where e.id = i.id offset 0) as e where e.tenant = s.tenant),
    moved as (
      delete from hourbell.ready where ctid = any (array(
        select ctid from hourbell.ready where ctid = any (array(select row from its)) for update skip locked))
      returning *),
    -- How the tags of a slab are spread is not stored: they are interpolated.
    parts as materialized (
      select m.*, i.id, i.pos, its.id is not null as moves,
        m.tag + (m.last_tag - m.tag) * (i.pos - 1) / greatest(cardinality(m.ids) - 1, 1) as own_tag
      from moved as m cross join lateral unnest(m.ids) with ordinality as i(id, pos) left join its on its.id = i.id),
    put as (
      insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, limited, ids)
      select new.tag, new.tag, generation, task, queue, priority, limited, array[id]
      from parts cross join lateral (select s.v + (own_tag - s.v) * s.factor as tag) as new where moves
      union all
      select min(own_tag), max(own_tag), generation, task, queue, priority, limited, array_agg(id order by pos)
      from parts where not moves group by generation, task, queue, priority, limited, ids)
    select count(*), case when s.factor < 1 then max(tag) else min(tag) end into seen, come_to from next;
  else
    with next as materialized (
      (select rank, id, ctid as row from hourbell.parked
       where s.factor < 1 and kind = s.space >> 56 and key = s.space - ((s.space >> 56) << 56) and priority = s.priority
         and rank > s.upto and rank <= s.last
       order by rank fetch first p_limit rows with ties)
      union all
      (select rank, id, ctid from hourbell.parked
       where s.factor > 1 and kind = s.space >> 56 and key = s.space - ((s.space >> 56) << 56) and priority = s.priority
         and rank > s.v and rank <= s.last and rank < s.upto
       order by rank desc fetch first p_limit rows with ties)),
    moved as (
      delete from hourbell.parked where ctid = any (array(
        select ctid from hourbell.parked where ctid = any (array(
          select n.row from next as n cross join lateral (
            select tenant from hourbell.executions as e where e.id = n.id offset 0) as e where e.tenant = s.tenant))
        for update skip locked))
      returning *),
    put as (
      insert into hourbell.parked (kind, key, priority, rank, id)
      select kind, key, priority, s.v + (rank - s.v) * s.factor, id from moved)
    select count(*), case when s.factor < 1 then max(rank) else min(rank) end into seen, come_to from next;
  end if;

  if seen >= p_limit then
    update hourbell.retaggings set upto = come_to
    where space = s.space and priority = s.priority and tenant = s.tenant;
    return true;
  end if;
  delete from hourbell.retaggings where space = s.space and priority = s.priority and tenant = s.tenant;
  with newest as materialized (
    select ctid as row, block, tenants, lasts from hourbell.lanes as l
    where l.space = s.space and l.priority = s.priority and l.block = s.tenant >> 6 order by pass desc limit 1),
  gone as (
    delete from hourbell.lanes where ctid = any (array(select row from newest)))
  insert into hourbell.lanes (space, priority, block, tenants, lasts, pass)
  select s.space, s.priority, n.block, n.tenants, array(
      select case when l.tenant = s.tenant and l.last = s.last then s.v + (l.last - s.v) * s.factor else l.last end
      from unnest(n.tenants, n.lasts) with ordinality as l(tenant, last, pos) order by l.pos), p_pass
  from newest as n;
  return exists (select from hourbell.retaggings) or exists (select from hourbell.weight_changes);
end $$;
