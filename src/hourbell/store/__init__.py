"""PostgreSQL: the embedded server, the pool, the schema and the statements.

`migrations/` makes the tables, `functions/` the verbs that must be one statement, `queries/` the rest by name. The
tables are described where they are made; which verb moves what is told in `hourbell.engine`.
"""
