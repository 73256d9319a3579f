"""Every example of docs/time.md is run.

A block marked `console` is what a terminal shows; tables whose first cells are rules hold rules
that are accepted, or refused where the heading says so.
"""

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from hourbell.cli.main import main
from hourbell.timing.cron import canonical, resolve_hash
from hourbell.timing.errors import InvalidRule

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "time.md").read_text()
BLOCKS = re.findall(r"```console\n\$ hourbell (.*?)\n(.*?)```", TEXT, re.DOTALL)


def first_cells(heading: str) -> list[str]:
    cells: list[str] = []
    for table in re.findall(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", TEXT, re.MULTILINE):
        cells += re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)
    return cells


@pytest.mark.parametrize(("arguments", "shown"), BLOCKS, ids=[block[0] for block in BLOCKS])
def test_a_terminal_shows_what_the_page_shows(arguments: str, shown: str) -> None:
    result = CliRunner().invoke(main, shlex.split(arguments), prog_name="hourbell")
    assert result.output == shown
    assert result.exit_code == (2 if "Error: " in shown else 0)


def test_a_newcomer_is_told_where_the_command_is_before_it_is_used() -> None:
    assert "`hourbell`" in TEXT.partition(". .venv/bin/activate")[0]
    assert TEXT.index(". .venv/bin/activate") < TEXT.index("$ hourbell ")
    setup = (ROOT / "Makefile").read_text()
    assert "BIN := .venv/bin\n" in setup
    assert "$(BIN)/hourbell up" in setup


@pytest.mark.parametrize("rule", first_cells("rule"))
def test_a_rule_of_the_page_is_one(rule: str) -> None:
    assert canonical(rule)


@pytest.mark.parametrize("rule", first_cells("refused"))
def test_what_the_page_calls_refused_is_refused(rule: str) -> None:
    with pytest.raises(InvalidRule):
        canonical(rule)


@pytest.mark.parametrize("rule", ["0 22-23,0-2 * * *", "0 0 * * MON"])
def test_what_the_page_offers_in_its_place_is_a_rule(rule: str) -> None:
    assert f"| `{rule}` |" in TEXT
    assert canonical(rule)


@pytest.mark.parametrize(
    "rule", ["H H(1-5) * * *", "H/15 * * * *", "H 2 * * *", "H(0-29),H(30-59) * * * *"]
)
def test_what_the_page_writes_with_h_can_be_resolved(rule: str) -> None:
    assert f"`{rule.removesuffix(' * * * *')}" in TEXT
    assert canonical(resolve_hash(rule, 1))


@pytest.mark.parametrize(
    ("macro", "rule"), re.findall(r"^\| `(@\w+)` \| `(.+?)`", TEXT, re.MULTILINE)
)
def test_a_macro_means_what_the_page_says(macro: str, rule: str) -> None:
    assert canonical(macro) == rule


def test_there_are_examples() -> None:
    assert len(BLOCKS) >= 9
    assert len(first_cells("rule")) >= 25
    assert len(first_cells("refused")) == 8
