-- Why and until when jobs are paused.

-- name: pauses
-- The pauses of the jobs $1 for which their owners gave a reason or an end.
select job, reason, operation from hourbell.pauses where job = any ($1)

-- name: pauses_of
-- The pauses of the paused jobs $1: as their owners gave them, or else by the audit trail, among the latest changes of
-- each job.
select p.job, p.at, p.actor, p.reason, p.until from hourbell.pauses as p where p.job = any ($1)
union all
select w.job, a.at, a.actor, null, null
from unnest($1::bigint[]) as w(job)
cross join lateral (
  select a.at, a.actor
  from (
    select * from hourbell.audit where (job, id) <= (w.job, 9223372036854775807) and job >= w.job
    order by job desc, id desc limit 200) as a
  where a.operation = 'pause' limit 1) as a
where not exists (select from hourbell.pauses as p where p.job = w.job offset 0)

-- name: pauses_to_check
-- The first $2 pauses to look at by $1: whether the job is still paused, and the version of the job. A pause that is
-- changed later gives the job another version.
select p.job, p.until, p.look_at, coalesce(j.version, e.version) as version,
  coalesce(j.status = hourbell.job_paused(), e.id is not null) as is_paused
from (select * from hourbell.pauses where look_at <= $1 order by look_at limit $2) as p
left join lateral (select version, status from hourbell.jobs as j where j.id = p.job offset 0) as j on true
left join lateral (
  select h.id, (select version from hourbell.executions as e where e.id = h.id) as version
  from hourbell.paused as h where h.id = p.job offset 0) as e on true

-- name: look_later
-- Look at the pauses of the jobs $1 again at $3, unless they have changed since they were read ($2).
update hourbell.pauses as p set look_at = $3
from unnest($1::bigint[], $2::timestamptz[]) as seen(job, look_at)
where p.job = seen.job and p.look_at = seen.look_at

-- name: forget_pauses
-- Delete the pauses of jobs that are no longer paused, unless they have changed since they were read.
delete from hourbell.pauses as p using unnest($1::bigint[], $2::timestamptz[]) as seen(job, look_at)
where p.job = seen.job and p.look_at = seen.look_at

-- name: change_jobs
select outcomes, hourbell.ended() as ended from hourbell.change_jobs($1, $2, $3::text[]::json[], $4) as outcomes

-- name: pause_end
-- When the pause of a job ends by itself; null: it does not.
select until from hourbell.pauses where job = $1
