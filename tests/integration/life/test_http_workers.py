"""Workers over HTTP, as strangers would write them, while they die, are cut off and lose answers."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from hourbell.api.app import create_app
from hourbell.api.server import ApiServer
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import CHANNEL, Engine
from hourbell.engine.life.retain import make_partitions
from hourbell.engine.views.executions import get_execution
from hourbell.model.executions import ExecutionStatus
from hourbell.security.sealing import KeyRing
from integration.life.support import (
    check_sound,
    create,
    eventually,
    fates,
    fill,
    one_time,
    scheduling,
)

EXECUTIONS = "/internal/v1/executions"
PAGE = Path(__file__).parents[3] / "docs" / "workers-http.md"


class Alive:
    async def ready(self) -> dict[str, bool]:
        return {}


@asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[int]:
    """The API as a process of ours has it; its port."""
    await make_partitions(engine, await engine.clock.now())
    remote = RemoteWorkers(PostgresDispatch(engine), engine.times.lease_seconds)
    listener = await engine.database.listen(CHANNEL, remote.wake)
    server = ApiServer(
        create_app(engine, Alive(), KeyRing.parse(""), remote, local=True), "127.0.0.1", 0
    )
    await server.start()
    try:
        yield server.port
    finally:
        await remote.stop()
        await server.stop()
        await listener.close()


class Record:
    """What all workers saw, in the order in which they saw it."""

    def __init__(self) -> None:
        self.fences: dict[str, list[int]] = defaultdict(list)  # of claims that were answered
        self.accepted: dict[str, list[int]] = defaultdict(list)  # of outcomes
        self.refused = 0
        self.died = 0
        self.cut = 0

    def claimed(self, execution: Any) -> None:
        known = self.fences[execution["execution_id"]]
        if not known or known[-1] != execution["fence_token"]:  # the same again: a repeated claim
            known.append(execution["fence_token"])


class Stranger:
    """A worker that does what strangers do, and dies now and then."""

    def __init__(self, port: int, record: Record, random: Random, numbered: bool) -> None:
        self._port = port
        self._record = record
        self._random = random
        self._numbered = numbered

    async def run(self) -> None:
        """Until it dies, without a word to anybody."""
        url = f"http://127.0.0.1:{self._port}"
        async with aiohttp.ClientSession(url) as self._http:
            self._token: str | None = None
            self._claims = 0
            self._held: dict[str, Any] = {}
            beating = asyncio.create_task(self._beat())
            try:
                while await self._work():
                    pass
            finally:
                beating.cancel()
            self._record.died += 1

    async def _work(self) -> bool:
        if not (executions := await self._claim()):
            return True
        for execution in executions:
            self._record.claimed(execution)
            self._held[execution["execution_id"]] = execution
        for execution in executions:
            first = execution["attempt"] == 1
            chance = self._random.random()
            if first and chance < 0.03:
                return False  # with all that it holds
            if first and chance < 0.05:
                # Stopped for longer than the lease, it wakes and goes on as if nothing had been.
                held, self._held = self._held, {}
                await asyncio.sleep(5)
                for each in held.values():
                    await self._complete(each)
                return False
            if chance < 0.15:
                await self._tell(execution, "release", {})
            else:
                await self._complete(execution)
                if chance > 0.8:
                    await self._complete(execution)  # as if the answer had been lost
            self._held.pop(execution["execution_id"], None)
        return True

    async def _claim(self) -> list[Any]:
        wish: dict[str, Any] = {"worker_id": "stranger", "capacity": 7, "wait_seconds": 1}
        wish["session_token"] = self._token
        if self._numbered:
            self._claims += 1
            wish["claim_number"] = self._claims
        if self._token is not None and self._random.random() < 0.1:
            await self._cut(wish)
            if not self._numbered:
                return []
        status, answer = await self._call("/claim", wish)
        if status == 409:
            self._token, self._claims, self._held = None, 0, {}
            return []
        assert status == 200, answer
        if self._token is None:
            self._claims = 1
        self._token = answer["session_token"]
        given: list[Any] = answer["executions"]
        return given

    async def _cut(self, wish: dict[str, Any]) -> None:
        """Send a claim and hang up at once: what it takes, if it does, is told to nobody."""
        body = json.dumps(wish).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(
                b"POST %s/claim HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (EXECUTIONS.encode(), len(body), body)
            )
            await writer.drain()
            await asyncio.sleep(self._random.random() * 0.01)
        finally:
            writer.transport.abort()
        self._record.cut += 1

    async def _complete(self, execution: Any) -> None:
        outcome = {"status": "SUCCEEDED", "duration_ms": 1}
        status = await self._tell(execution, "complete", outcome)
        if status == 200:
            self._record.accepted[execution["execution_id"]].append(execution["fence_token"])
        else:
            self._record.refused += 1

    async def _tell(self, execution: Any, verb: str, fields: dict[str, Any]) -> int:
        body = {"session_token": self._token, "fence_token": execution["fence_token"], **fields}
        status, answer = await self._call(f"/{execution['execution_id']}/{verb}", body)
        assert status in (200, 409), answer
        return status

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(0.7)
            if self._token is None:
                continue
            body: dict[str, Any] = {"session_token": self._token}
            if self._numbered:
                body["claim_number"] = self._claims - 1  # the last may be on its way
            await self._call("/heartbeat", body | {"execution_ids": list(self._held)})

    async def _call(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        async with self._http.post(EXECUTIONS + path, json=body) as response:
            return response.status, await response.json(content_type=None)


@pytest.mark.parametrize("numbered", [False, True], ids=["plain", "numbered"])
async def test_everything_runs_while_workers_die_and_lose_answers(
    engine: Engine, numbered: bool
) -> None:
    count, seed = 400, Random(20261115 + numbered)
    await fill(engine, count)
    record = Record()
    async with serving(engine) as port, scheduling(engine):

        async def reborn() -> None:
            while True:
                await Stranger(port, record, seed, numbered).run()

        async def all_recorded() -> bool:
            await check_sound(engine)
            return sum((await fates(engine)).values()) == count

        working = [asyncio.create_task(reborn()) for _ in range(5)]
        try:
            await eventually(all_recorded, 60)
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
    assert await fates(engine) == {"SUCCEEDED": count}
    assert record.died > 0
    assert record.cut > 0
    assert len(record.fences) == count
    for execution, fences in record.fences.items():
        assert fences == sorted(set(fences)), "a fence that does not rise"
        # Whose outcome was taken was the last to have it, and nobody else's was.
        assert set(record.accepted[execution]) <= {fences[-1]}


async def test_the_worker_of_the_page_runs_jobs(engine: Engine, tmp_path: Path) -> None:
    [text] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    program = tmp_path / "worker.py"
    program.write_text(text)
    async with serving(engine) as port, scheduling(engine):
        worker = subprocess.Popen(
            [sys.executable, str(program)],
            env=os.environ | {"HOURBELL_URL": f"http://127.0.0.1:{port}"},
        )
        try:
            good = await create(engine, one_time("greet", "world"))
            other = await create(engine, one_time("unknown"))

            async def ended() -> bool:
                return sum((await fates(engine)).values()) == 1

            await eventually(ended)
            assert worker.poll() is None
        finally:
            worker.kill()
            worker.wait()
    done, left = [await get_execution(engine, job.job_id) for job in (good, other)]
    assert (done.status, done.result) == (ExecutionStatus.SUCCEEDED, "Hello, world!")
    assert (left.status, left.attempt) == (ExecutionStatus.QUEUED, 0)
