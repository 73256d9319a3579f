"""The library: an app, its tasks, and a worker for them.

    app.py          App: names, options, connections, the worker of an app
    app_connections.py  the app's own connections, in one event loop
    tasks.py        Task, Configured, Call: what `@app.task` makes of a function
    tasksets.py     tasks that are declared without an app
    signature.py    the parameters of a task: arguments ⇄ JSON payload
    plans.py        a call as one SQL statement, and the meaning of its rows; no I/O
    connections.py  the connections of users: asyncpg, psycopg, SQLAlchemy, Django
    portal.py       sync callers: one event loop in a thread of its own
    jobs.py         Job: a handle of what was enqueued
    groups.py       Group: a handle of jobs whose common end creates another
    schedules.py    schedules in code, as a manifest
    context.py      Context and SyncContext: what a handler can learn and ask
    running.py      runs the tasks of an app inside a worker
    batches.py      batch tasks
    processes/      tasks in processes of their own
    outcomes.py     what the exceptions of a handler mean
    values.py       Retry, cron, every, Options

Nothing is imported that a client does not need: asyncpg when an app is opened, the worker when it
is run.
"""
