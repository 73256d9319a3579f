"""Group: a handle to jobs that create another job when all of them have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from hourbell.model.ids import group_text
from hourbell.sdk.jobs import Job
from hourbell.sdk.portal import blocking
from hourbell.sdk.values import Seconds

if TYPE_CHECKING:
    from hourbell.sdk.app import App

R_co = TypeVar("R_co", covariant=True)


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    """The current state of a group."""

    id: str
    name: str
    members: int
    ended: Mapping[str, int]  # how many members are known to have ended, by fate
    created_at: datetime
    ended_at: datetime | None  # when all had ended and the job of `then` was created
    then: str | None  # the id of that job
    problem: str | None  # why that job cannot be created now


class Group(Generic[R_co]):
    """Jobs that were enqueued together. The database is queried only when a method is called."""

    __slots__ = ("_app", "_number", "jobs")

    def __init__(self, app: App, group_id: int, jobs: Sequence[Job[Any]]) -> None:
        self._app = app
        self._number = group_id
        self.jobs = jobs  # in the order of the calls

    @property
    def id(self) -> str:
        return group_text(self._number)

    def __repr__(self) -> str:
        return f"<Group {self.id} of {len(self.jobs)} jobs>"

    async def get(self) -> GroupView:
        """The current state of the group; NotFound while its transaction has not committed."""
        return await self._app.get_group(self.id)

    async def wait(self, timeout: Seconds) -> GroupView:  # noqa: ASYNC109 - the usual name
        """Wait until all its jobs have ended and the job of `then` was created."""
        return await self._app._own(lambda own: own.wait_for_group(self._number, timeout))

    async def result(self, timeout: Seconds) -> R_co:  # noqa: ASYNC109
        """Wait for the result of the `then` task. Raises JobFailed, WaitTimeout."""
        view = await self._app._own(lambda own: own.wait_for_then(self._number, timeout))
        result: R_co = self._app._result(view.id, view)
        return result

    get_sync = blocking(get)
    wait_sync = blocking(wait)
    result_sync = blocking(result)
