"""Job: a handle to an enqueued job."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from hourbell.model.ids import execution_text, job_text
from hourbell.sdk.portal import blocking
from hourbell.sdk.values import Seconds

if TYPE_CHECKING:
    from hourbell.engine.views.explain import Explanation
    from hourbell.sdk.app import App

R_co = TypeVar("R_co", covariant=True)


class Cancelled(StrEnum):
    """What a cancellation did."""

    CANCELLED = "cancelled"  # it will not run
    REQUESTED = "requested"  # it is queued or running, and was asked to stop
    ENDED = "ended"  # the job, or the last one with the key, has ended
    NOT_FOUND = "not_found"  # no job has the key, or the last one ended some time ago
    BUSY = "busy"  # another transaction is changing it; repeat the call


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a job."""

    id: str
    task: str
    status: str  # of its execution: SCHEDULED, QUEUED, RUNNING, SUCCEEDED, …
    reason: str | None  # why it ended
    attempt: int  # 0 until it first runs
    scheduled_for: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error: str | None
    result: Any


class Job(Generic[R_co]):
    """An enqueued job. The database is queried only when a method is called."""

    __slots__ = ("_app", "_number", "_task", "existed")

    def __init__(
        self, app: App, job_id: int, existed: bool = False, task: str | None = None
    ) -> None:
        self._app = app
        self._number = job_id
        self._task = task
        self.existed = existed  # on_duplicate="keep" found an existing job

    @property
    def id(self) -> str:
        return job_text(self._number)

    @property
    def execution_id(self) -> str:
        return execution_text(self._number)  # a one-time job is its execution

    def __repr__(self) -> str:
        return f"<Job {self.id}{' of ' + self._task if self._task else ''}>"

    async def get(self) -> JobView:
        """The current state of the job; NotFound while its transaction has not committed."""
        return await self._app._own(lambda own: own.view(self._number))

    async def explain(self) -> Explanation:
        """What the job is waiting for, or how it ended: a code, a message, and until when."""
        return await self._app._own(lambda own: own.explain(self._number))

    async def cancel(self) -> Cancelled:
        """Cancel the job; a running one is asked to stop."""
        return await self._app._own(
            lambda own: own.cancel_job(self._number, f"app {self._app.name}")
        )

    async def wait(self, timeout: Seconds) -> str:  # noqa: ASYNC109 - the usual name
        """Wait until the job has ended; return its fate, such as SUCCEEDED or DEAD. Raises WaitTimeout."""
        view = await self._app._own(lambda own: own.wait(self._number, timeout))
        return view.status

    async def result(self, timeout: Seconds) -> R_co:  # noqa: ASYNC109
        """Wait for the task's result. Raises JobFailed if it did not succeed, ResultNotStored, WaitTimeout."""
        view = await self._app._own(lambda own: own.wait(self._number, timeout))
        result: R_co = self._app._result(self.id, view)
        return result

    get_sync = blocking(get)
    explain_sync = blocking(explain)
    cancel_sync = blocking(cancel)
    wait_sync = blocking(wait)
    result_sync = blocking(result)
