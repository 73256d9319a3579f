"""POST /api/v1/jobs/{job_id}/run"""

from hourbell.dispatch import SUCCEEDED
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.model.jobs import TaskAction, WebhookAction, decode_spec
from integration.api.client import Client, one_time, recurring
from integration.api.working import Hand


async def test_a_run_now_is_an_execution_beside_the_schedule(api: Client):
    job = await api.created(recurring())
    answer = await api.post(job["path"] + "/run")
    assert answer.status == 202
    (execution_id,) = answer.body["execution_ids"]
    execution = (await api.get(f"/api/v1/executions/{execution_id}")).body
    assert (execution["job_id"], execution["status"]) == (job["job_id"], "QUEUED")
    assert (await api.get(job["path"])).body["next_run_at"] == job["next_run_at"]


async def test_each_run_now_is_an_execution_of_its_own(api: Client):
    job = await api.created(recurring())
    ids = {(await api.post(job["path"] + "/run")).body["execution_ids"][0] for _ in range(3)}
    assert len(ids) == 3


async def test_a_one_time_job_runs_earlier(api: Client):
    job = await api.created(one_time())
    (execution_id,) = (await api.post(job["path"] + "/run")).body["execution_ids"]
    assert execution_id.removeprefix("exe_") == job["job_id"].removeprefix("job_")
    waits_for = (await api.get(f"/api/v1/executions/{execution_id}/explain")).body
    assert waits_for["code"] == "admission"


async def test_a_paused_job_can_be_run(api: Client):
    job = await api.created(recurring())
    await api.post(job["path"] + "/pause")
    assert (await api.post(job["path"] + "/run")).status == 202


async def test_an_ended_job_cannot_be_run(api: Client):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        await api.delete(job["path"])
        assert (await api.post(job["path"] + "/run")).is_problem(409, "job_not_active")


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.post("/api/v1/jobs/job_0ahr000000000/run")
    assert answer.is_problem(404, "not_found")


WEBHOOK = {"type": "WEBHOOK", "url": "https://example.com/", "body": {"own": 1}}


async def test_one_run_may_be_sent_something_else(api: Client, dispatch: PostgresDispatch):
    hand = Hand(dispatch)
    for document in (recurring, one_time):
        task = await api.created(document(action={"type": "TASK", "name": "t", "payload": "own"}))
        await api.post(task["path"] + "/run", {"payload": {"n": [1, None]}})
        (claimed,) = await hand.claim()
        action = decode_spec(claimed.spec).action
        assert isinstance(action, TaskAction)
        assert (action.name, action.payload) == ("t", {"n": [1, None]})
        await hand.settle(claimed, SUCCEEDED)
    webhook = await api.created(recurring(action=WEBHOOK))
    await api.post(webhook["path"] + "/run", {"body": "other"})
    await api.post(webhook["path"] + "/run", {"body": None})
    sent = [decode_spec(claimed.spec).action for claimed in await hand.claim()]
    assert [action.body for action in sent if isinstance(action, WebhookAction)] == [
        "other",
        {"own": 1},
    ]
    assert (await api.get(webhook["path"])).body["action"]["body"] == {"own": 1}


async def test_a_one_time_job_that_is_sent_something_else_is_another_version(api: Client):
    job = await api.created(one_time())
    await api.post(job["path"] + "/run", {"payload": 7})
    changed = (await api.get(job["path"])).body
    assert (changed["version"], changed["action"]["payload"]) == (2, 7)


async def test_what_cannot_be_sent_is_refused(api: Client):
    webhook, task = await api.created(recurring(action=WEBHOOK)), await api.created(recurring())
    wrong = [
        (webhook, {"payload": 1}, "payload"),
        (task, {"body": 1}, "body"),
        (task, {"payload": 1, "queue": "x"}, "queue"),
        (task, {"payload": "x" * 300_000}, "payload"),
        (task, {"payload": {"a": "\x00"}}, "payload.a"),
    ]
    for job, body, path in wrong:
        answer = await api.post(job["path"] + "/run", body)
        assert answer.is_problem(422, "invalid_input"), path
        assert answer.paths == {path}


async def test_what_runs_already_cannot_be_sent_anything_else(
    api: Client, dispatch: PostgresDispatch
):
    job = await api.created(one_time())
    await api.post(job["path"] + "/run")
    assert await Hand(dispatch).claim()
    answer = await api.post(job["path"] + "/run", {"payload": 1})
    assert answer.is_problem(409, "conflict")
