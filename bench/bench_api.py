"""The API: jobs created by single POSTs of many clients at once, and by batches, over HTTP on the loopback interface.

A fresh embedded server, the API as a process of its own as `hourbell api` runs it, and client processes with connections
that are kept alive and requests that are made beforehand: all on one machine. Each case runs several rounds of some
seconds; the median is given, and all are shown. Only answers that say "created" count.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from statistics import median

import uvloop
from support import PAYLOAD, TENANTS, free_port, report, server, spawn

from hourbell.compose import Role, running, tune_garbage_collector
from hourbell.settings import Settings

CONCURRENT = (16, 64, 256)
BATCHES = (1_000, 5_000)
ROUNDS = 5
SECONDS = 4.0
BATCH_CLIENTS = 2

JOB = (
    b'{"name":"cart-reminder","type":"ONE_TIME","schedule":{"delay_seconds":86400},"action":{"type":"TASK",'
    b'"name":"no-op","payload":{"cart_id":%d,"pad":"%s"}},"tenant_id":"tenant-%d"}'
)
PAD = str(PAYLOAD["pad"]).encode()
HEAD = (
    b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\nIdempotency-Key: %s\r\n\r\n"
)


def job(number: int) -> bytes:
    return JOB % (number, PAD, number % TENANTS)


class Client(asyncio.Protocol):
    """Sends a request, waits for its answer, sends the next, until the time is up."""

    def __init__(self, name: str, path: bytes, body: bytes, jobs: int, until: float) -> None:
        self._name = name.encode()
        self._path = path
        self._body = body
        self._jobs = jobs  # of a request
        self._until = until
        self._sent = 0
        self._missing = 0  # bytes of an answer
        self._began = 0.0
        self.created = 0
        self.refused = 0
        self.seconds: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # of uvloop, which is no subclass of asyncio's
        self._send()

    def data_received(self, data: bytes) -> None:
        if self._missing:
            self._missing -= len(data)
        else:
            head, _, rest = data.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r")[0])
            self._missing = length - len(rest)
            if data[9:12] in (b"200", b"201"):
                self.created += self._jobs
            else:
                self.refused += 1
        if self._missing == 0:
            self.seconds.append(time.monotonic() - self._began)
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _send(self) -> None:
        self._began = time.monotonic()
        if self._began >= self._until:
            self._transport.close()
            return
        self._sent += 1
        key = b"%s-%d" % (self._name, self._sent)
        self._transport.write(HEAD % (self._path, len(self._body), key) + self._body)


async def send(port: int, connections: int, jobs: int) -> None:
    """A client process: prints how many jobs were created, how many requests refused, and times in ms."""
    loop = asyncio.get_running_loop()
    until = time.monotonic() + SECONDS
    if jobs == 1:
        path, body = b"/api/v1/jobs", job(os.getpid())
    else:
        path, body = b"/api/v1/jobs/batch", b"[" + b",".join(map(job, range(jobs))) + b"]"
    clients = []
    for number in range(connections):
        name = f"{os.getpid()}-{number}"
        _, client = await loop.create_connection(
            lambda name=name: Client(name, path, body, jobs, until), "127.0.0.1", port
        )
        clients.append(client)
    await asyncio.gather(*(client.done for client in clients))
    taken = sorted(second for client in clients for second in client.seconds)
    p50, p99 = (round(taken[int(len(taken) * part)] * 1000, 1) for part in (0.5, 0.99))
    print(sum(c.created for c in clients), sum(c.refused for c in clients), p50, p99)


async def serve(dsn: str, port: int) -> None:
    settings = Settings(data_dir=Path("unused"), database_url=dsn, port=port)
    async with running(dsn, settings, {Role.API}):
        tune_garbage_collector()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def measured(port: int, connections: int, jobs: int) -> dict[str, float]:
    """One round: jobs created per second, and how long a request took."""
    child = spawn("send", str(port), str(connections), str(jobs))
    created, refused, p50, p99 = child.communicate()[0].split()
    assert int(refused) == 0, f"{refused} requests were refused"
    return {"per_second": round(int(created) / SECONDS), "p50_ms": float(p50), "p99_ms": float(p99)}


def case(port: int, connections: int, jobs: int) -> dict[str, object]:
    rounds = [measured(port, connections, jobs) for _ in range(ROUNDS)]
    rates = [each["per_second"] for each in rounds]
    return {
        "per_second": round(median(rates)),
        "p50_ms": median(each["p50_ms"] for each in rounds),
        "p99_ms": median(each["p99_ms"] for each in rounds),
        "rounds": rates,
    }


def main() -> None:
    if sys.argv[1:2] == ["send"]:
        uvloop.run(send(*map(int, sys.argv[2:])))
        return
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(sys.argv[2], int(sys.argv[3])))
        return
    port = free_port()
    with server() as dsn:
        api = spawn("serve", dsn, str(port))
        assert api.stdout is not None
        assert api.stdout.readline() == "ready\n"
        posts = {f"{many} concurrent": case(port, many, 1) for many in CONCURRENT}
        batches = {f"of {jobs}": case(port, BATCH_CLIENTS, jobs) for jobs in BATCHES}
        api.communicate("")
    report(
        "api",
        seconds_of_a_round=SECONDS,
        connections_of_batches=BATCH_CLIENTS,
        posts=posts,
        batches=batches,
    )


if __name__ == "__main__":
    main()
