"""The library: an app, its tasks, and a worker for them.

    app.py          App: tasks, options, connections, and its worker
    app_connections.py  the app's own connections, in one event loop
    tasks.py        Task, Configured, Call: the result of `@app.task`
    tasksets.py     tasks declared without an app
    signature.py    the parameters of a task: arguments ⇄ JSON payload
    plans.py        a call as one SQL statement, and the meaning of its rows; no I/O
    connections.py  the connections of users: asyncpg, psycopg, SQLAlchemy, Django
    awaitables.py   coroutines whose loss is logged: an enqueue without await
    portal.py       sync callers: one event loop in its own thread
    jobs.py         Job: a handle to an enqueued job
    groups.py       Group: a handle to jobs that create another one when all have ended
    schedules.py    schedules in code, as a manifest
    context.py      Context and SyncContext: what a handler can read and do
    running.py      runs the tasks of an app inside a worker
    batches.py      batch tasks
    processes/      tasks that run in their own processes
    outcomes.py     what the exceptions of a handler mean
    values.py       Retry, cron, every, Options

Imports are limited to what a client needs: asyncpg is imported when an app is opened, the worker when
it is run.
"""
