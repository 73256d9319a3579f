"""Remote workers: processes that have no connection to the database and speak through the API.

A remote worker does what a worker of ours does, call by call: claim, heartbeat, complete. Which of our processes answers a
call does not matter, because none of them remembers anything: what a worker holds is its session's, in the database. What
is here makes many small calls cheap.

- Claims that find nothing wait in a *line*, one for each set of queues and tasks. A notification, or else a look every half second,
  sends the first of the line to claim; whoever gets something sends two more. So a thousand idle workers cost one claim for
  each look, and a burst reaches all of them.
- The gate is passed for all of them together. A pass that finds the gate taken by another process is tried again, and each
  process announces what its passes make ready: a claim that waits depends on notifications, and not on the look.
- Under a rate limit a claim takes only what can start at the same moment, and is answered at that moment: a remote worker
  starts what it is given.
- Outcomes of a session that come at once are settled together, as those of our own workers are.

A claim whose answer nobody reads must not hold anything for long. If the caller is seen to have left, what it was given
goes back at once, unless the claim has a number: then it is kept for the repetition. If it is not seen, heartbeats tell;
and without heartbeats a session that holds something expires, however often it asks for more. A session begins with the first claim that gives something, so one that nobody knows of is empty, and closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial

import msgspec
import structlog

from hourbell.dispatch import RELEASED, RETRY, Dispatch, Heard, Service, Session, Settlement
from hourbell.dispatch.settling import MOST_PER_BATCH, settle_whole
from hourbell.engine.life.outcomes import plain_settlement, settlement
from hourbell.model.errors import FieldError, InvalidInput, StoreUnavailable
from hourbell.model.executions import Claimed, Failed, Released, Succeeded
from hourbell.model.jobs import DEFAULT_QUEUE, SentSpec, decode_spec

MOST_PER_CLAIM = 1_000
MOST_ANSWER_BYTES = 8 * 1024 * 1024  # of the jobs in the answer to one claim
LOOK_SECONDS = 0.5  # how long a ready execution may wait if no notification reaches us
GATE_SECONDS = 0.02  # between the beginnings of two passes of the gate
FROM_BELOW_EVERY = 20  # claims, one begins with the least urgent, so that it goes on too

log = structlog.get_logger()


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a remote worker asks for."""

    worker: str
    capacity: int
    wait_seconds: float = 0.0  # for something to come, if there is nothing
    queues: Sequence[str] | None = None  # None: those of the session, or the default one
    tasks: Sequence[str] | None = None  # None: those of the session, or all
    session: Session | None = None  # None: begin one
    number: int | None = None  # of the claim; None: the worker does not number them


class Given(msgspec.Struct, frozen=True):
    """What it gets."""

    session: Session | None  # None: nothing was given, and no session begun
    executions: Sequence[tuple[Claimed, SentSpec]]


class Ended(msgspec.Struct, frozen=True):
    """What a remote worker says about an execution that it held."""

    execution_id: int
    fence: int
    outcome: Succeeded | Failed | Released
    took_ms: int = 0


class RemoteWorkers:
    """All remote workers that this process speaks with."""

    def __init__(self, dispatch: Dispatch, lease_seconds: float) -> None:
        self._dispatch = dispatch
        self.lease_seconds = lease_seconds
        self._gate = _Gate(dispatch.admit)
        self._lines: dict[Service, _Line] = {}
        self._looking: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self._stopped = False
        self._claims = itertools.count(1)
        self._gatherings: dict[Session, _Gathering] = {}

    def wake(self) -> None:
        """Something may have fallen due."""
        self._woken.set()

    async def stop(self) -> None:
        """Nothing more is given out, and whoever waits is told so at once."""
        self._stopped = True
        for line in self._lines.values():
            line.send(len(line.waiting))
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    # Claims.

    async def claim(self, wish: Wish, gone: asyncio.Future[None]) -> Given:
        """What the worker may run. SessionLost if its session is over. `gone` is done when nobody waits for the answer."""
        if self._stopped:
            return Given(wish.session, [])
        if wish.session is not None:
            service = await self._dispatch.renew(wish.session)
            _check_named("queues", wish.queues, service.queues)
            _check_named("tasks", wish.tasks, service.tasks)
            given = await self._claim_or_wait(wish.session, service, wish, gone)
            if given and gone.done() and wish.number is None:
                await self._give_back(wish.session, given)
            return Given(wish.session, given)
        service = Service(
            tuple(sorted(set(wish.queues or [DEFAULT_QUEUE]))),
            None if wish.tasks is None else tuple(sorted(set(wish.tasks))),
        )
        session = await self._dispatch.open(
            wish.worker, service.queues, wish.capacity, service.tasks
        )
        given = []
        try:
            given = await self._claim_or_wait(session, service, wish, gone)
        finally:
            if not given or gone.done():
                with contextlib.suppress(StoreUnavailable):  # then it expires
                    await self._dispatch.close(session, told=False)
        return Given(session if given else None, given)

    async def _claim_or_wait(
        self,
        session: Session,
        service: Service,
        wish: Wish,
        gone: asyncio.Future[None],
    ) -> list[tuple[Claimed, SentSpec]]:
        clock = asyncio.get_running_loop().time
        until, renew_at = clock() + wish.wait_seconds, clock() + self.lease_seconds / 3
        passed_gate = False
        async with self._in_line(service) as line:
            while True:
                news = line.news
                if given := await self._take(session, wish):
                    line.send(2)
                    start_in = max(one.start_in_seconds for one, _ in given)
                    await asyncio.wait([gone], timeout=start_in)
                    return given
                if not passed_gate:
                    await self._gate.pass_once()
                    passed_gate = True
                    continue
                if self._stopped or gone.done() or clock() >= until:
                    return []
                if line.news == news:
                    self._look()
                    await line.wait(min(until, renew_at) - clock(), gone)
                if clock() >= renew_at:
                    await self._dispatch.renew(session)
                    renew_at = clock() + self.lease_seconds / 3

    async def _take(self, session: Session, wish: Wish) -> list[tuple[Claimed, SentSpec]]:
        claimed = await self._dispatch.claim(
            session,
            wish.number or 0,
            min(wish.capacity, MOST_PER_CLAIM),
            repeated=wish.number is not None,
            from_below=next(self._claims) % FROM_BELOW_EVERY == 0,
            at_once=True,
        )
        given: list[tuple[Claimed, SentSpec]] = []
        others: list[Settlement] = []
        size = 0
        for one in claimed:
            spec = _spec(one)
            size += len(one.spec)
            if spec is None:
                unreadable = Failed("What is stored about the job cannot be read.", "unreadable")
                others.append(settlement(one, None, unreadable, 0, 0, None))
            elif given and size > MOST_ANSWER_BYTES:
                others.append(Settlement(one.execution_id, one.fence, RELEASED))
            else:
                given.append((one, spec))
        if others:
            # If it fails, the next heartbeat does not name them.
            with contextlib.suppress(StoreUnavailable):
                await self._dispatch.settle(session, others)
        return given

    async def _give_back(self, session: Session, given: list[tuple[Claimed, SentSpec]]) -> None:
        log.warning("a worker left while it was given work", executions=len(given))
        back = [Settlement(one.execution_id, one.fence, RELEASED) for one, _ in given]
        await self._dispatch.settle(session, back)

    @asynccontextmanager
    async def _in_line(self, service: Service) -> AsyncIterator[_Line]:
        line = self._lines.setdefault(service, _Line())
        line.users += 1
        try:
            yield line
        finally:
            line.users -= 1
            if not line.users:
                del self._lines[service]

    def _look(self) -> None:
        """Somebody waits: from now on there is somebody who looks."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_while_somebody_waits())

    async def _look_while_somebody_waits(self) -> None:
        while self._lines:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._gate.pass_once()
            except StoreUnavailable as error:
                log.warning("the database is away", doing="admitting", error=str(error))
            except Exception:
                log.exception("a step failed", doing="admitting")
            for line in self._lines.values():
                line.tell()

    # What is held.

    async def heartbeat(
        self, session: Session, running: Sequence[int], resolved: int | None
    ) -> Heard:
        """Extend the session; SessionLost if it is over. `resolved` as in `Dispatch.heartbeat`."""
        return await self._dispatch.heartbeat(session, running, resolved)

    async def worker_of(self, session: Session) -> str | None:
        """The worker that a session belongs to; None: the session is over."""
        return await self._dispatch.worker_of(session)

    async def note_progress(
        self, session: Session, execution_id: int, fence: int, progress: str
    ) -> bool:
        """Keep how far an execution has come; False: it is not held under this fence."""
        return await self._dispatch.note_progress(session, execution_id, fence, progress)

    async def end(self, session: Session, ended: Sequence[Ended]) -> Set[int]:
        """Settle what has ended, or was not begun; returns the executions whose outcome was refused.

        What the session has said before, under the same fence, is not refused: the answer was lost. No execution twice.
        """
        gathering = self._gatherings.get(session)
        if gathering is None:
            gathering = self._gatherings[session] = _Gathering(
                partial(self._settle, session), partial(self._gatherings.pop, session)
            )
        return await gathering.put(ended)

    async def close(self, session: Session) -> None:
        """The worker leaves in order: what it still holds goes back at once."""
        await self._dispatch.close(session)

    async def _settle(self, session: Session, batch: Sequence[Ended]) -> Set[int]:
        failed = [one.execution_id for one in batch if isinstance(one.outcome, Failed)]
        known = await self._dispatch.held(session, failed) if failed else []
        held = {one.execution_id: one for one in known}
        decided: list[Settlement] = []
        refused: list[Settlement] = []
        for one in batch:
            number, fence, outcome = one.execution_id, one.fence, one.outcome
            if not isinstance(outcome, Failed):
                decided.append(plain_settlement(number, fence, outcome, None, one.took_ms))
            elif (claimed := held.get(number)) is None or claimed.fence != fence:
                refused.append(Settlement(number, fence, RETRY))
            else:
                left = claimed.deadline_in_seconds
                spec = _spec(claimed)
                decided.append(settlement(claimed, spec, outcome, None, one.took_ms, left))
        if decided:
            not_held = set(await settle_whole(partial(self._dispatch.settle, session), decided))
            refused += [one for one in decided if one.execution_id in not_held]
        if not refused:
            return frozenset()
        before = await self._dispatch.brought_before(session, refused)
        return {one.execution_id for one in refused}.difference(before)


class _Line:
    """Claims of sessions that serve the same, waiting for something to come."""

    def __init__(self) -> None:
        self.users = 0  # who waits, and who is just claiming
        self.news = 0  # how often there may have been something
        self.waiting: deque[asyncio.Future[None]] = deque()

    def tell(self) -> None:
        """There may be something: one of them goes and looks."""
        self.news += 1
        self.send(1)

    def send(self, count: int) -> None:
        """So many of those who wait try again, in their order."""
        while count and self.waiting:
            waiter = self.waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def wait(self, seconds: float, gone: asyncio.Future[None]) -> None:
        """Until sent, gone, or the time is over."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(waiter)
        try:
            await asyncio.wait(
                [waiter, gone], timeout=max(seconds, 0), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            if not waiter.done():
                self.waiting.remove(waiter)
            elif gone.done():
                self.send(1)  # nobody goes in our place otherwise


class _Gate:
    """Passes of the gate, shared by all callers that ask for one while another is under way."""

    def __init__(self, admit: Callable[[], Awaitable[bool]]) -> None:
        self._admit = admit
        self._current: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None
        self._began = 0.0

    async def pass_once(self) -> None:
        """Return after a pass that began after this call, or after LOOK_SECONDS if other processes take the gate each time."""
        if self._next is None:
            self._next = asyncio.create_task(self._pass(self._current))
        await asyncio.shield(self._next)

    async def _pass(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self._began + GATE_SECONDS - clock())
        self._current, self._next = self._next, None
        self._began = began = clock()
        # A pass of another process that is under way may have begun before what we are to admit was committed.
        while not await self._admit() and clock() < began + LOOK_SECONDS:
            await asyncio.sleep(GATE_SECONDS)
            self._began = clock()


class _Gathering:
    """The outcomes of one session: what has gathered while the last batch was on its way is the next one."""

    def __init__(
        self,
        settle: Callable[[Sequence[Ended]], Awaitable[Set[int]]],
        over: Callable[[], object],
    ) -> None:
        self._settle = settle
        self._over = over  # called when there is nothing more; another one is made when there is
        self._waiting: deque[tuple[Sequence[Ended], asyncio.Future[Set[int]]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def put(self, group: Sequence[Ended]) -> Set[int]:
        """Settle them with whatever else there is; returns which of them were refused."""
        done: asyncio.Future[Set[int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((group, done))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await done

    async def _run(self) -> None:
        while self._waiting:
            groups = self._next_batch()
            batch = [one for group, _ in groups for one in group]
            try:
                refused = await self._settle(batch)
            except Exception as error:
                for _, done in groups:
                    if not done.done():
                        done.set_exception(error)
            else:
                for group, done in groups:
                    if not done.done():
                        done.set_result({one.execution_id for one in group} & refused)
        self._over()

    def _next_batch(self) -> list[tuple[Sequence[Ended], asyncio.Future[Set[int]]]]:
        """No execution twice: of two outcomes the second is judged when the first is settled."""
        groups = [self._waiting.popleft()]
        seen = {one.execution_id for one in groups[0][0]}
        while self._waiting:
            numbers = {one.execution_id for one in self._waiting[0][0]}
            if seen & numbers or len(seen) + len(numbers) > MOST_PER_BATCH:
                break
            seen |= numbers
            groups.append(self._waiting.popleft())
        return groups


def _check_named(field: str, asked: Sequence[str] | None, served: Sequence[str] | None) -> None:
    """That a claim does not name other queues or tasks than its session serves."""
    if asked is None or (served is not None and set(asked) == set(served)):
        return
    names = ["all"] if served is None else served
    shown = ", ".join(names[:10]) + (" and others" if len(names) > 10 else "")
    message = (
        f"are not those of the session, which serves {shown}; claim without it to begin another"
    )
    raise InvalidInput([FieldError(field, "conflict", message)])


def _spec(claimed: Claimed) -> SentSpec | None:
    try:
        return decode_spec(claimed.spec)
    except (msgspec.MsgspecError, ValueError):
        return None
