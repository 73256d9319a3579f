-- Jobs: the statements of create, change and read. Times come in as arguments.

-- name: moment
-- The time, an id for a job that may be created at it, and the defaults of its queue $1.
select now, hourbell.id_base(now) | (nextval('hourbell.ids') & 4194303) as id, q.timeout_seconds, q.retry_policy
from (select hourbell.clock() as now offset 0) as clock left join hourbell.queues as q on q.name = $1

-- name: ensure_tenant
-- The number of a tenant; a new name is a new tenant.
with made as (
  insert into hourbell.tenants (name, created_at) select $1, $2
  where not exists (select from hourbell.tenants where name = $1)
  on conflict (name) do nothing returning id)
select id from made union all select id from hourbell.tenants where name = $1

-- name: ensure_queue
-- The number of a queue; a new name is a new queue.
with made as (
  insert into hourbell.queues (name, created_at) select $1, $2
  where not exists (select from hourbell.queues where name = $1)
  on conflict (name) do nothing returning id)
select id from made union all select id from hourbell.queues where name = $1

-- name: ensure_target
with made as (
  insert into hourbell.targets (host, created_at) select $1, $2
  where not exists (select from hourbell.targets where host = $1)
  on conflict (host) do nothing returning id)
select id from made union all select id from hourbell.targets where host = $1

-- name: ensure_timetable
-- The timetable of a rhythm; $5 now, $6 its first fire after that.
with made as (
  insert into hourbell.timetables
    (rule, zone, dst_gap, dst_overlap, planned_through, next_fire_at, plan_from, tz_version)
  select $1, $2, $3, $4, $5, $6, $6, $7
  where not exists (select from hourbell.timetables where (rule, zone, dst_gap, dst_overlap) = ($1, $2, $3, $4))
  on conflict (rule, zone, dst_gap, dst_overlap) do nothing returning id)
select id from made
union all
select id from hourbell.timetables where (rule, zone, dst_gap, dst_overlap) = ($1, $2, $3, $4)

-- name: new_ids
-- Ids for $2 jobs that are created at $1.
select array(select hourbell.id_base($1) | (nextval('hourbell.ids') & 4194303) from generate_series(1, $2))

-- name: insert_one_time
-- One-time jobs are their executions. Job k is on the terms $4[k], counted from 1: a batch has many jobs and few terms.
with terms as materialized (
  select * from unnest($6::smallint[], $7::int[], $8::smallint[], $9::boolean[], $10::int[], $11::int[], $12::bigint[],
    $13::int[]) with ordinality
    as t(queue, target, priority, at_most_once, start_seconds, finish_seconds, key, key_limit, k)),
new as materialized (
  select n.*, t.queue, t.target, t.priority, t.at_most_once, t.key, t.key_limit,
    n.at + make_interval(secs => t.start_seconds) as start_by, n.at + make_interval(secs => t.finish_seconds) as finish_by
  from unnest($1::bigint[], $2::timestamptz[], $3::int[], $4::int[], $5::text[]) as n(id, at, tenant, terms, spec)
  join terms as t on t.k = n.terms),
made as (
  insert into hourbell.executions
    (id, occurrence, run_at, tenant, queue, priority, start_by, finish_by, version, origin, at_most_once, spec, target, key,
     key_limit)
  select id, at, at, tenant, queue, priority, start_by, finish_by, 1, 0, at_most_once, spec, target, key, key_limit from new),
timed as (
  insert into hourbell.deadlines (at, id, kind)
  select start_by, id, 0 from new where start_by is not null
  union all
  select finish_by, id, 1 from new where finish_by is not null)
insert into hourbell.due (run_at, id, tenant, queue, priority, target, key)
select at, id, tenant, queue, priority, target, key from new

-- name: insert_recurring
insert into hourbell.jobs
  (id, tenant, queue, priority, timetable, max_runs, starts_at, ends_at, created_at, updated_at, name, spec, target, key,
   key_limit)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9, $10, $11, $12, $13, $14)

-- name: insert_member
-- A membership that has still to join its timetable.
insert into hourbell.members
  (timetable, priority, job, version, active_since, until, tenant, queue, misfire, catch_up_seconds, catch_up_limit,
   overlap, at_most_once, start_deadline_seconds, deadline_seconds, target, key, key_limit)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)

-- name: end_member
-- The present membership of a job ends now: what is due stays its own, what comes is not.
update hourbell.members as m set until = least(m.until, $2)
from hourbell.jobs as j
where j.id = $1 and m.timetable = j.timetable and m.priority = j.priority and m.job = j.id and m.version = j.version

-- name: take_back
-- What was planned ahead for a job and is not yet due.
select hourbell.take_back($1, $2)

-- name: update_recurring
-- A new version. $3: why what is queued is out of date; null: it is not.
update hourbell.jobs
set version = version + 1, valid_from = case when $3::text is null then valid_from else version + 1 end,
    outdated = coalesce($3, outdated), updated_at = $2,
    status = $4, queue = $5, priority = $6, timetable = $7, max_runs = $8, starts_at = $9, ends_at = $10, name = $11,
    spec = $12, target = $13, key = $14, key_limit = $15
where id = $1
returning version

-- name: supersede
select hourbell.supersede($1, $2)

-- name: lock_recurring
select j.*, t.name as tenant_name from hourbell.jobs as j join hourbell.tenants as t on t.id = j.tenant
where j.id = $1 for no key update of j

-- name: recurring
select j.*, t.name as tenant_name from hourbell.jobs as j join hourbell.tenants as t on t.id = j.tenant where j.id = $1

-- name: one_time_live
-- A one-time job that has not ended; `held` when it is paused. (`offset 0`: by its id and nothing else. The index of
-- one-time jobs begins with the tenant, and the planner may walk through all of it.)
select e.id, e.run_at, e.version, e.spec, e.updated_at,
  (select name from hourbell.tenants as t where t.id = e.tenant) as tenant_name,
  exists (select from hourbell.held as h where h.id = e.id) as held
from (select * from hourbell.executions where id = $1 offset 0) as e
where e.job is null

-- name: one_time_ended
select l.id, l.version, l.spec, l.status, l.recorded_at,
  (select name from hourbell.tenants as t where t.id = l.tenant) as tenant_name
from hourbell.ledger as l
where l.id = any (array[$1::bigint]) and l.job = l.id  -- with `=` the planner would forget that job and id are equal
order by l.recorded_at desc limit 1

-- name: take_one_time
-- Takes a waiting one-time job out of `due`, `parked` or `held`, so that nobody else can move it; no row: it is on its way.
with waiting as (
  select e.* from (select * from hourbell.executions where id = $1 offset 0) as e where e.job is null),
from_due as (
  delete from hourbell.due as d using waiting as w
  where d.priority = w.priority and d.run_at = w.run_at and d.id = w.id returning d.id),
from_parked as (delete from hourbell.parked as p using waiting as w where p.id = w.id returning p.id),
from_held as (delete from hourbell.held as h using waiting as w where h.id = w.id returning h.id)
select w.*, exists (select from from_held) as was_held from waiting as w
where exists (select from from_due) or exists (select from from_parked) or exists (select from from_held)

-- name: update_one_time
update hourbell.executions
set occurrence = $2, run_at = $3, queue = $4, priority = $5, start_by = $6, finish_by = $7, at_most_once = $8, spec = $9,
    version = version + 1, updated_at = $10, target = $11, key = $12, key_limit = $13
where id = $1 returning version

-- name: let_go
-- A one-time job that was changed stands in line anew for what it needs.
select hourbell.let_go(array[$1::bigint], true, $2)

-- name: insert_due
-- Puts an execution back among the due, by what it is.
select hourbell.requeue(array[$1::bigint])

-- name: insert_held
insert into hourbell.held (id) values ($1)

-- name: insert_deadlines
insert into hourbell.deadlines (at, id, kind)
select at, $1, kind from (values ($2::timestamptz, 0), ($3::timestamptz, 1)) as d(at, kind) where at is not null

-- name: discard
select hourbell.discard(array[$1::bigint], array[$2::smallint], array[$3::text], $4)

-- name: list_recurring
-- Of all tenants, newest first, before $1; $3 their status, or null.
select j.*, (select name from hourbell.tenants as t where t.id = j.tenant) as tenant_name from hourbell.jobs as j
where j.id < $1 and ($3::smallint is null or j.status = $3)
order by j.id desc limit $2

-- name: list_recurring_of_tenant
-- Of the tenant $3 in the statuses $4, newest first, before $1: the newest of each status, merged. By `-id`, which only
-- the index of tenants has in order: by `id` the planner may walk through everybody's jobs in search of this tenant's.
select j.*, (select name from hourbell.tenants as t where t.id = $3) as tenant_name
from unnest($4::smallint[]) as s(status) cross join lateral (
  select * from hourbell.jobs as j
  where j.tenant = $3 and j.status = s.status and -j.id > -$1::bigint order by -j.id limit $2) as j
order by j.id desc limit $2

-- name: list_one_time_live
-- Newest first, before $1; $3 tenant or null, $4 whether they are paused, or null.
select e.id, e.run_at, e.version, e.spec, e.updated_at,
  (select name from hourbell.tenants as t where t.id = e.tenant) as tenant_name,
  exists (select from hourbell.held as h where h.id = e.id offset 0) as held
from hourbell.executions as e
where e.job is null and e.id < $1 and ($3::int is null or e.tenant = $3)
  and ($4::boolean is null or $4 = exists (select from hourbell.held as h where h.id = e.id offset 0))
order by e.id desc limit $2

-- name: list_one_time_ended
-- Newest first, before $1; $3 tenant or null, $4 whether they came to an end of their own, or null.
select l.id, l.version, l.spec, l.status, l.recorded_at,
  (select name from hourbell.tenants as t where t.id = l.tenant) as tenant_name
from hourbell.ledger as l
where l.job = l.id and l.id < $1 and ($3::int is null or l.tenant = $3)
  and ($4::boolean is null or $4 = (l.status in (0, 1, 4)))
order by l.id desc limit $2

-- name: tenant_by_name
select id from hourbell.tenants where name = $1

-- name: be_brief
-- First in a user's transaction: it waits for nobody for long, and nobody for a client that has stopped in it.
select set_config('lock_timeout', '2s', true), set_config('idle_in_transaction_session_timeout', '30s', true)

-- name: insert_audit
insert into hourbell.audit (at, tenant, job, actor, operation, before, after) values ($1, $2, $3, $4, $5, $6, $7)

-- name: answer
-- The first answer to an idempotent write, if there was one.
select fingerprint, response from hourbell.idempotency
where tenant = (select id from hourbell.tenants where name = $1) and key = $2

-- name: insert_answer
insert into hourbell.idempotency (tenant, key, fingerprint, status, response, created_at) values ($1, $2, $3, 0, $4, $5)
