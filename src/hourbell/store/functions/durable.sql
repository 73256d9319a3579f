-- Durable answers. An answer that is read out of a row may come from a transaction that is not confirmed: its wait for
-- a synchronous standby was ended, or the server crashed during it. A failover loses that row.

-- Writes something, so that the commit of this transaction waits until all WAL before it, of other transactions too, is
-- as durable as a commit has to be. A read does not wait, nor does a row that is only looked at.
create or replace function hourbell.confirm() returns void
language sql as $$
  select pg_logical_emit_message(true, 'hourbell', '')
$$;
