"""The requests that docs/ prints, sent as they are printed."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg

from hourbell import App, Context
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.notify import send_notices
from integration.api.client import Answer, Client, one_time, recurring
from integration.api.working import Hand, dead
from integration.life.support import eventually

DOCS = Path(__file__).parents[3] / "docs"


def block_with(page: str, text: str) -> str:
    """The only indented block of a page that contains this, without its indentation."""
    content = (DOCS / page).read_text("utf-8")
    blocks = re.findall(r"(?:^    .*\n)+", content, re.MULTILINE)
    (block,) = (each for each in blocks if text in each)
    return re.sub(r"^    ", "", block, flags=re.MULTILINE)


def python_blocks(page: str) -> list[str]:
    content = (DOCS / page).read_text("utf-8")
    return re.findall(r"^```python\n(.*?)^```$", content, re.MULTILINE | re.DOTALL)


def document_with(page: str, text: str) -> Any:
    return json.loads(block_with(page, text))


def filled(text: str, **known: str) -> str:
    """The text with ids in place of `job_…` and the like."""
    for kind, id_ in known.items():
        text = text.replace(f"{kind}_…", id_)
    return text


async def test_the_schedule_of_the_page_is_previewed(api: Client):
    asked = document_with("api.md", '"cron": "30 2 * * *"')
    answer = await api.post("/api/v1/schedules/preview", asked, key=None)
    assert answer.status == 200, answer.body
    assert answer.body["words"] == "Every day at 02:30 in Europe/Berlin."
    assert len(answer.body["items"]) == asked["count"]
    assert {change["kind"] for change in answer.body["clock_changes"]} == {"forward", "back"}


async def test_the_jobs_of_a_filter_of_the_page_are_paused(api: Client):
    selected = {"tenant_id": "acme", "queue": "mail", "labels": {"team": "billing"}}
    job = await api.created(recurring(**selected))
    other = await api.created(recurring(**selected | {"queue": "default"}))
    asked = document_with("api.md", '"reason": "provider down"')
    answer = await api.post("/api/v1/jobs/pause", asked)
    assert (answer.status, answer.body["paused"]) == (200, 1), answer.body
    paused = (await api.get(job["path"])).body["paused"]
    assert (paused["reason"], paused["until"]) == (asked["reason"], asked["until"])
    assert (await api.get(other["path"])).body["status"] == "SCHEDULED"


async def test_the_operation_of_the_page_is_started(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    await dead(api, Hand(dispatch), recurring(tenant_id="acme"))
    (letter,) = (await api.get("/api/v1/dead-letters")).body["items"]
    asked = document_with("api.md", '"act": "replay"')
    asked["filter"]["fingerprint"] = letter["fingerprint"]
    part = {"act": asked["act"], "filter": asked["filter"]}
    preview = await api.post("/api/v1/operations/preview", part, key=None)
    assert (preview.status, preview.body["total"]) == (200, 1), preview.body
    answer = await api.post("/api/v1/operations", asked)
    assert answer.status == 201, answer.body
    started = (await api.get(f"/api/v1/operations/{answer.body['operation_id']}")).body
    assert started["filter"].pop("to")  # not what dies after the start
    assert {name: started[name] for name in asked} == asked


async def test_the_notifications_of_the_page_are_accepted_and_sent_with_the_body_of_the_page(
    api: Client, engine: Engine, dispatch: PostgresDispatch
):
    await api.put("/api/v1/secrets/done", {"value": "a secret of many characters"})
    notifications = json.loads("{" + block_with("notifications.md", '"notifications": [') + "}")
    job = await dead(api, Hand(dispatch), recurring(**notifications))
    kept = (await api.get(job["path"])).body["notifications"]
    assert [each["on"] for each in kept] == [each["on"] for each in notifications["notifications"]]
    now = await engine.clock.now()
    while await send_notices(engine, None, now + timedelta(seconds=1)):
        pass
    printed = document_with("notifications.md", '"event": "dead_letter"')
    (spec,) = await engine.database.fetch(
        "select spec from hourbell.executions where origin = hourbell.origin_notification()"
    )
    action = json.loads(spec["spec"])["action"]
    assert action["url"] == "https://chat.example/hooks/ops"
    assert list(action["body"]) == list(printed)
    same = ("event", "tenant_id", "status", "reason")
    assert {name: action["body"][name] for name in same} == {name: printed[name] for name in same}


async def sent(api: Client, line: str) -> Answer:
    """`METHOD path {…}`, as a page prints it."""
    method, path, rest = re.fullmatch(r"(\w+) (\S+)\s*(\{.*\})?.*", line, re.DOTALL).groups()  # type: ignore[union-attr]
    return await api.send(method, path, None if rest is None else json.loads(rest))


async def test_the_monitor_of_the_page_is_created(api: Client):
    job = await api.created(recurring())
    text = filled(block_with("notifications.md", "POST /api/v1/monitors"), job=job["job_id"])
    answer = await sent(api, text)
    assert answer.status == 201, answer.body
    assert (answer.body["job_id"], answer.body["grace_seconds"]) == (job["job_id"], 600)


async def test_the_group_of_the_page_is_created_filled_and_closed(
    api: Client, dispatch: PostgresDispatch
):
    job = await api.created(one_time())
    ran = await dead(api, Hand(dispatch), recurring())
    create, add, close = block_with("notifications.md", "POST /api/v1/groups").splitlines()
    created = await sent(api, create)
    assert created.status == 201, created.body
    ids = {"grp": created.body["group_id"], "job": job["job_id"], "exe": ran["execution_id"]}
    added = await sent(api, filled(add.replace(", …", ""), **ids))
    assert (added.status, added.body["members"]) == (200, 2), added.body
    closed = await sent(api, filled(close, **ids))
    assert closed.status == 200, closed.body
    assert closed.body["closed_at"] is not None


async def test_a_job_excludes_the_dates_of_the_calendar_of_the_page(api: Client):
    put, _, create = block_with("time.md", "PUT /api/v1/calendars/holidays").splitlines()
    answer = await sent(api, put)
    assert answer.status in (200, 201), answer.body
    others = {name: value for name, value in recurring().items() if name != "schedule"}
    create = create.replace("{…,", json.dumps(others)[:-1] + ",").replace(", …}", "}")
    created = await sent(api, create)
    assert created.status == 201, created.body
    assert created.body["schedule"]["exclude"] == ["holidays"]


async def test_an_outside_system_resumes_the_handler_of_the_page_by_its_token(
    api: Client, database: str
):
    app = App("shop", url=database)
    (source,) = (each for each in python_blocks("library.md") if "async def take_payment" in each)
    names: dict[str, Any] = {"app": app, "Context": Context, "timedelta": timedelta}
    exec(compile(source, "library.md", "exec"), names)
    async with app, app.worker():
        payment = await names["take_payment"].enqueue(7)

        async def is_awaiting() -> bool:
            return (await payment.get()).status == "AWAITING"

        await eventually(is_awaiting)
        async with asyncpg.create_pool(database, min_size=1, max_size=1) as pool:
            token = await pool.fetchval("select token from hourbell.waits")
        text = block_with("library.md", "POST /api/v1/executions/exe_…/complete")
        answer = await sent(api, text.replace("exe_…-…", token).replace("exe_…", token[:17]))
        assert answer.status == 200, answer.body
        assert await payment.result(20) == "order 7: {'cents': 300} for exe_"
