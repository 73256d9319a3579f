-- Leadership: one row, a lease on the database's clock, an epoch that only rises.

-- Whether the lease can be taken: it has expired, or it was renewed in the future. In that case the clock was set back,
-- and how long the lease would still last is unknown.
create or replace function hourbell.lease_is_free(l hourbell.leadership) returns boolean
language sql volatile
return l.expires_at <= hourbell.clock() or l.renewed_at > hourbell.clock() + interval '5 seconds';

-- Takes the lease if it has expired; null if another node holds it.
-- Lock modes: an operation of the leader locks the row `for key share` (check_epoch). A renewal updates columns that
-- are not in the key, which does not conflict, so a renewal never waits for an operation of the same leader. A new
-- epoch must wait for the operations of the last one: it locks the row `for update`, which conflicts, and only once the
-- lease has expired, so a standby that finds a valid lease waits for nothing.
create or replace function hourbell.campaign(p_node uuid, p_lease interval) returns bigint
language plpgsql volatile as $$
#variable_conflict use_column
declare won bigint;
begin
  perform from hourbell.leadership as l where hourbell.lease_is_free(l) for update;
  if found then
    update hourbell.leadership
    set epoch = epoch + 1, node = p_node, renewed_at = hourbell.clock(), expires_at = hourbell.clock() + p_lease
    returning epoch into won;
  else  -- the first epoch ever, unless there is a leader
    insert into hourbell.leadership (epoch, node, renewed_at, expires_at)
    values (1, p_node, hourbell.clock(), hourbell.clock() + p_lease)
    on conflict (cell) do nothing
    returning epoch into won;
  end if;
  if won is not null then
    insert into hourbell.terms (epoch, node, began_at) values (won, p_node, hourbell.clock())
    on conflict (epoch) do nothing;
  end if;
  return won;
end $$;

-- Renews the lease. False: it has expired or another epoch began; the caller is no longer the leader.
create or replace function hourbell.renew(p_node uuid, p_epoch bigint, p_lease interval) returns boolean
language sql volatile as $$
  with renewed as (
    update hourbell.leadership set renewed_at = hourbell.clock(), expires_at = hourbell.clock() + p_lease
    where epoch = p_epoch and node = p_node and expires_at > hourbell.clock()
    returning 1)
  select exists (select from renewed)
$$;

-- Releases the lease, so that the next leader need not wait for it to expire.
create or replace function hourbell.resign(p_node uuid, p_epoch bigint) returns void
language sql volatile as $$
  update hourbell.leadership set expires_at = hourbell.clock() where epoch = p_epoch and node = p_node
$$;

-- The first statement of every operation of the leader. The row stays locked until the commit, so no other epoch can
-- begin before that. A null epoch: the caller does not claim to lead. Safety does not depend on leadership.
create or replace function hourbell.check_epoch(p_node uuid, p_epoch bigint) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  if p_epoch is null then return; end if;
  perform from hourbell.leadership
  where epoch = p_epoch and node = p_node and expires_at > hourbell.clock() for key share;
  if not found then
    raise exception 'epoch % is over', p_epoch using errcode = 'HB100';
  end if;
end $$;
