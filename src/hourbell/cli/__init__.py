"""The command `hourbell`.

main                   the list of commands; each is imported when it is called
up, roles, apps        start processes: all roles, one role, the worker of an app
supervisor, process    several workers and reloading; settings, signals and shutdown
jobs, executions, dlq, operations, groups, tenants, secrets, keys, calendars, forecast, top
                       over the API, or on the database; `tenants` has the command `queues`, too
apply, reconcile, files, imports, importers
                       jobs from files, and from other schedulers
migrate, doctor, bench, next, completion
                       an installation, a rule, a shell
remote, servers, direct, output, params
                       shared: which server, how to call it, or work without one, what to print
"""
