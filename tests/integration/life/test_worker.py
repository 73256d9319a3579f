"""The worker: what it holds, what it starts, what it stops, and what it leaves behind."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from handlers import Handlers
from hourbell.dispatch import HeartbeatResult, Session
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_queue
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.executions import get_execution
from hourbell.failpoints import barrier, configure
from hourbell.model.executions import Claimed, Execution, ExecutionStatus, Reason
from hourbell.model.jobs import TaskAction
from hourbell.model.limits import QueueSettings, RateLimit
from hourbell.worker import claimer, runtime
from hourbell.worker.runtime import Worker, WorkerSettings
from integration.life.support import (
    PATIENCE_SECONDS,
    TIMES,
    admit_all,
    check_sound,
    create,
    eventually,
    fates,
    fill,
    one_time,
    open_engine,
    places,
    scheduling,
    take_session,
    working,
)


@pytest.fixture
async def engine(database: str) -> AsyncIterator[Engine]:
    """With a lease that runs out soon, so that heartbeats come often."""
    async with open_engine(database, replace(TIMES, lease_seconds=1.5)) as engine:
        yield engine


class Work:
    """A handler that waits to be let go, and tells what happens to its runs."""

    def __init__(self) -> None:
        self.started: list[Claimed] = []
        self.cancelled: list[Claimed] = []
        self.finished: list[Claimed] = []
        self.let_go = asyncio.Event()

    async def __call__(self, payload: object, claimed: Claimed) -> None:
        self.started.append(claimed)
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(claimed)
            raise
        self.finished.append(claimed)

    async def has_started(self, number: int = 1) -> None:
        await eventually(lambda: _async(len(self.started) >= number))

    async def was_cancelled(self, number: int = 1) -> None:
        await eventually(lambda: _async(len(self.cancelled) >= number))

    async def run(self, payload: object, claimed: Claimed) -> None:
        """As a coroutine function, which handlers have to be."""
        await self(payload, claimed)


async def _async(value: bool) -> bool:
    return value


@asynccontextmanager
async def running_one(
    engine: Engine, work: Work, **fields: Any
) -> AsyncIterator[tuple[Worker, int]]:
    """A worker that runs one job; its handler has started."""
    job = await create(engine, one_time("work", **fields))
    await admit_all(engine)
    async with working(engine, {"work": work.run}) as worker:
        await work.has_started()
        yield worker, job.job_id
        work.let_go.set()


async def ended(engine: Engine, execution_id: int) -> Execution:
    """An execution, when it has its fate."""

    async def recorded() -> bool:
        return bool(
            await engine.database.value(
                "select exists (select from hourbell.ledger where id = $1)", execution_id
            )
        )

    await eventually(recorded)
    return await get_execution(engine, execution_id)


async def test_a_worker_renews_its_session_three_times_a_lease(database: str) -> None:
    beats: list[float] = []

    class Counted(PostgresDispatch):
        async def heartbeat(self, session: Session, *rest: Any) -> HeartbeatResult:
            beats.append(time.monotonic())
            return await super().heartbeat(session, *rest)

    async with open_engine(database, replace(TIMES, lease_seconds=1.5)) as engine:
        settings = WorkerSettings(name="counted", lease_seconds=1.5)
        worker = Worker(Counted(engine), {TaskAction: Handlers({})}, settings)
        running = asyncio.create_task(worker.run())
        await eventually(lambda: _async(len(beats) >= 6))
        worker.stop()
        await running
    gaps = sorted(later - earlier for earlier, later in pairwise(beats))
    assert gaps[0] > 0.49
    assert gaps[len(gaps) // 2] < 0.9


@pytest.mark.parametrize(("gate_seconds", "passes"), [(60.0, range(1, 2)), (0.1, range(3, 100))])
async def test_a_notified_worker_with_full_claims_runs_the_gate_only_when_its_time_has_come(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, gate_seconds: float, passes: range
) -> None:
    monkeypatch.setattr(claimer, "GATE_SECONDS", gate_seconds)
    calls: list[str] = []

    class Counted(PostgresDispatch):
        async def admit(self, session: Session | None = None) -> bool:
            calls.append("gate")
            return await super().admit(session)

        async def claim(
            self, session: Session, number: int, limit: int, *rest: Any
        ) -> list[Claimed]:
            worker.wake()  # something has fallen due
            claimed = await super().claim(session, number, limit, *rest)
            calls.append("full" if len(claimed) == limit else "not full")
            return claimed

    async def pause(*_: object) -> None:
        await asyncio.sleep(0.01)

    for _ in range(100):
        await create(engine, one_time("work"))
    await admit_all(engine)
    settings = WorkerSettings(name="full", slots=2)
    worker = Worker(Counted(engine), {TaskAction: Handlers({"work": pause})}, settings)
    running = asyncio.create_task(worker.run())
    await eventually(lambda: _async(calls.count("full") >= 30))
    worker.stop()
    await running
    while_full = calls[: (*calls, "not full").index("not full")]
    assert while_full.count("gate") in passes


class ClaimSizes(PostgresDispatch):
    """Remembers how many executions each claim got."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.sizes: list[int] = []

    async def claim(self, *args: Any) -> list[Claimed]:
        claimed = await super().claim(*args)
        self.sizes.append(len(claimed))
        return claimed


@asynccontextmanager
async def claiming(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, work: Work, **settings: Any
) -> AsyncIterator[tuple[Worker, list[int]]]:
    """A worker that claims only for a reason, and the sizes of its claims."""
    monkeypatch.setattr(claimer, "POLL_SECONDS", 60.0)
    monkeypatch.setattr(claimer, "FREED_SLOT_SECONDS", 60.0)
    monkeypatch.setattr(claimer, "GATE_SECONDS", 60.0)
    dispatch = ClaimSizes(engine)
    actions = {TaskAction: Handlers({"work": work.run})}
    worker = Worker(dispatch, actions, WorkerSettings(name="claiming", **settings))
    running = asyncio.create_task(worker.run())
    try:
        yield worker, dispatch.sizes
    finally:
        work.let_go.set()
        worker.stop()
        await running


async def test_a_worker_that_has_taken_all_that_is_ready_does_not_claim_for_freed_slots(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    for _ in range(20):
        await create(engine, one_time("work"))
    await admit_all(engine)
    async with claiming(engine, monkeypatch, work) as (worker, sizes):
        await work.has_started(20)
        work.let_go.set()
        await eventually(lambda: _async(worker.held == 0))
        await create(engine, one_time("work"))
        worker.wake()
        await eventually(lambda: _async(len(work.finished) == 21))
    assert sizes == [20, 1]


async def test_a_worker_claims_for_a_freed_slot_if_the_others_are_reserved(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    work.let_go.set()
    for _ in range(6):
        await create(engine, one_time("work"))
    await admit_all(engine)
    async with claiming(engine, monkeypatch, work, slots=4, critical_slots=2) as (_, sizes):
        await eventually(lambda: _async(len(work.finished) == 6))
    assert max(sizes) == 2


async def test_a_freed_slot_leads_to_a_claim_when_its_time_has_passed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    await create(engine, one_time("work"))
    await admit_all(engine)
    async with claiming(engine, monkeypatch, work) as (_, sizes):
        await work.has_started()
        monkeypatch.setattr(claimer, "FREED_SLOT_SECONDS", 0.0)
        await create(engine, one_time("work"))
        await admit_all(engine)  # and no notification
        work.let_go.set()
        await eventually(lambda: _async(len(work.finished) == 2))
    assert sizes[:2] == [1, 1]


async def test_a_worker_ignores_the_announcement_of_its_own_pass(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with claiming(engine, monkeypatch, Work()) as (worker, sizes):
        await eventually(lambda: _async(sizes == [0]))
        notified: list[bool] = []
        monkeypatch.setattr(claimer.Claimer, "notify", lambda _, is_due: notified.append(is_due))
        assert worker.session is not None
        for payload in (f"ready {worker.session.id}", f"ready {worker.session.id}0", "ready", ""):
            worker.wake(payload)
        assert notified == [False, False, True]


async def test_a_worker_whose_lease_may_have_run_out_starts_nothing(engine: Engine) -> None:
    work = Work()
    await create(engine, one_time("work"))
    await admit_all(engine)
    with barrier("heartbeat.before_commit") as beat, barrier("claim.after_commit") as claim:
        async with working(engine, {"work": work.run}):
            await claim.reached()
            await beat.reached()
            reached = time.monotonic()
            lease = engine.times.lease_seconds
            await eventually(lambda: _async(time.monotonic() - reached > lease))
            claim.release()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await work.has_started()
            beat.release()
            await work.has_started()
            work.let_go.set()


async def test_a_handler_over_its_timeout_is_stopped_and_its_attempt_failed(
    engine: Engine,
) -> None:
    work = Work()
    never = {"max_retries": 0}
    async with running_one(engine, work, timeout_seconds=1, retry_policy=never) as (_, number):
        execution = await ended(engine, number)
    assert work.cancelled
    assert not work.finished
    assert execution.status is ExecutionStatus.DEAD
    assert execution.reason is Reason.RETRIES_EXHAUSTED
    assert execution.error == "The attempt exceeded its timeout."
    assert execution.started_at is not None
    assert execution.finished_at is not None
    assert (execution.finished_at - execution.started_at).total_seconds() > 0.9


async def test_a_running_execution_that_is_cancelled_stops(engine: Engine) -> None:
    work = Work()
    async with running_one(engine, work) as (_, number):
        await cancel_execution(engine, number, Write())
        execution = await ended(engine, number)
    assert len(work.cancelled) == 1
    assert execution.status is ExecutionStatus.CANCELLED
    assert await engine.database.value("select count(*) from hourbell.cancellations") == 0


async def test_a_handler_that_succeeds_although_it_was_cancelled_has_succeeded(
    engine: Engine,
) -> None:
    asked = asyncio.Event()

    async def stubborn(payload: object, claimed: Claimed) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            asked.set()
        return "done"

    job = await create(engine, one_time("stubborn"))
    await admit_all(engine)
    async with working(engine, {"stubborn": stubborn}):
        await eventually(lambda: places_are(engine, leased=1))
        await cancel_execution(engine, job.job_id, Write())
        execution = await ended(engine, job.job_id)
        assert asked.is_set()
        assert execution.status is ExecutionStatus.SUCCEEDED
        assert execution.result == "done"
        # The runner that was cancelled goes on with other work.
        again = await create(engine, one_time())
        await admit_all(engine)
        assert (await ended(engine, again.job_id)).status is ExecutionStatus.SUCCEEDED


async def places_are(engine: Engine, **expected: int) -> bool:
    return await places(engine) == expected


async def test_a_lost_session_cancels_all_its_work_and_another_takes_it_up(
    engine: Engine,
) -> None:
    work = Work()
    async with running_one(engine, work) as (worker, number):
        lost = worker.session
        assert lost is not None
        await take_session(engine, lost)
        await work.was_cancelled()
        assert worker.session != lost
        await admit_all(engine)
        await work.has_started(2)  # by the same worker, in its new session
        work.let_go.set()
        execution = await ended(engine, number)
    assert [claimed.attempt for claimed in work.started] == [1, 2]
    assert work.started[0].fence < work.started[1].fence
    assert work.started[0].execution_id == work.started[1].execution_id
    assert execution.status is ExecutionStatus.SUCCEEDED
    assert [attempt.kind for attempt in execution.attempts] == ["lost", None]


async def test_an_attempt_that_was_lost_counts_among_the_retries(engine: Engine) -> None:
    started: list[int] = []

    async def fail_at_last(payload: object, claimed: Claimed) -> None:
        started.append(claimed.attempt)
        if claimed.attempt == 1:
            await asyncio.Event().wait()
        raise RuntimeError("it did not work")

    policy = {"backoff": "FIXED", "initial_delay_seconds": 1, "max_retries": 1}
    job = await create(engine, one_time("work", retry_policy=policy))
    await admit_all(engine)
    async with working(engine, {"work": fail_at_last}) as worker:
        await eventually(lambda: _async(started == [1]))
        assert worker.session is not None
        await take_session(engine, worker.session)
        run = await ended(engine, job.job_id)
    assert (run.status, run.reason, run.attempt) == (
        ExecutionStatus.DEAD,
        Reason.RETRIES_EXHAUSTED,
        2,
    )


async def test_a_lost_lease_cancels_that_handler_and_no_other(engine: Engine) -> None:
    work = Work()
    await fill(engine, 2, one_time("work"))
    await admit_all(engine)
    async with working(engine, {"work": work.run}):
        await work.has_started(2)
        taken = await engine.database.value("select min(id) from hourbell.live")
        await engine.database.value(
            "update hourbell.leased set ids = array_remove(ids, $1) where $1 = any (ids)", taken
        )
        await work.was_cancelled()
        work.let_go.set()
        await eventually(lambda: places_are(engine))
    assert len(work.cancelled) == 1
    assert len(work.finished) == 1
    assert await fates(engine) == {"SUCCEEDED": 1}
    assert await engine.database.value("select id from hourbell.live") == taken


async def test_an_execution_lost_and_claimed_again_by_the_same_worker_runs_again(
    engine: Engine,
) -> None:
    work = Work()
    async with running_one(engine, work) as (worker, number):
        # As when its deadline was moved: it leaves the worker and comes back, the session stays.
        await engine.database.value(
            "select hourbell.release_executions($1, $2, hourbell.clock())",
            worker.session.id,
            [number],
        )
        await work.was_cancelled()
        await admit_all(engine)
        await work.has_started(2)
        work.let_go.set()
        assert (await ended(engine, number)).status is ExecutionStatus.SUCCEEDED


async def test_an_outcome_that_comes_too_late_does_not_end_the_hold_on_its_next_run(
    engine: Engine,
) -> None:
    """The settle of a lost lease is answered when the same worker runs the execution again."""
    work = Work()
    async with running_one(engine, work) as (worker, number):
        with barrier("settle.before_commit") as settling:
            work.let_go.set()
            await settling.reached()
            work.let_go.clear()
            assert worker.session is not None
            await take_session(engine, worker.session)
            await admit_all(engine)
            await work.has_started(2)
            settling.release()
        await beats(engine, worker, 3)
        assert await places(engine) == {"leased": 1}  # nobody gave it back
        work.let_go.set()
        await ended(engine, number)
    assert [claimed.attempt for claimed in work.started] == [1, 2]


async def test_many_outcomes_do_not_wait_for_a_settle_that_is_under_way(engine: Engine) -> None:
    """A batch has 2,000 at most, so at least 1,000 are left for the second settle."""
    await fill(engine, 3_000)

    async def recorded() -> bool:
        return await engine.database.value("select count(*) >= 500 from hourbell.ledger")

    with barrier("settle.before_commit") as settling:
        async with working(engine, slots=3_000):
            await admit_all(engine)
            await settling.reached()
            await eventually(recorded)
            settling.release()
    assert await places(engine) == {}
    assert await fates(engine) == {"SUCCEEDED": 3_000}


async def beats(engine: Engine, worker: Worker, number: int) -> None:
    """Wait for so many heartbeats of a worker."""
    seen = set()

    async def came() -> bool:
        assert worker.session is not None
        seen.add(
            await engine.database.value(
                "select expires_at from hourbell.sessions where id = $1", worker.session.id
            )
        )
        return len(seen) > number

    await eventually(came)


async def test_a_claim_made_in_a_new_session_is_numbered_anew(engine: Engine) -> None:
    """A claim fails, the session is lost, and the next heartbeat must not give away what follows."""
    work = Work()
    async with working(engine, {"work": work.run}, slots=1) as worker:
        first = worker.session
        assert first is not None
        for _ in range(3):  # claims, so that numbers are high
            await fill(engine, 1)
            await admit_all(engine)
            await eventually(lambda: places_are(engine))
        configure("claim.before_commit=drop")  # none is answered
        await take_session(engine, first)
        await eventually(lambda: _async(worker.session not in (None, first)))
        await fill(engine, 2, one_time("work"))
        await admit_all(engine)
        configure("")
        await work.has_started(1)
        # The next claim is answered late; meanwhile a heartbeat says which ones have been.
        with barrier("claim.after_commit") as answer:
            work.let_go.set()
            await answer.reached()
            await beats(engine, worker, 2)
            assert await places(engine) == {"leased": 1}
            answer.release()
        await eventually(lambda: places_are(engine))
    assert len(work.started) == 2


async def test_a_handler_that_raises_a_cancellation_of_its_own_has_failed(engine: Engine) -> None:
    async def broken(payload: object, claimed: Claimed) -> None:
        inner = asyncio.create_task(asyncio.sleep(60))
        inner.cancel()
        await inner

    document = one_time("broken", retry_policy={"max_retries": 0})
    async with working(engine, {"broken": broken}, slots=1):
        for _ in range(3):  # with one slot: none of them may be lost
            job = await create(engine, document)
            await admit_all(engine)
            execution = await ended(engine, job.job_id)
            assert execution.status is ExecutionStatus.DEAD
            assert execution.error is not None
            assert "CancelledError" in execution.error


class Unusual(BaseException):
    pass


@pytest.mark.parametrize(
    "exception",
    [KeyboardInterrupt, SystemExit, GeneratorExit, Unusual, RecursionError, MemoryError],
)
async def test_whatever_a_handler_raises_is_its_own_failure(
    engine: Engine, exception: type[BaseException]
) -> None:
    async def broken(payload: object, claimed: Claimed) -> None:
        raise exception("mine")

    job = await create(engine, one_time("broken", retry_policy={"max_retries": 0}))
    await admit_all(engine)
    async with working(engine, {"broken": broken}):
        execution = await ended(engine, job.job_id)
        assert execution.status is ExecutionStatus.DEAD
        shown = f"{__name__}.Unusual" if exception is Unusual else exception.__name__
        assert execution.error == f"{shown}: mine"


async def test_an_action_that_a_worker_does_not_run_is_a_failure_that_says_so(
    engine: Engine,
) -> None:
    job = await create(engine, one_time(retry_policy={"max_retries": 0}))
    await admit_all(engine)
    worker = Worker(PostgresDispatch(engine), {}, WorkerSettings(name="webhooks only"))
    running = asyncio.create_task(worker.run())
    execution = await ended(engine, job.job_id)
    worker.stop()
    await running
    assert execution.attempts[0].kind == "unknown_task"
    assert execution.error == "This worker runs no actions of the type TASK."


@pytest.mark.parametrize("point", ["claim", "heartbeat", "settle", "admit"])
async def test_a_call_that_fails_for_an_unknown_reason_does_not_end_the_worker(
    engine: Engine, point: str
) -> None:
    configure(f"{point}.before_commit=error*2")
    await fill(engine, 20)
    async with scheduling(engine), working(engine) as worker:
        await eventually(lambda: places_are(engine))
        await beats(engine, worker, 1)
    assert await fates(engine) == {"SUCCEEDED": 20}


async def test_a_drain_finishes_what_runs_and_gives_back_what_is_not_started(
    engine: Engine,
) -> None:
    begun: list[int] = []
    stop: Callable[[], None] = lambda: None  # noqa: E731

    async def work(payload: object, claimed: Claimed) -> None:
        begun.append(claimed.execution_id)
        stop()
        await asyncio.sleep(0.05)

    await fill(engine, 50, one_time("work"))
    await admit_all(engine)
    async with working(engine, {"work": work}) as worker:
        stop = worker.stop
        await eventually(lambda: _async(bool(begun)))
    assert len(begun) < 25
    assert await fates(engine) == {"SUCCEEDED": len(begun)}
    assert await places(engine) == {"due": 50 - len(begun)}
    rows = await engine.database.fetch("select attempt, crashes, history from hourbell.live")
    assert {tuple(row.values()) for row in rows} == {(0, 0, None)}
    assert await engine.database.value("select count(*) from hourbell.sessions where id > 0") == 0
    await check_sound(engine)


async def test_a_drain_gives_back_what_waits_for_its_turn_under_a_rate(engine: Engine) -> None:
    work = Work()
    rate = QueueSettings(rate_limit=RateLimit(4.0, 1))
    await set_queue(engine, "default", rate, Write())
    await fill(engine, 2, one_time("work", delivery="at_most_once"))
    await admit_all(engine)
    async with working(engine, {"work": work.run}, drain_seconds=0.05):
        await work.has_started()
    # One was started and stopped, the other has not been touched.
    assert await fates(engine) == {"DEAD(retries_exhausted)": 1}
    assert await engine.database.value("select attempt from hourbell.live") == 0
    assert await places(engine) == {"due": 1}


async def test_a_drain_never_gives_back_what_was_started_and_may_run_once_only(
    engine: Engine,
) -> None:
    began, ended_at_last = asyncio.Event(), asyncio.Event()

    async def stubborn(payload: object, claimed: Claimed) -> None:
        began.set()
        while not ended_at_last.is_set():
            try:
                await ended_at_last.wait()
            except asyncio.CancelledError:
                continue

    job = await create(engine, one_time("stubborn", delivery="at_most_once"))
    await admit_all(engine)
    async with working(engine, {"stubborn": stubborn}, drain_seconds=0.05):
        await began.wait()
    ended_at_last.set()
    assert await places(engine) == {}
    execution = await get_execution(engine, job.job_id)
    assert (execution.status, execution.reason) == (ExecutionStatus.DEAD, Reason.RETRIES_EXHAUSTED)
    assert execution.error == "The worker was stopped before the execution ended."


async def test_a_handler_that_cleans_up_at_the_end_of_a_drain_loses_no_attempt(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "_STOP_SECONDS", PATIENCE_SECONDS)
    began, cleaned = asyncio.Event(), []

    async def uploading(payload: object, claimed: Claimed) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1.5)  # longer than a moment, shorter than what it is granted
            cleaned.append(claimed.execution_id)

    await create(engine, one_time("uploading"))
    await admit_all(engine)
    async with working(engine, {"uploading": uploading}, drain_seconds=0.05):
        await began.wait()
    assert len(cleaned) == 1
    assert await places(engine) == {"due": 1}
    row = await engine.database.row("select attempt, crashes from hourbell.live")
    assert tuple(row.values()) == (0, 0)
    assert await engine.database.value("select count(*) from hourbell.sessions where id > 0") == 0


async def test_a_plain_function_runs_in_a_thread_and_does_not_hold_up_others(
    engine: Engine,
) -> None:
    barrier = threading.Event()

    def blocking(payload: object, claimed: Claimed) -> str:
        barrier.wait(PATIENCE_SECONDS)
        return threading.current_thread().name

    blocked = await create(engine, one_time("blocking"))
    await admit_all(engine)
    async with working(engine, {"blocking": blocking}):
        await eventually(lambda: places_are(engine, leased=1))
        other = await create(engine, one_time())
        await admit_all(engine)
        await ended(engine, other.job_id)
        barrier.set()
        execution = await ended(engine, blocked.job_id)
    assert execution.status is ExecutionStatus.SUCCEEDED
    assert execution.result != threading.current_thread().name


@asynccontextmanager
async def refusing(engine: Engine, fates: str) -> AsyncIterator[None]:
    """Within it, the database does not store executions with one of these fates, given by their codes."""

    async def alter(change: str) -> None:
        async with engine.database.connection() as connection:
            await connection.execute(f"alter table hourbell.outcomes {change}")

    await alter(f"add constraint refusing check (fate not in ({fates}))")
    try:
        yield
    finally:
        await alter("drop constraint refusing")


async def test_an_outcome_that_cannot_be_stored_at_all_is_recorded_as_dead(engine: Engine) -> None:
    work = Work()
    async with refusing(engine, "0"):  # SUCCEEDED
        async with running_one(engine, work, delivery="at_most_once") as (worker, number):
            work.let_go.set()
            execution = await ended(engine, number)
            await beats(engine, worker, 2)  # what a heartbeat does not name would go back
        assert len(work.started) == 1
    assert (execution.status, execution.reason) == (ExecutionStatus.DEAD, Reason.NON_RETRYABLE)
    assert execution.error is not None
    assert execution.error.startswith(
        "The execution ended, but its outcome could not be stored: CheckViol"
    )
    assert await places(engine) == {}
    await check_sound(engine)


async def test_an_outcome_of_which_nothing_can_be_stored_is_forgotten_and_others_are_not(
    engine: Engine,
) -> None:
    work = Work()
    with capture_logs() as said:
        async with running_one(engine, work) as (_, number):
            async with refusing(engine, "0, 1"):  # SUCCEEDED and DEAD
                work.let_go.set()
                await eventually(lambda: _async("outcome rejected" in str(said)))
            # The database stores again; it went back with a heartbeat.
            async with scheduling(engine):
                execution = await ended(engine, number)
    assert execution.status is ExecutionStatus.SUCCEEDED
    assert len(work.started) > 1
    assert next(line["log_level"] for line in said if "rejected" in line["event"]) == "error"


async def test_an_idle_worker_passes_the_gate_itself_when_nobody_leads(engine: Engine) -> None:
    late: list[int] = []
    async with working(engine):
        while len(late) < 4 and min(late, default=1000) >= 1000:  # a stalled machine delays some
            job = await create(engine, one_time(schedule={"delay_seconds": 1}))
            execution = await ended(engine, job.job_id)
            assert execution.status is ExecutionStatus.SUCCEEDED
            assert execution.lateness_ms is not None
            late.append(execution.lateness_ms)
    assert min(late) < 1000
