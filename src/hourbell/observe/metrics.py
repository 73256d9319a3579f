"""Metrics of this process: counters, gauges and histograms, as Prometheus reads them.

A family has one series per combination of label values. Hot code keeps the series that it
updates, so that an update is a single addition. The number of series per family is bounded: once a
family is full, further label values are counted together, under `other`.

    outcomes = metrics.counter("hourbell_outcomes_total", "Recorded outcomes.", ("status",))
    succeeded = outcomes.series("SUCCEEDED")
    succeeded.add(500)

Gauges for the current state of a part of the process are set by a function of that part, which
`render` calls first (`before_render`). All updates happen in the event loop's thread.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Generic, TypeVar

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"  # the label value of the series that collects everything beyond the limit
MAX_SERIES = 200  # per family, unless it sets another limit

# From a millisecond to an hour: an execution may start a little late, or run for a long time.
SECONDS = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
    1800.0,
    3600.0,
)
SIZES = (1.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0)

# Tenants: the first ones get their own series, and later ones if they are large.
FIRST_TENANTS = 20
MAX_TENANTS = 50
LARGE_SHARE = 0.01  # of the total
_MAX_WAITING = 10_000  # values without their own series whose counts are tracked


class Value:
    """One number: a counter, which only grows, or a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, amount: float = 1.0) -> None:
        self.value += amount

    def set(self, value: float) -> None:
        self.value = value

    def samples(self) -> Iterator[tuple[str, str, float]]:
        """Suffix of the name, extra label, value."""
        yield "", "", self.value


class Distribution:
    """How many observations are at most as large as each bound."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def observe_all(self, values: list[float], offset: float = 0.0) -> None:
        """Record many observations at once, each `offset` more than its value, or 0 if that is negative.

        Takes a fraction of the time of recording them one by one; sorts the list.
        """
        values.sort()
        counts, below = self._counts, 0
        for place, bound in enumerate(self._bounds):
            upto = bisect_right(values, bound - offset, below)
            counts[place] += upto - below
            below = upto
        counts[-1] += len(values) - below
        positive = values[bisect_left(values, -offset) :]
        self.sum += sum(positive) + len(positive) * offset

    @property
    def count(self) -> int:
        return sum(self._counts)

    def samples(self) -> Iterator[tuple[str, str, float]]:
        total = 0
        for bound, count in zip((*self._bounds, math.inf), self._counts, strict=True):
            total += count
            yield "_bucket", f'le="{_number(bound)}"', total
        yield "_sum", "", self.sum
        yield "_count", "", total


S = TypeVar("S", Value, Distribution)


class Family(Generic[S]):
    """All series of one metric."""

    label_names: tuple[str, ...]

    def __init__(
        self,
        kind: str,
        name: str,
        text: str,
        labels: Sequence[str],
        max_series: int,
        new: Callable[[], S],
    ) -> None:
        self.name = name
        self.kind = kind
        self.label_names = tuple(labels)
        self._head = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        self._max_series = max_series
        self._new: Callable[[], S] = new
        self._series: dict[tuple[str, ...], S] = {}
        if not labels:
            self.series()  # a metric without labels exists from the start

    def series(self, *values: str) -> S:
        """The series with these label values, in order."""
        found = self._series.get(values)
        if found is None:
            assert len(values) == len(self.label_names), f"{self.name} has {self.label_names}"
            if len(self._series) >= self._max_series and values:
                values = (OTHER,) * len(values)
                if values in self._series:
                    return self._series[values]
            found = self._series[values] = self._new()
        return found

    def items(self) -> Iterable[tuple[tuple[str, ...], S]]:
        """Each series with its label values."""
        return self._series.items()

    def clear(self) -> None:
        """Drop all series: what is not set again is gone."""
        self._series.clear()

    def text(self) -> str:
        """The family in the text format; empty without a series."""
        if not self._series:
            return ""
        lines = [self._head]
        for values, series in self._series.items():
            labels: list[str] = [
                f'{name}="{_escaped(value)}"'
                for name, value in zip(self.label_names, values, strict=True)
            ]
            for suffix, further, value in series.samples():
                shown = ",".join([*labels, further] if further else labels)
                inside = f"{{{shown}}}" if shown else ""
                lines.append(f"{self.name}{suffix}{inside} {_number(value)}\n")
        return "".join(lines)


def set_all(family: Family[Value], values: Mapping[tuple[str, ...], float]) -> None:
    """Set gauges by label values; those not given become 0 and remain."""
    for key, series in family.items():
        if key not in values:
            series.set(0.0)
    for key, value in values.items():
        family.series(*key).set(value)


class LargestValues:
    """A counter by one label that may have very many values, such as tenants.

    The first FIRST_TENANTS values get their own series, as do, up to MAX_TENANTS in total, those
    with at least LARGE_SHARE of the total. A value keeps its series, so that counters never
    decrease; its counts from before are part of `other`.
    """

    def __init__(self, family: Family[Value]) -> None:
        self._family = family
        self._own: dict[str, Value] = {}
        self._waiting: Counter[str] = Counter()
        self._total = 0

    def add(self, counts: Mapping[str, int]) -> None:
        """Count by value."""
        own = self._own
        for value, count in counts.items():
            self._total += count
            series = own.get(value)
            if series is None:
                series = self._series_of(value, count)
            series.value += count

    def _series_of(self, value: str, count: int) -> Value:
        places = len(self._own)
        if places >= FIRST_TENANTS:
            if len(self._waiting) >= _MAX_WAITING and value not in self._waiting:
                self._waiting.clear()
            self._waiting[value] += count
            is_large = self._waiting[value] >= LARGE_SHARE * self._total
            if places >= MAX_TENANTS or not is_large:
                return self._family.series(OTHER)
            del self._waiting[value]
        made = self._own[value] = self._family.series(value)
        return made


class Metrics:
    """All metrics of a process. Declaring a metric again returns the same family."""

    def __init__(self) -> None:
        self._families: dict[str, Family[Value] | Family[Distribution]] = {}
        self._before_render: list[Callable[[], None]] = []

    def counter(
        self, name: str, text: str, labels: Sequence[str] = (), max_series: int = MAX_SERIES
    ) -> Family[Value]:
        assert name.endswith("_total"), name
        return self._add(Family("counter", name, text, labels, max_series, Value))

    def gauge(
        self, name: str, text: str, labels: Sequence[str] = (), max_series: int = MAX_SERIES
    ) -> Family[Value]:
        return self._add(Family("gauge", name, text, labels, max_series, Value))

    def histogram(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        bounds: Sequence[float] = SECONDS,
        max_series: int = MAX_SERIES,
    ) -> Family[Distribution]:
        def new() -> Distribution:
            return Distribution(bounds)

        return self._add(Family("histogram", name, text, labels, max_series, new))

    def before_render(self, update: Callable[[], None]) -> None:
        """Call a function that sets gauges before the metrics are rendered."""
        self._before_render.append(update)

    def render(self) -> bytes:
        for update in self._before_render:
            update()
        return "".join(family.text() for family in self._families.values()).encode()

    def _add(self, family: Family[S]) -> Family[S]:
        known = self._families.setdefault(family.name, family)
        assert (known.kind, known.label_names) == (family.kind, family.label_names), family.name
        return known  # type: ignore[return-value]


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
