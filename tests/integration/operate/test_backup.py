"""docs/operate/backup.md: a restore under load repeats and loses what the page says, and nothing else."""

import asyncio
import contextlib
import json
import urllib.error
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest
from aiohttp import web

from conftest import in_database
from hourbell.guard import Guard, GuardError
from integration.life.support import eventually
from integration.operate.machine import Machine, blocks, started
from integration.test_roles import PATIENCE_SECONDS

NUMBER = 10
HORIZON_SECONDS = 2


class Received(msgspec.Struct, frozen=True):
    execution: str
    fence: int
    scheduled_for: str
    is_repeated: bool  # its work was done before; the guard has answered for it


class Receiver:
    """A webhook target with the guard of the docs; its records are not restored with Hourbell's database."""

    def __init__(self, pool: asyncpg.Pool, guard: Guard) -> None:
        self.url = ""
        self.received: dict[str, list[Received]] = defaultdict(
            list
        )  # by the path, those that were answered with 200
        self.arrived: dict[str, set[str]] = defaultdict(set)
        self.opened = asyncio.Event()  # what is to end after the backup waits for it
        self._pool = pool
        self._guard = guard

    async def hook(self, request: web.Request) -> web.Response:
        name = request.path.strip("/")
        delivery = self._guard.verify(request.headers, await request.read())
        self.arrived[name].add(delivery.execution_id)
        if name == "waiting" and not self.opened.is_set():
            return web.Response(status=503)
        if name == "running":
            await self.opened.wait()
        try:
            async with (
                self._pool.acquire() as connection,
                connection.transaction(),
                self._guard.once(connection, delivery) as turn,
            ):
                done = turn.done
                if not done:
                    effect = "insert into effects values ($1)"
                    await connection.execute(effect, delivery.execution_id)
                    turn.answer = {"done": True}
        except GuardError as error:
            return web.Response(status=error.status)
        self.received[name].append(
            Received(delivery.execution_id, delivery.fence, str(delivery.scheduled_for), done)
        )
        return web.json_response(turn.answer)


@contextlib.asynccontextmanager
async def receiving(server: str, secret: str) -> AsyncIterator[Receiver]:
    admin = await asyncpg.connect(server)
    await admin.execute("create database shop")
    pool = await asyncpg.create_pool(in_database(server, "shop"), min_size=0, max_size=5)
    await pool.execute(Guard.ddl())
    await pool.execute("create table effects (execution text primary key)")
    receiver = Receiver(pool, Guard([secret]))
    app = web.Application()
    app.router.add_post("/{name}", receiver.hook)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        receiver.opened.set()
        await runner.cleanup()
        await pool.close()
        await admin.execute("drop database shop with (force)")
        await admin.close()


class Shop:
    """Creates jobs that call the receiver."""

    def __init__(self, machine: Machine, receiver: Receiver) -> None:
        self._machine = machine
        self._receiver = receiver
        self.has_enough = asyncio.Event()
        self.jobs: dict[str, list[str]] = defaultdict(list)  # by name, those that were acknowledged

    async def creates(self, name: str, number: int = 1, **schedule: object) -> None:
        await asyncio.gather(*(self._create(name, schedule) for _ in range(number)))

    async def _create(self, name: str, schedule: dict[str, object]) -> None:
        is_recurring = "every_seconds" in schedule
        made = await self._machine.ask(
            "/api/v1/jobs",
            {
                "name": name,
                "type": "RECURRING" if is_recurring else "ONE_TIME",
                "schedule": schedule or {"delay_seconds": 0},
                "action": {"type": "WEBHOOK", "url": f"{self._receiver.url}/{name}"},
                # So that a slow machine does not turn them into misfires.
                **(
                    {"misfire_policy": "all", "catch_up_window_seconds": 3600}
                    if is_recurring
                    else {}
                ),
                "retry_policy": {"max_retries": 50, "backoff": "FIXED", "initial_delay_seconds": 1},
            },
        )
        self.jobs[name].append(made["job_id"])

    async def keeps_creating(self) -> None:
        """The load during the backup: a job after the other, each due at once."""
        while not self.has_enough.is_set():
            await self.creates("load")

    async def exists(self, job: str) -> bool:
        try:
            await self._machine.ask(f"/api/v1/jobs/{job}")
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != 404:
                raise
            return False
        return True

    async def lasting(self, name: str) -> set[str]:
        return {job for job in self.jobs[name] if await self.exists(job)}

    async def executions(self, job: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self._machine.ask(f"/api/v1/jobs/{job}/executions"))[
            "items"
        ]
        return found

    async def succeeded(self, name: str) -> bool:
        jobs = [await self.executions(job) for job in self.jobs[name]]
        return all(each and each[0]["status"] == "SUCCEEDED" for each in jobs)


async def back_up_by_dump(machine: Machine) -> None:
    (dump,) = blocks("backup.md", "A dump")[:1]
    await machine.types(dump)


async def restore_the_dump(machine: Machine, moment: datetime) -> None:
    _, restore, doctor = blocks("backup.md", "A dump")
    await machine.types(restore)
    await machine.ready()
    assert "a scheduler leads" in await machine.types(doctor)


async def back_up_by_copy(machine: Machine) -> None:
    *_, base = blocks("backup.md", "Base backup and WAL")[:2]
    await machine.types(base, as_postgres=True)


async def restore_to(machine: Machine, moment: datetime) -> None:
    _, _, stop, restore, start = blocks("backup.md", "Base backup and WAL")
    machine.env["RESTORE_TO"] = moment.isoformat(" ")
    await machine.types(stop)
    await machine.types(restore, as_postgres=True)
    await machine.types(start)
    await machine.ready()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("by", ["dump", "copy"])
async def test_a_restore_under_load_repeats_and_loses_what_the_page_says(
    bare: Machine, postgres: str, by: str
) -> None:
    is_copy = by == "copy"
    bare.env["HOURBELL_HORIZON_SECONDS"] = str(HORIZON_SECONDS)  # with the default it takes minutes
    machine = await started(bare)
    if is_copy:
        archive, *_ = blocks("backup.md", "Base backup and WAL")
        await machine.types(archive, as_postgres=True)
        await machine.ready()
    secret = (await machine.types("hourbell secrets set webhook-signing --generate")).split()[-1]
    async with receiving(postgres, secret) as receiver:
        shop = Shop(machine, receiver)
        await shop.creates("done", NUMBER)
        await eventually(lambda: shop.succeeded("done"), PATIENCE_SECONDS)
        await shop.creates("waiting", NUMBER)
        await shop.creates("running")
        await shop.creates("later", delay_seconds=3600)
        await shop.creates("every", every_seconds=1)

        async def begun() -> bool:
            arrived = receiver.arrived
            return len(arrived["waiting"]) == NUMBER and bool(arrived["running"])

        await eventually(begun, PATIENCE_SECONDS)
        load = asyncio.create_task(shop.keeps_creating())
        await eventually(lambda: _some(receiver.received["load"]), PATIENCE_SECONDS)
        await (back_up_by_copy if is_copy else back_up_by_dump)(machine)
        earlier = list(shop.jobs["load"])  # with a copy: all of them are older than the moment
        now = await machine.types(
            "psql --tuples-only --no-align --command='select clock_timestamp()'"
        )
        moment = datetime.fromisoformat(now.strip())
        shop.has_enough.set()
        await load

        receiver.opened.set()
        await shop.creates("after", NUMBER)
        for name in ("waiting", "running", "after"):
            await eventually(lambda name=name: shop.succeeded(name), PATIENCE_SECONDS)
        await eventually(lambda: _some(late_occurrences(receiver, moment)), PATIENCE_SECONDS)
        stopped = {name: list(found) for name, found in receiver.received.items()}

        await (restore_to if is_copy else restore_the_dump)(machine, moment)
        for name in ("waiting", "running"):
            await eventually(lambda name=name: shop.succeeded(name), PATIENCE_SECONDS)

        # What had ended is not repeated, what is in the future is there.
        assert await shop.lasting("done") == {*shop.jobs["done"]}
        assert await shop.lasting("later") == {*shop.jobs["later"]}
        assert len(receiver.received["done"]) == NUMBER
        # What waited or ran is repeated: the same execution, a higher fence, and no second effect.
        for name in ("waiting", "running"):
            first = {one.execution: one for one in stopped[name]}
            second = {one.execution: one for one in receiver.received[name][len(stopped[name]) :]}
            assert first.keys() == second.keys()
            assert len(first) == len(shop.jobs[name])
            assert all(second[each].fence > first[each].fence for each in first)
            assert all(one.is_repeated for one in second.values())
        # What was created later is lost, and was done once.
        assert await shop.lasting("after") == set()
        assert len(receiver.received["after"]) == NUMBER
        # Under load: all that was acknowledged before the moment is there. A dump has that of its beginning.
        kept = await shop.lasting("load")
        if is_copy:
            assert kept >= {*earlier}
        assert 0 < len(kept) < len(shop.jobs["load"])
        # Occurrences that were planned keep their ids, others run again under new ones: the guard cannot know them.
        before = {one.scheduled_for: one.execution for one in stopped["every"]}

        def again() -> list[Received]:
            found = receiver.received["every"][len(stopped["every"]) :]
            return [one for one in found if one.scheduled_for in before]

        async def has_new() -> bool:
            return any(one.execution != before[one.scheduled_for] for one in again())

        await eventually(has_new, PATIENCE_SECONDS)
        for one in again():
            assert one.is_repeated == (one.execution == before[one.scheduled_for])

        look, lost = blocks("backup.md", "What a restore repeats, and what it loses")
        if not is_copy:
            gone = {*shop.jobs["load"], *shop.jobs["after"]} - kept
            assert {*json.loads(await machine.types(lost))} == gone
        await machine.types(look)
        await machine.ready()


def late_occurrences(receiver: Receiver, moment: datetime) -> list[Received]:
    """Those that were not planned at this moment."""
    unplanned = moment + timedelta(seconds=2 * HORIZON_SECONDS)
    found = receiver.received["every"]
    return [one for one in found if datetime.fromisoformat(one.scheduled_for) > unplanned]


async def _some(found: list[Received]) -> bool:
    return bool(found)
