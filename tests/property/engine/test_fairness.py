"""Fairness against an ideal weighted fair queue, for any arrivals and any claims."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import empty
from hourbell.dispatch import SUCCEEDED, Session, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine, Times
from hourbell.engine.life.admit import admit
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_tenant
from hourbell.model.limits import TenantSettings
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from property.engine.conftest import Runs, slowly

pytestmark = pytest.mark.timeout(600)

WEIGHTS = (1.0, 1.0, 2.0, 5.0)  # by tenant
PRIORITIES = 4

_ARRIVE = """
with made as (
  insert into hourbell.executions (id, occurrence, run_at, tenant, queue, priority, version, origin, spec)
  select hourbell.id_base($1) | (nextval('hourbell.ids') & 4194303), $1, $1, $2, $3, $4, 1, 0,
    '{"name":"job","action":{"type":"TASK","name":"work"},"type":"ONE_TIME","schedule":{"kind":"once","at":"2027-01-01T00:00:00Z"}}'
  from generate_series(1, $5::int) returning id)
insert into hourbell.due (run_at, id, tenant, queue, priority) select $1, id, $2, $3, $4 from made returning id
"""


class Arrive(NamedTuple):
    tenant: int
    count: int
    priority: int = 2


class Claim(NamedTuple):
    count: int


class Served(NamedTuple):
    """One execution that was served, and who was waiting for service just before it."""

    tenant: int
    priority: int
    waiting: frozenset[int]  # tenants, at that priority


class Queue:
    """The real gate and claims, and a count of who waits."""

    def __init__(self, engine: Engine, session: Session, queue: int, tenants: list[int]) -> None:
        self._engine = engine
        self._dispatch = PostgresDispatch(engine)
        self._session = session
        self._queue = queue
        self._tenants = tenants
        self._claims = 0
        self.waiting: Counter[tuple[int, int]] = Counter()  # by tenant and priority
        self._priorities: dict[int, int] = {}  # of executions
        self.served: list[Served] = []

    @classmethod
    async def open(cls, database: Database) -> "Queue":
        async with database.connection() as connection:
            await empty(connection)
        engine = Engine(database, DatabaseClock(database), Times(lease_seconds=3600))
        now = await engine.clock.now()
        for number, weight in enumerate(WEIGHTS):
            await set_tenant(engine, f"t{number}", TenantSettings(weight=weight), Write())
        tenants = [await engine.tenant(f"t{number}", now) for number in range(len(WEIGHTS))]
        session = await PostgresDispatch(engine).open("worker", ["default"], 1000)
        return cls(engine, session, await engine.queue("default", now), tenants)

    async def arrive(self, command: Arrive) -> None:
        now = await self._engine.clock.now()
        tenant = self._tenants[command.tenant]
        rows = await self._engine.database.fetch(
            _ARRIVE, now, tenant, self._queue, command.priority, command.count
        )
        self._priorities |= {row["id"]: command.priority for row in rows}
        self.waiting[command.tenant, command.priority] += command.count
        await self.admit()

    async def claim(self, command: Claim) -> None:
        self._claims += 1
        claimed = await self._dispatch.claim(self._session, self._claims, command.count)
        for one in claimed:
            tenant, priority = int(one.tenant_id[1:]), self._priorities[one.execution_id]
            waiting = frozenset(
                number for (number, at), left in self.waiting.items() if left and at == priority
            )
            self.served.append(Served(tenant, priority, waiting))
            self.waiting[tenant, priority] -= 1
        batch = [Settlement(one.execution_id, one.fence, SUCCEEDED) for one in claimed]
        if batch:
            await self._dispatch.settle(self._session, batch)
        await self.admit()

    async def admit(self) -> None:
        while (await admit(self._engine, await self._engine.clock.now())).more:
            pass


def unfair(served: Sequence[Served], one: int, other: int) -> float:
    """The most by which the service of two tenants, by weight, differed over any stretch in which both waited."""
    worst = 0.0
    highest = lowest = level = 0.0
    for each in served:
        if not {one, other} <= each.waiting:
            highest = lowest = level = 0.0
            continue
        if each.tenant == one:
            level += 1 / WEIGHTS[one]
        elif each.tenant == other:
            level -= 1 / WEIGHTS[other]
        highest, lowest = max(highest, level), min(lowest, level)
        worst = max(worst, highest - level, level - lowest)
    return worst


tenants = st.integers(0, len(WEIGHTS) - 1)
# Whatever a tenant does at another priority, and whenever: within each, every tenant gets its share.
arrivals = st.builds(Arrive, tenants, st.integers(1, 30), st.sampled_from([1, 2, 2, 2]))
claims = st.builds(Claim, st.integers(1, 25))


@settings(slowly, max_examples=60)
@given(st.lists(st.one_of(arrivals, claims), min_size=6, max_size=25))
def test_whoever_waits_is_served_by_weight(in_database: Runs, script: list[Arrive | Claim]) -> None:
    async def work(database: Database) -> None:
        queue = await Queue.open(database)
        for command in script:
            await (queue.arrive(command) if isinstance(command, Arrive) else queue.claim(command))
        while queue.waiting.total():
            await queue.claim(Claim(7))
        largest = max((each.count for each in script if isinstance(each, Claim)), default=7)
        # The order between two passes is off by less than a slab: a quarter of a pass, for one session.
        slab = max((each.count for each in script if isinstance(each, Arrive)), default=0) // 4
        for priority in range(PRIORITIES):
            served = [each for each in queue.served if each.priority == priority]
            for one in range(len(WEIGHTS)):
                for other in range(one):
                    # One execution each, and what a claim took before virtual time had moved.
                    bound = 1 / WEIGHTS[one] + 1 / WEIGHTS[other] + max(largest, 7) + slab
                    assert unfair(served, one, other) <= bound

    in_database(work)


@settings(slowly, max_examples=30)
@given(st.integers(20, 60), st.lists(st.integers(1, 10), min_size=1, max_size=4))
def test_splitting_work_over_time_gains_nothing(
    in_database: Runs, total: int, pieces: list[int]
) -> None:
    """Two tenants of one weight and as much work, one all at once, one piece by piece."""

    async def work(database: Database) -> None:
        queue = await Queue.open(database)
        await queue.arrive(Arrive(0, total))
        left, turn = total, 0
        while left:
            piece = min(pieces[turn % len(pieces)], left)
            await queue.arrive(Arrive(1, piece))
            await queue.claim(Claim(2 * piece))
            left, turn = left - piece, turn + 1
        first_half = queue.served[: len(queue.served) // 2]
        split = sum(each.tenant == 1 for each in first_half)
        assert split <= len(first_half) / 2 + max(pieces) + 1

    in_database(work)


@settings(slowly, max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 20), st.integers(1, 3)), min_size=2, max_size=6))
def test_priorities_of_its_own_gain_a_tenant_nothing_among_those_of_one(
    in_database: Runs, urgent: list[tuple[int, int]]
) -> None:
    """Two tenants with as much MEDIUM work; one of them has more urgent work besides, again and again."""

    async def work(database: Database) -> None:
        queue = await Queue.open(database)
        await queue.arrive(Arrive(0, 60))
        await queue.arrive(Arrive(1, 60))
        for count, batches in urgent:
            await queue.arrive(Arrive(0, count, 1))
            for _ in range(batches):
                await queue.claim(Claim(10))
        medium = [each.tenant for each in queue.served if each.priority == 2]
        assert (
            abs(medium.count(0) - medium.count(1)) <= 15
        )  # a slab: a quarter of what comes at once

    in_database(work)


@settings(slowly, max_examples=20)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(1, 10))
def test_a_newcomer_starts_within_one_batch(
    in_database: Runs, backlog: list[int], batch: int
) -> None:
    async def work(database: Database) -> None:
        queue = await Queue.open(database)
        for count in backlog:
            await queue.arrive(Arrive(0, 10 * count))
            await queue.claim(Claim(batch))
        await queue.arrive(Arrive(1, 1))
        before = len(queue.served)
        while queue.waiting[1, 2]:
            await queue.claim(Claim(batch))
        assert len(queue.served) - before <= 2 * batch + 1

    in_database(work)


@settings(slowly, max_examples=20)
@given(st.lists(st.integers(0, PRIORITIES - 1), min_size=4, max_size=30))
def test_the_more_urgent_is_served_first(in_database: Runs, priorities: list[int]) -> None:
    async def work(database: Database) -> None:
        queue = await Queue.open(database)
        for number, priority in enumerate(priorities):
            await queue.arrive(Arrive(number % len(WEIGHTS), 1, priority))
        rows = await database.fetch("select id, priority from hourbell.live")
        urgency = {row["id"]: row["priority"] for row in rows}
        claimed = await queue._dispatch.claim(queue._session, 1, 100)
        order = [urgency[one.execution_id] for one in claimed]
        assert len(order) == len(priorities)
        assert all(first <= second for first, second in pairwise(order))

    in_database(work)
