"""The library: an app, its tasks, and a worker for them.

    app.py          App: names, options, connections, the worker of an app
    tasks.py        Task, Configured, Call: what `@app.task` makes of a function
    signature.py    the parameters of a task: arguments ⇄ JSON payload
    plans.py        a call as one SQL statement, and the meaning of its rows; no I/O
    connections.py  the connections of users: asyncpg, psycopg, SQLAlchemy, Django
    portal.py       sync callers: one event loop in a thread of its own
    jobs.py         Job: a handle of what was enqueued
    context.py      Context and SyncContext: what a handler can learn and ask
    running.py      runs the tasks of an app inside a worker
    values.py       Retry, cron, every, Options

Nothing is imported that a client does not need: asyncpg when an app is opened, the worker when it
is run.
"""
