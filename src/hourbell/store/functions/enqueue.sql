-- Enqueueing in the caller's own transaction: one-time jobs with a task, created by `create_jobs`. The callers are the
-- functions of store/public, which have names that do not change; they are for other programs, in any language.
--
-- Nothing that a caller may get wrong raises an error here, because an error aborts the caller's transaction: refusals
-- are returned as rows. Settings that change here (`lock_timeout` and others) are restored by the SET clauses of the
-- functions in store/public.

-- The number of a concurrency key: a hash, so that no registry is needed. The same as in engine/life/create/rows.py.
create or replace function hourbell.key_number(p_tenant text, p_key text) returns bigint
language sql immutable parallel safe
return (('x' || left(encode(sha256(convert_to(p_tenant, 'UTF8') || '\x00' || convert_to(p_key, 'UTF8')), 'hex'), 16))
  ::bit(64)::bigint >> 1) & 9223372036854775807;

-- The text of a job's id, as in model/ids.py: 13 characters of Crockford's base 32.
create or replace function hourbell.job_text(p_id bigint) returns text
language sql immutable parallel safe
return 'job_' || (
  select string_agg(substr('0123456789abcdefghjkmnpqrstvwxyz', (p_id >> (60 - 5 * n) & 31)::int + 1, 1), '' order by n)
  from generate_series(0, 12) as n);

-- A line of text as in documents/kinds.py: not blank, without control characters.
create or replace function hourbell.is_line(p_text text, p_most int) returns boolean
language sql immutable parallel safe
return length(p_text) <= p_most and p_text ~ '\S' and p_text !~ '[\x01-\x1f\x7f-\x9f\u2028\u2029]';

-- A W3C trace context of version 00.
create or replace function hourbell.is_traceparent(p_text text) returns boolean
language sql immutable parallel safe
return p_text ~ '^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-0[0-3]$';

-- A retry policy as it is stored, from a document with the fields that the API has. Raises invalid_parameter_value.
create or replace function hourbell.read_retry_policy(p_policy json) returns json
language plpgsql immutable as $$
declare
  r record;
  unknown text;
  longest bigint;
begin
  if json_typeof(p_policy) <> 'object' then
    raise invalid_parameter_value using message = 'retry must be an object';
  end if;
  select k into unknown from json_object_keys(p_policy) as k
  where k not in ('max_retries', 'backoff', 'initial_delay_seconds', 'max_delay_seconds', 'delays_seconds',
    'non_retryable', 'retryable', 'max_crashes') limit 1;
  if unknown is not null then
    raise invalid_parameter_value using message = format('retry has no field %s', unknown);
  end if;
  select * into r from json_to_record(p_policy) as p(
    max_retries bigint, backoff text, initial_delay_seconds bigint, max_delay_seconds bigint, delays_seconds bigint[],
    non_retryable text[], retryable text[], max_crashes bigint);
  if r.backoff not in ('FIXED', 'LINEAR', 'EXPONENTIAL', 'EXPONENTIAL_WITH_JITTER', 'LIST') then
    raise invalid_parameter_value using message = format('retry.backoff %s is unknown', r.backoff);
  end if;
  if (r.backoff = 'LIST') <> (r.delays_seconds is not null) then
    raise invalid_parameter_value using message = 'retry.delays_seconds and the backoff LIST belong together';
  end if;
  if r.delays_seconds is not null then
    if (r.initial_delay_seconds, r.max_delay_seconds) is distinct from (null::bigint, null::bigint)
        or coalesce(r.max_retries, cardinality(r.delays_seconds)) <> cardinality(r.delays_seconds) then
      raise invalid_parameter_value using
        message = 'retry.delays_seconds replaces max_retries, initial_delay_seconds and max_delay_seconds';
    end if;
    r.max_retries := cardinality(r.delays_seconds);
    r.backoff := 'LIST';
    if r.max_retries < 1
      or exists (select from unnest(r.delays_seconds) as d where d is null or d not between 0 and 604800)
    then
      raise invalid_parameter_value using message = 'retry.delays_seconds must be from 0 to 604800';
    end if;
  end if;
  longest := coalesce(r.max_delay_seconds, greatest(3600, r.initial_delay_seconds));
  if r.max_retries not between 0 and 100 then
    raise invalid_parameter_value using message = 'retry.max_retries must be from 0 to 100';
  elsif r.initial_delay_seconds not between 0 and 604800 or longest not between 0 and 604800 then
    raise invalid_parameter_value using message = 'delays of retry must be from 0 to 604800 seconds';
  elsif longest < coalesce(r.initial_delay_seconds, 30) and r.delays_seconds is null then
    raise invalid_parameter_value using message = 'retry.max_delay_seconds must not be below initial_delay_seconds';
  elsif r.max_crashes not between 1 and 100 then
    raise invalid_parameter_value using message = 'retry.max_crashes must be from 1 to 100';
  elsif cardinality(r.non_retryable) > 50 or cardinality(r.retryable) > 50 or r.non_retryable && r.retryable
      or exists (select from unnest(r.non_retryable || r.retryable) as k where k is null or k !~ '^[!-~]{1,200}$') then
    raise invalid_parameter_value using
      message = 'retry.non_retryable and retryable must be at most 50 kinds of failure each, and none in both';
  end if;
  return json_strip_nulls(json_build_object(
    'max_retries', r.max_retries, 'backoff', r.backoff, 'initial_delay_seconds', r.initial_delay_seconds,
    'max_delay_seconds', case when r.delays_seconds is null then longest end, 'delays_seconds', r.delays_seconds,
    'non_retryable', r.non_retryable, 'retryable', r.retryable, 'max_crashes', r.max_crashes));
end $$;

-- What is wrong with labels; null: nothing.
create or replace function hourbell.labels_problem(p_labels json) returns text
language plpgsql immutable as $$
begin
  if json_typeof(p_labels) <> 'object' then
    return 'labels must be an object';
  elsif (select count(*) > 16 or bool_or(json_typeof(value) <> 'string' or key !~ '^[A-Za-z0-9._:-]{1,64}$')
      from json_each(p_labels)) then
    return 'labels must be at most 16, with names of 1 to 64 letters, digits or . _ : -, and text values';
  elsif exists (select from json_each_text(p_labels) where not hourbell.is_line(value, 64)) then
    return 'values of labels must be 1 to 64 printable characters';
  end if;
  return null;
end $$;

-- What jobs have in common, from a JSON object, checked as the API checks it. `outcome`: null, `invalid`, or which name
-- is unknown. Names are looked up, never created: a new row of `tenants` in a transaction of a user would make every
-- other transaction that names the tenant wait for its end. Values that do not have the type of their option raise a
-- data exception.
--   head, tail   of the job's JSON: head || payload || tail || rest || '}'
-- A query and not a procedure, because PostgreSQL makes it a part of the statement that calls it: in a transaction with
-- one job the preparation of a statement or an expression takes longer than its work. `offset 0` keeps expressions from
-- being copied to every place that uses them. The caller's plan settings apply.
create or replace function hourbell.read_options(p_options json)
returns table (
  outcome text, detail text, tenant int, has_quota boolean, head text, tail text,
  queue smallint, target int, priority smallint, at_most_once boolean, start_seconds int,
  deadline_seconds int, key bigint, key_limit int,
  delay interval, expires_at timestamptz, on_duplicate text, notify boolean, idempotency_key text
)
language sql stable as $$
  select
    case when o.problem is not null then 'invalid' when o.task_id is null then 'unknown_task'
      when o.queue_id is null then 'unknown_queue' when o.tenant_id is null then 'unknown_tenant' end,
    case when o.problem is not null then o.problem when o.task_id is null then o.task
      when o.queue_id is null then o.queue when o.tenant_id is null then o.tenant end,
    o.tenant_id, o.max_jobs is not null,
    '{"name":' || to_json(o.task) || ',"action":{"type":"TASK","name":' || to_json(o.task) || ',"payload":',
    concat(  -- without what is null
      '},"type":"ONE_TIME"',
      ',"retry_policy":' || o.policy::text,
      ',"timeout_seconds":' || coalesce(o.timeout_seconds, o.queue_timeout_seconds),
      ',"delivery":"' || nullif(o.delivery, 'at_least_once') || '"',
      ',"tenant_id":"' || nullif(o.tenant, 'default') || '"',
      ',"queue":"' || nullif(o.queue, 'default') || '"',
      ',"deadline_seconds":' || o.deadline_seconds,
      ',"labels":' || o.labels::text,
      ',"concurrency_key":' || to_json(o.concurrency_key)
        || ',"concurrency_limit":' || coalesce(o.concurrency_limit, 1),
      -- Ignored if it is not valid: a trace is never a reason to refuse a job.
      ',"traceparent":"' || case when hourbell.is_traceparent(o.traceparent) then o.traceparent end || '"',
      ',"trace_link":"' || case when hourbell.is_traceparent(o.trace_link) then o.trace_link end || '"',
      ',"priority":' || nullif(o.priority, 2),
      ',"start_deadline_seconds":' || case when o.expires_at is null then o.expires_in_seconds end),
    o.queue_id, -o.task_id, o.priority::smallint, o.delivery = 'at_most_once',
    case when o.problem is null and o.expires_at is null then o.expires_in_seconds::int end,
    case when o.problem is null then o.deadline_seconds::int end,
    case when o.concurrency_key is not null then hourbell.key_number(o.tenant, o.concurrency_key) end,
    case when o.problem is null then coalesce(o.concurrency_limit, 1)::int end,
    case when o.problem is null then make_interval(secs => coalesce(o.delay_seconds, 0)) end, o.expires_at,
    o.on_duplicate, o.notify, o.idempotency_key
  from (
    select o.*, k.id as task_id, q.id as queue_id, q.timeout_seconds as queue_timeout_seconds, w.id as tenant_id,
      w.max_jobs,
      case when o.delivery = 'at_least_once' then coalesce(o.own_policy, q.retry_policy::json)
        else (coalesce(o.own_policy::jsonb, '{}') || '{"max_retries": 0}')::json end as policy,
      case
        when jsonb_typeof(o.options) is distinct from 'object' then 'options must be an array of objects'
        when o.unknown <> '{}' then format(
          'this database does not know the option %s; "hourbell migrate" of a newer version may',
          jsonb_path_query_array(o.unknown, '$.keyvalue().key') ->> 0)
        when o.priority is null then 'priority must be CRITICAL, HIGH, MEDIUM or LOW'
        when o.delivery not in ('at_least_once', 'at_most_once') then 'delivery must be at_least_once or at_most_once'
        when o.on_duplicate not in ('reject', 'keep', 'replace') then 'on_duplicate must be reject, keep or replace'
        when o.delay_seconds is not null and not o.delay_seconds between 0 and 315360000  -- NaN is above all numbers
          then 'delay must be from 0 seconds to 3650 days'
        when o.timeout_seconds not between 1 and 86400 then 'timeout must be from 1 to 86400 seconds'
        when o.deadline_seconds not between 1 and 31622400 then 'deadline must be from 1 second to 366 days'
        when o.idempotency_key is not null and not hourbell.is_line(o.idempotency_key, 200)
          then 'idempotency_key must be 1 to 200 printable characters'
        when o.expires_in_seconds not between 1 and 2592000 then 'expires_in must be from 1 second to 30 days'
        when o.concurrency_key is not null and not hourbell.is_line(o.concurrency_key, 200)
          then 'concurrency_key must be 1 to 200 printable characters'
        when o.concurrency_limit <> 1 and o.concurrency_key is null
          then 'concurrency_limit needs a concurrency_key'
        when o.concurrency_limit not between 1 and 10000 then 'concurrency_limit must be from 1 to 10000'
        when o.labels is not null and hourbell.labels_problem(o.labels) is not null
          then hourbell.labels_problem(o.labels)
        when o.delivery = 'at_most_once' and o.own_policy is not null
            and (o.retry_policy -> 'max_retries' is not null or o.retry_policy -> 'delays_seconds' is not null)
            and coalesce((o.own_policy ->> 'max_retries')::int, 1) > 0
          then 'at_most_once never retries: retry must be left out or never'
        -- Names that exist are valid: only others have to be matched.
        when k.id is null and (o.task is null or o.task !~ '^[A-Za-z0-9._:-]{1,200}$')
          then 'task must be 1 to 200 letters, digits or . _ : -'
        when w.id is null and o.tenant !~ '^[A-Za-z0-9._:-]{1,64}$'
          then 'tenant must be 1 to 64 letters, digits or . _ : -'
        when q.id is null and o.queue !~ '^[A-Za-z0-9._:-]{1,64}$'
          then 'queue must be 1 to 64 letters, digits or . _ : -' end as problem
    from (
      select t.*, case when t.retry_policy is not null then hourbell.read_retry_policy(t.retry_policy) end as own_policy
      from (
        select j.options,
          case when jsonb_typeof(j.options) = 'object' then j.options - '{task,tenant,queue,priority,delay_seconds,
            timeout_seconds,retry_policy,delivery,expires_at,expires_in_seconds,deadline_seconds,concurrency_key,
            concurrency_limit,on_duplicate,labels,notify,idempotency_key,traceparent,trace_link}'::text[]
          end as unknown,
          j.options ->> 'task' as task, coalesce(j.options ->> 'tenant', 'default') as tenant,
          coalesce(j.options ->> 'queue', 'default') as queue,
          array_position('{CRITICAL,HIGH,MEDIUM,LOW}'::text[], coalesce(j.options ->> 'priority', 'MEDIUM')) - 1
            as priority,
          (j.options ->> 'delay_seconds')::float8 as delay_seconds,
          (j.options ->> 'timeout_seconds')::bigint as timeout_seconds,  -- any number gets to the check of its range
          coalesce(j.options ->> 'delivery', 'at_least_once') as delivery,
          (j.options ->> 'expires_at')::timestamptz as expires_at,
          (j.options ->> 'expires_in_seconds')::bigint as expires_in_seconds,
          (j.options ->> 'deadline_seconds')::bigint as deadline_seconds,
          j.options ->> 'concurrency_key' as concurrency_key,
          (j.options ->> 'concurrency_limit')::bigint as concurrency_limit,
          coalesce(j.options ->> 'on_duplicate', 'reject') as on_duplicate,
          -- As they were written.
          case when jsonb_typeof(j.options -> 'retry_policy') <> 'null' then p_options -> 'retry_policy' end
            as retry_policy,
          case when jsonb_typeof(j.options -> 'labels') <> 'null' then p_options -> 'labels' end as labels,
          coalesce((j.options ->> 'notify')::boolean, true) as notify,
          j.options ->> 'idempotency_key' as idempotency_key,
          j.options ->> 'traceparent' as traceparent, j.options ->> 'trace_link' as trace_link
        from (select p_options::jsonb as options offset 0) as j offset 0) as t offset 0) as o
    left join hourbell.tasks as k on k.name = o.task
    left join hourbell.queues as q on q.name = o.queue
    left join hourbell.tenants as w on w.name = o.tenant offset 0) as o
$$;

-- Which option of a set has a value that cannot be read, and what is allowed; null: none. U+E000 stands for a character
-- that cannot be stored.
create or replace function hourbell.option_problem(p_options json) returns text
language plpgsql stable as $$
declare
  o record;
  given text;
  name text;
begin
  if json_typeof(p_options) <> 'object' then return null; end if;
  for o in select key, value from json_each(p_options) where json_typeof(value) <> 'null' loop
    name := regexp_replace(o.key, '_(seconds|policy)$', '');  -- as in the other messages
    if strpos(o.value::text, U&'\E000') > 0 then
      return format('%s must not contain the character U+0000 or half of a surrogate pair', name);
    end if;
    begin
      given := o.value::jsonb #>> '{}';
      case o.key
        when 'delay_seconds' then perform given::float8;
        when 'timeout_seconds', 'deadline_seconds', 'expires_in_seconds', 'concurrency_limit' then perform given::int;
        when 'expires_at' then perform given::timestamptz;
        when 'notify' then perform given::boolean;
        when 'retry_policy' then perform hourbell.read_retry_policy(o.value);
        else null;
      end case;
    exception
      when invalid_parameter_value then return sqlerrm;  -- of read_retry_policy
      when statement_too_complex then return format('%s is nested too deeply', name);
      when data_exception then
        return format('%s must be %s', name, case o.key
          when 'delay_seconds' then 'from 0 seconds to 3650 days'
          when 'timeout_seconds' then 'from 1 to 86400 seconds, in whole seconds'
          when 'deadline_seconds' then 'from 1 second to 366 days, in whole seconds'
          when 'expires_in_seconds' then 'from 1 second to 30 days, in whole seconds'
          when 'concurrency_limit' then 'a whole number from 1 to 10000'
          when 'expires_at' then 'a time such as 2030-01-31T12:00:00Z'
          when 'notify' then 'true or false'
          when 'retry_policy'
            then 'an object with whole numbers, a list of them in delays_seconds, and lists of kinds of failure'
          when 'labels' then 'an object with text values'
          else 'a text' end);
    end;
  end loop;
  return null;
end $$;

-- The same for all sets of options, with the number of the set. Only for those that `read_options` could not read, so
-- that it costs nothing otherwise.
create or replace function hourbell.options_problem(p_options text, out number int, out problem text)
language plpgsql stable as $$
declare
  -- Functions of json refuse the escapes of characters that cannot be stored, wherever they are. An escaped backslash
  -- begins no escape.
  paired constant text := regexp_replace(p_options,
    '(?<!\\)((?:\\\\)*)\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}', '\1_', 'g');
  marked constant text := regexp_replace(paired,
    '(?<!\\)((?:\\\\)*)\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2})', '\1' || U&'\E000', 'g');
  options json;
begin
  for number, options in
    select o.number, o.options from json_array_elements(marked::json) with ordinality as o(options, number)
  loop
    problem := hourbell.option_problem(options);
    if problem is not null then return; end if;
  end loop;
  number := null;
exception when data_exception or statement_too_complex then number := null;  -- not JSON, or not an array
end $$;

-- Whether a JSON text has more than 32 arrays and objects inside each other, as MAX_DEPTH in documents/kinds.py. Most
-- have not that many brackets at all.
create or replace function hourbell.is_too_deep(p_json text) returns boolean
language sql immutable parallel safe
return octet_length(p_json) > 65
  and 2 * octet_length(p_json) - octet_length(replace(p_json, '[', '')) - octet_length(replace(p_json, '{', '')) > 32
  and jsonb_path_exists(p_json::jsonb, 'strict $.**{32} ? (@.type() == "object" || @.type() == "array")');

-- Whether a text is a JSON object that can be stored and read back; raises a data exception if it is not JSON, and
-- statement_too_complex if PostgreSQL cannot parse it because it is nested too deeply.
create or replace function hourbell.is_payload(p_payload text) returns boolean
language sql immutable parallel safe
-- jsonb refuses \u0000 and half of a surrogate pair, which no worker can read.
return octet_length(p_payload) <= 262144 and json_typeof(p_payload::json) = 'object'
  -- Most payloads have no backslash, and one character is found faster than two.
  and (strpos(p_payload, '\') = 0 or strpos(p_payload, '\u') = 0 or jsonb_typeof(p_payload::jsonb) = 'object')
  and not hourbell.is_too_deep(p_payload);

-- What is wrong with one job of `enqueue_jobs`; null: nothing. Raises what `is_payload` raises.
create or replace function hourbell.job_problem(
  p_now timestamptz, p_at timestamptz, p_key text, p_payload text, p_expires_at timestamptz, p_deadline_seconds int,
  p_on_duplicate text, p_delay interval
) returns text
language sql stable
return case
  when p_key is not null and not hourbell.is_line(p_key, 200) then 'unique_key must be 1 to 200 printable characters'
  when p_key is null and p_on_duplicate <> 'reject' then 'on_duplicate needs a unique_key'
  when p_at >= timestamptz '9990-01-01 00:00:00Z' then 'at is too late'
  when p_at < p_now - interval '365 days' then 'at is more than 365 days in the past'
  when p_at + make_interval(secs => p_deadline_seconds) <= p_now
    then 'deadline has already passed, so the job would never run'
  when p_expires_at <= p_now then 'expires_at has already passed, so the job would never run'
  when not isfinite(p_expires_at)
    or not p_expires_at - coalesce(p_at, p_now + p_delay) between interval '1 second' and interval '30 days'
    then 'expires_at must be from 1 second to 30 days after the time of the job'
  when hourbell.is_payload(p_payload) is not true
    then 'the payload must be a JSON object of at most 262144 bytes, nested at most 32 deep' end;

-- The same, with what `is_payload` raises.
create or replace function hourbell.enqueue_problem(
  p_now timestamptz, p_at timestamptz, p_key text, p_payload text, p_expires_at timestamptz, p_deadline_seconds int,
  p_on_duplicate text, p_delay interval
) returns text
language plpgsql stable as $$
begin
  return hourbell.job_problem(
    p_now, p_at, p_key, p_payload, p_expires_at, p_deadline_seconds, p_on_duplicate, p_delay);
exception
  when data_exception then return 'the payload is not valid JSON: ' || sqlerrm;
  when statement_too_complex then return 'the payload is nested more than 32 deep';
end $$;

-- The end of a job's JSON: its time.
create or replace function hourbell.enqueued_schedule(p_at timestamptz) returns text
language sql stable
return ',"schedule":{"kind":"once","at":"'
  || to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '"}}';

-- The JSON of a job, as `encode_job` in model/jobs.py would write it.
create or replace function hourbell.enqueued_spec(
  p_head text, p_payload text, p_tail text, p_key text, p_on_duplicate text, p_at timestamptz
) returns text
language sql stable
return p_head || p_payload || p_tail
  || case when p_key is null then ''
    else ',"unique_key":' || to_json(p_key) || ',"on_duplicate":"' || p_on_duplicate || '"' end
  || hourbell.enqueued_schedule(p_at);

-- The state of the job that has a unique key, for the error text.
create or replace function hourbell.holder_state(p_job bigint, p_now timestamptz) returns text
language plpgsql set plan = lookups as $$
declare e hourbell.executions;
begin
  select * into e from hourbell.executions where id = p_job;
  return case when e.id is null then 'a recurring job'
    when e.run_at > p_now then to_char(e.run_at at time zone 'UTC', '"SCHEDULED, runs" YYYY-MM-DD HH24:MI:SS"Z"')
    else 'queued or running' end;
end $$;

-- Creates jobs, all or none: the arguments and the result of `enqueue_jobs`, whose plan settings apply.
create or replace function hourbell.enqueue_any(
  p_options text, p_payloads text[], p_options_of int[], p_at timestamptz[], p_unique_keys text[], p_actor text
) returns table (place int, job_id bigint, outcome text, holder bigint, detail text)
language plpgsql as $$
#variable_conflict use_column
declare
  now constant timestamptz := hourbell.clock();
  n constant int := coalesce(cardinality(p_payloads), 0);
  single constant int := coalesce(p_options_of[1], 1);  -- the set of options of a single job
  base constant bigint := hourbell.id_base(now);
  options record;
  k int := 0;  -- the number of sets of options
  o int;  -- the number of one
  seconds int;
  -- By set of options:
  owners int[]; heads text[]; tails text[]; settings jsonb[]; delays interval[]; expiries timestamptz[];
  deadlines int[]; on_duplicates text[]; notifies boolean[];
  -- Places with the unique key of an earlier place, and these earlier ones.
  repeats int[] := '{}'; firsts int[];
  -- The jobs to create:
  places int[]; ids bigint[]; instants bigint[]; job_owners int[]; job_settings int[]; specs text[];
  run_settings json;
  wanted json;  -- unique keys
  common_at timestamptz;  -- when all of them run; null: at `instants`
  first_at timestamptz;  -- the earliest of those that are announced
  limited int[] := '{}';  -- tenants with a quota
  tenant_count int;
  once text;  -- an idempotency key; not one that the API uses
  made record;
  locked text;
begin
  if n = 0 then return; end if;
  -- Nothing is written in this block, so it needs no transaction id.
  begin
    for options in
      select o.* from json_array_elements(p_options::json) as e(value)
      cross join lateral hourbell.read_options(e.value) as o
    loop
      k := k + 1;
      if options.outcome is not null then
        return query
          select coalesce(array_position(p_options_of, k), 1), null::bigint, options.outcome, null::bigint,
            options.detail;
        return;
      end if;
      owners[k] := options.tenant; heads[k] := options.head; tails[k] := options.tail;
      settings[k] := jsonb_build_object(
        'queue', options.queue, 'target', options.target, 'priority', options.priority,
        'at_most_once', options.at_most_once, 'start_seconds', options.start_seconds,
        'finish_seconds', options.deadline_seconds, 'key', options.key, 'key_limit', options.key_limit, 'notifies', 0);
      delays[k] := options.delay; expiries[k] := options.expires_at; deadlines[k] := options.deadline_seconds;
      on_duplicates[k] := options.on_duplicate; notifies[k] := options.notify;
      -- A set that no job has may be among them.
      if (options.has_quota or options.idempotency_key is not null) and exists (
        select from unnest(p_payloads, p_options_of) as p(payload, o) where coalesce(p.o, 1) = k)
      then
        if options.has_quota and options.tenant <> all (limited) then limited := limited || options.tenant; end if;
        once := coalesce(once, 'enqueue:' || options.idempotency_key);
      end if;
    end loop;
    -- The common case is checked as a whole.
    if n > 1 and array_remove(expiries, null) = '{}' and array_remove(deadlines, null) = '{}'
        and array_remove(on_duplicates, 'reject') = '{}'
        and not exists (
          select from unnest(p_payloads, p_options_of, p_at, p_unique_keys) as p(payload, o, at, key)
          where hourbell.is_payload(p.payload) is not true or coalesce(p.o, 1) not between 1 and k or p.at < now
            or p.at > now + interval '1000 years' or not hourbell.is_line(p.key, 200)) then
      o := 0;
    end if;
  exception when data_exception or statement_too_complex then  -- the latter: nested too deeply
    select * into options from hourbell.options_problem(p_options);
    if options.problem is not null or k = 0 or n = 1 then
      return query
        select coalesce(array_position(p_options_of, options.number), 1), null::bigint, 'invalid', null::bigint,
          coalesce(options.problem, sqlerrm);
      return;
    end if;
  end;
  if n = 1 then
    o := single;
    detail := case when o not between 1 and k then 'options_of is not the number of a set of options'
      else hourbell.enqueue_problem(
        now, p_at[1], p_unique_keys[1], p_payloads[1], expiries[o], deadlines[o], on_duplicates[o], delays[o]) end;
    if detail is not null then
      place := 1; outcome := 'invalid';
      return next;
      return;
    end if;
  elsif o is null then
    return query
      select x.place, null::bigint, 'invalid', null::bigint, x.problem
      from (
        select p.place::int, case when o.o not between 1 and k then 'options_of is not the number of a set of options'
          else hourbell.enqueue_problem(
            now, p.at, p.key, p.payload, expiries[o.o], deadlines[o.o], on_duplicates[o.o], delays[o.o])
          end as problem
        from unnest(p_payloads, p_options_of, p_at, p_unique_keys) with ordinality as p(payload, o, at, key, place)
        cross join lateral (select coalesce(p.o, 1) as o) as o) as x
      where x.problem is not null order by x.place limit 10;
    if found then return; end if;
  end if;

  if once is not null and (n > 1 or p_unique_keys[1] is not null) then
    return query select 1, null::bigint, 'invalid', null::bigint, case when n > 1
      then 'idempotency_key is for one job: enqueue them one by one, or give each a unique_key'
      else 'idempotency_key and unique_key exclude each other' end;
    return;
  end if;
  if array_remove(expiries, null) <> '{}' then
    -- A start deadline is relative to the time of the job, so all jobs with such options must have the same.
    if exists (
      select from unnest(p_payloads, p_options_of, p_at) as p(payload, o, at)
      where expiries[coalesce(p.o, 1)] is not null
      group by coalesce(p.o, 1) having count(distinct coalesce(p.at, 'infinity')) > 1)
    then
      return query select 1, null::bigint, 'invalid', null::bigint, 'jobs with one expires_at must have one at';
      return;
    end if;
    for o, seconds in
      select distinct x.o, floor(extract(epoch from expiries[x.o] - coalesce(p.at, now + delays[x.o])))::int
      from unnest(p_payloads, p_options_of, p_at) as p(payload, o, at)
      cross join lateral (select coalesce(p.o, 1) as o) as x where expiries[x.o] is not null
    loop
      settings[o] := settings[o] || jsonb_build_object('start_seconds', seconds);
      tails[o] := tails[o] || ',"start_deadline_seconds":' || seconds;
    end loop;
  end if;

  -- A job has the settings of its options and its level (`level_of`).
  if n = 1 then
    o := single;
    first_at := coalesce(p_at[1], now + delays[o]);
    run_settings := json_build_array(settings[o] || '{"k": 1, "level": 0}');
    places := '{1}'; ids := array[hourbell.next_id(base)]; job_owners := array[owners[o]];
    instants := array[(extract(epoch from first_at) * 1000000)::bigint]; job_settings := '{1}';
    specs := array[hourbell.enqueued_spec(
      heads[o], p_payloads[1], tails[o], p_unique_keys[1], on_duplicates[o], first_at)];
    if not notifies[o] then first_at := null; end if;
    if p_unique_keys[1] is not null then
      wanted := json_build_array(json_build_object(
        'job', ids[1], 'request', 1, 'tenant', owners[o], 'space', hourbell.key_space_unique(),
        'key', p_unique_keys[1], 'replaces', on_duplicates[o] = 'replace'));
    end if;
  else
    if array_remove(p_unique_keys, null) <> '{}' then
      select coalesce(array_agg(d.place), '{}'), array_agg(d.first) into repeats, firsts
      from (
        select p.place::int, (min(p.place) over (partition by owners[coalesce(p.o, 1)], p.key))::int as first
        from unnest(p_payloads, p_options_of, p_unique_keys) with ordinality as p(payload, o, key, place)
        where p.key is not null) as d
      where d.place <> d.first;
      if exists (select from unnest(repeats) as r where on_duplicates[coalesce(p_options_of[r], 1)] <> 'keep') then
        return query
          select r, null::bigint, 'duplicate', null::bigint, 'an earlier job of the same call has it'
          from unnest(repeats) as r where on_duplicates[coalesce(p_options_of[r], 1)] <> 'keep' order by r limit 10;
        return;
      end if;
    end if;
    tenant_count := (select count(distinct o) from unnest(owners) as o);
    if coalesce(array_remove(p_unique_keys, null), '{}') = '{}' and coalesce(array_remove(p_at, null), '{}') = '{}'
        and delays = array_fill(delays[1], array[k]) then
      -- The common case: all at one time, so documents with the same options differ only by their payloads.
      common_at := now + delays[1];
      run_settings := (
        select json_agg(s.settings || jsonb_build_object('k', 4 * s.o + l.level, 'level', l.level,
          'head', heads[s.o], 'tail', tails[s.o] || hourbell.enqueued_schedule(common_at)))
        from unnest(settings) with ordinality as s(settings, o) cross join generate_series(0, 3) as l(level));
      specs := p_payloads;
      ids := array(select hourbell.next_id(base) from generate_series(1, n));
      -- Roughly: as if the tenants had equally many.
      select array_agg(j.place), array_agg(owners[j.o]),
        array_agg(4 * j.o + hourbell.level_of(j.place / tenant_count))
      into places, job_owners, job_settings
      from (
        select p.place::int, coalesce(p.o, 1) as o
        from unnest(ids, p_options_of) with ordinality as p(id, o, place)) as j;
      if true = any (notifies) then first_at := common_at; end if;
    else
      run_settings := (
        select json_agg(s.settings || jsonb_build_object('k', 4 * s.o + l.level, 'level', l.level))
        from unnest(settings) with ordinality as s(settings, o) cross join generate_series(0, 3) as l(level));
      select array_agg(j.place), array_agg(j.id), array_agg((extract(epoch from j.run_at) * 1000000)::bigint),
        array_agg(owners[j.o]), array_agg(4 * j.o + hourbell.level_of(j.place / tenant_count)),
        array_agg(hourbell.enqueued_spec(
          heads[j.o], j.payload, tails[j.o], j.key, on_duplicates[j.o], j.run_at)),
        min(j.run_at) filter (where notifies[j.o]),
        json_agg(json_build_object(
          'job', j.id, 'request', 1, 'tenant', owners[j.o], 'space', hourbell.key_space_unique(), 'key', j.key,
          'replaces', on_duplicates[j.o] = 'replace')) filter (where j.key is not null)
      into places, ids, instants, job_owners, job_settings, specs, first_at, wanted
      from (
        select p.place::int, p.payload, p.key, o.o, coalesce(p.at, now + delays[o.o]) as run_at,
          hourbell.next_id(base) as id
        from unnest(p_payloads, p_options_of, p_at, p_unique_keys) with ordinality as p(payload, o, at, key, place)
        cross join lateral (select coalesce(p.o, 1) as o) as o
        where repeats = '{}' or p.place <> all (repeats)) as j;
    end if;
  end if;

  if wanted is null and limited = '{}' and once is null then  -- nothing can be refused, so no subtransaction is needed
    perform hourbell.create_jobs(
      now, 0, 0, '{}', owners[single:single], array[p_actor], array[null::text], array[null::bytea], array[null::text],
      ids, null, common_at, instants, job_owners, job_settings, specs, run_settings, null, null);
    if first_at <= now + interval '1 second' then perform pg_notify('hourbell', ''); end if;
    if n = 1 then
      place := 1; job_id := ids[1]; outcome := 'created';
      return next;
    else
      return query select p.place, p.id, 'created', null::bigint, null::text from unnest(places, ids) as p(place, id);
    end if;
    return;
  end if;

  begin
    select * into made from hourbell.create_jobs(
      now,
      -- Below the deadlock timeout: two transactions that wait for each other's keys both get `busy`, and none is
      -- ended.
      least(500, extract(epoch from current_setting('deadlock_timeout')::interval) * 500)::int, 2000, limited,
      owners[single:single], array[p_actor], array[once],
      array[sha256(convert_to(heads[single] || p_payloads[1], 'UTF8'))],
      array[json_build_object('job', ids[1])::text],
      ids, null, common_at, instants, job_owners, job_settings, specs, run_settings, null, wanted);
    if made.excessive <> '{}' or exists (
      select from unnest(places, ids) as p(place, id) join unnest(made.refused) as r(id) on r.id = p.id
      where on_duplicates[coalesce(p_options_of[p.place], 1)] <> 'keep')
    then
      raise exception using errcode = 'HB000';  -- undo it
    end if;
  exception
    when sqlstate 'HB000' then
      return query
        select p.place, null::bigint, 'over_quota', null::bigint, t.name
        from unnest(places, ids, job_owners) as p(place, id, tenant)
        join unnest(made.excessive) as e(id) on e.id = p.id join hourbell.tenants as t on t.id = p.tenant
        union all
        select p.place, null::bigint, 'duplicate', r.holder, hourbell.holder_state(r.holder, now)
        from unnest(places, ids) as p(place, id) join unnest(made.refused, made.holders) as r(id, holder) on r.id = p.id
        where on_duplicates[coalesce(p_options_of[p.place], 1)] <> 'keep'
        order by 1 limit 10;
      return;
    when lock_not_available then
      get stacked diagnostics locked = constraint_name;
      return query select 1, null::bigint, 'busy', null::bigint,
        case when locked = 'quota' then 'quota' when once is not null then 'idempotency_key'
          when wanted is not null then 'unique_key' else sqlerrm end;
      return;
  end;
  if made.repeated <> '{}' then
    perform hourbell.confirm();
    return query
      select 1, case when i.is_same then i.job end, case when i.is_same then 'kept' else 'invalid' end,
        case when i.is_same then i.job end,
        case when not i.is_same then 'idempotency_key was used for another call, with another task or payload' end
      from (
        select i.fingerprint = sha256(convert_to(heads[single] || p_payloads[1], 'UTF8')) as is_same,
          (i.response ->> 'job')::bigint as job
        from hourbell.idempotency as i where i.tenant = owners[single] and i.key = once) as i;
    if not found then  -- by a transaction that this one does not see
      return query select 1, null::bigint, 'busy', null::bigint, 'idempotency_key';
    end if;
    return;
  end if;
  if first_at <= now + interval '1 second' then perform pg_notify('hourbell', ''); end if;
  return query
    with stored as materialized (
      select p.place, p.id, r.holder from unnest(places, ids) as p(place, id)
      left join unnest(made.refused, made.holders) as r(id, holder) on r.id = p.id)
    select s.place, coalesce(s.holder, s.id), case when s.holder is null then 'created' else 'kept' end, s.holder,
      null::text from stored as s
    union all
    select r.place, coalesce(s.holder, s.id), 'kept', coalesce(s.holder, s.id), null
    from unnest(repeats, firsts) as r(place, first) join stored as s on s.place = r.first
    order by 1;
end $$;

-- Creates jobs, all or none. See `hourbell.try_enqueue` in store/public for arguments and result.
create or replace function hourbell.enqueue_jobs(
  p_options text, p_payloads text[], p_options_of int[], p_at timestamptz[], p_unique_keys text[], p_actor text
) returns table (place int, job_id bigint, outcome text, holder bigint, detail text)
language plpgsql
set plan = lookups set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  options jsonb;
  new record;
begin
  -- The common case: one job that nothing can refuse.
  if cardinality(p_payloads) = 1 and coalesce(p_options_of[1], 1) = 1 and p_unique_keys[1] is null then
    -- Nothing is written in this block, so it needs no transaction id of its own. That of the whole transaction is
    -- assigned before the snapshot of the write: `list_quota_jobs` relies on it.
    begin
      options := p_options::jsonb -> 0;
      if options - '{task,tenant,queue,priority,delay_seconds,timeout_seconds,notify}'::text[] = '{}' then
        -- Few options, as most calls give: `read_options` prepares the reading of all of them, which takes twice as
        -- long.
        select x.now, x.at, hourbell.next_id(hourbell.id_base(x.now)) as id, w.id as tenant, q.id as queue,
          -k.id as target, x.priority, false as at_most_once, null::bigint as key, 1 as key_limit,
          null::timestamptz as start_by, null::timestamptz as finish_by,
          hourbell.enqueued_spec(
            '{"name":"' || k.name || '","action":{"type":"TASK","name":"' || k.name || '","payload":', p_payloads[1],
            concat('},"type":"ONE_TIME"', ',"retry_policy":' || q.retry_policy,
              ',"timeout_seconds":' || coalesce(x.timeout_seconds, q.timeout_seconds),
              ',"tenant_id":"' || nullif(w.name, 'default') || '"', ',"queue":"' || nullif(q.name, 'default') || '"',
              ',"priority":' || nullif(x.priority, 2)),
            null, null, x.at) as spec,
          case when x.notify and x.at <= x.now + interval '1 second' then pg_notify('hourbell', '') end,
          pg_current_xact_id()
        into new
        from (
          select n.now, coalesce(p_at[1], n.now + make_interval(secs => coalesce(n.delay_seconds, 0))) as at,
            n.delay_seconds, (options ->> 'timeout_seconds')::bigint as timeout_seconds,
            coalesce((options ->> 'notify')::boolean, true) as notify,
            (array_position('{CRITICAL,HIGH,MEDIUM,LOW}'::text[], coalesce(options ->> 'priority', 'MEDIUM')) - 1)
              ::smallint as priority
          from (select hourbell.clock() as now, (options ->> 'delay_seconds')::float8 as delay_seconds offset 0) as n
          offset 0) as x
        join hourbell.tasks as k on k.name = options ->> 'task'
        join hourbell.queues as q on q.name = coalesce(options ->> 'queue', 'default')
        join hourbell.tenants as w on w.name = coalesce(options ->> 'tenant', 'default')
        where w.max_jobs is null and x.priority is not null and coalesce(x.delay_seconds, 0) between 0 and 315360000
          and coalesce(x.timeout_seconds, 1) between 1 and 86400
          and hourbell.job_problem(x.now, p_at[1], null, p_payloads[1], null, null, 'reject', null) is null;
      else
        select x.now, x.at, hourbell.next_id(hourbell.id_base(x.now)) as id, o.tenant, o.queue, o.target, o.priority,
          o.at_most_once, o.key, o.key_limit,
          x.at + make_interval(secs => x.start_seconds) as start_by,
          x.at + make_interval(secs => o.deadline_seconds) as finish_by,
          hourbell.enqueued_spec(o.head, p_payloads[1], o.tail
            || case when o.expires_at is null then '' else ',"start_deadline_seconds":' || x.start_seconds end,
            null, null, x.at) as spec,
          case when o.notify and x.at <= x.now + interval '1 second' then pg_notify('hourbell', '') end,
          pg_current_xact_id()
        into new
        from (select hourbell.clock() as now offset 0) as n
        cross join hourbell.read_options(p_options::json -> 0) as o
        cross join lateral (
          select n.now, a.at, case when o.expires_at is null then o.start_seconds
            when isfinite(o.expires_at) and isfinite(a.at) then floor(extract(epoch from o.expires_at - a.at))::int
            end as start_seconds
          from (select coalesce(p_at[1], n.now + o.delay) as at offset 0) as a offset 0) as x
        where o.outcome is null and not o.has_quota and o.idempotency_key is null
          and hourbell.job_problem(
            x.now, p_at[1], null, p_payloads[1], o.expires_at, o.deadline_seconds, o.on_duplicate, o.delay) is null;
      end if;
    exception when data_exception or statement_too_complex then null;  -- `enqueue_any` finds out which
    end;
    if found then
      return query
        with made as (
          insert into hourbell.executions
            (id, occurrence, run_at, tenant, queue, priority, start_by, finish_by, version, origin, at_most_once, spec,
             target, key, key_limit)
          values
            (new.id, new.at, new.at, new.tenant, new.queue, new.priority, new.start_by, new.finish_by, 1,
             hourbell.origin_schedule(), new.at_most_once, new.spec, new.target, new.key, new.key_limit)),
        noted as (
          insert into hourbell.audit (at, tenant, job, actor, operation)
          values (new.now, new.tenant, new.id, p_actor, 'create'))
        insert into hourbell.due (run_at, id, tenant, queue, priority, target, key)
        values (new.at, new.id, new.tenant, new.queue, new.priority, new.target, new.key)
        returning 1, new.id, 'created', null::bigint, null::text;
      if new.start_by is not null or new.finish_by is not null then
        insert into hourbell.deadlines (at, id, kind)
        select d.at, new.id, d.kind
        from (values (new.start_by, hourbell.deadline_start()), (new.finish_by, hourbell.deadline_finish()))
          as d(at, kind) where d.at is not null;
      end if;
      -- A tenant that has got a quota since.
      if exists (select from hourbell.tenants where id = new.tenant and max_jobs is not null) then
        insert into hourbell.quota_jobs (tenant, id) values (new.tenant, new.id);
      end if;
      return;
    end if;
  end if;
  return query select * from hourbell.enqueue_any(p_options, p_payloads, p_options_of, p_at, p_unique_keys, p_actor);
end $$;

-- Cancels the job with a unique key, of a task or (null) of any: `cancelled`, `requested` (it is queued or runs, and is
-- asked to stop), `ended` (the job that has the key has ended), `not_found` (no job has it) or `busy` (another
-- transaction is moving the job). A job of a task has a key of the task, or one of the tenant.
create or replace function hourbell.cancel_by_key(p_tenant text, p_task text, p_key text, p_actor text) returns text
language plpgsql
set plan = lookups_one_by_one set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  now constant timestamptz := hourbell.clock();
  task constant int := (select -id from hourbell.tasks where name = p_task);
  holder record;
begin
  select k.job, k.tenant, hourbell.live_jobs(array[k.job]) <> '{}' as is_live into holder
  from unnest(array[p_task || ':' || p_key, p_key]) with ordinality as w(key, nth)
  cross join lateral (
    select k.job, k.tenant from hourbell.unique_keys as k
    where k.tenant = (select id from hourbell.tenants where name = p_tenant)
      and k.space = hourbell.key_space_unique() and k.key = w.key offset 0) as k
  where nth = 1 or p_task is null or task = coalesce(
    (select target from hourbell.jobs where id = k.job), (select target from hourbell.executions where id = k.job))
  order by is_live desc, nth limit 1;
  if not found or not holder.is_live then
    perform hourbell.confirm();
    return case when holder is null then 'not_found' else 'ended' end;
  end if;
  for try in 1 .. 3 loop
    case (select outcome from hourbell.cancel_execution(
      now, holder.job, holder.job,
      exists (select from hourbell.leases as l where l.id = holder.job and l.session = hourbell.awaiting_session()),
      json_build_object('tenant', holder.tenant, 'actor', p_actor, 'operation', 'cancel')))
      when 'changed' then return 'cancelled';
      when 'unchanged' then return 'requested';
      else
        if hourbell.live_jobs(array[holder.job]) = '{}' then return 'ended'; end if;
    end case;
  end loop;
  return 'busy';
exception when lock_not_available then
  return 'busy';
end $$;
