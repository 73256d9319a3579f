-- Rows on which a step fails, and which it leaves out for a while (functions/isolation.sql).

-- name: note
-- Notes one; true: it is new.
select hourbell.note_failing($1, $2, $3, $4, $5, $6)

-- name: list
-- What failed after $1, by job or execution, the first $3 of them: of the tenant $2, or of all.
select f.step, f.n, f.since, f.job, f.execution, f.problem, t.name as tenant_name, coalesce(
  (select name from hourbell.jobs as j where j.id = f.job), (
    select hourbell.as_json(e.spec) ->> 'name' from hourbell.executions as e where e.id = f.job)) as job_name
from (
  select step, job, count(*)::int as n, min(since) as since, max(execution) as execution, max(problem) as problem
  from (select * from hourbell.failing_rows where until > $1 order by until limit 10000) as f
  group by step, job, case when job is null then id end) as f
left join lateral (
  select tenant from hourbell.jobs as j where j.id = f.job
  union all select tenant from hourbell.executions as e where e.id = coalesce(f.execution, f.job) limit 1) as o on true
left join hourbell.tenants as t on t.id = o.tenant
where $2::int is null or o.tenant = $2
order by f.since limit $3

-- name: forget
-- Deletes what has not failed since $1.
delete from hourbell.failing_rows where until < $1
