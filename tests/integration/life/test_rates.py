"""Rate limits: what a limit allows is reached, and no window has more, whatever the burst, the workers and their delays."""

import asyncio
import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import timedelta

import pytest

from hourbell.actions import Run
from hourbell.documents.jobs import parse_new_job
from hourbell.engine.core import CHANNEL, Engine
from hourbell.engine.life.reap import reap
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_queue, set_target, set_tenant
from hourbell.engine.operations.runs import cancel_execution
from hourbell.engine.views.resources import get_queue
from hourbell.model.errors import Conflict, NotFound
from hourbell.model.executions import Claimed, Succeeded
from hourbell.model.jobs import WebhookAction
from hourbell.model.limits import Limits, QueueSettings, RateLimit, TenantSettings, default_burst
from hourbell.testing.filling import create_one_time_jobs
from integration.life.rates import KEEP_STARTS, check_starts, needed_burst
from integration.life.support import (
    START,
    Hand,
    admit_all,
    eventually,
    expire_session,
    in_transaction,
    one_time,
    scheduling,
    somebody_waits,
    travel,
    working,
)

LEAD_SECONDS = 0.25  # as in functions/rates.sql
OFFER_SECONDS = 0.05  # the gate may wait so long to offer several together
KINDS = ("queue", "tenant", "target")
Starts = dict[str, list[float]]  # by the name of their limit

_STARTS = """
select k.at, case $1::text when 'queue' then q.name when 'tenant' then t.name
  else substring(l.spec::json #>> '{action,url}' from '//([^/]*)') end as name
from hourbell.kept_starts as k join hourbell.ledger as l on l.id = k.id
join hourbell.queues as q on q.id = l.queue join hourbell.tenants as t on t.id = l.tenant order by k.at
"""


async def limit(engine: Engine, kind: str, name: str, rate: RateLimit) -> None:
    match kind:
        case "queue":
            await set_queue(engine, name, QueueSettings(rate_limit=rate), Write())
        case "tenant":
            await set_tenant(engine, name, TenantSettings(rate_limit=rate), Write())
        case _:
            await set_target(engine, name, Limits(rate_limit=rate), Write())


def limited(kind: str, name: str) -> dict[str, object]:
    """A job that this limit applies to."""
    match kind:
        case "queue":
            return one_time(queue=name)
        case "tenant":
            return one_time(tenant_id=name)
        case _:
            return one_time(action={"type": "WEBHOOK", "url": f"http://{name}/"})


class Answering:
    """Webhooks that succeed at once."""

    async def run(self, action: WebhookAction, run: Run) -> Succeeded:
        return Succeeded()


async def enqueue(engine: Engine, number: int, document: dict[str, object]) -> list[int]:
    """So many one-time jobs that are due."""
    new = parse_new_job(document, await engine.clock.now(), 1)
    return await create_one_time_jobs(engine, [new] * number, Write())


async def starts_of(engine: Engine, kind: str) -> Starts:
    """The moments of all starts so far, by the name of their limit."""
    rows = await engine.database.fetch(_STARTS, kind)
    starts: Starts = defaultdict(list)
    for row in rows:
        starts[row["name"]].append(row["at"].timestamp())
    return starts


@pytest.fixture
async def kept(engine: Engine) -> Engine:
    """An engine that keeps the moment of every start."""
    async with engine.database.connection() as connection:
        await connection.execute(KEEP_STARTS)
        await connection.execute("delete from hourbell.kept_starts")
    return engine


async def run(
    engine: Engine, kind: str, enough: Callable[[Starts], bool], queues: Sequence[str]
) -> Starts:
    """Let a scheduler and a worker run until there are enough starts, and return these."""
    async with (
        scheduling(engine) as scheduler,
        working(engine, webhooks=Answering(), queues=queues) as worker,
    ):

        def wake(payload: str) -> None:
            scheduler.wake(payload)
            worker.wake(payload)

        async def are_enough() -> bool:
            return enough(await starts_of(engine, kind))

        listener = await engine.database.listen(CHANNEL, wake)
        await eventually(are_enough, seconds=60)
        await listener.close()
    return await starts_of(engine, kind)


async def check_rates(engine: Engine, kind: str, rates: Sequence[RateLimit]) -> None:
    """Let a worker run what several limits allow, side by side: each is reached, and none is exceeded."""
    limits = {f"limited-{number}": rate for number, rate in enumerate(rates)}
    wanted = {name: max(int(rate.per_second * 5), 5) + rate.burst for name, rate in limits.items()}
    for name, rate in limits.items():
        await limit(engine, kind, name, rate)
        await enqueue(engine, 2 * wanted[name] + 60, limited(kind, name))
    queues = list(limits) if kind == "queue" else ["default"]

    def enough(starts: Starts) -> bool:
        return all(len(starts[name]) >= number for name, number in wanted.items())

    starts = await run(engine, kind, enough, queues)
    for name, rate in limits.items():
        check_starts(starts[name][: wanted[name]], rate)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rate_is_reached_and_not_exceeded_whatever_the_burst(
    kept: Engine, kind: str
) -> None:
    rates = [RateLimit(rate, burst) for rate in (1.0, 20.0, 50.0) for burst in (1, 5)]
    rates += [RateLimit(rate) for rate in (1.0, 20.0, 50.0)]
    await check_rates(kept, kind, rates)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_high_rate_is_reached_with_a_burst_of_one(kept: Engine, kind: str) -> None:
    await check_rates(kept, kind, [RateLimit(200.0, 1)])


async def test_a_limit_that_tenants_share_reaches_its_rate_beside_limits_of_their_own(
    kept: Engine,
) -> None:
    shared, own = RateLimit(50.0, 1), RateLimit(10.0, 1)
    await limit(kept, "queue", "default", shared)
    for tenant in "abc":
        await limit(kept, "tenant", tenant, own)
    for tenant in "abcd":  # d has no limit, and takes what the others leave
        await enqueue(kept, 400, limited("tenant", tenant))
    starts = await run(kept, "tenant", lambda starts: len(starts["a"]) > 50, ["default"])
    for tenant in "abc":
        assert needed_burst(starts[tenant], own.per_second) <= own.burst + 1e-3
    # Each start waits for two buckets, and 20 ms is little for a machine that is busy with other tests.
    check_starts(sorted(moment for some in starts.values() for moment in some), shared, share=0.9)


async def test_claims_at_one_moment_take_a_token_each(still: Engine) -> None:
    await limit(still, "queue", "default", RateLimit(20.0, 1))
    await enqueue(still, 2, one_time())
    await admit_all(still)
    first, second = await Hand.opened(still), await Hand.opened(still)
    async with in_transaction(still) as own:
        row = await own.database.row(
            "select * from hourbell.take_ready($1, $2, 1, false, 1, 0, false, false, $3, '15 s',"
            " null, null, null, null, null, null, null, null, null, null)",
            first.session.id,
            first.session.token,
            START,
        )
        assert row["waits"] is None
        claiming = asyncio.create_task(second.claim())
        await somebody_waits(still, "hourbell.claim")
    [later] = await claiming
    assert later.start_in_seconds == 0.05


async def test_a_claim_that_is_repeated_gives_the_same_starts(still: Engine) -> None:
    await limit(still, "queue", "default", RateLimit(20.0, 1))
    await enqueue(still, 20, one_time())
    await admit_all(still)
    hand = await Hand.opened(still)
    claimed = await hand.claim()
    again = await hand.claim_again()
    waits = [0.0, 0.05, 0.1, 0.15, 0.2, 0.25]
    assert sorted(one.start_in_seconds for one in claimed) == pytest.approx(waits)
    assert sorted(again, key=ident) == sorted(claimed, key=ident)


async def test_a_claim_that_is_repeated_after_a_step_of_the_clock_waits_no_longer(
    still: Engine,
) -> None:
    await limit(still, "queue", "default", RateLimit(20.0, 1))
    await enqueue(still, 20, one_time())
    await admit_all(still)
    hand = await Hand.opened(still)
    claimed = await hand.claim()
    await travel(still, START - timedelta(hours=1))
    again = await hand.claim_again()
    assert len(again) == len(claimed)
    assert max(one.start_in_seconds for one in again) == pytest.approx(0.25, abs=1e-3)


async def test_a_worker_that_starts_all_at_once_gets_what_can_start_at_one_moment(
    still: Engine,
) -> None:
    await limit(still, "tenant", "a", RateLimit(20.0, 2))
    await enqueue(still, 10, one_time(tenant_id="a"))
    await enqueue(still, 3, one_time(tenant_id="b"))
    await admit_all(still)
    hand = await Hand.opened(still)
    claims = [await hand.claim(same_start=True) for _ in range(4)]
    tenants = [sorted(one.tenant_id for one in claim) for claim in claims]
    assert tenants == [["a", "a", "b", "b", "b"], ["a"], ["a"], ["a"]]
    waits = [{one.start_in_seconds for one in claim} for claim in claims]
    assert waits == [{0.0}, {0.05}, {0.1}, {0.15}]


@pytest.mark.parametrize("step", [timedelta(seconds=3), timedelta(hours=1)], ids=str)
@pytest.mark.parametrize("rate", [0.5, 2.0])  # nothing starts ahead
async def test_a_step_of_the_clock_costs_at_most_one_interval_of_the_rate(
    still: Engine, rate: float, step: timedelta
) -> None:
    await limit(still, "queue", "default", RateLimit(rate, 1))
    await enqueue(still, 5, one_time())
    hand = await Hand.opened(still)
    await admit_all(still)
    claimed = await hand.claim()
    assert claimed
    interval = timedelta(seconds=1 / rate)
    now = await travel(still, START - step)
    await admit_all(still)
    claimed += await hand.claim()
    before = len(claimed)
    for passed in range(1, 5 - before + 1):
        await travel(still, now + interval * passed)
        await admit_all(still)
        claimed += await hand.claim()
        assert len(claimed) >= before + passed


def ident(one: Claimed) -> int:
    return one.execution_id


# Against a model, with a clock that stands still.


class Crowd:
    """Workers that claim at random moments; the gate may stall, and workers may die. Keeps every start."""

    def __init__(self, engine: Engine, rate: RateLimit, chosen: random.Random) -> None:
        self._engine = engine
        self._rate = rate
        self._chosen = chosen
        self._hands: list[Hand] = []
        self.seconds = 0.0  # since START
        self.starts: list[float] = []

    async def step(self) -> None:
        chosen = self._chosen
        self.seconds += chosen.choice((0.001, 0.004, 0.02, 0.02, 0.05, 0.1, 0.3, 3.0))
        self.seconds = round(self.seconds, 6)
        await travel(self._engine, START + timedelta(seconds=self.seconds))
        while len(self._hands) < 3:
            self._hands.append(await Hand.opened(self._engine))
        hand = chosen.choice(self._hands)
        match chosen.choice(
            ("all", "all", "all", "some", "at once", "gate", "stall", "cancel", "die")
        ):
            case "all":
                await admit_all(self._engine)
                while await self._claim(hand, 1000):  # some may have been cancelled
                    await admit_all(self._engine)
                self._check_complete()
            case "some":
                await admit_all(self._engine)
                await self._claim(hand, chosen.choice((1, 3)))
            case "at once":
                await admit_all(self._engine)
                await self._claim(hand, 1000, same_start=True)
            case "gate":
                await admit_all(self._engine)
            case "stall":
                await self._claim(hand, 1000)
            case "cancel":
                await self._cancel_some()
            case _:
                self._hands.remove(hand)
                await expire_session(self._engine, hand.session)
                await reap(self._engine, None, await self._engine.clock.now())

    async def _claim(self, hand: Hand, most: int, same_start: bool = False) -> int:
        claimed = await hand.claim(most, same_start=same_start)
        waits = [one.start_in_seconds for one in claimed]
        assert all(0 <= wait <= LEAD_SECONDS + 1e-5 for wait in waits)
        assert not same_start or len(set(waits)) <= 1
        self.starts += [self.seconds + wait for wait in waits]
        if self._chosen.random() < 0.5:
            await hand.succeed(claimed)
        return len(claimed)

    async def _cancel_some(self) -> None:
        rows = await self._engine.database.fetch(
            "select id from hourbell.rate_reservations order by id"
        )
        for row in self._chosen.sample(rows, min(len(rows), 3)):
            with contextlib.suppress(Conflict, NotFound):
                await cancel_execution(self._engine, row["id"], Write())

    def _check_complete(self) -> None:
        """All has been claimed that a bucket allows to start soon, but what the gate offers a moment later, together."""
        rate, level, as_of = self._rate.per_second, float(self._rate.burst), 0.0
        for start in sorted(self.starts):
            level = min(level + (start - as_of) * rate, self._rate.burst) - 1
            as_of = start
        level = min(level + (self.seconds - as_of) * rate, self._rate.burst)
        assert level + rate * LEAD_SECONDS < 1 + max(rate * OFFER_SECONDS, 1.0) + 1e-3


MATRIX = [
    (KINDS[(row + column) % 3], rate, burst)
    for row, rate in enumerate((1.0, 20.0, 50.0, 200.0))
    for column, burst in enumerate((1, 5, None))
]


@pytest.mark.parametrize(("kind", "rate", "burst"), MATRIX)
async def test_starts_are_those_of_a_token_bucket_whatever_the_workers_do(
    still: Engine, kind: str, rate: float, burst: int | None
) -> None:
    chosen = random.Random(f"{kind} {rate} {burst}")
    allowed = RateLimit(rate) if burst is None else RateLimit(rate, burst)
    name = "default" if kind != "target" else "example.com"
    await limit(still, kind, name, allowed)
    crowd = Crowd(still, allowed, chosen)
    for _ in range(60):
        if await still.database.value("select count(*) from hourbell.parked") < 300:
            await enqueue(still, 900, limited(kind, name))
        await crowd.step()
    assert needed_burst(crowd.starts, rate) <= allowed.burst + 1e-3
    assert crowd.starts


# Settings.


@pytest.mark.parametrize(
    ("rate", "burst"), [(0.001, 1), (1, 1), (20, 1), (20.5, 2), (50, 3), (200, 10), (1e6, 50_000)]
)
async def test_the_default_burst_is_what_comes_in_a_twentieth_of_a_second(
    still: Engine, rate: float, burst: int
) -> None:
    assert default_burst(rate) == burst
    await set_queue(still, "default", QueueSettings(rate_limit=RateLimit(rate)), Write())
    assert (await get_queue(still, "default")).settings.rate_limit == RateLimit(rate, burst)
