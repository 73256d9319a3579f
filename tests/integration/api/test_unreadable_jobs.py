"""Jobs whose documents this build cannot read: a newer one has stored them, or they are damaged.

They are listed with their problem, and can be paused, resumed, replaced and deleted.
"""

from typing import Any

import pytest

from hourbell.engine.core import Engine
from hourbell.model.ids import parse_job_id
from integration.api.client import Client
from integration.life.support import store_newer

JOBS = "/api/v1/jobs"
TASK = {"type": "TASK", "name": "noop"}
FAR = {"delay_seconds": 86_400}
RECURRING = {"name": "bad", "type": "RECURRING", "schedule": {"cron": "0 2 * * *"}, "action": TASK}
ONE_TIME = {"name": "bad", "type": "ONE_TIME", "schedule": FAR, "action": TASK}
NEWER: dict[str, Any] = {
    "delivery": {"delivery": "exactly_once"},
    "action": {"action": {"type": "MAIL", "to": "you"}},
    "schedule": {"schedule": {"kind": "moon", "phase": "full"}},
    "retry_policy": {"retry_policy": {"backoff": "FIBONACCI"}},
    "labels": {"labels": ["billing"]},
}
kinds = pytest.mark.parametrize("document", [RECURRING, ONE_TIME], ids=["recurring", "one-time"])


async def created(api: Client, document: dict[str, Any]) -> str:
    answer = await api.post(JOBS, document)
    assert answer.status == 201, answer.body
    job: str = answer.body["job_id"]
    return job


async def damage(engine: Engine, job: str) -> None:
    """Its document is no JSON any more."""
    for table in ("jobs", "executions"):
        await engine.database.value(
            f"update hourbell.{table} set spec = '{{' where id = $1",  # noqa: S608
            parse_job_id(job),
        )


@kinds
@pytest.mark.parametrize("field", [*NEWER, None])
async def test_it_is_shown_among_the_others_paused_resumed_and_deleted(
    api: Client, engine: Engine, document: dict[str, Any], field: str | None
) -> None:
    good = await created(api, document | {"name": "good", "labels": {"team": "billing"}})
    bad = await created(api, document)
    if field is None:
        await damage(engine, bad)
    else:
        await store_newer(engine, parse_job_id(bad), **NEWER[field])
    for query in ("", "?name_prefix=", f"?type={document['type']}", "?tenant_id=default"):
        listed = await api.get(JOBS + query)
        assert listed.status == 200, listed.body
        assert {job["job_id"]: bool(job["problem"]) for job in listed.body["items"]} == {
            good: False,
            bad: True,
        }
    found = await api.get(f"{JOBS}?label=team:billing")
    assert [job["job_id"] for job in found.body["items"]] == [good]

    job = (await api.get(f"{JOBS}/{bad}")).body
    assert (field or "cannot read it") in job["problem"]
    assert (job["type"], job["status"]) == (document["type"], "SCHEDULED")
    for view in ("explain", "next-runs", "executions", "audit"):
        seen = await api.get(f"{JOBS}/{bad}/{view}")
        assert seen.status == 200, (view, seen.body)
    if document is ONE_TIME:
        execution = await api.get(f"/api/v1/executions/exe_{bad.removeprefix('job_')}")
        assert execution.status == 200, execution.body
    assert (await api.get("/api/v1/executions")).status == 200
    assert (await api.get("/api/v1/executions?label=team:billing")).status == 200

    paused = await api.post(f"{JOBS}/{bad}/pause", {"reason": "what is it?"})
    assert (paused.status, paused.body["status"]) == (200, "PAUSED"), paused.body
    resumed = await api.post(f"{JOBS}/{bad}/resume")
    if document is RECURRING and field in ("delivery", None):  # nobody knows how it should run
        assert resumed.status == 409
        assert "PATCH" in resumed.body["detail"]
    else:
        assert (resumed.status, resumed.body["status"]) == (200, "SCHEDULED"), resumed.body
    assert resumed.status == 409 or resumed.body["problem"] == job["problem"]
    stored = await engine.database.value(
        "select spec from hourbell.jobs where id = $1 union all"
        " select spec from hourbell.executions where id = $1 and job is null",
        parse_job_id(bad),
    )
    for value in NEWER.get(field or "", {}).values():
        assert str(next(iter(value)) if isinstance(value, list | dict) else value) in stored

    deleted = await api.delete(f"{JOBS}/{bad}")
    assert (deleted.status, deleted.body["status"]) == (200, "CANCELLED"), deleted.body
    assert [job["job_id"] for job in (await api.get(JOBS)).body["items"]] == [good]


@kinds
@pytest.mark.parametrize("field", [*NEWER, None])
async def test_an_update_must_replace_all_that_cannot_be_read(
    api: Client, engine: Engine, document: dict[str, Any], field: str | None
) -> None:
    bad = await created(api, document)
    if field is None:
        await damage(engine, bad)
    else:
        await store_newer(engine, parse_job_id(bad), **NEWER[field])
    refused = await api.patch(f"{JOBS}/{bad}", {"priority": "HIGH"})
    assert refused.status == 409, refused.body
    assert (field or "action") in refused.body["detail"]
    if field is None:
        return
    valid = {
        "delivery": "at_least_once",
        "action": TASK,
        "schedule": document["schedule"],
        "retry_policy": {"max_retries": 1},
        "labels": {},
    }
    replaced = await api.patch(f"{JOBS}/{bad}", {field: valid[field]})
    assert replaced.status == 200, replaced.body
    for job in (replaced.body, (await api.get(f"{JOBS}/{bad}")).body):
        assert job["problem"] is None
        assert job[field] == valid[field] or field in ("schedule", "action", "retry_policy")


async def test_a_put_by_name_replaces_it(api: Client, engine: Engine) -> None:
    path = f"{JOBS}/by-name/nightly"
    document = {key: value for key, value in RECURRING.items() if key != "name"}
    put = await api.put(path, document)
    await damage(engine, put.body["job_id"])
    again = await api.put(path, document)
    assert (again.status, again.body["problem"]) == (200, None), again.body


async def test_it_is_not_run_with_stand_ins_for_what_cannot_be_read(
    api: Client, engine: Engine
) -> None:
    bad = await created(api, RECURRING)
    await store_newer(engine, parse_job_id(bad), **NEWER["delivery"])
    assert (await api.post(f"{JOBS}/{bad}/run")).status == 409


async def test_what_is_shown_in_its_place_cannot_be_sent_back(api: Client, engine: Engine) -> None:
    bad = await created(api, RECURRING)
    await damage(engine, bad)
    shown = (await api.get(f"{JOBS}/{bad}")).body
    kept = {key: shown[key] for key in (*RECURRING, "tenant_id", "priority", "queue")}
    refused = await api.post(JOBS, kept)
    assert refused.status == 422
    assert {error["path"] for error in refused.body["errors"]} == {"schedule.cron"}
