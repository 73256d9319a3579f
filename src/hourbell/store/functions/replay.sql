-- Replaying: a dead execution becomes due again, under the same id.

-- Takes executions that have ended out of the slabs that still name them because others of these run. A replay does
-- this first, in a transaction of its own, so that it does not hold their lock until its client commits.
create or replace function hourbell.leave_slabs(p_ids bigint[]) returns void
language plpgsql set plan = lookups as $$
begin
  perform hourbell.shrink_slabs(array(
    select ctid from hourbell.leased as l where cardinality(l.ids) > 1 and l.ids && p_ids
    order by session, fence for update), p_ids);
end $$;

-- Replays the dead letter p_ids[k] at p_run_at[k]: an execution of a recurring job by the job's current version and
-- policies, a one-time job by its own. Its deadlines are counted again from that time. Attempts and fence continue to
-- count, and its lateness stays that of its first start; its retries start over. Returns the ids that were replayed.
-- Letters that cannot be replayed stay: the job was deleted, the same occurrence was backfilled again and is live, or
-- another job has the unique key of the one-time job.
-- Letters locked by another transaction are skipped.
create or replace function hourbell.replay(p_ids bigint[], p_run_at timestamptz[], p_now timestamptz) returns bigint[]
language plpgsql set plan = lookups_one_by_one as $$
#variable_conflict use_column
declare
  locked bigint[];
  replayed bigint[];
begin
  locked := array(
    select d.id from unnest(p_ids) as w(id) cross join lateral (
      select id from hourbell.dead_letters as d where d.id = w.id for update skip locked) as d);
  if locked = '{}' then return '{}'; end if;
  locked := array(
    select id from unnest(locked) as l(id)
    where id not in (select * from unnest(hourbell.take_keys_back(p_now, locked))));
  with letters as materialized (
    select e.*, w.at, d.died_at, j.id is not null as recurs, hourbell.as_json(coalesce(j.spec, e.spec)) as said,
      j.version as job_version, j.queue as job_queue, j.priority as job_priority, j.target as job_target,
        j.key as job_key, j.key_limit as job_key_limit
    from unnest(p_ids, p_run_at) as w(id, at)
    cross join lateral (select * from hourbell.dead_letters as d
      where d.id = w.id and d.id = any (locked) offset 0) as d
    cross join lateral jsonb_populate_record(null::hourbell.executions, d.execution) as e
    left join hourbell.jobs as j on j.id = e.job
    where e.job is null or j.status <> hourbell.job_cancelled()),
  opened as (
    insert into hourbell.open_runs (job, occurrence, origin, wakes, id)
    select job, occurrence, origin, true, id from letters where job is not null
    on conflict do nothing
    returning id),
  -- Its row is still there, unless its partition has been dropped.
  made as (
    insert into hourbell.executions as e
      (id, job, occurrence, run_at, fence, start_by, finish_by, first_started_at, tenant, version, attempt, queue,
       priority, origin, overlap, at_most_once, spec, history, updated_at, target, key, key_limit, replayed_attempt,
       replayed_fence, notifies)
    select id, job, occurrence, at, fence, at + make_interval(secs => (said ->> 'start_deadline_seconds')::int),
      at + make_interval(secs => (said ->> 'deadline_seconds')::int),
      -- One whose first attempt was its last has it in the history only.
      coalesce(first_started_at, (history -> 0 ->> 'started_at')::timestamptz), tenant,
      coalesce(job_version, version), attempt, coalesce(job_queue, queue), coalesce(job_priority, priority), origin,
      case
        when not recurs then hourbell.overlap_allow()
        when said ->> 'overlap_policy' = 'forbid' then hourbell.overlap_forbid()
        when said ->> 'overlap_policy' = 'replace' then hourbell.overlap_replace()
        when said ->> 'overlap_policy' = 'queue_one' then hourbell.overlap_queue_one()
        else hourbell.overlap_allow() end,
      coalesce(said ->> 'delivery' = 'at_most_once', said is null and at_most_once), spec, history, updated_at,
      case when recurs then job_target else target end, case when recurs then job_key else key end,
      case when recurs then job_key_limit else key_limit end, attempt, fence, (
        select coalesce(bit_or(case w.word
          when 'success' then hourbell.event_success()
          when 'failure' then hourbell.event_failure()
          else hourbell.event_dead_letter() end), 0)
        from json_array_elements(said -> 'notifications') as n(one)
        cross join lateral json_array_elements_text(n.one -> 'on') as w(word))
    from letters where job is null or id in (select id from opened)
    on conflict (id) do update
    set run_at = excluded.run_at, fence = excluded.fence, start_by = excluded.start_by, finish_by = excluded.finish_by,
      first_started_at = excluded.first_started_at, version = excluded.version, attempt = excluded.attempt,
      queue = excluded.queue, priority = excluded.priority, overlap = excluded.overlap, crashes = 0,
      at_most_once = excluded.at_most_once, history = excluded.history, target = excluded.target, key = excluded.key,
      key_limit = excluded.key_limit, replayed_attempt = excluded.replayed_attempt,
      replayed_fence = excluded.replayed_fence, waits_for = null, notifies = excluded.notifies
    returning id, tenant, job, origin, start_by, finish_by),
  undone as (delete from hourbell.outcomes where id = any (array(select id from made))),
  counted as (
    insert into hourbell.quota_jobs (tenant, id)
    select tenant, id from made
    where job is null and origin = hourbell.origin_schedule()
      and tenant = any (array(select id from hourbell.tenants where max_jobs is not null))
    on conflict (tenant, id) do update set id = excluded.id),  -- else `check_quota_jobs` might delete it
  gone as (delete from hourbell.dead_letters where id = any (array(select id from made)) returning id, died_at),
  noted as (insert into hourbell.replays (id, died_at, replayed_at) select id, died_at, p_now from gone),
  timed as (
    insert into hourbell.deadlines (at, id, kind)
    select d.at, made.id, d.kind from made cross join lateral (values
      (start_by, hourbell.deadline_start()), (finish_by, hourbell.deadline_finish())) as d(at, kind)
    where d.at is not null)
  select array_agg(id) into replayed from made;
  if replayed is null then return '{}'; end if;
  delete from hourbell.reruns where id = any (replayed);
  -- What no run has got yet is a report that still counts, but not that nothing was reported in time.
  update hourbell.waits set outcome = null, value = null, seen_attempt = null
  where id = any (replayed) and (outcome = 'TIMED_OUT' or outcome = 'FAILED' and seen_attempt is not null);
  perform hourbell.leave_slabs(replayed);
  perform hourbell.requeue(replayed);
  return replayed;
end $$;
