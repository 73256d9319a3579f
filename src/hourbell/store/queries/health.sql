-- Health: what a process checks before it reports that it is ready.

-- name: state
-- The time, the migrations with what each requires, whether a build's functions ($1) are loaded,
-- and until when a node leads.
select hourbell.clock() as now, array(select name from hourbell.migrations order by name) as migrations,
  array(select requires from hourbell.migrations order by name) as requires,
  exists (select from hourbell.function_sets where digest = $1) as has_functions,
  (select expires_at from hourbell.leadership) as led_until
