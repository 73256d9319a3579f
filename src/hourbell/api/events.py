"""Server-sent events: tell a page that what it shows may have changed, so that it reads it again.

A stream has topics: the overview, the newest executions, a job and its runs, a bulk operation. A `changed` event has
no rows: the page reads them through the API, so permissions are checked in one place. Only the overview
itself is sent, every few seconds.

One reader per process serves all streams. It runs while there is a stream, checks what the first
page of each topic would show, once for all streams of a tenant, and uses at most a tenth of the
time. It writes nothing, and nothing has to notify it: writes are no slower while
people are watching.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

import msgspec
import structlog
from litestar import Response
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from litestar.response import Stream

from hourbell import __version__
from hourbell.api.auth import Authenticator
from hourbell.api.overview import render_live
from hourbell.api.queries import EventsQuery
from hourbell.api.requests import AnyRequest, read_topics
from hourbell.api.routes import EngineDep, Route
from hourbell.engine.core import Engine
from hourbell.engine.operations.bulk_operations import get_operation
from hourbell.engine.views.executions import ExecutionFilter, list_executions, search_executions
from hourbell.engine.views.jobs import get_job
from hourbell.engine.views.overview import live
from hourbell.model.errors import HourbellError, NotFound, Overloaded, StoreUnavailable
from hourbell.model.ids import parse_job_id, parse_operation_id
from hourbell.security.access import READ, Caller
from hourbell.store.database import why_unusable

EVENT_STREAM = "text/event-stream"
OVERVIEW, EXECUTIONS, JOB, OPERATION = "overview", "executions", "job:", "operation:"
MAX_STREAMS = 200  # per process,
MAX_STREAMS_OF_CALLER = 10  # and per key
ROUND_SECONDS = 1.0  # between two rounds,
MAX_SHARE = 0.1  # or longer: the share of the time that reading may take
OVERVIEW_SECONDS = 2.0
CHECK_SECONDS = 2.5  # between two checks of a stream's key
PING_SECONDS = 15.0
RETRY_MS = 2_000  # after which a browser reconnects
_FIRST_PAGE = 50  # executions of the cell or a tenant that are checked,
_RUNS = 20  # and of a job
_UNUSED_SECONDS = 30.0  # after which a stream that was never read is dropped

_log = structlog.get_logger(component="api")

Topic = tuple[str | None, str]  # the tenant of the caller (None: all), and the topic's text


class _Listener:
    """One stream: what has yet to be sent to it."""

    def __init__(self, caller: Caller, topics: frozenset[str], now: float) -> None:
        self.caller = caller
        self.topics = frozenset((caller.tenant, topic) for topic in topics)
        self.unused_since: float | None = now  # monotonic; None: it is being read
        self.woken = asyncio.Event()
        self.changed: set[str] = set()
        self.overview: bytes | None = None
        self.ended = False

    def wake(self) -> None:
        self.woken.set()


class Events:
    """The streams of one process, and their reader."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listeners: set[_Listener] = set()
        self._run = secrets.token_hex(4)  # distinguishes the event ids of this process from others
        self._number = 0
        self._seen: dict[Topic, bytes] = {}
        self._reader: asyncio.Task[None] | None = None
        self._joined = asyncio.Event()  # a stream waits for its first overview

    async def stop(self) -> None:
        """End all streams, so that the server can stop."""
        for listener in self._listeners:
            listener.ended = True
            listener.wake()
        if self._reader is not None:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader

    async def listen(
        self,
        request: AnyRequest,
        engine: Engine,
        authenticator: Authenticator,
        topics: frozenset[str],
    ) -> AsyncIterator[bytes]:
        """Open a stream; raises NotFound for what the caller may not see, and Overloaded."""
        caller: Caller = request.scope["state"]["caller"]
        for topic in topics:
            if topic.startswith(JOB):
                await get_job(engine, parse_job_id(topic.removeprefix(JOB)))
            elif topic.startswith(OPERATION):
                await get_operation(engine, parse_operation_id(topic.removeprefix(OPERATION)))
        own = sum(each.caller.name == caller.name for each in self._listeners)
        if len(self._listeners) >= MAX_STREAMS or own >= MAX_STREAMS_OF_CALLER:
            raise Overloaded(
                f"This server already has {MAX_STREAMS} event streams, or this key has "
                f"{MAX_STREAMS_OF_CALLER}. Close some, or poll the pages every few seconds."
            )
        listener = _Listener(caller, topics, time.monotonic())
        self._listeners.add(listener)
        if self._reader is None or self._reader.done():
            self._reader = asyncio.create_task(self._read())
        self._joined.set()

        async def is_still_known() -> bool:
            """Whether the key or session of the stream is unchanged."""
            try:
                return await authenticator.caller(request) == caller
            except StoreUnavailable:
                return True  # checked again soon
            except HourbellError:
                return False

        last = request.headers.get("Last-Event-ID")
        return self._stream(listener, last, is_still_known)

    async def _stream(
        self,
        listener: _Listener,
        last: str | None,
        is_still_known: Callable[[], Awaitable[bool]],
    ) -> AsyncIterator[bytes]:
        listener.unused_since = None
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            if last is not None and last != self._event_id():
                yield self._event("reset", b"{}")
            pinged = checked = time.monotonic()
            while not listener.ended:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(CHECK_SECONDS, PING_SECONDS)):
                        await listener.woken.wait()
                listener.woken.clear()
                now = time.monotonic()
                if now >= checked + CHECK_SECONDS:
                    if not await is_still_known():
                        return
                    checked = now
                for event in self._pending(listener):
                    pinged = now
                    yield event
                if now >= pinged + PING_SECONDS:
                    pinged = now
                    yield b": ping\n\n"
        finally:
            self._listeners.discard(listener)

    def _pending(self, listener: _Listener) -> Iterable[bytes]:
        changed, listener.changed = listener.changed, set()
        overview, listener.overview = listener.overview, None
        for topic in sorted(changed):
            data = {"topic": topic, "kinds": _kinds_of(topic), "count": None}
            yield self._event("changed", msgspec.json.encode(data))
        if overview is not None:
            yield self._event("overview", overview)

    def _event(self, name: str, data: bytes) -> bytes:
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (
            self._event_id().encode(),
            name.encode(),
            data,
        )

    def _event_id(self) -> str:
        return f"{self._run}.{self._number}"

    async def _read(self) -> None:
        """Check all topics in rounds while there is a stream."""
        overview_at = 0.0
        while self._listeners:
            began = time.monotonic()
            try:
                if began >= overview_at or self._joined.is_set():
                    self._joined.clear()
                    overview_at = began + OVERVIEW_SECONDS
                    await self._read_overviews()
                await self._read_changes()
            except StoreUnavailable as error:
                _log.warning("database unavailable", loop="events", error=why_unusable(error))
            except Exception:
                _log.exception("step failed", loop="events")
            self._listeners -= {
                each
                for each in self._listeners
                if each.unused_since is not None and each.unused_since < began - _UNUSED_SECONDS
            }
            await self._pause(time.monotonic() - began)
        self._seen.clear()

    async def _pause(self, took: float) -> None:
        """Wait for the next round; less if a stream has joined, but never beyond the time share."""
        at_least = max(took / MAX_SHARE - took, ROUND_SECONDS / 4)
        await asyncio.sleep(at_least)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(ROUND_SECONDS - at_least, 0)):
                await self._joined.wait()

    async def _read_overviews(self) -> None:
        for scope in {s for each in self._listeners for s, name in each.topics if name == OVERVIEW}:
            read = render_live(await live(self._engine.scoped_to(scope), "15m"))
            data = msgspec.json.encode(read | {"version": __version__})
            for listener in self._listeners:
                if (scope, OVERVIEW) in listener.topics:
                    listener.overview = data
                    listener.wake()

    async def _read_changes(self) -> None:
        topics = {topic for each in self._listeners for topic in each.topics}
        self._seen = {topic: seen for topic, seen in self._seen.items() if topic in topics}
        for topic in topics:
            if topic[1] == OVERVIEW:
                continue
            shown = await self._shown(topic)
            before = self._seen.get(topic)
            self._seen[topic] = shown
            if before is None or before == shown:
                continue
            self._number += 1
            for listener in self._listeners:
                if topic in listener.topics:
                    listener.changed.add(topic[1])
                    listener.wake()

    async def _shown(self, topic: Topic) -> bytes:
        """A digest of what the first page of a topic shows."""
        scope, text = topic
        engine = self._engine.scoped_to(scope)
        try:
            shown = await _first_page(engine, text)
        except NotFound:
            shown = None
        return hashlib.blake2b(msgspec.json.encode(shown), digest_size=16).digest()


async def _first_page(engine: Engine, topic: str) -> Any:
    """What a page that follows this topic shows; raises NotFound if it no longer exists."""
    if topic == EXECUTIONS:
        return (await search_executions(engine, ExecutionFilter(), _FIRST_PAGE)).items
    if topic.startswith(OPERATION):
        return await get_operation(engine, parse_operation_id(topic.removeprefix(OPERATION)))
    job_id = parse_job_id(topic.removeprefix(JOB))
    job = await get_job(engine, job_id)
    runs = await list_executions(engine, job_id, _RUNS)
    return [job.version, job.status, job.next_run_at, runs.items]


def _kinds_of(topic: str) -> list[str]:
    """What may have changed."""
    if topic.startswith(OPERATION):
        return ["operation"]
    return ["execution", "job"] if topic.startswith(JOB) else ["execution"]


EventsDep = NamedDependency[SkipValidation[Events]]
AuthenticatorDep = NamedDependency[SkipValidation[Authenticator]]


async def stream_events(
    engine: EngineDep, authenticator: AuthenticatorDep, events: EventsDep, request: AnyRequest
) -> Response[Any]:
    topics = read_topics(request)
    stream = await events.listen(request, engine, authenticator, topics)
    return Stream(
        stream,
        media_type=EVENT_STREAM,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


ROUTES = (
    Route(
        method="GET",
        path="/api/v1/events",
        handler=stream_events,
        access=READ,
        summary="Follow topics with server-sent events",
        description=(
            "`overview` is sent every 2 seconds. `changed` means that the first page of a topic "
            "has changed, at most once a second. `reset` means that events may have been "
            "missed. A stream ends within 5 seconds after its key was revoked. At most 200 "
            "streams per server and 10 per key."
        ),
        query=EventsQuery,
        answers={200: "EventStream"},
        answer_type=EVENT_STREAM,
        refers_to_others=True,
        error_codes=("overloaded",),
    ),
)
