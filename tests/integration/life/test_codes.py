"""The numbers that columns hold have the same meaning in SQL (functions/codes.sql) and in Python."""

import re

import pytest

from hourbell.engine import codes
from hourbell.engine.core import Engine
from hourbell.engine.life import settlement
from hourbell.engine.operations import limits
from hourbell.model.policies import Priority
from hourbell.store.function_set import function_set

_CODE = re.compile(
    r"^create or replace function hourbell\.(\w+)\(\) returns (?:smallint|bigint)\b", re.MULTILINE
)

FAMILIES = {
    "fate": {status.name: number for number, status in enumerate(codes.FATES)},
    "job": {status.name: number for number, status in enumerate(codes.JOB_STATUSES)},
    "settlement": {
        "succeeded": settlement.SUCCEEDED,
        "retry": settlement.RETRY,
        "dead": settlement.DEAD,
        "cancelled": settlement.CANCELLED,
        "released": settlement.RELEASED,
        "accepted": settlement.ACCEPTED,
        "gone": settlement.GONE,
        "interrupted": settlement.INTERRUPTED,
        "snoozed": settlement.SNOOZED,
    },
    "blocker": {
        "queue": limits.BLOCKER_QUEUE,
        "tenant": limits.BLOCKER_TENANT,
        "target": limits.BLOCKER_TARGET,
        "concurrency_key": limits.BLOCKER_CONCURRENCY_KEY,
        "job": limits.BLOCKER_JOB,
        "task": limits.BLOCKER_TASK,
        "failure": limits.BLOCKER_FAILURE,
    },
    "origin": {origin.name: number for number, origin in enumerate(codes.ORIGINS)},
    "overlap": {policy.name: number for policy, number in codes.OVERLAPS.items()},
    "misfire": {policy.name: number for policy, number in codes.MISFIRES.items()},
    "event": {event.name: number for event, number in codes.EVENTS.items()}
    | {"missed": codes.MISSED, "recovered": codes.RECOVERED},
    "priority": {"low": Priority.LOW},
    "awaiting": {"session": codes.AWAITING_SESSION},
}


@pytest.mark.parametrize("family", FAMILIES)
async def test_sql_and_python_have_the_same_numbers(engine: Engine, family: str) -> None:
    names = [name for name in _CODE.findall(function_set().text) if name.startswith(f"{family}_")]
    in_sql = {name: await engine.database.value(f"select hourbell.{name}()") for name in names}
    in_python = {f"{family}_{name.lower()}": number for name, number in FAMILIES[family].items()}
    assert names
    assert in_sql.items() <= in_python.items()


def test_the_names_of_constants_are_those_of_the_enums() -> None:
    assert [codes.ORIGIN_SCHEDULE, codes.ORIGIN_RUN_NOW, codes.ORIGIN_BACKFILL] == [0, 1, 2]
