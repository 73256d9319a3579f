"""notify: turn each notice into a webhook execution of its own.

The transaction that decides an event also inserts a row into the outbox `notices`
(functions/notices.sql). Here the leader takes rows out and creates their webhooks, in one
statement: a notice is never lost and never taken twice. The webhooks run like all executions, at
least once, with settings of their own: LOW, in the queue `notifications`, with retries for about an
hour. They have no notifications themselves, so none is sent about them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import structlog

from hourbell.engine.codes import EVENTS, MISSED, RECOVERED
from hourbell.engine.core import Engine
from hourbell.engine.failing import isolate, note_failing
from hourbell.engine.leader.term import Term, epoch_args, translate_epoch_errors
from hourbell.engine.views.pages import walk
from hourbell.model.executions import ExecutionStatus
from hourbell.model.ids import execution_text, job_text, monitor_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import (
    MAX_NAME,
    NOTIFICATION_QUEUE,
    Event,
    JobType,
    NewJob,
    TaskAction,
    WebhookAction,
    decode_readable,
    encode_job,
)
from hourbell.model.policies import Priority, RetryPolicy
from hourbell.model.schedules import Once
from hourbell.store.database import committing
from hourbell.store.queries import queries

log = structlog.get_logger(component="scheduler")

_Q = queries("notices")
_MAX_NOTICES = 500
_SEND = "select hourbell.send_notices($1, $2, $3, $4, $5, $6, $7, $8)"

# Delays of 30 s, one minute, … half an hour: one hour in all.
_RETRIES = RetryPolicy(max_retries=7, initial_delay_seconds=30)
_TIMEOUT_SECONDS = 30

_GIVE_UP_AFTER = timedelta(days=1)  # on a job whose notifications cannot be read
# For the required fields of a job that cannot be read; a notification has none of them.
_STAND_INS: dict[str, Any] = {
    "name": "",
    "type": JobType.ONE_TIME,
    "schedule": Once(datetime.max.replace(tzinfo=UTC)),
    "action": TaskAction(name=""),
}

_EVENT_OF = {code: event for event, code in EVENTS.items()}
_STATUS_OF = {
    Event.SUCCESS: ExecutionStatus.SUCCEEDED,
    Event.FAILURE: ExecutionStatus.RETRYING,
    Event.DEAD_LETTER: ExecutionStatus.DEAD,
}


async def send_notices(engine: Engine, term: Term | None, now: datetime) -> bool:
    """Create the webhooks of the oldest notices; True if there may be more notices."""
    rows = await walk(engine, _Q["outbox"], _MAX_NOTICES, now)
    made: list[tuple[asyncpg.Record, list[NewJob]]] = []

    async def fails(row: asyncpg.Record, error: Exception) -> None:
        await note_failing(engine, now, "notice", row["id"], error, row["job"], row["execution"])

    for row in rows:
        try:
            made.append((row, _notifications(row, now)))
        except Exception as error:
            await fails(row, error)
    await isolate(
        made, lambda some: _send(engine, term, now, some), lambda one, error: fails(one[0], error)
    )
    return len(rows) == _MAX_NOTICES


async def _send(
    engine: Engine,
    term: Term | None,
    now: datetime,
    made: Sequence[tuple[asyncpg.Record, list[NewJob]]],
) -> None:
    about = [row["id"] for row, jobs in made for _ in jobs]
    sent = [job for _, jobs in made for job in jobs]
    async with committing("notify.before_commit", "notify.after_commit"):
        with translate_epoch_errors():
            await engine.database.value(
                _SEND,
                *epoch_args(term),
                now,
                [row["id"] for row, _ in made],
                await engine.declaring().queue(NOTIFICATION_QUEUE, now),
                about,
                [await engine.target(job.target, now) for job in sent],
                [encode_job(job).decode() for job in sent],
            )
    engine.announce()


def _notifications(row: asyncpg.Record, now: datetime) -> list[NewJob]:
    """The webhooks of a notice; empty if the job or monitor no longer asks for notifications."""
    if row["event"] in (MISSED, RECOVERED):
        return [] if row["url"] is None else [_alert(row, now)]
    job, unreadable, why = decode_readable(row["job_spec"], **_STAND_INS)
    if "notifications" in unreadable or "name" in unreadable:
        if now - row["at"] < _GIVE_UP_AFTER:
            raise ValueError(f"the notifications of the job cannot be read: {why}")
        log.error("notice not sent", job_id=job_text(row["job"]), error=why)
        return []
    event = _EVENT_OF[row["event"]]
    body = _body(row, job, event)
    return [
        webhook_job(
            row["tenant_name"],
            now,
            f"notification of {job.name}",
            one.url,
            one.headers,
            body,
        )
        for one in job.notifications
        if event in one.on
    ]


def _body(row: asyncpg.Record, job: NewJob, event: Event) -> dict[str, Any]:
    return {
        "event": event.value,
        "execution_id": execution_text(row["execution"]),
        "job_id": job_text(row["job"]),
        "job_name": job.name,
        "tenant_id": row["tenant_name"],
        "status": _STATUS_OF[event].value,
        "reason": row["reason"],
        "attempt": row["attempt"],
        "scheduled_for": format_instant(row["scheduled_for"]),
        "finished_at": format_instant(row["at"]),
        "error": row["error"],
    }


def _alert(row: asyncpg.Record, now: datetime) -> NewJob:
    missed = row["event"] == MISSED
    success = row["last_success_at"]
    body = {
        "event": "missed" if missed else "recovered",
        "monitor_id": monitor_text(row["monitor"]),
        "job_id": job_text(row["job"]),
        "job_name": row["job_name"],
        "tenant_id": row["tenant_name"],
        "expected_at": format_instant(row["scheduled_for"]),
        "grace_seconds": row["grace_seconds"],
        "last_success_at": None if success is None else format_instant(success),
        "at": format_instant(row["at"]),
    }
    name = f"{'alert' if missed else 'recovery'} of {row['job_name']}"
    headers = msgspec.json.decode(row["headers"])
    return webhook_job(row["tenant_name"], now, name, row["url"], headers, body)


def webhook_job(
    tenant: str,
    now: datetime,
    name: str,
    url: str,
    headers: Mapping[str, str],
    body: dict[str, Any],
) -> NewJob:
    """The webhook that delivers a notification, an alert or a callback."""
    return NewJob(
        tenant_id=tenant,
        name=name[:MAX_NAME],
        type=JobType.ONE_TIME,
        schedule=Once(now),
        action=WebhookAction(url=url, headers=dict(headers), body=body, literal=True),
        retry_policy=_RETRIES,
        timeout_seconds=_TIMEOUT_SECONDS,
        queue=NOTIFICATION_QUEUE,
        priority=Priority.LOW,
    )
