"""Task sets: tasks declared without an app, which belong to the app that includes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Unpack

from hourbell.errors import InvalidTask
from hourbell.sdk.tasks import Task, TaskDecorator, TaskKeywords
from hourbell.sdk.values import Seconds

if TYPE_CHECKING:
    from hourbell.sdk.app import App
    from hourbell.sdk.batches import BatchDecorator


class TaskSet:
    """Tasks for an app that is defined elsewhere: for packages, and to avoid import cycles.

    `app.include(tasks)` adds them to an app; a set can belong to one app per process.
    """

    def __init__(self) -> None:
        self.task = TaskDecorator(self)
        self._tasks: list[Task[..., Any]] = []
        self._app: App | None = None

    def batch_task(
        self,
        *,
        size: int = 100,
        max_wait: Seconds = 1.0,
        by: Literal["task", "tenant"] = "tenant",
        **options: Unpack[TaskKeywords],
    ) -> BatchDecorator:
        """Like `app.batch_task`."""
        from hourbell.sdk.batches import batch_decorator

        return batch_decorator(self, size, max_wait, by, options)

    def _add(self, task: Task[..., Any]) -> None:
        self._tasks.append(task)
        if self._app is not None:  # it was included while its module was still being imported
            task._bind(self._app)

    def _include_in(self, app: App) -> None:
        if self._app is app:
            return
        if self._app is not None:
            raise InvalidTask(
                f"The tasks of this set already belong to app {self._app.name!r}. A set can be included in "
                f"one app only: create the set in a function that each app calls."
            )
        self._app = app
        for task in self._tasks:
            task._bind(app)
