"""POST /api/v1/monitors"""

from typing import Any

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.monitors import create_monitor
from hourbell.model.errors import NotFound
from hourbell.model.ids import job_text
from integration.api.client import Client, one_time, recurring

MONITORS = "/api/v1/monitors"


def watching(job_id: str, **fields: Any) -> dict[str, Any]:
    return {"job_id": job_id, "grace_seconds": 600, "url": "https://pager.example/", **fields}


async def test_a_monitor_is_created_and_can_be_read(api: Client):
    job = await api.created(recurring(tenant_id="acme"))
    answer = await api.post(MONITORS, watching(job["job_id"], headers={"X-Seven": "7"}))
    assert answer.status == 201
    made = answer.body
    assert made["tenant_id"] == "acme"
    assert (made["status"], made["down_since"], made["last_success_at"]) == ("UP", None, None)
    assert made["expected_at"] == job["next_run_at"]
    assert made["headers"] == {"X-Seven": "7"}
    assert answer.headers["Location"] == f"{MONITORS}/{made['monitor_id']}"
    assert (await api.get(answer.headers["Location"])).body == made


async def test_a_repeat_makes_no_second_monitor(api: Client):
    job = await api.created(recurring())
    first = await api.post(MONITORS, watching(job["job_id"]), key="one")
    second = await api.post(MONITORS, watching(job["job_id"]), key="one")
    assert (second.status, second.body) == (201, first.body)
    assert len((await api.get(MONITORS)).body["items"]) == 1


async def test_every_wrong_field_is_named(api: Client):
    document = {
        "job_id": "exe_0000000000016",
        "grace_seconds": 0,
        "url": "ftp://x",
        "headers": {"Host": "x"},
        "color": "red",
    }
    answer = await api.post(MONITORS, document)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {"job_id", "grace_seconds", "url", "headers.Host", "color"}
    answer = await api.post(MONITORS, {})
    assert answer.paths == {"job_id", "grace_seconds", "url"}


@pytest.mark.parametrize(
    "fields",
    [
        {"grace_seconds": 2_592_001},
        {"grace_seconds": 1.5},
        {"grace_seconds": True},
        {"url": "http://user:pass@host/"},
        {"url": "x" * 3000},
        {"url": None},
        {"headers": {"a": "b\r\nc: d"}},
        {"headers": []},
        {"job_id": "job_' or 1=1 --"},
        {"job_id": 7},
    ],
)
async def test_hostile_fields_are_refused(api: Client, fields: dict[str, Any]):
    job = await api.created(recurring())
    answer = await api.post(MONITORS, watching(job["job_id"]) | fields)
    assert answer.is_problem(422, "invalid_input"), answer.body


async def test_a_job_that_is_not_there_cannot_be_watched(api: Client):
    answer = await api.post(MONITORS, watching("job_0000000000016"))
    assert answer.is_problem(404, "not_found")


async def test_a_job_of_another_tenant_is_not_there(api: Client, engine: Engine):
    job = await api.created(recurring(tenant_id="acme"))
    with pytest.raises(NotFound) as foreign:
        await create_monitor(engine.scoped_to("other"), watching(job["job_id"]), Write())
    assert str(foreign.value) == str(NotFound("job", job["job_id"]))
    assert (await api.get(MONITORS)).body["items"] == []


async def test_a_job_that_runs_once_cannot_be_watched(api: Client):
    job = await api.created(one_time())
    answer = await api.post(MONITORS, watching(job["job_id"]))
    assert answer.is_problem(409, "conflict")
    assert "notifications" in answer.body["detail"]


async def test_a_job_that_has_ended_cannot_be_watched(api: Client):
    job = await api.created(recurring())
    await api.delete(job["path"])
    assert (await api.post(MONITORS, watching(job["job_id"]))).is_problem(409, "job_not_active")


async def test_a_job_has_a_few_monitors_at_most(api: Client):
    job = await api.created(recurring())
    for _ in range(5):
        assert (await api.post(MONITORS, watching(job["job_id"]))).status == 201
    assert (await api.post(MONITORS, watching(job["job_id"]))).is_problem(409, "conflict")


async def test_a_monitor_is_in_the_audit_trail(api: Client, engine: Engine):
    job = await api.created(recurring())
    await api.post(MONITORS, watching(job["job_id"]))
    rows = await engine.database.fetch("select job, operation from hourbell.audit order by id")
    assert [(job_text(row["job"]), row["operation"]) for row in rows] == [
        (job["job_id"], "create"),
        (job["job_id"], "create_monitor"),
    ]
