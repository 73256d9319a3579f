"""How soon a long-poll claim is answered: `hourbell up` and one worker over HTTP that waits before each job is created.

The job is due at once, or a second later. Each figure is in milliseconds, from the time at which the job is due (for a job
that is due at once: from the answer to its creation) to the answer to the claim. A wake-up that is lost shows as half a second.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta

import aiohttp
from support import report

COUNT = 100
QUEUE = "long-poll"
LATE_MS = 400


async def measured(base: str, delay_seconds: int) -> list[float]:
    """The time of each wake-up."""
    took = []
    token = None
    async with aiohttp.ClientSession(base) as http:
        for number in range(COUNT):
            body = {"worker_id": "w", "capacity": 1, "wait_seconds": 20, "session_token": token}
            body["queues"] = [QUEUE]
            asking = asyncio.create_task(http.post("/internal/v1/executions/claim", json=body))
            await asyncio.sleep(random.uniform(0.05, 0.7))
            due = datetime.now(UTC) + timedelta(seconds=delay_seconds)
            schedule = {"at": due.isoformat()} if delay_seconds else {"delay_seconds": 0}
            job = {
                "name": "wake",
                "type": "ONE_TIME",
                "queue": QUEUE,
                "schedule": schedule,
                "action": {"type": "TASK", "name": "greet"},
            }
            key = {"Idempotency-Key": f"{delay_seconds}-{number}"}
            async with http.post("/api/v1/jobs", json=job, headers=key) as answer:
                assert answer.status == 201, await answer.text()
            created = time.time()
            given = await (await asking).json()
            took.append((time.time() - (due.timestamp() if delay_seconds else created)) * 1000)
            token = given["session_token"]
            (one,) = given["executions"]
            said = {"session_token": token, "fence_token": one["fence_token"]}
            said |= {"status": "SUCCEEDED", "duration_ms": 1}
            path = f"/internal/v1/executions/{one['execution_id']}/complete"
            async with http.post(path, json=said) as answer:
                assert answer.status == 200
    return took


def figures(took: list[float]) -> dict[str, float]:
    in_order = sorted(took)
    return {
        "wake_ups": len(took),
        "p50_ms": round(statistics.median(took), 1),
        "p90_ms": round(in_order[len(took) * 9 // 10], 1),
        "max_ms": round(in_order[-1], 1),
        "over_400_ms": sum(ms > LATE_MS for ms in took),
    }


async def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        settings = {"HOURBELL_DATA_DIR": folder, "HOURBELL_PORT": str(port)}
        up = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "hourbell",
            "up",
            env={**os.environ, **settings, "HOURBELL_LOG_LEVEL": "error"},
            stdout=asyncio.subprocess.DEVNULL,
        )
        try:
            base = f"http://127.0.0.1:{port}"
            async with aiohttp.ClientSession(base) as http:
                while True:
                    try:
                        async with http.get("/readyz") as answer:
                            if answer.status == 200:
                                break
                    except aiohttp.ClientError:
                        pass
                    await asyncio.sleep(0.1)
            at_once = figures(await measured(base, 0))
            report("long_poll", due_at_once=at_once, due_later=figures(await measured(base, 1)))
        finally:
            up.terminate()
            await up.wait()


if __name__ == "__main__":
    asyncio.run(main())
