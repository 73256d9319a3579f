-- Manifests: the statements of reconcile. The functions have the meaning of the arguments.

-- name: open_session
select * from hourbell.open_declaring_session($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: declaring_manifests
-- Those of live workers; of an app without any, the one that led last.
select array(
  select distinct manifest from hourbell.sessions where manifest is not null
  union
  select (select m.id from hourbell.manifests as m where m.app = a.app
    order by m.revision desc nulls last, m.first_seen desc, m.id desc limit 1)
  from (select distinct app from hourbell.manifests) as a
  where not exists (
    select from hourbell.manifests as m join hourbell.sessions as s on s.manifest = m.id where m.app = a.app)
  order by 1)

-- name: declared_tasks
-- The tasks of these manifests, the leading one first.
select body ->> 'tasks' as tasks from hourbell.manifests where id = any ($1)
order by revision desc nulls last, first_seen desc, id desc

-- name: reconciliation
select * from hourbell.reconciliation($1, $2, $3)

-- name: note_unwanted
select hourbell.note_unwanted($1, $2, $3, $4, $5)

-- name: begin_declaration
select hourbell.begin_declaration($1, $2, $3, $4)

-- name: record_declaration
select hourbell.record_declaration($1, $2, $3, $4, $5)

-- name: note_problem
select hourbell.note_problem($1, $2, $3, $4, $5)

-- name: begin_retirement
select hourbell.begin_retirement($1, $2, $3, $4, $5, $6)

-- name: end_retirement
select hourbell.end_retirement($1, $2, $3)
