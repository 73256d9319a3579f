"""Bell: an app on its own database, with a clock that only the test moves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Self, TypeVar

import asyncpg
import msgspec

from hourbell.engine.core import Engine, Times
from hourbell.engine.life.admit import BATCH, Pass
from hourbell.engine.operations.tasks import declare_tasks
from hourbell.environment import hourbell_variables, value_of
from hourbell.errors import Cancel, Dead, RetryAfter, Snooze, StoreUnavailable
from hourbell.model.executions import FATES, ExecutionStatus, Reason
from hourbell.model.ids import job_text, parse_execution_id
from hourbell.model.manifests import Manifest
from hourbell.observe.logs import configure_logs_of_library
from hourbell.sdk.app import App
from hourbell.sdk.connections import user_connection
from hourbell.sdk.context import RunInfo
from hourbell.sdk.jobs import Job
from hourbell.sdk.portal import blocking, is_blocking, run_in
from hourbell.sdk.running import AppRunner, declared_options, entered, import_tasks
from hourbell.sdk.schedules import manifest_of
from hourbell.sdk.tasks import Task
from hourbell.sdk.values import Seconds
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from hourbell.store.function_set import for_this_build
from hourbell.store.queries import queries
from hourbell.testing.clock import VirtualClock, this_second
from hourbell.testing.driver import Agenda, Driver
from hourbell.testing.errors import AttemptFailed, Misuse
from hourbell.testing.runs import Run, Wanted, failed_assertion, read_runs, wanted
from hourbell.testing.servers import in_database, running_server
from hourbell.testing.worker import Failure, Faults, SteppedWorker, Turn, task_of
from hourbell.worker.settings import WorkerSettings

T = TypeVar("T")
R = TypeVar("R")
Mode = Literal["manual", "inline"]

_Q = queries("testing")
_EARLIEST = datetime(2024, 1, 1, tzinfo=UTC)  # ids begin there
_DECISIONS = (Snooze, RetryAfter, Cancel, Dead)  # raised by a handler
_RECONNECTS = 50
# Schedules are planned a day ahead, not a minute: each planning step costs as much as running a task.
_TIMES = Times(horizon_seconds=86_400.0)


class TestClock:
    """The clock of a test. Only the test moves it."""

    __test__ = False  # not a test class

    def __init__(self, bell: Bell, now: datetime) -> None:
        self._bell = bell
        self._now = now

    @property
    def now(self) -> datetime:
        """The time that Hourbell sees."""
        return self._now

    async def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        raises: bool | None = None,
    ) -> None:
        """Let this much time pass, running everything that falls due at its time.

        An exception from a task is raised here once its attempt is recorded, and the clock stays at
        that moment. With `raises=False` it is not raised.
        """
        passed = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        await self.until(self._now + passed, raises=raises)

    async def until(self, when: datetime, *, raises: bool | None = None) -> None:
        """Let time pass until this moment, running everything that falls due at its time."""
        if when.tzinfo is None:
            raise Misuse(f"{when} has no time zone. Use a datetime with tzinfo.")
        if when < self._now:
            raise Misuse(f"The clock shows {self._now}, so time cannot go back to {when}.")
        await self._bell._drive(lambda driver: driver.until(self._now, when), raises)

    advance_sync = blocking(advance)
    until_sync = blocking(until)


class Enqueued:
    """Queries about enqueued jobs: all of them, or those of a `watching` block."""

    def __init__(self, bell: Bell) -> None:
        self._bell_of = bell
        self._after = 0  # ids: only what was enqueued after this,
        self._before: int | None = None  # and before this

    async def enqueued(
        self,
        task: Task[..., Any] | None = None,
        /,
        *,
        args: Mapping[str, Any] | None = None,
        connection: Any = None,
        **arguments: Any,
    ) -> list[Run]:
        """The jobs that were enqueued and have not ended, ordered by due time.

        Filtered by task and arguments; use `args` for arguments whose names clash with this call's own.
        With `connection`, as seen by its open transaction. Runs of schedules are not included.
        """
        seen = [run for run in await self._seen(task, connection) if not run.has_ended]
        given = {**(args or {}), **arguments}
        if task is None:
            if given:
                raise Misuse("Arguments belong to a task: pass the task, too.")
            return seen
        looked_for = wanted(task, given, self._bell_of.clock.now)
        return [run for run in seen if not looked_for.differences(run)]

    async def assert_enqueued(
        self,
        task: Task[..., Any],
        /,
        *,
        at: datetime | timedelta | None = None,
        within: Seconds | None = None,
        count: int | None = None,
        args: Mapping[str, Any] | None = None,
        connection: Any = None,
        **arguments: Any,
    ) -> list[Run]:
        """Raise AssertionError unless jobs of the task with these arguments are waiting or running.

        `at` (a timedelta counts from now) is matched give or take `within`, a second by default;
        `count` is the exact number expected. Returns the jobs.
        """
        __tracebackhide__ = True
        _check_names(task, at=at, within=within, count=count, args=args, connection=connection)
        given = {**(args or {}), **arguments}
        looked_for = wanted(task, given, self._bell_of.clock.now, at, within)
        return await self._check(looked_for, count, connection)

    async def refute_enqueued(
        self,
        task: Task[..., Any],
        /,
        *,
        at: datetime | timedelta | None = None,
        within: Seconds | None = None,
        args: Mapping[str, Any] | None = None,
        connection: Any = None,
        **arguments: Any,
    ) -> None:
        """Raise AssertionError if a job of the task with these arguments is waiting or running."""
        __tracebackhide__ = True
        _check_names(task, at=at, within=within, args=args, connection=connection)
        given = {**(args or {}), **arguments}
        looked_for = wanted(task, given, self._bell_of.clock.now, at, within)
        await self._check(looked_for, 0, connection)

    enqueued_sync = blocking(enqueued)
    assert_enqueued_sync = blocking(assert_enqueued)
    refute_enqueued_sync = blocking(refute_enqueued)

    async def _check(self, looked_for: Wanted, count: int | None, connection: Any) -> list[Run]:
        __tracebackhide__ = True
        seen = await self._seen(None, connection)
        names = (looked_for.task.name, *looked_for.task.aliases)
        found = [
            run
            for run in seen
            if run.task in names and not run.has_ended and not looked_for.differences(run)
        ]
        if (len(found) == count) if count is not None else found:
            return found
        now = self._bell_of.clock.now
        raise AssertionError(failed_assertion(looked_for, count, found, seen, now))

    async def _seen(self, task: Task[..., Any] | None, connection: Any) -> list[Run]:
        runs = await self._bell_of._runs(task, connection)
        return [
            run
            for run in runs
            if not run.is_scheduled
            and run.number > self._after
            and (self._before is None or run.number < self._before)
        ]


class Watching(Enqueued):
    """Only what is enqueued inside the block: `async with bell.watching() as watch:`."""

    async def __aenter__(self) -> Self:
        self._after = await self._bell_of._new_id()
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._before = await self._bell_of._new_id()

    def __enter__(self) -> Self:
        if _is_in_loop():
            raise Misuse("In a coroutine, use `async with bell.watching() as watch:`.")
        self._after = self._bell_of._new_id_sync()
        return self

    def __exit__(self, *exc: object) -> None:
        self._before = self._bell_of._new_id_sync()


class Bell(Enqueued):
    """An app on its own database, with a clock that only the test moves."""

    def __init__(
        self,
        app: App,
        database: Database,
        at: datetime,
        concurrency: int,
        raises: bool,
        schedules: Collection[Task[..., Any]] | None,
    ) -> None:
        super().__init__(self)
        self.app = app
        self.url = database.dsn  # of its database
        self.clock = TestClock(self, at)
        self._loop = asyncio.get_running_loop()
        self._database = database
        self._engine = Engine(database, DatabaseClock(database), _TIMES)
        self._concurrency = concurrency
        self._schedules = schedules
        self._raises_by_default = self._raises = raises
        self._driver = Driver(
            self._engine, self._look, self._pass_gate, self._live_worker, self._turned
        )
        self._faults = Faults()
        self._exceptions: dict[int, Exception] = {}  # from the attempts of a turn, by execution
        self._worker: SteppedWorker | None = None
        self._runner: AppRunner | None = None
        self._stack = AsyncExitStack()  # of the runner
        self._is_driving = False

    # Running.

    async def drain(self, *, raises: bool | None = None) -> None:
        """Run everything that is due now, and what that enqueues, until nothing is left.

        What falls due later stays; `clock.advance` runs it. Exceptions from tasks are raised here,
        unless `raises=False`.
        """
        await self._drive(lambda driver: driver.drain(self.clock.now), raises)

    async def run_one(self, task: Task[..., Any], *, raises: bool | None = None) -> Run:
        """Run one job of this task that is due now, and nothing else; return its state afterwards."""
        ran = await self._drive(lambda driver: self._run_one(driver, task), raises)
        return next(run for run in await self._runs(task, None) if run.number == ran)

    async def runs(self, task: Task[..., Any] | None = None) -> list[Run]:
        """What has run or ended: enqueued jobs and runs of schedules, ordered by due time."""
        found = await self._runs(task, None)
        return [run for run in found if run.has_ended or run.attempt > 0]

    async def result_of(self, job: Job[R]) -> R:
        """The result of a job. Raises JobFailed if it did not succeed, AssertionError if it has not ended."""
        __tracebackhide__ = True
        view = await self._here(lambda: self._view(job))
        if ExecutionStatus(view.status) not in FATES:
            raise AssertionError(
                f"{job!r} has not ended: it is {view.status}, scheduled for {view.scheduled_for}, and the clock "
                f"shows {self.clock.now}. Call drain() or clock.advance() first."
            )
        result: R = self.app._result(job.id, view)
        return result

    def watching(self) -> Watching:
        """Look only at what is enqueued inside the block: `async with bell.watching() as watch:`."""
        return Watching(self)

    drain_sync = blocking(drain)
    run_one_sync = blocking(run_one)
    runs_sync = blocking(runs)
    result_of_sync = blocking(result_of)

    # Faults.

    def crash_after_claim(self, task: Task[..., Any], times: int = 1) -> None:
        """Make the worker die after claiming a job of this task, before running it.

        Its lease expires 15 seconds later; then the job runs in another worker.
        """
        self._faults.after_claim[task.name] += times

    def crash_after_run(self, task: Task[..., Any], times: int = 1) -> None:
        """Make the worker die after running a job of this task, before the outcome is recorded.

        Its lease expires 15 seconds later; then the job runs again in another worker.
        """
        self._faults.before_settle[task.name] += times

    def lose_lease(self, job: Job[Any]) -> None:
        """Make the worker lose the lease of this job the next time it runs.

        A checkpoint then raises LeaseLost, the outcome is rejected, and the job runs again.
        """
        self._faults.lost_leases.add(job._number)

    @asynccontextmanager
    async def database_unavailable(self) -> AsyncIterator[None]:
        """Refuse and terminate all connections to the database inside this block."""
        name = self._name
        admin = await asyncpg.connect(in_database(self.url, "postgres"))
        try:
            await admin.execute(f"alter database {name} allow_connections false")
            await admin.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where datname = $1",
                name,
            )
            yield
        finally:
            await admin.execute(f"alter database {name} allow_connections true")
            await admin.close()
        for attempt in range(_RECONNECTS):
            try:
                await self._database.value("select 1")
                return
            except StoreUnavailable:  # a terminated connection is still in the pool
                if attempt == _RECONNECTS - 1:
                    raise

    @property
    def _name(self) -> str:
        return self.url.partition("?")[0].rpartition("/")[2]

    # Internals.

    async def _here(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call something in the bell's event loop."""
        if is_blocking():

            async def there() -> T:
                return await call()

            return run_in(self._loop, there)
        if asyncio.get_running_loop() is not self._loop:
            raise Misuse(
                "The bell was created in another event loop. Use fixtures and tests of the same loop scope, or "
                "call the `_sync` version."
            )
        return await call()

    async def _drive(self, step: Callable[[Driver], Awaitable[T]], raises: bool | None) -> T:
        return await self._here(lambda: self._exclusively(step, raises))

    async def _exclusively(self, step: Callable[[Driver], Awaitable[T]], raises: bool | None) -> T:
        if self._is_driving:
            raise Misuse(
                "A task must not move the clock or run other tasks, and only one such call may run at a time."
            )
        self._is_driving = True
        self._raises = self._raises_by_default if raises is None else raises
        try:
            return await step(self._driver)
        finally:
            self._is_driving = False

    async def _look(self, at: datetime, session: int | None) -> Agenda:
        row = await self._database.row(_Q["agenda"], at, session)
        self.clock._now = at
        work, next_work = frozenset(row["work"]), frozenset(row["next_work"])
        return Agenda(at, work, row["woken_at"], row["next"], next_work)

    async def _pass_gate(self, at: datetime) -> Pass:
        grace = self._engine.times.grace
        row = await self._database.row(_Q["pass_gate"], at, BATCH, grace)
        self.clock._now = at
        return Pass(row["examined"], row["more"], row["busy"])

    async def _run_one(self, driver: Driver, task: Task[..., Any]) -> int:
        __tracebackhide__ = True
        await driver.admit(self.clock.now)
        assert self._runner is not None
        narrow = msgspec.structs.replace(
            self._settings(), tasks=(task.name, *task.aliases), slots=1, manifest=None
        )
        worker = SteppedWorker(self._engine, self._runner, narrow, self._faults)
        turn = Turn()
        try:
            await worker.started()
            turn = await worker.turn()
        finally:
            await (worker.die() if turn.is_crashed else worker.stop())
        if not turn.claimed:
            others = await self._runs(task, None)
            waiting = [f"{run.job_id} at {run.at}" for run in others if not run.has_ended]
            raise AssertionError(
                f"No job of {task.name} is due at {self.clock.now}. Waiting: "
                f"{', '.join(waiting) or 'none'}."
            )
        self._raise_failures(turn)
        return turn.claimed[0].execution_id

    async def _runs(self, task: Task[..., Any] | None, connection: Any) -> list[Run]:
        names = None if task is None else [task.name, *task.aliases]
        if connection is not None:
            user = user_connection(connection, is_blocking())
            return read_runs(await user.fetch(for_this_build(_Q["runs"]), [names]))
        statement = _Q["runs"].format("$1")
        rows = await self._here(lambda: self._database.fetch(statement, names))
        return read_runs(tuple(row) for row in rows)

    async def _view(self, job: Job[Any]) -> Any:
        assert self.app._opened is not None
        return await self.app._opened.view(job._number)

    async def _new_id(self) -> int:
        """An id between those of the jobs before and after this call."""
        return await self._here(lambda: self._engine.new_id(self.clock.now))

    _new_id_sync = blocking(_new_id)

    # The worker.

    def _settings(self) -> WorkerSettings:
        return WorkerSettings(
            name="test",
            queues=None,
            tasks=tuple(self.app.tasks),
            manifest=self._manifest(),
            slots=self._concurrency,
            lease_seconds=self._engine.times.lease_seconds,
            gather_seconds=0.0,
            drain_seconds=0.0,
        )

    def _manifest(self) -> Manifest:
        """What the app declares, with the schedules that fire in this test."""
        whole = manifest_of(self.app, None)
        if self._schedules is None:
            return whole
        for task in self._schedules:
            if not isinstance(task, Task) or not task.options.schedule:
                raise Misuse(f"schedules= takes tasks that have a schedule, not {task!r}.")
        names = {task.name for task in self._schedules}
        firing = {
            key: document
            for key, document in whole.schedules.items()
            if document["action"]["name"] in names
        }
        return msgspec.structs.replace(whole, schedules=firing)

    async def _live_worker(self) -> SteppedWorker:
        """The worker, which is started when first needed and after it has died."""
        if self._worker is not None:
            return self._worker
        if self._runner is None:
            import_tasks(self.app)
            self._runner = await self._stack.enter_async_context(entered(self.app))
            await declare_tasks(self._engine, declared_options(self.app))
        self._worker = SteppedWorker(self._engine, self._runner, self._settings(), self._faults)
        await self._worker.started()
        problems = await self._database.fetch(_Q["problems"], self.app.name)
        if problems:
            text = "; ".join(f"{row['key']}: {row['problem']}" for row in problems)
            raise Misuse(f"The app's schedules cannot be applied: {text}")
        return self._worker

    async def _turned(self, turn: Turn) -> None:
        """After a turn: clean up a dead worker, and raise what tasks raised."""
        if turn.is_crashed and self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.die()
        self._raise_failures(turn)

    def _raise_failures(self, turn: Turn) -> None:
        exceptions, self._exceptions = self._exceptions, {}
        raised = [
            self._exception_of(failure, exceptions.get(failure.claimed.execution_id))
            for failure in turn.failures
            if not _is_decided(failure, exceptions.get(failure.claimed.execution_id))
        ]
        if not raised or not self._raises:
            return
        for other in raised[1:]:
            raised[0].add_note(f"Also failed at that moment: {other!r}")
        raise raised[0]

    def _exception_of(self, failure: Failure, error: Exception | None) -> Exception:
        claimed, settlement = failure.claimed, failure.settlement
        what = f"{task_of(claimed)} ({job_text(claimed.job_id)}), attempt {claimed.attempt}"
        follows = "It is DEAD."
        if settlement.delay_seconds is not None:
            follows = f"It is retried in {settlement.delay_seconds:g} s."
        if error is None:
            why = settlement.error or "Its arguments do not fit the task, as the log says."
            return AttemptFailed(f"{what}: {why} {follows}")
        error.add_note(f"Raised by {what}. {follows} With raises=False the test would continue.")
        return error

    async def _keep_exception(self, run: RunInfo, call: Callable[[], Awaitable[Any]]) -> Any:
        """The app's outermost middleware: its worker stores only the text of an exception."""
        try:
            return await call()
        except Exception as error:
            self._exceptions[parse_execution_id(run.execution_id)] = error
            raise

    async def _close(self) -> None:
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.stop()
        await self._stack.aclose()

    async def _run_inline(self) -> None:
        """After a job was created: run it, unless the task that created it is still running."""
        if not self._is_driving:
            await self._exclusively(lambda driver: driver.drain(self.clock.now), None)


def _is_in_loop() -> bool:
    """Whether an event loop is running in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _is_decided(failure: Failure, error: Exception | None) -> bool:
    """Whether the handler itself decided that the attempt failed."""
    if isinstance(error, ExceptionGroup):  # from a TaskGroup
        return error.subgroup(_DECISIONS) is not None
    if error is None:
        return failure.settlement.reason == Reason.SNOOZED.value
    return isinstance(error, _DECISIONS)


def _check_names(task: Task[..., Any], **options: Any) -> None:
    """Make sure that an option of an assertion is not mistaken for an argument of the task, or vice versa."""
    for name in (name for name, value in options.items() if value is not None):
        if name in task._signature._parameters and name not in (options["args"] or {}):
            raise Misuse(
                f"{task.name} has a parameter {name}, and so does this assertion. Pass the argument as "
                f"args={{{name!r}: …}}, and check the rest with `await bell.enqueued({task.__name__})`."
            )


@asynccontextmanager
async def start(
    app: App,
    *,
    url: str | None = None,
    at: datetime | None = None,
    mode: Mode = "manual",
    concurrency: int = 1,
    raises: bool = True,
    schedules: Collection[Task[..., Any]] | None = None,
) -> AsyncIterator[Bell]:
    """An app on a migrated database used only by this test, with a clock stopped at `at`.

    Without `url`, a PostgreSQL is started for it, which takes seconds; the fixture `bell` shares one
    between all tests. `at` defaults to the real time. In the mode "inline", `enqueue` runs what is due
    before it returns. `concurrency` is how many tasks run at once. With `raises=False`, exceptions from
    tasks are not raised unless a call asks for it. `schedules` are the tasks whose schedules fire, in
    place of all: a schedule for every minute makes virtual days slow.
    """
    async with AsyncExitStack() as stack:
        if url is None:
            server = await asyncio.to_thread(stack.enter_context, running_server())
            url = await asyncio.to_thread(server.new_database)
        yield await stack.enter_async_context(
            _opened(app, url, at or this_second(), mode, concurrency, raises, schedules)
        )


@asynccontextmanager
async def _opened(
    app: App,
    url: str,
    at: datetime,
    mode: Mode,
    concurrency: int,
    raises: bool,
    schedules: Collection[Task[..., Any]] | None,
) -> AsyncIterator[Bell]:
    if at.tzinfo is None or at < _EARLIEST:
        raise Misuse(f"at={at}: virtual time needs a time zone, and begins in 2024.")
    if mode not in ("manual", "inline"):
        raise Misuse(f'mode={mode!r}: it must be "manual" or "inline".')
    if app._opened is not None:
        raise Misuse(
            f'App "{app.name}" is already open, on another database. Request the fixture `bell` before '
            f"whatever opens the app."
        )
    # Otherwise structlog shows a failed task with the variables of every frame, if `rich` is installed.
    levels = value_of("HOURBELL_LOG_LEVEL", hourbell_variables(os.environ))
    configure_logs_of_library(levels or "info", for_people=True)
    configured, app.url = app.url, url
    try:
        async with app:
            assert app._opened is not None
            database = app._opened.database
            if not await database.value(_Q["is_unused"]):
                raise Misuse(
                    "This database has jobs and a real clock, which the testing kit would replace "
                    "permanently. Use a database that is only for tests."
                )
            await VirtualClock.install(database, at)
            bell = Bell(app, database, at, concurrency, raises, schedules)
            if mode == "inline":
                app._on_created = bell._run_inline
            middleware = app.middleware
            app.middleware = (bell._keep_exception, *middleware)
            try:
                yield bell
            finally:
                app._on_created, app.middleware = None, middleware
                await bell._close()
    finally:
        app.url = configured
