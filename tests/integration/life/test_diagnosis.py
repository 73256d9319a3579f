"""What the doctor sees of a backlog, wherever it waits."""

from datetime import timedelta

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.views.diagnosis import LateQueue, examine
from integration.life.support import admit_all, create, create_many, one_time, travel

IN_SLABS = "select coalesce(sum(cardinality(ids)), 0)::int from hourbell."
PLACES = {
    "due": "select count(*)::int from hourbell.due",
    "due_slabs": IN_SLABS + "due_slabs",
    "ready": IN_SLABS + "ready",
    "parked": "select count(*)::int from hourbell.parked",
}


@pytest.mark.parametrize("place", PLACES)
async def test_what_is_due_for_a_minute_is_found_wherever_it_waits(
    still: Engine, place: str
) -> None:
    began = await still.clock.now()
    if place == "due":
        for _ in range(3):
            await create(still, one_time())
    else:
        await create_many(still, [one_time()] * 3)
    if place == "parked":
        await still.database.value("delete from hourbell.sessions")
    if place in ("ready", "parked"):
        await admit_all(still)
    assert await still.database.value(PLACES[place]) == 3
    await travel(still, began + timedelta(seconds=59))
    assert (await examine(still, 0.0)).late_queues == []
    await travel(still, began + timedelta(seconds=61))
    late = LateQueue("default", 3, began, has_worker=place != "parked")
    assert (await examine(still, 0.0)).late_queues == [late]


async def test_the_session_of_what_targets_accepted_is_no_worker(still: Engine) -> None:
    await still.database.value("delete from hourbell.sessions")
    await still.database.value(
        "insert into hourbell.sessions"
        " (id, token, worker, queues, slots, started_at, renewed_at, expires_at)"
        " values (hourbell.awaiting_session(), gen_random_uuid(), '', '{}', 0, now(), now(), 'infinity')"
    )
    assert (await examine(still, 0.0)).workers == 0
