"""Tenants and queues that a job names, and that nobody has declared."""

import asyncio
from typing import Any

import pytest

from hourbell import App
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.notify import NOTIFICATION_QUEUE
from hourbell.engine.operations.tasks import declare_tasks
from hourbell.errors import UnknownQueue, UnknownTenant
from integration.api.client import Client, bearing, made, one_time, recurring

JOBS = "/api/v1/jobs"
BATCH = "/api/v1/jobs/batch"


def said(body: dict[str, Any]) -> dict[str, Any]:
    """What the answer says about names that were created."""
    return {name: body[name] for name in ("created_tenant", "created_queue") if name in body}


MADE_BOTH = {"created_tenant": True, "created_queue": True}


async def names(api: Client, kind: str) -> set[str]:
    listed = await api.pages(f"/api/v1/{kind}s")
    return {each["tenant_id" if kind == "tenant" else kind] for each in listed}


@pytest.mark.parametrize("job", [one_time, recurring])
async def test_a_create_says_which_names_it_has_created(api: Client, job: Any):
    named = job(tenant_id="acme", queue="mail")
    first = await api.post(JOBS, named)
    assert (first.status, said(first.body)) == (201, MADE_BOTH)
    assert said((await api.post(JOBS, named)).body) == {}
    other = await api.post(JOBS, job(tenant_id="acme", queue="mial"))
    assert said(other.body) == {"created_queue": True}
    assert said((await api.get(f"{JOBS}/{first.body['job_id']}")).body) == {}


async def test_the_repeated_answer_is_the_same(api: Client):
    named = one_time(tenant_id="acme", queue="mail")
    first = await api.post(JOBS, named, key="once")
    assert said(first.body) == MADE_BOTH
    assert (await api.post(JOBS, named, key="once")).body == first.body
    batch = [one_time(tenant_id="other")]
    first = await api.post(BATCH, batch, key="many")
    assert said(first.body["results"][0]) == {"created_tenant": True}
    again = await api.post(BATCH, batch, key="many")
    assert again.body == first.body


async def test_a_put_says_it_too(api: Client):
    named = one_time(name="report", tenant_id="acme")
    put = await api.put(f"{JOBS}/by-name/report", named)
    assert (put.status, said(put.body)) == (201, {"created_tenant": True})


async def test_of_the_items_of_a_batch_the_first_created_its_names(api: Client):
    items = [
        one_time(tenant_id="acme"),
        one_time(tenant_id="bad/name"),
        one_time(tenant_id="acme", queue="mail"),
        recurring(tenant_id="other", queue="mail"),
        one_time(),
    ]
    results = (await api.post(BATCH, items)).body["results"]
    assert [said(each) for each in results if "job_id" in each] == [
        {"created_tenant": True},
        {"created_queue": True},
        {"created_tenant": True},
        {},
    ]


async def test_of_concurrent_requests_one_created_the_name(api: Client):
    answers = await asyncio.gather(*(api.post(JOBS, one_time(tenant_id="acme")) for _ in range(10)))
    assert {answer.status for answer in answers} == {201}
    assert sum("created_tenant" in answer.body for answer in answers) == 1


@pytest.mark.parametrize("kind", ["tenant", "queue"])
async def test_lists_say_which_names_were_created_on_use_until_a_put_declares_them(
    api: Client, kind: str
):
    async def noted() -> set[str]:
        listed = await api.pages(f"/api/v1/{kind}s")
        field = "tenant_id" if kind == "tenant" else "queue"
        found = {each[field] for each in listed if each["created_on_use"]}
        for each in listed:
            one = (await api.get(f"/api/v1/{kind}s/{each[field]}")).body
            assert one["created_on_use"] is each["created_on_use"]
        return found

    await api.put(f"/api/v1/{kind}s/declared", {})
    for name in ("typo", "declared", "default"):
        await api.created(one_time(**{"tenant_id" if kind == "tenant" else "queue": name}))
    assert await noted() == {"typo"}
    await api.put(f"/api/v1/{kind}s/typo", {})
    assert await noted() == set()


class TestRefused:
    """HOURBELL_CREATE_ON_USE=false"""

    @pytest.fixture(autouse=True)
    def _refused(self, engine: Engine) -> None:
        engine.create_on_use = False

    async def test_unknown_names_are_refused_with_similar_ones(self, api: Client):
        await api.put("/api/v1/tenants/acme", {})
        await api.put("/api/v1/queues/mail", {})
        for fields, path, code, meant in (
            ({"tenant_id": "acmee"}, "tenant_id", "unknown_tenant", "acme"),
            ({"queue": "mial"}, "queue", "unknown_queue", "mail"),
        ):
            for answer in (
                await api.post(JOBS, one_time(**fields)),
                await api.post(JOBS, recurring(**fields)),
                await api.put(f"{JOBS}/by-name/n", recurring(name="n", **fields)),
            ):
                assert answer.is_problem(422, "invalid_input")
                (error,) = answer.body["errors"]
                assert (error["path"], error["code"]) == (path, code)
                assert f"Did you mean {meant}?" in error["message"]
                (wrong,) = fields.values()
                assert (
                    f"PUT /api/v1/{'tenants' if meant == 'acme' else 'queues'}/{wrong}"
                    in (error["message"])
                )
        assert await names(api, "tenant") <= {"acme", "default"}
        assert await names(api, "queue") <= {"mail", "default"}

    async def test_known_and_default_names_are_accepted(self, api: Client):
        await api.put("/api/v1/tenants/acme", {})
        await api.put("/api/v1/queues/mail", {})
        for job in (one_time, recurring):
            answer = await api.post(JOBS, job(tenant_id="acme", queue="mail"))
            assert (answer.status, said(answer.body)) == (201, {})
            assert (await api.post(JOBS, job())).status == 201

    async def test_other_items_of_a_batch_are_created(self, api: Client):
        items = [one_time(), one_time(tenant_id="typo"), recurring(queue="typo"), one_time()]
        results = (await api.post(BATCH, items)).body["results"]
        assert ["job_id" in each for each in results] == [True, False, False, True]
        codes = [error["code"] for each in results[1:3] for error in each["errors"]]
        assert codes == ["unknown_tenant", "unknown_queue"]

    async def test_a_job_is_not_moved_into_an_unknown_queue(self, api: Client):
        for document in (one_time(), recurring()):
            job = await api.created(document)
            changed = await api.patch(f"{JOBS}/{job['job_id']}", {"queue": "typo"})
            assert changed.is_problem(422, "invalid_input")
            assert changed.body["errors"][0]["code"] == "unknown_queue"
            assert (await api.get(f"{JOBS}/{job['job_id']}")).body["queue"] == "default"

    async def test_nothing_else_creates_an_unknown_tenant(self, api: Client):
        viewer = {"name": "k", "role": "viewer", "tenant_id": "typo"}
        for answer in (
            await api.put("/api/v1/secrets/s", {"value": "a secret value", "tenant_id": "typo"}),
            await api.put("/api/v1/calendars/c", {"dates": [], "tenant_id": "typo"}),
        ):
            assert answer.is_problem(422, "invalid_input")
            assert answer.body["errors"][0]["code"] == "unknown_tenant", answer.body
        admin = bearing(await made(api, "admin"))
        refused = await api.post("/api/v1/keys", viewer, headers=admin)
        assert refused.body["errors"][0]["code"] == "unknown_tenant"
        tenants = (await api.send("GET", "/api/v1/tenants", key=None, headers=admin)).body["items"]
        assert "typo" not in {each["tenant_id"] for each in tenants}

    async def test_a_tenant_is_not_shown_queues_of_others(self, api: Client):
        for name in ("acme", "other"):
            await api.put(f"/api/v1/tenants/{name}", {})
        for name in ("mail", "mails"):
            await api.put(f"/api/v1/queues/{name}", {})
        await api.created(one_time(tenant_id="acme", queue="mail"))
        await api.created(one_time(tenant_id="other", queue="mails"))
        admin = bearing(await made(api, "admin"))
        own = bearing(await made(api, "producer", "acme", headers=admin))
        refused = await api.post(JOBS, one_time(queue="mailx"), headers=own)
        message = refused.body["errors"][0]["message"]
        assert "mail?" in message
        assert "mails" not in message

    async def test_workers_and_the_scheduler_declare_their_queues(
        self, api: Client, engine: Engine
    ):
        await PostgresDispatch(engine).open("w", ["mail"], 1)
        await declare_tasks(engine, {"shop.report": '{"queue": "reports", "tenant": "acme"}'})
        assert {"mail", "reports"} <= await names(api, "queue")
        assert "acme" in await names(api, "tenant")
        await engine.declaring().queue(NOTIFICATION_QUEUE, await engine.clock.now())


async def test_calls_of_the_library_do_not_create_unknown_names(
    database: str, api: Client, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOURBELL_CREATE_ON_USE", "false")
    app = App("shop", url=database, tenant="acme")

    @app.task(name="report", queue="mail")
    async def report() -> None: ...

    async with app:
        await report.enqueue()
        with pytest.raises(UnknownQueue, match="Did you mean mail"):
            await report.configure(queue="mial").enqueue()
        with pytest.raises(UnknownTenant, match="Did you mean acme"):
            await report.configure(tenant="acmee").enqueue()
    assert await names(api, "tenant") <= {"acme", "default"}
    assert await names(api, "queue") <= {"mail", "default"}
