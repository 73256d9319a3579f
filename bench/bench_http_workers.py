"""Workers over HTTP: claims in batches, and claims together with their outcomes, through one API process.

API, scheduler and workers, plain asyncio clients that do nothing but call, are a process each. All is admitted before the
clock starts, so that what is measured is the way over HTTP. The lease is long, so that nobody sends heartbeats. Three rounds; the median is the number, all are shown.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from statistics import median

import aiohttp
import psutil
import uvloop
from support import engine, no_ops, per_second, report, server, spawn

from hourbell.api.app import create_app
from hourbell.api.server import ApiServer
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import CHANNEL, Times
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.engine.operations.idempotency import Write
from hourbell.security.sealing import KeyRing
from hourbell.testing.filling import create_one_time_jobs

COUNT = 40_000
SINGLES = 4_000
BATCH = 1_000
ROUNDS = 3
LEASE_SECONDS = 600
EXECUTIONS = "/internal/v1/executions"


class Ready:
    async def ready(self) -> dict[str, bool]:
        return {}


async def serve(dsn: str) -> None:
    """The API process: says its port, and ends with its standard input."""
    async with engine(dsn) as made:
        made.times = Times(lease_seconds=LEASE_SECONDS)
        remote = RemoteWorkers(PostgresDispatch(made), LEASE_SECONDS)
        listener = await made.database.listen(CHANNEL, remote.wake)
        api = ApiServer(
            create_app(made, Ready(), KeyRing.parse(""), remote, local=True), "127.0.0.1", 0
        )
        await api.start()
        print(api.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await remote.stop()
        await api.stop()
        await listener.close()


async def schedule(dsn: str) -> None:
    """The scheduler process; ends with its standard input."""
    async with engine(dsn) as made:
        scheduler = Scheduler(made)
        scheduler.start()
        await asyncio.to_thread(sys.stdin.read)
        await scheduler.stop()


async def work(port: int, workers: int, capacity: int, how: str, count: int) -> float:
    """So many workers claim until all is claimed; `how`: "claim", "batches" or "singles" of outcomes beside it."""
    left = count
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=0)
    ) as http:

        async def call(path: str, body: object) -> dict[str, object]:
            async with http.post(path, json=body) as response:
                assert response.status == 200, await response.text()
                return json.loads(await response.read())

        async def one(number: int) -> None:
            nonlocal left
            token, claims = None, 0
            while left > 0:
                claims += 1
                wish = {
                    "worker_id": f"bench-{number}",
                    "capacity": capacity,
                    "claim_number": claims,
                }
                answer = await call(f"{EXECUTIONS}/claim", wish | {"session_token": token})
                token = answer["session_token"] or token
                left -= len(answer["executions"])
                ended = [
                    {
                        "execution_id": each["execution_id"],
                        "fence_token": each["fence_token"],
                        "status": "SUCCEEDED",
                        "duration_ms": 0,
                    }
                    for each in answer["executions"]
                ]
                if how == "batches" and ended:
                    body = {"session_token": token, "outcomes": ended}
                    assert not (await call(f"{EXECUTIONS}/complete", body))["refused"]
                elif how == "singles":
                    await asyncio.gather(
                        *(
                            call(
                                f"{EXECUTIONS}/{each.pop('execution_id')}/complete",
                                each | {"session_token": token},
                            )
                            for each in ended
                        )
                    )

        began = time.monotonic()
        await asyncio.gather(*(one(number) for number in range(workers)))
        return time.monotonic() - began


async def prepare(dsn: str, count: int) -> None:
    async with engine(dsn) as made:
        for table in ("leased", "sessions", "ready", "due", "executions"):
            await made.database.value(f"delete from hourbell.{table}")  # noqa: S608
        for first in range(0, count, BATCH):
            await create_one_time_jobs(made, no_ops(BATCH, first), Write())
        # Nothing is let on for a queue that nobody serves.
        made.times = Times(lease_seconds=LEASE_SECONDS)
        await PostgresDispatch(made).open("bench", ["default"], 1)
        due = "select exists (select from hourbell.due) or exists (select from hourbell.due_slabs)"
        while await made.database.value(due):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def measure(dsn: str, port: str, workers: int, capacity: int, how: str, count: int) -> int:
    uvloop.run(prepare(dsn, count))
    child = spawn("work", port, str(workers), str(capacity), how, str(count))
    return per_second(count, float(child.communicate()[0]))


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


CASES = {
    "claim_500": (4, 500, "claim", COUNT),
    "claim_100": (8, 100, "claim", COUNT),
    "claim_10": (32, 10, "claim", COUNT),
    "claim_and_complete_500": (4, 500, "batches", COUNT),
    "claim_and_complete_100": (8, 100, "batches", COUNT),
    "claim_and_complete_singly_100": (8, 100, "singles", SINGLES),
    "claim_and_complete_singly_1": (64, 1, "singles", SINGLES),
}


def main() -> None:
    if len(sys.argv) == 3:
        uvloop.run({"serve": serve, "schedule": schedule}[sys.argv[1]](sys.argv[2]))
        return
    if len(sys.argv) > 1:
        port, workers, capacity = (int(each) for each in sys.argv[2:5])
        print(uvloop.run(work(port, workers, capacity, sys.argv[5], int(sys.argv[6]))))
        return
    rounds: dict[str, list[int]] = {name: [] for name in CASES}
    spent: dict[str, list[int]] = {name: [] for name in CASES}
    with server() as dsn:
        api, scheduler = spawn("serve", dsn), spawn("schedule", dsn)
        assert api.stdout is not None
        port = api.stdout.readline().strip()
        for _ in range(ROUNDS):
            for name, case in CASES.items():
                before = cpu_seconds(api.pid)
                rounds[name].append(measure(dsn, port, *case))
                spent[name].append(round((cpu_seconds(api.pid) - before) / case[-1] * 1_000_000))
        api.communicate()
        scheduler.communicate()
    report(
        "http_workers",
        **{f"{name}_per_second": round(median(each)) for name, each in rounds.items()},
        api_processor_us_per_execution={name: round(median(each)) for name, each in spent.items()},
        rounds=rounds,
    )


if __name__ == "__main__":
    main()
