"""group callbacks: follow closed groups, and send the callback of each once all members have ended.

One statement marks the group as ended and creates its callback, so there is one, whichever node
leads or dies. The callback is a webhook execution like that of a notification, or a job of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import asyncpg
import msgspec

from hourbell.engine.codes import FATES
from hourbell.engine.core import Engine
from hourbell.engine.failing import isolate, note_failing
from hourbell.engine.leader.notify import webhook_job
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.model.ids import group_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import NOTIFICATION_QUEUE, NewJob, encode_job
from hourbell.store.database import committing
from hourbell.store.queries import queries

_Q = queries("execution_groups")
_MAX_GROUPS = 200  # that one step follows,
_MAX_FOLLOWED = 5_000  # by this many members in all
_FOLLOW = "select * from hourbell.follow_groups($1, $2, $3, $4, $5)"
_END = "select hourbell.end_groups($1, $2, $3, $4, $5, $6, $7)"
_DELAY = "select hourbell.delay_callback($1, $2, $3, $4, $5)"
_PROBLEM = "its callback cannot be created; the log of the scheduler says why"


async def follow_groups(engine: Engine, term: Term | None, now: datetime) -> bool:
    """Follow the groups that are due, and end those whose members have ended; True if more."""
    with translate_epoch_errors():
        followed = await engine.database.row(
            _FOLLOW, *epoch_args(term), now, _MAX_GROUPS, _MAX_FOLLOWED
        )
    if followed["ended"]:
        await isolate(
            followed["ended"],
            lambda some: _end(engine, term, now, some),
            lambda one, error: _delay(engine, term, now, one, error),
        )
    return bool(followed["more"]) or len(followed["ended"]) == _MAX_GROUPS


async def _delay(
    engine: Engine, term: Term | None, now: datetime, group: int, error: Exception
) -> None:
    """Retry a group that cannot be ended after a minute."""
    await note_failing(engine, now, "group", group, error)
    with translate_epoch_errors():
        await engine.database.value(_DELAY, *epoch_args(term), now, group, _PROBLEM)


async def _end(engine: Engine, term: Term | None, now: datetime, ended: Sequence[int]) -> None:
    rows = await engine.database.fetch(_Q["group"], ended)
    webhooks = [None if row["url"] is None else _webhook(row, now) for row in rows]
    async with committing("notify.before_commit", "notify.after_commit"):
        with translate_epoch_errors():
            await engine.database.value(
                _END,
                *epoch_args(term),
                now,
                await engine.declaring().queue(NOTIFICATION_QUEUE, now),
                [row["id"] for row in rows],
                [job and await engine.target(job.target, now) for job in webhooks],
                [job and encode_job(job).decode() for job in webhooks],
            )
    engine.announce()


def _webhook(row: asyncpg.Record, now: datetime) -> NewJob:
    body = {
        "event": "group_ended",
        "group_id": group_text(row["id"]),
        "group_name": row["name"],
        "tenant_id": row["tenant_name"],
        "members": row["members"],
        "ended": {fate.value: count for fate, count in zip(FATES, row["fates"], strict=True)},
        "closed_at": format_instant(row["closed_at"]),
        "at": format_instant(now),
    }
    headers = msgspec.json.decode(row["headers"])
    name = f"callback of group {row['name']}"
    return webhook_job(row["tenant_name"], now, name, row["url"], headers, body)
