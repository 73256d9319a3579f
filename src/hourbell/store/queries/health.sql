-- Health: what a process asks before it says that it is ready.

-- name: state
-- The time, which migrations there are, and until when somebody leads.
select hourbell.clock() as now, array(select name from hourbell.migrations) as migrations,
  (select expires_at from hourbell.leadership) as led_until
