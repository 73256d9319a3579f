-- Jobs: the statements of create, change and read. Times come in as arguments.

-- name: before_create
-- What must be known before $1 documents can be parsed: $2 queues, $3 tenants, $4 and $5 the
-- idempotency keys of the requests.
select * from hourbell.before_create($1, $2, $3, $4, $5)

-- name: create_jobs
-- What is sent for each one-time job comes as text, which a client encodes faster than arrays: $10, $11 and $13 to $15,
-- numbers, as the text of an array; $16, their specs, as lines, because JSON has no line break inside. (What
-- convert_from returns has the collation "C", and a function takes the collation of its arguments: it could not use
-- indexes of text.)
select *, hourbell.take_ended() as ended from hourbell.create_jobs(
  $1, $2, $3, $4, $5, $6, $7, $8, $9, $10::text::bigint[], $11::text::int[], $12, $13::text::bigint[], $14::text::int[],
  $15::text::int[], string_to_array(convert_from($16, 'UTF8') collate "default", E'\n'), $17, $18, $19)

-- name: new_id
-- An id for an object created at $1.
select hourbell.next_id(hourbell.id_base($1))

-- name: ensure_tenants
-- The ids of tenants; an unknown name creates the tenant (is_new). One that another transaction is
-- inserting is left out. $3 whether a job, a secret or the like names them; else they are declared.
with made as (
  insert into hourbell.tenants (name, created_at, created_on_use)
  select name, $2, case when $3::boolean and name <> 'default' then true end from unnest($1::text[]) as name
  where not exists (select from hourbell.tenants as t where t.name = name.name) order by name
  on conflict (name) do nothing returning id, name)
select id, name, true as is_new from made
union all select id, name, false from hourbell.tenants where name = any ($1)

-- name: ensure_queues
-- The same for queues; $3 the tenants that name them, $4 how many a tenant may create.
select * from hourbell.ensure_queues($1, $2, $3, $4)

-- name: known_tenants
select name from hourbell.tenants where name = any ($1)

-- name: known_queues
select name from hourbell.queues where name = any ($1)

-- name: names_like_tenant
-- Names of tenants that may be meant by the unknown name $1: those of a similar length, at most $2, first those that
-- begin alike.
select name from hourbell.tenants where length(name) between length($1::text) - 3 and length($1) + 3
order by left(name, 1) <> left($1, 1), name limit $2

-- name: names_like_queue
-- The same for queues.
select name from hourbell.queues where length(name) between length($1::text) - 3 and length($1) + 3
order by left(name, 1) <> left($1, 1), name limit $2

-- name: ensure_targets
-- The same for hosts.
with made as (
  insert into hourbell.targets (host, created_at) select host, $2 from unnest($1::text[]) as host
  where not exists (select from hourbell.targets as t where t.host = host.host) order by host
  on conflict (host) do nothing returning id, host as name)
select id, name from made union all select id, host from hourbell.targets where host = any ($1)

-- name: ensure_tasks
-- The same for tasks; $3 and $4 as for queues.
select * from hourbell.ensure_tasks($1, $2, $3, $4)

-- name: timetables
-- The existing timetables with these rules, zones and DST policies, by their place in the arrays.
select a.k, t.id
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) with ordinality as a(rule, zone, dst_gap, dst_overlap, k)
cross join lateral (
  select id from hourbell.timetables as t
  where (t.rule, t.zone, t.dst_gap, t.dst_overlap) = (a.rule, a.zone, a.dst_gap, a.dst_overlap) offset 0) as t

-- name: ensure_timetables
-- The same, and inserts those that are missing; $5 now, $6 their first fires after that.
with asked as materialized (
  select * from unnest($1::text[], $2::text[], $3::text[], $4::text[], $6::timestamptz[]) with ordinality
    as a(rule, zone, dst_gap, dst_overlap, first, k)),
known as materialized (
  select a.k, t.id from asked as a cross join lateral (
    select id from hourbell.timetables as t
    where (t.rule, t.zone, t.dst_gap, t.dst_overlap) = (a.rule, a.zone, a.dst_gap, a.dst_overlap) offset 0) as t),
made as (
  insert into hourbell.timetables
    (rule, zone, dst_gap, dst_overlap, planned_through, next_fire_at, plan_from, tz_version)
  select rule, zone, dst_gap, dst_overlap, $5, first, first, $7 from asked where k not in (select k from known)
    order by k
  on conflict (rule, zone, dst_gap, dst_overlap) do nothing returning id, rule, zone, dst_gap, dst_overlap)
select k, id from known
union all
select a.k, m.id from made as m join asked as a using (rule, zone, dst_gap, dst_overlap)

-- name: holder
-- The live job that has a unique key; $1 the tenant's name, $2 the namespace of the key.
select job from hourbell.unique_keys as k
where tenant = (select id from hourbell.tenants where name = $1) and space = $2 and key = $3
  and hourbell.live_jobs(array[job]) <> '{}'

-- name: change_job
select *, hourbell.ended() as ended from hourbell.change_job($1, $2, $3, $4)

-- name: pause_abandoned
select seen, hourbell.ended() as ended from hourbell.pause_abandoned($1, $2, $3, $4, $5) as seen

-- name: lock_recurring
select j.*, t.name as tenant_name from hourbell.jobs as j join hourbell.tenants as t on t.id = j.tenant
where j.id = $1 for no key update of j

-- name: recurring
-- Those of the jobs $1 that are recurring.
select j.*, t.name as tenant_name from hourbell.jobs as j join hourbell.tenants as t on t.id = j.tenant
where j.id = any ($1)

-- name: one_time
-- Those of the jobs $1 that are one-time jobs, with how they ended (recorded_at null: they have not) and where they are
-- at $2. (`offset 0`: look up by id only. The index of one-time jobs begins with the tenant, and the planner may walk
-- all of it.)
select e.id, e.run_at, coalesce(o.end_version, e.version) as version, e.spec, e.updated_at, o.recorded_at, o.fate,
  w.status, w.in_paused,
  (select name from hourbell.tenants as t where t.id = e.tenant) as tenant_name
from unnest($1::bigint[]) as wanted(id)
cross join lateral (select e, e.* from hourbell.executions as e where e.id = wanted.id offset 0) as e
left join lateral hourbell.end_of(e.id) as o on true
cross join hourbell.slab_index(case when cardinality($1) = 1 then ($1)[1] end, true) as i
left join lateral hourbell.location_of(e.e, i.ids, i.slabs, o.recorded_at is null, $2) as w on true
where e.job is null

-- name: requeue
-- Puts an execution back into `due`, by the values of its row.
select hourbell.requeue(array[$1::bigint])

-- Lists of jobs, newest first, before the id $1: the first $2 rows that are `wanted`, among the $3
-- newest, and the last of these if the walk ends there (engine/views/pages.py). $4 the status
-- (null: all but cancelled); $5 queue, $6 prefix of the name, $7 a label as `name:value`; each may
-- be null.

-- name: list_recurring
select j.*, (select name from hourbell.tenants as t where t.id = j.tenant) as tenant_name
from (
  select j.*, row_number() over (order by j.id desc) as pos,
    coalesce(j.status = $4::smallint, j.status <> hourbell.job_cancelled()) and ($5::smallint is null or j.queue = $5)
      and ($6::text is null or starts_with(j.name, $6)) and hourbell.is_wanted(j.spec, null, $7)
        and hourbell.is_found(j.name, j.spec, $8) as wanted
  from (select * from hourbell.jobs where id < $1 order by id desc limit $3) as j) as j
where j.wanted or j.pos = $3
order by j.id desc limit $2

-- name: list_recurring_of_tenant
-- For the tenant $8 in one status, $4. By `-id`, which only the tenants' index has in order: by
-- `id` the planner may walk all tenants' jobs in search of this tenant's.
select j.*, (select name from hourbell.tenants as t where t.id = $8) as tenant_name
from (
  select j.*, row_number() over (order by j.down) as pos,
    ($5::smallint is null or j.queue = $5)
      and ($6::text is null or starts_with(j.name, $6)) and hourbell.is_wanted(j.spec, null, $7)
        and hourbell.is_found(j.name, j.spec, $9) as wanted
  from (
    select *, -id as down from hourbell.jobs
    where tenant = $8 and status = $4 and -id > -$1::bigint order by -id limit $3) as j) as j
where j.wanted or j.pos = $3
order by j.down limit $2

-- name: list_recurring_by_tenants
-- As list_recurring, where few jobs are in the status $4: the newest $3 of them, found tenant by tenant.
select j.*, (select name from hourbell.tenants as t where t.id = j.tenant) as tenant_name
from (
  select j.*, w.pos, ($5::smallint is null or j.queue = $5)
      and ($6::text is null or starts_with(j.name, $6)) and hourbell.is_wanted(j.spec, null, $7)
        and hourbell.is_found(j.name, j.spec, $8) as wanted
  from (
    select w.id, row_number() over (order by w.id desc) as pos
    from (
      select i.id from hourbell.tenants as t
      cross join lateral (
        select id from hourbell.jobs where tenant = t.id and status = $4 and -id > -$1::bigint
        order by -id limit $3) as i
      order by i.id desc limit $3) as w) as w
  cross join lateral (select * from hourbell.jobs as j where j.id = w.id offset 0) as j) as j
where j.wanted or j.pos = $3
order by j.id desc limit $2

-- name: count_named
-- How many recurring jobs have names from $1 on and before $2, counted up to $3.
select count(*)::int as n from (
  select from hourbell.jobs where name collate "C" >= $1 and name collate "C" < $2 limit $3) as j

-- name: list_recurring_named
-- As list_recurring, where fewer than $3 jobs have names from $6 on and before $9: all of these are read, by their
-- index. $8 the tenant, null: all.
select j.*, (select name from hourbell.tenants as t where t.id = j.tenant) as tenant_name
from (
  select j.*, n.pos
  from (
    select n.id, row_number() over (order by n.id desc) as pos
    from (
      select id from hourbell.jobs
      where name collate "C" >= $6 and name collate "C" < $9 and id < $1 limit $3) as n) as n
  cross join lateral (
    select *, true as wanted from hourbell.jobs as j where j.id = n.id
      and coalesce(j.status = $4::smallint, j.status <> hourbell.job_cancelled())
        and ($5::smallint is null or j.queue = $5)
      and ($8::int is null or j.tenant = $8) and hourbell.is_wanted(j.spec, null, $7)
        and hourbell.is_found(j.name, j.spec, $10) offset 0) as j) as j
order by j.id desc limit $2

-- One-time jobs: $4 how they have ended (codes of fates); $8 the statuses of those that have not, null: any; $9 now;
-- $10: QUEUED ones only if they were due by this, null: all.

-- name: list_one_time
-- Runs of recurring jobs, which may be most of the rows, are not looked up.
select e.*, (select name from hourbell.tenants as t where t.id = e.tenant) as tenant_name
from (
  select e.id, e.run_at, e.version, e.spec, e.updated_at, e.tenant, e.recorded_at, e.fate, w.status, w.in_paused,
    row_number() over (order by e.id desc) as pos,
    e.fits and (e.fate is not null or hourbell.is_listed(w.status, w.in_paused, e.run_at, $8, $10)) as wanted
  from (
    select e.e, e.id, e.run_at, coalesce(o.end_version, e.version) as version, e.spec, e.updated_at, e.tenant,
      o.recorded_at, o.fate,
      e.job is null and e.origin = hourbell.origin_schedule()
        and (o.fate = any ($4) or o.fate is null and $8::text[] is distinct from '{}')
        and ($5::smallint is null or e.queue = $5) and hourbell.is_wanted(e.spec, $6, $7)
        and hourbell.is_found(null, e.spec, $11) as fits
    from (select e, e.* from hourbell.executions as e where id < $1 order by id desc limit $3) as e
    left join lateral hourbell.end_of(case when e.job is null then e.id end) as o on true) as e
  cross join hourbell.slab_index(null, $8::text[] is distinct from '{}') as i
  left join lateral hourbell.location_of(e.e, i.ids, i.slabs, e.fits and e.fate is null, $9) as w on true) as e
where e.wanted or e.pos = $3
order by e.id desc limit $2

-- name: list_one_time_of_tenant
-- For the tenant $11, as a range condition: only the index of one-time jobs begins with (tenant, id)
-- in order.
select e.*, (select name from hourbell.tenants as t where t.id = e.tenant) as tenant_name
from (
  select e.id, e.run_at, e.version, e.spec, e.updated_at, e.tenant, e.recorded_at, e.fate, w.status, w.in_paused,
    row_number() over (order by e.tenant desc, e.id desc) as pos,
    e.fits and (e.fate is not null or hourbell.is_listed(w.status, w.in_paused, e.run_at, $8, $10)) as wanted
  from (
    select e.e, e.id, e.run_at, coalesce(o.end_version, e.version) as version, e.spec, e.updated_at, e.tenant,
      o.recorded_at, o.fate,
      e.origin = hourbell.origin_schedule()
        and (o.fate = any ($4) or o.fate is null and $8::text[] is distinct from '{}')
        and ($5::smallint is null or e.queue = $5) and hourbell.is_wanted(e.spec, $6, $7)
        and hourbell.is_found(null, e.spec, $12) as fits
    from (
      select e, e.* from hourbell.executions as e
      where job is null and (tenant, id) < ($11, $1) and tenant >= $11 order by tenant desc, id desc limit $3) as e
    left join lateral hourbell.end_of(e.id) as o on true) as e
  cross join hourbell.slab_index(null, $8::text[] is distinct from '{}') as i
  left join lateral hourbell.location_of(e.e, i.ids, i.slabs, e.fits and e.fate is null, $9) as w on true) as e
where e.wanted or e.pos = $3
order by e.tenant desc, e.id desc limit $2

-- name: list_one_time_by_tenants
-- As list_one_time, where few executions are one-time jobs: the newest $3 of them, found tenant by tenant.
select e.*, (select name from hourbell.tenants as t where t.id = e.tenant) as tenant_name
from (
  select e.id, e.run_at, e.version, e.spec, e.updated_at, e.tenant, e.recorded_at, e.fate, w.status, w.in_paused, e.pos,
    e.fits and (e.fate is not null or hourbell.is_listed(w.status, w.in_paused, e.run_at, $8, $10)) as wanted
  from (
    select e.e, e.id, e.run_at, coalesce(o.end_version, e.version) as version, e.spec, e.updated_at, e.tenant,
      o.recorded_at, o.fate, w.pos,
      e.origin = hourbell.origin_schedule()
        and (o.fate = any ($4) or o.fate is null and $8::text[] is distinct from '{}')
        and ($5::smallint is null or e.queue = $5) and hourbell.is_wanted(e.spec, $6, $7)
        and hourbell.is_found(null, e.spec, $11) as fits
    from (
      select w.id, row_number() over (order by w.id desc) as pos
      from (
        select i.id from hourbell.tenants as t
        cross join lateral (
          select id from hourbell.executions
          where job is null and (tenant, id) < (t.id, $1) and tenant >= t.id order by tenant desc, id desc limit $3
        ) as i
        order by i.id desc limit $3) as w) as w
    cross join lateral (select e, e.* from hourbell.executions as e where e.id = w.id offset 0) as e
    left join lateral hourbell.end_of(e.id) as o on true) as e
  cross join hourbell.slab_index(null, $8::text[] is distinct from '{}') as i
  left join lateral hourbell.location_of(e.e, i.ids, i.slabs, e.fits and e.fate is null, $9) as w on true) as e
where e.wanted or e.pos = $3
order by e.id desc limit $2

-- name: list_one_time_paused
-- Of the tenant $8 (null: of all), in the status paused ($4), of which there is a table.
select e.*, (select name from hourbell.tenants as t where t.id = e.tenant) as tenant_name
from (
  select e.id, e.run_at, e.version, e.spec, e.updated_at, e.tenant, null::timestamptz as recorded_at,
    null::smallint as fate, null::text as status, true as in_paused, h.pos,
    e.job is null and e.origin = hourbell.origin_schedule() and ($8::int is null or e.tenant = $8)
      and 'PAUSED' = any ($4::text[]) and ($5::smallint is null or e.queue = $5)
      and hourbell.is_wanted(e.spec, $6, $7)
        and hourbell.is_found(null, e.spec, $9) as wanted
  from (
    select id, row_number() over (order by id desc) as pos
    from (select id from hourbell.paused where id < $1 order by id desc limit $3) as h) as h
  cross join lateral (select * from hourbell.executions as e where e.id = h.id offset 0) as e) as e
where e.wanted or e.pos = $3
order by e.id desc limit $2

-- name: list_one_time_running
-- Of the tenant $8 (null: of all), in the statuses $4: those that run, and those that their target has accepted, are
-- found by their leases.
select e.*, (select name from hourbell.tenants as t where t.id = e.tenant) as tenant_name
from (
  select (e.e).id, (e.e).run_at, (e.e).version, (e.e).spec, (e.e).updated_at, (e.e).tenant,
    null::timestamptz as recorded_at, null::smallint as fate, e.status, false as in_paused, e.pos,
    (e.e).job is null and (e.e).origin = hourbell.origin_schedule() and ($8::int is null or (e.e).tenant = $8)
      and ($5::smallint is null or (e.e).queue = $5) and hourbell.is_wanted((e.e).spec, $6, $7)
        and hourbell.is_found(null, (e.e).spec, $9) as wanted
  from (
    select e.e, l.status, row_number() over (order by l.id desc) as pos
    from (
      select i.id, s.status
      from hourbell.leased as l
      cross join lateral unnest(l.ids) as i(id)
      cross join lateral (select case l.session
        when hourbell.awaiting_session() then 'AWAITING' else 'RUNNING' end as status) as s
      where i.id < $1 and s.status = any ($4::text[])
      order by i.id desc offset 0) as l
    cross join lateral (
      select e from hourbell.executions as e where e.id = l.id
        and not exists (select from hourbell.outcomes as o where o.id = e.id offset 0) offset 0) as e
    limit $3) as e) as e
where e.wanted or e.pos = $3
order by e.id desc limit $2

-- name: few_tenants
-- Whether there are at most $1.
select count(*) <= $1 from (select from hourbell.tenants limit $1 + 1) as t

-- name: queue_by_name
select id from hourbell.queues where name = $1

-- name: tenant_by_name
select id from hourbell.tenants where name = $1

-- name: set_timeouts
-- First in a user's transaction: limits how long it waits for locks, and how long a stalled client
-- can hold its locks.
select set_config('lock_timeout', '2s', true), set_config('idle_in_transaction_session_timeout', '30s', true)

-- name: insert_audit
insert into hourbell.audit (at, tenant, job, actor, operation, before, after) values ($1, $2, $3, $4, $5, $6, $7)

-- name: answer
-- The stored answer of an idempotent write, if there is one.
select fingerprint, response from hourbell.idempotency
where tenant = (select id from hourbell.tenants where name = $1) and key = $2

-- name: insert_answer
insert into hourbell.idempotency (tenant, key, fingerprint, response, created_at)
values ($1, $2, $3, $4, $5)

-- name: declare_tasks
-- Stores what callers of hourbell.enqueue need not say about these tasks; a row that has it already is not touched.
update hourbell.tasks as t set defaults = d.defaults
from unnest($1::text[], $2::text[]) as d(name, defaults)
where t.name = d.name and t.defaults is distinct from d.defaults
