"""Log lines of a process: their form, their levels by component, and the ids of a span."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from hourbell.model.errors import ConfigurationError
from hourbell.observe.logs import configure_logs, configure_logs_of_library


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def say_everything() -> None:
    for component in ("worker", "api", "tasks"):
        log = structlog.get_logger(component=component)
        log.debug("debug")
        log.info("info")
        log.warning("warning")


def test_each_component_has_its_own_level(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("worker=debug,api=warning")
    say_everything()
    assert [(line["component"], line["level"]) for line in lines(capsys)] == [
        *(("worker", "debug"), ("worker", "info"), ("worker", "warning")),
        *(("api", "warning"), ("tasks", "info"), ("tasks", "warning")),
    ]


def test_levels_in_a_file_change_while_the_process_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "levels"
    file.write_text("error")
    logs = configure_logs(f"@{file}")
    say_everything()
    assert lines(capsys) == []
    file.write_text("error,process=info,api=debug\n")
    logs.reread()
    say_everything()
    [read, *said] = lines(capsys)
    assert (read["event"], read["levels"]) == ("log levels read", "error,api=debug,process=info")
    assert [(line["component"], line["level"]) for line in said] == [
        *(("api", "debug"), ("api", "info"), ("api", "warning")),
    ]
    # A mistake in the file changes nothing.
    file.write_text("apy=debug")
    logs.reread()
    say_everything()
    [refused, *said] = lines(capsys)
    assert refused["event"] == "log levels not changed"
    assert "Did you mean api?" in str(refused["error"])
    assert len(said) == 3


def test_a_file_that_cannot_be_read_is_named_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Cannot read the log levels from .*missing"):
        configure_logs(f"@{tmp_path / 'missing'}")


def test_a_line_within_a_span_has_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info")
    log = structlog.get_logger(component="tasks")
    span = SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(0))
    with use_span(NonRecordingSpan(span)):
        log.info("within")
    log.info("outside")
    within, outside = lines(capsys)
    assert (within["trace_id"], within["span_id"]) == (f"{1:032x}", f"{2:016x}")
    assert not {"trace_id", "span_id"} & outside.keys()


def test_a_program_that_has_configured_structlog_keeps_its_logs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    configure_logs_of_library("error")
    structlog.get_logger(component="worker").info("kept")
    assert "event='kept'" in capsys.readouterr().out


def test_a_terminal_gets_lines_for_people() -> None:
    program = (
        "import structlog; from hourbell.observe.logs import configure_logs;"
        "configure_logs('info');"
        "structlog.get_logger(component='worker').info('claimed', execution_id='exe_1')"
    )
    ours, theirs = pty.openpty()
    subprocess.run([sys.executable, "-c", program], stderr=theirs, check=True)
    os.close(theirs)
    said = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "claimed" in said
    assert "exe_1" in said
    assert not said.startswith("{")
