"""`hourbell bench`: a bounded self-test that measures an installation on its own database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta

import click
import msgspec

from hourbell.cli.exit_codes import REFUSED, USAGE
from hourbell.cli.output import Column, print_json, print_table, say
from hourbell.cli.remote import errors_as_exits, fail, output_option
from hourbell.engine.views.health import check_database
from hourbell.errors import CannotConnect, ConfigurationError, NoDatabase, WaitTimeout
from hourbell.model.ids import parse_job_id
from hourbell.sdk.app import App
from hourbell.sdk.app_connections import AppConnections
from hourbell.sdk.jobs import Job
from hourbell.sdk.running import WorkerOptions
from hourbell.sdk.tasks import Task
from hourbell.store.function_set import connect
from hourbell.store.queries import queries

NAME = "hourbell-bench"  # of the app, the tenant and the queue
LEAD_SECONDS = 2.0  # lead time before jobs that fall due together, so that all are stored by then
PACED = 100  # jobs that fall due one after another,
PACE_SECONDS = 0.02  # this far apart
MAX_SINGLE = 500  # jobs that are enqueued one at a time
DELETED_TOGETHER = 10_000
CANCELLED_TOGETHER = 500
MAX_CANCELLING = 500  # rounds
POLL_SECONDS = 0.05
_Q = queries("bench")

_EXPLANATION = """\
Measured from this process on this machine, with one worker and tasks that do nothing, alongside whatever else
the database and the machine were doing. It shows what this installation does now, not the most that Hourbell can do:
more workers on more machines do more, and tasks that do real work take longer."""


class Measure(msgspec.Struct, frozen=True):
    """One measured figure."""

    what: str
    value: float
    unit: str


@click.command("bench")
@click.option(
    "--jobs",
    type=click.IntRange(100, 100_000),
    default=5_000,
    show_default=True,
    help="Number of jobs to enqueue together and drain.",
)
@click.option(
    "--timeout",
    type=click.IntRange(10, 3600),
    default=120,
    show_default=True,
    help="Give up after this many seconds.",
)
@output_option
def bench_command(jobs: int, timeout: int, output: str) -> None:
    """Measure enqueueing, draining and lateness on the configured database.

    The bench uses its own tenant and queue, with a worker in this process, and deletes its jobs
    at the end. The installation must be running. The load is real: do not run the bench alongside
    work that must not be late.
    """
    with errors_as_exits():
        try:
            measured = asyncio.run(_within(timeout, jobs))
        except NoDatabase:
            fail(
                "No database to measure. Start `hourbell up` on this machine, or set "
                "HOURBELL_DATABASE_URL.",
                USAGE,
            )
        except CannotConnect as error:
            fail(error.message, USAGE)
        except WaitTimeout as error:
            fail(error.message, REFUSED)
    if output == "json":
        print_json(measured)
    else:
        rows = ((each.what, _text(each.value), each.unit) for each in measured)
        print_table((Column("MEASURED"), Column("VALUE", right=True), Column("UNIT")), rows)
    say(_EXPLANATION)


def _text(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


async def _within(seconds: int, jobs: int) -> list[Measure]:
    try:
        async with asyncio.timeout(seconds):
            return await _measure(jobs)
    except TimeoutError:
        raise WaitTimeout(
            f"The bench did not finish within {seconds} s, and its jobs were cancelled. Use fewer "
            f"--jobs or a longer --timeout; `hourbell doctor` shows whether something is stuck."
        ) from None


async def _measure(jobs: int) -> list[Measure]:
    app = App(NAME, tenant=NAME, queue=NAME)

    @app.task(name="nothing")
    async def nothing(number: int) -> None: ...

    async with app:
        own = app._opened
        assert own is not None
        await _require_leader(own)
        async with _alone(own), app.worker(WorkerOptions(name=NAME, scheduler=False)):
            try:
                return await _measured(own, app, nothing, jobs)
            finally:
                await _clean_up(own)


async def _measured(
    own: AppConnections, app: App, nothing: Task[[int], None], jobs: int
) -> list[Measure]:
    singles, took = [], []
    for number in range(min(jobs, MAX_SINGLE)):
        began = time.monotonic()
        singles.append(await nothing.enqueue(number))
        took.append(time.monotonic() - began)
    starts = await _when_ended(own, singles)
    at = await own.engine.clock.now() + timedelta(seconds=LEAD_SECONDS)
    began = time.monotonic()
    together = await app.enqueue_many(nothing.configure(at=at).bind(n) for n in range(jobs))
    enqueued_in = time.monotonic() - began
    at = max(at, await own.engine.clock.now())
    drained = await _when_ended(own, together)
    first = await own.engine.clock.now() + timedelta(seconds=LEAD_SECONDS)
    moments = (first + timedelta(seconds=PACE_SECONDS * number) for number in range(PACED))
    paced = await app.enqueue_many(nothing.configure(at=moment).bind(0) for moment in moments)
    timed = await _when_ended(own, paced)
    drained_in = max((drained.last_end - at).total_seconds(), 0.001)
    return [
        Measure("enqueue, one at a time", len(took) / sum(took), "jobs/s"),
        Measure("enqueue, single: median", 1000 * _quantile(took, 0.5), "ms"),
        Measure("enqueue, single: 99%", 1000 * _quantile(took, 0.99), "ms"),
        Measure("enqueue to start: median", _quantile(starts.late_ms, 0.5), "ms"),
        Measure("enqueue to start: 99%", _quantile(starts.late_ms, 0.99), "ms"),
        Measure(f"enqueue, {jobs:,} in bulk", jobs / enqueued_in, "jobs/s"),
        Measure(f"drain {jobs:,} due together", jobs / drained_in, "jobs/s"),
        Measure("lateness of scheduled jobs: median", _quantile(timed.late_ms, 0.5), "ms"),
        Measure("lateness of scheduled jobs: 99%", _quantile(timed.late_ms, 0.99), "ms"),
    ]


class _Ended(msgspec.Struct, frozen=True):
    late_ms: list[float]
    last_end: datetime


async def _when_ended(own: AppConnections, jobs: Sequence[Job[None]]) -> _Ended:
    """How late these jobs started, once all have ended; the caller sets a timeout."""
    numbers = [parse_job_id(job.id) for job in jobs]
    while True:
        row = await own.database.row(_Q["ended"], numbers)
        if row["ended"] == len(numbers):
            return _Ended(row["late_ms"], row["last_end"])
        await asyncio.sleep(POLL_SECONDS)


async def _require_leader(own: AppConnections) -> None:
    if not (await check_database(own.engine)).get("leader"):
        raise ConfigurationError(
            "No scheduler is leading on this database, so nothing would run. Start the installation to "
            "measure, with `hourbell up` or `hourbell scheduler`, and try again."
        )


@asynccontextmanager
async def _alone(own: AppConnections) -> AsyncIterator[None]:
    """Holds off other benches on the same database."""
    connection = await connect(own.database.dsn)
    try:
        if not await connection.fetchval(_Q["try_lock"]):
            raise ConfigurationError(
                "Another bench is running on this database. Wait until it has finished."
            )
        yield
    finally:
        await connection.close()


async def _clean_up(own: AppConnections) -> None:
    """Delete all jobs of the bench, including those of one that was killed."""
    now = await own.engine.clock.now()
    tenant = await own.engine.tenant(NAME, now)
    for _ in range(MAX_CANCELLING):
        if not await own.database.value(_Q["cancel_live"], tenant, now, CANCELLED_TOGETHER):
            break
        await asyncio.sleep(POLL_SECONDS)  # the worker is stopping those that run
    later = now + timedelta(hours=1)
    while await own.database.value(_Q["delete_executions"], tenant, later, DELETED_TOGETHER):
        pass
    while await own.database.value(_Q["delete_audit"], tenant, DELETED_TOGETHER):
        pass


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
