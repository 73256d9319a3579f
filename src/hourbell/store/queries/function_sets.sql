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
insert into hourbell.function_sets (digest, version, used_at) values ($1, $2, hourbell.clock())

-- name: unused
-- Other function sets that no process has used for this long, each with its routines in the form
-- that `drop routine` takes.
select s.digest, (
    select string_agg(p.oid::regprocedure::text, ', ') from pg_proc as p
    where p.pronamespace = 'hourbell'::regnamespace and p.proname ~ ('__' || s.digest || '$')) as routines
from hourbell.function_sets as s
where s.digest <> $1 and not s.is_public and s.used_at < hourbell.clock() - $2::interval

-- name: delete
-- Deletes the record of a function set whose routines were dropped.
delete from hourbell.function_sets where digest = $1

-- name: publish
-- Marks a function set as the one that the public functions call; no row: they call it already, or those of a build
-- that knows a migration which is not in $2.
with others as (
  update hourbell.function_sets set is_public = false
  where is_public and digest <> $1 and not exists (select from hourbell.migrations where name <> all ($2)))
update hourbell.function_sets set is_public = true
where digest = $1 and not is_public and not exists (select from hourbell.migrations where name <> all ($2))
returning digest

-- name: has_open_routines
-- Whether PUBLIC may execute a routine of the schema.
select exists (
  select from pg_proc as p cross join lateral aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) as a
  where p.pronamespace = 'hourbell'::regnamespace and a.grantee = 0)
