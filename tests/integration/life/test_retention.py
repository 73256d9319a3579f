"""How long history is kept: the ledger, dead letters and the audit trail, by the settings of the cell and of tenants."""

from datetime import timedelta
from itertools import pairwise

import pytest
from msgspec.structs import replace

from hourbell.dispatch import DEAD, Settlement
from hourbell.engine.core import Engine
from hourbell.engine.life import retain
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.audit import AuditFilter, list_audit
from hourbell.engine.operations.dead_letters import get_dead_letter, replay_dead_letter
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_tenant
from hourbell.engine.operations.runs import run_now
from hourbell.engine.views.executions import get_execution
from hourbell.model.errors import NotFound
from hourbell.model.executions import ExecutionStatus
from hourbell.model.limits import TenantSettings
from integration.life.support import (
    START,
    Hand,
    admit_all,
    create,
    fill,
    in_transaction,
    one_time,
    recurring,
    travel,
)

TENANTS = ("brief", "usual", "long")
CELL = {"ledger_days": 30, "dead_letter_days": 60, "audit_days": 90}


@pytest.fixture
async def kept(still: Engine) -> Engine:
    """A cell whose tenant `brief` keeps less than it, and `long` more of what can be more."""
    still.times = replace(still.times, **CELL)
    await retain.make_partitions(still, START)
    brief = TenantSettings(ledger_days=7, dead_letter_days=14, audit_days=21)
    await set_tenant(still, "brief", brief, Write())
    await set_tenant(still, "long", TenantSettings(dead_letter_days=120, audit_days=150), Write())
    return still


async def house_kept(engine: Engine, days: float) -> None:
    """All that there is to do, so many days after START."""
    now = await travel(engine, START + timedelta(days=days))
    while await run_housekeeping(engine, None, now):
        pass


async def run(engine: Engine, count: int = 1) -> dict[str, list[int]]:
    """One-time jobs and a run of a recurring one, of each tenant, that have died; their executions."""
    found: dict[str, list[int]] = {}
    for tenant in TENANTS:
        for _ in range(count):
            await create(engine, one_time(tenant_id=tenant))
        job = await create(engine, recurring(tenant_id=tenant))
        await run_now(engine, job.job_id, Write())
    await admit_all(engine)
    hand = await Hand.opened(engine)
    claimed = await hand.claim_all()
    outcomes = [
        Settlement(one.execution_id, one.fence, DEAD, 0, 5, None, "non_retryable", "no disk")
        for one in claimed
    ]
    assert not await hand.dispatch.settle(hand.session, outcomes)
    for one in claimed:
        found.setdefault(one.tenant_id, []).append(one.execution_id)
    return found


async def left(engine: Engine, table: str) -> dict[str, int]:
    rows = await engine.database.fetch(
        f"select t.name, count(*) as n from hourbell.{table} as x join hourbell.tenants as t on t.id = x.tenant"  # noqa: S608
        " where t.name = any ($1) group by t.name",
        list(TENANTS),
    )
    return {row["name"]: row["n"] for row in rows}


async def test_a_tenant_keeps_its_own_days_of_the_ledger_and_the_cell_the_rest(
    kept: Engine,
) -> None:
    ran = await run(kept)
    for days, tenants in ((7, TENANTS), (8, ("usual", "long")), (32, ("usual", "long")), (33, ())):
        await house_kept(kept, days)
        assert await left(kept, "ledger") == dict.fromkeys(tenants, 2)
    with pytest.raises(NotFound):
        await get_execution(kept, ran["usual"][0])


async def test_rows_on_a_day_without_a_partition_are_not_kept_for_ever(kept: Engine) -> None:
    await travel(kept, START + timedelta(days=-100))  # no partition was made for it
    await run(kept)
    assert await left(kept, "executions_rest") == dict.fromkeys(TENANTS, 2)
    await house_kept(kept, -91)
    assert await left(kept, "executions_rest") == {"usual": 2, "long": 2}
    await house_kept(kept, -68)
    assert await left(kept, "executions_rest") == {}


async def test_dead_letters_are_kept_as_long_as_the_tenant_or_the_cell_says(kept: Engine) -> None:
    await run(kept)
    seen = ((13, TENANTS), (15, ("usual", "long")), (61, ("long",)), (121, ()))
    for days, tenants in seen:
        await house_kept(kept, days)
        assert await left(kept, "dead_letters") == dict.fromkeys(tenants, 2)


async def test_a_dead_letter_keeps_its_history_when_the_ledger_has_lost_it(kept: Engine) -> None:
    ran = await run(kept)
    before = [await get_dead_letter(kept, number) for number in ran["long"]]
    await house_kept(kept, 100)
    for number, letter in zip(ran["long"], before, strict=True):
        with pytest.raises(NotFound):
            await get_execution(kept, number)
        assert await get_dead_letter(kept, number) == letter
        assert letter.attempts[0].error == "no disk"
        assert letter.job is not None
        again = await replay_dead_letter(kept, number, Write())
        assert (again.status, again.attempt) == (ExecutionStatus.QUEUED, 1)


async def test_the_audit_trail_is_kept_as_long_as_the_tenant_or_the_cell_says(kept: Engine) -> None:
    await run(kept)
    seen = ((20, TENANTS), (22, ("usual", "long")), (91, ("long",)), (151, ()))
    for days, tenants in seen:
        await house_kept(kept, days)
        entries = [
            len((await list_audit(kept, AuditFilter(tenant_id=tenant))).items) for tenant in TENANTS
        ]
        assert {name for name, n in zip(TENANTS, entries, strict=True) if n} == set(tenants)


async def test_a_round_deletes_a_bounded_number_of_rows_of_few_tenants(
    kept: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retain, "_MAX_ROWS", 3)
    monkeypatch.setattr(retain, "_TENANTS", 2)
    await run(kept, count=9)
    now = await travel(kept, START + timedelta(days=20))
    counts = [(await left(kept, "dead_letters"), await left(kept, "ledger"))]
    while True:
        more = await run_housekeeping(kept, None, now)
        counts.append((await left(kept, "dead_letters"), await left(kept, "ledger")))
        if not more and "brief" not in counts[-1][0]:
            break
        assert len(counts) < 50
    for before, after in pairwise(counts):
        for kind in (0, 1):
            assert sum(before[kind].values()) - sum(after[kind].values()) <= 3
    assert counts[-1] == ({"usual": 10, "long": 10}, {"usual": 10, "long": 10})


async def test_stale_cancellations_are_forgotten_in_bounded_batches(
    still: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retain, "_MAX_ROWS", 10)
    await still.database.value(
        "with many as (insert into hourbell.cancellations select k, $1 from generate_series(1, 25) as k returning 1)"
        " select count(*) from many",
        START,
    )
    for expected in (15, 5, 0):
        await run_housekeeping(still, None, START)
        assert await still.database.value("select count(*) from hourbell.cancellations") == expected


async def test_no_statistics_are_collected_of_documents_and_slabs(kept: Engine) -> None:
    """Nor in partitions, which do not inherit that: it would be most of the work of autovacuum."""
    rows = await kept.database.fetch(
        "select c.relname, a.attname from pg_attribute as a join pg_class as c on c.oid = a.attrelid"
        " where c.relnamespace = 'hourbell'::regnamespace and c.relkind = 'r' and not a.attisdropped"
        " and (a.attname = 'ids' and c.relname in ('due_slabs', 'ready', 'leased')"
        "   or c.relname = 'due_slabs' and a.attname = 'tenants'"
        "   or c.relname = 'leased' and a.attname = 'versions'"
        "   or c.relname = 'audit' and a.attname = 'jobs'"
        "   or c.relname like 'executions\\_%' and a.attname = 'spec')"
        " and a.attstattarget is distinct from 0"
    )
    assert [tuple(row) for row in rows] == []
    partitions = await kept.database.value(
        "select count(*) from pg_inherits where inhparent = 'hourbell.executions'::regclass"
    )
    assert partitions > 1


_READ = """
select sum(pg_stat_get_xact_tuples_returned(oid))::int from pg_class
where relnamespace = 'hourbell'::regnamespace and relname ~ '^(executions|outcomes)_'
"""


async def test_a_partition_of_which_much_waits_is_thinned_in_linear_time(
    still: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted are the rows and index entries that all its rounds read: twice as many for twice the rows."""
    monkeypatch.setattr(retain, "_MAX_ROWS", 10)
    monkeypatch.setattr(retain, "_SCANNED", 50)
    read = []
    for day, count in ((0, 200), (10, 400)):
        now = await travel(still, START + timedelta(days=day))
        await retain.make_partitions(still, now)
        await fill(still, 2 * count)
        await still.database.value(
            "with ended as (insert into hourbell.outcomes (id, fence, recorded_at, fate)"
            "  select id, 0, $1, 1 from hourbell.executions where id >= hourbell.id_base($1)"
            "  order by id offset $2 limit $3 returning id)"
            " select count(*) from ended",
            now,
            count // 2,  # half of what waits is before what has ended, half after it
            count,
        )
        await travel(still, now + timedelta(days=60))
        async with in_transaction(still) as own:
            while await run_housekeeping(own, None, now + timedelta(days=60)):
                pass
            read.append(await own.database.value(_READ))
        assert await still.database.value("select count(*) from hourbell.outcomes") == 0
        assert (
            await still.database.value(
                "select count(*) from hourbell.executions where id >= hourbell.id_base($1)", now
            )
            == count
        )
        assert await still.database.value("select count(*) from hourbell.thinned_partitions") == 0
    assert read[0] > 400
    assert read[1] < 2.5 * read[0]


async def test_what_ends_while_a_partition_is_thinned_goes_with_the_next_time(
    still: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retain, "_MAX_ROWS", 3)
    await retain.make_partitions(still, START)
    await fill(still, 20)
    ids = await still.database.value("select array_agg(id order by id) from hourbell.executions")

    async def end(*places: int) -> None:
        for place in places:
            await still.database.value(
                "insert into hourbell.outcomes (id, fence, recorded_at, fate) values ($1, 0, $2, 1)",
                ids[place],
                START,
            )

    async def outcomes() -> list[int]:
        rows = await still.database.fetch("select id from hourbell.outcomes order by id")
        return [ids.index(row["id"]) for row in rows]

    await end(2, 4, 6, 8)
    later = await travel(still, START + timedelta(days=60))
    assert await run_housekeeping(still, None, later)
    assert await outcomes() == [8]
    await end(1, 10)
    assert not await run_housekeeping(still, None, later)
    assert await outcomes() == [1]
    await run_housekeeping(still, None, later)
    assert await outcomes() == []
