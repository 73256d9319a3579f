"""What a worker counts of its executions and webhooks."""

from types import SimpleNamespace

import msgspec
import pytest

from exposition import parsed
from hourbell.actions.circuits import FAILURES, FIRST_PAUSE_SECONDS, OVER_SECONDS, Circuits
from hourbell.actions.counts import WebhookCounts
from hourbell.model.executions import Claimed
from hourbell.model.jobs import SentSpec, TaskAction, WebhookAction
from hourbell.observe.metrics import MAX_SERIES, Metrics
from hourbell.worker.counts import RunCounts

BOOT = 1_700_000_000.0  # of the machine, since 1970: its monotonic clock counts from there
TASK = SentSpec(name="job", action=TaskAction(name="send"))
WEBHOOK = SentSpec(name="job", action=WebhookAction(url="http://example.com/", method="GET"))


def claimed(scheduled: float, attempt: int = 1) -> Claimed:
    return Claimed(1, 1, "acme", attempt, 1, scheduled, None, "")


def counts_of(metrics: Metrics, now: float = 50.0) -> RunCounts:
    return RunCounts(metrics, lambda: BOOT + now, lambda: now)


def test_the_delay_of_a_start_is_measured_by_the_clock_of_the_database() -> None:
    metrics = Metrics()
    counts = counts_of(metrics)
    counts.started(claimed(BOOT + 10.0), TASK, 10.2)
    counts.started(claimed(BOOT + 10.0), TASK, 13.0)
    counts.started(claimed(BOOT + 20.0), TASK, 19.9)  # the clocks are not exactly the same
    delays = parsed(metrics.render().decode())["hourbell_schedule_delay_seconds"]
    assert delays.value("_count") == 3
    assert delays.value("_bucket", le="0.001") == 1
    assert delays.value("_bucket", le="0.25") == 2
    assert delays.value("_bucket", le="5") == 3
    assert delays.value("_sum") == pytest.approx(3.2, abs=1e-5)


def test_only_the_first_start_of_an_execution_has_a_delay() -> None:
    metrics = Metrics()
    counts = counts_of(metrics)
    counts.started(claimed(BOOT, attempt=2), TASK, 10.0)
    for rerun in ({"interruptions": 1}, {"snoozes": 1}):
        counts.started(claimed(BOOT), msgspec.structs.replace(TASK, **rerun), 10.0)
    delays = parsed(metrics.render().decode())["hourbell_schedule_delay_seconds"]
    assert delays.value("_count") == 0


def test_times_of_runs_are_counted_by_task_and_those_of_webhooks_together() -> None:
    metrics = Metrics()
    counts = counts_of(metrics)
    for seconds in (0.0, 0.007, 0.007, 1.2):
        counts.ended(TASK, seconds)
    counts.ended(WEBHOOK, 0.03)
    for _ in range(2):  # what was added is not added again
        counts.flush()
        runs = parsed(metrics.render().decode())["hourbell_run_duration_seconds"]
        assert runs.value("_count", task="send") == 4
        assert runs.value("_bucket", task="send", le="0.01") == 3
        assert runs.value("_sum", task="send") == pytest.approx(1.214)
        assert runs.value("_count", task="@webhook") == 1


def test_what_a_worker_holds_is_looked_at_when_it_is_shown() -> None:
    metrics = Metrics()

    class Held(SimpleNamespace):
        def __len__(self) -> int:
            return int(self.number)

    held = Held(number=0, lingering=0)
    counts_of(metrics).watch(200, held)
    held.number, held.lingering = 7, 1
    shown = parsed(metrics.render().decode())
    assert shown["hourbell_worker_slots"].value() == 200
    assert shown["hourbell_worker_in_flight"].value() == 7
    assert shown["hourbell_worker_unstoppable"].value() == 1


# Webhooks.


def test_a_webhook_is_counted_once_by_its_status_or_by_why_there_was_none() -> None:
    metrics = Metrics()
    counts = WebhookCounts(metrics, lambda: 0.0)
    counts.answered(200)
    counts.failed("http_503", 503)
    counts.failed("connection", None)
    counts.failed("connection", 200)  # the connection was lost during the body
    counts.failed("timeout", None)
    for code in range(100, 1000):  # whatever a target answers
        counts.answered(code)
    counts.failed("tls", None)
    codes = parsed(metrics.render().decode())["hourbell_webhook_responses_total"].values("code")
    assert (codes["200"], codes["503"]) == (2, 2)
    assert (codes["connection"], codes["timeout"], codes["tls"]) == (2, 1, 1)
    assert len(codes) == MAX_SERIES + 1
    assert sum(codes.values()) == 906


def test_circuits_are_shown_by_their_state() -> None:
    metrics, now = Metrics(), [0.0]
    hosts, endpoints = Circuits(), Circuits()
    WebhookCounts(metrics, lambda: now[0]).watch({"host": hosts, "endpoint": endpoints})

    def states() -> dict[tuple[str, str], float]:
        shown = parsed(metrics.render().decode())["hourbell_circuits"]
        return {
            (scope, state): shown.value(scope=scope, state=state)
            for scope in ("host", "endpoint")
            for state in ("open", "half_open")
            if shown.value(scope=scope, state=state)
        }

    assert states() == {}
    for call in range(FAILURES):
        now[0] = call * OVER_SECONDS
        hosts.failed(("acme", "example.com", 443), call, now[0])
        endpoints.failed(("acme", "GET", f"http://example.com/{call}"), call, now[0])
    assert states() == {("host", "open"): 1}  # each endpoint has failed only once
    now[0] += FIRST_PAUSE_SECONDS + OVER_SECONDS
    assert states() == {("host", "half_open"): 1}
    hosts.succeeded(("acme", "example.com", 443))
    assert states() == {}
