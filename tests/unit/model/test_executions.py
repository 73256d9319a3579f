import re
from itertools import pairwise
from pathlib import Path

import pytest

from hourbell.model.executions import (
    FATES,
    REASONS,
    TRANSITIONS,
    ExecutionStatus,
    Reason,
)

S = ExecutionStatus


def test_the_life_of_r20_is_allowed():
    life = [None, S.SCHEDULED, S.QUEUED, S.RUNNING, S.FAILED, S.RETRYING, S.QUEUED, S.RUNNING]
    assert all(b in TRANSITIONS[a] for a, b in pairwise(life) if b is not None)
    assert S.SUCCEEDED in TRANSITIONS[S.RUNNING]
    assert S.DEAD in TRANSITIONS[S.FAILED]


def test_every_status_has_its_row():
    assert set(TRANSITIONS) == {None, *ExecutionStatus}


@pytest.mark.parametrize("fate", sorted(FATES))
def test_nothing_leaves_a_fate(fate: ExecutionStatus):
    assert not any(to in TRANSITIONS[fate] for to in ExecutionStatus)


def test_every_fate_can_be_reached_and_every_status_has_a_way_to_one():
    reached: set[ExecutionStatus | None] = {None}
    while new := {to for origin in reached for to in TRANSITIONS[origin]} - reached:
        reached |= new
    assert reached == {None, *ExecutionStatus}
    for status in set(ExecutionStatus) - FATES:
        assert TRANSITIONS[status] & FATES or status is S.FAILED


def test_only_the_gate_leads_to_running():
    assert [origin for origin in TRANSITIONS if S.RUNNING in TRANSITIONS[origin]] == [S.QUEUED]


def test_what_has_run_is_not_skipped():
    assert S.SKIPPED not in TRANSITIONS[S.RUNNING]
    assert S.SKIPPED not in TRANSITIONS[S.RETRYING]


def test_what_its_target_accepted_waits_and_then_ends_or_is_tried_again():
    life = [S.RUNNING, S.AWAITING, S.FAILED, S.RETRYING]
    assert all(b in TRANSITIONS[a] for a, b in pairwise(life))
    assert S.SUCCEEDED in TRANSITIONS[S.AWAITING]
    assert S.RUNNING not in TRANSITIONS[S.AWAITING]


def test_work_that_is_given_back_waits_again():
    assert S.SCHEDULED in TRANSITIONS[S.RUNNING]


def test_a_one_time_job_that_is_queued_and_not_claimed_can_be_paused():
    assert {S.SCHEDULED, S.RETRYING} <= TRANSITIONS[S.QUEUED]


def test_the_diagram_in_the_docs_has_these_transitions_and_a_replay():
    page = (Path(__file__).parents[3] / "docs" / "architecture.md").read_text()
    (diagram,) = [
        part for part in re.findall(r"```mermaid\n(.*?)```", page, re.DOTALL) if "QUEUED" in part
    ]
    drawn = set(re.findall(r"^ +(\[\*\]|\w+) --> (\w+):", diagram, re.MULTILINE))
    # FAILED lasts for no time: the same transaction moves the execution to RETRYING or DEAD.
    allowed = {
        ("[*]" if origin is None else origin.name, to.name)
        for origin, ways in TRANSITIONS.items()
        for to in (ways | TRANSITIONS[S.FAILED] if S.FAILED in ways else ways) - {S.FAILED}
        if origin is not S.FAILED
    }
    assert drawn == allowed | {("DEAD", "QUEUED")}


def test_every_fate_but_success_has_reasons_and_every_reason_one_fate():
    assert set(REASONS) == FATES - {S.SUCCEEDED}
    assert sorted(reason for reasons in REASONS.values() for reason in reasons) == sorted(Reason)
