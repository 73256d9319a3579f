"""DELETE /api/v1/monitors/{monitor_id}"""

from datetime import timedelta

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.monitors import delete_monitor
from hourbell.model.errors import NotFound
from hourbell.model.ids import parse_monitor_id
from integration.api.client import Client, recurring
from integration.api.test_create_monitor import MONITORS, watching


async def created(api: Client) -> tuple[str, str]:
    """The path of a monitor, and its id."""
    job = await api.created(recurring())
    answer = await api.post(MONITORS, watching(job["job_id"]))
    return answer.headers["Location"], answer.body["monitor_id"]


async def test_a_deleted_monitor_is_gone(api: Client):
    path, number = await created(api)
    answer = await api.delete(path)
    assert (answer.status, answer.body["monitor_id"]) == (200, number)
    assert (await api.get(path)).is_problem(404, "not_found")
    assert (await api.delete(path)).is_problem(404, "not_found")
    assert (await api.get(MONITORS)).body["items"] == []


async def test_a_repeat_gets_the_first_answer(api: Client):
    path, _ = await created(api)
    first = await api.delete(path, key="once")
    second = await api.delete(path, key="once")
    assert (second.status, second.body) == (200, first.body)


async def test_a_monitor_of_another_tenant_is_not_there(api: Client, engine: Engine):
    path, number = await created(api)
    with pytest.raises(NotFound):
        await delete_monitor(engine.scoped_to("other"), parse_monitor_id(number), Write())
    assert (await api.get(path)).status == 200


async def test_it_makes_room_for_another(api: Client):
    job = await api.created(recurring())
    paths = [
        (await api.post(MONITORS, watching(job["job_id"]))).headers["Location"] for _ in range(5)
    ]
    await api.delete(paths[0])
    assert (await api.post(MONITORS, watching(job["job_id"]))).status == 201


async def test_it_is_forgotten_when_its_answer_is(api: Client, engine: Engine):
    path, _ = await created(api)
    await api.delete(path)
    now = await engine.clock.now()
    await run_housekeeping(engine, None, now)
    assert await engine.database.value("select count(*) from hourbell.monitors") == 1
    await run_housekeeping(engine, None, now + timedelta(seconds=engine.times.answers_seconds + 60))
    assert await engine.database.value("select count(*) from hourbell.monitors") == 0
