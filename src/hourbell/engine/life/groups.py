"""Group commit: what several callers ask for at the same moment is carried out together.

A commit waits for the disk, whatever is in it. So whoever comes while others are being carried out waits for them and then
goes together with everybody else who has come meanwhile: alone he is served at once, in a crowd the crowd is served. A look
that many want at the same moment goes the same way (`secrets`).
Everything is bounded: how many go together, how many groups are under way, how many wait. Who cannot be carried out with
the others, because he has to wait for somebody, is set aside, and holds up nobody.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from hourbell.model.errors import Overloaded

ASIDE_SECONDS = 0.5  # for a place among those who are set aside

T = TypeVar("T")
A = TypeVar("A")


class Ask(Generic[T, A]):
    """What one caller wants, and the answer that he waits for."""

    def __init__(self, wanted: T) -> None:
        self.wanted = wanted
        self.future: asyncio.Future[A] = asyncio.get_running_loop().create_future()

    def answer(self, answer: A) -> None:
        if not self.future.done():  # he may have gone away
            self.future.set_result(answer)

    def refuse(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


CarryOut = Callable[[list[Ask[T, A]]], Awaitable[None]]


class Group(Generic[T, A]):
    """Callers who are served together."""

    def __init__(
        self,
        most_together: int = 256,
        most_under_way: int = 2,
        most_waiting: int = 4_096,
        most_aside: int = 4,
    ) -> None:
        self._most_together = most_together
        self._most_under_way = most_under_way
        self._most_waiting = most_waiting
        self._aside = asyncio.Semaphore(most_aside)
        self._set_aside = 0
        self._waiting: deque[Ask[T, A]] = deque()
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def ask(self, wanted: T, carry_out: CarryOut[T, A]) -> A:
        """The answer, when `carry_out` has given it; it may be given others to carry out as well."""
        if len(self._waiting) + self._set_aside >= self._most_waiting:
            raise Overloaded
        ask: Ask[T, A] = Ask(wanted)
        self._waiting.append(ask)
        if self._under_way < self._most_under_way:
            self._under_way += 1
            self._start(self._serve(carry_out))
        return await ask.future

    def set_aside(self, asks: list[Ask[T, A]], carry_out: CarryOut[T, A]) -> None:
        """Carry out some apart from the others; a few such groups may wait for locks at the same time."""
        self._set_aside += len(asks)
        self._start(self._serve_aside(asks, carry_out))

    async def _serve(self, carry_out: CarryOut[T, A]) -> None:
        try:
            await asyncio.sleep(0)  # whoever else asks in this turn of the loop goes with the first
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
        self._tasks.add(task)  # the loop itself does not hold it
        task.add_done_callback(self._tasks.discard)


class Turns:
    """A few at a time; some more wait for their turn, and the rest are turned away."""

    def __init__(self, most_at_once: int, most_waiting: int) -> None:
        self._places = asyncio.Semaphore(most_at_once)
        self._most = most_at_once + most_waiting
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
    """Memory for what is being received, of all who send at the same time. Who is slow takes little of it, and nobody all."""

    def __init__(self, most_bytes: int, most_of_one: int) -> None:
        self._most = most_bytes
        self._most_of_one = most_of_one
        self._taken: Counter[str | None] = Counter()

    @contextmanager
    def taking(self, whose: str | None) -> Iterator[Callable[[int], None]]:
        """How to take some more; everything is given back at the end. Overloaded if there is no more."""
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
    """Everybody gets an answer, whatever happens."""
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
