"""PostgreSQL: the embedded server, the pool, the schema and the statements.

    embedded       the embedded server
    database       the pool, and one error for a database that is unavailable
    clock          the database's time, the only wall time that decides anything
    migrations     applies `migrations/`
    function_set   loads `functions/` under the names of this build
    queries        statements by name
    arrays         arrays as text, for thousands of values

`migrations/` creates the tables, `functions/` has the operations that must be one statement,
`public/` those that other programs call, and `queries/` all other statements, by name. A statement that
only calls one function is written where it is used. The migrations document the tables; `hourbell.engine`
documents which operation changes what.
"""
