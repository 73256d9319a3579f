"""Every mutant still fits the code that it breaks. Whether it is killed, `make mutants` says."""

from collections import Counter
from functools import cache

from mutants.mutants import MUTANTS, ROOT

CONFORMANCE = "src/hourbell/testing/conformance.py"


@cache
def text_of(file: str) -> str:
    return (ROOT / file).read_text("utf-8")


def test_names_are_unique() -> None:
    assert Counter(mutant.name for mutant in MUTANTS).most_common(1)[0][1] == 1


def test_each_replaces_what_is_there_exactly_once() -> None:
    assert [m.name for m in MUTANTS if text_of(m.file).count(m.old) != 1] == []
    assert [m.name for m in MUTANTS if m.new == m.old] == []


def test_the_killers_of_each_exist() -> None:
    assert [m.name for m in MUTANTS if not m.killed_by] == []
    assert [(m.name, test) for m in MUTANTS for test in m.killed_by if not exists(test)] == []


def exists(test: str) -> bool:
    file, *names = test.partition("[")[0].split("::")
    text = text_of(file)
    if len(names) == 2:  # a class that runs what it has inherited
        text += text_of(CONFORMANCE)
    return not names or f"def {names[-1]}(" in text


def test_no_two_break_the_same() -> None:
    broken = Counter((mutant.file, mutant.old, mutant.new) for mutant in MUTANTS)
    assert broken.most_common(1)[0][1] == 1
