"""A whole system that exports its spans to a real OTLP receiver, and its logs; and one that does not."""

import asyncio
import contextlib
import gzip
import json
import logging
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from structlog.testing import capture_logs

from answers import opened
from hourbell.observe.exporting import configure_traces, flush_traces, forward_logs
from integration.life.support import eventually
from ports import free_port

SHOP = """
import hourbell
from hourbell import App, Context, SyncContext

app = App("shop")


@app.task
async def sell(ctx: Context, number: int) -> None:
    ctx.log.info("sold", number=number)
    ctx.log.debug("details")


@app.task(process=True)
def compute(ctx: SyncContext) -> None:
    from opentelemetry import trace

    ctx.log.info("computing")
    with trace.get_tracer("shop").start_as_current_span("inner"):
        pass
"""
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


PAGE = (Path(__file__).parents[3] / "docs" / "traces.md").read_text("utf-8")
EXPORTING, CHANGING_LEVELS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


class Receiver:
    """An OTLP receiver over HTTP."""

    def __init__(self) -> None:
        self.services: set[str] = set()
        self.spans: list[Any] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.take(self.path, ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def take(self, path: str, request: ExportTraceServiceRequest) -> None:
        assert path == "/v1/traces"
        for resource in request.resource_spans:
            attributes = {
                each.key: each.value.string_value for each in resource.resource.attributes
            }
            self.services.add(attributes["service.name"])
            for scope in resource.scope_spans:
                self.spans += scope.spans

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    def __enter__(self) -> "Receiver":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


async def ask(port: int, path: str, body: object = None, **headers: str) -> Any:
    def send() -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", **headers},
        )
        with opened(request, timeout=10) as answer:
            return json.load(answer)

    return await asyncio.to_thread(send)


async def is_ready(port: int) -> bool:
    try:
        return bool((await ask(port, "/readyz"))["status"] == "ready")
    except OSError:
        return False


def task_job(name: str, **payload: object) -> dict[str, object]:
    return {
        "name": name,
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": 0},
        "action": {"type": "TASK", "name": f"shop.{name}", "payload": payload},
    }


async def test_a_system_exports_its_spans_by_otlp_and_logs_lines_with_ids_at_levels_that_change(
    database: str, receiver: Receiver, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    levels = tmp_path / "levels"
    levels.write_text("warning,tasks=info\n")
    port = free_port()
    install, export, up = (shlex.split(line, comments=True) for line in EXPORTING.splitlines())
    (extra,) = re.findall(r"hourbell\[(\w+)\]", install[-1])
    assert extra in metadata("hourbell").get_all("Provides-Extra", [])
    name, address = export[1].split("=")
    assert (export[0], address) == ("export", "http://127.0.0.1:4318")
    env = {
        "HOURBELL_DATABASE_URL": database,
        "HOURBELL_DATA_DIR": str(tmp_path),
        "HOURBELL_PORT": str(port),
        "HOURBELL_LOG_LEVEL": f"@{levels}",
        name: receiver.url,
        "OTEL_BSP_SCHEDULE_DELAY": "1000",  # milliseconds
        "PYTHONPATH": str(tmp_path),
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *up, "shop:app"],
            env={**os.environ, **env},
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    try:
        await eventually(lambda: is_ready(port), 60)
        path, key = "/api/v1/jobs", {"Idempotency-Key": "1"}
        sold = await ask(port, path, task_job("sell", number=1), traceparent=CALLER, **key)
        key = {"Idempotency-Key": "2"}
        await ask(port, path, task_job("compute"), traceparent=CALLER, **key)

        async def exported() -> bool:
            return bool(receiver.named("inner") and receiver.named("settle shop.compute"))

        await eventually(exported, 60)
        levels.write_text("warning,tasks=debug\n")
        process.send_signal(signal.SIGUSR2)

        def lines() -> list[dict[str, Any]]:
            text = (tmp_path / "log").read_text()
            return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

        async def is_read() -> bool:
            return any(line["event"] == "log levels read" for line in lines())

        await eventually(is_read)
        key = {"Idempotency-Key": "3"}
        again = await ask(port, path, task_job("sell", number=2), **key)

        async def has_succeeded() -> bool:
            seen = await ask(port, f"/api/v1/executions/exe_{again['job_id'][4:]}")
            return bool(seen["status"] == "SUCCEEDED")

        await eventually(has_succeeded)
        command = CHANGING_LEVELS.replace("/etc/hourbell/log-level", str(levels))
        subprocess.run(["sh", "-ec", command.replace("4711", str(process.pid))], check=True)

        async def is_read_again() -> bool:
            read = [line for line in lines() if line["event"] == "log levels read"]
            return len(read) == 2 and read[1]["levels"] == "info,webhooks=debug"

        await eventually(is_read_again)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    finally:
        process.kill()
        process.wait()

    assert receiver.services == {"hourbell"}
    [inner] = receiver.named("inner")
    [compute] = receiver.named("process shop.compute")
    trace_id, span_id = CALLER.split("-")[1:3]
    assert inner.parent_span_id == compute.span_id
    assert inner.trace_id == compute.trace_id == bytes.fromhex(trace_id)
    sends = [each for each in receiver.spans if each.name.startswith("send shop.")]
    assert [each.parent_span_id.hex() for each in sends[:2]] == [span_id, span_id]
    # What had ended when the process was stopped is exported too.
    assert len(receiver.named("settle shop.sell")) == 2

    said = lines()
    first, second = (line for line in said if line["event"] == "sold")
    [process_span] = [
        span for span in receiver.named("process shop.sell") if span.trace_id.hex() == trace_id
    ]
    assert (first["trace_id"], first["span_id"]) == (trace_id, process_span.span_id.hex())
    number = sold["job_id"].removeprefix("job_")
    assert (first["job_id"], first["execution_id"]) == (f"job_{number}", f"exe_{number}")
    assert (first["attempt"], first["tenant"], first["task"]) == (1, "default", "shop.sell")
    assert (first["component"], first["level"]) == ("tasks", "info")
    assert second["job_id"] == again["job_id"]
    [computing] = (line for line in said if line["event"] == "computing")
    assert computing["worker"] == first["worker"]
    assert computing["trace_id"] == trace_id
    # Of the second run the details are there too; of the other components nothing is.
    [details] = (line for line in said if line["event"] == "details")
    assert details["job_id"] == again["job_id"]
    assert not any(line["event"] == "became leader" for line in said)


UNTRACED = """
import asyncio, sys
from hourbell import App

app = App("shop", url=sys.argv[1])


@app.task(name="sell")
async def sell() -> None:
    pass


async def main() -> None:
    async with app, app.worker():
        assert await (await sell.enqueue()).wait(30) == "SUCCEEDED"


asyncio.run(main())
print(*(name for name in sys.modules if name.startswith("opentelemetry")), "none")
"""


async def test_without_an_exporter_nothing_of_opentelemetry_is_even_imported(
    database: str,
) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    command = [sys.executable, "-c", UNTRACED, database]
    done = await asyncio.to_thread(
        subprocess.run, command, env=env, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "none"), done.stderr


OTLP = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (OTLP, "OpenTelemetry is not installed"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "OpenTelemetry is not installed"),
        ({}, None),
        (OTLP | {"OTEL_TRACES_EXPORTER": "none"}, None),
        (OTLP | {"OTEL_SDK_DISABLED": "true"}, None),
    ],
)
def test_a_process_without_the_packages_says_so_if_it_is_to_export_and_works(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], said: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with capture_logs() as logs:
        configure_traces(env)
    assert [line["event"].partition(": ")[2].partition(".")[0] for line in logs] == (
        [] if said is None else [said]
    )


def test_an_exporter_that_no_package_provides_is_named() -> None:
    with capture_logs() as logs:
        configure_traces(OTLP | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert [line["exporter"] for line in logs] == ["otlp_proto_grpc"]
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def test_one_of_several_exporters_that_no_package_provides_is_named() -> None:
    with capture_logs() as logs:
        configure_traces(OTLP | {"OTEL_TRACES_EXPORTER": "otlp, pigeons"})
    assert [line["exporter"] for line in logs] == ["pigeons"]


def test_an_exporter_that_does_not_accept_its_settings_is_no_reason_not_to_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "-1")
    with capture_logs() as logs:
        configure_traces(OTLP)
    assert ["ValueError" in line["error"] for line in logs] == [True]
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def test_what_exporters_log_is_a_line_like_all_others() -> None:
    exporters = logging.getLogger("opentelemetry.exporter")
    with capture_logs() as logs, forwarding_logs():
        exporters.warning("Transient error %s, retrying", 503)
        exporters.info("not a problem")
    assert logs == [
        {
            "component": "process",
            "event": "Transient error 503, retrying",
            "logger": "opentelemetry.exporter",
            "log_level": "warning",
            "exc_info": None,
        }
    ]


@contextlib.contextmanager
def forwarding_logs() -> Iterator[None]:
    forward_logs()
    try:
        yield
    finally:
        own = logging.getLogger("opentelemetry")
        own.handlers.clear()
        own.propagate = True


class _Stuck(trace.NoOpTracerProvider):
    """Of an exporter whose collector does not answer."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()

    def force_flush(self) -> None:
        self.began.set()
        self.may_end.wait()


def test_a_collector_that_does_not_answer_delays_the_end_of_a_process_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stuck = _Stuck()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", stuck)
    monkeypatch.setattr("hourbell.observe.exporting._FLUSH_SECONDS", 0.01)
    flush_traces()
    assert stuck.began.wait(10)
    assert not stuck.may_end.is_set()
    stuck.may_end.set()
