"""The database goes away for longer than any lease, and comes back. Nothing is doubled, nothing lost.

During an outage nobody can renew anything, so when it ends every lease looks expired. The leader
must not take that for the death of all workers, and the workers must not take it for the loss of
their work.
"""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psutil
import pytest

import services
from hourbell.engine.core import Engine, Times
from hourbell.failpoints import configure
from hourbell.model.executions import Claimed
from hourbell.store.embedded import EmbeddedServer
from hourbell.store.migrations import migrate
from integration.life.support import (
    check_sound,
    create,
    eventually,
    every,
    fates,
    fill,
    history,
    one_time,
    open_engine,
    places,
    scheduling,
    working,
)

LEASE_SECONDS = 1.5
OUTAGE_SECONDS = 3.5  # more than two leases


class Outage:
    """A server of this test alone, which can be taken away and given back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = EmbeddedServer(folder / "data", owner="outage")
        self.dsn = self._server.start()

    def kill(self) -> None:
        """The server dies as by a power cut."""
        assert self._server.pid is not None
        postmaster = psutil.Process(self._server.pid)
        everybody = [postmaster, *postmaster.children(recursive=True)]
        for process in everybody:
            process.kill()
        psutil.wait_procs(everybody)
        self._server.stop()

    def restart(self) -> None:
        self._server = EmbeddedServer(self._folder / "data", owner="outage")
        assert self._server.start() == self.dsn

    def freeze(self) -> None:
        """The server stops to answer, and nobody is told."""
        assert self._server.pid is not None
        postmaster = psutil.Process(self._server.pid)
        self._frozen = [postmaster, *postmaster.children(recursive=True)]
        for process in self._frozen:
            process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        for process in reversed(self._frozen):
            process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self._server.stop()


@pytest.fixture
async def outage() -> AsyncIterator[Outage]:
    with services.private_folder() as folder:
        server = Outage(folder)
        try:
            await migrate(server.dsn)
            yield server
        finally:
            server.end()


class Runs:
    """Handlers that note every start, and take as long as their payload says."""

    def __init__(self) -> None:
        self.started: Counter[int] = Counter()
        self.interrupted: list[int] = []

    async def work(self, payload: float, claimed: Claimed) -> None:
        self.started[claimed.execution_id] += 1
        try:
            await asyncio.sleep(payload)
        except asyncio.CancelledError:
            self.interrupted.append(claimed.execution_id)
            raise


@asynccontextmanager
async def fleet(dsn: str, times: Times, runs: Runs, workers: int) -> AsyncIterator[Engine]:
    """A scheduler and some workers, each with connections of its own."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(open_engine(dsn, times))
        for _ in range(workers):
            own = await stack.enter_async_context(open_engine(dsn, times, connections=4))
            await stack.enter_async_context(working(own, {"work": runs.work}, slots=30))
        await stack.enter_async_context(scheduling(engine))
        yield engine


async def running(engine: Engine, runs: Runs, number: int) -> bool:
    return len(runs.started) >= number


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (
            Times(horizon_seconds=2, lease_seconds=LEASE_SECONDS, leader_lease_seconds=1),
            OUTAGE_SECONDS,
        ),
        (Times(), 30.0),
    ],
    ids=["short leases", "30 s with the leases that ship"],
)
async def test_an_outage_of_two_leases_with_live_workers_doubles_nothing(
    outage: Outage, times: Times, seconds: float
) -> None:
    runs = Runs()
    async with fleet(outage.dsn, times, runs, workers=2) as engine:
        # Some end during the outage and some after it; some fall due during it.
        await fill(engine, 10, one_time("work", payload=1.5))
        await fill(engine, 10, one_time("work", payload=seconds + 2))
        due = [one_time("work", 0.1, schedule={"delay_seconds": delay}) for delay in (1, 2, 3)]
        for document in due * 5:
            await create(engine, document)
        steady = await create(engine, every(1, "work"))
        await engine.database.value(
            "update hourbell.jobs set spec = jsonb_set(spec::jsonb, '{action,payload}', '0.1')::json"
        )
        await eventually(lambda: running(engine, runs, 20))

        await asyncio.to_thread(outage.kill)
        before = sum(runs.started.values())
        await asyncio.sleep(seconds)
        assert sum(runs.started.values()) == before  # nothing is started by what is not known
        configure("heartbeat.before_commit=pause:0.6")  # the reaper is the first to come back
        await asyncio.to_thread(outage.restart)
        back_at = time.monotonic()

        async def caught_up() -> bool:
            return (await fates(engine))["SUCCEEDED"] >= 35 + 6

        await eventually(caught_up, 60)
        assert time.monotonic() - back_at < 30  # 6 on an idle machine
        await check_sound(engine)
        assert (await fates(engine)).keys() == {"SUCCEEDED"}
        planned = [fate.occurrence for fate in await history(engine, steady.job_id)]
        assert [(each - planned[0]).total_seconds() for each in planned] == [*range(len(planned))]
    assert set(runs.started.values()) == {1}
    assert runs.interrupted == []


@pytest.mark.parametrize("leader_lease", [1.0, 10.0], ids=["short", "long"])
async def test_a_database_that_hangs_for_more_than_two_leases_doubles_nothing(
    outage: Outage, leader_lease: float
) -> None:
    # With a long lease the leader is still the leader when it thaws, and sees only expired sessions.
    times = Times(horizon_seconds=2, lease_seconds=LEASE_SECONDS, leader_lease_seconds=leader_lease)
    runs = Runs()
    async with fleet(outage.dsn, times, runs, workers=2) as engine:
        await fill(engine, 20, one_time("work", payload=OUTAGE_SECONDS + 1))
        await eventually(lambda: running(engine, runs, 20))

        async def trusts_silence() -> bool:
            return bool(
                await engine.database.value(
                    "select hourbell.clock() > max(started_at) + $1 from hourbell.sessions",
                    times.lease * 1.5,
                )
            )

        await eventually(trusts_silence)
        outage.freeze()
        configure("heartbeat.before_commit=pause:0.6")  # the reaper is the first to come back
        try:
            await asyncio.sleep(OUTAGE_SECONDS)
        finally:
            outage.thaw()

        async def all_recorded() -> bool:
            return not await places(engine)

        await eventually(all_recorded)
        assert await fates(engine) == {"SUCCEEDED": 20}
    assert set(runs.started.values()) == {1}
    assert runs.interrupted == []


async def test_a_step_of_the_databases_clock_doubles_nothing(outage: Outage) -> None:
    # Far enough for every session to look expired, not far enough for the leader's term to end.
    times = Times(horizon_seconds=2, lease_seconds=LEASE_SECONDS, leader_lease_seconds=20)
    runs = Runs()
    async with fleet(outage.dsn, times, runs, workers=2) as engine:
        await fill(engine, 20, one_time("work", payload=3 * LEASE_SECONDS))
        await eventually(lambda: running(engine, runs, 20))
        await asyncio.sleep(1.5 * LEASE_SECONDS)  # the leader trusts silence by now
        await engine.database.value(
            "create or replace function hourbell.clock() returns timestamptz language sql volatile"
            " return clock_timestamp() + interval '10 seconds'"
        )

        async def all_recorded() -> bool:
            return not await places(engine)

        await eventually(all_recorded)
        assert await fates(engine) == {"SUCCEEDED": 20}
    assert set(runs.started.values()) == {1}
    assert runs.interrupted == []


async def test_workers_and_schedulers_leave_quietly_while_the_database_is_away(
    outage: Outage,
) -> None:
    times = Times(horizon_seconds=2, lease_seconds=1, leader_lease_seconds=1)
    runs = Runs()
    async with fleet(outage.dsn, times, runs, workers=1) as engine:
        await fill(engine, 3, one_time("work", payload=0.3))
        await eventually(lambda: running(engine, runs, 3))
        await asyncio.to_thread(outage.kill)
    outage.restart()  # we are still here: nothing was raised
