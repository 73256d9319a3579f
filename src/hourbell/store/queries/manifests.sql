-- Manifests: the statements of reconcile. The functions have the meaning of the arguments.

-- name: open_session
select * from hourbell.open_declaring_session($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

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
