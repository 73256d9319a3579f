"""The one job of a name."""

import asyncio
import copy
from collections import Counter
from weakref import WeakValueDictionary

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.groups import GroupExecutor
from hourbell.engine.operations import upsert
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.upsert import put_job
from integration.api.client import Client, one_time, recurring

JOBS = "/api/v1/jobs"
NIGHTLY = "/api/v1/jobs/by-name/nightly"


def nightly(**fields: object) -> dict[str, object]:
    document = recurring(**fields)
    del document["name"]
    return document


async def test_it_is_made_and_then_changed(api: Client):
    made = await api.put(NIGHTLY, nightly(priority="HIGH", labels={"team": "a"}))
    assert made.status == 201
    assert made.headers["Location"] == f"{JOBS}/{made.body['job_id']}"
    assert made.body["name"] == "nightly"
    changed = await api.put(NIGHTLY, nightly(timeout_seconds=5))
    assert changed.status == 200
    assert changed.body["job_id"] == made.body["job_id"]
    assert changed.body["version"] == 2
    assert changed.body["timeout_seconds"] == 5
    # What is left out goes back to its default.
    assert (changed.body["priority"], changed.body["labels"]) == ("MEDIUM", {})


async def test_the_same_again_changes_nothing(api: Client):
    document = {"schedule": {"every_seconds": 60}}
    made = await api.put(NIGHTLY, nightly(**document))
    again = await api.put(NIGHTLY, nightly(**document))
    assert (again.status, again.body) == (200, made.body)


async def test_repeats_get_their_first_answers(api: Client):
    made = await api.put(NIGHTLY, nightly(), key="made")
    changed = await api.put(NIGHTLY, nightly(priority="LOW"), key="changed")
    for key, document, first in (
        ("made", nightly(), made),
        ("changed", nightly(priority="LOW"), changed),
    ):
        again = await api.put(NIGHTLY, document, key=key)
        assert (again.status, again.body) == (first.status, first.body)


async def test_jobs_that_were_posted_are_not_meant(api: Client):
    posted = await api.created(recurring(name="nightly"))
    made = await api.put(NIGHTLY, nightly())
    assert made.status == 201
    assert made.body["job_id"] != posted["job_id"]


async def test_a_name_is_free_when_its_job_has_ended(api: Client):
    made = await api.put(NIGHTLY, nightly())
    await api.delete(f"{JOBS}/{made.body['job_id']}")
    again = await api.put(NIGHTLY, nightly())
    assert again.status == 201
    assert again.body["job_id"] != made.body["job_id"]


@pytest.mark.parametrize("exists", [False, True])
async def test_puts_of_one_name_at_once_wait_for_each_other(api: Client, exists: bool):
    if exists:
        await api.put(NIGHTLY, nightly())
    puts = (api.put(NIGHTLY, nightly(timeout_seconds=n + 1)) for n in range(20))
    answers = await asyncio.gather(*puts)
    statuses = Counter(answer.status for answer in answers)
    assert statuses == ({200: 20} if exists else {201: 1, 200: 19})
    (job,) = (await api.get(JOBS)).body["items"]
    assert {answer.body["job_id"] for answer in answers} == {job["job_id"]}
    # Each is a version of its own, and the last one is what is there.
    versions = {answer.body["version"]: answer.body["timeout_seconds"] for answer in answers}
    assert sorted(versions) == list(range(1 + exists, 21 + exists))
    assert versions[job["version"]] == job["timeout_seconds"]


async def test_puts_of_one_name_through_two_processes_wait_for_each_other(
    api: Client, engine: Engine
):
    other = copy.copy(engine)  # as another process: it shares nothing but the database
    other.put_locks = WeakValueDictionary()
    other.create_groups = GroupExecutor()
    engines = [engine, other] * 10
    answers = await asyncio.gather(
        *(
            put_job(each, "nightly", nightly(timeout_seconds=n + 1), Write())
            for n, each in enumerate(engines)
        )
    )
    assert sorted(answer.job.version for answer in answers) == list(range(1, 21))


async def test_a_put_waits_for_others_of_its_name_for_some_seconds_only(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(upsert, "NAME_LOCK_SECONDS", 0.05)
    lock = engine.put_locks.setdefault(("default", "nightly"), asyncio.Lock())
    async with lock:  # a request that does not end
        assert (await api.put(NIGHTLY, nightly())).is_problem(503, "busy")
        assert (await api.put("/api/v1/jobs/by-name/other", nightly())).status == 201
    assert (await api.put(NIGHTLY, nightly())).status == 201


async def test_what_contradicts_the_path_is_refused(api: Client):
    other = await api.put(NIGHTLY, recurring(name="other"))
    assert other.is_problem(422, "invalid_input")
    assert other.paths == {"name"}
    unique = await api.put(NIGHTLY, nightly(unique_key="k", on_duplicate="keep"))
    assert unique.paths == {"unique_key", "on_duplicate"}
    assert (await api.put(NIGHTLY, recurring(name="nightly"))).status == 201
    once = one_time()
    del once["name"]
    assert (await api.put(NIGHTLY, once)).paths == {"type"}
    assert (await api.put("/api/v1/jobs/by-name/%00", nightly())).paths == {"name"}
    assert (await api.put(NIGHTLY, body=b"[]")).is_problem(422, "invalid_input")


async def test_a_put_can_require_a_version_or_that_there_is_no_job(api: Client):
    none, first = {"If-Match": '"0"'}, {"If-Match": '"1"'}
    refused = await api.put(NIGHTLY, nightly(), headers=first)
    assert refused.is_problem(412, "precondition_failed")
    assert (await api.get(NIGHTLY)).is_problem(404, "not_found")
    made = await api.put(NIGHTLY, nightly(), headers=none)
    assert made.status == 201
    assert (await api.put(NIGHTLY, nightly(), headers=none)).is_problem(412, "precondition_failed")
    changed = await api.put(NIGHTLY, nightly(priority="HIGH"), headers=first, key="mine")
    assert (changed.status, changed.headers["ETag"]) == (200, '"2"')
    stale = await api.put(NIGHTLY, nightly(priority="LOW"), headers=first)
    assert stale.is_problem(412, "precondition_failed")
    assert (await api.get(NIGHTLY)).body["priority"] == "HIGH"
    await api.delete(NIGHTLY)
    repeated = await api.put(NIGHTLY, nightly(priority="HIGH"), headers=first, key="mine")
    assert (repeated.status, repeated.body["version"]) == (200, 2)
