"""PostgreSQL: the embedded server, the pool, the schema and the statements.

`migrations/` creates the tables, `functions/` has the operations that must be one statement,
`public/` those that other programs call, and `queries/` other statements by name. A statement that
only calls one function is written where it is used. The migrations document the tables; `hourbell.engine`
documents which operation changes what.
"""
