"""Intervals: every N whole seconds, written `@every N+offset`.

The occurrences are the epoch seconds that leave `offset` when divided by N. So an
interval counts neither from the previous run, which would drift, nor from the start of a process.
Jobs with the same N and the same offset share one timetable, which needs no zone.
"""

import re
from datetime import UTC, datetime, timedelta

import msgspec

from hourbell.timing.errors import InvalidRule
from hourbell.timing.foreign import refusal_of

MAX_EVERY_SECONDS = 31_536_000  # 365 days; for longer intervals use a cron rule

_EVERY = re.compile(r"@every ([0-9]{1,8})\+([0-9]{1,8})")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)


class Interval(msgspec.Struct, frozen=True):
    """Every `every_seconds`, at the epoch seconds that leave `offset_seconds`."""

    every_seconds: int
    offset_seconds: int

    def first_after(self, after: datetime) -> datetime | None:
        """The first occurrence strictly after an instant; None beyond the year 9999."""
        whole_seconds = (after - _EPOCH) // _SECOND
        since_last = (whole_seconds - self.offset_seconds) % self.every_seconds
        try:
            return _EPOCH + (whole_seconds - since_last + self.every_seconds) * _SECOND
        except OverflowError:
            return None


def interval_rule(every_seconds: int, anchor: datetime) -> str:
    """The rule of a job that runs every `every_seconds`, with one run at `anchor`."""
    if not 1 <= every_seconds <= MAX_EVERY_SECONDS:
        raise _out_of_range(every_seconds)
    return f"@every {every_seconds}+{(anchor - _EPOCH) // _SECOND % every_seconds}"


def is_interval(rule: str) -> bool:
    return rule.startswith("@every")


def parse_interval(rule: str) -> Interval:
    """Parse `@every N+offset`; leading zeros are rejected, so that an interval has one text."""
    match = _EVERY.fullmatch(rule)
    if match is None:
        ours = "an interval like @every 300+0, in whole seconds"
        foreign = refusal_of(rule)
        reason = f"must be {ours}" if foreign is None else f"{foreign}, or here {ours}"
        raise InvalidRule("expression", reason)
    every_seconds, offset_seconds = int(match[1]), int(match[2])
    if not 1 <= every_seconds <= MAX_EVERY_SECONDS:
        raise _out_of_range(every_seconds)
    if not offset_seconds < every_seconds:
        raise InvalidRule(
            "expression", f"must have an offset from 0 to {every_seconds - 1}, one less than N"
        )
    if rule != f"@every {every_seconds}+{offset_seconds}":
        raise InvalidRule("expression", "must have no leading zeros")
    return Interval(every_seconds, offset_seconds)


def _out_of_range(every_seconds: int) -> InvalidRule:
    return InvalidRule(
        "expression",
        f"an interval must be from 1 to {MAX_EVERY_SECONDS} seconds, not {every_seconds}; "
        "use a cron rule for longer intervals",
    )
