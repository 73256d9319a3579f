"""Contexts for calling a task's function directly, without a database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from hourbell.dispatch import Wait
from hourbell.errors import LeaseLost
from hourbell.model.executions import Claimed
from hourbell.model.jobs import NO_CHECKPOINT
from hourbell.sdk.context import Context, SyncContext, _encoded_checkpoint
from hourbell.testing.clock import this_second

_NO_DATABASE = (
    "testing.context has no database, so it cannot complete anything. Run the task with the "
    "fixture `bell` instead."
)


class Reports:
    """What a function has reported through its context; stands in for the worker."""

    def __init__(self, stopping: bool, lease_lost: bool) -> None:
        self.is_stopping = stopping
        self._lease_lost = lease_lost
        self.checkpoints: list[Any] = []  # as JSON
        self.progress: list[Any] = []  # as JSON; the first of each second is kept

    def is_stopped(self, claimed: Claimed) -> bool:
        return self._lease_lost

    async def note_progress(self, claimed: Claimed, value: str) -> bool:
        self.progress.append(msgspec.json.decode(value))
        return not self._lease_lost

    async def set_checkpoint(self, claimed: Claimed, value: str) -> bool:
        if not self._lease_lost:
            self.checkpoints.append(msgspec.json.decode(value))
        return not self._lease_lost

    async def wait_of(self, claimed: Claimed, name: str, waits: bool) -> Wait | None:
        raise LookupError(_NO_DATABASE)

    async def session_to_complete(self, claimed: Claimed) -> tuple[int, str] | None:
        raise LookupError(_NO_DATABASE)


class LocalContext(Context):
    """The context of a coroutine function called by a test."""

    __slots__ = ("reports",)
    reports: Reports  # what the function has stored


class LocalSyncContext(SyncContext):
    """The context of a plain function called by a test."""

    __slots__ = ("reports",)
    reports: Reports  # what the function has stored

    def checkpoint(self, value: object) -> None:
        encoded = _encoded_checkpoint(value)
        if self.reports._lease_lost:
            raise LeaseLost
        self.reports.checkpoints.append(msgspec.json.decode(encoded))


def context(
    *,
    attempt: int = 1,
    checkpoint: object = None,
    state: Sequence[object] = (),
    timeout: float = 3600.0,
    cancelled: bool = False,
    stopping: bool = False,
    lease_lost: bool = False,
    task: str = "test.task",
    tenant: str = "default",
    queue: str = "default",
    labels: Mapping[str, str] | None = None,
    scheduled_for: datetime | None = None,
) -> LocalContext:
    """A context for calling `task.fn` of a coroutine function.

    `checkpoint` is that of an earlier run; None means there is none. With `lease_lost`, a checkpoint
    raises LeaseLost. The context's `reports` collects what the function stores.
    """
    claimed = _claimed(attempt, tenant, queue, labels, scheduled_for)
    reports = Reports(stopping, lease_lost)
    made = LocalContext(claimed, task, timeout, state, reports, None, _stored(checkpoint))
    made.reports, made._cancelled = reports, cancelled
    return made


def sync_context(
    *,
    attempt: int = 1,
    checkpoint: object = None,
    state: Sequence[object] = (),
    timeout: float = 3600.0,
    cancelled: bool = False,
    stopping: bool = False,
    lease_lost: bool = False,
    task: str = "test.task",
    tenant: str = "default",
    queue: str = "default",
    labels: Mapping[str, str] | None = None,
    scheduled_for: datetime | None = None,
) -> LocalSyncContext:
    """A context for calling `task.fn` of a plain function; otherwise the same as `context`."""
    claimed = _claimed(attempt, tenant, queue, labels, scheduled_for)
    reports = Reports(stopping, lease_lost)
    made = LocalSyncContext(claimed, task, timeout, state, reports, None, _stored(checkpoint))
    made.reports, made._cancelled = reports, cancelled
    return made


def _claimed(
    attempt: int,
    tenant: str,
    queue: str,
    labels: Mapping[str, str] | None,
    scheduled_for: datetime | None,
) -> Claimed:
    spec = msgspec.json.encode({"queue": queue, "labels": dict(labels or {})})
    at = (scheduled_for or this_second()).timestamp()
    return Claimed(1, 1, tenant, attempt, attempt, at, None, spec)


def _stored(checkpoint: object) -> msgspec.Raw:
    if checkpoint is None:
        return NO_CHECKPOINT
    return msgspec.Raw(_encoded_checkpoint(checkpoint).encode())
