"""Group commit: concurrent requests are executed together.

A commit waits for the disk, whatever its size. So requests that arrive while a group is executing
wait for it, and then form the next group. A lone caller is served immediately; concurrent callers
are batched. A lookup that many callers need at the same moment is batched in the same way
(`secrets`). Everything is bounded: the size of a group, the groups in progress, the requests that
wait. A request that is blocked by a lock is executed separately, so it does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Generic, TypeVar

from hourbell.model.errors import Overloaded

SEPARATE_WAIT_SECONDS = 0.5  # how long a separate group waits for a slot

T = TypeVar("T")
A = TypeVar("A")


class Submission(Generic[T, A]):
    """One request, and the future that its caller awaits."""

    def __init__(self, request: T) -> None:
        self.request = request
        self.future: asyncio.Future[A] = asyncio.get_running_loop().create_future()

    def answer(self, answer: A) -> None:
        if not self.future.done():  # the caller may have been cancelled
            self.future.set_result(answer)

    def refuse(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


Execute = Callable[[list[Submission[T, A]]], Awaitable[None]]


class GroupExecutor(Generic[T, A]):
    """Executes concurrent requests in groups."""

    def __init__(
        self,
        max_group_size: int = 256,
        max_groups: int = 2,
        max_waiting: int = 4_096,
        max_separate: int = 4,
    ) -> None:
        self._max_group_size = max_group_size
        self._max_groups = max_groups
        self._max_waiting = max_waiting
        self._separate_slots = asyncio.Semaphore(max_separate)
        self._separated = 0
        self._waiting: deque[Submission[T, A]] = deque()
        self._groups = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def submit(self, request: T, execute: Execute[T, A]) -> A:
        """Queue a request and await its answer; `execute` may receive other requests with it."""
        if len(self._waiting) + self._separated >= self._max_waiting:
            raise Overloaded
        submission: Submission[T, A] = Submission(request)
        self._waiting.append(submission)
        if self._groups < self._max_groups:
            self._groups += 1
            self._start(self._run_groups(execute))
        return await submission.future

    def submit_separately(
        self, submissions: list[Submission[T, A]], execute: Execute[T, A]
    ) -> None:
        """Execute requests separately; a few such groups may wait for locks at the same time."""
        self._separated += len(submissions)
        self._start(self._run_separately(submissions, execute))

    async def _run_groups(self, execute: Execute[T, A]) -> None:
        try:
            await asyncio.sleep(0)  # requests of the same loop iteration join the first group
            while self._waiting:
                size = min(len(self._waiting), self._max_group_size)
                await _execute_group([self._waiting.popleft() for _ in range(size)], execute)
        finally:
            self._groups -= 1

    async def _run_separately(
        self, submissions: list[Submission[T, A]], execute: Execute[T, A]
    ) -> None:
        try:
            async with asyncio.timeout(SEPARATE_WAIT_SECONDS):
                await self._separate_slots.acquire()
        except TimeoutError:
            for submission in submissions:
                submission.refuse(Overloaded())
        else:
            try:
                await _execute_group(submissions, execute)
            finally:
                self._separate_slots.release()
        finally:
            self._separated -= len(submissions)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the event loop keeps only a weak reference
        task.add_done_callback(self._tasks.discard)


async def _execute_group(submissions: list[Submission[T, A]], execute: Execute[T, A]) -> None:
    """Execute requests so that every caller gets an answer, whatever happens."""
    submissions = [submission for submission in submissions if not submission.future.done()]
    if not submissions:
        return
    try:
        await execute(submissions)
    except Exception as error:
        for submission in submissions:
            submission.refuse(error)
    except asyncio.CancelledError:
        for submission in submissions:
            submission.future.cancel()
        raise
