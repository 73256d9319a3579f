"""Every mutant still fits the code that it breaks. Whether it is killed, `make mutants` says."""

from collections import Counter

import pytest

from mutants.mutants import MUTANTS, ROOT, Mutant

CONFORMANCE = ROOT / "src/hourbell/testing/conformance.py"
EACH = pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])


def test_names_are_unique() -> None:
    assert Counter(mutant.name for mutant in MUTANTS).most_common(1)[0][1] == 1


@EACH
def test_it_replaces_what_is_there_exactly_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old


@EACH
def test_its_killers_exist(mutant: Mutant) -> None:
    assert mutant.killed_by
    for test in mutant.killed_by:
        file, *names = test.partition("[")[0].split("::")
        text = (ROOT / file).read_text("utf-8")
        if len(names) == 2:  # a class that runs what it has inherited
            text += CONFORMANCE.read_text("utf-8")
        assert not names or f"def {names[-1]}(" in text


def test_no_two_break_the_same() -> None:
    broken = Counter((mutant.file, mutant.old, mutant.new) for mutant in MUTANTS)
    assert broken.most_common(1)[0][1] == 1
