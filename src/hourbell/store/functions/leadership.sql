-- Leadership: one row, a lease on the database's clock, an epoch that only rises.

-- Takes the lease if it is free; null if somebody else holds it.
create or replace function hourbell.campaign(p_node uuid, p_lease interval) returns bigint
language sql volatile as $$
  insert into hourbell.leadership as l (epoch, node, renewed_at, expires_at)
  values (1, p_node, hourbell.clock(), hourbell.clock() + p_lease)
  on conflict (cell) do update
    set epoch = l.epoch + 1, node = excluded.node, renewed_at = excluded.renewed_at, expires_at = excluded.expires_at
    -- Renewed in the future: the clock was set back, and nobody knows how long that lease would still be.
    where l.expires_at <= hourbell.clock() or l.renewed_at > hourbell.clock() + interval '5 seconds'
  returning epoch
$$;

-- False: the lease ran out or another epoch began; the caller leads no more.
create or replace function hourbell.renew(p_node uuid, p_epoch bigint, p_lease interval) returns boolean
language sql volatile as $$
  with renewed as (
    update hourbell.leadership set renewed_at = hourbell.clock(), expires_at = hourbell.clock() + p_lease
    where epoch = p_epoch and node = p_node and expires_at > hourbell.clock()
    returning 1)
  select exists (select from renewed)
$$;

-- Gives the lease back, so that the next leader need not wait for it to run out.
create or replace function hourbell.resign(p_node uuid, p_epoch bigint) returns void
language sql volatile as $$
  update hourbell.leadership set expires_at = hourbell.clock() where epoch = p_epoch and node = p_node
$$;

-- First statement of every leader's verb: the row stays share-locked to the commit, so no other epoch can begin before it.
-- A null epoch is a caller that does not claim to lead; safety does not rest on leadership.
create or replace function hourbell.check_epoch(p_node uuid, p_epoch bigint) returns void
language plpgsql as $$
#variable_conflict use_column
begin
  if p_epoch is null then return; end if;
  perform from hourbell.leadership
  where epoch = p_epoch and node = p_node and expires_at > hourbell.clock() for share;
  if not found then
    raise exception 'epoch % is over', p_epoch using errcode = 'HB001';
  end if;
end $$;
