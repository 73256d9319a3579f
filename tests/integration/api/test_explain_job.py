"""GET /api/v1/jobs/{job_id}/explain"""

from datetime import timedelta

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.term import Leadership
from hourbell.engine.life.plan import plan
from hourbell.engine.operations.presence import Node, OpenCircuit, report_presence
from integration.api.client import Client, bearing, made, one_time, recurring
from integration.api.working import Hand


async def test_a_job_waits_for_its_next_run(api: Client):
    job = await api.created(recurring())
    answer = (await api.get(job["path"] + "/explain")).body
    assert (answer["code"], answer["until"]) == ("not_due", job["next_run_at"])


async def test_a_one_time_job_waits_for_its_time(api: Client):
    job = await api.created(one_time())
    answer = (await api.get(job["path"] + "/explain")).body
    assert (answer["code"], answer["until"]) == ("not_due", job["next_run_at"])
    assert answer["execution_id"].removeprefix("exe_") == job["job_id"].removeprefix("job_")


async def test_a_paused_job_waits_to_be_resumed(api: Client):
    job = await api.created(recurring())
    await api.post(job["path"] + "/pause")
    assert (await api.get(job["path"] + "/explain")).body["code"] == "paused"


async def test_an_ended_job_waits_for_nothing(api: Client):
    for document in (one_time(), recurring()):
        job = await api.created(document)
        await api.delete(job["path"])
        assert (await api.get(job["path"] + "/explain")).body["code"] == "ended"


async def test_a_job_that_does_not_exist_is_not_found(api: Client):
    answer = await api.get("/api/v1/jobs/job_0ahr000000000/explain")
    assert answer.is_problem(404, "not_found")


async def test_a_job_whose_zone_the_scheduler_does_not_know_says_so(api: Client, engine: Engine):
    zone = "US/Pacific-New"  # removed from the zone data of this process
    job = await api.created(recurring())
    await engine.database.value("update hourbell.timetables set zone = $1", zone)
    await engine.database.value(
        "update hourbell.jobs set spec = jsonb_set(spec::jsonb, '{schedule,timezone}', to_jsonb($1::text))::text",
        zone,
    )
    await plan(engine, None, (await engine.clock.now()) + timedelta(days=366))
    answer = (await api.get(job["path"] + "/explain")).body
    assert answer["code"] == "unknown_timezone"
    assert zone in answer["message"]
    assert answer["until"]  # when it is tried again
    seen = (await api.get(job["path"])).body
    assert (seen["status"], seen["next_run_at"]) == ("SCHEDULED", None)
    assert (await api.get("/api/v1/jobs")).body["items"] == [seen]
    assert (await api.get(job["path"] + "/next-runs")).body["items"] == []
    assert (await api.delete(job["path"])).status == 200


async def test_who_holds_a_limit_is_shown_only_to_whom_he_exists(
    api: Client,
    admin: str,
    engine: Engine,
):
    await api.put("/api/v1/queues/default", {"max_concurrency": 1}, headers=bearing(admin))
    for tenant in ("a", "b"):
        due = one_time(tenant_id=tenant, schedule={"delay_seconds": 0})
        made_job = (await api.post("/api/v1/jobs", due, headers=bearing(admin))).body
        dispatch = PostgresDispatch(engine)
        session = await dispatch.open("worker", ["default"], 10)
        await dispatch.admit()
        await dispatch.claim(session, 1, 10)
    path = f"/api/v1/jobs/{made_job['job_id']}/explain"
    seen = await api.send("GET", path, key=None, headers=bearing(admin))
    assert seen.body["code"] == "queue_concurrency"
    assert seen.body["blocked_by"] is not None
    b = bearing(await made(api, "viewer", "b", headers=bearing(admin)))
    assert (await api.send("GET", path, key=None, headers=b)).body["blocked_by"] is None


async def test_an_open_circuit_is_named_with_its_host_and_its_last_error(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    hand = Hand(dispatch)
    url = "https://api.example/pay"
    job = await api.created(
        one_time(
            schedule={"delay_seconds": 0}, tenant_id="acme", action={"type": "WEBHOOK", "url": url}
        )
    )
    (claimed,) = await hand.claim()
    await hand.release(claimed, "circuit_open", 30.0)
    explained = (await api.get(job["path"] + "/explain")).body
    assert explained["message"].startswith("Requests to api.example keep failing")
    now = await engine.clock.now()
    until, error = now + timedelta(seconds=30), "http_503: The target answered 503."
    others = [OpenCircuit("other", "api.example", None, 99, now, until, "tls: Not for acme.")]
    circuit = OpenCircuit("acme", "api.example", f"POST {url}", 25, now, until, error)
    node = Node(Leadership(engine).node, "node-a", ["worker"])
    await report_presence(engine, node, now, 0.0, [*others, circuit])
    explained = (await api.get(job["path"] + "/explain")).body
    assert (explained["code"], explained["message"]) == (
        "circuit_open",
        "Requests to api.example keep failing, 25 in a row, and are delayed for a while; this uses"
        f" no attempt. Last error: {error}",
    )
    shown = (await api.get("/api/v1/circuits")).body["items"]
    assert {each["last_error"] for each in shown} == {error, "tls: Not for acme."}


async def test_what_can_be_done_is_a_command(api: Client, engine: Engine):
    await engine.database.fetch("delete from hourbell.sessions where id = -1")
    job = await api.created(one_time(schedule={"delay_seconds": 0}, queue="mail"))
    message = (await api.get(job["path"] + "/explain")).body["message"]
    assert "`hourbell worker --queues mail`" in message
