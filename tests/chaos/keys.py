"""Replays of dead letters that have a unique key, while another job has the key.

The judge of ordinary jobs does not know replays. So these jobs have a tenant of their own, are left out of the history that
it gets, and are judged here: as long as one of them certainly lives, no other is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from chaos.checks_faults import served_by_older
from verify.history import Call, History
from verify.promise import Spans, Violation, instant

TENANT = "keys"


def without_keyed(history: History) -> History:
    """What is left for the judge of ordinary jobs."""
    made = {call.answer["job_id"] for call in _granted(history, "create")}
    runs = {job.replace("job_", "exe_") for job in made}
    dump = history.dump
    return msgspec.structs.replace(
        history,
        calls=[call for call in history.calls if call.tenant != TENANT],
        deliveries=[d for d in history.deliveries if d.execution_id not in runs],
        dump=msgspec.structs.replace(
            dump,
            jobs=[job for job in dump.jobs if job.job_id not in made],
            ended=[row for row in dump.ended if row.execution_id not in runs],
            alive=[row for row in dump.alive if row.execution_id not in runs],
            dead_letters=[letter for letter in dump.dead_letters if letter not in runs],
        ),
    )


def keys_have_one_holder(history: History) -> Iterator[Violation]:
    """I19. An older build may replay as it likes: only what the present one answers is judged."""
    older = Spans(served_by_older(history))
    creates = _granted(history, "create")
    keys = {call.answer["job_id"]: call.document["unique_key"] for call in creates}
    for replay in _granted(history, "replay"):
        assert replay.job_id is not None
        assert replay.answered_at is not None
        if older.touches(replay.asked_at, replay.answered_at):
            continue
        for other in creates:
            assert other.answered_at is not None
            job = other.answer["job_id"]
            if job == replay.job_id or keys[job] != keys[replay.job_id]:
                continue
            # It has not run before it is due.
            if other.answered_at < replay.asked_at < replay.answered_at < _due_at(other):
                yield Violation(
                    "I19", f"{replay.job_id} was replayed while {job} had its key {keys[job]}"
                )


def _due_at(create: Call) -> float:
    return instant(create.answer["schedule"]["at"])


def _granted(history: History, operation: str) -> list[Call]:
    return [
        call
        for call in history.calls
        if call.tenant == TENANT
        and call.operation == operation
        and call.status is not None
        and 200 <= call.status < 300
    ]
