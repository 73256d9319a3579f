"""GET /api/v1/events: streams, which say that something has changed."""

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from hourbell.api import events
from hourbell.api.auth import FRESH_SECONDS
from hourbell.api.events import Events
from hourbell.api.server import UNREAD_SECONDS, ApiServer
from hourbell.dispatch import SUCCEEDED
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.bulk_operations import run_operations
from integration.api.client import KEYS, Client, bearing, made, one_time, recurring
from integration.api.conftest import SharedApp
from integration.api.working import Hand
from integration.life.support import eventually

EVENTS = "/api/v1/events"
NOW = {"delay_seconds": 0}


class Listening:
    """A stream, event by event."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.last_id: str | None = None

    async def next(self, name: str, seconds: float = 20) -> Any:
        """The data of the next event of this name."""
        async with asyncio.timeout(seconds):
            while True:
                fields = await self._fields()
                if fields is None:
                    raise AssertionError(f"the stream has ended before {name}")
                if fields.get("event") == name:
                    self.last_id = fields["id"]
                    return json.loads(fields["data"])

    async def end(self, seconds: float = 10) -> None:
        """Wait until the stream has ended."""
        async with asyncio.timeout(seconds):
            while await self._fields() is not None:
                pass

    async def _fields(self) -> dict[str, str] | None:
        fields: dict[str, str] = {}
        while line := (await self.response.content.readline()).decode():
            if line == "\n":
                return fields
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value
        return None


@contextlib.asynccontextmanager
async def listening(
    api: Client, topics: str, headers: dict[str, str] | None = None
) -> AsyncIterator[Listening]:
    async with api.http.get(f"{EVENTS}?topics={topics}", headers=headers or {}) as response:
        assert response.status == 200, await response.text()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Accel-Buffering"] == "no"
        yield Listening(response)


@pytest.fixture
def hand(dispatch: PostgresDispatch) -> Hand:
    return Hand(dispatch)


@pytest.fixture
def streams(server: ApiServer, shared_app: SharedApp) -> Events:
    """Those of the server."""
    assert shared_app._app is not None
    found: Events = shared_app._app.dependencies["events"].dependency()
    return found


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "ROUND_SECONDS", 0.05)
    monkeypatch.setattr(events, "MAX_SHARE", 0.5)
    monkeypatch.setattr(events, "OVERVIEW_SECONDS", 0.1)
    monkeypatch.setattr(events, "CHECK_SECONDS", 0.5)


async def test_the_overview_is_sent_again_and_again(api: Client, hand: Hand):
    await hand.claim()
    async with listening(api, "overview") as stream:
        first = await stream.next("overview")
        assert first["workers"]["alive"] == 1
        assert len(first["depth"]) == 4
        await api.created(one_time(schedule=NOW, priority="HIGH"))
        await hand.claim()
        async with asyncio.timeout(20):
            while (await stream.next("overview"))["depth"][1]["running"] == 0:
                pass


async def test_a_job_that_runs_is_told_to_those_who_follow_it(
    api: Client, hand: Hand, streams: Events
):
    followed, other = await api.created(recurring(name="a")), await api.created(recurring(name="b"))
    async with (
        listening(api, f"job:{followed['job_id']}") as stream,
        listening(api, f"job:{other['job_id']}") as others,
    ):
        await look_at(streams, 2)
        await api.post(followed["path"] + "/run")
        told = await stream.next("changed")
        assert told == {
            "topic": f"job:{followed['job_id']}",
            "kinds": ["execution", "job"],
            "count": None,
        }
        (claimed,) = await hand.claim()
        await stream.next("changed")
        await hand.settle(claimed, SUCCEEDED)
        await stream.next("changed")
        await api.patch(followed["path"], {"priority": "HIGH"})
        await stream.next("changed")
        with pytest.raises(TimeoutError):
            await others.next("changed", 0.3)


async def test_executions_are_followed_within_the_tenant_of_the_key(
    api: Client, hand: Hand, admin: str, streams: Events
):
    acme = bearing(await made(api, "viewer", "acme", headers=bearing(admin)))
    async with (
        listening(api, "executions", bearing(admin)) as every,
        listening(api, "executions", acme) as own,
    ):
        await look_at(streams, 2)
        job = one_time(schedule=NOW, tenant_id="globex")
        assert (await api.post("/api/v1/jobs", job, headers=bearing(admin))).status == 201
        assert (await every.next("changed"))["topic"] == "executions"
        with pytest.raises(TimeoutError):
            await own.next("changed", 0.3)


async def test_a_bulk_operation_is_followed_until_it_has_ended(
    api: Client, engine: Engine, streams: Events
):
    await api.created(recurring(name="a"))
    pausing = {"act": "pause", "filter": {"name_prefix": "a"}, "reason": "partner down"}
    operation = (await api.post("/api/v1/operations", pausing)).body["operation_id"]
    topic = f"operation:{operation}"
    async with listening(api, topic) as stream:
        await look_at(streams, 1)
        while await run_operations(engine, None, await engine.clock.now()):
            pass
        told = await stream.next("changed")
        assert told == {"topic": topic, "kinds": ["operation"], "count": None}
    found = (await api.get(f"/api/v1/operations/{operation}")).body
    assert (found["state"], found["done"]) == ("DONE", 1)


async def test_what_belongs_to_another_tenant_cannot_be_followed(api: Client, admin: str):
    job = await api.post("/api/v1/jobs", recurring(tenant_id="globex"), headers=bearing(admin))
    pausing = {"act": "pause", "filter": {"tenant_id": "globex"}}
    operation = await api.post("/api/v1/operations", pausing, headers=bearing(admin))
    acme = bearing(await made(api, "viewer", "acme", headers=bearing(admin)))
    for topic in (f"job:{job.body['job_id']}", f"operation:{operation.body['operation_id']}"):
        path = f"{EVENTS}?topics={topic}"
        assert (await api.send("GET", path, key=None, headers=acme)).is_problem(404, "not_found")


@pytest.mark.parametrize(
    "topics",
    [
        "",
        "weather",
        "job:",
        "job:exe_0000000000016",
        "operation:job_0000000000016",
        "overview,,",
        ",".join(["overview"] * 3 + ["x"]),
    ],
)
async def test_topics_that_do_not_exist_are_refused(api: Client, topics: str):
    assert (await api.get(f"{EVENTS}?topics={topics}")).is_problem(422, "invalid_input")
    assert (await api.get(EVENTS)).is_problem(422, "invalid_input")


async def test_a_stream_ends_when_its_key_is_revoked(api: Client, admin: str):
    viewer = await made(api, "viewer", headers=bearing(admin))
    me = await api.send("GET", "/api/v1/me", key=None, headers=bearing(viewer))
    async with listening(api, "overview", bearing(viewer)) as stream:
        await stream.next("overview")
        await api.delete(f"{KEYS}/{me.body['key_id']}", headers=bearing(admin))
        await stream.end(20)


def test_the_bounds_of_a_revoked_key_add_up_to_less_than_promised(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert events.CHECK_SECONDS + FRESH_SECONDS < 5.0
    assert events.PING_SECONDS == 15.0


async def test_streams_are_limited_by_key_and_by_server(
    api: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(events, "MAX_STREAMS_OF_CALLER", 2)
    async with listening(api, "overview"):
        async with listening(api, "overview"):
            full = await api.get(f"{EVENTS}?topics=overview")
            assert full.is_problem(503, "overloaded")
            assert int(full.headers["Retry-After"]) >= 1

        async def has_room() -> bool:
            with contextlib.suppress(AssertionError):
                async with listening(api, "overview"):
                    return True
            return False

        await eventually(has_room)  # the one that was closed is gone
        monkeypatch.setattr(events, "MAX_STREAMS", 1)
        assert (await api.get(f"{EVENTS}?topics=overview")).is_problem(503, "overloaded")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends such a connection")
async def test_a_stream_that_nothing_reads_loses_its_place(server: ApiServer, streams: Events):
    listening_socket = server._sockets[0]
    seconds = listening_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) / 1000
    assert seconds == UNREAD_SECONDS
    listening_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 500)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)  # the kernel takes its minimum
        client.connect(("127.0.0.1", server.port))
        asked = f"GET {EVENTS}?topics=overview HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n"
        client.send(asked.encode())

        async def is_open() -> bool:
            return len(streams._listeners) == 1

        async def is_closed() -> bool:
            return not streams._listeners

        await eventually(is_open)
        await eventually(is_closed)


async def test_nothing_is_read_while_no_stream_is_open(
    api: Client, engine: Engine, streams: Events, monkeypatch: pytest.MonkeyPatch
):
    async with listening(api, "overview") as stream:
        await stream.next("overview")
        assert streams._reader is not None

    async def has_ended() -> bool:
        return not streams._listeners and streams._reader is not None and streams._reader.done()

    await eventually(has_ended)


async def test_who_comes_back_is_told_whether_to_read_everything(
    api: Client, hand: Hand, streams: Events
):
    async with listening(api, "executions,overview") as stream:
        await stream.next("overview")
        last = stream.last_id
    assert last is not None
    same = {"Last-Event-ID": last}
    async with listening(api, "executions,overview", same) as stream:
        await stream.next("overview")
        await look_at(streams, 1)
        await api.created(one_time(schedule=NOW))
        await hand.claim()
        await stream.next("changed")
    for known in (last, "41.88213", "x"):
        async with listening(api, "overview", {"Last-Event-ID": known}) as stream:
            assert await stream.next("reset") == {}


async def test_streams_end_with_the_server(api: Client, streams: Events):
    async with listening(api, "overview") as stream:
        await stream.next("overview")
        await streams.stop()
        await stream.end()


async def look_at(streams: Events, topics: int) -> None:
    """What a topic shows at first is not a change: wait until so many were looked at."""

    async def are_known() -> bool:
        return len(streams._seen) == topics

    await eventually(are_known)
