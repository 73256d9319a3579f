"""Structured logs: readable on a terminal, else JSON lines; on stderr, as stdout is for output."""

from __future__ import annotations

import logging
import sys

import structlog


def configure_logs(level: str) -> None:
    """Configure logging for this process; called once, by a command."""
    _configure(level, cache_logger_on_first_use=True)
    # During an outage it logs tracebacks for what we log in one line.
    logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)


def configure_logs_of_library(level: str) -> None:
    """For a worker inside a program: on stderr, unless the program has configured structlog."""
    if not structlog.is_configured():
        _configure(level, cache_logger_on_first_use=False)


def _configure(level: str, cache_logger_on_first_use: bool) -> None:
    people = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
            if people
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        # Looked up each time: a program, or a test, may replace it.
        logger_factory=lambda *names: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=cache_logger_on_first_use,
    )
