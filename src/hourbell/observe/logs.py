"""Structured logs: readable on a terminal, otherwise JSON lines; on stderr, because stdout is for output.

Every logger of Hourbell names its component, and each component has a level, which can change while
the process runs. A line that belongs to an execution has its id; one written within a span
has the ids of the trace and the span.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import structlog
from structlog.typing import EventDict, WrappedLogger

from hourbell.model.errors import ConfigurationError
from hourbell.model.log_levels import LEVELS, LogLevels, parse_log_levels
from hourbell.observe.traces import current_ids

log = structlog.get_logger(component="process")

_FILE = "@"  # marks the name of a file with the levels


class Logs:
    """The logs of this process, and their levels."""

    def __init__(self, setting: str) -> None:
        """`setting` is the value of HOURBELL_LOG_LEVEL; raises ConfigurationError."""
        self._setting = setting
        self._levels = _read_levels(setting)

    def reread(self) -> None:
        """Read the levels again, if they are in a file. An error leaves them unchanged."""
        try:
            self._levels = _read_levels(self._setting)
        except ConfigurationError as error:
            log.error("log levels not changed", error=error.message)
            return
        log.warning("log levels read", levels=_text_of(self._levels))

    def drop_quiet(self, logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """A processor that drops lines below the level of their component."""
        level = LEVELS.get(method, LEVELS["error"])  # `exception` and `critical` are errors
        if level < self._levels.of(event.get("component")):
            raise structlog.DropEvent
        return event


def configure_logs(setting: str) -> Logs:
    """Configure logging for this process; called once, by a command."""
    logs = Logs(setting)
    _configure(logs, cache_logger_on_first_use=True)
    # During an outage it logs tracebacks for what we log in one line.
    logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)
    return logs


def configure_logs_of_library(setting: str, for_people: bool = False) -> None:
    """For a worker inside a program: log to stderr, unless the program has configured structlog.

    `for_people`: readable, even if stderr is no terminal, as in a test run.
    """
    if not structlog.is_configured():
        _configure(Logs(setting), cache_logger_on_first_use=False, for_people=for_people)


def _configure(logs: Logs, cache_logger_on_first_use: bool, for_people: bool = False) -> None:
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            logs.drop_quiet,
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _add_trace,
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(
                colors=terminal, exception_formatter=structlog.dev.plain_traceback
            )
            if terminal or for_people
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.NOTSET),
        # Looked up each time, because a program or a test may replace it.
        logger_factory=lambda *names: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=cache_logger_on_first_use,
    )


def _add_trace(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    if (ids := current_ids()) is not None:
        event["trace_id"], event["span_id"] = ids
    return event


def _read_levels(setting: str) -> LogLevels:
    if not setting.startswith(_FILE):
        return parse_log_levels(setting)
    file = Path(setting.removeprefix(_FILE))
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(
            f"Cannot read the log levels from {file}: {error}. Create the file with a text such "
            f"as info,worker=debug, or change HOURBELL_LOG_LEVEL."
        ) from error
    return parse_log_levels(text.strip())


def _text_of(levels: LogLevels) -> str:
    names = {number: name for name, number in LEVELS.items()}
    others = (f"{name}={names[level]}" for name, level in sorted(levels.components.items()))
    return ",".join((names[levels.default], *others))
