"""Anything that can be done to executions and limits, in any order: limits hold, nothing leaks, and all of it ends."""

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from hourbell.dispatch import DEAD, RELEASED, RETRY, SUCCEEDED, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_queue, set_target, set_tenant
from hourbell.engine.operations.runs import cancel_execution
from hourbell.model.errors import Conflict, InvalidInput, NotFound
from hourbell.model.executions import Claimed
from hourbell.model.limits import Limits, QueueSettings, RateLimit, TenantSettings
from integration.life.limits import SECOND, nothing_is_held
from integration.life.support import (
    START,
    Hand,
    admit_all,
    check_sound,
    create,
    every,
    expire_session,
    one_time,
    places,
    plan_all,
    travel,
    violations_of,
)

LIMITED = "(select unnest(ids) as id, limited from hourbell.ready union all select id, limited from hourbell.suspects)"
INVARIANTS = violations_of(
    {
        "a hold of nothing": "select h.* from hourbell.limit_holds as h where not exists (select from hourbell.live as e where e.id = h.id)",
        "an offer of what is not ready": f"select o.* from hourbell.rate_reservations as o where not exists (select from {LIMITED} as r where r.id = o.id)",  # noqa: S608
        "a hold twice": "select kind, key, id from hourbell.limit_holds group by 1, 2, 3 having count(*) > 1",
        "a hold of what waits": f"""
        select h.* from hourbell.limit_holds as h where kind < 4
          and not exists (select from {LIMITED} as r where r.id = h.id)
          and not exists (select from hourbell.leases as l where l.id = h.id)""",  # noqa: S608
        "a key twice": """
        select e.key from hourbell.leases as l join hourbell.live as e on e.id = l.id
        where e.key is not null group by e.key having count(*) > max(e.key_limit)""",
    }
)
TENANTS, QUEUES, HOSTS = ("a", "b"), ("default", "other"), ("h1", "h2")


class Walk:
    """Everything that can be done to executions and limits, at random; time stands unless it is moved."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine = engine
        self._chosen = random.Random(seed)
        self._jobs: list[int] = []
        self._recurring: list[int] = []  # of them
        self._running: dict[tuple[int, int], tuple[Hand, Claimed]] = {}
        self._hands: list[Hand] = []
        self.now = START

    async def steps(self, number: int) -> AsyncIterator[None]:
        await self._new_hand()
        acts: dict[Callable[[], Awaitable[object]], int] = {
            self._create: 8,
            self._create_recurring: 1,
            self._advance: 4,
            self._admit: 10,
            self._claim: 6,
            self._settle: 8,
            self._cancel: 3,
            self._change: 3,
            self._limit: 3,
            self._expire: 3,
            self._crash: 1,
        }
        for _ in range(number):
            [act] = self._chosen.choices(list(acts), list(acts.values()))
            with contextlib.suppress(Conflict, NotFound, InvalidInput):  # it has ended, or is none
                await act()
            yield

    async def finish(self) -> None:
        """Whatever is limited stays so, and yet all of it ends: no limit is 0 any more."""
        for tenant in TENANTS:
            await set_tenant(self._engine, tenant, TenantSettings(max_concurrency=1), Write())
        for queue in QUEUES:
            await set_queue(self._engine, queue, QueueSettings(max_concurrency=2), Write())
        for host in HOSTS:
            await set_target(self._engine, host, Limits(rate_limit=RateLimit(2.0)), Write())
        for job in self._jobs:
            with contextlib.suppress(Conflict, NotFound):
                await resume_job(self._engine, job, Write())
        for job in self._recurring:
            with contextlib.suppress(Conflict, NotFound):
                await delete_job(self._engine, job, Write())
        for _ in range(400):
            await self._settle(all_of_them=True)
            self.now += SECOND
            await travel(self._engine, self.now)
            await self._expire()
            await self._admit()
            await self._claim()
            if not await places(self._engine):
                return
        raise AssertionError(f"still there: {await places(self._engine)}")

    async def _new_hand(self) -> None:
        self._hands.append(await Hand.opened(self._engine, QUEUES))

    async def _create(self) -> None:
        chosen = self._chosen
        fields: dict[str, object] = {
            "tenant_id": chosen.choice(TENANTS),
            "queue": chosen.choice(QUEUES),
            "priority": chosen.choice(("LOW", "MEDIUM", "HIGH")),
        }
        if chosen.random() < 0.4:
            fields |= {"concurrency_key": chosen.choice("kl")}
        if chosen.random() < 0.2:
            fields |= {"start_deadline_seconds": chosen.choice((1, 20))}
        if chosen.random() < 0.4:
            url = f"http://{chosen.choice(HOSTS)}/"
            fields |= {"action": {"type": "WEBHOOK", "url": url}}
        if chosen.random() < 0.3:
            fields |= {"schedule": {"delay_seconds": chosen.choice((1, 5))}}
        self._jobs.append((await create(self._engine, one_time() | fields)).job_id)

    async def _create_recurring(self) -> None:
        overlap = self._chosen.choice(("forbid", "replace", "queue_one", "allow"))
        tenant, seconds = self._chosen.choice(TENANTS), self._chosen.choice((3, 7))
        document = every(seconds, tenant_id=tenant, overlap_policy=overlap)
        self._recurring.append((await create(self._engine, document)).job_id)
        self._jobs.append(self._recurring[-1])

    async def _advance(self) -> None:
        self.now += timedelta(seconds=self._chosen.choice((0.3, 1, 3, 8)))
        await travel(self._engine, self.now)
        await plan_all(self._engine)

    async def _admit(self) -> None:
        await admit_all(self._engine)

    async def _claim(self) -> None:
        hand = self._chosen.choice(self._hands)
        for run in await hand.claim(self._chosen.choice((1, 3, 20))):
            self._running[run.execution_id, run.fence] = hand, run

    async def _settle(self, all_of_them: bool = False) -> None:
        count = len(self._running) if all_of_them else min(len(self._running), 3)
        kinds = (SUCCEEDED,) if all_of_them else (SUCCEEDED, SUCCEEDED, RETRY, DEAD, RELEASED)
        for number in self._chosen.sample(sorted(self._running), count):
            hand, run = self._running.pop(number)
            outcome = Settlement(
                run.execution_id, run.fence, self._chosen.choice(kinds), 0, 1, 2.0, "Bad", "bad"
            )
            await hand.dispatch.settle(hand.session, [outcome])

    async def _cancel(self) -> None:
        rows = await self._engine.database.fetch("select id from hourbell.live order by id")
        if rows:
            await cancel_execution(self._engine, self._chosen.choice(rows)["id"], Write())

    async def _change(self) -> None:
        if not self._jobs:
            return
        job = self._chosen.choice(self._jobs)
        match self._chosen.choice(("pause", "resume", "delete", "priority", "key", "queue")):
            case "pause":
                await pause_job(self._engine, job, Write())
            case "resume":
                await resume_job(self._engine, job, Write())
            case "delete":
                await delete_job(self._engine, job, Write())
            case "priority":
                await update_job(self._engine, job, {"priority": "CRITICAL"}, Write())
            case "key":
                change = {"concurrency_key": self._chosen.choice("klm")}
                await update_job(self._engine, job, change, Write())
            case _:
                await update_job(self._engine, job, {"queue": self._chosen.choice(QUEUES)}, Write())

    async def _limit(self) -> None:
        chosen = self._chosen
        limits: dict[str, object] = {
            "max_concurrency": chosen.choice((None, 0, 1, 2, 5)),
            "rate_limit": chosen.choice((None, None, RateLimit(2.0, chosen.choice((1, 3))))),
        }
        match chosen.choice(("tenant", "queue", "target")):
            case "tenant":
                settings = TenantSettings(weight=chosen.choice((1.0, 2.0)), **limits)
                await set_tenant(self._engine, chosen.choice(TENANTS), settings, Write())
            case "queue":
                queue = chosen.choice(QUEUES)
                await set_queue(self._engine, queue, QueueSettings(**limits), Write())
            case _:
                await set_target(self._engine, chosen.choice(HOSTS), Limits(**limits), Write())

    async def _expire(self) -> None:
        await expire(self._engine, None, self.now)

    async def _crash(self) -> None:
        """A worker dies, or leaves."""
        hand = self._hands.pop(self._chosen.randrange(len(self._hands)))
        if self._chosen.random() < 0.5:
            await hand.dispatch.close(hand.session)
        else:
            await expire_session(self._engine, hand.session)
            await reap(self._engine, None, self.now)
        self._running = {
            number: held for number, held in self._running.items() if held[0] is not hand
        }
        if not self._hands or self._chosen.random() < 0.5:
            await self._new_hand()


@pytest.mark.parametrize("seed", range(16))
async def test_whatever_is_done_limits_hold_nothing_leaks_and_all_ends(
    still: Engine, seed: int
) -> None:
    walk = Walk(still, seed)
    async for _ in walk.steps(200):
        await check_sound(still, INVARIANTS)
    await walk.finish()
    await nothing_is_held(still)
