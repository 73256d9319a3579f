-- Functions that other programs call, in any language and inside any transaction: a trigger, psql, an application that
-- shares the database. Their names, arguments and results do not change; what they call is a function of the build that
-- was migrated last (store/function_set.py).
--
-- A function takes the collation of its arguments, and a name has the collation "C": without `collate "default"` the
-- functions that are called here could not use an index of text.
--
-- They run with the privileges of their owner, so all names in them are qualified and the search path is fixed. PUBLIC
-- may not execute them: `hourbell migrate --grant-enqueue-to ROLE`. The SET clauses restore the caller's settings.
-- A new argument of `enqueue` needs a migration that drops the old function and grants the new one.

-- For libraries. Creates jobs, all or none, and returns a row for each: its place (from 1), its id, `created` or `kept`
-- (on_duplicate is keep, and `holder` has the unique key). If something is refused, nothing is created, no error is
-- raised, and the rows are those that were refused: `invalid`, `unknown_task`, `unknown_queue`, `unknown_tenant`,
-- `duplicate` (by `holder`), `busy` (another open transaction has locked the `unique_key` of one of the jobs, the
-- `idempotency_key` or the `quota` of a tenant; `detail` says which of the three), `over_quota`.
--   options      a JSON array of the sets of options that jobs share: task, tenant, queue, priority, delay_seconds,
--                timeout_seconds, retry_policy, delivery, expires_at or expires_in_seconds (after the time of the job),
--                deadline_seconds, concurrency_key, concurrency_limit, on_duplicate, labels, notify,
--                idempotency_key (of one job: a repeated call returns it as kept, also when it has ended),
--                traceparent (the span that creates the job, which continues its trace) or trace_link (its run has a
--                trace of its own, linked to the span); ignored if it is not valid
--   payloads     a JSON object for each job
--   options_of   the number of the job's set of options, from 1; null: the first
--   at           when the job runs; null: after delay_seconds of its options
--   unique_keys  unique among the tenant's jobs that have not ended; null: none
create or replace function hourbell.try_enqueue(
  options text, payloads text[], options_of int[] default null, at timestamptz[] default null,
  unique_keys text[] default null
) returns table (place int, job_id bigint, outcome text, holder bigint, detail text)
language sql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '2s' set idle_in_transaction_session_timeout = 0 as $$
  select * from hourbell.enqueue_jobs($1, $2, $3, $4, $5, ('role ' || session_user) collate "default")
$$;

-- For people: creates one job and returns its id, or raises an error with a SQLSTATE from HB001 to HB007, a detail and
-- a hint. What is not given comes from the options that a worker of the task has declared; labels are added to the
-- declared ones. A unique key is one of the task: another task may have a job with the same one.
create or replace function hourbell.enqueue(
  task text, payload json default '{}', at timestamptz default null, delay interval default null,
  queue text default null, priority text default null, tenant text default null, unique_key text default null,
  on_duplicate text default null, concurrency_key text default null, concurrency_limit int default null,
  expires_at timestamptz default null, deadline interval default null, timeout interval default null,
  retry json default null, labels json default null, notify boolean default null
) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '2s' set idle_in_transaction_session_timeout = 0 as $$
#variable_conflict use_variable
declare
  declared jsonb;
  made record;
  problem text;
begin
  if at is not null and delay is not null then
    raise exception using errcode = 'HB001', message = 'at and delay exclude each other', hint = 'Give one of them.';
  elsif unique_key = '' then
    raise exception using errcode = 'HB001', message = 'unique_key must be 1 to 200 printable characters',
      hint = 'Leave it out, or give it a value.';
  elsif strpos(concat(retry, labels), '\u') > 0 then  -- PostgreSQL's error would not name the argument
    select o.problem into problem
    from hourbell.options_problem(
      json_build_array(json_build_object('retry_policy', retry, 'labels', labels))::text) as o;
    if problem is not null then
      raise exception using errcode = 'HB001', message = problem, detail = 'Nothing was enqueued.',
        hint = 'Correct the call of hourbell.enqueue.';
    end if;
  end if;
  select t.defaults::jsonb into declared from hourbell.tasks as t where t.name = task;
  select * into made from hourbell.enqueue_jobs(
    jsonb_build_array(coalesce(declared, '{}') || jsonb_strip_nulls(jsonb_build_object(
      'task', task, 'tenant', tenant, 'queue', queue, 'priority', priority,
      'delay_seconds', extract(epoch from delay)::float8,
      -- Within a bigint: PostgreSQL 17 has infinite intervals.
      'timeout_seconds', case when timeout is not null then
        ceil(greatest(-1, least(extract(epoch from timeout), 1e15)))::bigint end,
      'retry_policy', retry, 'expires_at', expires_at,
      'deadline_seconds', case when deadline is not null then
        ceil(greatest(-1, least(extract(epoch from deadline), 1e15)))::bigint end,
      'concurrency_key', concurrency_key, 'concurrency_limit', concurrency_limit, 'on_duplicate', on_duplicate,
      'notify', notify)) || case when nullif(labels::jsonb, 'null') is not null
        then jsonb_build_object('labels', coalesce(declared -> 'labels', '{}') || labels::jsonb) else '{}' end)::text,
    array[payload::text], null, array[at], array[task || ':' || unique_key],
    ('role ' || session_user) collate "default");
  case made.outcome
    when 'created', 'kept' then
      return hourbell.job_text(made.job_id);
    when 'invalid' then
      raise exception using errcode = 'HB001', message = made.detail, detail = 'Nothing was enqueued.',
        hint = 'Correct the call of hourbell.enqueue.';
    when 'unknown_task' then
      raise exception using errcode = 'HB002', message = format('no worker has ever declared the task %s', task),
        detail = 'Nothing was enqueued: the job would wait until a worker of that name starts.',
        hint = 'Check the name, such as shop.send_reminder, or start its worker once.';
    when 'unknown_queue' then
      raise exception using errcode = 'HB003', message = format('there is no queue %s', made.detail),
        detail = 'Nothing was enqueued. Queues are not created in the transaction of a user.',
        hint = 'Check the name, or start a worker that serves the queue.';
    when 'unknown_tenant' then
      raise exception using errcode = 'HB004', message = format('there is no tenant %s', made.detail),
        detail = 'Nothing was enqueued. Tenants are not created in the transaction of a user.',
        hint = 'Create it first: PUT /api/v1/tenants/NAME.';
    when 'duplicate' then
      raise exception using errcode = 'HB005',
        message = format('the unique key %s belongs to %s', unique_key, hourbell.job_text(made.holder)),
        detail = format('That job is %s. Nothing was enqueued.', made.detail),
        hint = 'on_duplicate => ''keep'' returns it, ''replace'' takes its place while it waits.';
    when 'busy' then
      raise exception using errcode = 'HB006',
        message = case made.detail
          when 'quota' then 'another open transaction is creating jobs under the quota of the tenant'
          when 'unique_key' then format('another open transaction holds the unique key %s', unique_key)
          else made.detail end,
        detail = 'Nothing was enqueued.', hint = 'Repeat the transaction.';
    else
      raise exception using errcode = 'HB007', message = format('tenant %s has used up its quota of jobs', made.detail),
        detail = 'Nothing was enqueued.', hint = 'Wait until some have run, delete some, or raise the quota.';
  end case;
end $$;

-- For libraries. Creates a group of jobs that were just created, and closes it: when all of them have ended, a job is
-- created from `options` (one set) and `payload`, as by `try_enqueue`. Raises no error for a refusal: `outcome` is
-- `created`, or one of those of `try_enqueue`, or `unknown_member` (`detail` is not a job of the tenant in the
-- options).
create or replace function hourbell.try_group(
  name text, options text, payload text, members bigint[], out group_id bigint, out outcome text, out detail text
)
language sql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '2s' set idle_in_transaction_session_timeout = 0 as $$
  select * from hourbell.create_group($1, $2, $3, $4, ('role ' || session_user) collate "default")
$$;

-- Cancels the job of a task with a unique key: `cancelled`, `requested` (it is queued or runs, and is asked to stop),
-- `ended` (the last job with the key has ended), `not_found` (no job has the key, or it ended some time ago), `busy`
-- (another transaction is moving it: repeat). `task` is null for keys that belong to the tenant, as those of the API.
create or replace function hourbell.cancel(task text, unique_key text, tenant text default null) returns text
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $$
#variable_conflict use_variable
begin
  return hourbell.cancel_by_key(
    coalesce(tenant, (select t.defaults::jsonb ->> 'tenant' from hourbell.tasks as t where t.name = task), 'default'),
    task, unique_key, ('role ' || session_user) collate "default");
end $$;
