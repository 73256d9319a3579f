"""This machine's clock, for spans: the same one that the spans of the surrounding program use."""

from __future__ import annotations

import time


def epoch_ns() -> int:
    """Nanoseconds since 1970."""
    return time.time_ns()
