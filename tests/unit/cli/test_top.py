"""The overview in a terminal."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from hourbell.cli.top import on_screen, top_lines
from hourbell.client.values import Overview

AT = datetime(2026, 11, 17, 14, 3, 12, tzinfo=UTC)
FIGURES = ("succeeded", "failed", "dead", "skipped", "cancelled", "superseded")


def overview(**fields: Any) -> Overview:
    figures = {"started": 60, **dict.fromkeys(FIGURES, 1)}
    given: dict[str, Any] = {
        "at": AT,
        "window": "1h",
        "tenant_id": None,
        "bucket_seconds": 60,
        "complete_until": None,
        "series": [
            {"at": AT + timedelta(minutes=k), **figures, "started": k, "lateness_ms": None}
            for k in range(60)
        ],
        "totals": figures,
        "started_per_minute": 1.0,
        "lateness_ms": {"p50": 4.0, "p95": 31.0, "p99": 5_000.0},
        "sampled": False,
        "depth": [
            {"priority": "LOW", "ready": 10_000, "parked": 610, "running": 200}
            | {"oldest_seconds": 540.0, "at_least": ["ready"]}
        ],
        "dead_today": {"count": 412, "at_least": False},
        "leader": {
            "node_id": "6f0c",
            "name": "node-a",
            "epoch": 41,
            "since": AT - timedelta(days=3),
            "renewed_at": AT,
            "expires_at": AT,
            "present": True,
            "clock_drift_ms": 2.1,
            "planned_until": AT + timedelta(seconds=61),
            "planner_lag_seconds": 0.0,
            "changes_in_1h": 0,
            "changes_in_24h": 1,
        },
        "workers": {"alive": 14, "lost_in_1h": 1, "slots": 2800, "running": 2192},
        "failures": [],
        "attention": [
            {"code": "queue_without_worker", "severity": "error", "count": 1204, "at_least": False}
            | {"since": AT - timedelta(minutes=12), "message": "1,204 executions wait in mail."}
            | {"refers_to": {"kind": "queue", "id": "mail", "name": "mail", "tenant_id": "acme"}}
        ],
        "peak": {"at": AT + timedelta(hours=12), "executions": 12_400, "hours": []}
        | {"complete_until": AT + timedelta(hours=24), "estimated": False},
    }
    return msgspec.convert(given | fields, Overview, strict=False)


def test_the_screen_has_the_state_of_the_cell() -> None:
    lines = top_lines(overview(), 100, color=False, blocks=False)
    text = "\n".join(lines)
    assert "leader node-a, epoch 41 for 3 d, planned 61 s ahead" in lines[0]
    assert "14 workers, 1 lost in 1 h, 2,192 of 2,800 slots in use" in text
    assert "started 60 (1.0 per minute)  succeeded 1  failed 1  dead 1  skipped 1" in text
    assert "p50 4 ms  p95 31 ms  p99 5.0 s" in text
    assert "busiest minute 02:03:12Z (in 12 h), 12,400 due" in text
    assert "10,000+" in text
    assert "9 min" in text
    assert "error    1,204 executions wait in mail. [acme] (12 min)" in lines


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_the_line_of_starts_fits_and_rises(width: int) -> None:
    (line,) = [
        each
        for each in top_lines(overview(), width, color=False, blocks=True)
        if each.startswith("started  ")
    ]
    marks = line.removeprefix("started  ")
    assert len(marks) <= max(width - 9, 10)
    assert list(marks) == sorted(marks)
    assert marks[-1] == "█"


def test_the_minute_that_is_not_over_does_not_look_like_a_fall() -> None:
    even = msgspec.to_builtins(overview())["series"]
    for bucket in even:
        bucket["started"] = 50
    even[-1]["started"] = 2
    for width in (20, 40, 200):
        lines = top_lines(overview(series=even), width, color=False, blocks=True)
        (line,) = [each for each in lines if each.startswith("started  ")]
        assert set(line.removeprefix("started  ")) == {"█"}


def test_a_forecast_that_is_not_complete_says_until_when_it_is() -> None:
    peak = msgspec.to_builtins(overview())["peak"]
    text = "\n".join(top_lines(overview(), 100, color=False, blocks=False))
    assert "counted until" not in text
    pending = top_lines(overview(peak=None, peak_known=False), 100, color=False, blocks=False)
    assert "next 24 h:  the forecast is being computed" in pending
    peak |= {"complete_until": AT + timedelta(hours=20)}
    text = "\n".join(top_lines(overview(peak=peak), 100, color=False, blocks=False))
    assert "12,400 due; counted until 10:03:12Z" in text


@pytest.mark.parametrize("width", [45, 60, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = top_lines(overview(), width, color=False, blocks=True)
    assert [line for line in lines if len(line) > width] == []


def test_a_low_terminal_keeps_the_first_lines_and_says_how_many_are_left_out() -> None:
    lines = [str(number) for number in range(30)]
    assert on_screen(lines, 31) == lines
    assert on_screen(lines, 20) == [*lines[:18], "… 12 more lines"]


def test_a_cell_without_a_leader_and_without_work_is_shown_too() -> None:
    quiet = overview(
        leader=None, workers=None, depth=[], attention=[], peak=None, lateness_ms=None, series=[]
    )
    lines = top_lines(quiet, 80, color=False, blocks=True)
    assert "no leader" in lines[0]
    assert lines[-1] == "Nothing needs attention."


def test_texts_of_others_cannot_write_to_the_terminal() -> None:
    item = msgspec.to_builtins(overview())["attention"][0] | {"message": "a\x1b[2Jb\nc"}
    text = "\n".join(top_lines(overview(attention=[item]), 80, color=False, blocks=True))
    assert "\x1b" not in text
    assert "a" in text
