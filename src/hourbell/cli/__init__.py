"""The command `hourbell`.

main                   the list of commands; each module is imported when its command is called
up, roles, apps        start processes: all roles, one role, the worker of an app
supervisor, process    several workers and reloading; settings, signals and shutdown
jobs, executions, dlq, operations, groups, tenants, secrets, keys, calendars, monitors, tasks,
forecast, top          over the API, or directly on the database; `tenants` also holds the command `queues`
apply, reconcile, files, imports, importers
                       jobs from files and from other schedulers
migrate, doctor, bench, next, completion, commit
                       maintain an installation, preview a rule, complete a shell; the commit of `--version`
remote, servers, direct, output, params, exit_codes
                       shared: choosing a server, calling it or working without one, output, exit codes
"""
