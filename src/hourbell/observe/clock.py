"""This machine's clock, for spans and log lines: the same one that the surrounding program uses."""

from __future__ import annotations

import time
from datetime import UTC, datetime


def epoch_ns() -> int:
    """Nanoseconds since 1970."""
    return time.time_ns()


def utc_now() -> datetime:
    """The time of day, for log lines."""
    return datetime.now(UTC)
