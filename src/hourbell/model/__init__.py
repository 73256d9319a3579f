"""The value types that all other packages use, and the rules between them.

Nothing here reads a clock, a socket, a file or a database, and nothing here knows how a time
zone or a cron rule works: `model` is the root of the import order (model ← timing ← store,
engine, actions ← worker, api, cli), so every package can import it.

    ids.py          ids of jobs and executions: numbers inside, text for users
    errors.py       the error hierarchy, drawn at the top of the file
    instants.py     RFC 3339 text ↔ an aware datetime in UTC
    schedules.py    when a job runs: once, by a cron rule, or every N seconds
    policies.py     what happens when a run fails, is missed, or overlaps an earlier one
    jobs.py         jobs: the action, the stored definition, the job as read
    executions.py   executions of a job: states, reasons, outcomes
    limits.py       limits and settings of queues, tenants and targets
    monitors.py     dead man's switches
    manifests.py    what an app declares in code
    arguments.py    the declared arguments of a task, and what does not fit them
    fingerprints.py one fingerprint for errors that differ only in numbers and ids
    texts.py        which texts can be stored
    json_values.py  values as JSON, without losing any
    traces.py       W3C trace contexts
    log_levels.py   levels by component
    extras.py       the optional extras of the package, and the error if one is missing

Two conventions. *Values are frozen*: a struct never changes after it has crossed a boundary.
*Defaults are permanent*: a stored job omits fields that have their default, so a default in
`NewJob` and the structs inside it can never change; add a field instead.

User documents are turned into these values in one place, `hourbell.documents`, which uses
`timing` to check zones and rules. It has validated every value it makes; the structs do
not validate themselves again, because a worker decodes tens of thousands of them per second.
"""
