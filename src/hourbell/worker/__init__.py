"""The worker: claims executions, runs them, settles their outcomes.

    claim ─▶ queue ─▶ runners ─▶ outcomes ─▶ settle          heartbeat and watchdog beside them

`runtime.py` moves executions through the process, keeps the hold on what was claimed and learns what was lost;
`settling.py` records outcomes in batches. What an outcome leads to is decided, purely, by `engine/life/outcomes.py`.

A worker trusts the database, not itself: what it holds is what the last heartbeat said. When it has not been heard for a
whole lease it starts nothing more, because others may have been given its work; what runs goes on, and is stopped when a
heartbeat says that it was lost. So an outage of the database doubles nothing, and a worker that was cut off alone stops
as soon as it can know.
"""
