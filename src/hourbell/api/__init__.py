"""The API: the engine's operations over HTTP.

A request comes in through `requests`, which reads it in full or refuses it; a handler in `jobs`, `executions`, `letters`, `cell` or `health`
calls one operation of the engine; `answers` renders what it gave. Whatever goes wrong on the way is raised and becomes a
problem (RFC 9457) in `problems`, in one place, by one table from codes to statuses.

    routes.py      what a route is: method, path, handler, and what the document says about it
    jobs.py, executions.py, letters.py, monitors.py, cell.py, keys.py, secrets.py, workers.py, health.py   the routes and their handlers
    auth.py        who calls, and whether he may: before any handler
    openapi.py, schemas.py              the OpenAPI document, made from the same routes
    app.py         the application: routes, dependencies, problems; no globals
    server.py      the application on a port, in the loop of the process that holds it

Bodies are not bound to types by the framework, which would stop at the first wrong field: they are decoded to plain JSON
values and given to the operation, whose reader (`hourbell.documents`) names every wrong field at once. So a route says in
words of JSON Schema what it takes, and a test holds each answer to what the document says.

Every write carries an `Idempotency-Key`. The key is kept in the transaction of its effect; the same request under the same
key gets the same answer, another request under it is refused. The calls of workers have no such key: what they say about
session, fence and claim makes them safe to repeat.
"""
