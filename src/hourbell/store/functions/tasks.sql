-- Tasks: which executions the workers of a queue can run, and how a claim finds them.
--
-- The gate makes rows ready only if a live session serves them; the others are parked under (queue, task) until
-- such a session opens. While all sessions of a queue serve the same tasks, every slab that is ready there fits
-- each of them, and claims go by the tag alone. When they differ, the queue is mixed: a claim there goes by the tasks
-- of its session, so a backlog that only another worker serves neither hides nor locks other slabs.

-- The live sessions, one for each set of queues and tasks. A session that was not renewed counts until it is reaped:
-- after a database outage all sessions are late, and none is gone.
create or replace function hourbell.serving_sessions() returns hourbell.sessions[]
language sql stable as $$
  select coalesce(array_agg(s), '{}') from (
    select distinct on (all_queues, queues, tasks) sessions as s from hourbell.sessions
    order by all_queues, queues, tasks) as s
$$;

-- Whether one of these sessions serves a queue, whatever its tasks.
create or replace function hourbell.is_queue_served(p_serving hourbell.sessions[], p_queue bigint) returns boolean
language sql immutable
return exists (select from unnest(p_serving) as s where s.all_queues or p_queue = any (s.queues));

-- Whether one of these sessions serves a task in a queue.
create or replace function hourbell.is_served(p_serving hourbell.sessions[], p_queue bigint, p_task int) returns boolean
language sql immutable
return exists (
  select from unnest(p_serving) as s
  where (s.all_queues or p_queue = any (s.queues))
    and (p_task = hourbell.task_any() or s.tasks is null or p_task = any (s.tasks)));

-- For a blocker of the kind `blocker_task`: whether its queue has workers, but none of them serves its task.
create or replace function hourbell.lacks_task(p_serving hourbell.sessions[], p_key bigint) returns boolean
language sql immutable
return hourbell.is_queue_served(p_serving, p_key >> 32)
  and not hourbell.is_served(p_serving, p_key >> 32, (p_key & 4294967295)::int);

-- The tasks of a queue under which rows are parked, as blockers. One lookup per task.
create or replace function hourbell.parked_task_keys(p_queue bigint) returns setof bigint
language sql stable set plan = lookups as $$
  with recursive found as (
    (select key from hourbell.parked
     where kind = hourbell.blocker_task() and key >= hourbell.task_key(p_queue, 0)
       and key < hourbell.task_key(p_queue + 1, 0) order by key limit 1)
    union all
    select n.key from found as f cross join lateral (
      select key from hourbell.parked as p
      where p.kind = hourbell.blocker_task() and p.key > f.key and p.key < hourbell.task_key(p_queue + 1, 0)
      order by p.key limit 1) as n)
  select key from found
$$;

-- Called by the gate when sessions of these queues have opened or ended. Notes what the sessions serve now, and sends
-- ready rows that no session serves any more through the gate again. Returns the tasks, as blockers, that have parked
-- rows and are served now.
create or replace function hourbell.adapt_to_workers(
  p_queues bigint[], p_serving hourbell.sessions[], p_limit int, p_now timestamptz
) returns bigint[]
language plpgsql set plan = lookups as $$
begin
  perform hourbell.note_queue_workers(q::smallint, p_serving) from unnest(p_queues) as q;
  perform hourbell.readmit_unserved_queues(
    array(select q from unnest(p_queues) as q where not hourbell.is_queue_served(p_serving, q)), p_limit, p_now);
  perform hourbell.readmit_unserved_tasks(p_queues, p_serving, p_limit, p_now);
  return array(
    select t.key from unnest(p_queues) as q cross join lateral hourbell.parked_task_keys(q) as t(key)
    where not hourbell.lacks_task(p_serving, t.key));
end $$;

-- Updates what is stored about the sessions of a queue (`queue_workers`). Rows that are ready there were admitted for
-- the previous sessions: if the current ones serve other tasks, or not all the same, the queue is mixed, and claims
-- look for rows by task.
create or replace function hourbell.note_queue_workers(p_queue smallint, p_serving hourbell.sessions[]) returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  old hourbell.queue_workers;
  new hourbell.queue_workers;
begin
  select p_queue, min(s.tasks), count(distinct coalesce(s.tasks, '{-1}')) = 1,  -- -1 stands for all tasks
    count(distinct coalesce(s.tasks, '{-1}')) > 1
  into new from unnest(p_serving) as s where s.all_queues or p_queue = any (s.queues) having count(*) > 0;
  if not found then return; end if;  -- no session claims there
  select * into old from hourbell.queue_workers where queue = p_queue;
  new.mixed := new.mixed or (old.queue is not null and (old.mixed or new.tasks is distinct from old.tasks));
  if new is not distinct from old then return; end if;
  insert into hourbell.queue_workers values (new.*)
  on conflict (queue) do update set tasks = new.tasks, uniform = new.uniform, mixed = new.mixed;
end $$;

-- The tasks of which a queue has ready slabs, by priority. One lookup for each.
create or replace function hourbell.ready_tasks(p_queue smallint) returns table (priority smallint, task int)
language sql stable as $$
  with recursive found as (
    (select r.priority, r.task from hourbell.ready as r where r.queue = p_queue
      order by r.queue, r.priority, r.task limit 1)
    union all
    select n.* from found as f cross join lateral (
      select r.priority, r.task from hourbell.ready as r
      where r.queue = p_queue and (r.priority, r.task) > (f.priority, f.task)
      order by r.queue, r.priority, r.task limit 1) as n)
  select priority, task from found
$$;

-- A queue is no longer mixed once all its sessions serve the same tasks, and these are all that is ready there.
create or replace function hourbell.end_mixed(p_serving hourbell.sessions[]) returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
begin
  update hourbell.queue_workers as f set mixed = false
  where f.mixed and f.uniform and not exists (
    select from hourbell.ready_tasks(f.queue) as r where not hourbell.is_served(p_serving, f.queue, r.task));
end $$;

-- No session serves these queues any more. Ready rows there that hold limits release them, because rows of other queues
-- may wait for them, and go through the gate again. Other ready rows stay, and wait for the next session.
create or replace function hourbell.readmit_unserved_queues(p_queues bigint[], p_limit int, p_now timestamptz)
returns void
language plpgsql set plan = lookups as $$
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

-- For tasks in these queues that no session serves any more: their ready rows release the limits they hold and go
-- through the gate again, which parks them. If they stayed, they would also hold back the virtual time of the queue.
create or replace function hourbell.readmit_unserved_tasks(
  p_queues bigint[], p_serving hourbell.sessions[], p_limit int, p_now timestamptz
) returns void
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  left_behind bigint[];
  unserved int;  -- combinations of queue, priority and task in `ready` that no session serves
begin
  with unserved as materialized (
    select f.queue, r.priority, r.task from hourbell.queue_workers as f
    cross join lateral hourbell.ready_tasks(f.queue) as r
    where f.mixed and f.queue = any (p_queues) and hourbell.lacks_task(p_serving, hourbell.task_key(f.queue, r.task))),
  slabs as (
    delete from hourbell.ready where ctid = any (array(
      select r.row from unserved as u cross join lateral (
        select ctid as row from hourbell.ready as r
        where r.queue = u.queue and r.priority = u.priority and r.task = u.task
        order by r.tag limit p_limit / 100 + 1 for update skip locked) as r limit p_limit / 100 + 1))
    returning *),
  from_ready as materialized (
    select i.id, s.queue, s.priority from slabs as s cross join lateral unnest(s.ids) as i(id)),
  from_suspects as (
    delete from hourbell.suspects where ctid = any (array(
      select ctid from hourbell.suspects as s
      where s.queue = any (p_queues) and hourbell.lacks_task(p_serving, hourbell.task_key(s.queue, s.task))
      limit p_limit for update skip locked))
    returning id),
  refunded as (
    insert into hourbell.tag_refunds (queue, priority, tenant)
    select r.queue, r.priority, e.tenant from from_ready as r cross join lateral (
      select tenant from hourbell.executions as e where e.id = r.id offset 0) as e)
  select array_agg(id), (select count(*) from unserved) into left_behind, unserved
  from (select id from from_ready union all select id from from_suspects) as gone;
  if left_behind is not null then
    perform hourbell.release_limits(left_behind, false, p_now);
    perform hourbell.requeue(left_behind);
  end if;
  -- Check again soon: there may be more, or a claim had locked some.
  insert into hourbell.gate_wakeups (at, kind, key)
  select p_now + interval '100 milliseconds', hourbell.blocker_queue(), queue from hourbell.queue_workers as f
  where f.queue = any (p_queues) and (left_behind is not null or unserved > 0);
end $$;
