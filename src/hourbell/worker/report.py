"""What a worker is doing, for people: each running execution, since when, and where in the code."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import structlog

from hourbell.actions.threads import THREAD_NAME
from hourbell.model.ids import execution_text
from hourbell.model.jobs import TaskAction
from hourbell.worker.executions import Executions, LocalExecution

log = structlog.get_logger(component="worker")


def log_running(executions: Executions, now: float) -> None:
    """Log what runs, with the stacks of coroutines and of the threads of plain functions."""
    running = [one for one in executions if one.started_at is not None and not one.is_decided]
    log.info("worker report", running=len(running), queued=len(executions.queue))
    for one in running:
        assert one.started_at is not None
        log.info(
            "running execution",
            execution_id=execution_text(one.claimed.execution_id),
            task=_task(one),
            attempt=one.claimed.attempt,
            seconds=round(now - one.started_at, 1),
            stack="".join(traceback.format_list(_stack(one.runner))),
        )
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = frames.get(thread.ident or 0)
        if thread.name == THREAD_NAME and frame is not None:
            log.info("thread of a plain function", stack="".join(traceback.format_stack(frame)))


def _task(execution: LocalExecution) -> str:
    action = None if execution.spec is None else execution.spec.action
    return action.name if isinstance(action, TaskAction) else "webhook"


def _stack(runner: asyncio.Task[None] | None) -> list[traceback.FrameSummary]:
    """The frames of a suspended task, outermost first: a task itself shows only the first."""
    if runner is None:
        return []
    return [
        traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        for frame in _frames(runner.get_coro())
        if frame.f_lineno is not None
    ]


def _frames(waiting: Any) -> Iterator[FrameType]:
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "gi_frame", None)
        if frame is not None:
            yield frame
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "gi_yieldfrom", None)
