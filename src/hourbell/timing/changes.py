"""The clock changes of a zone within a period."""

from datetime import UTC, datetime, timedelta

import msgspec

from hourbell.timing.zones import load_zone

_STEP = timedelta(days=1)  # changes are at least a week apart
_SECOND = timedelta(seconds=1)


class ClockChange(msgspec.Struct, frozen=True):
    """An instant at which the offset of a zone changes."""

    at: datetime  # UTC, the first instant with the later offset
    before: timedelta  # how far the zone is ahead of UTC before,
    after: timedelta  # and from this instant on

    @property
    def shift(self) -> timedelta:
        """Positive: clocks go forward."""
        return self.after - self.before

    @property
    def wall_times(self) -> tuple[datetime, datetime]:
        """The wall times (naive) that are missing or occur twice, from the first up to the second."""
        naive = self.at.replace(tzinfo=None)
        low, high = sorted([self.before, self.after])
        return naive + low, naive + high


def clock_changes(zone: str, after: datetime, through: datetime) -> tuple[ClockChange, ...]:
    """The changes of a zone in (after, through], earliest first; raises UnknownZone."""
    found = []
    info = load_zone(zone)

    def offset_at(instant: datetime) -> timedelta:
        offset = instant.astimezone(info).utcoffset()
        assert offset is not None
        return offset

    earlier, offset = after, offset_at(after)
    while earlier < through:
        later = min(earlier + _STEP, through)
        next_offset = offset_at(later)
        if next_offset != offset:
            low, high = earlier, later
            while high - low > _SECOND:
                middle = low + (high - low) / 2
                low, high = (middle, high) if offset_at(middle) == offset else (low, middle)
            # Changes are at whole seconds.
            at = high.astimezone(UTC).replace(microsecond=0)
            found.append(ClockChange(at, offset, next_offset))
        earlier, offset = later, next_offset
    return tuple(found)
