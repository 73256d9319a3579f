"""Fingerprints of errors."""

import pytest

from hourbell.model.fingerprints import fingerprint_of, normalized

SAME = [
    ("The target answered 503.", "The target answered 502."),
    ("no order 17", "no order 4711"),
    ("row 0x1f is locked", "row 0xDEAD is locked"),
    ("job 3f2a9c81 failed", "job 00bd77e1 failed"),
    (
        "no user 7b9c1d5e-0b7c-4f0e-9a53-3c1f6f0f5a10",
        "no user 11111111-2222-3333-4444-555555555555",
    ),
    ("unknown key 'a b'", "unknown key 'c'"),
    ('unknown key "x"', 'unknown key "a much longer one"'),
    ("took 1.5 s at 10:02:33", "took 20.25 s at 23:59:59"),
    ("two  spaces", "two\nspaces"),
    ("row bd77e1 is locked", "row 0f is locked"),
    ("customer17 is gone: E1", "customer4711 is gone: E22"),
    (f"no {'9' * 400} here {'a' * 400}", f"no 1 here {'a' * 400}b"),
]
DIFFERENT = [
    ("connection refused", "connection reset"),
    ("It can't connect; it won't retry", "It can't connect; that won't help"),
    ("decade", "facade"),  # hexadecimal digits, but words
    ("error in step one", "error in step two"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_numbers_ids_and_quoted_text_make_no_difference(one: str, other: str) -> None:
    assert normalized(one) == normalized(other)
    assert fingerprint_of(1, "Bad", one) == fingerprint_of(1, "Bad", other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_other_words_make_a_difference(one: str, other: str) -> None:
    assert fingerprint_of(1, "Bad", one) != fingerprint_of(1, "Bad", other)


def test_action_and_kind_make_a_difference() -> None:
    found = {
        fingerprint_of(target, kind, "no")
        for target in (1, 2, -2, None)
        for kind in ("timeout", "http_503")
    }
    assert len(found) == 8
    assert fingerprint_of(1, "deadline", None) == fingerprint_of(1, "deadline", "")


def test_what_follows_a_long_beginning_makes_no_difference() -> None:
    assert normalized("x" * 300 + "a") == normalized("x" * 300 + "b")
    assert len(normalized("long " * 10_000)) == 300
