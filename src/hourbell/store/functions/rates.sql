-- Rate limits. A start takes a token out of its bucket at the moment of the start, so at most rate * T + burst
-- executions start in any T seconds. The claim decides that moment (`start_rate_limited`): at once if there is a token,
-- otherwise when the next token arrives, up to `lead_seconds` ahead. The worker waits for that moment, so the time
-- taken by the gate, the notification and the claim is not lost, even with a burst of 1. The gate makes no more
-- reservations than can start within `lead_seconds`. A reservation takes no token; the claim does, however late. Order:
-- the gate asks how many it may reserve (`reservable`, by `limit_room`), inserts `rate_reservations` (`apply_limits`)
-- and wakes itself for the next ones (`next_reservation_at`); a claim turns reservations into starts
-- (`start_rate_limited`). Example: rate 10, burst 1, the bucket has just become empty. The gate reserves two
-- executions, which can start within 0.25 s; a claim of both starts them 0.1 s and 0.2 s from now.

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
    select level, at from hourbell.rate_buckets as b where b.kind = l.kind and b.key = l.key
    order by pass desc limit 1) as b on true
$$;

-- How many more reservations the gate may make at p_now: what can start within `lead_seconds`, minus those not claimed
-- yet.
create or replace function hourbell.reservable(l hourbell.limits, p_now timestamptz) returns float8
language sql stable as $$
  select hourbell.tokens(l, p_now) + l.rate * hourbell.lead_seconds()
    - (select count(*) from hourbell.rate_reservations as o where o.kind = l.kind and o.key = l.key)
    + 1e-6  -- for rounding
$$;

-- The earliest time at which the next row parked under a rate limit can start; null: it is no rate limit.
create or replace function hourbell.next_token_at(p_kind smallint, p_key bigint, p_now timestamptz) returns timestamptz
language sql stable as $$
  select p_now + make_interval(secs => greatest(1 + o.n - hourbell.tokens(l, p_now), 0) / l.rate)
  from hourbell.limits as l
  cross join lateral (select count(*) as n from hourbell.rate_reservations as o
    where o.kind = l.kind and o.key = l.key) as o
  where l.kind = p_kind and l.key = p_key and l.rate is not null
$$;

-- When the gate checks again what is parked under a rate limit: as soon as it can reserve one more, or as many as
-- arrive in 50 ms if that is more. Null: it is no rate limit.
create or replace function hourbell.next_reservation_at(p_kind smallint, p_key bigint, p_now timestamptz)
returns timestamptz
language sql stable as $$
  select p_now + make_interval(secs => greatest(
    (greatest(floor(l.rate * 0.05), 1) - (o.n - floor(o.n))) / l.rate, 0.005))
  from hourbell.limits as l
  cross join lateral (select hourbell.reservable(l, p_now) as n) as o
  where l.kind = p_kind and l.key = p_key and l.rate is not null
$$;

-- Starts executions that a session has just claimed under rate limits: each takes its tokens, and `claimed_at` becomes
-- the moment of its start; each is a slab of its own, and none has a fence below p_least_fence. p_same_start: all of
-- them start at the same moment. Returns whether any has to wait for its start.
-- Buckets are locked until the commit, in a fixed order; the caller takes no other lock after this.
create or replace function hourbell.start_rate_limited(
  p_session bigint, p_ids bigint[], p_least_fence bigint, p_now timestamptz, p_same_start boolean
) returns boolean
language plpgsql set plan = lookups_unsorted as $$
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
    select * from hourbell.limits where rate is not null and (kind, key) in (select kind, key from unnest(taken))
    order by kind, key
  loop
    perform pg_advisory_xact_lock(hourbell.tag_space(l.kind, l.key));
    buckets := buckets || l;
  end loop;
  -- Read under the lock, so that it is not before what is already written; not the caller's time, which may be old.
  now := greatest(p_now, hourbell.clock());
  insert into hourbell.gate_wakeups (at, kind, key) select distinct now, kind, key from unnest(taken);

  for round in 1 .. case when p_same_start then 2 else 1 end loop
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
create or replace function hourbell.write_bucket(p_kind smallint, p_key bigint, p_level float8, p_at timestamptz)
returns void
language sql set plan = lookups as $$
  with old as (
    delete from hourbell.rate_buckets where ctid = any (array(
      select ctid from hourbell.rate_buckets where kind = p_kind and key = p_key order by pass desc limit 1)))
  insert into hourbell.rate_buckets (kind, key, level, at, pass)
  values (p_kind, p_key, p_level, p_at, nextval('hourbell.passes'))
$$;

-- Buckets whose level is as of a later moment than now, because the clock was set back, fill again from now on:
-- otherwise they would get no token until that moment. Called by the gate. Locks buckets as `start_rate_limited` does.
create or replace function hourbell.reset_buckets() returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare b record;
begin
  for b in select distinct kind, key from hourbell.rate_buckets where at > hourbell.clock() order by kind, key loop
    perform pg_advisory_xact_lock(hourbell.tag_space(b.kind, b.key));
    perform hourbell.write_bucket(b.kind, b.key, newest.level, hourbell.clock())
    from (
      select level, at from hourbell.rate_buckets as r where r.kind = b.kind and r.key = b.key
      order by pass desc limit 1) as newest
    where newest.at > hourbell.clock();
  end loop;
end $$;

-- Of executions that hold limits, in the order of their turn: those for which a rate limit has no token at p_now.
create or replace function hourbell.without_token(p_ids bigint[], p_now timestamptz) returns bigint[]
language plpgsql set plan = lookups_unsorted as $$
begin
  return array(
    select w.id
    from (
      select h.id, h.pos, o.kind, o.key, row_number() over (partition by o.kind, o.key order by h.pos) as nth
      from unnest(p_ids) with ordinality as h(id, pos)
      cross join lateral (select kind, key from hourbell.rate_reservations as o where o.id = h.id offset 0) as o) as w
    cross join lateral (
      select hourbell.tokens(l, p_now) as n from hourbell.limits as l
      where l.kind = w.kind and l.key = w.key and l.rate is not null offset 0) as tokens
    group by w.id, w.pos having bool_or(w.nth > tokens.n + 1e-6) order by w.pos);
end $$;
