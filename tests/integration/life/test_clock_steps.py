"""After the database's clock was set back, the leader does not wait for the old time."""

from datetime import timedelta

from hourbell.engine.core import Engine
from hourbell.engine.leader.bulk_operations import run_operations
from hourbell.engine.leader.group_callbacks import follow_groups
from hourbell.engine.operations.bulk_operations import create_operation
from hourbell.engine.operations.idempotency import Write
from integration.life.support import START, travel
from integration.life.test_leader_verbs import to_follow
from integration.life.test_operations import dead_letters

BACK = timedelta(hours=1)
RATE = 2


async def test_a_group_ends(still: Engine) -> None:
    await to_follow(still)
    now = await travel(still, START - BACK)
    await follow_groups(still, None, now)
    assert await still.database.value("select ended_at from hourbell.execution_groups") == now


async def test_a_replay_at_a_rate_continues_at_its_rate(still: Engine) -> None:
    await dead_letters(still, 2 * RATE)
    ahead = await travel(still, START + timedelta(minutes=1))
    wish = {"act": "replay", "filter": {}, "rate_per_second": RATE}
    await create_operation(still, wish, Write())
    assert await run_operations(still, None, ahead)
    now = await travel(still, START - BACK)
    assert await run_operations(still, None, now)
    soon = now + timedelta(seconds=1)
    due = await still.database.value("select count(*) from hourbell.due where run_at <= $1", soon)
    assert due == RATE
