"""Processes of the service against those who want them to fall over: floods of bytes, kill -9 while jobs are created."""

import asyncio
import contextlib
import json
import random
import signal
from typing import Any

import aiohttp
import asyncpg
import psutil
import pytest

from conftest import DatabaseMaker
from hourbell.model.ids import job_text
from integration.life.support import eventually
from integration.test_roles import PATIENCE_SECONDS, QUIET, hourbell, is_ready, running
from ports import free_port

GIGABYTE = 1024**3
GROWTH_BYTES = 64 * 1024**2


@pytest.mark.timeout(180)
async def test_a_gigabyte_of_body_is_refused_and_not_kept(
    postgres: str, new_database: DatabaseMaker
) -> None:
    async with new_database(postgres) as dsn:
        with running(dsn, "api", "scheduler") as parts:
            process, port = parts["api"]
            await eventually(lambda: is_ready(port), PATIENCE_SECONDS)
            before = psutil.Process(process.pid).memory_info().rss
            highest = before
            for _ in range(4):
                status = await flood(port, GIGABYTE)
                assert status in (413, None)  # or it was cut off before it could read the answer
                highest = max(highest, psutil.Process(process.pid).memory_info().rss)
            assert highest - before < GROWTH_BYTES
            await eventually(lambda: is_ready(port), PATIENCE_SECONDS)


async def flood(port: int, size: int) -> int | None:
    """Send a chunked body of this size as fast as it is taken; the status of the answer, if there was one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: k\r\n"
        b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    answer = asyncio.create_task(reader.readline())
    sent = 0
    try:
        with contextlib.suppress(ConnectionError, TimeoutError):
            while sent < size and not answer.done():
                writer.write(piece)
                async with asyncio.timeout(10):
                    await writer.drain()
                    await asyncio.sleep(0)  # drain does not yield while all is taken at once
                sent += 0x10000
        assert sent < size / 10, "it took the flood"
        with contextlib.suppress(ConnectionError, TimeoutError):
            line = await asyncio.wait_for(answer, 10)
            return int(line.split()[1]) if line else None
        return None
    finally:
        answer.cancel()
        writer.close()


@pytest.mark.timeout(300)
async def test_what_was_acknowledged_runs_once_while_everybody_is_killed(
    postgres: str, new_database: DatabaseMaker
) -> None:
    """API, scheduler and worker die by kill -9 under creates. Who got no answer repeats with the same key."""
    chance = random.Random(4)
    async with new_database(postgres) as dsn:
        ports = {role: free_port() for role in ("api", "scheduler", "worker")}
        processes = {role: hourbell(role, dsn, port, **QUIET) for role, port in ports.items()}
        try:
            for port in ports.values():
                await eventually(lambda port=port: is_ready(port), PATIENCE_SECONDS)
            done = asyncio.Event()
            clients = [asyncio.create_task(create(ports["api"], n, done)) for n in range(8)]
            for _ in range(6):
                for role in chance.sample([*ports], 3):
                    await asyncio.sleep(chance.random())  # the pace of the killer
                    processes[role].send_signal(signal.SIGKILL)
                    await asyncio.to_thread(processes[role].wait)
                    processes[role].communicate()
                    processes[role] = hourbell(role, dsn, ports[role], **QUIET)
                for port in ports.values():
                    await eventually(lambda port=port: is_ready(port), PATIENCE_SECONDS)
            done.set()
            acknowledged = {
                key: job for made in await asyncio.gather(*clients) for key, job in made.items()
            }
            assert len(acknowledged) > 50
            connection = await asyncpg.connect(dsn)

            async def all_have_run() -> bool:
                left = await connection.fetchval("select count(*) from hourbell.live")
                return bool(left == 0)

            await eventually(all_have_run, PATIENCE_SECONDS)
            rows = await connection.fetch(
                "select id, spec::json ->> 'name' as name, count(*) as n from hourbell.ledger where status = 0 group by 1, 2"
            )
            await connection.close()
            # Each exists under the id that was acknowledged, ended once, and no repeat made another.
            assert {row["name"]: job_text(row["id"]) for row in rows} == acknowledged
            assert len(rows) == len(acknowledged)
            assert all(row["n"] == 1 for row in rows)
        finally:
            for process in processes.values():
                process.kill()
                process.communicate()


async def create(port: int, number: int, done: asyncio.Event) -> dict[str, str]:
    """Create jobs one after the other until told to stop; each is repeated until it is acknowledged."""
    made: dict[str, str] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as http:
        while not done.is_set():
            name = f"{number}-{len(made)}"
            made[name] = await acknowledged(http, port, name)
            # A kill still meets most of them in the middle of a create; faster, they only load the machine.
            await asyncio.sleep(0.05)
    return made


async def acknowledged(http: aiohttp.ClientSession, port: int, name: str) -> str:
    document: dict[str, Any] = {
        "name": name,
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": 0},
        "action": {"type": "WEBHOOK", "url": f"http://127.0.0.1:{port}/livez", "method": "GET"},
        "retry_policy": {"delays_seconds": [1] * 50},
    }
    headers = {"Idempotency-Key": name, "Content-Type": "application/json"}
    while True:
        try:
            async with http.post(
                f"http://127.0.0.1:{port}/api/v1/jobs", data=json.dumps(document), headers=headers
            ) as answer:
                if answer.status == 201:
                    return str((await answer.json())["job_id"])
                assert answer.status in (409, 503), await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            pass
        await asyncio.sleep(0.05)
