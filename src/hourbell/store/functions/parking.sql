-- Parking: due executions that may not proceed wait under their blocker, in a fair order, and are taken out when it has
-- room. The rows parked under one blocker are its line. Called by the gate alone, under its lock: `unpark` at the
-- beginning of a pass, `apply_limits` for what is due (`acquire_keys`, then per blocker `followers_of`, `park` and
-- `wake_after_parking`).
-- Example: tenant 7 may run 3 at once and has 5 due executions. `apply_limits` lets 3 of them proceed, which take a row
-- of `limit_holds` each, and parks 2 under (tenant, 7). When one of the 3 has ended, `unpark` takes the first of the 2
-- out, and `apply_limits` lets it proceed.

-- Takes rows that may proceed out of `parked`: for every blocker with a wake-up, as many as it has room for, in order.
-- They are returned as due rows whose `flags` say for what they were parked; the gate checks them again.
create or replace function hourbell.unpark(p_now timestamptz, p_limit int, p_lowest_first boolean)
returns hourbell.due[]
language plpgsql set plan = lookups_by_hash as $$
#variable_conflict use_column
declare
  kinds smallint[]; keys bigint[];
  serving hourbell.sessions[];
  queues bigint[];  -- queues with a wake-up: their sessions may have opened or ended
  served_tasks bigint[];  -- blockers of the kind `blocker_task`
  share int;
  rooms int[];
  counts int[];
  taken hourbell.due[];
begin
  with popped as (
    delete from hourbell.gate_wakeups where ctid = any (array(
      select ctid from hourbell.gate_wakeups
      where at <= p_now and kind <> hourbell.blocker_failure()  -- that one is for `retry_failed`
      order by at limit p_limit for update skip locked))
    returning kind, key)
  select array_agg(kind order by kind, key), array_agg(key order by kind, key) into kinds, keys
  from (select distinct kind, key from popped) as news;
  if kinds is null then return '{}'; end if;
  serving := hourbell.serving_sessions();  -- read after the wake-ups: never older than they are
  queues := array(select key from unnest(kinds, keys) as n(kind, key) where kind = hourbell.blocker_queue());
  if queues <> '{}' then
    served_tasks := hourbell.adapt_to_workers(queues, serving, p_limit, p_now);
    select array_agg(kind order by kind, key), array_agg(key order by kind, key) into kinds, keys
    from (
      select kind, key from unnest(kinds, keys) as n(kind, key)
      union  -- each once: a row parked under a blocker would be picked once per duplicate
      select hourbell.blocker_task(), key from unnest(served_tasks) as t(key)) as n(kind, key);
  end if;
  share := greatest(p_limit / cardinality(kinds), 1);  -- a blocker with many rows does not delay the others

  -- How many rows each blocker has room for. 1000 and 1000000 stand for any number: the overlap policy of a job is
  -- checked again anyway, and a blocker without a limit no longer blocks (its limit was deleted, or a worker has come).
  select array_agg(room order by pos) into rooms
  from (
    select pos, case
      when n.kind = hourbell.blocker_job() then 1000
      when n.kind = hourbell.blocker_concurrency_key() then (
        select e.key_limit from (
          select id from hourbell.parked as p where p.kind = hourbell.blocker_concurrency_key() and p.key = n.key
          order by p.priority, p.rank, p.id limit 1) as p
        cross join lateral (select key_limit from hourbell.executions as e where e.id = p.id offset 0) as e)
        - (
          select count(*) from hourbell.limit_holds as h
          where h.kind = hourbell.blocker_concurrency_key() and h.key = n.key)
      when n.kind = hourbell.blocker_queue() and not hourbell.is_queue_served(serving, n.key) then 0
      when n.kind = hourbell.blocker_task() and hourbell.lacks_task(serving, n.key) then 0
      else coalesce((
        select hourbell.limit_room(l, p_now) from hourbell.limits as l where l.kind = n.kind and l.key = n.key),
          1000000)
    end::int as room
    from unnest(kinds, keys) with ordinality as n(kind, key, pos)) as known;

  -- With p_lowest_first the least urgent go first, so that they make progress too.
  with picked as materialized (
    select n.pos, p.row, p.id
    from unnest(kinds, keys, rooms) with ordinality as n(kind, key, room, pos)
    left join lateral (
      select priority from hourbell.parked as p
      where p.kind = n.kind and p.key = n.key and p_lowest_first
        and n.kind not in (hourbell.blocker_concurrency_key(), hourbell.blocker_job())
      order by p.priority desc limit 1) as least_urgent on true
    cross join lateral (
      select ctid as row, id from hourbell.parked as p
      where p.kind = n.kind and p.key = n.key and p.priority >= coalesce(least_urgent.priority, 0)
      order by p.priority, p.rank, p.id limit least(n.room, share) for update skip locked) as p
    where n.room > 0),
  gone as (
    delete from hourbell.parked where ctid = any (array(select row from picked)) returning kind, id)
  select array_agg(row(e.run_at, e.id, e.tenant, e.queue, e.priority,
      hourbell.flags_of(e.overlap, e.crashes) + hourbell.flags_parked(g.kind), e.target, e.key)::hourbell.due
      order by p.pos, p.id),
    array(
      select count(p.pos)::int from unnest(kinds) with ordinality as n(kind, pos) left join picked as p on p.pos = n.pos
      group by n.pos order by n.pos)
  into taken, counts
  from gone as g join picked as p on p.id = g.id cross join lateral (
    select * from hourbell.executions as e where e.id = g.id offset 0) as e;

  -- Blockers with room that still have parked rows are checked again: at once if there were too many rows, a little
  -- later if the rows are locked, and under a rate limit when it can reserve more.
  insert into hourbell.gate_wakeups (at, kind, key)
  select case when n.room <= n.taken then hourbell.next_reservation_at(n.kind, n.key, p_now)
      when n.taken >= share then p_now else p_now + interval '100 milliseconds' end, n.kind, n.key
  from unnest(kinds, keys, rooms, counts) as n(kind, key, room, taken)
  where exists (select from hourbell.parked as p where p.kind = n.kind and p.key = n.key offset 0)
    and (n.room > n.taken or (
      n.kind = any (hourbell.limit_kinds()) and hourbell.next_reservation_at(n.kind, n.key, p_now) is not null));
  return coalesce(taken, '{}');
end $$;

-- Filters due executions of one priority by keys, workers and limits. Those that may proceed are returned, and take
-- what they need: rows of `limit_holds` and `rate_reservations`. The others are parked under the first blocker that
-- stops them. `flags` of an execution that proceeds has `flag_limited` if it holds something.
-- The concurrency key is checked first, and an execution keeps it while it is parked. Then come task, target, tenant
-- and queue. Holds of the last three are taken at the end, by executions that have passed all checks, so none waits for
-- one limit while it holds another.
-- Nothing overtakes a line: if rows of this or a more urgent priority are parked under a blocker (waited_for), newly
-- due rows are parked behind them, even if there is room. Rows that were just taken out of that line may use the room,
-- and so may those from the line of a later check, which have passed this one before.
create or replace function hourbell.apply_limits(
  p_rows hourbell.due[], p_priority smallint, p_serving hourbell.sessions[], p_now timestamptz, p_pass bigint
) returns hourbell.due[]
language plpgsql set plan = lookups_by_hash as $$
#variable_conflict use_column
declare
  proceeding hourbell.due[] := hourbell.acquire_keys(p_rows, p_now);
  blocked_rows hourbell.due[];
  blocker smallint;
  keys bigint[]; rooms int[]; waited_for boolean[];  -- of blockers of this kind that may stop some of them
begin
  foreach blocker in array array[
    hourbell.blocker_task(), hourbell.blocker_target(), hourbell.blocker_tenant(), hourbell.blocker_queue()]
  loop
    select array_agg(l.key), array_agg(l.room), array_agg(l.waited_for) into keys, rooms, waited_for
    from (
      select s.key, s.n, case
          when l.key is null or (
            blocker = hourbell.blocker_queue() and not hourbell.is_queue_served(p_serving, s.key)) then 0
          else hourbell.limit_room(l, p_now) end as room,
        exists (
          select from hourbell.parked as p
          where p.kind = blocker and p.key = s.key and p.priority <= p_priority offset 0) as waited_for
      from (
        select hourbell.blocker_key_of(blocker, queue, tenant, target, key) as key, count(*) as n
        from unnest(proceeding) group by 1) as s
      left join lateral (select * from hourbell.limits as l where l.kind = blocker and l.key = s.key) as l on true
      where s.key is not null and (l.key is not null
        or (blocker = hourbell.blocker_queue() and not hourbell.is_queue_served(p_serving, s.key))
        or (blocker = hourbell.blocker_task() and hourbell.lacks_task(p_serving, s.key)))
      offset 0) as l
    where l.waited_for or l.room < l.n;
    continue when keys is null;
    with candidates as materialized (
      select r, hourbell.blocker_key_of(blocker, r.queue, r.tenant, r.target, r.key) as key, row_number() over () as pos
      from unnest(proceeding) as r),
    limited as materialized (
      select * from unnest(keys, rooms, waited_for) as l(key, room, waited_for)),
    fit as (
      select (r).id, l.room >= row_number() over (partition by l.key order by pos) as fits
      from candidates as c join limited as l using (key)
      -- A later check has a lower number: see codes.sql.
      where not l.waited_for or hourbell.parked_for((c.r).flags) between hourbell.blocker_queue() and blocker)
    select array_agg(r order by pos) into blocked_rows from candidates as c join limited as l using (key)
    where (c.r).id not in (select id from fit where fits);
    continue when blocked_rows is null;
    proceeding := array(select r from unnest(proceeding) as r where id not in (select id from unnest(blocked_rows)));
    blocked_rows := blocked_rows || hourbell.followers_of(blocker, blocked_rows, p_priority);
    perform hourbell.park(blocker, blocked_rows, p_priority, p_pass);
    perform hourbell.wake_after_parking(blocker, blocked_rows, p_now);
  end loop;

  return hourbell.take_holds(proceeding);
end $$;

-- Takes the holds and reservations that due executions need, all of which may proceed. Returns them, with
-- `flag_limited` for those that hold something. Called by `apply_limits`, whose plan settings apply.
create or replace function hourbell.take_holds(p_rows hourbell.due[]) returns hourbell.due[]
language plpgsql as $$
#variable_conflict use_column
declare proceeding hourbell.due[];
begin
  with known as materialized (
    select l as limit, l.kind, l.key
    from (
      select distinct hourbell.blocker_queue() as kind, queue::bigint as key from unnest(p_rows)
      union all select distinct hourbell.blocker_tenant(), tenant from unnest(p_rows)
      union all select distinct hourbell.blocker_target(), target from unnest(p_rows) where target is not null) as s
    cross join lateral (select * from hourbell.limits as l where l.kind = s.kind and l.key = s.key offset 0) as l),
  limited as materialized (
    select l.limit, s.id
    from (
      select hourbell.blocker_queue() as kind, queue::bigint as key, id from unnest(p_rows)
      union all select hourbell.blocker_tenant(), tenant, id from unnest(p_rows)
      union all select hourbell.blocker_target(), target, id from unnest(p_rows) where target is not null) as s
    join known as l on l.kind = s.kind and l.key = s.key),
  holding as (
    insert into hourbell.limit_holds (kind, key, id)
    select (l.limit).kind, (l.limit).key, id from limited as l where (l.limit).max_concurrency is not null),
  reserved as (
    insert into hourbell.rate_reservations (kind, key, id)
    select (l.limit).kind, (l.limit).key, id from limited as l where (l.limit).rate is not null)
  select array_agg(row(r.run_at, r.id, r.tenant, r.queue, r.priority,
      (r.flags & (hourbell.flag_overlap() | hourbell.flag_suspect())) + case
        when r.key is not null or r.id in (select id from limited) then hourbell.flag_limited() else 0 end,
      r.target, r.key)::hourbell.due order by r.pos)
  into proceeding
  from unnest(p_rows) with ordinality as r(run_at, id, tenant, queue, priority, flags, target, key, pos);
  return coalesce(proceeding, '{}');
end $$;

-- Filters due executions by concurrency key. Those that may proceed are returned, and get a hold of their key (a row of
-- `limit_holds`), unless they still have it; the others are parked. Holds are given in the order of the due times,
-- whatever the priorities, and parked executions go before newly due ones.
-- Example: three executions of key K, which allows one at once, are due at 10:00, 10:01 and 10:02. The first gets the
-- hold; the others are parked in this order. It keeps the hold while it is retried, until it has ended.
-- p_rows may have only a part of what is due: an earlier execution of the key may still be in `due`, because the pass
-- has reached its bound or because a lower priority comes later. Then the hold is left to that one.
create or replace function hourbell.acquire_keys(p_rows hourbell.due[], p_now timestamptz) returns hourbell.due[]
language plpgsql set plan = lookups_by_hash as $$
#variable_conflict use_column
declare blocked_rows hourbell.due[];
begin
  if not exists (select from unnest(p_rows) where key is not null) then return p_rows; end if;
  with candidates as materialized (
    select r, k.most, k.holding from unnest(p_rows) as r
    cross join lateral (
      select e.key_limit as most,
        exists (
          select from hourbell.limit_holds as h
          where h.id = e.id and h.kind + 0 = hourbell.blocker_concurrency_key() offset 0) as holding
      from hourbell.executions as e where e.id = r.id offset 0) as k
    where (r).key is not null),
  used as materialized (
    select key,
      (
        select count(*) from hourbell.limit_holds as h
        where h.kind = hourbell.blocker_concurrency_key() and h.key = k.key) as n,
      exists (
        select from hourbell.parked as p
        where p.kind = hourbell.blocker_concurrency_key() and p.key = k.key offset 0) as waited_for,
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
        case when (found.run_at, found.id) < (k.first_at, k.first_id) then earlier.run_at
          else found.run_at end as run_at,
        case when (found.run_at, found.id) < (k.first_at, k.first_id) then earlier.id else found.id end as id) as d),
  fit as (
    select (r).id, u.key, bool_and(
        u.n + nth <= most and (u.next_id is null or ((r).run_at, (r).id) < (u.next_at, u.next_id))) over (
      partition by u.key order by (r).run_at, (r).id) as fits
    from (
      select c.*, row_number() over (partition by (c.r).key order by (c.r).run_at, (c.r).id) as nth
      from candidates as c where not c.holding) as c
    join used as u on u.key = (c.r).key
    where not u.waited_for or hourbell.parked_for((c.r).flags) = hourbell.blocker_concurrency_key()),
  taken as (
    insert into hourbell.limit_holds (kind, key, id)
    select hourbell.blocker_concurrency_key(), key, id from fit where fits),
  -- Keys with room whose executions are parked anyway are checked again.
  again as (
    insert into hourbell.gate_wakeups (at, kind, key)
    select distinct p_now + interval '10 milliseconds', hourbell.blocker_concurrency_key(), u.key
    from candidates as c join used as u on u.key = (c.r).key
    left join (select key, count(*) as n from fit where fits group by key) as f on f.key = u.key
    where not c.holding and (c.r).id not in (select id from fit where fits) and u.n + coalesce(f.n, 0) < c.most)
  select array_agg(r) into blocked_rows from candidates
  where not holding and (r).id not in (select id from fit where fits);
  if blocked_rows is null then return p_rows; end if;
  insert into hourbell.parked (kind, key, priority, rank, id)
  select hourbell.blocker_concurrency_key(), r.key, 0, extract(epoch from r.run_at), r.id
  from unnest(blocked_rows) as r;
  perform hourbell.wake_after_parking(hourbell.blocker_concurrency_key(), blocked_rows, p_now);
  return array(select r from unnest(p_rows) as r where id not in (select id from unnest(blocked_rows)));
end $$;

-- Parks rows of one priority, each under its blocker of a kind that is not a concurrency key. The order in a line is
-- fair: the rank of a row is a tag in a space of its own (`tag`).
create or replace function hourbell.park(
  p_kind smallint, p_rows hourbell.due[], p_priority smallint, p_pass bigint
) returns void
language plpgsql set plan = lookups_unsorted as $$
#variable_conflict use_column
declare
  spaces bigint[];
  known bigint[];
  floors float8[];
begin
  spaces := array(
    select hourbell.tag_space(p_kind, hourbell.blocker_key_of(p_kind, queue, tenant, target, key)) from unnest(p_rows));
  -- With an empty line, restart from the highest tag handed out so far.
  select array_agg(s.space), array_agg(coalesce(p.rank, (
    select max(last) from hourbell.lanes as l cross join lateral unnest(l.lasts) as last
    where l.space = s.space and l.priority = p_priority), 0)) into known, floors
  from (select distinct unnest(spaces) as space) as s
  left join lateral (
    select rank from hourbell.parked as p
    where p.kind = p_kind and p.key = s.space - hourbell.tag_space(p_kind, 0) and p.priority = p_priority
    order by rank limit 1) as p on true;
  insert into hourbell.parked (kind, key, priority, rank, id)
  select p_kind, spaces[pos] - hourbell.tag_space(p_kind, 0), p_priority, tag, (p_rows[pos]).id
  from hourbell.tag(spaces, array(select tenant from unnest(p_rows)), p_priority, known, floors, p_pass) as t
  cross join lateral unnest(t.positions, t.tags) as r(pos, tag);
end $$;

-- These rows have reached the head of one line only to be stopped by another blocker (p_kind). Takes the rows behind
-- them in the first line that the same blocker would stop, up to 1000 per line, so that they are parked together with
-- them: one by one, a million of them would keep the gate busy for hours.
create or replace function hourbell.followers_of(p_kind smallint, p_rows hourbell.due[], p_priority smallint)
returns hourbell.due[]
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare followers hourbell.due[];
begin
  with lines as materialized (
    select distinct hourbell.parked_for(flags) as kind,
      hourbell.blocker_key_of(hourbell.parked_for(flags), queue, tenant, target, key) as key,
      hourbell.blocker_key_of(p_kind, queue, tenant, target, key) as blocked
    from unnest(p_rows)
    where hourbell.parked_for(flags) = any (hourbell.limit_kinds())
      and (p_kind = hourbell.blocker_task() or hourbell.parked_for(flags) > p_kind)),
  picked as materialized (
    select p.row, e.executions as e, l.kind
    from lines as l
    cross join lateral (
      select ctid as row, id from hourbell.parked as p
      where p.kind = l.kind and p.key = l.key and p.priority = p_priority
      order by p.rank, p.id limit 1000 for update skip locked) as p
    cross join lateral (select e as executions from hourbell.executions as e where e.id = p.id offset 0) as e
    where l.blocked = hourbell.blocker_key_of(
      p_kind, (e.executions).queue, (e.executions).tenant, (e.executions).target, (e.executions).key)),
  gone as (delete from hourbell.parked where ctid = any (array(select row from picked)) returning id)
  select array_agg(row((e).run_at, (e).id, (e).tenant, (e).queue, (e).priority,
      hourbell.flags_of((e).overlap, (e).crashes) + hourbell.flags_parked(kind), (e).target, (e).key)::hourbell.due)
  into followers from picked where exists (select from gone where gone.id = (e).id);
  return coalesce(followers, '{}');
end $$;

-- Inserts the wake-ups that parking these rows under blockers of a kind requires. A rate limit gets one for the time
-- when it can reserve more. A row that was counted at one limit and then stopped by another has left room at the first,
-- so the first gets one too.
create or replace function hourbell.wake_after_parking(p_kind smallint, p_rows hourbell.due[], p_now timestamptz)
returns void
language sql set plan = lookups as $$
  insert into hourbell.gate_wakeups (at, kind, key)
  select w.at, s.kind, s.key
  from (
    select distinct p_kind as kind, hourbell.blocker_key_of(p_kind, r.queue, r.tenant, r.target, r.key) as key
    from unnest(p_rows) as r where p_kind = any (hourbell.limit_kinds())) as s
  cross join lateral (select hourbell.next_reservation_at(s.kind, s.key, p_now) as at) as w
  where w.at is not null and not exists (
    select from hourbell.gate_wakeups as p where p.kind = s.kind and p.key = s.key and p.at <= w.at offset 0)
  union all
  select p_now, s.kind, s.key
  from (
    select distinct k.kind, hourbell.blocker_key_of(k.kind, r.queue, r.tenant, r.target, r.key) as key
    from unnest(p_rows) as r
    cross join unnest(hourbell.limit_kinds()) as k(kind)
    where k.kind <> p_kind and (k.kind > p_kind or k.kind = hourbell.parked_for(r.flags))) as s
  where exists (select from hourbell.parked as p where p.kind = s.kind and p.key = s.key offset 0)
$$;
