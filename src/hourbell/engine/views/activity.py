"""activity: what ended and started, by minute, and how late; the shares of tenants.

Everything comes from what the leader counts (`hourbell.minutes`), apart from executions that are
running. The figures of a minute go by the end of executions; `started` goes by the start of
attempts, those that have ended and those that run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.leader.activity import MINUTE, minute_of
from hourbell.engine.views.jobs import tenant_wanted
from hourbell.store.queries import queries

_Q = queries("activity")

WINDOWS = {  # with the length of a bucket
    "15m": (timedelta(minutes=15), MINUTE),
    "1h": (timedelta(hours=1), MINUTE),
    "6h": (timedelta(hours=6), MINUTE),
    "24h": (timedelta(hours=24), timedelta(minutes=5)),
}
DEFAULT_WINDOW = "1h"
SHARES_OF = timedelta(hours=1)
MAX_SHARES = 100
_FIGURES = ("succeeded", "failed", "dead", "skipped", "cancelled", "superseded")
CLASSES = 24  # of lateness


class Lateness(msgspec.Struct, frozen=True):
    """Percentiles of how late first attempts started, in milliseconds."""

    p50: float
    p95: float
    p99: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in some time; None: not shown to this caller."""

    started: int
    succeeded: int | None = None
    failed: int | None = None  # attempts
    dead: int | None = None
    skipped: int | None = None  # occurrences
    cancelled: int | None = None
    superseded: int | None = None


class Bucket(msgspec.Struct, frozen=True):
    """What happened in one part of the window."""

    at: datetime
    figures: Figures
    lateness: Lateness | None  # None: nothing started, or not shown


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in a window until now."""

    bucket: timedelta
    complete_until: datetime | None  # buckets before this are counted for good; None: none is
    series: Sequence[Bucket]  # the oldest first, without gaps
    totals: Figures
    started_per_minute: float
    lateness: Lateness | None
    sampled: bool  # lateness and tenants are those of a part of the executions
    reasons: Mapping[str, int]  # executions by the reason for which they ended
    # The newest first: jobs of which occurrences were skipped.
    skips: Sequence[Mapping[str, object]]


class Share(msgspec.Struct, frozen=True):
    """The part of a tenant in all starts of the last hour."""

    tenant_id: str
    starts: int
    share: float | None  # None: not shown to this caller
    fair_share: float | None  # its weight, by the weights of all that started something


async def activity(
    engine: Engine, window: str, now: datetime, running: Mapping[datetime, int]
) -> Activity:
    """What happened in the window until now. `running`: executions, by the minute of their start.

    Within a scope only the starts of that tenant are counted.
    """
    length, bucket = WINDOWS[window]
    begin = _floor(now - length, bucket) + bucket
    rows = await engine.database.fetch(_Q["minutes"], begin)
    last = await engine.database.value(_Q["last_final"], now)
    tenant = await tenant_wanted(engine, None)
    return summarize(rows, begin, bucket, now, running, last, tenant)


def summarize(
    rows: Sequence[asyncpg.Record],
    begin: datetime,
    bucket: timedelta,
    now: datetime,
    running: Mapping[datetime, int],
    last_final: datetime | None,
    tenant: int | None,
) -> Activity:
    """The activity from `begin` until now, from the counts of minutes, which end with the newest."""
    number = int((now - begin) / bucket) + 1
    starts: Counter[datetime] = Counter()
    ended: dict[datetime, Counter[str]] = {}
    classes: dict[datetime, list[int]] = {}
    reasons: Counter[str] = Counter()
    for row in rows:
        at = _floor(row["minute"], bucket)
        if tenant is not None:
            starts[at] += dict(zip(row["tenants"], row["tenant_starts"], strict=True)).get(
                tenant, 0
            )
            continue
        for minute, count in zip(row["started_in"], row["starts"], strict=True):
            starts[_floor(minute, bucket)] += count
        ended.setdefault(at, Counter()).update({name: row[name] for name in _FIGURES})
        known = classes.setdefault(at, [0] * CLASSES)
        classes[at] = [a + b for a, b in zip(known, row["lateness"], strict=True)]
        reasons.update(msgspec.json.decode(row["reasons"], type=dict[str, int]))
    for minute, count in running.items():
        starts[_floor(minute, bucket)] += count
    moments = [begin + k * bucket for k in range(number)]
    if tenant is None:
        figures = [
            Figures(
                started=starts[at], **{name: ended.get(at, Counter())[name] for name in _FIGURES}
            )
            for at in moments
        ]
    else:
        figures = [Figures(started=starts[at]) for at in moments]
    everything = [sum(column) for column in zip(*classes.values(), strict=True)]
    whole_minutes = max(1.0, (now - begin) / MINUTE)
    return Activity(
        bucket=bucket,
        complete_until=None if last_final is None else last_final + MINUTE,
        series=[
            Bucket(at, figure, percentiles(classes.get(at, ())))
            for at, figure in zip(moments, figures, strict=True)
        ],
        totals=_sum(figures),
        started_per_minute=round(sum(figure.started for figure in figures) / whole_minutes, 1),
        lateness=percentiles(everything),
        sampled=any(row["sampled"] > 1 for row in rows),
        reasons=dict(reasons.most_common()),
        skips=[
            skip
            for row in reversed(rows)
            for skip in msgspec.json.decode(row["skips"])
            if tenant is None or skip["tenant"] == tenant
        ],
    )


async def shares(engine: Engine, now: datetime) -> list[Share]:
    """The tenants with the most starts in the last hour, most first; within a scope, that one."""
    since = minute_of(now - SHARES_OF)
    rows = await engine.database.fetch(_Q["shares"], since, MAX_SHARES)
    starts = sum(row["starts"] for row in rows)
    weights = sum(row["weight"] for row in rows)
    if engine.scope is not None:  # shares would tell how much other tenants start
        own = [row for row in rows if row["name"] == engine.scope]
        return [Share(row["name"], row["starts"], None, None) for row in own]
    return [
        Share(row["name"], row["starts"], row["starts"] / starts, row["weight"] / weights)
        for row in rows
        if starts
    ]


def percentiles(classes: Sequence[int]) -> Lateness | None:
    """Percentiles of lateness from the number of executions in each class; None: there are none.

    Class 0 is below 1 ms, class k from 2^(k-1) to 2^k ms; within a class values are taken to be
    spread evenly.
    """
    total = sum(classes)
    if not total:
        return None
    return Lateness(*(_percentile(classes, share * total) for share in (0.5, 0.95, 0.99)))


def _percentile(classes: Sequence[int], rank: float) -> float:
    below = 0
    for number, count in enumerate(classes):
        if count and below + count >= rank:
            low, high = (0.0, 1.0) if number == 0 else (2.0 ** (number - 1), 2.0**number)
            return round(low + (high - low) * (rank - below) / count, 1)
        below += count
    raise AssertionError("the rank is at most the total")


def _sum(figures: Sequence[Figures]) -> Figures:
    started = sum(figure.started for figure in figures)
    if figures[0].succeeded is None:
        return Figures(started=started)
    sums = {name: sum(getattr(figure, name) for figure in figures) for name in _FIGURES}
    return Figures(started=started, **sums)


def _floor(moment: datetime, bucket: timedelta) -> datetime:
    """The start of the bucket in which a moment lies; buckets divide the hour."""
    minutes = int(bucket / MINUTE)
    return minute_of(moment).replace(minute=moment.minute // minutes * minutes)
