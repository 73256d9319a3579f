-- For libraries: ends an execution as succeeded in the transaction of its handler. Authorized by the session that holds
-- the execution, so it is worth nothing to another caller. Raises HB008 if the session does not hold it any more.
create or replace function hourbell.complete(
  execution bigint, fence bigint, session bigint, session_token uuid, took_ms int, result text default null
) returns void
language sql volatile security definer
set search_path = pg_catalog, pg_temp set lock_timeout = '30s' set idle_in_transaction_session_timeout = 0 as $$
  select hourbell.complete_execution($1, $2, $3, $4, $5, $6::json)
$$;
