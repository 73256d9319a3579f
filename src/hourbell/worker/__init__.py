"""The worker: claims executions, runs them, settles their outcomes.

    claim ─▶ queue ─▶ runners ─▶ outcomes ─▶ settle          heartbeat and watchdog beside them

`runtime.py` moves executions through the process, maintains the session and learns which executions
were lost; `settling.py` records outcomes in batches. `engine/life/outcomes.py` decides, purely,
what an outcome leads to.

A worker trusts the database, not itself: it holds what the last heartbeat confirmed. After a whole
lease without a successful heartbeat it starts nothing more, because its executions may have been
given to other workers. Running executions continue, and are stopped when a heartbeat reports them
lost. So an outage of the database runs nothing twice, and a worker that alone was cut off stops as
soon as it can know.
"""
