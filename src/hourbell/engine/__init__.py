"""The engine: the life of an execution, and everything that is done with it.

    create ─▶ join ─▶ plan ─▶ admit ─▶ (claim ─▶ run ─▶ settle, in hourbell.dispatch and hourbell.worker) ─▶ record

What a job is stands in `jobs` (a one-time job is its execution). A recurring job rides a timetable by a *membership*, a
stretch of time in which the timetable's occurrences are its own. Whoever creates, changes or resumes a job begins a
membership; `join` gives it the executions that planning has already passed, `plan` the rest; the stretches of a job are
disjoint, so every occurrence has one producer. `admit` is the gate: it alone makes anything ready. `reap` brings back
what died with its worker, `retain` keeps house, `leader` says who does all that.

    life         the verbs above
    operations   what people ask for: changes, runs on request, settings, keys, secrets, completions, dead letters
    views        what only looks: lists, explanations, overviews, forecasts
    leader       what one process does for all: planning, reaping, housekeeping, notifications, monitors

Each verb is one statement in one transaction, mostly a function in `store/functions`. The functions here decide what to
ask for, and are thin. Operations that people call (create, update, pause, …) take a `Write`: who asks, and the key under
which the same request is answered only once.
"""
