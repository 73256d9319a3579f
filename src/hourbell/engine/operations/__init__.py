"""What users and their programs ask for, each a write.

    change, upsert               one job: update, pause, resume, delete; put by name
    runs                         runs on request, and cancellations
    bulk_changes                 pause or resume all jobs that a filter selects, in one request
    bulk_operations              the same and more in the background; the leader carries them out
    dead_letters                 replay, purge, and retry now
    completions                  outcomes that targets report later
    execution_groups             groups with one callback
    limits, calendars, monitors, secrets, api_keys, sign_ins   what their names say
    tasks, reconcile             what workers declare: their tasks, and schedules in code
    presence                     the heartbeats of processes
    idempotency, audit           what all of them share

Each request takes a `Write` (`idempotency`): the actor, and the idempotency key under which a
repeated request gets the first answer.
"""
