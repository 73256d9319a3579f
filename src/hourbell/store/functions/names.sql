-- Names that jobs use become numbers: queues and tasks. (Tenants and targets have no bound: queries/jobs.sql.)

-- The numbers of queues; a new name becomes a new queue (is_new). p_makers[k] is the tenant whose jobs name p_names[k];
-- null: not created for a job, and not counted. check_violation, whose detail is a tenant: the tenant would have
-- created more than p_most. Concurrent calls do not see each other's names, so the bound is not exact: an exact one
-- would need a lock on the tenant, held while waiting for a name.
create or replace function hourbell.ensure_queues(p_names text[], p_now timestamptz, p_makers text[], p_most int)
returns table (id smallint, name text, is_new boolean)
language plpgsql
set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  excessive text;
  made text[] = '{}';
begin
  if exists (
    select from unnest(p_names) as n(name) where not exists (select from hourbell.queues as q
      where q.name = n.name offset 0))
  then
    select t.name into excessive
    from hourbell.tenants as t
    cross join lateral (select count(*) as n from hourbell.queues as q where q.made_by = t.id) as made
    cross join lateral (
      select count(*) as n from unnest(p_names, p_makers) as a(name, maker)
      where a.maker = t.name and not exists (select from hourbell.queues as q where q.name = a.name offset 0)) as more
    where t.name = any (p_makers) and more.n > 0 and made.n + more.n > p_most
    limit 1;
    if excessive is not null then
      raise check_violation using message = 'the tenant would create too many queues', detail = excessive;
    end if;
    with inserted as (
      insert into hourbell.queues (name, created_at, made_by, created_on_use)
      select a.name, p_now, t.id, case when a.maker is not null and a.name <> 'default' then true end
      from unnest(p_names, p_makers) as a(name, maker)
      left join hourbell.tenants as t on t.name = a.maker
      where not exists (select from hourbell.queues as q where q.name = a.name offset 0) order by a.name
      on conflict (name) do nothing returning name)
    select array_agg(name) into made from inserted;
  end if;
  return query
    select q.id, q.name, coalesce(q.name = any (made), false) from hourbell.queues as q where q.name = any (p_names);
end $$;

-- The numbers of tasks; a new name becomes a new task. See ensure_queues.
create or replace function hourbell.ensure_tasks(p_names text[], p_now timestamptz, p_makers text[], p_most int)
returns table (id int, name text)
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  excessive text;
begin
  if exists (
    select from unnest(p_names) as n(name) where not exists (select from hourbell.tasks as t
      where t.name = n.name offset 0))
  then
    select t.name into excessive
    from hourbell.tenants as t
    cross join lateral (select count(*) as n from hourbell.tasks as k where k.made_by = t.id) as made
    cross join lateral (
      select count(*) as n from unnest(p_names, p_makers) as a(name, maker)
      where a.maker = t.name and not exists (select from hourbell.tasks as k where k.name = a.name offset 0)) as more
    where t.name = any (p_makers) and more.n > 0 and made.n + more.n > p_most
    limit 1;
    if excessive is not null then
      raise check_violation using message = 'the tenant would create too many tasks', detail = excessive;
    end if;
    insert into hourbell.tasks (name, created_at, made_by)
    select a.name, p_now, t.id from unnest(p_names, p_makers) as a(name, maker)
    left join hourbell.tenants as t on t.name = a.maker
    where not exists (select from hourbell.tasks as k where k.name = a.name offset 0) order by a.name
    on conflict (name) do nothing;
  end if;
  return query select k.id, k.name from hourbell.tasks as k where k.name = any (p_names);
end $$;
