import pytest

from hourbell.store.function_set import PLANS, function_set, with_plans


def test_a_plan_stands_for_its_settings() -> None:
    head = "language plpgsql set plan = lookups_by_hash set lock_timeout = '20ms' as $$"
    assert with_plans(head) == (
        "language plpgsql set jit = off set enable_seqscan = off set enable_bitmapscan = off"
        " set enable_mergejoin = off set enable_nestloop = off set enable_hashjoin = on"
        " set lock_timeout = '20ms' as $$"
    )


def test_an_unknown_plan_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown plan 'lookup'; use one of lookups, "):
        with_plans("language sql set plan = lookup as $$")


def test_every_plan_is_used_and_none_is_left_in_the_text() -> None:
    text = function_set().text
    assert [name for name, settings in PLANS.items() if settings not in text] == []
    assert "set plan =" not in text
