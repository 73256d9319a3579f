"""create: insert jobs with their audit rows and their idempotency answers.

A one-time job is its execution and is due at its time. A recurring job is a row of `jobs` and a
membership that has not joined its timetable yet; the join follows the commit, and if this process
dies in between, the leader completes it.

Every create takes the same steps:

    request   read what the documents need (time, ids, queue defaults, quotas), and parse them
    rows      turn a checked job into the row that is stored
    names     resolve tenants, queues, targets and timetables to ids; unknown names are created
    insert    `hourbell.create_jobs`, bisected when a row fails; joins and announcements follow

There are two variants, which differ in what fails together:

    create_job     one job; concurrent requests share a statement and a commit (`single`)
    create_batch   many documents in one transaction; a job that fails is reported at its
                   position, the others are created (`batch`)
"""

from hourbell.engine.life.create.batch import MAX_BATCH_ITEMS, Made, Refused, Result, create_batch
from hourbell.engine.life.create.insert import KeyTaken
from hourbell.engine.life.create.request import (
    CreateRequest,
    create_request,
    read_context,
    with_declarations,
)
from hourbell.engine.life.create.single import Created, create_job, try_create

__all__ = [
    "MAX_BATCH_ITEMS",
    "CreateRequest",
    "Created",
    "KeyTaken",
    "Made",
    "Refused",
    "Result",
    "create_batch",
    "create_job",
    "create_request",
    "read_context",
    "try_create",
    "with_declarations",
]
