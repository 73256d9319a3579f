"""The shared vectors: 75 rules with their next runs, 49 texts that are no rules."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hourbell.timing.cron import canonical
from hourbell.timing.errors import InvalidRule
from hourbell.timing.rules import compile_rule

DATA = json.loads((Path(__file__).parents[2] / "data" / "cron_vectors.json").read_text())
FIELDS = {"second", "minute", "hour", "day-of-month", "month", "day-of-week", "expression"}


def test_all_vectors_are_here() -> None:
    assert [len(DATA[part]) for part in ("vectors", "invalid", "properties")] == [75, 49, 8]


@pytest.mark.parametrize("vector", DATA["vectors"], ids=lambda vector: vector["id"])
def test_vector(vector: dict[str, Any]) -> None:
    rule = compile_rule(vector["expr"], vector["tz"])
    at: datetime | None = datetime.fromisoformat(vector["from"])
    for expected in vector["expect"]:
        assert at is not None
        at = rule.next(at)
        assert at == datetime.fromisoformat(expected), vector["note"]


@pytest.mark.parametrize("vector", DATA["vectors"], ids=lambda vector: vector["id"])
def test_vector_by_its_canonical_text(vector: dict[str, Any]) -> None:
    rule = compile_rule(canonical(vector["expr"]), vector["tz"])
    assert rule.next(datetime.fromisoformat(vector["from"])) == datetime.fromisoformat(
        vector["expect"][0]
    )


@pytest.mark.parametrize(
    "expression", [v["expr"] for v in DATA["invalid"]], ids=lambda expression: expression[:30]
)
def test_what_is_no_rule_is_refused_with_field_and_reason(expression: str) -> None:
    with pytest.raises(InvalidRule) as refusal:
        compile_rule(expression, "UTC")
    assert refusal.value.field in FIELDS
    assert refusal.value.reason
    with pytest.raises(InvalidRule):
        canonical(expression)
