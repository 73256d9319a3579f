"""One failing row does not stop the others: what the steps over many rows share.

A step acts on its rows together. If that fails for another reason than the database, it halves them
until the failing row is alone (`isolate`), and notes that row (`note_failing`): it is left out for a
minute, shown as what needs attention, counted, and logged once. Then it is tried again, because
another version, which may be able to read it, may lead by then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import TypeVar

import structlog

from hourbell.engine.core import Engine
from hourbell.failpoints import FailpointError
from hourbell.model.errors import NotLeader, SessionLost, StoreUnavailable
from hourbell.model.ids import execution_text, job_text
from hourbell.store.queries import queries

log = structlog.get_logger(component="scheduler")

T = TypeVar("T")
R = TypeVar("R")

# These say nothing about the rows: the step is repeated as it is, or by another node.
ABOUT_NO_ROW = (StoreUnavailable, NotLeader, SessionLost, FailpointError)

_MAX_PROBLEM = 500
_Q = queries("failing")


async def isolate(
    rows: Sequence[T],
    act: Callable[[Sequence[T]], Awaitable[object]],
    fails: Callable[[T, Exception], Awaitable[object]],
    about_rows: tuple[type[Exception], ...] = (Exception,),
) -> None:
    """Act on all rows; if that fails, on each half of them, and in the end `fails` gets the row."""
    if not rows:
        return
    try:
        await act(rows)
    except ABOUT_NO_ROW:
        raise
    except about_rows as error:
        if len(rows) == 1:
            await fails(rows[0], error)
            return
        middle = len(rows) // 2
        await isolate(rows[:middle], act, fails, about_rows)
        await isolate(rows[middle:], act, fails, about_rows)


async def isolate_first(
    limit: int,
    act: Callable[[int], Awaitable[R]],
    fails: Callable[[Exception], Awaitable[R]],
) -> R:
    """The same for a statement that takes the first `limit` rows itself.

    While it fails, it gets fewer; in the end `fails` leaves the first row out.
    """
    while True:
        try:
            return await act(limit)
        except ABOUT_NO_ROW:
            raise
        except Exception as error:
            if limit == 1:
                return await fails(error)
            limit = max(limit // 8, 1)


async def note_failing(
    engine: Engine,
    now: datetime,
    step: str,
    number: int,
    error: Exception,
    job_id: int | None = None,
    execution_id: int | None = None,
) -> None:
    """Note a row on which a step has failed. `number` is the row's id within the step."""
    problem = f"{type(error).__name__}: {error}".partition("\n")[0][:_MAX_PROBLEM]
    problem = problem.replace("\x00", "").encode("utf-8", "replace").decode()
    if await engine.database.value(_Q["note"], now, step, number, job_id, execution_id, problem):
        log.error(
            "row fails",
            step=step,
            number=number,
            job_id=None if job_id is None else job_text(job_id),
            execution_id=None if execution_id is None else execution_text(execution_id),
            error=problem,
            exc_info=error,
        )


async def run_each(*steps: Callable[[], Awaitable[bool]]) -> bool:
    """Run steps one after the other, though one fails; its error is raised after the last one."""
    more = False
    failed: Exception | None = None
    for step in steps:
        try:
            more = await step() or more
        except ABOUT_NO_ROW:
            raise
        except Exception as error:
            if failed is not None:
                log.exception("step failed", exc_info=failed)
            failed = error
    if failed is not None:
        raise failed
    return more
