"""Every clock change there is, found without the code under test.

`zoneinfo` does not show the changes it has read, so the files are read a second time here. They
list changes up to a year, 2007 in New York, and end with a rule for all later ones. Those are
found by looking at the offset every few days: no two changes are nearer than that, as
`test_zone_data.py` makes sure.
"""

import struct
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

from hourbell.timing.zones import load_zone

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LOOK_EVERY = timedelta(days=3)


class Change(NamedTuple):
    at: datetime  # the first instant with the new offset
    by: timedelta  # positive: clocks go forward


@lru_cache(maxsize=1024)
def listed_changes(zone: str) -> tuple[Change, ...]:
    """The changes of the UTC offset that the file of a zone lists one by one (RFC 8536)."""
    data = (resources.files("tzdata") / "zoneinfo").joinpath(*zone.split("/")).read_bytes()
    offset = _end_of_block(data, 0, time_size=4)  # the first block is for old readers
    _, _, _, time_count, type_count, _ = _counts(data, offset)
    offset += 44
    times = struct.unpack_from(f">{time_count}q", data, offset)
    offset += 8 * time_count
    kinds = data[offset : offset + time_count]
    offset += time_count
    seconds = [struct.unpack_from(">i", data, offset + 6 * kind)[0] for kind in range(type_count)]
    changes: list[Change] = []
    current = seconds[0]
    for time, kind in zip(times, kinds, strict=True):
        if seconds[kind] != current:
            by = timedelta(seconds=seconds[kind] - current)
            changes.append(Change(EPOCH + timedelta(seconds=time), by))
        current = seconds[kind]
    return tuple(changes)


def changes_between(zone: str, first: datetime, last: datetime) -> list[Change]:
    """All changes in [first, last], listed or by the rule at the end of the file."""
    listed = listed_changes(zone)
    found = [change for change in listed if first <= change.at <= last]
    at = max(first, listed[-1].at) if listed else first
    while at < last:
        then = min(at + LOOK_EVERY, last)
        if _offset(zone, at) != _offset(zone, then):
            found.append(_change_between(zone, at, then))
        at = then
    return found


@lru_cache(maxsize=1024)
def known_changes(zone: str) -> tuple[Change, ...]:
    """The listed ones, and those of the years around now."""
    listed = listed_changes(zone)
    ruled_from = datetime(2020, 1, 1, tzinfo=UTC)
    if listed:
        ruled_from = max(ruled_from, listed[-1].at + timedelta(seconds=1))
    return (*listed, *changes_between(zone, ruled_from, datetime(2040, 1, 1, tzinfo=UTC)))


def _change_between(zone: str, before: datetime, after: datetime) -> Change:
    by = _offset(zone, after) - _offset(zone, before)
    while after - before > timedelta(seconds=1):
        middle = before + (after - before) // timedelta(seconds=2) * timedelta(seconds=1)
        if _offset(zone, middle) == _offset(zone, before):
            before = middle
        else:
            after = middle
    return Change(after, by)


def _offset(zone: str, at: datetime) -> timedelta:
    offset = at.astimezone(load_zone(zone)).utcoffset()
    assert offset is not None
    return offset


def _counts(data: bytes, offset: int) -> tuple[int, ...]:
    return struct.unpack_from(">6l", data, offset + 20)


def _end_of_block(data: bytes, offset: int, time_size: int) -> int:
    ut_count, std_count, leap_count, time_count, type_count, char_count = _counts(data, offset)
    return (
        offset
        + 44
        + time_count * (time_size + 1)
        + type_count * 6
        + char_count
        + leap_count * (time_size + 4)
        + std_count
        + ut_count
    )
