"""A worker is given only what it can run; what no worker can run waits and burns no attempt."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine import core
from hourbell.engine.core import Engine
from hourbell.engine.life.admit import admit
from hourbell.engine.life.reap import reap
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_queue
from hourbell.engine.views.explain import explain_execution
from hourbell.model.errors import InvalidInput
from hourbell.model.executions import Claimed
from hourbell.model.limits import QueueSettings
from integration.life.support import (
    Hand,
    admit_all,
    check_sound,
    create,
    eventually,
    expire_session,
    fates,
    fill,
    in_transaction,
    one_time,
    place_of,
    places,
    scheduling,
    working,
)

WEBHOOK = {"type": "WEBHOOK", "url": "https://hooks.example/"}


@pytest.fixture
async def engine(engine: Engine) -> Engine:
    """Here no session serves anything by itself, and none expires: nothing renews those of a test."""
    engine.times = replace(engine.times, lease_seconds=600)
    await engine.database.value("delete from hourbell.sessions")
    return engine


def ids(claimed: Sequence[Claimed]) -> set[int]:
    return {one.execution_id for one in claimed}


async def made(engine: Engine, task: str, count: int = 1, **fields: object) -> set[int]:
    return {(await create(engine, one_time(task, **fields))).job_id for _ in range(count)}


async def is_mixed(engine: Engine) -> bool:
    return bool(
        await engine.database.value(
            "select exists (select from hourbell.queue_workers where mixed)"
        )
    )


async def test_sessions_of_one_queue_are_given_their_own_tasks_only(engine: Engine) -> None:
    greeter, printer = (
        await Hand.opened(engine, tasks=["greet"]),
        await Hand.opened(engine, tasks=["print", "copy"]),
    )
    greet, others = await made(engine, "greet", 20), await made(engine, "print", 10)
    others |= await made(engine, "copy", 10)
    await admit_all(engine)
    assert ids(await greeter.claim(10)) < greet  # the first in line are its own
    assert len(await greeter.claim()) == 10  # and then come those of others
    assert ids(await printer.claim()) == others
    assert await printer.claim() == await greeter.claim() == []


async def test_a_session_that_the_gate_has_not_seen_is_given_its_own_tasks_only(
    engine: Engine,
) -> None:
    greeter = await Hand.opened(engine, tasks=["greet"])
    greets = await made(engine, "greet", 3)
    await admit_all(engine)
    printer = await Hand.opened(engine, tasks=["print"])
    assert await printer.claim() == []
    assert ids(await greeter.claim()) == greets


async def test_webhooks_are_a_task_of_their_own(engine: Engine) -> None:
    caller = await Hand.opened(engine, tasks=["@webhook"])
    greeter = await Hand.opened(engine, tasks=["greet"])
    (call,) = await made(engine, "", action=WEBHOOK)
    (greet,) = await made(engine, "greet")
    await admit_all(engine)
    assert ids(await greeter.claim()) == {greet}
    assert ids(await caller.claim()) == {call}


async def test_a_session_that_names_no_tasks_serves_all(engine: Engine) -> None:
    hand = await Hand.opened(engine)
    wanted = await made(engine, "greet") | await made(engine, "", action=WEBHOOK)
    await admit_all(engine)
    assert ids(await hand.claim()) == wanted


async def test_what_no_worker_serves_waits_and_runs_when_one_comes(engine: Engine) -> None:
    other = await Hand.opened(engine, tasks=["print"])
    (execution,) = await made(engine, "greet")
    await admit_all(engine)
    assert await other.claim() == []
    assert await place_of(engine, execution) == ["parked"]
    assert (await explain_execution(engine, execution)).code == "no_worker_for_task"
    greeter = await Hand.opened(engine, tasks=["greet"])
    await admit_all(engine)
    assert (await explain_execution(engine, execution)).code == "worker_slot"
    (claimed,) = await greeter.claim()
    assert (claimed.execution_id, claimed.attempt) == (execution, 1)


async def test_without_any_worker_of_the_queue_it_is_the_queue_that_is_named(
    engine: Engine,
) -> None:
    (execution,) = await made(engine, "greet")
    await admit_all(engine)
    assert (await explain_execution(engine, execution)).code == "no_worker"
    await Hand.opened(engine, tasks=["print"])
    await admit_all(engine)
    assert (await explain_execution(engine, execution)).code == "no_worker_for_task"


async def test_a_session_of_all_queues_serves_those_that_are_named_later(engine: Engine) -> None:
    hand = await Hand.opened(engine, queues=None)
    wanted = await made(engine, "greet", queue="first") | await made(
        engine, "greet", queue="second"
    )
    await admit_all(engine)
    assert ids(await hand.claim()) == wanted
    assert (await PostgresDispatch(engine).renew(hand.session)).queues == ("first", "second")
    wanted = await made(engine, "greet", queue="third")
    await admit_all(engine)
    assert ids(await hand.claim()) == wanted
    await PostgresDispatch(engine).close(hand.session)
    (last,) = await made(engine, "greet", queue="third")
    await admit_all(engine)
    assert (await explain_execution(engine, last)).code == "no_worker"


@pytest.mark.parametrize("first", ["uniform", "mixed"])
async def test_a_backlog_of_a_busy_worker_hides_nothing(engine: Engine, first: str) -> None:
    busy = await Hand.opened(engine, tasks=["print", "greet"])
    if first == "mixed":
        idle = await Hand.opened(engine, tasks=["greet"])
    await fill(engine, 20_000, one_time("print"))
    (greet,) = await made(engine, "greet")
    await admit_all(engine)
    if first == "uniform":
        idle = await Hand.opened(engine, tasks=["greet"])
        await admit_all(engine)
        assert await is_mixed(engine)
    assert greet in ids(await idle.claim(10))
    assert len(await busy.claim(500)) == 500


async def test_in_a_uniform_fleet_nothing_is_kept_by_task(engine: Engine) -> None:
    hands = [await Hand.opened(engine, tasks=["greet", "print"]) for _ in range(3)]
    await made(engine, "greet", 5)
    await made(engine, "print", 5)
    await admit_all(engine)
    assert not await is_mixed(engine)
    assert [len(await hand.claim(4)) for hand in hands] == [4, 4, 2]


async def test_a_queue_is_mixed_no_more_when_its_sessions_are_alike_and_serve_all_that_is_ready(
    engine: Engine,
) -> None:
    one, other = await Hand.opened(engine, tasks=["greet"]), await Hand.opened(engine)
    await made(engine, "greet")
    await admit_all(engine)
    await made(engine, "print")
    await admit_all(engine)
    assert await is_mixed(engine)
    await PostgresDispatch(engine).close(other.session)
    async with in_transaction(engine) as own:  # what nobody serves any more cannot be taken out yet
        await own.database.fetch("select from hourbell.ready for update")
        await admit_all(engine)
        assert await is_mixed(engine)

    async def is_uniform() -> bool:
        await admit_all(engine)
        return not await is_mixed(engine)

    assert await eventually(is_uniform)
    assert len(await one.claim()) == 1


async def test_what_is_ready_waits_again_when_its_last_worker_leaves(engine: Engine) -> None:
    limits = QueueSettings(max_concurrency=10)
    await set_queue(engine, "default", limits, Write())
    greeter = await Hand.opened(engine, tasks=["greet"])
    printer = await Hand.opened(engine, tasks=["print"])
    greets = await made(engine, "greet", 10)
    await admit_all(engine)
    prints = await made(engine, "print", 10)
    await admit_all(engine)
    assert await printer.claim() == []  # all places of the queue are taken by what is ready
    await PostgresDispatch(engine).close(greeter.session)

    async def claimed() -> list[Claimed]:
        await admit_all(engine)
        return await printer.claim()

    given = await eventually(claimed)
    assert ids(given) <= prints

    async def all_wait() -> bool:  # the gate meets what it did not expect there once a second
        await admit_all(engine)
        codes = {(await explain_execution(engine, execution)).code for execution in greets}
        return codes == {"no_worker_for_task"}

    assert await eventually(all_wait)
    await check_sound(engine)


async def test_many_that_waited_for_a_worker_are_each_admitted_once(engine: Engine) -> None:
    await Hand.opened(engine, tasks=["print"])
    waiting = await made(engine, "greet", 30)
    await admit_all(engine)
    assert await places(engine) == {"parked": 30}
    greeter = await Hand.opened(engine, tasks=["greet"])
    await admit(engine, await engine.clock.now(), 40)  # takes ten of them and looks again at once
    await Hand.opened(engine, tasks=["greet"])  # one more reason to look at the same queue
    for _ in range(10):
        await admit(engine, await engine.clock.now(), 40)
    await check_sound(engine)
    assert ids(await greeter.claim()) == waiting


async def test_a_claim_locks_nothing_that_another_worker_serves(engine: Engine) -> None:
    greeter = await Hand.opened(engine, tasks=["greet"])
    printer = await Hand.opened(engine, tasks=["print"])
    greets, prints = await made(engine, "greet", 5), await made(engine, "print", 5)
    await admit_all(engine)
    async with in_transaction(engine) as own:
        assert await taken(own, greeter) == greets
        assert ids(await printer.claim()) == prints


async def test_a_claim_does_not_read_a_backlog_that_another_worker_serves(engine: Engine) -> None:
    greeter = await Hand.opened(engine, tasks=["greet"])
    await Hand.opened(engine, tasks=["print"])
    await fill(engine, 10_000, one_time("print"))
    greets = await made(engine, "greet", 5)
    await admit_all(engine)
    async with in_transaction(engine) as own:
        assert await taken(own, greeter) == greets
        read = await own.database.value(
            "select idx_tup_fetch from pg_stat_xact_user_tables where relname = 'ready'"
        )
    assert read < 50  # of hundreds


async def taken(own: Engine, hand: Hand) -> set[int]:
    """What a claim takes, in a transaction that is not over."""
    row = await own.database.row(
        "select ids from hourbell.take_ready($1, $2, 1, false, 10, 0, false, false, $3, '1 second',"
        " null, null, null, null, null, null, null, null, null, null)",
        hand.session.id,
        hand.session.token,
        await own.clock.now(),
    )
    return set(row["ids"])


async def test_a_mixed_queue_has_its_turn_beside_a_long_one(engine: Engine) -> None:
    hand = await Hand.opened(engine, queues=["long", "mixed"], tasks=["greet"])
    await Hand.opened(engine, queues=["mixed"], tasks=["print"])
    await made(engine, "greet", 40, queue="long")
    await made(engine, "print", 5, queue="mixed")
    wanted = await made(engine, "greet", 5, queue="mixed")
    await admit_all(engine)
    assert wanted <= ids(await hand.claim(20))


async def test_what_is_locked_when_its_last_worker_leaves_waits_again_later(engine: Engine) -> None:
    greeter = await Hand.opened(engine, tasks=["greet"])
    await Hand.opened(engine, tasks=["print"])
    await made(engine, "greet", 3)
    await admit_all(engine)
    async with in_transaction(engine) as own:
        await own.database.fetch("select from hourbell.ready for update")
        await PostgresDispatch(engine).close(greeter.session)
        await admit_all(engine)
        assert await places(engine) == {"ready": 3}

    async def parked() -> bool:
        await admit_all(engine)
        return await places(engine) == {"parked": 3}

    assert await eventually(parked)


async def test_a_suspect_is_run_by_a_worker_that_serves_its_task(engine: Engine) -> None:
    printer = await Hand.opened(engine, tasks=["print"])
    (suspect,) = await made(engine, "greet")
    for _ in range(2):
        hand = await Hand.opened(engine, tasks=["greet"])
        await admit_all(engine)
        assert ids(await hand.claim()) == {suspect}
        await expire_session(engine, hand.session)
        await reap(engine, None, await engine.clock.now())
    assert await printer.claim() == []
    hand = await Hand.opened(engine, tasks=["greet"])
    await admit_all(engine)
    assert await place_of(engine, suspect) == ["suspects"]
    assert await printer.claim() == []
    (other,) = await made(engine, "print")
    await admit_all(engine)
    assert ids(await printer.claim()) == {other}  # and is not in quarantine
    assert ids(await hand.claim()) == {suspect}


async def test_a_tenant_keeps_its_share_in_a_mixed_queue(engine: Engine) -> None:
    greeter = await Hand.opened(engine, tasks=["greet"])
    await Hand.opened(engine, tasks=["print"])
    await made(engine, "print", 50, tenant_id="big")
    for tenant in ("big", "small"):
        await made(engine, "greet", 40, tenant_id=tenant)
    await admit_all(engine)
    shares = Counter(one.tenant_id for one in await greeter.claim(40))
    assert shares["small"] >= 20


async def test_priorities_hold_in_a_mixed_queue(engine: Engine) -> None:
    greeter = await Hand.opened(engine, tasks=["greet"])
    await Hand.opened(engine, tasks=["print"])
    for priority in ("LOW", "HIGH", "MEDIUM", "CRITICAL"):
        await made(engine, "print", 3, priority=priority)
        await made(engine, "greet", 3, priority=priority)
    await admit_all(engine)
    order = [(await greeter.claim(3)) for _ in range(4)]
    named = await engine.database.fetch("select id, priority from hourbell.live")
    priorities = {row["id"]: row["priority"] for row in named}
    assert [{priorities[one.execution_id] for one in batch} for batch in order] == [
        {0},
        {1},
        {2},
        {3},
    ]


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_workers_come_and_go_each_is_given_its_own_and_nothing_is_left(
    engine: Engine, seed: int
) -> None:
    chance = random.Random(seed)
    tasks = ["a", "b", "c", "d"]
    task_of: dict[int, str] = {}
    hands: list[tuple[Hand, list[str] | None]] = []

    def check(claimed: Sequence[Claimed], served: list[str] | None) -> None:
        for one in claimed:
            assert served is None or task_of[one.execution_id] in served
            assert one.attempt == 1

    for _ in range(40):
        step = chance.choice(["make", "make", "open", "close", "admit", "claim", "claim"])
        if step == "make":
            for task in chance.choices(tasks, k=chance.randint(1, 8)):
                fields = {"tenant_id": chance.choice("xyz"), "queue": chance.choice("pq")}
                task_of |= dict.fromkeys(await made(engine, task, **fields), task)
        elif step == "open":
            served = chance.choice([None, chance.sample(tasks, chance.randint(1, 4))])
            queues = chance.choice([None, ["p"], ["p", "q"]])
            hands.append((await Hand.opened(engine, queues, served), served))
        elif step == "close" and hands:
            hand, _ = hands.pop(chance.randrange(len(hands)))
            await PostgresDispatch(engine).close(hand.session)
        elif step == "admit":
            await admit(engine, await engine.clock.now())
        elif hands:
            hand, served = chance.choice(hands)
            claimed = await hand.claim(chance.randint(1, 10))
            check(claimed, served)
            assert not await hand.succeed(claimed)
    for task in tasks:
        hands.append((await Hand.opened(engine, None, [task]), [task]))

    async def all_have_ended() -> bool:
        await admit_all(engine)
        for hand, served in hands:
            claimed = await hand.claim()
            check(claimed, served)
            assert not await hand.succeed(claimed)
        return not await places(engine)

    await eventually(all_have_ended)
    assert await fates(engine) == Counter(SUCCEEDED=len(task_of))
    await check_sound(engine)


async def test_a_worker_with_handlers_takes_nothing_else(engine: Engine) -> None:
    async with scheduling(engine), working(engine, tasks=("noop",), queues=None):
        (unknown,) = await made(engine, "greet")
        await made(engine, "noop", 5)

        async def done() -> bool:
            return await fates(engine) == {"SUCCEEDED": 5}

        await eventually(done)
        assert (await explain_execution(engine, unknown)).code == "no_worker_for_task"
        greeter = await Hand.opened(engine, tasks=["greet"])

        async def given() -> list[Claimed]:
            return await greeter.claim()

        assert ids(await eventually(given)) == {unknown}


async def test_a_tenant_cannot_name_tasks_without_end(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "MAX_TASKS_PER_TENANT", 2)
    await made(engine, "one")
    await made(engine, "two")
    with pytest.raises(InvalidInput) as refused:
        await made(engine, "three")
    assert [problem.path for problem in refused.value.errors] == ["action.name"]
    await made(engine, "two")
    await made(engine, "one", tenant_id="other")
    await Hand.opened(engine, tasks=["three"])
    await made(engine, "three")
