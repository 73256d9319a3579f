-- A database of some size, for the plan guards: 600,000 jobs on twenty thousand timetables, 200,000 live executions,
-- 540,000 recorded ones in 31 days, ten thousand tenants. `$now` is the moment at which all this stands still.
-- Every spread is a remainder, nothing is random. An id begins with its milliseconds: `id_base` of one moment, and what was added
-- to that, shifted by 22 bits.

-- Nobody gathers statistics before a test says so.
do $$
declare name regclass;
begin
  perform hourbell.make_partitions($now - interval '30 days', 32, 3);
  for name in select c.oid from pg_class as c where c.relnamespace = 'hourbell'::regnamespace and c.relkind = 'r' loop
    execute format('alter table %s set (autovacuum_enabled = off)', name);
  end loop;
end $$;

-- Inserts leave B-trees alone, which are built at the end: half of the work. The BRIN index is not: it would summarize what it
-- has not summarized yet when rows have just been inserted.
create temporary table known on commit drop as
select oid, relpages, reltuples, relallvisible from pg_class where relnamespace = 'hourbell'::regnamespace;

update pg_index set indisready = false, indisvalid = false
where indexrelid in (
  select c.oid from pg_class as c join pg_am as a on a.oid = c.relam
  where c.relnamespace = 'hourbell'::regnamespace and c.relkind = 'i' and a.amname = 'btree');

insert into hourbell.tenants (name, weight, created_at)
select 'tenant-' || n, 1 + n % 3, $now - interval '90 days' from generate_series(1, 10000) as n;

insert into hourbell.queues (name, created_at)
select name, $now - interval '90 days' from unnest(array['default', 'mail', 'reports', 'billing']) as name;

-- Timetables 1 to 3 are the herds; 50 are to be fired within the horizon.
insert into hourbell.timetables (rule, zone, dst_gap, dst_overlap, planned_through, next_fire_at, plan_from, tz_version)
select '@every 86400+' || n, 'UTC', 'run_after', 'once', $now - interval '1 hour',
  $now + n * interval '17 s', $now + n * interval '17 s', '2026a'
from generate_series(1, 20000) as n;

-- Jobs 1 to 450,000 ride the herds, the others seven or eight to a timetable. Every tenth belongs to tenant 1.
create unlogged table hourbell.big_jobs as
select n, (select hourbell.id_base($now - interval '40 days')) + (n * 3000::bigint << 22) | n as id,
  case when n % 10 = 0 then 1 else 2 + n % 9999 end as tenant,
  case when n <= 200000 then 1 when n <= 350000 then 2 when n <= 450000 then 3 else 4 + n % 19997 end as timetable,
  (case when n % 20 = 0 then 0 when n % 5 = 0 then 1 when n % 2 = 0 then 3 else 2 end)::smallint as priority,
  (case when n % 8 = 0 then 2 else 1 end)::smallint as queue,
  (case when n % 25 = 0 then 1 + n / 25 % 3 else 0 end)::smallint as overlap
from generate_series(1, 600000) as n;
alter table hourbell.big_jobs add primary key (n);

set local session_replication_role = replica;  -- no look-ups of foreign keys row by row

insert into hourbell.jobs
  (id, tenant, queue, priority, status, timetable, created_at, updated_at, name, spec)
select id, tenant, queue, priority, (n % 50 = 7)::int, timetable, $now - interval '40 days', $now - interval '40 days',
  'job-' || n, '{"name":"job","action":{"type":"TASK","name":"noop"},"type":"RECURRING","schedule":{"kind":"cron","cron":"0 0 * * *"}}'
from hourbell.big_jobs;

insert into hourbell.memberships
  (timetable, priority, job, version, active_since, joined_through, until, tenant, queue, misfire, catch_up_seconds,
   catch_up_limit, overlap, at_most_once)
select timetable, priority, id, 1, $now - interval '40 days', $now - interval '40 days',
  case when n % 100 = 3 then $now + n * interval '1 s' end, tenant, queue, 1, 86400, 100, overlap, false
from hourbell.big_jobs where n % 50 <> 7;

-- Live executions, one a number: 150,000 of the schedule, 45,000 one-time, 5,000 on request.
create unlogged table hourbell.big_live as
select g.n, (select hourbell.id_base($now - interval '1 hour')) + (g.n * 10::bigint << 22) | g.n as id, j.id as job, coalesce(j.overlap, 0) as overlap,
  coalesce(j.tenant, case when g.n % 10 = 0 then 1 else 2 + g.n % 9999 end) as tenant,
  coalesce(j.queue, 1) as queue, coalesce(j.priority, 2) as priority, (g.n > 195000)::int as origin,
  case
    when g.n % 5 < 2 and g.n % 200 < 40 then 'overdue'
    when g.n % 5 < 2 then 'ahead'
    when g.n % 5 < 4 then 'ready'
    when g.n % 40 = 4 and j.id is not null then 'parked'
    when g.n % 10 = 9 then 'leased'
    else 'retrying'
  end as place
from generate_series(1, 200000) as g(n)
left join hourbell.big_jobs as j on j.n = g.n * 3 and (g.n <= 150000 or g.n > 195000);

insert into hourbell.executions
  (id, job, occurrence, run_at, tenant, version, attempt, fence, queue, priority, origin, overlap, start_by, finish_by, spec)
select id, job, run_at, run_at, tenant, 1, (place = 'retrying')::int, (place = 'retrying')::int, queue, priority, origin,
  overlap, case when n % 4 = 0 then run_at + interval '1 hour' end, case when n % 4 = 0 then run_at + interval '2 hours' end,
  case when job is null then
    '{"name":"job","action":{"type":"TASK","name":"noop"},"type":"ONE_TIME","schedule":{"kind":"once","at":"2026-01-01T00:00:00Z"}}'::json
  end
from (select *, case when place in ('ahead', 'retrying') then $now + n * interval '300 us'
                     else $now - n * interval '1 ms' end as run_at from hourbell.big_live) as l;

insert into hourbell.open_runs (job, occurrence, origin, wakes, id)
select job, occurrence, origin, overlap > 0, id from hourbell.executions where job is not null;

insert into hourbell.due (run_at, id, tenant, queue, priority, flags)
select e.run_at, l.id, l.tenant, l.queue, l.priority, (l.overlap > 0)::int
from hourbell.big_live as l join hourbell.executions as e using (id) where place in ('overdue', 'ahead', 'retrying');

insert into hourbell.parked (kind, key, priority, rank, id)
select 5, job, 0, n, id from hourbell.big_live where place = 'parked';

insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, limited, ids)
select 1000 + min(n), 1000 + max(n), 0, 0, queue, priority, false, array_agg(id order by n)
from (
  select *, row_number() over (partition by queue, priority order by n) / 100 as slab from hourbell.big_live where place = 'ready') as r
group by queue, priority, slab;

insert into hourbell.sessions (id, token, worker, queues, slots, started_at, renewed_at, expires_at)
select nextval('hourbell.session_ids'), gen_random_uuid(), 'worker-' || n, '{1,2,3,4}', 500,
  $now - interval '1 hour', $now - interval '5 s', $now + interval '10 s'
from generate_series(1, 50) as n;

insert into hourbell.leased (session, fence, claimed_at, claim, alone, limited, notifies, ids, versions)
select 1 + n / 10 % 50, min(n), $now - interval '10 s', 1 + n / 5000, false, false, false, array_agg(id order by n), array_agg(1)
from hourbell.big_live where place = 'leased' group by 1 + n / 10 % 50, n / 5000;

-- What is parked waits for a run on request of the same job.
with under_way as (
  insert into hourbell.executions (id, job, occurrence, run_at, tenant, version, queue, priority, origin, overlap)
  select id + 1000000, job, $now, $now, tenant, 1, queue, priority, 1, 3 from hourbell.big_live where place = 'parked'
  returning *),
opened as (
  insert into hourbell.open_runs (job, occurrence, origin, wakes, id)
  select job, occurrence, origin, true, id from under_way)
insert into hourbell.leased (session, fence, claimed_at, claim, alone, limited, notifies, ids, versions)
select 1 + row_number() over () % 50, 1, $now - interval '10 s', 1, false, false, false, array[id], array[1] from under_way;

insert into hourbell.deadlines (at, id, kind)
select d.at, e.id, d.kind from hourbell.executions as e
cross join lateral (values (e.start_by, 0), (e.finish_by, 1)) as d(at, kind) where d.at is not null;

insert into hourbell.cancellations (id, requested_at)
select id, $now from hourbell.big_live where place = 'leased' and n % 100 = 9 or place = 'ready' and n % 100 = 2;

insert into hourbell.lanes (space, priority, block, tenants, lasts, pass)
select q, p, t >> 6, array_agg(t), array_agg(1000 + t), nextval('hourbell.passes')
from generate_series(1, 2) as q, generate_series(0, 3) as p, generate_series(1, 10000) as t group by q, p, t >> 6;

insert into hourbell.virtual_time (queue, priority, v, highest, pass)
select queue, priority, min(tag), max(tag), nextval('hourbell.passes') from hourbell.ready group by queue, priority;

insert into hourbell.due_marks (tier, due_from, swept_at, pass)
select p, min(run_at), $now - interval '500 ms', nextval('hourbell.passes')
from generate_series(0, 3) as p join hourbell.due on priority = p group by p;

-- What has ended: one job has run every minute, 10,000 jobs daily; of the rest some ran once, and some were one-time.
create unlogged table hourbell.big_ended as
select (select hourbell.id_base($now)) - (fence * 60000::bigint << 22) | fence as id, j.id as job, fence, at, j.tenant, 0 as status
from generate_series(1, 43200) as g(minute)
cross join lateral (select g.minute as fence, $now - g.minute * interval '1 minute' as at) as t
join hourbell.big_jobs as j on j.n = 600000
union all
select (select hourbell.id_base($now)) + (j.n - d * 86400000::bigint << 22) | (j.n + 43200), j.id, fence, at, j.tenant, 0
from generate_series(1, 30) as d
join hourbell.big_jobs as j on j.n <= 10000
cross join lateral (select d * 10000 + j.n as fence, $now - d * interval '1 day' + j.n * interval '1 ms' as at) as t
union all
select (select hourbell.id_base($now)) - (n * 12900::bigint << 22) | (n + 100000), case when n % 3 <> 0 then 1 + n % 1000 end, n, at,
  case when n % 10 = 0 then 1 else 2 + n % 9999 end, (n % 50 = 0)::int
from generate_series(1, 200000) as n
cross join lateral (select $now - n * interval '12.9 s' as at) as t;

insert into hourbell.executions (id, job, occurrence, run_at, tenant, version, queue, priority, origin, spec)
select id, job, at, at, tenant, 1, 1, 2, 0, case when job is null then
  '{"name":"job","action":{"type":"TASK","name":"noop"},"type":"ONE_TIME","schedule":{"kind":"once","at":"2026-01-01T00:00:00Z"}}'
  end
from hourbell.big_ended order by id;

insert into hourbell.outcomes (id, fence, started_at, finished_at, recorded_at, session, version, fate)
select id, fence, at, at, at, 1, case when job is not null then 1 end, status from hourbell.big_ended order by id;

insert into hourbell.dead_letters (id, job, tenant, died_at, reason, execution)
select n, n, 1 + n % 10000, $now - n * interval '1 minute', 'retries_exhausted', '{}' from generate_series(1, 10000) as n;

insert into hourbell.idempotency (tenant, key, fingerprint, response, created_at)
select 1 + n % 10000, 'key-' || n, '\x00', '{}', $now - n * interval '1 s' from generate_series(1, 200000) as n;

insert into hourbell.audit (at, tenant, job, actor, operation)
select $now - n * interval '1 s', tenant, id, 'anonymous', 'create' from hourbell.big_jobs where n <= 200000;

-- 10,000 one-time executions that their targets have accepted, and twice as many that were completed.
insert into hourbell.sessions (id, token, worker, queues, slots, started_at, renewed_at, expires_at)
values (0, '00000000-0000-0000-0000-000000000000', 'awaiting', '{}', 0, '-infinity', '-infinity', 'infinity');

create unlogged table hourbell.big_awaiting as
select n, hourbell.id_base($now - interval '2 hours' + n * interval '10 ms') | n as id from generate_series(1, 10000) as n;

insert into hourbell.executions (id, occurrence, run_at, tenant, version, queue, priority, origin, spec)
select id, $now - interval '2 hours', $now - interval '2 hours', 1 + n % 10000, 1, 1, 2, 0,
  '{"name":"job","action":{"type":"TASK","name":"noop"},"type":"ONE_TIME","schedule":{"kind":"once","at":"2026-01-01T00:00:00Z"}}'
from hourbell.big_awaiting;

insert into hourbell.leased (session, fence, claimed_at, claim, alone, limited, notifies, ids)
select 0, n, $now - interval '2 hours', 1, false, false, false, array[id] from hourbell.big_awaiting;

insert into hourbell.awaiting (id, fence, until, begun_ms, token, outcome)
select id, n, $now + (n - 500) * interval '1 s', 1, sha256(n::text::bytea), null from hourbell.big_awaiting
union all
select n, 1, $now - n * interval '5 s', 1, sha256(n::text::bytea), 'SUCCEEDED' from generate_series(1, 20000) as n;

-- Every fifth job has a unique key, 50,000 more were left by one-time jobs that are over.
insert into hourbell.unique_keys (tenant, space, key, job)
select tenant, 0, 'unique-' || n, id from hourbell.big_jobs where n % 5 = 0
union all
select 1 + n % 10000, 0, 'over-' || n, n from generate_series(1, 50000) as n;

insert into hourbell.api_keys (id, tenant, role, name, digest, created_at, revoked_at)
select n, case when n % 10 > 0 then 1 + n % 10000 end, case when n % 10 > 0 then 'producer' else 'worker' end, 'key-' || n,
  sha256(n::text::bytea), $now - interval '40 days', case when n % 3 = 0 then $now end
from generate_series(1, 50000) as n;
insert into hourbell.api_keys (id, role, name, digest, created_at) values (25001000, 'admin', 'admin', sha256('admin'), $now);

insert into hourbell.secrets (tenant, name, sealed, sealed_by, created_at, updated_at)
select 1 + n % 10000, 'secret-' || n, '\x00', 'k1', $now, $now from generate_series(1, 50000) as n;

insert into hourbell.monitors
  (id, tenant, job, created_at, since, looked_at, expected_at, check_at, deleted_at, grace_seconds, url, headers)
select 1000000 + n, tenant, id, $now - interval '9 days', $now - interval '9 days', $now, $now + interval '1 hour',
  case when n % 10 > 0 then $now + interval '1 hour' end, case when n % 10 = 0 then $now end, 60, '', '{}'
from hourbell.big_jobs where n > 500000 and n <= 550000;

insert into hourbell.targets (host, created_at) select 'host-' || n || '.example', $now from generate_series(1, 50000) as n;

insert into hourbell.past_sessions (id, token, ended_at)
select n, gen_random_uuid(), $now - n * interval '1 minute' from generate_series(1000, 11000) as n;

insert into hourbell.replays (id, died_at, replayed_at)
select n, $now - n * interval '1 s', $now from generate_series(1, 20000) as n;

insert into hourbell.leadership (epoch, node, renewed_at, expires_at)
values (1, '00000000-0000-0000-0000-000000000001', $now, 'infinity');

set local maintenance_work_mem = '128 MB';
do $$
declare name regclass;
begin
  for name in select indexrelid from pg_index where not indisready loop
    execute format('reindex index %s', name);
  end loop;
end $$;

-- Building an index counts the rows of its table; nobody has counted them yet.
update pg_class set relpages = k.relpages, reltuples = k.reltuples, relallvisible = k.relallvisible
from known as k where k.oid = pg_class.oid;

-- As autovacuum does while rows are inserted.
do $$
begin
  perform brin_summarize_new_values(c.oid) from pg_class as c join pg_am as a on a.oid = c.relam
  where a.amname = 'brin' and c.relkind = 'i' and c.relnamespace = 'hourbell'::regnamespace;
end $$;
