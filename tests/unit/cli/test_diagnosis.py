"""What `hourbell doctor` makes of what it reads."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hourbell.engine.views.diagnosis import LateQueue, Level, State, Unserved, findings
from hourbell.engine.views.failing import Failing

NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)


def healthy(**changes: Any) -> State:
    fine: dict[str, Any] = {
        "now": NOW,
        "server_version": "18.4",
        "pooled": False,
        "connections": 9,
        "max_connections": 100,
        "commits_wait": True,
        "oldest_transaction_seconds": 0.1,
        "hidden_sessions": 0,
        "role": "hourbell",
        "drift_seconds": 0.01,
        "tz_version": "2026c",
        "planned_with": ["2026c"],
        "function_versions": [],
        "has_functions": True,
        "epoch": 3,
        "led_until": NOW + timedelta(seconds=5),
        "late_timetables": 0,
        "broken_timetables": [],
        "refused_schedules": [],
        "late_queues": [],
        "workers": 2,
        "expired_sessions": 0,
        "unserved": [],
        "failing": [],
        "not_admitted": 0,
        "first_not_admitted": None,
        "suspects": 0,
        "notices": 0,
        "dead_letters": 0,
    }
    return State(**fine | changes)


def test_a_healthy_cell_has_no_findings_but_good_ones() -> None:
    found = list(findings(healthy()))
    assert {one.level for one in found} == {Level.OK}
    assert not any(one.advice for one in found)


LATE = LateQueue("mail", 7, NOW - timedelta(seconds=90), has_worker=False)
FAILING = Failing(
    message="job_0000000000016: no worker can run it (data.cell: is missing).",
    count=1,
    since=NOW,
    job_id="job_0000000000016",
    job_name="report",
    execution_id=None,
    tenant_id="default",
)


@pytest.mark.parametrize(
    ("changes", "check", "level", "says"),
    [
        ({"connections": 95}, "database", Level.WARNING, "95 of 100"),
        ({"commits_wait": False}, "commits", Level.WARNING, "synchronous_commit is off"),
        ({"oldest_transaction_seconds": 3600.0}, "transactions", Level.WARNING, "3600 s"),
        ({"hidden_sessions": 3}, "transactions", Level.WARNING, "role hourbell may not see"),
        (
            {"hidden_sessions": 3, "oldest_transaction_seconds": 3600.0},
            "transactions",
            Level.WARNING,
            "3600 s",
        ),
        ({"pooled": True}, "pooler", Level.WARNING, "transaction mode"),
        ({"drift_seconds": -3.5}, "clock", Level.WARNING, "3.50 s behind"),
        ({"drift_seconds": None}, "clock", Level.WARNING, "too slowly"),
        ({"tz_version": "2025a", "planned_with": []}, "tzdata", Level.WARNING, "2025a"),
        ({"planned_with": ["2026b"]}, "tzdata", Level.WARNING, "2026b"),
        ({"has_functions": False}, "functions", Level.FAILURE, "not loaded"),
        ({"function_versions": ["0.1.0"]}, "functions", Level.WARNING, "0.1.0"),
        ({"led_until": NOW - timedelta(seconds=1)}, "leader", Level.FAILURE, "no scheduler leads"),
        ({"led_until": None, "epoch": None}, "leader", Level.FAILURE, "no scheduler leads"),
        ({"late_timetables": 1}, "planning", Level.FAILURE, "1 timetable is late"),
        ({"late_timetables": 4}, "planning", Level.FAILURE, "4 timetables are late"),
        ({"broken_timetables": ["unknown_timezone: X/Y"]}, "planning", Level.FAILURE, "X/Y"),
        ({"refused_schedules": ["a.b: no calendar x."]}, "schedules", Level.FAILURE, "a.b: no cal"),
        ({"workers": 0}, "workers", Level.FAILURE, "no live worker"),
        ({"expired_sessions": 1}, "workers", Level.FAILURE, "not returned"),
        (
            {"late_queues": [LATE]},
            "queues",
            Level.FAILURE,
            "in queue mail, 7 executions have been due for up to 90 s",
        ),
        (
            {"unserved": [Unserved("mial", 1)]},
            "queues",
            Level.WARNING,
            "in queue mial, 1 execution waits for a live worker",
        ),
        (
            {"unserved": [Unserved("mail", 2, "shop.remind")]},
            "tasks",
            Level.WARNING,
            "in queue mail, 2 executions wait for a live worker with the task shop.remind",
        ),
        ({"suspects": 1}, "suspects", Level.WARNING, "1 execution crashed its worker"),
        ({"suspects": 2}, "suspects", Level.WARNING, "2 executions crashed their worker"),
        ({"notices": 1}, "notifications", Level.FAILURE, "1 notification is late"),
        (
            {"not_admitted": 1, "first_not_admitted": 65},
            "gate",
            Level.FAILURE,
            "the gate fails on 1 execution, exe_",
        ),
        (
            {"not_admitted": 3, "first_not_admitted": 65},
            "gate",
            Level.FAILURE,
            "the gate fails on 3 executions, such as exe_",
        ),
        (
            {"failing": [FAILING]},
            "rows",
            Level.FAILURE,
            "job_0000000000016: no worker can run it (data.cell: is missing).",
        ),
        ({"dead_letters": 5}, "dead letters", Level.WARNING, "5 in the last 24 hours"),
    ],
)
def test_each_trouble_is_found_alone_and_has_advice(
    changes: dict[str, Any], check: str, level: Level, says: str
) -> None:
    (found,) = [one for one in findings(healthy(**changes)) if one.level is not Level.OK]
    assert (found.check, found.level) == (check, level)
    assert says in found.what
    assert found.advice


def test_a_queue_that_is_late_for_want_of_a_worker_is_named_once() -> None:
    state = healthy(late_queues=[LATE], unserved=[Unserved("mail", 7)])
    assert [one.check for one in findings(state) if one.level is not Level.OK] == ["queues"]


def test_advice_about_a_queue_depends_on_its_workers() -> None:
    served = LateQueue("mail", 7, NOW - timedelta(seconds=90), has_worker=True)
    for late, says in ((LATE, "HOURBELL_WORKER_QUEUES=mail"), (served, "Add workers")):
        advice = [one.advice for one in findings(healthy(late_queues=[late])) if one.advice]
        assert says in advice[0]
