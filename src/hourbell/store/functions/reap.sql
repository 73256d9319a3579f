-- Reaping: executions whose worker died become due again.
-- Example: a worker that runs 3 executions is killed. Its session is not renewed and expires; the leader ends it here.
-- Each of the 3 gets a lost attempt in its history and is due at once; the next claim gives it a higher fence, so a
-- report of the first worker, should it still run, is refused.

-- Ends expired sessions, each by `reap_session`. Sessions locked by another transaction are left to the next round.
-- p_crash_limit: max_crashes of jobs that set none. returned, ended: how many executions are due again, and how many
-- have ended.
create or replace function hourbell.reap(
  p_node uuid, p_epoch bigint, p_now timestamptz, p_crash_limit int, out sessions int, out returned int, out ended int
)
language plpgsql set plan = lookups_by_hash as $$
#variable_conflict use_column
declare
  expired bigint;
  reaped record;
begin
  perform hourbell.check_epoch(p_node, p_epoch);
  sessions := 0; returned := 0; ended := 0;
  -- Renewed in the future: the clock was set back. The lease keeps its length.
  update hourbell.sessions set renewed_at = p_now, expires_at = p_now + (expires_at - renewed_at) where id = any (array(
    select id from hourbell.sessions
    where expires_at > p_now and renewed_at > p_now + interval '5 seconds' for update skip locked));
  for expired in
    select id from hourbell.sessions where expires_at <= p_now order by expires_at limit 16 for update skip locked
  loop
    begin
      reaped := hourbell.reap_session(expired, p_now, p_crash_limit);
      sessions := sessions + 1; returned := returned + reaped.returned; ended := ended + reaped.ended;
    exception when data_exception or integrity_constraint_violation then
      -- A session that raises an error here must not keep the others from being reaped.
      raise warning 'session % cannot be reaped: %', expired, sqlerrm;
    end;
  end loop;
end $$;

-- Ends a session that its caller has locked (`reap`, whose plan settings apply). Its slabs are locked first and its
-- executions are read by a second statement, so a concurrent claim or settle is seen whole or refused.
-- Its executions come back as due. One that was lost twice in a row is claimed alone from then on (`flag_suspect`).
-- Only deaths of the worker while an execution ran alone count against it: after as many in a row as max_crashes of its
-- retry policy says, or else p_crash_limit, it is dead.
create or replace function hourbell.reap_session(
  p_session bigint, p_now timestamptz, p_crash_limit int, out returned int, out ended int
)
language plpgsql as $$
#variable_conflict use_column
declare
  back bigint[];
  over bigint[];  -- executions that end,
  fates smallint[];  -- how,
  reasons text[];  -- and why
  failing bigint[];  -- executions that come back and notify of failures
begin
  perform from hourbell.leased where session = p_session order by fence for update;
  with lost as materialized (select * from hourbell.leases as l where l.session = p_session),
  judged as materialized (
    select e, e.notifies, h.*, case
      when exists (select from hourbell.cancellations as c where c.id = h.id offset 0)
        then hourbell.fate_cancelled()
      when e.at_most_once then hourbell.fate_dead()
      when h.alone and e.crashes - 1 >= hourbell.max_crashes(hourbell.job_spec(e.job, e.spec), p_crash_limit)
        then hourbell.fate_dead()
    end as fate, case when e.at_most_once then 'lost' else 'crashed' end as why
    from lost as h
    join hourbell.executions as e on e.id = h.id and e.id = any (array(select id from lost))),
  letters as (
    insert into hourbell.dead_letters (id, job, tenant, died_at, reason, error, execution)
    select j.id, (j.e).job, (j.e).tenant, p_now, j.why, 'the worker was lost',
      hourbell.dead_letter_of(j.e, null, j.fence, j.claimed_at, p_now, j.why, 'the worker was lost', p_session)
    from judged as j where j.fate = hourbell.fate_dead()),
  granted as (
    delete from hourbell.cancellations where id = any (array(select id from judged where fate is not null))),
  recorded as (
    insert into hourbell.outcomes
      (id, fence, started_at, finished_at, recorded_at, session, version, fate, reason, error)
    select j.id, j.fence, j.claimed_at, p_now, p_now, p_session, j.version, j.fate,
      case j.fate when hourbell.fate_cancelled() then 'cancelled' else j.why end, 'the worker was lost'
    from judged as j where j.fate is not null),
  again as (
    update hourbell.executions as e
    set fence = j.fence, attempt = e.attempt + 1, crashes = e.crashes + 1, run_at = p_now,
        first_started_at = coalesce(e.first_started_at, j.claimed_at),
        history = hourbell.add_attempt(
          e.history, null, e.attempt + 1, j.claimed_at, p_now, j.fence, 'lost', 'the worker was lost', p_session)
    from judged as j
    where e.id = j.id and e.id = any (array(select id from judged where fate is null))),
  counted as (
    insert into hourbell.failed_attempts (at, started_at, tenant, target, id)
    select p_now, j.claimed_at, (j.e).tenant, (j.e).target, j.id from judged as j where j.fate is null)
  select array_agg(j.id) filter (where j.fate is null), array_agg(j.id) filter (where j.fate is not null),
    array_agg(j.id) filter (where j.fate is null and j.notifies & hourbell.event_failure() <> 0),
    array_agg(j.fate) filter (where j.fate is not null),
    array_agg(case j.fate when hourbell.fate_cancelled() then 'cancelled' else j.why end)
      filter (where j.fate is not null)
  into back, over, failing, fates, reasons from judged as j;
  if failing is not null then perform hourbell.write_failure_notices(failing); end if;
  if over is not null then
    perform hourbell.leave_quotas(over);
    perform hourbell.write_end_notices(over);
    perform hourbell.count_fates(fates, reasons);
    perform hourbell.close_runs(over, p_now);
  end if;
  perform hourbell.release_limits(back, false, p_now);
  perform hourbell.release_limits(over, true, p_now);
  perform hourbell.requeue(back);
  delete from hourbell.leased where session = p_session;
  perform hourbell.remember_session(p_session, p_now, coalesce(cardinality(back), 0));
  perform hourbell.end_session(p_session, p_now);
  returned := coalesce(cardinality(back), 0); ended := coalesce(cardinality(over), 0);
end $$;

-- How many worker deaths in a row, running alone, a job allows. An unreadable spec gets the default: one bad spec must
-- not stop the reaper.
create or replace function hourbell.max_crashes(p_spec text, p_default int) returns int
language plpgsql stable as $$
begin
  return coalesce((p_spec::json -> 'retry_policy' ->> 'max_crashes')::int, p_default);
exception when data_exception then
  return p_default;
end $$;
