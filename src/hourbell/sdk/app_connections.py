"""The connections of an app, in one event loop: a pool, and the engine on it."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any

import asyncpg

from hourbell.engine.core import Engine
from hourbell.engine.operations.execution_groups import get_group
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.executions import get_execution
from hourbell.engine.views.explain import Explanation, explain_execution
from hourbell.errors import (
    CannotConnect,
    ConfigurationError,
    Conflict,
    HourbellError,
    InvalidArguments,
    NotFound,
    NotMigrated,
    StoreUnavailable,
    WaitTimeout,
)
from hourbell.model.errors import InvalidInput
from hourbell.model.executions import (
    FATES,
    MAX_RESULT_BYTES,
    ExecutionStatus,
    Failed,
    Succeeded,
)
from hourbell.model.ids import group_text, job_text, parse_execution_id, parse_job_id
from hourbell.model.jobs import TASK_PREFIX
from hourbell.model.json_values import to_json
from hourbell.sdk.groups import GroupView
from hourbell.sdk.jobs import Cancelled, JobView
from hourbell.sdk.plans import (
    CANCEL,
    ENQUEUE,
    GROUP,
    IDEMPOTENT,
    Created,
    MissingName,
    PlannedCall,
    arguments,
    created,
    created_group,
    refused_name,
)
from hourbell.sdk.values import Seconds, seconds_of
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database, shown_dsn, why_unusable
from hourbell.store.migrations import is_migrated, mark_used

_ENQUEUE = ENQUEUE.format("$1", "$2", "$3", "$4", "$5")
_CANCEL = CANCEL.format("$1", "$2", "$3")
_GROUP = GROUP.format("$1", "$2", "$3", "$4")
_MAX_GROUP = 500  # calls that wait for a connection and are sent together
# Delays between polls of a job that is awaited; the last one is repeated.
_POLL_SECONDS = (0.02, 0.05, 0.1, 0.25)


class AppConnections:
    """The app's own connections, used when a call gets none."""

    def __init__(self, database: Database, stack: AsyncExitStack, connections: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.pid = os.getpid()
        self.database = database
        self.engine = Engine(database, DatabaseClock(database))
        self._stack = stack
        self._free = connections  # how many more statements may start
        self._waiting: deque[tuple[PlannedCall, asyncio.Future[Created]]] = deque()

    @classmethod
    async def open(
        cls, dsn: str, connections: int, stack: AsyncExitStack, program: str, create_on_use: bool
    ) -> AppConnections:
        with _connecting(dsn):
            if not await is_migrated(dsn):
                raise NotMigrated(
                    f"The database {shown_dsn(dsn)} lacks tables or functions of this version. "
                    f'Run "hourbell migrate" once.'
                )
            database = await Database.open(dsn, connections, program)
        stack.push_async_callback(database.close)
        await mark_used(database)
        opened = cls(database, stack, connections)
        opened.engine.create_on_use = create_on_use
        return opened

    async def close(self) -> None:
        await self._stack.aclose()

    async def declare(
        self, tenants: Collection[str], queues: Collection[str], tasks: Collection[str]
    ) -> None:
        """Create the names that the app declares, in their own transactions."""
        await self._ensure(self.engine.declaring(), tenants, queues, tasks)

    async def add(self, missing: MissingName) -> None:
        """Create a name that a call uses, or raise that it must not be created."""
        names = {"tenant": (), "queue": (), "task": ()} | {missing.kind: (missing.name,)}
        try:
            await self._ensure(self.engine, names["tenant"], names["queue"], names["task"])
        except InvalidInput as error:
            if missing.kind == "task":
                raise
            raise refused_name(missing, error) from None

    async def _ensure(
        self,
        engine: Engine,
        tenants: Collection[str],
        queues: Collection[str],
        tasks: Collection[str],
    ) -> None:
        now = await engine.clock.now()
        await engine.tenants(tenants, now)
        await engine.queues(queues, now)
        await engine.targets([TASK_PREFIX + name for name in tasks], now)

    async def create(self, calls: Sequence[PlannedCall]) -> list[Created]:
        """Create jobs, all or none; names that do not exist yet are created first."""
        if len(calls) == 1 and calls[0].unique_key is None and IDEMPOTENT not in calls[0].options:
            return [await self._create_one(calls[0])]
        return await self._create(calls)

    async def _create(self, calls: Sequence[PlannedCall]) -> list[Created]:
        for _ in range(8):  # each time another name is missing, which is rare
            rows = await self.database.fetch(_ENQUEUE, *arguments(calls))
            try:
                return created(calls, rows)
            except MissingName as missing:
                await self.add(missing)
                last = missing
        raise HourbellError(f"Cannot create the {last.kind} {last.name!r}.")

    async def create_group(
        self, chunks: Sequence[Sequence[PlannedCall]], then: PlannedCall, name: str
    ) -> tuple[int, list[Created]]:
        """Create a group with its jobs in one transaction; missing names are created first."""
        for _ in range(8):
            try:
                async with self.database.transaction() as connection:
                    made: list[Created] = []
                    for calls in chunks:
                        rows = await connection.fetch(_ENQUEUE, *arguments(calls))
                        made += created(calls, rows)
                    members = [one.job_id for one in made]
                    (row,) = await connection.fetch(
                        _GROUP, name, then.options, then.payload, members
                    )
                    return created_group(then, tuple(row)), made
            except MissingName as missing:
                await self.add(missing)
                last = missing
        raise HourbellError(f"Cannot create the {last.kind} {last.name!r}.")

    async def _create_one(self, call: PlannedCall) -> Created:
        """Create a job. Calls that would wait for a connection are sent together by the next one."""
        if not self._free:
            future: asyncio.Future[Created] = self.loop.create_future()
            self._waiting.append((call, future))
            return await future
        self._free -= 1
        try:
            (made,) = await self._create([call])
            return made
        finally:
            self._free += 1
            if self._waiting:
                self._free -= 1
                task = self.loop.create_task(self._create_waiting())
                _running.add(task)
                task.add_done_callback(_running.discard)

    async def _create_waiting(self) -> None:
        try:
            while self._waiting:
                group = [
                    self._waiting.popleft() for _ in range(min(_MAX_GROUP, len(self._waiting)))
                ]
                await self._create_group(group)
        finally:
            self._free += 1

    async def _create_group(
        self, group: Sequence[tuple[PlannedCall, asyncio.Future[Created]]]
    ) -> None:
        try:
            made = await self._create([call for call, _ in group])
        except StoreUnavailable as error:  # the answer may be lost, so all of them may exist
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
        except HourbellError as error:
            if len(group) == 1:
                _, future = group[0]
                if not future.done():
                    future.set_exception(error)
                return
            for one in group:  # nothing was created, because one of them was rejected
                await self._create_group([one])
        except BaseException as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, future), one_made in zip(group, made, strict=True):
                if not future.done():
                    future.set_result(one_made)

    async def cancel_key(self, task: str | None, key: str, tenant: str) -> Cancelled:
        return Cancelled(await self.database.value(_CANCEL, task, key, tenant))

    async def cancel_job(self, job_id: int, actor: str) -> Cancelled:
        if ExecutionStatus((await self.view(job_id)).status) in FATES:
            return Cancelled.ENDED
        try:
            seen = await cancel_execution(self.engine, job_id, Write(actor=actor))
        except Conflict:
            has_ended = ExecutionStatus((await self.view(job_id)).status) in FATES
            return Cancelled.ENDED if has_ended else Cancelled.BUSY
        ended = seen.status is ExecutionStatus.CANCELLED
        return Cancelled.CANCELLED if ended else Cancelled.REQUESTED

    async def complete(self, token: str, result: object, error: str | None) -> None:
        # Imported here, because most programs complete nothing.
        from hourbell.engine.operations.completions import complete
        from hourbell.security.sealing import KeyRing

        number = parse_execution_id(str(token).partition("-")[0])
        try:
            size = len(to_json(result))
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArguments(
                f"complete: the result cannot be stored as JSON: {error}."
            ) from None
        if size > MAX_RESULT_BYTES:
            raise InvalidArguments(
                f"The result has {size} bytes as JSON; the maximum is {MAX_RESULT_BYTES}. Store it elsewhere "
                f"and report its id."
            )
        outcome = Succeeded(result) if error is None else Failed(error, "reported")
        await complete(self.engine, KeyRing.parse(""), number, token, outcome)

    async def view(self, job_id: int) -> JobView:
        with _may_be_uncommitted("job", job_text(job_id)):
            seen = await get_execution(self.engine, job_id)
        return JobView(
            id=job_text(seen.job_id),
            task=seen.job_name or "",
            status=seen.status.value,
            reason=None if seen.reason is None else seen.reason.value,
            attempt=seen.attempt,
            scheduled_for=seen.scheduled_for,
            started_at=seen.started_at,
            finished_at=seen.finished_at,
            error=seen.error,
            result=seen.result,
        )

    async def explain(self, job_id: int) -> Explanation:
        with _may_be_uncommitted("job", job_text(job_id)):
            return await explain_execution(self.engine, job_id)

    async def wait(self, job_id: int, limit: Seconds) -> JobView:
        """Wait for the job to end. It may not be visible yet, if its transaction is open."""
        view: JobView | None = None
        async for _ in _polls(limit):
            with suppress(NotFound):
                view = await self.view(job_id)
            if view is not None and ExecutionStatus(view.status) in FATES:
                return view
        raise WaitTimeout(
            f"Job {job_text(job_id)} did not end within {seconds_of(limit):g} s. It is "
            f"{view.status if view else _NOT_VISIBLE}."
        )

    async def group(self, group_id: int) -> GroupView:
        with _may_be_uncommitted("group", group_text(group_id)):
            seen = await get_group(self.engine, group_id)
        return GroupView(
            id=group_text(group_id),
            name=seen.name,
            members=seen.members,
            ended=seen.ended,
            created_at=seen.created_at,
            ended_at=seen.ended_at,
            then=None if seen.callback is None else job_text(seen.callback),
            problem=seen.problem,
        )

    async def wait_for_group(self, group_id: int, limit: Seconds) -> GroupView:
        """Wait for the group to end. It may not be visible yet, if its transaction is open."""
        view: GroupView | None = None
        async for _ in _polls(limit):
            with suppress(NotFound):
                view = await self.group(group_id)
            if view is not None and view.ended_at is not None:
                return view
        state = _NOT_VISIBLE
        if view is not None:
            state = f"known to have {sum(view.ended.values())} of {view.members} jobs ended"
            state += f". {view.problem}" if view.problem else ""
        raise WaitTimeout(
            f"Group {group_text(group_id)} did not end within {seconds_of(limit):g} s. It is {state}."
        )

    async def wait_for_then(self, group_id: int, limit: Seconds) -> JobView:
        """Wait for the job that the group creates to end."""
        began = time.monotonic()
        view = await self.wait_for_group(group_id, limit)
        left = max(seconds_of(limit) - (time.monotonic() - began), 0)
        assert view.then is not None  # it has ended
        return await self.wait(parse_job_id(view.then), left)


@contextmanager
def _may_be_uncommitted(kind: str, identifier: str) -> Iterator[None]:
    """Explain that a missing job or group may belong to a transaction that is still open."""
    try:
        yield
    except NotFound as error:
        error.message = (
            f"There is no {kind} {identifier}. The transaction that enqueued it may not have committed "
            f"yet or may have been rolled back, or retention may have removed the {kind}."
        )
        error.args = (error.message,)
        raise


async def _polls(limit: Seconds) -> AsyncIterator[None]:
    """The moments at which to poll, until the limit has passed."""
    deadline = time.monotonic() + seconds_of(limit)
    pauses = iter(_POLL_SECONDS)
    pause = next(pauses)
    while True:
        yield
        left = deadline - time.monotonic()
        if left <= 0:
            return
        await asyncio.sleep(min(pause, left))
        pause = next(pauses, pause)


_NOT_VISIBLE = "not visible: its transaction is open, or was rolled back"


@contextmanager
def _connecting(dsn: str) -> Iterator[None]:
    """Say which database cannot be used, and why: nothing was written yet."""
    try:
        yield
    except StoreUnavailable as error:
        raise CannotConnect(shown_dsn(dsn), why_unusable(error)) from error
    except (
        ValueError,
        asyncpg.InvalidCatalogNameError,
        asyncpg.InsufficientPrivilegeError,
    ) as error:
        raise ConfigurationError(CannotConnect.text(shown_dsn(dsn), str(error))) from error


_running: set[asyncio.Task[Any]] = set()  # the loop keeps only weak references
