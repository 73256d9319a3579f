"""Targets that do their worst, beside healthy ones, for a worker process of its own.

Each nasty target has a port of its own, apart from those that share one on purpose. What must hold: the healthy webhooks are on time, the
worker's memory stays flat, and each nasty one ends with a reason that a person understands. They are sent GET and POST in turns: the
client holds only the one to be safe to repeat.
"""

import asyncio
import contextlib
import functools
import gzip
import os
import re
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from hourbell.actions.circuits import FAILURES
from hourbell.engine.core import Engine
from hourbell.engine.views.executions import get_execution
from hourbell.model.executions import FATES, Execution
from integration.life.support import create, eventually, open_engine, scheduling
from integration.test_roles import QUIET, hourbell, is_ready
from ports import free_port

HEALTHY = 50
SECOND = timedelta(seconds=1)
METHODS = ("GET", "POST")
EACH = 4  # of every nasty one; fewer than open a circuit
TIMEOUT_SECONDS = 5
MAX_LATE_SECONDS = 4.0  # less than what hangs takes, with room for a busy machine
MAX_GROWTH_KB = 40_000

OK = b"HTTP/1.1 200 OK\r\n"
Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
Behaviour = Callable[[Reader, Writer], Awaitable[None]]
Heard = tuple[Behaviour, str]  # who was sent something, and by which method


@functools.cache
def bomb() -> bytes:
    return gzip.compress(bytes(100_000_000))


async def hangs_before_headers(reader: Reader, writer: Writer) -> None:
    await asyncio.Event().wait()


async def hangs_mid_body(reader: Reader, writer: Writer) -> None:
    writer.write(OK + b"Content-Length: 1000\r\n\r\nsome of it")
    await asyncio.Event().wait()


async def hangs_mid_refusal(reader: Reader, writer: Writer) -> None:
    writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 1000\r\n\r\nno disk")
    await asyncio.Event().wait()


async def resets(reader: Reader, writer: Writer) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()


async def trickles(reader: Reader, writer: Writer) -> None:
    for byte in OK + b"Content-Length: 2\r\n\r\nok":
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(1)


async def answers_100_mb(reader: Reader, writer: Writer) -> None:
    writer.write(OK + b"Content-Length: 100000000\r\n\r\n")
    for _ in range(1_000):
        writer.write(b"x" * 100_000)
        await writer.drain()


async def sends_a_bomb(reader: Reader, writer: Writer) -> None:
    head = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb())
    writer.write(head + bomb())
    await writer.drain()


async def redirects_to_itself(reader: Reader, writer: Writer) -> None:
    port = writer.get_extra_info("sockname")[1]
    location = b"Location: http://127.0.0.1:%d/\r\n" % port
    writer.write(b"HTTP/1.1 302 Found\r\n" + location + b"Content-Length: 0\r\n\r\n")
    await writer.drain()


async def redirects_to_metadata(reader: Reader, writer: Writer) -> None:
    location = b"Location: http://169.254.169.254/latest/meta-data/\r\n"
    writer.write(b"HTTP/1.1 307 Go\r\n" + location + b"Content-Length: 0\r\n\r\n")
    await writer.drain()


async def sends_garbage_chunks(reader: Reader, writer: Writer) -> None:
    writer.write(OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nZZZ\r\n\x00\xff\r\n")
    await writer.drain()


async def is_not_http(reader: Reader, writer: Writer) -> None:
    writer.write(b"\x00\xff\x17 what is this? \r\n\r\n\x00" * 8)
    await writer.drain()


async def continues_for_ever(reader: Reader, writer: Writer) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000)
        await writer.drain()


async def floods_with_headers(reader: Reader, writer: Writer) -> None:
    writer.write(OK)
    for number in range(1_000_000):
        writer.write(b"X-Flood-%d: %s\r\n" % (number, b"x" * 100))
        await writer.drain()


async def sends_a_header_without_end(reader: Reader, writer: Writer) -> None:
    writer.write(OK + b"X-Endless: ")
    while True:
        writer.write(b"x" * 10_000)
        await writer.drain()


BY_TIMEOUT = ("DEAD", "The attempt exceeded its timeout.")
NOT_HTTP = ("DEAD", "The response is not valid HTTP: ")
REDIRECT = "a redirect; redirects are not followed."
CLOSED = "The target closed the connection without a response."

# What the worker of this test is told of names: beside these, what the machine knows.
NAMES = """
import socket, threading

known = socket.getaddrinfo

def told(host, *rest, **options):
    kind = str(host).partition(".")[2]
    if kind == "hangs.example":
        threading.Event().wait()
    if kind == "missing.example":
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    if kind == "inside.example":
        host = "169.254.169.254"
    if kind == "healthy.example":
        host = "127.0.0.1"
    return known(host, *rest, **options)

socket.getaddrinfo = told
"""
NASTY_NAMES = {
    "hangs.example": (
        30,
        "The target could not be reached: its host name was not resolved in time.",
    ),
    "missing.example": (EACH, "The target could not be reached."),
    "inside.example": (EACH, "The target could not be reached."),
}

NASTY: dict[Behaviour, tuple[str, str]] = {
    hangs_before_headers: BY_TIMEOUT,
    hangs_mid_body: BY_TIMEOUT,
    hangs_mid_refusal: ("DEAD", "The target answered 500. Response: no disk"),
    resets: ("DEAD", CLOSED),
    trickles: BY_TIMEOUT,
    answers_100_mb: ("SUCCEEDED", ""),
    sends_a_bomb: ("SUCCEEDED", ""),
    redirects_to_itself: ("DEAD", f"The target answered 302, {REDIRECT}"),
    redirects_to_metadata: ("DEAD", f"The target answered 307, {REDIRECT}"),
    sends_garbage_chunks: NOT_HTTP,
    is_not_http: NOT_HTTP,
    continues_for_ever: NOT_HTTP,
    floods_with_headers: NOT_HTTP,
    sends_a_header_without_end: NOT_HTTP,
}


class Healthy:
    """Notes how late each webhook comes; what is under /broken is not well."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self.broken = 0  # requests

    async def __call__(self, reader: Reader, writer: Writer) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                if " /broken" in head:
                    self.broken += 1
                    writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
                    continue
                due = re.search(r"Hourbell-Scheduled-For: (\S+)", head)
                assert due is not None
                self.late.append(time.time() - datetime.fromisoformat(due[1]).timestamp())  # noqa: TID251 - as a target sees it
                writer.write(OK + b"Content-Length: 0\r\n\r\n")
                await writer.drain()


@contextlib.asynccontextmanager
async def served(behaviour: Behaviour, heard: list[Heard], port: int = 0) -> AsyncIterator[str]:
    """A target of this kind; its URL."""
    tasks: set[asyncio.Task[None]] = set()

    async def handle(reader: Reader, writer: Writer) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            if not isinstance(behaviour, Healthy):
                head = await reader.readuntil(b"\r\n\r\n")
                body = re.search(rb"Content-Length: (\d+)", head)
                await reader.readexactly(int(body[1]) if body else 0)
                heard.append((behaviour, head.partition(b" ")[0].decode()))
            await behaviour(reader, writer)
            writer.close()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        tasks.discard(task)

    server = await asyncio.start_server(handle, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks)
        await asyncio.sleep(0)  # transports are closed in the next turn of the loop


def webhook(
    url: str, at: datetime, timeout_seconds: int = TIMEOUT_SECONDS, turn: int = 0
) -> dict[str, object]:
    action = {"type": "WEBHOOK", "url": url, "method": METHODS[turn % 2]}
    if turn % 2:
        action["body"] = "something"
    return {
        "name": "call",
        "type": "ONE_TIME",
        "schedule": {"at": at.isoformat()},
        "action": action,
        "timeout_seconds": timeout_seconds,
        "retry_policy": {"max_retries": 0},
    }


def memory_kb(pid: int, what: str) -> int:
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


async def ended(engine: Engine, job_id: int) -> Execution:
    async def look() -> Execution | None:
        seen = await get_execution(engine, job_id)
        return seen if seen.status in FATES else None

    found = await eventually(look)
    assert found is not None
    return found


@pytest.mark.timeout(120)
async def test_nasty_targets_harm_nobody_but_themselves(database: str) -> None:
    healthy, heard = Healthy(), list[Heard]()
    bomb()  # before anything is measured
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        urls = {each: await stack.enter_async_context(served(each, heard)) for each in NASTY}
        good = await stack.enter_async_context(served(healthy, heard))
        worker = hourbell("worker", database, port, **QUIET)
        stack.callback(worker.communicate)
        stack.callback(worker.kill)
        engine = await stack.enter_async_context(open_engine(database))
        await stack.enter_async_context(scheduling(engine))
        await eventually(lambda: is_ready(port), 60.0)

        now = await engine.clock.now()
        for job in [await create(engine, webhook(good, now)) for _ in range(10)]:
            assert (await ended(engine, job.job_id)).status == "SUCCEEDED"
        before_kb = memory_kb(worker.pid, "VmRSS")
        healthy.late.clear()

        start = await engine.clock.now() + timedelta(seconds=2)
        bad = [
            (each, await create(engine, webhook(url, start + 0.4 * turn * SECOND, turn=turn)))
            for turn in range(EACH)
            for each, url in urls.items()
        ]
        for number in range(HEALTHY):
            await create(engine, webhook(good, start + timedelta(seconds=number * 0.06)))

        wrong = []
        for each, job in bad:
            status, reason = NASTY[each]
            seen = await ended(engine, job.job_id)
            if seen.status != status or not (seen.error or "").startswith(reason):
                wrong.append((each.__name__, seen.status, seen.error))
        assert wrong == []

        async def all_came() -> bool:
            return len(healthy.late) >= HEALTHY

        await eventually(all_came)
        growth_kb = memory_kb(worker.pid, "VmHWM") - before_kb
    assert len(healthy.late) == HEALTHY
    assert max(healthy.late) < MAX_LATE_SECONDS, sorted(healthy.late)[-10:]
    assert min(healthy.late) >= 0
    assert growth_kb < MAX_GROWTH_KB
    # Nothing was sent twice, and no redirect was followed.
    sent = [(each, method) for each in NASTY for method in METHODS]
    assert {each: heard.count(each) for each in sent} == dict.fromkeys(sent, EACH // 2)


@pytest.mark.timeout(120)
async def test_nasty_names_harm_nobody_but_themselves(database: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(NAMES)
    paths = filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))
    healthy = Healthy()
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        good = await stack.enter_async_context(served(healthy, []))
        worker = hourbell("worker", database, port, PYTHONPATH=os.pathsep.join(paths), **QUIET)
        stack.callback(worker.communicate)
        stack.callback(worker.kill)
        engine = await stack.enter_async_context(open_engine(database))
        await stack.enter_async_context(scheduling(engine))
        await eventually(lambda: is_ready(port), 60.0)

        start = await engine.clock.now() + timedelta(seconds=1)
        bad = [
            (reason, await create(engine, webhook(f"http://n{number}.{name}/", start, 30, number)))
            for name, (count, reason) in NASTY_NAMES.items()
            for number in range(count)
        ]
        for number in range(HEALTHY):
            url = good.replace("127.0.0.1", f"n{number}.healthy.example")
            at = start + timedelta(seconds=0.5 + number * 0.06)
            await create(engine, webhook(url, at))

        async def all_came() -> bool:
            return len(healthy.late) >= HEALTHY

        await eventually(all_came)
        seen = [(reason, await ended(engine, job.job_id)) for reason, job in bad]
    assert [(each.status, each.error) for _, each in seen] == [("DEAD", why) for why, _ in seen]
    assert max(healthy.late) < MAX_LATE_SECONDS, sorted(healthy.late)[-10:]


SHARED_SECONDS = 12  # longer than a circuit needs to open, and to be probed several times
BROKEN, DEAD = 60, 200


@contextlib.asynccontextmanager
async def calling_worker(database: str) -> AsyncIterator[Engine]:
    """A scheduler here, and a worker process."""
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        worker = hourbell("worker", database, port, **QUIET)
        stack.callback(worker.communicate)
        stack.callback(worker.kill)
        engine = await stack.enter_async_context(open_engine(database))
        await stack.enter_async_context(scheduling(engine))
        await eventually(lambda: is_ready(port), 60.0)
        yield engine


def stubborn(url: str, at: datetime) -> dict[str, object]:
    """Tried again each second for longer than a test takes."""
    retries = {"max_retries": 50, "backoff": "FIXED", "initial_delay_seconds": 1}
    return webhook(url, at) | {"retry_policy": retries}


@pytest.mark.timeout(120)
async def test_a_broken_endpoint_delays_no_other_endpoint_of_its_host(database: str) -> None:
    healthy = Healthy()
    async with served(healthy, []) as url, calling_worker(database) as engine:
        start = await engine.clock.now() + 2 * SECOND
        for number in range(BROKEN):
            path = f"broken/{number % 2}?number={number}"
            await create(engine, stubborn(url + path, start + number * 0.02 * SECOND))
        # All of them late, so that nothing tells the worker in time that its host is well.
        for number in range(10):
            at = start + (SHARED_SECONDS + number * 0.1) * SECOND
            await create(engine, webhook(f"{url}users/{number}", at))

        async def all_came() -> bool:
            return len(healthy.late) >= 10

        await eventually(all_came, 60.0)
    assert max(healthy.late) < MAX_LATE_SECONDS, sorted(healthy.late)[-10:]
    # One attempt a second each would be 720.
    assert healthy.broken < 300


@pytest.mark.timeout(120)
async def test_a_dead_host_is_not_hammered_however_many_endpoints_it_has(database: str) -> None:
    """And when it is back, everything is sent within a minute."""
    port = free_port()  # nothing listens
    async with calling_worker(database) as engine:
        start = await engine.clock.now() + 2 * SECOND
        jobs = [
            await create(engine, stubborn(f"http://127.0.0.1:{port}/users/{number}", start))
            for number in range(DEAD)
        ]

        async def time_is_over() -> bool:
            return await engine.clock.now() > start + SHARED_SECONDS * SECOND

        await eventually(time_is_over, 60.0)
        tried = [(await get_execution(engine, job.job_id)).attempt for job in jobs]
        # Without a circuit each would have been tried a dozen times.
        assert FAILURES <= sum(tried) < 5 * DEAD

        async def answers(reader: Reader, writer: Writer) -> None:
            writer.write(OK + b"Content-Length: 0\r\n\r\n")
            await writer.drain()

        async with served(answers, [], port):
            for job in jobs:
                assert (await ended(engine, job.job_id)).status == "SUCCEEDED"
            assert await engine.clock.now() < start + (SHARED_SECONDS + 60) * SECOND
