"""Spans of real parts on a real database, as OpenTelemetry's own SDK collects them."""

import asyncio
import itertools
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from structlog.testing import capture_logs

from hourbell import App, Context, Item, Retry, SyncContext, WorkerOptions
from hourbell.compose import ALL_ROLES, running
from hourbell.security.egress import LOOPBACK
from hourbell.settings import Settings
from hourbell.store.database import Database
from integration.life.support import eventually
from ports import free_port

FAST = WorkerOptions(lease_seconds=3, drain_seconds=5)
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CALLER = f"00-{TRACE}-{SPAN}-01"
NOT_SAMPLED = f"00-{TRACE}-{SPAN}-00"


class Spans:
    """The spans of this process that have ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def of_executions(self) -> list[ReadableSpan]:
        """All but those of passes, which are in traces of their own."""
        found = self._exporter.get_finished_spans()
        return [span for span in found if span.name not in ("plan", "admit")]

    async def until(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """The spans of this name, when there are that many."""

        async def ended() -> list[ReadableSpan]:
            found = self.named(name)
            return found if len(found) >= count else []

        return await eventually(ended)


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """As in a program that has set a tracer provider."""
    spans = Spans()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
    yield spans
    spans.provider.shutdown()


class Target:
    """A receiver of webhooks that answers with the next of these statuses; the last one stays."""

    def __init__(self) -> None:
        self.url = ""
        self.statuses = [200]
        self.parents: list[str] = []  # the headers `traceparent` that it got

    async def handle(self, request: web.Request) -> web.Response:
        self.parents.append(request.headers["traceparent"])
        status = self.statuses[0] if len(self.statuses) == 1 else self.statuses.pop(0)
        return web.Response(status=status)

    async def until_called(self, times: int = 1) -> None:
        async def called() -> bool:
            return len(self.parents) >= times

        await eventually(called)


@pytest.fixture
async def target() -> AsyncIterator[Target]:
    target = Target()
    app = web.Application()
    app.router.add_post("/hook", target.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    target.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield target
    await runner.cleanup()


class Api:
    """The REST API of a whole system in this process."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self._keys = iter(range(1000))

    async def send(
        self, method: str, path: str, body: object, parent: str | None = None, key: str = ""
    ) -> Any:
        headers = {"Idempotency-Key": key or f"key-{next(self._keys)}"}
        if parent is not None:
            headers["traceparent"] = parent
        async with self._http.request(
            method, self._url + path, json=body, headers=headers
        ) as answer:
            assert answer.status < 300, await answer.text()
            return await answer.json()

    async def create(self, body: object, parent: str | None = None, key: str = "") -> Any:
        return await self.send("POST", "/api/v1/jobs", body, parent, key)

    async def claim(self) -> Any:
        body = {"worker_id": "w", "capacity": 10, "queues": ["http"], "wait_seconds": 20}
        async with self._http.post(
            f"{self._url}/internal/v1/executions/claim", json=body
        ) as answer:
            return (await answer.json())["executions"]


@asynccontextmanager
async def whole_system(database: str) -> AsyncIterator[Api]:
    port = free_port()
    settings = Settings(
        data_dir=Path("unused"),
        database_url=database,
        port=port,
        egress_allow=",".join(LOOPBACK),
        leader_lease_seconds=2,
        worker_queues="default",
    )
    async with (
        running(database, settings, ALL_ROLES),
        aiohttp.ClientSession() as http,
    ):
        yield Api(http, f"http://127.0.0.1:{port}")


def webhook(url: str, **fields: object) -> dict[str, object]:
    return {
        "name": "hook",
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": 0},
        "action": {"type": "WEBHOOK", "url": url},
    } | fields


def parts(traceparent: str) -> tuple[str, str, str]:
    found = re.fullmatch(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", traceparent)
    assert found is not None
    trace_id, span_id, flags = found.groups()
    return trace_id, span_id, flags


def trace_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"


def id_of(span: ReadableSpan) -> str:
    return f"{span.context.span_id:016x}"


def parent_of(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


def links_of(span: ReadableSpan) -> list[str]:
    return [f"{link.context.span_id:016x}" for link in span.links]


async def test_a_job_created_over_rest_is_one_trace_from_its_caller_to_the_webhook_and_the_settled_outcome(
    database: str, spans: Spans, target: Target
) -> None:
    async with whole_system(database) as api:
        job = await api.create(webhook(target.url), CALLER)
        [settled] = await spans.until("settle webhook")
    [send] = spans.named("send webhook")
    [receive] = spans.named("receive webhook")
    [process] = spans.named("process webhook")
    [post] = spans.named("POST")
    assert {trace_of(span) for span in spans.of_executions()} == {TRACE}
    assert parent_of(send) == SPAN
    assert parent_of(receive) == parent_of(process) == id_of(send)
    assert links_of(process) == [id_of(send)]
    assert parent_of(post) == parent_of(settled) == id_of(process)
    assert target.parents == [f"00-{TRACE}-{id_of(post)}-01"]
    kinds = [span.kind for span in (send, receive, process, post, settled)]
    client = SpanKind.CLIENT
    assert kinds == [SpanKind.PRODUCER, client, SpanKind.CONSUMER, client, client]
    order = [send.start_time, receive.start_time, process.start_time, settled.end_time]
    assert order == sorted(order)
    assert all(span.status.status_code is StatusCode.UNSET for span in spans.of_executions())

    number = job["job_id"].removeprefix("job_")
    attributes = dict(process.attributes or {})
    assert attributes.pop("hourbell.fence")
    assert attributes.pop("messaging.client.id")
    assert attributes.pop("hourbell.planned_at")
    assert attributes == {
        "messaging.system": "hourbell",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "webhook",
        "messaging.message.id": f"exe_{number}",
        "hourbell.execution_id": f"exe_{number}",
        "hourbell.job_id": f"job_{number}",
        "hourbell.job_name": "hook",
        "hourbell.tenant": "default",
        "hourbell.queue": "default",
        "hourbell.attempt": 1,
        "hourbell.scheduled_for": job["schedule"]["at"],
        "hourbell.outcome": "succeeded",
    }
    assert settled.attributes is not None
    assert settled.attributes["hourbell.status"] == "SUCCEEDED"
    assert settled.attributes["messaging.operation.type"] == "settle"
    assert post.attributes is not None
    assert post.attributes["http.response.status_code"] == 200
    assert send.attributes is not None
    assert send.attributes["hourbell.job_id"] == job["job_id"]
    # The gate has admitted it in a pass, which may be one for thousands: a trace of its own.
    [admit] = spans.named("admit")
    assert admit.parent is None
    assert admit.attributes == {"hourbell.executions": 1}


async def test_every_attempt_is_a_span_with_its_number_and_its_error(
    database: str, spans: Spans, target: Target
) -> None:
    target.statuses = [503, 200]
    policy = {"delays_seconds": [0]}
    async with whole_system(database) as api:
        await api.create(webhook(target.url, retry_policy=policy), CALLER)
        settled = await spans.until("settle webhook", 2)
    attempts = spans.named("process webhook")
    assert {trace_of(span) for span in attempts} == {TRACE}
    assert len({parent_of(span) for span in attempts}) == 1  # both are children of the creation
    described = [dict(span.attributes or {}) for span in attempts]
    assert [each["hourbell.attempt"] for each in described] == [1, 2]
    assert [each.get("error.type") for each in described] == ["http_503", None]
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR, StatusCode.UNSET]
    assert "503" in (attempts[0].status.description or "")
    statuses = [(span.attributes or {})["hourbell.status"] for span in settled]
    assert statuses == ["RETRYING", "SUCCEEDED"]
    assert len({parts(parent)[1] for parent in target.parents}) == 2


async def test_what_the_caller_does_not_sample_is_passed_on_and_not_exported(
    database: str, spans: Spans, target: Target
) -> None:
    async with whole_system(database) as api:
        await api.create(webhook(target.url), NOT_SAMPLED)
        await target.until_called()
    [parent] = target.parents
    trace_id, span_id, flags = parts(parent)
    assert (trace_id, flags) == (TRACE, "00")
    assert span_id != SPAN
    assert spans.of_executions() == []


async def test_jobs_of_a_batch_and_runs_of_a_recurring_job_have_traces_of_their_own_with_links(
    database: str, spans: Spans, target: Target
) -> None:
    async with whole_system(database) as api:
        batch = [webhook(target.url), webhook(target.url)]
        await api.send("POST", "/api/v1/jobs/batch", batch, CALLER)
        await spans.until("settle webhook", 2)
        [send] = spans.named("send")
        for process in spans.named("process webhook"):
            assert process.parent is None
            assert links_of(process) == [id_of(send)]
            assert [link.context.trace_id for link in process.links] == [int(TRACE, 16)]
        runs = spans.named("process webhook")
        assert len({trace_of(span) for span in runs} | {TRACE}) == 3
        assert (send.attributes or {})["messaging.batch.message_count"] == 2

        every_second = {"cron": "* * * * * *", "max_runs": 2}
        await api.create(webhook(target.url, type="RECURRING", schedule=every_second), CALLER)
        await spans.until("settle webhook", 4)
    [send] = spans.named("send webhook")
    runs = spans.named("process webhook")[2:]
    assert [links_of(span) for span in runs] == [[id_of(send)]] * 2
    assert [span.parent for span in runs] == [None, None]
    assert len({trace_of(span) for span in runs} | {TRACE}) == 3
    # A claim is a part of the trace of its run.
    receives = spans.named("receive webhook")[2:]
    assert {trace_of(span) for span in receives} == {trace_of(span) for span in runs}
    assert sum((span.attributes or {})["hourbell.executions"] for span in spans.named("plan")) >= 2


async def test_without_a_tracer_provider_the_trace_of_the_caller_reaches_targets_and_http_workers(
    database: str, target: Target
) -> None:
    task = {"type": "TASK", "name": "greet", "payload": {}}
    async with whole_system(database) as api:
        await api.create(webhook(target.url), NOT_SAMPLED, key="same")
        # A repeated request has another span, and is the same request.
        await api.create(webhook(target.url), CALLER, key="same")
        await target.until_called()
        assert target.parents == [NOT_SAMPLED]
        for parent in (CALLER, "00-garbage", f"00-{'0' * 32}-{SPAN}-01", None):
            await api.create(webhook("", action=task, queue="http"), parent)
        claimed = []
        while len(claimed) < 4:
            claimed += await api.claim()
        assert [each["traceparent"] for each in claimed] == [CALLER, None, None, None]
    opened = await Database.open(database, 1)
    try:
        specs = await opened.fetch(
            "select spec from hourbell.executions where spec not like $1", f"%{TRACE}%"
        )
        assert len(specs) == 3
        assert not any("trace" in row["spec"] for row in specs)  # nothing more is stored
    finally:
        await opened.close()


async def test_a_change_of_a_job_is_no_creation_and_keeps_its_link(
    database: str, spans: Spans, target: Target
) -> None:
    yearly = {"name": "report", "type": "RECURRING", "schedule": {"cron": "0 0 1 1 *"}}
    body = {**webhook(target.url), **yearly}
    async with whole_system(database) as api:
        path = "/api/v1/jobs/by-name/report"
        first = await api.send("PUT", path, body, CALLER)
        again = await api.send("PUT", path, body, f"00-{'1' * 32}-{SPAN}-01")
        assert again["version"] == first["version"] == 1  # nothing has changed
        await api.send("PATCH", f"/api/v1/jobs/{first['job_id']}", {"priority": "HIGH"})
        await api.send("POST", f"/api/v1/jobs/{first['job_id']}/run", {})
        [process] = await spans.until("process webhook")
    sends = spans.named("send webhook")
    assert [parent_of(span) for span in sends] == [SPAN, SPAN]
    assert links_of(process) == [id_of(sends[0])]


# The library.


@pytest.fixture
def app(database: str) -> App:
    return App("shop", url=database, retry=Retry.delays(0))


async def test_a_handler_continues_the_trace_of_the_span_that_enqueues_its_job(
    app: App, spans: Spans
) -> None:
    tracer = spans.provider.get_tracer("program")

    @app.task(name="sell")
    async def sell(ctx: Context) -> None:
        with tracer.start_as_current_span("inner"):
            await asyncio.sleep(0)

    @app.task(name="sell_in_thread")
    def sell_in_thread(ctx: SyncContext) -> str:
        with tracer.start_as_current_span("inner of thread"):
            return threading.current_thread().name

    async with app, app.worker(FAST):
        with tracer.start_as_current_span("request") as request:
            job = await sell.enqueue()
            other = await asyncio.to_thread(sell_in_thread.enqueue_sync)
        await job.wait(20)
        assert await other.result(20) == "handler"
        await spans.until("settle shop.sell")
        await spans.until("settle shop.sell_in_thread")
    for task, inner in (("sell", "inner"), ("sell_in_thread", "inner of thread")):
        [send] = spans.named(f"send shop.{task}")
        [process] = spans.named(f"process shop.{task}")
        [child] = spans.named(inner)
        assert parent_of(send) == f"{request.get_span_context().span_id:016x}"
        assert parent_of(process) == id_of(send)
        assert links_of(process) == [id_of(send)]
        assert parent_of(child) == id_of(process)
        assert len({trace_of(span) for span in (send, process, child)}) == 1


async def test_a_failure_of_a_handler_is_in_its_span_with_the_stack(app: App, spans: Spans) -> None:
    @app.task(name="refund", retry=Retry.delays(0))
    async def refund(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise LookupError("no such order")

    async with app, app.worker(FAST):
        await (await refund.enqueue()).wait(20)
        await spans.until("settle shop.refund", 2)
    first, second = spans.named("process shop.refund")
    assert (first.attributes or {})["error.type"] == "LookupError"
    assert first.status.description == "LookupError: no such order"
    [event] = first.events
    assert event.name == "exception"
    assert "in refund" in str((event.attributes or {})["exception.stacktrace"])
    assert second.events == ()
    assert (second.attributes or {})["hourbell.attempt"] == 2


async def test_many_jobs_of_one_call_are_linked_to_its_span(app: App, spans: Spans) -> None:
    @app.task(name="mail")
    async def mail(number: int) -> None:
        pass

    @app.task(name="report")
    async def report() -> None:
        pass

    async with app, app.worker(FAST):
        jobs = await mail.enqueue_many({"number": number} for number in range(3))
        group = await app.group([mail.bind(7), mail.bind(8)], then=report.bind())
        await group.wait(20)
        for job in jobs:
            await job.wait(20)
        await spans.until("settle shop.mail", 5)
        [process] = await spans.until("process shop.report")
    sends = spans.named("send shop.mail")
    assert [(span.attributes or {})["messaging.batch.message_count"] for span in sends] == [3, 2]
    runs = spans.named("process shop.mail")
    linked = sorted(link for span in runs for link in links_of(span))
    assert linked == sorted([id_of(sends[0])] * 3 + [id_of(sends[1])] * 2)
    assert links_of(process) == [id_of(sends[1])]
    assert len({trace_of(span) for span in runs}) == 5


async def test_a_call_for_many_executions_has_a_span_with_a_link_to_each(
    app: App, spans: Spans
) -> None:
    tracer = spans.provider.get_tracer("program")

    @app.batch_task(name="index", size=2, max_wait=10)
    async def index(items: list[Item[int]]) -> None:
        with tracer.start_as_current_span("inner"):
            pass

    async with app, app.worker(FAST):
        for job in await index.enqueue_many([{"value": 1}, {"value": 2}]):
            await job.wait(20)
        await spans.until("settle shop.index", 2)
    [call] = spans.named("process shop.index batch")
    [inner] = spans.named("inner")
    runs = spans.named("process shop.index")
    assert parent_of(inner) == id_of(call)
    assert sorted(links_of(call)) == sorted(map(id_of, runs))
    assert (call.attributes or {})["messaging.batch.message_count"] == 2


class _Broken(SpanProcessor):
    def __init__(self, *names: str) -> None:
        self._names = names  # of spans that must not start; none may end

    def on_start(self, span: Span, parent_context: object = None) -> None:
        if span.name in self._names:
            raise RuntimeError("a bug of the program")

    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("another one")


async def test_a_processor_that_raises_errors_breaks_no_run(app: App, spans: Spans) -> None:
    @app.task(name="steady")
    async def steady() -> None:
        pass

    @app.batch_task(name="index", size=2, max_wait=10)
    async def index(items: list[Item[int]]) -> None:
        pass

    batch = "process shop.index batch"
    spans.provider.add_span_processor(_Broken("process shop.steady", "send", batch))
    async with app, app.worker(FAST):
        with capture_logs() as logs:
            assert await (await steady.enqueue()).wait(20) == "SUCCEEDED"
            for job in await index.enqueue_many([{"value": 1}, {"value": 2}]):
                assert await job.wait(20) == "SUCCEEDED"
    assert {"start_run", "_start_send", "_start_batch"} <= {line.get("step") for line in logs}


async def test_an_enqueue_that_is_refused_is_an_error_of_its_span(app: App, spans: Spans) -> None:
    @app.task(name="once")
    async def once() -> None:
        pass

    async with app:
        configured = once.configure(unique_key="one", delay=60)
        await configured.enqueue()
        with pytest.raises(Exception, match="belongs to"):
            await configured.enqueue()
    refused = spans.named("send")
    assert [(span.attributes or {})["error.type"] for span in refused] == ["DuplicateJob"]


async def test_sql_stores_a_valid_trace_and_ignores_any_other(app: App) -> None:
    @app.task(name="noop")
    async def noop() -> None:
        pass

    sent = {
        CALLER: True,
        NOT_SAMPLED: True,
        "00-garbage": False,
        f"00-{'0' * 32}-{SPAN}-01": False,
        f"00-{TRACE}-{'0' * 16}-01": False,
        '","name":"other': False,
    }
    async with app:
        opened = await Database.open(app.database_url, 1)
        try:
            for field, (text, stored) in itertools.product(
                ("traceparent", "trace_link"), sent.items()
            ):
                job_id = await opened.value(
                    "select job_id from hourbell.try_enqueue($1, array['{}'])",
                    json.dumps([{"task": "shop.noop", field: text}]),
                )
                spec = await opened.value(
                    "select spec from hourbell.executions where id = $1", job_id
                )
                found = json.loads(spec)
                assert (found.get(field) == text) is stored, text
                assert found["name"] == "shop.noop"
        finally:
            await opened.close()
