"""PostgreSQL: the embedded server, the pool, the schema and the statements.

`migrations/` creates the tables, `functions/` has the operations that must be one statement, and
`queries/` has all other statements by name. The migrations document the tables; `hourbell.engine`
documents which operation changes what.
"""
