"""The engine: the life of an execution, and every operation on it.

    create ─▶ join ─▶ plan ─▶ admit ─▶ claim ─▶ run ─▶ settle ─▶ record

Claim and run are in hourbell.dispatch and hourbell.worker, which call `settle`.

Jobs are stored in `jobs` (a one-time job is its execution). A recurring job is attached to a
timetable by a *membership*: an interval in which the timetable's occurrences belong to the job.
Creating, changing or resuming a job begins a membership. `join` produces the executions that
planning has already passed, `plan` the rest. The memberships of a job are disjoint, so every
occurrence has exactly one producer. `admit` is the gate: nothing else makes an execution ready.
`reap` recovers executions whose worker died, `retain` deletes expired data, `leader` decides which
process plans, reaps and deletes.

    life         the verbs above
    operations   requests by users: changes, runs on request, settings, keys, secrets,
                 completions, dead letters
    views        read-only: lists, explanations, overviews, forecasts
    leader       work that one process does for the cell: planning, reaping, housekeeping,
                 notifications, monitors

They share `core` (the Engine), `codes` (stored numbers), `groups` (group commit), `counts`
(metrics), `declarations` (what tasks declare), `unknown_names` (of tenants and queues), `bounds`,
`due_counts`, `failing` (how a step survives a failing row) and `loop` (background loops and
backoff).

Each verb is one statement in one transaction, mostly a function in `store/functions`. The functions
here decide what to ask for, and are thin. User-facing operations (create, update, pause, …) take a
`Write`: the actor, and the idempotency key under which a repeated request gets the first answer.
"""
