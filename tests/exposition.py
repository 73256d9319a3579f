"""The text format of Prometheus, read strictly: whatever is not exactly as the format says is an error."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

_HELP = re.compile(r"# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) (\S.*)")
_TYPE = re.compile(r"# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge|histogram)")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(,|$)')
_ESCAPES = {'\\"': '"', "\\\\": "\\", "\\n": "\n"}
_NOT_BASE_UNITS = re.compile(r"_(ms|millis\w*|micros\w*|minutes|hours|days|kb|mb|percent)(_|$)")

Labels = frozenset[tuple[str, str]]


class Metric(NamedTuple):
    """A metric and its samples: for a histogram by the suffix of their name, and with `le`."""

    kind: str
    help: str
    samples: dict[tuple[str, Labels], float]

    def value(self, suffix: str = "", **labels: str) -> float:
        return self.samples[suffix, frozenset(labels.items())]

    def total(self, **labels: str) -> float:
        """The sum of all series that have these labels."""
        wanted = set(labels.items())
        return sum(
            value for (suffix, own), value in self.samples.items() if not suffix and wanted <= own
        )

    def values(self, label: str) -> dict[str, float]:
        """The sums by the values of one label."""
        found: dict[str, float] = {}
        for (suffix, own), value in self.samples.items():
            if not suffix:
                name = dict(own)[label]
                found[name] = found.get(name, 0.0) + value
        return found


def parsed(text: str) -> dict[str, Metric]:
    """All metrics by name."""
    assert text.endswith("\n")
    found: dict[str, Metric] = {}
    lines = iter(text[:-1].split("\n"))
    current: Metric | None = None
    name = ""
    for line in lines:
        if line.startswith("# HELP"):
            help_ = _matched(_HELP, line)
            type_ = _matched(_TYPE, next(lines))
            name = help_[1]
            assert type_[1] == name, line
            assert name not in found, f"{name} occurs twice"
            assert not _NOT_BASE_UNITS.search(name), name
            assert (type_[2] == "counter") == name.endswith("_total"), name
            current = found[name] = Metric(type_[2], help_[2], {})
            continue
        assert current is not None, line
        sample = _matched(_SAMPLE, line)
        suffix = sample[1].removeprefix(name)
        allowed = ("_bucket", "_sum", "_count") if current.kind == "histogram" else ("",)
        assert sample[1].startswith(name), line
        assert suffix in allowed, line
        pairs = list(_labels(sample[2] or ""))
        assert len(dict(pairs)) == len(pairs), f"a label occurs twice: {line}"
        assert (suffix == "_bucket") == ("le" in dict(pairs)), line
        key = suffix, frozenset(pairs)
        assert key not in current.samples, f"a series occurs twice: {line}"
        current.samples[key] = _number(sample[3])
    for name, metric in found.items():
        _check(name, metric)
    return found


def _check(name: str, metric: Metric) -> None:
    assert metric.samples, f"{name} has no sample"
    names = {frozenset(label for label, _ in own if label != "le") for _, own in metric.samples}
    assert len(names) == 1, f"{name} has series with different labels"
    if metric.kind == "counter":
        assert all(value >= 0 for value in metric.samples.values()), name
    if metric.kind == "histogram":
        for labels in {own for suffix, own in metric.samples if suffix == "_count"}:
            _check_histogram(name, metric, labels)


def _check_histogram(name: str, metric: Metric, labels: Labels) -> None:
    buckets = [
        (_number(dict(own)["le"]), value)
        for (suffix, own), value in metric.samples.items()
        if suffix == "_bucket" and labels <= own
    ]
    assert [bound for bound, _ in buckets] == sorted({bound for bound, _ in buckets}), name
    assert [value for _, value in buckets] == sorted(value for _, value in buckets), name
    assert buckets[-1] == (math.inf, metric.samples["_count", labels]), name
    assert ("_sum", labels) in metric.samples, name


def _labels(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        label = _LABEL.match(text, at)
        assert label is not None, text
        assert (label[3] == ",") == (label.end() < len(text)), text
        yield label[1], re.sub(r"\\.", lambda escape: _ESCAPES[escape[0]], label[2])
        at = label.end()


def _number(text: str) -> float:
    assert re.fullmatch(r"[+-]?(\d+(\.\d+)?(e[+-]?\d+)?|Inf)|NaN", text), text
    return float(text)


def _matched(pattern: re.Pattern[str], line: str) -> re.Match[str]:
    found = pattern.fullmatch(line)
    assert found is not None, line
    return found
