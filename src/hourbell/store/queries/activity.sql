-- Activity: what was counted by minute.

-- name: last_final
-- The last minute up to $1 that was counted for good.
select minute from hourbell.minutes where final and minute <= $1 order by minute desc limit 1

-- name: open_minutes
-- Minutes from $1 on that will be counted again, and about how many outcomes were read for the last count.
select minute, counted_at, succeeded + dead + cancelled + superseded + skipped as outcomes from hourbell.minutes
  where not final and minute >= $1 order by minute limit 2000

-- name: count_minute
select hourbell.count_minute($1, $2, $3, $4, $5, $6)

-- name: minutes
-- From $1 on, the oldest first.
select minute, succeeded, failed, dead, skipped, cancelled, superseded, started_in, starts, reasons, sampled, lateness,
  tenants, tenant_starts, skips
from hourbell.minutes where minute >= $1 order by minute limit 1500

-- name: shares
-- The starts of tenants in the minutes from $1 on, most first, at most $2, with their names and weights, and those of
-- all tenants.
select t.name, s.starts, coalesce(
    (select weight from hourbell.weight_changes as r where r.tenant = t.id order by r.id desc limit 1),
      t.weight) as weight
from (
  select s.tenant, sum(s.starts)::bigint as starts
  from hourbell.minutes as m cross join lateral unnest(m.tenants, m.tenant_starts) as s(tenant, starts)
  where m.minute >= $1 group by s.tenant order by starts desc, s.tenant limit $2) as s
cross join lateral (select * from hourbell.tenants as t where t.id = s.tenant offset 0) as t
order by s.starts desc, s.tenant
