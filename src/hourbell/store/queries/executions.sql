-- Executions: the statements of run now, backfill, cancel and read.

-- name: insert_run
-- Executions on request for a recurring job: $4 occurrences, due at $2; $3 the origin; $9 the job
-- document that they use instead of the current one, or null. A live occurrence is skipped.
with wanted as materialized (
  select hourbell.next_id(hourbell.id_base($2)) as id, at
  from unnest($4::timestamptz[]) as at),
opened as (
  insert into hourbell.open_runs (job, occurrence, origin, wakes, id)
  select $1, at, $3, $7 <> hourbell.overlap_allow(), id from wanted
  on conflict (job, occurrence, origin)
    where origin in (hourbell.origin_schedule(), hourbell.origin_backfill()) do nothing
  returning id, occurrence),
made as (
  insert into hourbell.executions
    (id, job, occurrence, run_at, start_by, finish_by, tenant, version, queue, priority, origin, overlap, at_most_once,
     target, key, key_limit, spec, notifies)
  select o.id, j.id, o.occurrence, $2, $2 + make_interval(secs => $5), $2 + make_interval(secs => $6), j.tenant,
    j.version, j.queue, j.priority, $3, $7, $8, j.target, j.key, j.key_limit, $9, $10
  from opened as o cross join (select * from hourbell.jobs where id = $1) as j
  returning *),
timed as (
  insert into hourbell.deadlines (at, id, kind)
  select d.at, made.id, d.kind from made cross join lateral (values
    (start_by, hourbell.deadline_start()), (finish_by, hourbell.deadline_finish())) as d(at, kind)
  where d.at is not null),
queued as (
  insert into hourbell.due (run_at, id, tenant, queue, priority, flags, target, key)
  select run_at, id, tenant, queue, priority,
    hourbell.flags_of(overlap, 0::smallint) + hourbell.flags_level(hourbell.level_of(row_number() over ())),
    target, key
  from made)
select id, occurrence from made order by occurrence

-- name: run_one_time
select * from hourbell.run_one_time($1, $2, $3, $4, $5)

-- name: cancel_execution
select *, hourbell.ended() as ended from hourbell.cancel_execution($1, $2, $3, $4, $5)

-- An execution as `execution` shows it: with how it ended (null: it has not), its location if it has
-- not ended, and names.

-- name: execution
-- With its location at $2. (`offset 0`: keeps it an index lookup, whatever the planner's estimates.)
select e.*, w.*, o.*, s.*,
  hourbell.lateness_ms(e.origin, e.id, e.occurrence, coalesce(e.first_started_at, o.started_at, w.claimed_at))
    as lateness_ms,
  exists (select from hourbell.suspects as s
          where s.queue = e.queue and s.priority = e.priority and s.id = e.id offset 0) as in_suspects,
  (select min(requested_at) from hourbell.cancellations as c where c.id = e.id) as cancel_requested_at
from hourbell.executions as e
left join lateral hourbell.end_of(e.id) as o on true
cross join hourbell.slab_index($1, true) as i
left join lateral hourbell.location_of(e, i.ids, i.slabs, o.recorded_at is null, $2) as w on true
cross join lateral hourbell.display_columns(
  e.id, e.job, e.tenant, e.queue, e.spec, e.history, coalesce(o.end_session, w.session)) as s
where e.id = $1

-- name: list_of_job
-- The runs of a recurring job, newest first, before ($2, $3), at most $4; without those planned ahead
-- of $5, now, which a change of the job would still withdraw.
select e.*, w.*, o.*, s.*,
  hourbell.lateness_ms(e.origin, e.id, e.occurrence, coalesce(e.first_started_at, o.started_at, w.claimed_at))
    as lateness_ms
from (
  select e, e.* from hourbell.executions as e
  where e.job = $1 and e.occurrence <= $2 and (e.occurrence, e.id) < ($2, $3)
    and (e.occurrence <= $5 or exists (select from hourbell.outcomes as o where o.id = e.id offset 0))
  order by e.occurrence desc, e.id desc limit $4) as e
left join lateral hourbell.end_of(e.id) as o on true
cross join hourbell.slab_index(null, true) as i
left join lateral hourbell.location_of(e.e, i.ids, i.slabs, o.recorded_at is null, $5) as w on true
cross join lateral hourbell.display_columns(
  e.id, e.job, e.tenant, e.queue, e.spec, e.history, coalesce(o.end_session, w.session)) as s
order by e.occurrence desc, e.id desc

-- name: usual_run
-- How long the latest successes of the recurring job $1 took, among the newest $2 executions that are due by $3, now:
-- their number and their median.
select count(*)::int as runs,
  coalesce(percentile_cont(0.5) within group (order by extract(epoch from o.finished_at - o.started_at)), 0) as seconds
from (
  select id from hourbell.executions where job = $1 and occurrence <= $3 order by occurrence desc limit $2) as e
cross join lateral (select * from hourbell.outcomes as o where o.id = e.id offset 0) as o
where o.fate = hourbell.fate_succeeded() and o.started_at is not null

-- name: last_outcomes
-- The newest $2 executions that are due by $3, now, of each of the jobs $1: how they ended, or their status.
select j.id as of_job, e.id, e.occurrence, o.fate, o.reason, w.status
from unnest($1::bigint[]) as j(id)
cross join lateral (
  (select e, e.id, e.occurrence from hourbell.executions as e
   where e.job = j.id and e.occurrence <= $3 order by e.occurrence desc limit $2)
  union all
  (select e, e.id, e.occurrence from hourbell.executions as e
   where e.id = j.id and e.job is null and e.occurrence <= $3)) as e
left join lateral hourbell.end_of(e.id) as o on true
cross join hourbell.slab_index(null, true) as i
left join lateral hourbell.location_of(e.e, i.ids, i.slabs, o.recorded_at is null, $3) as w on true

-- name: oldest_live
-- The oldest live execution of a job, without those planned ahead of $2, now.
select id from hourbell.live_executions($1) where occurrence <= $2 order by occurrence, id limit 1

-- name: job_spec
-- The job document that an execution uses; null: its job is unknown.
select hourbell.job_spec(job, spec) from hourbell.executions where id = $1

-- name: host
-- The host of a target.
select host from hourbell.targets where id = $1

-- name: queue_served
-- Whether a live session serves a queue.
select exists (
  select from hourbell.sessions where (all_queues or $1::smallint = any (queues)) and expires_at > $2) as served

-- name: unserved_task
-- The task of an execution or a job, if no live session takes it.
select k.name from hourbell.tasks as k
where k.id = -coalesce(
    (select target from hourbell.executions where id = $1), (select target from hourbell.jobs where id = $1))
  and not exists (
    select from hourbell.sessions as s where s.expires_at > $2 and (s.tasks is null or k.id = any (s.tasks)))

-- Lists across jobs, by id, newest first, before $1 and not before $4: the first $2 rows that are
-- `wanted`, among the $3 newest, and the last of these if the walk ends there
-- (engine/views/pages.py). $5 the tenant, $6 the statuses of those that have not ended, $7 the queue,
-- $8 a label of the job as `name:value`, $9 the codes of those that have ended, $10 now, $11 the
-- reason; each of $5 to $9 and $11 may be null. $12: whether any that has not ended is asked for.
-- Executions that are only planned ahead are left out. Cheap conditions come first: an execution without an ended
-- attempt is not RETRYING, wherever it is.

-- name: list_all
select e.*, s.*,
  hourbell.lateness_ms(e.origin, e.id, e.occurrence, coalesce(e.first_started_at, e.started_at, e.claimed_at))
    as lateness_ms
from (
  select e.*, w.*, row_number() over (order by e.id desc) as pos,
    e.fits and (e.recorded_at is not null or $6::text[] is null or w.status = any ($6)) as wanted
  from (
    select e.*, o.*, ($7::smallint is null or e.queue = $7)
      and ($8::text is null or hourbell.is_wanted(hourbell.job_spec(e.job, e.spec), null, $8))
      and case when o.recorded_at is null then $12 and (e.job is null or e.occurrence <= $10 or e.attempt > 0)
          and (e.attempt > 0 or $6::text[] is distinct from '{RETRYING}')
        else ($9::smallint[] is null or o.fate = any ($9)) and ($11::text is null or o.reason = $11) end as fits
    from (
      select e, e.* from hourbell.executions as e where $5::int is null and id < $1 and id >= $4
      order by id desc limit $3) as e
    left join lateral hourbell.end_of(e.id) as o on true) as e
  cross join hourbell.slab_index(null, $12 and coalesce($6::text[] && '{RUNNING,AWAITING,QUEUED}', true)) as i
  left join lateral hourbell.location_of(e.e, i.ids, i.slabs, e.fits and e.recorded_at is null, $10) as w on true) as e
cross join lateral hourbell.display_columns(
  e.id, e.job, e.tenant, e.queue, e.spec, e.history, coalesce(e.end_session, e.session)) as s
where e.wanted or e.pos = $3
order by e.id desc limit $2

-- name: list_one_time
-- One-time jobs of a tenant, as a range condition: only their index is ordered by (tenant, id).
select e.*, s.*,
  hourbell.lateness_ms(e.origin, e.id, e.occurrence, coalesce(e.first_started_at, e.started_at, e.claimed_at))
    as lateness_ms
from (
  select e.*, w.*, row_number() over (order by e.tenant desc, e.id desc) as pos,
    e.fits and (e.recorded_at is not null or $6::text[] is null or w.status = any ($6)) as wanted
  from (
    select e.*, o.*, ($7::smallint is null or e.queue = $7)
      and ($8::text is null or hourbell.is_wanted(hourbell.job_spec(e.job, e.spec), null, $8))
      and case when o.recorded_at is null then $12 and (e.job is null or e.occurrence <= $10 or e.attempt > 0)
          and (e.attempt > 0 or $6::text[] is distinct from '{RETRYING}')
        else ($9::smallint[] is null or o.fate = any ($9)) and ($11::text is null or o.reason = $11) end as fits
    from (
      select e, e.* from hourbell.executions as e
      where job is null and (tenant, id) < ($5, $1) and (tenant, id) >= ($5, $4)
      order by tenant desc, id desc limit $3) as e
    left join lateral hourbell.end_of(e.id) as o on true) as e
  cross join hourbell.slab_index(null, $12 and coalesce($6::text[] && '{RUNNING,AWAITING,QUEUED}', true)) as i
  left join lateral hourbell.location_of(e.e, i.ids, i.slabs, e.fits and e.recorded_at is null, $10) as w on true) as e
cross join lateral hourbell.display_columns(
  e.id, e.job, e.tenant, e.queue, e.spec, e.history, coalesce(e.end_session, e.session)) as s
where e.wanted or e.pos = $3
order by e.tenant desc, e.id desc limit $2

-- name: list_recurring
-- Runs of recurring jobs of a tenant.
select e.*, s.*,
  hourbell.lateness_ms(e.origin, e.id, e.occurrence, coalesce(e.first_started_at, e.started_at, e.claimed_at))
    as lateness_ms
from (
  select e.*, w.*, row_number() over (order by e.tenant desc, e.id desc) as pos,
    e.fits and (e.recorded_at is not null or $6::text[] is null or w.status = any ($6)) as wanted
  from (
    select e.*, o.*, ($7::smallint is null or e.queue = $7)
      and ($8::text is null or hourbell.is_wanted(hourbell.job_spec(e.job, e.spec), null, $8))
      and case when o.recorded_at is null then $12 and (e.job is null or e.occurrence <= $10 or e.attempt > 0)
          and (e.attempt > 0 or $6::text[] is distinct from '{RETRYING}')
        else ($9::smallint[] is null or o.fate = any ($9)) and ($11::text is null or o.reason = $11) end as fits
    from (
      select e, e.* from hourbell.executions as e
      where job is not null and (tenant, id) < ($5, $1) and (tenant, id) >= ($5, $4)
      order by tenant desc, id desc limit $3) as e
    left join lateral hourbell.end_of(e.id) as o on true) as e
  cross join hourbell.slab_index(null, $12 and coalesce($6::text[] && '{RUNNING,AWAITING,QUEUED}', true)) as i
  left join lateral hourbell.location_of(e.e, i.ids, i.slabs, e.fits and e.recorded_at is null, $10) as w on true) as e
cross join lateral hourbell.display_columns(
  e.id, e.job, e.tenant, e.queue, e.spec, e.history, coalesce(e.end_session, e.session)) as s
where e.wanted or e.pos = $3
order by e.tenant desc, e.id desc limit $2

-- name: list_running
-- Running executions, and those accepted by their target, are found by their leases: they are few
-- among many that wait. All of these are sorted by id before any is looked up.
select e.*, s.*, null::timestamptz as recorded_at,
  hourbell.lateness_ms(e.origin, e.id, e.occurrence, coalesce(e.first_started_at, e.claimed_at))
    as lateness_ms
from (
  select (e.e).*, e.claimed_at, e.lease_fence, e.session, e.status, e.pos,
    (select p.progress from hourbell.progress as p where p.id = (e.e).id and p.fence = e.lease_fence) as progress,
    (select s.worker from hourbell.sessions as s where s.id = e.session) as worker,
    ($5::int is null or (e.e).tenant = $5) and ($7::smallint is null or (e.e).queue = $7)
      and ($8::text is null or hourbell.is_wanted(hourbell.job_spec((e.e).job, (e.e).spec), null, $8)) as wanted
  from (
    select e.e, l.claimed_at, l.fence as lease_fence, l.session,
      hourbell.live_status(e.e, false, false, l.session, null) as status,
      row_number() over (order by l.id desc) as pos
    from (
      select l.session, l.fence, l.claimed_at, i.id from hourbell.leased as l cross join lateral unnest(l.ids) as i(id)
      where i.id < $1 and i.id >= $4
        and case l.session when hourbell.awaiting_session() then 'AWAITING' else 'RUNNING' end = any ($6::text[])
      order by i.id desc offset 0) as l
    cross join lateral (
      select e from hourbell.executions as e where e.id = l.id
        and not exists (select from hourbell.outcomes as o where o.id = e.id offset 0) offset 0) as e
    limit $3) as e) as e
cross join lateral hourbell.display_columns(e.id, e.job, e.tenant, e.queue, e.spec, e.history, e.session) as s
where e.wanted or e.pos = $3
order by e.id desc limit $2
