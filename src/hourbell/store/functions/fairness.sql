-- Fairness: the order in which ready and parked executions of different tenants are served.
-- Every execution gets a tag, a number in the virtual time of its space: a queue and priority, or a blocker and
-- priority. Smaller tags are served first. A tenant's next tag is 1 / weight after its last one, but not before the
-- virtual time, so tenants share by weight and a tenant that was idle starts level with the others.
-- Order, all by the gate under its lock: `apply_refunds` and `retag` (changed weights) at the beginning of a pass,
-- `tag` from `make_ready` and `park`, `move_virtual_time` at its end.
-- Example: the virtual time is 100. Tenant A (weight 1) gets the tags 101, 102, 103; B (weight 2) gets 100.5, 101,
-- 101.5.

-- The tag space of rows parked by a blocker. The tag space of the ready rows of a queue is the queue's number.
create or replace function hourbell.tag_space(p_kind smallint, p_key bigint) returns bigint
language sql immutable
return (p_kind::bigint << 56) + p_key;

-- Tags rows of one priority: p_spaces and p_tenants are in the order of the rows, and tags[k] belongs to the row
-- positions[k], counted from 1. p_spaces has a single element if all rows are in one space. Each tenant continues in
-- its lane from its last tag, but never below the floor of the space (p_floors[k] of p_known[k]): the virtual time, or
-- for parked rows the first tag in the line. A step is 1 / weight. A row of `lanes` stores 64 tenants, and only lanes
-- above the floor are kept, so ten thousand tenants cost little more than ten.
create or replace function hourbell.tag(
  p_spaces bigint[], p_tenants int[], p_priority smallint, p_known bigint[], p_floors float8[], p_pass bigint,
  out positions int[], out tags float8[]
)
language plpgsql set plan = lookups_unsorted
-- The planner expects 8 kB for each array that is collected, and by default writes a thousand groups and more to disk.
set work_mem = '64MB' as $$
#variable_conflict use_column
declare weighted constant boolean := exists (select from hourbell.tenants where weight <> 1);
begin
  with turns as materialized (
    select coalesce(space, p_spaces[1]) as space, tenant, array_agg(pos) as positions
    from (
      select unnest(p_spaces) as space, unnest(p_tenants) as tenant,
        generate_series(1, cardinality(p_tenants)) as pos) as r
    group by 1, 2),
  blocks as materialized (
    select b.space, b.block, f.floor, old.row, old.tenants, old.lasts
    from (select distinct space, tenant >> 6 as block from turns) as b
    join unnest(p_known, p_floors) as f(space, floor) using (space)
    left join lateral (
      select tenants, lasts, ctid as row from hourbell.lanes as l
      where l.space = b.space and l.priority = p_priority and l.block = b.block
      order by pass desc limit 1) as old on true),
  lasts as materialized (
    select l.space, l.tenant, l.last
    from (select space, floor, unnest(tenants) as tenant, unnest(lasts) as last from blocks) as l
    where l.last > l.floor),
  lanes as materialized (
    select space, tenant, coalesce(l.last, f.floor) as base, t.positions, case
        when not weighted then 1
        when t.positions is not null
          then (select 1 / w.weight from hourbell.tenants as w where w.id = tenant) end as step
    from lasts as l full join turns as t using (space, tenant)
    join unnest(p_known, p_floors) as f(space, floor) using (space)),
  gone as (delete from hourbell.lanes where ctid = any (array(select row from blocks where row is not null))),
  remembered as (
    insert into hourbell.lanes (space, priority, block, tenants, lasts, pass)
    select space, p_priority, tenant >> 6, array_agg(tenant),
      array_agg(base + coalesce(cardinality(positions) * step, 0)), p_pass
    from lanes group by space, tenant >> 6)
  -- Set-returning functions in a select list advance in step, and take half the time that they take in `from`.
  select array_agg(pos), array_agg(base + nth * step) into positions, tags
  from (
    select base, step, unnest(positions) as pos, generate_series(1, cardinality(positions)) as nth
    from lanes) as turns;
end $$;

-- The virtual time (V) moves up to the smallest ready tag, or to the highest tag given so far when nothing is ready.
-- Only the gate does this, under its lock. Only the gate makes rows ready, so no row can appear below V.
create or replace function hourbell.move_virtual_time(p_pass bigint) returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
begin
  with recursive spaces as (
    (select queue, priority from hourbell.virtual_time order by queue, priority limit 1)
    union all
    select n.queue, n.priority from spaces as s cross join lateral (
      select queue, priority from hourbell.virtual_time as v
      where (v.queue, v.priority) > (s.queue, s.priority) order by queue, priority limit 1) as n),
  newest as materialized (
    select s.queue, s.priority, v.v, v.highest, v.row
    from spaces as s cross join lateral (
      select v, highest, ctid as row from hourbell.virtual_time as v
      where v.queue = s.queue and v.priority = s.priority order by pass desc limit 1) as v),
  moved as materialized (
    select n.queue, n.priority, n.highest, n.v as old, n.row, coalesce(
      (select tag from hourbell.ready as r
       where r.queue = n.queue and r.priority = n.priority and r.tag >= n.v order by tag limit 1), n.highest) as v
    from newest as n),
  written as (
    insert into hourbell.virtual_time (queue, priority, v, highest, pass)
    select queue, priority, v, highest, p_pass from moved where v > old)
  -- Deleted by ctid, like the marks and lanes above: a range scan would visit dead rows that vacuum cannot remove yet.
  delete from hourbell.virtual_time where ctid = any (array(select row from moved where v > old));
end $$;

-- Gives back to lanes what was charged for executions that were ready and were not served.
create or replace function hourbell.apply_refunds(p_limit int, p_pass bigint) returns void
language plpgsql set plan = lookups_unsorted as $$
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
      left join owed as o on o.queue = b.queue and o.priority = b.priority and o.tenant = l.tenant order by l.pos),
        p_pass
  from blocks as b;
end $$;

-- Applies a changed weight of a tenant. New rows use it at once. For ready and parked rows, the distance of the
-- tenant's tags from the first in line shrinks or stretches, a part of it in each pass: in ascending order if it
-- shrinks, descending if it stretches, so that no row is visited twice. Rows that arrive meanwhile are placed behind
-- all of them. Returns whether there is more to do.
-- Example: the virtual time is 100, and a tenant of weight 1 with the tags 101, 102, … 140 gets the weight 4. Its tags
-- become 100.25, 100.5, … 110.
create or replace function hourbell.retag(p_limit int, p_pass bigint) returns boolean
language plpgsql set plan = lookups_unsorted as $$
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
      select b.space, b.priority, this.tenant, old / this.weight, b.v, l.last,
        case when old < this.weight then '-infinity' else 'infinity' end::float8
      from (
        select distinct on (b.space, b.priority) b.space, b.priority, b.tenants, b.lasts, coalesce(
          (select v from hourbell.virtual_time as v where v.queue = b.space and v.priority = b.priority
            order by pass desc limit 1),
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
        select v from hourbell.virtual_time as v where v.queue = s.space and v.priority = s.priority
        order by pass desc limit 1));
    end if;
    with next as materialized (
      (select tag, ids, ctid as row from hourbell.ready
       where s.factor < 1 and queue = s.space and priority = s.priority and tag > s.upto and tag <= s.last
       order by tag fetch first p_limit rows with ties)
      union all
      (select tag, ids, ctid from hourbell.ready
       where s.factor > 1 and queue = s.space and priority = s.priority and last_tag > s.v and tag <= s.last
         and tag < s.upto
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
