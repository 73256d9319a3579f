"""What a handler can read about its run, and ask of its worker."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import msgspec

from hourbell.errors import LeaseLost, Suspend
from hourbell.model.errors import StoreUnavailable
from hourbell.model.executions import (
    MAX_CHECKPOINT_BYTES,
    MAX_PROGRESS_BYTES,
    MAX_RESULT_BYTES,
    MAX_SNOOZE_SECONDS,
    Claimed,
)
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import NO_CHECKPOINT
from hourbell.model.json_values import to_json
from hourbell.sdk.connections import user_connection
from hourbell.sdk.plans import COMPLETE
from hourbell.sdk.portal import without_loop

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

    from hourbell.dispatch import Wait

T = TypeVar("T")

PROGRESS_SECONDS = 1.0  # at most one report per this time is stored: the newest
MAX_WAIT_NAME = 100


class RunInfo(msgspec.Struct, frozen=True):
    """One attempt, as seen by middleware."""

    task: str
    execution_id: str
    job_id: str
    tenant: str
    attempt: int  # 1 for the first
    payload: Any


class Completion(msgspec.Struct, frozen=True):
    """What an outside system reported, or that it did not."""

    succeeded: bool
    result: Any = None  # on success
    error: str | None = None  # on failure
    timed_out: bool = False  # nothing was reported in time


class WorkerOfRun(Protocol):
    """What a context asks of the worker that runs it."""

    @property
    def is_stopping(self) -> bool:
        """Whether the worker is draining."""

    def is_stopped(self, claimed: Claimed) -> bool:
        """Whether a run was asked to stop or its lease was lost."""

    async def note_progress(self, claimed: Claimed, value: str) -> bool:
        """Store the progress of a run, as JSON; False if the lease was lost."""

    async def set_checkpoint(self, claimed: Claimed, value: str) -> bool:
        """Store a checkpoint, as JSON; False if the lease was lost."""

    async def wait_of(self, claimed: Claimed, name: str, waits: bool) -> Wait | None:
        """A wait of the run, by name; None if the lease was lost."""

    async def session_to_complete(self, claimed: Claimed) -> tuple[int, str] | None:
        """The session that holds a run which is about to complete itself; None if it was lost."""


class _Settings(msgspec.Struct):
    """Fields of a job that a worker decodes only when needed."""

    queue: str = "default"
    labels: dict[str, str] = {}


class OfExecution:
    """What a handler can read about the execution it runs."""

    __slots__ = ("_claimed",)
    _claimed: Claimed

    @property
    def execution_id(self) -> str:
        """The same for all attempts, so it can serve as an idempotency key."""
        return execution_text(self._claimed.execution_id)

    @property
    def tenant(self) -> str:
        return self._claimed.tenant_id

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self._claimed.attempt

    @property
    def fence(self) -> int:
        """Higher than the fence of every earlier attempt."""
        return self._claimed.fence


class _Base(OfExecution):
    __slots__ = (
        "_began_at",
        "_cancelled",
        "_checkpoint",
        "_is_over",
        "_late",
        "_log",
        "_loop",
        "_newest",
        "_progress_at",
        "_settings",
        "_state",
        "_stop_at",
        "_worker",
        "_writing",
        "task",
    )

    def __init__(
        self,
        claimed: Claimed,
        task: str,
        timeout_seconds: float,
        state: Sequence[object],
        worker: WorkerOfRun | None,
        loop: asyncio.AbstractEventLoop | None = None,
        checkpoint: msgspec.Raw = NO_CHECKPOINT,  # from an earlier run
    ) -> None:
        self._claimed = claimed
        self._checkpoint = checkpoint
        self._state = state
        self._worker = worker
        self._loop = loop
        self._began_at = time.monotonic()
        self._stop_at = self._began_at + timeout_seconds
        self._newest: str | None = None  # progress report, as JSON; None: it is stored
        self._progress_at = 0.0  # when the next one may be stored
        self._late: asyncio.Task[None] | None = None  # waits until then
        self._writing: asyncio.Task[None] | None = None  # the last one that has waited
        self._is_over = False  # whether the run has ended
        self._settings: _Settings | None = None
        self._log: BoundLogger | None = None
        self._cancelled = False
        self.task = task

    @property
    def job_id(self) -> str:
        return job_text(self._claimed.job_id)

    @property
    def scheduled_for(self) -> datetime:
        return self._claimed.scheduled_for

    @property
    def queue(self) -> str:
        return self._more.queue

    @property
    def labels(self) -> Mapping[str, str]:
        return self._more.labels

    @property
    def remaining(self) -> float:
        """Seconds until this attempt is stopped, by its timeout or the job's deadline."""
        return max(self._stop_at - time.monotonic(), 0.0)

    @property
    def deadline(self) -> datetime:
        """When this attempt is stopped, by this machine's clock."""
        seconds = min(self.remaining, MAX_SNOOZE_SECONDS)  # outside of a worker there is no limit
        return datetime.now(UTC) + timedelta(seconds=seconds)  # noqa: TID251

    @property
    def cancelled(self) -> bool:
        """Whether the run was asked to stop: by a timeout, a cancellation or a lost lease."""
        if not self._cancelled and self._worker is not None:
            self._cancelled = self._worker.is_stopped(self._claimed)
        return self._cancelled

    @property
    def stopping(self) -> bool:
        """Whether the worker is draining: a good moment to finish."""
        return self._worker is not None and self._worker.is_stopping

    @property
    def log(self) -> BoundLogger:
        """A logger bound to the task, job, execution, attempt and tenant."""
        if self._log is None:
            import structlog

            self._log = structlog.get_logger(component="tasks").bind(
                task=self.task,
                execution_id=self.execution_id,
                job_id=self.job_id,
                attempt=self.attempt,
                tenant=self.tenant,
            )
        return self._log

    def get(self, kind: type[T]) -> T:
        """A value from `App(state=…)` or the lifespan, by its type."""
        for value in self._state:
            if isinstance(value, kind):
                return value
        raise LookupError(
            f"The app's state has no {kind.__name__}. Pass one to App(state=[…]), or yield it "
            f"from the lifespan."
        )

    def restore(self, kind: type[T]) -> T | None:
        """The last checkpoint of an earlier run of this execution; None if there is none."""
        if self._checkpoint == NO_CHECKPOINT:
            return None
        return msgspec.json.decode(self._checkpoint, type=kind)

    @property
    def _more(self) -> _Settings:
        if self._settings is None:
            self._settings = msgspec.json.decode(self._claimed.spec or "{}", type=_Settings)
        return self._settings

    # Progress. A thread may call `_keep`; everything else happens in the loop.

    def _keep(self, value: object) -> bool:
        """Keep a progress report as the newest; whether `_report` must be called to store it."""
        if self._worker is None or self._is_over:
            return False
        encoded = msgspec.json.encode(value)  # NaN becomes null: a report is no reason to fail
        if len(encoded) > MAX_PROGRESS_BYTES:
            raise ValueError(f"progress must be at most {MAX_PROGRESS_BYTES} bytes as JSON")
        self._newest = encoded.decode()
        return self._late is None

    async def _report(self) -> None:
        """Store the newest report: now, or when a second has passed since the last one."""
        seconds = self._progress_at - time.monotonic()
        if self._is_over:
            pass
        elif seconds <= 0:
            await self._store_newest()
        elif self._late is None and self._loop is not None:
            self._late = self._loop.create_task(self._report_late(seconds))

    async def _report_late(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        # In this order: a report that is kept from now on is either stored here, or starts a task.
        self._writing, self._late = self._late, None
        try:
            await self._store_newest()
        except StoreUnavailable:
            if not (self._is_over or self._late) and self._loop is not None:
                self._late = self._loop.create_task(self._report_late(PROGRESS_SECONDS))

    async def _store_newest(self) -> None:
        report, self._newest = self._newest, None
        if report is not None and self._worker is not None:
            self._progress_at = time.monotonic() + PROGRESS_SECONDS
            try:
                await self._worker.note_progress(self._claimed, report)
            except StoreUnavailable:
                self._newest = self._newest or report  # unless there is a newer one by now
                raise

    def _end_reports(self) -> None:
        """Store no more reports: the run has ended, and its progress is no longer shown."""
        self._is_over = True
        if self._late is not None:
            self._late.cancel()

    # Shared by both kinds of context, which differ only in how they ask.

    async def _token(self, name: str) -> str:
        return (await self._wait_of(name, False)).token

    async def _completion(self, name: str, limit: float | timedelta) -> Completion:
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else float(limit)
        if not 0 < seconds <= MAX_SNOOZE_SECONDS:
            raise ValueError(
                "the timeout of a wait must be more than 0 seconds and at most 366 days"
            )
        wait = await self._wait_of(name, True)
        value = None if wait.value is None else msgspec.json.decode(wait.value)
        match wait.outcome:
            case "SUCCEEDED":
                return Completion(True, value)
            case "FAILED":
                return Completion(False, error=value)
            case "TIMED_OUT":
                return Completion(False, timed_out=True)
        with contextlib.suppress(StoreUnavailable):
            await self._store_newest()  # shown while it waits
        raise Suspend(sha256(wait.token.encode()).digest(), seconds)

    async def _wait_of(self, name: str, waits: bool) -> Wait:
        if len(name) > MAX_WAIT_NAME:
            raise ValueError(f"the name of a wait must be at most {MAX_WAIT_NAME} characters")
        if self._worker is None:
            raise LookupError("This does not run in a worker, so nothing outside can complete it.")
        wait = await self._worker.wait_of(self._claimed, name, waits)
        if wait is None:
            raise LeaseLost
        return wait

    async def _completing(self, result: object) -> list[object] | None:
        """The arguments of COMPLETE; None outside of a worker."""
        encoded = to_json(result)
        if len(encoded) > MAX_RESULT_BYTES:
            raise ValueError(f"a result must be at most {MAX_RESULT_BYTES} bytes as JSON")
        if self._worker is None:
            return None
        session = await self._worker.session_to_complete(self._claimed)
        if session is None:
            raise LeaseLost
        number, token = session
        took_ms = int((time.monotonic() - self._began_at) * 1000)
        text = None if result is None else encoded.decode()
        return [self._claimed.execution_id, self._claimed.fence, number, token, took_ms, text]


class Context(_Base):
    """The context of a coroutine function."""

    __slots__ = ()

    async def completion_token(self, name: str = "") -> str:
        """A token with which an outside system can complete a wait of this execution.

        It is the same for all runs of the execution. Use names to distinguish several waits.
        """
        return await self._token(name)

    async def wait_for_completion(
        self,
        name: str = "",
        *,
        timeout: float | timedelta,  # noqa: ASYNC109
    ) -> Completion:
        """Wait for what an outside system reports with the token of this name.

        If it has not reported yet, the run ends here (Suspend) and occupies no worker. Once it
        reports, or the timeout has passed, the handler runs again from the top, in the same attempt:
        the code before this call runs twice, unless a checkpoint lets it skip what is done.
        """
        return await self._completion(name, timeout)

    async def complete(self, result: object = None, *, connection: Any) -> None:
        """End this execution as SUCCEEDED in your own transaction: both commit, or neither.

        Call it last, then commit. If another worker may have run the execution meanwhile, the
        statement fails, and your transaction with it.
        """
        arguments = await self._completing(result)
        if arguments is not None:
            await user_connection(connection, False).fetch(COMPLETE, arguments)

    async def checkpoint(self, value: object) -> None:
        """Store a value, up to 64 KB as JSON, that the next run of this execution can `restore`.

        The value is durable when this returns. Raises LeaseLost if another worker may already be running
        the execution.
        """
        encoded = _encoded_checkpoint(value)
        if self._worker is None:
            return
        if not await self._worker.set_checkpoint(self._claimed, encoded):
            raise LeaseLost

    async def progress(self, value: object) -> None:
        """Report the progress of the run; once a second, the newest report is stored."""
        if self._keep(value):
            await self._report()


class SyncContext(_Base):
    """The context of a plain function, which runs in a thread."""

    __slots__ = ()

    def checkpoint(self, value: object) -> None:
        """Store a value, up to 64 KB as JSON, that the next run of this execution can `restore`.

        The value is durable when this returns. Raises LeaseLost if another worker may already be running
        the execution.
        """
        encoded = _encoded_checkpoint(value)
        if self._worker is not None and self._loop is not None:
            storing = self._worker.set_checkpoint(self._claimed, encoded)
            if not asyncio.run_coroutine_threadsafe(storing, self._loop).result():
                raise LeaseLost

    def progress(self, value: object) -> None:
        """Report the progress of the run; once a second, the newest report is stored."""
        if self._keep(value):
            self._blocking(self._report())

    def completion_token(self, name: str = "") -> str:
        """A token with which an outside system can complete a wait of this execution.

        It is the same for all runs of the execution. Use names to distinguish several waits.
        """
        return self._blocking(self._token(name))

    def wait_for_completion(self, name: str = "", *, timeout: float | timedelta) -> Completion:
        """Wait for what an outside system reports with the token of this name.

        If it has not reported yet, the run ends here (Suspend) and occupies no worker. Once it
        reports, or the timeout has passed, the handler runs again from the top, in the same attempt:
        the code before this call runs twice, unless a checkpoint lets it skip what is done.
        """
        return self._blocking(self._completion(name, timeout))

    def complete(self, result: object = None, *, connection: Any) -> None:
        """End this execution as SUCCEEDED in your own transaction: both commit, or neither.

        Call it last, then commit. If another worker may have run the execution meanwhile, the
        statement fails, and your transaction with it.
        """
        arguments = self._blocking(self._completing(result))
        if arguments is not None:
            # A sync connection is used in the handler's own thread.
            without_loop(user_connection(connection, True).fetch(COMPLETE, arguments))

    def _blocking(self, asking: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            return without_loop(asking)
        try:
            return asyncio.run_coroutine_threadsafe(asking, self._loop).result()
        except concurrent.futures.CancelledError:  # a LeaseLost arrives as this
            raise LeaseLost from None

    def raise_if_cancelled(self) -> None:
        """Stop here if the run was asked to stop. A thread cannot be stopped from outside."""
        if self.cancelled:
            raise asyncio.CancelledError("the run was asked to stop")


def _encoded_checkpoint(value: object) -> str:
    encoded = to_json(value)
    if len(encoded) > MAX_CHECKPOINT_BYTES:
        raise ValueError(
            f"A checkpoint must be at most {MAX_CHECKPOINT_BYTES} bytes as JSON; this one has"
            f" {len(encoded)}. Store the data elsewhere, and its key here."
        )
    return encoded.decode()


# The context of the running task, or a function that creates it: most tasks never ask for it.
_current: ContextVar[Context | SyncContext | Callable[[], Context | SyncContext]] = ContextVar(
    "hourbell_context"
)


def no_context_of_batch() -> NoReturn:
    raise LookupError("A batch runs many executions at once, so it has no context. Use its items.")


def current() -> Context | SyncContext:
    """The context of the running handler, for code it calls.

    Raises LookupError if no handler is running here, or a batch, which has no context of its own.
    """
    try:
        found = _current.get()
    except LookupError:
        raise LookupError("No task is running here, so there is no context.") from None
    if not isinstance(found, Context | SyncContext):
        found = found()
        _current.set(found)
    return found
