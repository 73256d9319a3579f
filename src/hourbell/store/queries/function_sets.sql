-- Function sets: the builds whose functions are loaded in this database.

-- name: state
-- The migrations with what each requires of a program, and whether the function set with this
-- digest is loaded.
select array(select name from hourbell.migrations order by name) as migrations,
  array(select requires from hourbell.migrations order by name) as requires,
  exists (select from hourbell.function_sets where digest = $1) as has_functions

-- name: mark_used
-- Renews the date of a function set; returns its digest, or no row if it is not loaded.
update hourbell.function_sets set used_at = hourbell.clock() where digest = $1 returning digest

-- name: insert
-- Records that a function set was loaded, and by which version.
insert into hourbell.function_sets (digest, version, loaded_at, used_at)
values ($1, $2, hourbell.clock(), hourbell.clock())

-- name: unused
-- Other function sets that no process has used for this long, each with its routines in the form
-- that `drop routine` takes.
select s.digest, (
    select string_agg(p.oid::regprocedure::text, ', ') from pg_proc as p
    where p.pronamespace = 'hourbell'::regnamespace and p.proname ~ ('__' || s.digest || '$')) as routines
from hourbell.function_sets as s
where s.digest <> $1 and s.used_at < hourbell.clock() - $2::interval

-- name: delete
-- Deletes the record of a function set whose routines were dropped.
delete from hourbell.function_sets where digest = $1
