"""A worker over HTTP that does not number its claims, as docs/workers-http.md describes it.

    python -m chaos.http_worker --name http-1 --api URL --port N --log FILE

It serves the queue QUEUE, and of its tasks those that it names: claims while it still runs other executions, sends heartbeats, completes. It is a witness as the
receiver is, and writes the same lines of `history.Delivery`, two for each execution that it is handed: one when the answer
to the claim arrives, one when the work is over and before that is reported. So every hand-out is on record, also a second
one of an execution that is still running here.

An answer that took as long as a lease is not begun: without a number, what it gave may have gone to another worker.
`/readyz` on its port says whether its claims are answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from verify.history import Delivery, Log
from verify.promise import OVER_HTTP

QUEUE = OVER_HTTP
TASK = "rest"  # its payload: {"seconds": so long, "fails": so many attempts fail}
OTHER_TASK = "errand"  # the same, and only for the workers of NAMES_BOTH
NAMES_BOTH = frozenset({"http-2"})
SLOTS = 10
WAIT_SECONDS = 1  # of a claim that finds nothing
CALL_SECONDS = 2.5  # shorter than a lease, so that an answer that comes later is not read
REPEAT_SECONDS = 0.2
HEARTBEATS_PER_LEASE = 4

Answer = dict[str, Any]


def tasks_of(worker: str) -> list[str]:
    """Those that a worker over HTTP names in its claims."""
    return [TASK, OTHER_TASK] if worker in NAMES_BOTH else [TASK]


class Worker:
    """One session after the other, and what runs in the present one."""

    def __init__(self, name: str, http: aiohttp.ClientSession, log: Log) -> None:
        self._name = name
        self._http = http
        self._log = log
        self._token: str | None = None
        self._lease_seconds = 3.0
        self._running: dict[asyncio.Task[None], Answer] = {}  # tasks: what each was given
        self._changed = asyncio.Event()  # one of them has ended
        self._heard_at = 0.0  # the last answer to a claim, monotonic
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()
        self._changed.set()

    @property
    def is_ready(self) -> bool:
        return time.monotonic() - self._heard_at < self._lease_seconds

    async def run(self) -> None:
        """Until it is told to stop; then what runs is brought to its end."""
        beating = asyncio.create_task(self._beat())
        while not self._stopping.is_set():
            await self._claim()
        if self._running:
            await asyncio.wait(self._running)
        beating.cancel()
        if self._token is not None:
            await self._call("sessions/close", {"session_token": self._token})

    async def _claim(self) -> None:
        room = SLOTS - len(self._running)
        if room <= 0:
            self._changed.clear()
            await self._changed.wait()
            return
        asked_at, token = time.monotonic(), self._token
        wish = {
            "worker_id": self._name,
            "capacity": room,
            "queues": [QUEUE],
            "tasks": tasks_of(self._name),
            "wait_seconds": WAIT_SECONDS,
            "session_token": token,
        }
        status, answer = await self._call("executions/claim", wish)
        answered_at = time.monotonic()
        if status == 409:
            self._lose_session(token)
        if status != 200:
            await asyncio.sleep(REPEAT_SECONDS)
            return
        self._heard_at = answered_at
        if answered_at - asked_at >= self._lease_seconds or token != self._token:
            return
        self._token, self._lease_seconds = answer["session_token"], answer["lease_seconds"]
        for given in answer["executions"]:
            task = asyncio.create_task(self._serve(self._token, given))
            self._running[task] = given
            task.add_done_callback(self._has_ended)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._changed.set()
        if not task.cancelled():
            task.result()  # an error of this worker ends it loudly

    def _lose_session(self, token: str | None) -> None:
        """The session is over, and everything in it belongs to others."""
        if token is not None and token == self._token:
            self._token = None
            for task in list(self._running):
                task.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_seconds / HEARTBEATS_PER_LEASE)
            token = self._token
            if token is None:
                continue
            held = sorted({given["execution_id"] for given in self._running.values()})
            status, answer = await self._call(
                "executions/heartbeat", {"session_token": token, "execution_ids": held}
            )
            if status == 409:
                self._lose_session(token)
            if status == 200:
                await self._end(token, {*answer["lost"]}, {*answer["cancelled"]})

    async def _end(self, token: str, lost: set[str], cancelled: set[str]) -> None:
        """Stop what is not ours any more, and give back what was cancelled."""
        for task, given in list(self._running.items()):
            execution = given["execution_id"]
            if execution in lost | cancelled:
                task.cancel()
            if execution in cancelled:
                fence = {"session_token": token, "fence_token": given["fence_token"]}
                await self._call(f"executions/{execution}/release", fence)

    async def _serve(self, token: str | None, given: Answer) -> None:
        payload, attempt = given["action"]["payload"], given["attempt"]
        fails = attempt <= payload["fails"]
        handed = Delivery(
            at=time.time(),
            execution_id=given["execution_id"],
            job=given["name"],
            fence=given["fence_token"],
            attempt=attempt,
            scheduled_for=datetime.fromisoformat(given["scheduled_for"]).timestamp(),
            mood="fails_once" if payload["fails"] else "well",
            answered_at=None,
            status=None,
            worker=self._name,
            task=given["action"]["name"],
        )
        self._log.add(handed)
        began = time.monotonic()
        await asyncio.sleep(payload["seconds"])
        status = 500 if fails else 200
        self._log.add(msgspec.structs.replace(handed, answered_at=time.time(), status=status))
        outcome: Answer = {"status": "SUCCEEDED"}
        if fails:
            outcome = {"status": "FAILED", "error": "as asked for", "error_kind": "http_500"}
        outcome |= {
            "session_token": token,
            "fence_token": given["fence_token"],
            "duration_ms": int((time.monotonic() - began) * 1000),
        }
        path = f"executions/{given['execution_id']}/complete"
        while (await self._call(path, outcome))[0] not in (200, 409):
            await asyncio.sleep(REPEAT_SECONDS)

    async def _call(self, path: str, body: Answer) -> tuple[int, Answer]:
        """Status and answer; status 0: there was no answer that can be read."""
        try:
            async with self._http.post(f"/internal/v1/{path}", json=body) as response:
                return response.status, await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return 0, {}


async def serve(name: str, api: str, port: int, log: Path) -> None:
    async def readyz(request: web.Request) -> web.Response:
        return web.Response(status=200 if worker.is_ready else 503)

    limit = aiohttp.ClientTimeout(total=CALL_SECONDS)
    async with aiohttp.ClientSession(api, timeout=limit) as http:
        worker = Worker(name, http, Log(log))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, worker.stop)
        application = web.Application()
        application.router.add_get("/readyz", readyz)
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        with contextlib.suppress(asyncio.CancelledError):
            await worker.run()
        await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.http_worker", description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--api", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.name, arguments.api, arguments.port, arguments.log))


if __name__ == "__main__":
    main()
