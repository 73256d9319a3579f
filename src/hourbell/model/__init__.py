"""The values that everything else speaks in, and the rules that hold between them.

Nothing here reads a clock, a socket, a file or a database, and nothing here knows how a time
zone or a cron rule works: `model` is the root of the import order (model ← timing ← store,
engine, actions ← worker, api, cli), so whatever stands here can be used everywhere.

    ids.py          the numbers of jobs and executions, and the text that users see
    errors.py       the tree of everything that can go wrong, drawn at its top
    instants.py     RFC 3339 text ↔ an aware datetime in UTC
    schedules.py    when a job runs: once, by a cron rule, or every N seconds
    policies.py     what happens when a run fails, is missed, or meets an earlier one
    jobs.py         what a job is: its action, what of it is stored, the job as read
    executions.py   one occurrence on its way to its fate: states, reasons, outcomes

Two habits. *Values are frozen*: a struct that crossed a boundary is what it was when it left.
*Defaults are a promise*: a stored job leaves out what was left to its default, so a default in
`NewJob` and the structs inside it can never change; add a field instead.

The documents that users send are turned into these values in one place,
`hourbell.documents`, which may ask `timing` whether a zone and a rule exist. A value made
by it has been checked; the structs do not check themselves again, because a worker decodes
tens of thousands of them a second.
"""
