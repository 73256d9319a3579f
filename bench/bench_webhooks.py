"""Webhooks: the whole way of an execution, claim to send to settle, against the bare HTTP client, in turns.

The target is a process of its own that does next to nothing. The bare client is the same library with the same number of
requests at once and does nothing but send; both run in a fresh process with uvloop, which collects garbage as `hourbell worker` does. Jobs are enqueued and admitted beforehand.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from statistics import median

import aiohttp
import uvloop
from support import PAYLOAD, TENANTS, engine, per_second, report, server, spawn, until_empty

from hourbell.actions.egress import GuardedResolver
from hourbell.actions.webhook import WebhookRunner
from hourbell.compose import tune_garbage_collector
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.life.admit import admit
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.secrets import StoredSecrets
from hourbell.model.jobs import JobType, NewJob, WebhookAction
from hourbell.model.schedules import Once
from hourbell.security.egress import LOOPBACK, Egress
from hourbell.security.sealing import KeyRing
from hourbell.testing.filling import create_one_time_jobs
from hourbell.worker.runtime import Worker, WorkerSettings

COUNT = 30_000
AT_ONCE = 200  # the slots of a worker by default
ROUNDS = 3
HEADERS = {  # as the worker sends them
    "User-Agent": "Hourbell",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "Idempotency-Key": "exe_0000000000000",
    "Hourbell-Execution-Id": "exe_0000000000000",
    "Hourbell-Fence-Token": "1763000000000000",
    "Hourbell-Attempt": "1",
    "Hourbell-Scheduled-For": "2026-11-15T00:00:00.000000Z",
    "Hourbell-Completion-Token": "x" * 43,
    "traceparent": f"00-{'1' * 32}-{'2' * 16}-01",
    "webhook-id": "exe_0000000000000",
    "webhook-timestamp": "1763000000",
}
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


class Target(asyncio.Protocol):
    """Answers as soon as the end of a body of known length has come."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._data = b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, end, body = self._data.partition(b"\r\n\r\n")
        if not end:
            return
        at = head.lower().find(b"content-length:")
        length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) >= length:
            self._data = body[length:]
            self._transport.write(ANSWER)


async def be_target() -> None:
    listening = await asyncio.get_running_loop().create_server(Target, "127.0.0.1", 0)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


async def send_bare(url: str) -> tuple[float, float]:
    """Nothing but requests."""
    body = json.dumps(PAYLOAD).encode()
    headers = HEADERS
    left = COUNT

    async def send(session: aiohttp.ClientSession) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            async with session.post(url, data=body, headers=headers) as response:
                assert response.status == 200
                await response.read()

    connector = aiohttp.TCPConnector(limit=AT_ONCE)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.gather(*(send(session) for _ in range(AT_ONCE)))
        return time.monotonic() - began, time.process_time() - cpu


async def enqueue(dsn: str, url: str) -> None:
    async with engine(dsn) as made:
        now = await made.clock.now()
        action = WebhookAction(url=url, body=PAYLOAD)
        jobs = [
            NewJob(
                name="call",
                action=action,
                type=JobType.ONE_TIME,
                schedule=Once(now),
                tenant_id=f"tenant-{number % TENANTS}",
            )
            for number in range(COUNT)
        ]
        for first in range(0, COUNT, 1_000):
            await create_one_time_jobs(made, jobs[first : first + 1_000], Write())
        await PostgresDispatch(made).open("bench", ["default"], 1)
        admitted = 0
        while admitted < COUNT:
            admitted += (await admit(made, await made.clock.now())).examined


async def work(dsn: str) -> tuple[float, float]:
    """Claim, send and settle all that is ready."""
    async with engine(dsn) as made:
        webhooks = WebhookRunner.open(
            AT_ONCE,
            GuardedResolver(Egress.parse(",".join(LOOPBACK))),
            StoredSecrets(made, KeyRing.parse("")),
            time.time,
        )
        settings = WorkerSettings(name="bench", slots=AT_ONCE, lease_seconds=15)
        worker = Worker(PostgresDispatch(made), {WebhookAction: webhooks}, settings)
        running = asyncio.create_task(worker.run())
        while worker.session is None:  # noqa: ASYNC110 - the first claim follows at once
            await asyncio.sleep(0)
        began, cpu = time.monotonic(), time.process_time()
        await until_empty(made)
        took = time.monotonic() - began, time.process_time() - cpu
        worker.stop()
        await running
        await webhooks.close()
        return took


def answer_of(child: subprocess.Popen[str]) -> tuple[float, float]:
    took, cpu = json.loads(child.communicate()[0])
    return took, cpu


def main() -> None:
    match sys.argv[1:]:
        case ["target"]:
            uvloop.run(be_target())
            return
        case ["bare", url]:
            tune_garbage_collector()
            print(json.dumps(uvloop.run(send_bare(url))))
            return
        case ["work", dsn]:
            tune_garbage_collector()
            print(json.dumps(uvloop.run(work(dsn))))
            return
    target = spawn("target")
    assert target.stdout is not None
    url = f"http://127.0.0.1:{int(target.stdout.readline())}/"
    bare, whole, cpu_bare, cpu_whole = [], [], [], []
    try:
        with server() as dsn:
            for _ in range(ROUNDS):
                took, cpu = answer_of(spawn("bare", url))
                bare.append(per_second(COUNT, took))
                cpu_bare.append(round(cpu / COUNT * 1e6))
                uvloop.run(enqueue(dsn, url))
                took, cpu = answer_of(spawn("work", dsn))
                whole.append(per_second(COUNT, took))
                cpu_whole.append(round(cpu / COUNT * 1e6))
    finally:
        target.kill()
        target.wait()
    report(
        "webhooks",
        bare_per_second=round(median(bare)),
        whole_per_second=round(median(whole)),
        share=round(median(whole) / median(bare), 3),
        at_once=AT_ONCE,
        cpu_us={"bare": round(median(cpu_bare)), "whole": round(median(cpu_whole))},
        rounds={"bare": bare, "whole": whole},
        load=os.getloadavg()[0],
    )


if __name__ == "__main__":
    main()
