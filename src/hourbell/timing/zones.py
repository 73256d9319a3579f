"""Time zones, only from the `tzdata` package pinned in the lock file.

`ZoneInfo("Europe/Berlin")` would use the system's files first, which are as old as the
machine: two machines of one fleet would disagree about when a job is due. Changing the search
path (`zoneinfo.reset_tzpath`) would fix that for the whole process, but it is a global that any
other library can set back, and `ZoneInfo` keeps in its cache what it read before. So the files of
the package are read here directly, and zoneinfo never searches at all.

A name is looked up in the package's own list before a file is opened. What is not in the list is
unknown, whatever it looks like: a path, a folder, a file of the system.
"""

import difflib
import importlib
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

from hourbell.timing.errors import UnknownZone

MAX_NAME_CHARS = 64  # the longest zone of tzdata has 32


def tz_version() -> str:
    """The IANA release in use, such as `2026f`: plans made under another release may be wrong."""
    return str(importlib.import_module("tzdata").IANA_VERSION)


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Every zone in the package, including old names that are kept as links."""
    return frozenset((resources.files("tzdata") / "zones").read_text("ascii").split())


@lru_cache(maxsize=1024)  # more than there are zones: each is read once
def load_zone(name: str) -> ZoneInfo:
    """The zone with this exact name; raises UnknownZone with the closest names."""
    if name not in zone_names():
        raise _unknown(name)
    path = (resources.files("tzdata") / "zoneinfo").joinpath(*name.split("/"))
    with path.open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def shown_in(name: str) -> tzinfo:
    """The zone for display: the one with this name, or UTC if it does not exist."""
    return load_zone(name) if name != "UTC" and name in zone_names() else UTC


def utc_offset(zone: ZoneInfo, wall: datetime) -> timedelta:
    """How far the zone is ahead of UTC at a wall time; `fold` chooses between two copies."""
    offset = zone.utcoffset(wall)
    assert offset is not None  # only for None, which is no datetime
    return offset


def _unknown(name: str) -> UnknownZone:
    if not name:
        return UnknownZone("is empty; use an IANA name such as Europe/Berlin or UTC")
    if len(name) > MAX_NAME_CHARS:
        return UnknownZone(
            f"has {len(name)} characters, but no zone has more than {MAX_NAME_CHARS}; "
            "use an IANA name such as Europe/Berlin"
        )
    suggestions = _nearest(name)
    hint = "use an IANA name such as Europe/Berlin"
    if suggestions:
        hint = f"did you mean {' or '.join(suggestions)}?"
    return UnknownZone(
        f"{name!a} is not a time zone in IANA release {tz_version()}; {hint}", suggestions
    )


def _nearest(name: str) -> tuple[str, ...]:
    by_folded = {known.casefold(): known for known in sorted(zone_names())}
    folded = name.casefold()
    close = difflib.get_close_matches(folded, by_folded, n=3, cutoff=0.6)
    # "Berlin" is far from "Europe/Berlin" letter by letter, and what people write most.
    cities = [known for known in by_folded if known.rpartition("/")[2] == folded.replace(" ", "_")]
    same = [folded] if folded in by_folded else []
    return tuple(by_folded[known] for known in dict.fromkeys([*same, *cities, *close]))[:3]
