"""What the tests of limits share: setting them, queueing work, and what then may run."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from hourbell.engine.core import Engine
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_queue, set_tenant
from hourbell.model.executions import Claimed
from hourbell.model.limits import QueueSettings, TenantSettings
from integration.life.support import Hand, admit_all, create, one_time, places, travel

SECOND = timedelta(seconds=1)


async def queued(engine: Engine, number: int, **fields: Any) -> list[int]:
    """So many one-time jobs that are due at one moment, in the order of their turn: connections have ids in stock."""
    jobs = [await create(engine, one_time(**fields)) for _ in range(number)]
    return sorted(job.job_id for job in jobs)


async def limit_tenant(engine: Engine, name: str, **settings: Any) -> None:
    await set_tenant(engine, name, TenantSettings(**settings), Write())


async def limit_queue(engine: Engine, **settings: Any) -> None:
    await set_queue(engine, "default", QueueSettings(**settings), Write())


async def claimed(engine: Engine, hand: Hand) -> list[Claimed]:
    """All that can run now. What was ready before a limit was set is sent through the gate again by its first claim."""
    runs: list[Claimed] = []
    for _ in range(2):
        await admit_all(engine)
        runs += await hand.claim_all()
    return runs


async def in_time(engine: Engine, hand: Hand, seconds: int = 5) -> list[Claimed]:
    """What starts within some seconds, looked at every second."""
    now, runs = await engine.clock.now(), []
    for number in range(seconds + 1):
        await travel(engine, now + number * SECOND)
        runs += await claimed(engine, hand)
    return runs


def by_tenant(runs: Sequence[Claimed]) -> Counter[str]:
    return Counter(run.tenant_id for run in runs)


async def nothing_is_held(engine: Engine) -> None:
    assert await places(engine) == {}
    assert not await engine.database.fetch(
        "select id from hourbell.limit_holds union all select id from hourbell.rate_reservations"
        " union all select id from hourbell.parked"
    )
