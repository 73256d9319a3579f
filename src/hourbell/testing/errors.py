"""What goes wrong in a test, and is not a failure of the code under test."""

from __future__ import annotations

from hourbell.errors import HourbellError


class EndlessRuns(HourbellError):
    """Jobs run again and again, and virtual time does not pass."""

    code = "endless_runs"
    title = "Jobs never end"


class Misuse(HourbellError):
    """A call of the testing kit that cannot do what it says."""

    code = "misuse"
    title = "The testing kit cannot do that"


class AttemptFailed(HourbellError):
    """An attempt failed without an exception of its handler: a timeout, or a payload that does not fit."""

    code = "attempt_failed"
    title = "An attempt failed"
