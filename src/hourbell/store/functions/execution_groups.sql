-- Groups of executions: the leader follows each closed group from member to member, in the order of their ids, and
-- stops at the first that has not ended. Executions do not know their groups, so what has no group pays nothing.

-- The text of a group's id, as in model/ids.py.
create or replace function hourbell.group_text(p_id bigint) returns text
language sql immutable parallel safe
return 'grp_' || substr(hourbell.job_text(p_id), 5);

-- Which of the executions p_ids have not ended. One that retention has dropped has ended.
create or replace function hourbell.not_ended(p_ids bigint[]) returns setof bigint
language plpgsql set plan = lookups_one_by_one as $$
begin
  return query
    select m.id from unnest(p_ids) as m(id)
    where exists (select from hourbell.executions as e where e.id = m.id offset 0)
      and not exists (select from hourbell.outcomes as o where o.id = m.id offset 0);
end $$;

-- Follows closed groups that are due by p_now: up to p_groups, and up to p_members members of all of them together.
-- Returns those whose members have all ended: their callback is still to be created, by `end_groups`. more: some have
-- further members that may have ended.
create or replace function hourbell.follow_groups(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_groups int, p_members int, out ended bigint[], out more boolean
)
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  budget int := p_members;
  followed hourbell.execution_groups;
  next_ids bigint[];
  first_live bigint;
  counts int[];
  is_last boolean;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  ended := '{}'; more := false;
  -- No group waits for longer than a minute: the clock was set back.
  update hourbell.execution_groups set look_at = p_now where id = any (array(
    select id from hourbell.execution_groups where look_at > p_now + interval '1 minute'
    order by look_at limit p_groups for no key update skip locked));
  for followed in
    select * from hourbell.execution_groups where look_at <= p_now order by look_at limit p_groups
    for no key update skip locked
  loop
    -- Most groups wait for their next member: look at that one alone.
    next_ids := array(
      select execution from hourbell.group_members
      where group_id = followed.id and execution > followed.ended_upto order by execution limit 1);
    first_live := (select min(id) from hourbell.not_ended(next_ids) as l(id));
    counts := followed.fates;
    is_last := next_ids = '{}';
    if first_live is null and not is_last then
      if budget <= 0 then  -- it keeps its place
        more := true;
        continue;
      end if;
      next_ids := array(
        select execution from hourbell.group_members
        where group_id = followed.id and execution > followed.ended_upto order by execution limit budget);
      is_last := cardinality(next_ids) < budget;
      budget := budget - cardinality(next_ids);
      first_live := (select min(id) from hourbell.not_ended(next_ids) as l(id));
      if first_live is not null then
        next_ids := array(select id from unnest(next_ids) as m(id) where id < first_live order by id);
      end if;
      counts := array(
        select followed.fates[f + 1] + count(*) filter (where e.fate = f)::int
        from generate_series(0, 4) as f
        left join (
          select o.fate from unnest(next_ids) as m(id)
          cross join lateral (select fate from hourbell.outcomes as o where o.id = m.id offset 0) as o) as e on true
        group by f order by f);
      followed.ended_upto := next_ids[cardinality(next_ids)];
    end if;
    is_last := is_last and first_live is null;
    update hourbell.execution_groups as g
    set fates = counts, ended_upto = followed.ended_upto,
      look_at = p_now + case
        when is_last or first_live is null then interval '0'
        -- The longer a group takes, the less a few seconds more matter: after an hour, look every ten seconds.
        else least(greatest((p_now - g.closed_at) / 60, interval '1 second'), interval '10 seconds') end
    where g.id = followed.id;
    if is_last then ended := ended || followed.id;
    elsif first_live is null then more := true;
    end if;
  end loop;
end $$;

-- Ends groups and creates their callbacks. That of p_groups[k] is the webhook p_targets[k], p_specs[k]; null: a job of
-- a task, from the options of the group. A group that another leader has ended gets none. A job that is refused,
-- because of a quota, is retried after a minute.
create or replace function hourbell.end_groups(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_queue smallint, p_groups bigint[], p_targets int[], p_specs text[]
) returns void
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  base constant bigint := hourbell.id_base(p_now);
  g hourbell.execution_groups;
  made record;
  sent int;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  with now_ended as (
    update hourbell.execution_groups
    set ended_at = p_now, look_at = null, callback = hourbell.next_id(base)
    where id = any (p_groups) and ended_at is null and url is not null returning id, tenant, callback)
  select hourbell.insert_notifications(
    p_now, p_queue, array_agg(g.callback), array_agg(g.tenant), array_agg(c.target), array_agg(c.spec)) into sent
  from unnest(p_groups, p_targets, p_specs) as c(id, target, spec) join now_ended as g on g.id = c.id;
  for g in
    select * from hourbell.execution_groups
    where id = any (p_groups) and ended_at is null and options is not null order by id for no key update
  loop
    select * into made from hourbell.enqueue_jobs(
      '[' || g.options || ']', array[g.payload], null, null, null, 'group ' || hourbell.group_text(g.id));
    if made.outcome in ('created', 'kept') then  -- kept: it has the idempotency key of an earlier job
      update hourbell.execution_groups
      set ended_at = p_now, look_at = null, callback = made.job_id, problem = null where id = g.id;
    else
      update hourbell.execution_groups
      set look_at = p_now + interval '1 minute', problem = concat_ws(': ', made.outcome, made.detail) where id = g.id;
      -- It has waited for the lock of a quota, and the next one may have to as well: the others are ended by the next
      -- step.
      exit when made.outcome = 'busy';
    end if;
  end loop;
end $$;

-- Retries a group that `end_groups` cannot end after a minute.
create or replace function hourbell.delay_callback(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_group bigint, p_problem text
) returns void
language plpgsql set plan = lookups_one_by_one as $$
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  update hourbell.execution_groups set look_at = p_now + interval '1 minute', problem = p_problem
  where id = p_group and ended_at is null;
end $$;

-- Deletes groups that have ended before p_until, or were created before it and never closed: up to p_rows members, and
-- then the groups that have none left. Returns whether there is more.
create or replace function hourbell.drop_groups(
  p_node uuid, p_epoch bigint, p_until timestamptz, p_rows int
) returns boolean
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  old bigint[];
  dropped int;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  old := array(
    select id from hourbell.execution_groups
    where (ended_at is not null or closed_at is null) and coalesce(ended_at, created_at) < p_until
    order by coalesce(ended_at, created_at) limit 100 for no key update skip locked);
  if old = '{}' then return false; end if;
  delete from hourbell.group_members where ctid = any (array(
    select m.ctid from unnest(old) as o(id)
    cross join lateral (
      select ctid from hourbell.group_members where group_id = o.id order by execution limit p_rows) as m
    limit p_rows));
  get diagnostics dropped = row_count;
  if dropped < p_rows then delete from hourbell.execution_groups where id = any (old); end if;
  return dropped = p_rows or cardinality(old) = 100;
end $$;

-- Creates a closed group of the executions p_members, with a job of a task as its callback, which has the id of the
-- group as its label `hourbell.group`. Raises no error for what a caller may get wrong: `outcome` is then as that of
-- `enqueue_jobs`, or `unknown_member`, and nothing is created.
create or replace function hourbell.create_group(
  p_name text, p_options text, p_payload text, p_members bigint[], p_actor text,
  out group_id bigint, out outcome text, out detail text
)
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  now constant timestamptz := hourbell.clock();
  members constant bigint[] := array(select distinct unnest(p_members));
  new_id constant bigint := hourbell.next_id(hourbell.id_base(now));
  labelled jsonb;
  options record;
  unknown bigint;
begin
  begin
    labelled := jsonb_set('{"labels": {}}'::jsonb || p_options::jsonb, '{labels,hourbell.group}',
      to_jsonb(hourbell.group_text(new_id)));
    select * into options from hourbell.read_options(labelled::json);
    if options.outcome is not null then
      outcome := options.outcome; detail := options.detail;
      return;
    end if;
    outcome := 'invalid';
    if hourbell.is_line(p_name, 200) is not true then
      detail := 'the name of a group must be 1 to 200 printable characters';
      return;
    elsif options.on_duplicate <> 'reject' or options.expires_at is not null then
      detail := 'the callback of a group can have no on_duplicate and no expires_at';
      return;
    elsif hourbell.is_payload(p_payload) is not true then
      detail := 'the payload must be a JSON object of at most 262144 bytes, nested at most 32 deep';
      return;
    elsif cardinality(members) > 1000000 then
      detail := 'a group can have 1000000 members';
      return;
    end if;
  exception when data_exception or statement_too_complex then
    outcome := 'invalid';
    detail := coalesce((select o.problem from hourbell.options_problem('[' || p_options || ']') as o), sqlerrm);
    return;
  end;
  unknown := (
    select m.id from unnest(members) as m(id)
    where not exists (select from hourbell.executions as e where e.id = m.id and e.tenant = options.tenant offset 0)
      limit 1);
  if unknown is not null then
    outcome := 'unknown_member'; detail := hourbell.job_text(unknown);
    return;
  end if;
  insert into hourbell.execution_groups
    (id, tenant, name, created_at, closed_at, look_at, members, options, payload)
  values (new_id, options.tenant, p_name, now, now, now, cardinality(members), labelled::text, p_payload);
  insert into hourbell.group_members (group_id, execution) select new_id, id from unnest(members) as m(id);
  insert into hourbell.audit (at, tenant, actor, operation, after)
  values (now, options.tenant, p_actor, 'create_group', json_build_object('group_id', hourbell.group_text(new_id)));
  group_id := new_id;
  outcome := 'created';
end $$;
