"""The API: the engine's operations over HTTP.

`requests` reads a request in full or rejects it (`queries` reads its query string). A handler calls
one operation of the engine, and `answers` renders the result. Every error is raised and turned into
a problem document (RFC 9457) in one place, `problems`, using one table from error codes to HTTP
statuses; `errors` defines those that exist only over HTTP.
    routes.py     the Route struct: method, path, handler and OpenAPI description
    jobs.py, executions.py, execution_groups.py, dead_letters.py, operations.py, schedules.py,
    calendars.py, monitors.py, cell.py, overview.py, tasks.py, keys.py, secrets.py, sign_ins.py,
    workers.py, health.py, metrics.py     the routes and their handlers
    worker_calls.py    the documents that HTTP workers send
    events.py     server-sent events
    dashboard.py  the files of the dashboard
    auth.py       authentication and authorization, before any handler runs
    openapi.py, schemas.py    the OpenAPI document, generated from the same routes
    examples.py   an example of each body, for that document and the API page
    app.py        the application: routes, dependencies, error handlers; no globals
    server.py     serves the application on a port, in the event loop of the process
    compression.py    compresses large answers
    page_tokens.py    a position in a list, with the operation that returned it

The framework does not bind bodies to types, because it would stop at the first invalid field.
Bodies are decoded to plain JSON values and passed to the operation, whose reader
(`hourbell.documents`) reports every invalid field at once. Each route therefore declares its body
as JSON Schema, and a test checks every response against the OpenAPI document.

Every write carries an `Idempotency-Key`. The key is stored in the same transaction as the effect.
Repeating a request with its key returns the first response; a different request with the same key
is rejected. Worker calls have no such key: session, fence and claim number make them safe to
repeat.
"""
