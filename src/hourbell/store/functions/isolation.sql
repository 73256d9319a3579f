-- One bad row does not stop the others: the rule is in docs/architecture.md. First what all steps share, then the gate.
-- A row on which a pass fails (a bug, a job that cannot be read, a
-- value that does not fit) would make every pass fail. So after a pass that failed, its caller runs an isolating one:
-- it decides on the rows of a priority in blocks, each of which may fail by itself, and parks the rows that fail alone
-- under the blocker `blocker_failure`. A minute later a pass puts them back into `due` (`retry_failed`), and fails
-- again if the cause is still there. docs/decisions/0023-isolating-passes.md says why it is done so.
-- Example: of 1,000 due rows the 300th fails. The blocks of 1,000 and 500 rows fail; 250 are admitted; of the next 500,
-- 250, 125 and so on, the ones with the row fail, until it is alone and is parked. All others become ready.

-- Whether an error says nothing about the rows, for example a lock timeout or a full disk. It is raised, and the caller
-- retries the pass later. The same errors as in store/database.py.
create or replace function hourbell.is_temporary(p_sqlstate text) returns boolean
language sql immutable parallel safe
return left(p_sqlstate, 2) in ('08', '40', '53', '57') or p_sqlstate in ('25006', '55P03');

-- Notes a row on which a step has failed; returns whether it is new. The step leaves the row out for a minute, and then
-- retries it: a node of another version may lead by then. Housekeeping deletes what no longer fails.
create or replace function hourbell.note_failing(
  p_now timestamptz, p_step text, p_id bigint, p_job bigint, p_execution bigint, p_problem text
) returns boolean
language sql as $$
  insert into hourbell.failing_rows as s (step, id, job, execution, since, until, problem)
  values (p_step, p_id, p_job, p_execution, p_now, p_now + hourbell.retry_failed_after(), p_problem)
  on conflict (step, id) do update
  set until = excluded.until, problem = excluded.problem, job = excluded.job, execution = excluded.execution,
    since = case when s.until < p_now - interval '10 minutes' then p_now else s.since end
  returning s.since = p_now
$$;

-- How many blocks of one priority may fail in a pass, so that it does not hold the gate's lock for long, however many
-- rows are bad. The rows that are left stay in `due`, and the next pass continues. Finding a row among
-- 1,000 takes 11, and one next to it one more.
create or replace function hourbell.max_failures() returns int
language sql immutable parallel safe return 24;

-- After how long rows are retried on which the gate has failed.
create or replace function hourbell.retry_failed_after() returns interval
language sql immutable parallel safe return interval '1 minute';

-- Decides on rows of one priority, like `admit_rows`, but parks those that fail. `failed`: their ids; `more`: too many
-- blocks have failed, and rows are left. p_woken: whether the rows come from `unpark`, or else from `due`.
create or replace function hourbell.admit_isolating(
  p_rows hourbell.due[], p_woken boolean, p_priority smallint, p_serving hourbell.sessions[], p_generation int,
  p_now timestamptz, p_grace interval, p_pass bigint,
  out failed bigint[], out errors text[], out more boolean
)
language plpgsql set plan = lookups_unsorted as $$
declare
  failures int := 0;
  done int := 0;  -- rows
  size int := cardinality(p_rows);  -- of the next block
  block hourbell.due[];
  bad hourbell.due[] := '{}';
  code text; message text;
begin
  errors := '{}';
  -- Each block takes its rows out of `due` again: overlap and keys depend on what else is due.
  if not p_woken then insert into hourbell.due select * from unnest(p_rows); end if;
  while done < cardinality(p_rows) and failures < hourbell.max_failures() loop
    size := least(size, cardinality(p_rows) - done);
    block := p_rows[done + 1:done + size];
    begin  -- what a block has done is undone if it fails
      if p_woken then
        block := hourbell.acquire_keys(hourbell.without_overlap(block, hourbell.blocker_job(), p_now), p_now);
      else
        perform hourbell.remove_due(block);
        block := hourbell.without_misfires(block, p_now, p_grace);
      end if;
      perform hourbell.admit_rows(block, p_priority, p_serving, p_generation, p_now, p_pass);
      done := done + size;
      size := 2 * size;
    exception when others then
      get stacked diagnostics code = returned_sqlstate, message = message_text;
      if hourbell.is_temporary(code) then raise; end if;
      failures := failures + 1;
      if size = 1 then
        if not p_woken then perform hourbell.remove_due(p_rows[done + 1:done + 1]); end if;
        insert into hourbell.parked (kind, key, priority, rank, id)
        values (hourbell.blocker_failure(), 0, 0, extract(epoch from p_now), (p_rows[done + 1]).id);
        bad := bad || p_rows[done + 1];
        errors := errors || format('%s: %s', code, message);
        done := done + 1;
      else
        size := size / 2;
      end if;
    end;
  end loop;
  failed := array(select id from unnest(bad));
  more := done < cardinality(p_rows);
  if p_woken then
    perform hourbell.requeue(array(select id from unnest(p_rows[done + 1:])));
    -- The blockers that had room for them still have it.
    insert into hourbell.gate_wakeups (at, kind, key)
    select distinct p_now, b.kind, b.key
    from (
      select hourbell.parked_for(flags) as kind,
        hourbell.blocker_key_of(hourbell.parked_for(flags), queue, tenant, target, key) as key
      from unnest(bad || p_rows[done + 1:])) as b
    where b.key is not null;
  end if;
end $$;

-- Takes rows out of `due`.
create or replace function hourbell.remove_due(p_rows hourbell.due[]) returns void
language sql set plan = lookups_one_by_one as $$
  delete from hourbell.due where ctid = any (array(
    select d.row from unnest(p_rows) as r cross join lateral (
      select ctid as row from hourbell.due as d
      where hourbell.tier(d.priority, d.flags) = hourbell.tier(r.priority, r.flags) and d.run_at = r.run_at
        and d.id = r.id) as d))
$$;

-- The executions of slabs as due rows. The tenant is that of the execution where the slab does not have it, and what is
-- no execution is left out.
create or replace function hourbell.unpacked(p_slabs hourbell.due_slabs[]) returns hourbell.due[]
language sql set plan = lookups_one_by_one as $$
  select array(
    select row(s.run_at, i.id, t.tenant, s.queue, s.priority, s.flags, s.target, null)::hourbell.due
    from unnest(p_slabs) as s cross join lateral unnest(s.ids, s.tenants) as i(id, tenant)
    cross join lateral (
      select coalesce(i.tenant, (select tenant from hourbell.executions as e where e.id = i.id)) as tenant) as t
    where i.id is not null and t.tenant is not null)
$$;

-- Puts rows on which the gate has failed back into `due`, as `executions` has them, if it is time to; returns whether
-- there are any. They are decided on like other due rows, but are no misfires.
create or replace function hourbell.retry_failed(p_now timestamptz, p_limit int) returns boolean
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare ids bigint[];
begin
  if not exists (
    select from hourbell.gate_wakeups where kind = hourbell.blocker_failure() and key = 0 and at <= p_now) then
    return false;
  end if;
  delete from hourbell.gate_wakeups where kind = hourbell.blocker_failure() and key = 0;
  with gone as (
    delete from hourbell.parked where ctid = any (array(
      select ctid from hourbell.parked where kind = hourbell.blocker_failure() and key = 0
      order by priority, rank, id limit p_limit for update skip locked))
    returning id)
  select array_agg(id) into ids from gone;
  perform hourbell.requeue(ids);
  perform hourbell.wake_failed(p_now, ids is null);  -- null: other transactions have locked all of them
  return ids is not null;
end $$;

-- Makes sure that the rows on which the gate has failed are retried: in a minute if it has failed on rows in this pass
-- (p_again), otherwise in the next pass.
create or replace function hourbell.wake_failed(p_now timestamptz, p_again boolean) returns void
language sql set plan = lookups as $$
  with past as (
    delete from hourbell.gate_wakeups
    where p_again and kind = hourbell.blocker_failure() and key = 0 and at <= p_now)
  insert into hourbell.gate_wakeups (at, kind, key)
  select case when p_again then p_now + hourbell.retry_failed_after() else p_now end, hourbell.blocker_failure(), 0
  where exists (select from hourbell.parked where kind = hourbell.blocker_failure() and key = 0 offset 0)
    and not exists (
      select from hourbell.gate_wakeups
      where kind = hourbell.blocker_failure() and key = 0 and (at > p_now or not p_again) offset 0)
$$;

-- What a pass does with new limits and with wake-ups (`retry_failed` and `unpark`): with fewer and fewer wake-ups,
-- until it does not fail. If it fails even with one, the first row of that line is parked under `blocker_failure`, and
-- then the next, until it does not fail. If it still does after `max_failures`, or the line is empty, the blocker
-- itself is bad, and is woken again later.
create or replace function hourbell.unpark_isolating(
  p_now timestamptz, p_limit int, out retried boolean, out woken hourbell.due[], out failed bigint[], out errors text[]
)
language plpgsql set plan = lookups as $$
#variable_conflict use_column
declare
  retrying boolean;  -- `retry_failed` has not returned: if something fails, it has
  code text; message text;
  line_kind smallint; line_key bigint;
  first_id bigint;
begin
  failed := '{}'; errors := '{}';
  begin  -- a limit that was just set admits nothing until it is counted
    if exists (select from hourbell.limit_recounts) then perform hourbell.recount_running(p_now); end if;
  exception when others then
    if hourbell.is_temporary(sqlstate) then raise; end if;
  end;
  loop
    begin
      retrying := true;
      retried := hourbell.retry_failed(p_now, p_limit);
      retrying := false;
      woken := hourbell.unpark(p_now, p_limit, false);
      return;
    exception when others then
      get stacked diagnostics code = returned_sqlstate, message = message_text;
      if hourbell.is_temporary(code) then raise; end if;
    end;
    if p_limit > 1 then
      p_limit := greatest(p_limit / 4, 1);
      continue;
    end if;
    retried := false; woken := '{}';
    -- As the two functions have chosen.
    select kind, key into line_kind, line_key from hourbell.gate_wakeups
    where at <= p_now and (kind = hourbell.blocker_failure()) = retrying order by at limit 1;
    exit when cardinality(failed) = hourbell.max_failures();
    update hourbell.parked
    set kind = hourbell.blocker_failure(), key = 0, priority = 0, rank = extract(epoch from p_now)
    where ctid = any (array(
      select ctid from hourbell.parked where kind = line_kind and key = line_key
      order by priority, rank, id limit 1 for update skip locked))
    returning id into first_id;
    exit when not found;
    failed := failed || first_id; errors := errors || format('%s: %s', code, message);
  end loop;
  update hourbell.gate_wakeups set at = p_now + hourbell.retry_failed_after()
  where kind = line_kind and key = line_key and at <= p_now;
end $$;
