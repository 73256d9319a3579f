"""The worker: claims executions, runs them, settles their outcomes.

    claimer ─▶ queue ─▶ runners ─▶ outcomes ─▶ settler
                           ▲
          session keeper, watchdog: stop executions

Each part is a loop of its own, so claims, handlers and settles run concurrently.

    executions.py   one record for each claimed execution, and the slots that they occupy
    claimer.py      claims as many executions as slots are free
    runners.py      a pool of tasks that run them
    watchdog.py     stops those that exceed their timeout, repeatedly if necessary
    session.py      heartbeats; starts nothing while the lease is in doubt, stops what was lost
    settler.py      records outcomes in batches
    runtime.py      wires all that, and drains it at the end
    settings.py     slots, queues, tasks, times
    counts.py       lateness, durations and slots, for the metrics
    report.py       what a worker is doing, for people (SIGUSR1)

`engine/life/settlement.py` decides, purely, what an outcome leads to.
"""
