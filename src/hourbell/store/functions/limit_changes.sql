-- Changed limits: what happens to executions that are ready or running when a limit is set or changed.
-- Setting a limit adds a generation and a row of `limit_recounts`. The gate counts what is running (`recount_running`),
-- and the limit admits nothing until that is done (`is_recount_pending`). Each ready slab has the generation in which
-- it was admitted: a claim that takes an older one checks its executions again (`may_start`, by `readmit`).
-- Example: 5 executions of tenant 7 run, and 1,000 are ready, when a limit of 3 is set. The gate counts 5, so
-- `limit_room` is 0. The next claim takes 10 of the 1,000, finds that none may start, and returns them to the gate;
-- `readmit_next` does the same for those behind them. The gate parks all of them.

-- The newest generation of limits.
create or replace function hourbell.generation() returns int
language sql stable as $$
  select coalesce(max(id), 0) from hourbell.limit_generations
$$;

-- Whether a limit was set and the executions running under it are not counted yet. Until then it admits none.
create or replace function hourbell.is_recount_pending(p_kind smallint, p_key bigint) returns boolean
language sql stable as $$
  select exists (
    select from hourbell.limit_recounts as c where c.kind = p_kind and c.key = p_key and c.looked_at is null)
$$;

-- Counts running executions under newly set limits. A claim in progress may not have seen a limit, so this is repeated
-- until every transaction of that time has ended. Ready rows are checked by their claim (`may_start`).
create or replace function hourbell.recount_running(p_now timestamptz) returns void
language plpgsql set plan = lookups_unsorted as $$
#variable_conflict use_column
declare
  these hourbell.limit_recounts[];
  found_some hourbell.limit_recounts[];  -- those of `these` for which uncounted executions were found
  over bigint[];  -- those that are complete
  slabs tid[];
  skipped boolean := false;  -- some slabs were locked
  -- A number that is assigned after a limit was seen is higher than those of all transactions that have not seen it. If
  -- this transaction has one already, the next recount stores its own.
  unnumbered constant boolean := pg_current_xact_id_if_assigned() is null;
  lock_timeout_before constant text := current_setting('lock_timeout');
begin
  these := array(
    select c from hourbell.limit_recounts as c
    -- At growing intervals, up to 5 s: a transaction may stay open for hours.
    where looked_at is null or not looked_at between p_now - least(looks, 50) * interval '100 milliseconds' and p_now
    order by looked_at nulls first, id limit 1000 for update skip locked);
  if these = '{}' then return; end if;
  -- A transaction that ends one of the executions waits until this commits, and then sees that its slab is `limited`.
  -- A settle locks a slab for milliseconds. If one is locked for longer, the next recount counts what runs in it.
  begin
    perform set_config('lock_timeout', '50ms', true);
    slabs := array(select ctid from hourbell.leased order by session, fence for update);
  exception when lock_not_available then
    slabs := array(select ctid from hourbell.leased order by session, fence for update skip locked);
    skipped := true;
  end;
  perform set_config('lock_timeout', lock_timeout_before, true);
  with running as materialized (
    select l.slab, e.id, s.kind, s.key
    from (select ctid as slab, unnest(ids) as id from hourbell.leased where ctid = any (slabs) offset 0) as l
    cross join lateral (select * from hourbell.executions as e where e.id = l.id offset 0) as e
    cross join lateral (values
      (hourbell.blocker_queue(), e.queue::bigint), (hourbell.blocker_tenant(), e.tenant),
      (hourbell.blocker_target(), e.target)) as s(kind, key)
    where not exists (select from hourbell.outcomes as o where o.id = l.id offset 0)),
  limited as materialized (
    select distinct c.kind, c.key from unnest(these) as c cross join lateral (
      select from hourbell.limits as m where m.kind = c.kind and m.key = c.key
        and m.max_concurrency is not null offset 0) as m),
  uncounted as materialized (
    select r.* from limited as l join running as r on r.kind = l.kind and r.key = l.key
    where not exists (select from hourbell.limit_holds as h where h.id = r.id and h.kind + 0 = r.kind offset 0)),
  counted as (
    update hourbell.leased as l set limited = true where l.ctid = any (array(select slab from uncounted))),
  noted as (insert into hourbell.limit_holds (kind, key, id) select kind, key, id from uncounted)
  select array_agg(c) into found_some from unnest(these) as c
  where exists (select from uncounted as u where u.kind = c.kind and u.key = c.key);
  over := array(
    select id from unnest(these) as c
    where not skipped and ahead <= pg_snapshot_xmin(pg_current_snapshot()) and not exists (
      select from unnest(found_some) as f where f.id = c.id));
  insert into hourbell.gate_wakeups (at, kind, key) select p_now, kind, key from unnest(these) where id = any (over);
  delete from hourbell.limit_recounts where id = any (over);
  update hourbell.limit_recounts
  set ahead = case when ahead is null and unnumbered then pg_current_xact_id() else ahead end,
    looked_at = p_now, looks = looks + 1
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

-- Checks executions that were made ready under older limits and have been taken out of `ready`. Those that may no
-- longer start go through the gate again. Executions that have to end anyway are left to their claim. Returns the ids
-- sent back.
create or replace function hourbell.readmit(p_ids bigint[], p_now timestamptz) returns bigint[]
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare back bigint[];
begin
  if p_ids = '{}' then return '{}'; end if;
  with stopped as (
    update hourbell.executions as e set run_at = p_now
    where e.id = any (p_ids) and not hourbell.may_start(e)
      and not exists (select from hourbell.cancellations as c where c.id = e.id offset 0)
      and (e.job is null or exists (
        select from hourbell.jobs as j where j.id = e.job and e.version >= j.valid_from offset 0))
      and (e.start_by is null or e.attempt > 0 or e.start_by >= p_now) and (e.finish_by is null or e.finish_by >= p_now)
    returning e.id, e.queue, e.priority, e.tenant),
  refunded as (insert into hourbell.tag_refunds (queue, priority, tenant) select queue, priority, tenant from stopped)
  select array_agg(id) into back from stopped;
  if back is null then return '{}'; end if;
  perform hourbell.release_limits(back, false, p_now);
  perform hourbell.requeue(back);
  return back;
end $$;

-- Called after a claim took rows that may no longer start: a million more may follow. Sends the next such rows in the
-- queues of the session back at once, up to 1000 per queue and priority, so that rows that may start do not wait behind
-- them.
create or replace function hourbell.readmit_next(p_session bigint, p_now timestamptz) returns void
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  newest constant int := hourbell.generation();
  stale hourbell.ready[];
  back bigint[];
begin
  with places as materialized (
    select r.row from hourbell.sessions as s cross join lateral unnest(hourbell.queues_of(s)) as q(queue)
    cross join unnest('{0,1,2,3}'::smallint[]) as p(priority)
    cross join lateral (
      select v from hourbell.virtual_time as v where v.queue = q.queue and v.priority = p.priority
      order by pass desc limit 1) as v
    cross join lateral (
      select ctid as row, generation,
        sum(cardinality(ids)) over (order by tag rows unbounded preceding) - cardinality(ids) as before
      from (
        select ctid, generation, tag, ids from hourbell.ready as r
        where r.queue = q.queue and r.priority = p.priority and r.tag >= v.v order by r.tag limit 1000) as r) as r
    where s.id = p_session and r.generation < newest and r.before < 1000),
  taken as (
    delete from hourbell.ready where ctid = any (array(
      select ctid from hourbell.ready where ctid = any (array(select row from places)) for update skip locked))
    returning ready)
  select array_agg(ready) into stale from taken;
  if stale is null then return; end if;
  back := hourbell.readmit(array(select i.id from unnest(stale) as s cross join lateral unnest(s.ids) as i(id)), p_now);
  -- Those that may start under the current limits are put back.
  insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, limited, ids)
  select s.tag, s.last_tag, s.generation, s.task, s.queue, s.priority, s.limited, r.ids
  from unnest(stale) as s cross join lateral (
    select array_agg(i.id order by i.pos) as ids from unnest(s.ids) with ordinality as i(id, pos)
    where not i.id = any (back)) as r
  where r.ids is not null;
end $$;
