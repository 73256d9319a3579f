"""Hourbell, a distributed job scheduler: cron, but distributed, reliable and scalable.

Read the packages in the order in which an execution passes through them:

    model     what there is: jobs, schedules, executions, errors (values, no I/O)
    timing    when something is due: cron rules, intervals, zones (pure functions)
    store     PostgreSQL: embedded or yours, its schema and its server-side functions
    engine    create → plan → admit → claim → settle → reap, one file per verb
    actions   what a run does: a task of this process, a webhook
    worker    the process that claims executions and runs them
    api, cli  the same operations over HTTP and in a terminal
    client    the API from Python, for programs without a database

Imports point upwards in this list and never back; `compose` alone wires concrete classes.
"""

__version__ = "0.1.0.dev0"
