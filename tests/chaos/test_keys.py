"""The judge of replays sees a key with two holders, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from chaos.keys import TENANT, keys_have_one_holder, without_keyed
from verify.history import Call, Dump, Fault, History

DEAD, LIVE = "job_1", "job_2"


def history(
    asked_at: float, answered_at: float, key: str = "k", status: int = 202, upgrades: int = 0
) -> History:
    """The dead one was made at 10, the live one at 20 for 30; then the dead one is replayed."""
    return History(
        seed=1,
        calls=[
            call("create", DEAD, 10, 11, 201, "k"),
            call("create", LIVE, 20, 21, 201, key),
            call("replay", DEAD, asked_at, answered_at, status, "k"),
        ],
        deliveries=[],
        dump=Dump(at=99, jobs=[], ended=[], alive=[], dead_letters=["exe_1"], terms=[], written=[]),
        faults=[
            Fault(kind="rolling_upgrade", victim="everything", began_at=5, ended_at=28, detail={})
            for _ in range(upgrades)
        ],
    )


def call(operation: str, job: str, asked: float, answered: float, status: int, key: str) -> Call:
    due = datetime.fromtimestamp(asked + 10, UTC).isoformat()
    return Call(
        operation=operation,
        key=f"{operation} {job}",
        tenant=TENANT,
        job_id=None if operation == "create" else job,
        execution_id=None,
        document={"unique_key": key},
        asked_at=asked,
        answered_at=answered,
        status=status,
        answer={"job_id": job, "schedule": {"at": due}},
    )


def test_a_replay_while_another_job_certainly_has_the_key_is_a_violation() -> None:
    [violation] = keys_have_one_holder(history(22, 23))
    assert violation.invariant == "I19"


@pytest.mark.parametrize(
    "allowed",
    [
        history(20.5, 22),  # before the other was answered
        history(29, 31),  # the other may have run
        history(22, 23, key="other"),
        history(22, 23, status=409),
        history(22, 23, upgrades=1),  # by the older build
    ],
)
def test_what_may_have_been_in_order_is_none(allowed: History) -> None:
    assert list(keys_have_one_holder(allowed)) == []


def test_the_judge_of_ordinary_jobs_does_not_see_them() -> None:
    rest = without_keyed(history(22, 23))
    assert rest.calls == [] == rest.dump.dead_letters
