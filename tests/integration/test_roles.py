"""`hourbell migrate`, `api`, `scheduler` and `worker`: processes of one role each, on one database."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from conftest import DatabaseMaker
from integration.life.support import eventually

PATIENCE_SECONDS = 60.0


def hourbell(role: str, dsn: str | None, port: int = 1) -> subprocess.Popen[str]:
    environment = os.environ | {
        "HOURBELL_PORT": str(port),
        "HOURBELL_LEASE_SECONDS": "2",
        "HOURBELL_LEADER_LEASE_SECONDS": "2",
    }
    if dsn is not None:
        environment["HOURBELL_DATABASE_URL"] = dsn
    return subprocess.Popen(
        [sys.executable, "-m", "hourbell", role],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


def ask(port: int, path: str, body: object = None) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json", "Idempotency-Key": "first"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


@contextlib.contextmanager
def running(dsn: str, *roles: str) -> Iterator[dict[str, tuple[subprocess.Popen[str], int]]]:
    ports = {role: free_port() for role in roles}
    started = {role: (hourbell(role, dsn, port), port) for role, port in ports.items()}
    try:
        yield started
    finally:
        for process, _ in started.values():
            process.kill()
            process.communicate()


async def is_ready(port: int) -> bool:
    try:
        await asyncio.to_thread(ask, port, "/readyz")
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return True


@pytest.mark.timeout(180)
async def test_three_processes_are_a_system(postgres: str, new_database: DatabaseMaker) -> None:
    async with new_database(postgres) as dsn:
        with running(dsn, "api", "scheduler", "worker") as parts:
            for _, port in parts.values():
                await eventually(lambda port=port: is_ready(port), PATIENCE_SECONDS)
            api = parts["api"][1]
            job = {
                "name": "hello",
                "type": "ONE_TIME",
                "schedule": {"delay_seconds": 0},
                "action": {
                    "type": "WEBHOOK",
                    "url": f"http://127.0.0.1:{api}/livez",
                    "method": "GET",
                },
            }
            made = await asyncio.to_thread(ask, api, "/api/v1/jobs", job)

            async def has_succeeded() -> bool:
                path = f"/api/v1/jobs/{made['job_id']}/executions"
                found = await asyncio.to_thread(ask, api, path)
                return bool(found["items"][0]["status"] == "SUCCEEDED")

            await eventually(has_succeeded)
            checks = (await asyncio.to_thread(ask, parts["worker"][1], "/readyz"))["checks"]
            assert checks == {"database": True, "worker": True}
            for process, _ in parts.values():
                process.send_signal(signal.SIGTERM)
            for role, (process, _) in parts.items():
                said, _ = await asyncio.to_thread(process.communicate, timeout=30)
                assert process.returncode == 0, f"{role}: {said}"
                assert said.endswith("Stopped.\n")


async def test_migrate_prepares_a_database_and_may_be_repeated(
    postgres: str, new_database: DatabaseMaker
) -> None:
    async with new_database(postgres) as dsn:
        connection = await asyncpg.connect(dsn)
        await connection.execute("drop schema hourbell cascade")
        await connection.close()
        refused = hourbell("scheduler", dsn)
        said, _ = await asyncio.to_thread(refused.communicate, timeout=60)
        assert refused.returncode == 2
        assert "Run `hourbell migrate` once" in said
        for _ in range(2):
            done = hourbell("migrate", dsn)
            said, _ = await asyncio.to_thread(done.communicate, timeout=60)
            assert (done.returncode, said) == (0, "The database is up to date.\n")


@pytest.mark.parametrize("role", ["api", "scheduler", "worker", "migrate"])
def test_a_role_needs_a_database_that_others_share(role: str, tmp_path: Path) -> None:
    process = hourbell(role, None)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "HOURBELL_DATABASE_URL is not set" in said


@pytest.mark.parametrize("role", ["worker", "migrate"])
def test_a_database_that_is_not_there_is_told_as_such(role: str) -> None:
    process = hourbell(role, f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "cannot be used" in said
    assert "Traceback" not in said
