"""Turns a handler's exceptions into outcomes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import msgspec

from hourbell.actions import failed
from hourbell.errors import Cancel, Dead, RetryAfter, Snooze, Suspend
from hourbell.model.executions import Cancelled, Failed, Outcome, Snoozed

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

    from hourbell.engine.life.failures import LineLimit
    from hourbell.sdk.tasks import Task


_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


class ProcessTaskFailed(Exception):
    """A function failed in its own process, as seen by the middleware around it.

    The message has the type and message of the function's own exception, and the notes have the traceback.
    """

    def __init__(self, failure: Failed) -> None:
        super().__init__(failure.error)
        self.failure = failure


class ProcessDied(Exception):
    """The process of a function died while the function was running."""


_DECISIONS = (Snooze, RetryAfter, Cancel, Dead, Suspend, ProcessTaskFailed)


def outcome_of(
    error: BaseException, task: Task[..., Any], log: BoundLogger, limit: LineLimit | None = None
) -> Outcome:
    """The outcome of a run that raised an exception, which is logged unless `limit` is reached."""
    decision = decision_of(error)
    match decision:
        case Snooze():
            return Snoozed(decision.seconds)
        case RetryAfter():
            return Failed(str(decision), "RetryAfter", retry_in_seconds=decision.seconds)
        case Cancel():
            log.info("task cancelled itself", why=str(decision))
            return Cancelled(str(decision) or None)
        case Dead():
            return Failed(str(decision) or "The task raised Dead.", "Dead", final=True)
        case ProcessTaskFailed():
            return decision.failure  # logged in its process
    if limit is None or limit.allows(time.monotonic()):
        log.warning("task failed", exc_info=(type(error), error, _own_frames(error)))
    failure = failed(error)
    if task.options.no_retry and isinstance(error, task.options.no_retry):
        return msgspec.structs.replace(failure, final=True)
    return failure


def _own_frames(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame of the user's code, without the worker's frames before it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.tb_next
    return frame or error.__traceback__


def decision_of(error: BaseException) -> BaseException:
    """A handler's decision, even if a TaskGroup has wrapped it."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            found = decision_of(inner)
            if isinstance(found, _DECISIONS):
                return found
    return error
