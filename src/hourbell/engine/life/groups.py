"""Group commit: concurrent requests are executed together.

A commit waits for the disk, whatever its size. So requests that arrive while a group is executing
wait for it, and then form the next group. A lone caller is served immediately; concurrent callers
are batched. A lookup that many callers need at the same moment is batched in the same way
(`secrets`). Everything is bounded: the size of a group, the groups in progress, the requests that
wait. A request that is blocked by a lock is executed separately, so it does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from hourbell.model.errors import Overloaded

ASIDE_SECONDS = 0.5  # how long a separated group waits for a slot

T = TypeVar("T")
A = TypeVar("A")


class Ask(Generic[T, A]):
    """One request, and the future that its caller awaits."""

    def __init__(self, wanted: T) -> None:
        self.wanted = wanted
        self.future: asyncio.Future[A] = asyncio.get_running_loop().create_future()

    def answer(self, answer: A) -> None:
        if not self.future.done():  # the caller may have been cancelled
            self.future.set_result(answer)

    def refuse(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


CarryOut = Callable[[list[Ask[T, A]]], Awaitable[None]]


class Group(Generic[T, A]):
    """Callers whose requests are executed together."""

    def __init__(
        self,
        most_together: int = 256,
        most_under_way: int = 2,
        max_waiting: int = 4_096,
        most_aside: int = 4,
    ) -> None:
        self._most_together = most_together
        self._most_under_way = most_under_way
        self._max_waiting = max_waiting
        self._aside = asyncio.Semaphore(most_aside)
        self._set_aside = 0
        self._waiting: deque[Ask[T, A]] = deque()
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, wanted: T, carry_out: CarryOut[T, A]) -> A:
        """Queue a request and await its answer; `carry_out` may receive other requests with it."""
        if len(self._waiting) + self._set_aside >= self._max_waiting:
            raise Overloaded
        ask: Ask[T, A] = Ask(wanted)
        self._waiting.append(ask)
        if self._under_way < self._most_under_way:
            self._under_way += 1
            self._start(self._serve(carry_out))
        return await ask.future

    def set_aside(self, asks: list[Ask[T, A]], carry_out: CarryOut[T, A]) -> None:
        """Execute requests separately; a few such groups may wait for locks at the same time."""
        self._set_aside += len(asks)
        self._start(self._serve_aside(asks, carry_out))

    async def _serve(self, carry_out: CarryOut[T, A]) -> None:
        try:
            await asyncio.sleep(0)  # requests of the same loop iteration join the first group
            while self._waiting:
                many = min(len(self._waiting), self._most_together)
                await _carry_out([self._waiting.popleft() for _ in range(many)], carry_out)
        finally:
            self._under_way -= 1

    async def _serve_aside(self, asks: list[Ask[T, A]], carry_out: CarryOut[T, A]) -> None:
        try:
            async with asyncio.timeout(ASIDE_SECONDS):
                await self._aside.acquire()
        except TimeoutError:
            for ask in asks:
                ask.refuse(Overloaded())
        else:
            try:
                await _carry_out(asks, carry_out)
            finally:
                self._aside.release()
        finally:
            self._set_aside -= len(asks)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)  # the event loop keeps only a weak reference
        task.add_done_callback(self._tasks.discard)


class Turns:
    """A semaphore with a bounded queue: a few run at once, some wait, the rest are rejected."""

    def __init__(self, most_at_once: int, max_waiting: int) -> None:
        self._places = asyncio.Semaphore(most_at_once)
        self._most = most_at_once + max_waiting
        self._here = 0

    async def __aenter__(self) -> None:
        if self._here >= self._most:
            raise Overloaded
        self._here += 1
        try:
            await self._places.acquire()
        except BaseException:
            self._here -= 1
            raise

    async def __aexit__(self, *_: object) -> None:
        self._here -= 1
        self._places.release()


class Room:
    """A memory budget for request bodies being received.

    Memory is taken as it arrives, so slow senders hold little; no sender can take all of it.
    """

    def __init__(self, most_bytes: int, most_of_one: int) -> None:
        self._most = most_bytes
        self._most_of_one = most_of_one
        self._taken: Counter[str | None] = Counter()

    @contextmanager
    def taking(self, whose: str | None) -> Iterator[Callable[[int], None]]:
        """A function that takes more bytes, or raises Overloaded. All are returned at the end."""
        mine = 0

        def take(size: int) -> None:
            nonlocal mine
            if (
                self._taken[whose] + size > self._most_of_one
                or self._taken.total() + size > self._most
            ):
                raise Overloaded
            self._taken[whose] += size
            mine += size

        try:
            yield take
        finally:
            self._taken[whose] -= mine
            if not self._taken[whose]:
                del self._taken[whose]


async def _carry_out(asks: list[Ask[T, A]], carry_out: CarryOut[T, A]) -> None:
    """Execute requests so that every caller gets an answer, whatever happens."""
    asks = [ask for ask in asks if not ask.future.done()]
    if not asks:
        return
    try:
        await carry_out(asks)
    except Exception as error:
        for ask in asks:
            ask.refuse(error)
    except asyncio.CancelledError:
        for ask in asks:
            ask.future.cancel()
        raise
