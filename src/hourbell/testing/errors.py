"""What can go wrong in a test apart from the code under test."""

from __future__ import annotations

from hourbell.errors import HourbellError


class EndlessRuns(HourbellError):
    """Jobs run again and again while virtual time does not pass."""

    code = "endless_runs"
    title = "Jobs never end"


class Misuse(HourbellError):
    """A call to the testing kit that cannot work."""

    code = "misuse"
    title = "The testing kit cannot do that"


class AttemptFailed(HourbellError):
    """An attempt failed without an exception from its handler: a timeout, or a payload that does not match."""

    code = "attempt_failed"
    title = "An attempt failed"
