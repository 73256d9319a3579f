"""Every verb of the leader checks its epoch in its own transaction: a leader of the past commits nothing.

`VERBS` is the whole list. A verb that the scheduler calls and that is not in it, or one of whose transactions writes
without a check, fails here.
"""

import ast
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from hourbell.engine.core import Engine
from hourbell.engine.leader import scheduler
from hourbell.engine.leader.activity import count_minutes
from hourbell.engine.leader.bulk_operations import forget_operations, run_operations
from hourbell.engine.leader.group_callbacks import follow_groups
from hourbell.engine.leader.notify import send_notices
from hourbell.engine.leader.pauses import pause_abandoned
from hourbell.engine.leader.term import Leadership, Term
from hourbell.engine.leader.watch import watch
from hourbell.engine.life.plan import end_memberships, plan, update_tz_version
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.life.retain import make_partitions, run_housekeeping
from hourbell.engine.operations.bulk_operations import create_operation, stop_operation
from hourbell.engine.operations.change import pause_job
from hourbell.engine.operations.completions import end_overdue
from hourbell.engine.operations.execution_groups import close_group, create_group
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.monitors import create_monitor
from hourbell.model.errors import NotLeader
from hourbell.model.ids import job_text
from hourbell.model.jobs import NOTIFICATION_QUEUE
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Connection, Database
from integration.life.support import (
    START,
    Hand,
    check_sound,
    create,
    every,
    expire_session,
    fill,
    one_time,
    plan_all,
    recurring,
    travel,
)
from integration.life.test_targets import accepted

LATER = START + timedelta(hours=1)

# Anybody may run these: the gate has a lock of its own, a join is one statement that can be repeated, and a pause is
# ended only if the job still has the version that was read with its end. What apps declare is applied by any process;
# what is retired by the leader alone has its check in test_manifests.py.
NOT_OF_THE_LEADER = {"admit", "complete_joins", "end_pauses", "reconcile"}

Call = Callable[[Engine, Term, datetime], Awaitable[object]]


class Verb(NamedTuple):
    """A verb, and what gives it something to write."""

    name: str
    call: Call
    prepare: Callable[[Engine], Awaitable[object]]


async def to_plan(engine: Engine) -> None:
    await create(engine, recurring())


async def to_fan_out(engine: Engine) -> None:
    """A fire that was opened and not fanned out."""
    await create(engine, every(86_400))
    await engine.database.value(
        "insert into hourbell.fires (timetable, fire_at, occurrences, opened_at, late, tail)"
        " select id, $1, array[$1::timestamptz], $1, false, true from hourbell.timetables",
        LATER,
    )


async def to_update_tz_version(engine: Engine) -> None:
    await create(engine, recurring())
    await engine.database.value("update hourbell.timetables set tz_version = 'old'")


async def to_mark(engine: Engine) -> None:
    """A timetable that cannot be computed here."""
    await create(engine, recurring())
    await engine.database.value("update hourbell.timetables set zone = 'US/Pacific-New'")


async def to_end(engine: Engine) -> None:
    job = await create(engine, recurring())
    await plan_all(engine)
    await pause_job(engine, job.job_id, Write())


async def to_expire(engine: Engine) -> None:
    job = await create(engine, one_time(start_deadline_seconds=1))
    await pause_job(engine, job.job_id, Write())


async def to_reap(engine: Engine) -> None:
    await fill(engine, 3)
    hand = await Hand.opened(engine)
    await hand.claim()
    await expire_session(engine, hand.session)


async def to_cancel(engine: Engine) -> None:
    claimed = await accepted(engine, 86_400)
    await engine.database.value(
        "insert into hourbell.cancellations (id, requested_at) values ($1, $2)",
        claimed.execution_id,
        START,
    )


async def to_pause(engine: Engine) -> None:
    job = await create(engine, recurring())
    await engine.database.value(
        "insert into hourbell.abandoned_jobs (job, version) values ($1, 1)", job.job_id
    )


async def to_forget_pausing(engine: Engine) -> None:
    await engine.database.value("insert into hourbell.abandoned_jobs (job, version) values (1, 1)")


async def to_watch(engine: Engine) -> None:
    job = await create(engine, every(60))
    document = {
        "job_id": job_text(job.job_id),
        "grace_seconds": 60,
        "url": "https://pager.example/alert",
    }
    await create_monitor(engine, document, Write())


async def to_tell(engine: Engine) -> None:
    await to_watch(engine)
    await watch(engine, None, LATER)
    assert await engine.database.value("select count(*) from hourbell.notices") == 1
    await engine.queue(NOTIFICATION_QUEUE, START)  # names are made by every process
    await engine.target("pager.example", START)


async def to_follow(engine: Engine) -> None:
    document = {"name": "all", "url": "https://done.example/hook"}
    group = await create_group(engine, document, Write())
    await close_group(engine, group.group_id, Write())
    await engine.queue(NOTIFICATION_QUEUE, START)
    await engine.target("done.example", START)


async def to_count(engine: Engine) -> None:
    await make_partitions(engine, LATER)


async def to_run_housekeeping(engine: Engine) -> None:
    await make_partitions(engine, LATER)  # by every process that starts
    await create(engine, one_time(), key="forgotten")
    async with engine.database.connection() as connection:
        await connection.execute(
            "create table hourbell.executions_20240101_20240102 partition of hourbell.executions"
            " for values from (1) to (2);"
            "create table hourbell.outcomes_20240101_20240102 partition of hourbell.outcomes"
            " for values from (1) to (2)"
        )


async def drop_and_forget(engine: Engine, term: Term, now: datetime) -> None:
    engine.times = replace(engine.times, answers_seconds=60)
    await run_housekeeping(engine, term, now)


async def to_operate(engine: Engine) -> None:
    await create(engine, recurring())
    await create_operation(engine, {"act": "pause", "filter": {"tenant_id": "default"}}, Write())


async def to_fail_an_operation(engine: Engine) -> None:
    """One of a later version, whose act this one does not know."""
    await to_operate(engine)
    await engine.database.value("update hourbell.operations set act = 'rewind'")


async def to_forget_an_operation(engine: Engine) -> None:
    nothing = {"act": "pause", "filter": {"name_prefix": "nobody"}}
    operation = await create_operation(engine, nothing, Write())
    await stop_operation(engine, operation.operation_id, Write())


VERBS = [
    Verb("plan", plan, to_plan),
    Verb("plan", plan, to_fan_out),
    Verb("plan", plan, to_mark),
    Verb("update_tz_version", update_tz_version, to_update_tz_version),
    Verb("end_memberships", end_memberships, to_end),
    Verb("expire", expire, to_expire),
    Verb("reap", reap, to_reap),
    Verb("end_overdue", end_overdue, accepted),
    Verb("end_overdue", end_overdue, to_cancel),
    Verb("pause_abandoned", lambda engine, term, now: pause_abandoned(engine, term), to_pause),
    Verb(
        "pause_abandoned",
        lambda engine, term, now: pause_abandoned(engine, term),
        to_forget_pausing,
    ),
    Verb("watch", watch, to_watch),
    Verb("send_notices", send_notices, to_tell),
    Verb("follow_groups", follow_groups, to_follow),
    Verb("count_minutes", count_minutes, to_count),
    Verb("run_operations", run_operations, to_operate),
    Verb("run_operations", run_operations, to_fail_an_operation),
    Verb("forget_operations", forget_operations, to_forget_an_operation),
    Verb("run_housekeeping", drop_and_forget, to_run_housekeeping),
]

verbs = pytest.mark.parametrize(
    "verb", VERBS, ids=[f"{verb.name}-{verb.prepare.__name__}" for verb in VERBS]
)


def test_every_verb_that_the_scheduler_calls_is_tested_here() -> None:
    tree = ast.parse(inspect.getsource(scheduler.Scheduler))
    called = {
        texts[texts.index("self._engine") - 1]  # called, or in a `partial`
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and "self._engine" in (texts := [ast.unparse(part) for part in (call.func, *call.args)])
    }
    assert called == {verb.name for verb in VERBS} | NOT_OF_THE_LEADER


# All that is stored as JSON by what the verbs are given to do, and read by them.
DOCUMENTS = """
update hourbell.jobs set spec = '{"name": 7}';
update hourbell.executions set spec = '{"name": 7}' where spec is not null;
update hourbell.notices set spec = '{"name": 7}' where spec is not null;
update hourbell.monitors set headers = '["newer"]';
update hourbell.execution_groups set headers = '["newer"]' where headers is not null;
update hourbell.timetables set rule = 'full moon';
"""


@verbs
async def test_a_verb_does_not_fail_because_it_cannot_read_a_row(still: Engine, verb: Verb) -> None:
    await verb.prepare(still)
    async with still.database.connection() as connection:
        await connection.execute(DOCUMENTS)
    await travel(still, LATER)
    leader = await Leadership(still).step()
    assert leader is not None
    await verb.call(still, leader, LATER)
    await check_sound(still)


@verbs
async def test_a_leader_whose_epoch_is_over_commits_nothing(still: Engine, verb: Verb) -> None:
    still.times = replace(still.times, leader_lease_seconds=1)
    await verb.prepare(still)
    zombie = await Leadership(still).step()
    assert zombie is not None
    await travel(still, LATER)
    before = await everything_written(still)
    with pytest.raises(NotLeader):  # although there is no other leader yet
        await verb.call(still, zombie, LATER)
    assert await everything_written(still) == before
    leader = await Leadership(still).step()
    assert leader is not None
    before = await everything_written(still)
    with pytest.raises(NotLeader):
        await verb.call(still, zombie, LATER)
    assert await everything_written(still) == before
    await verb.call(still, leader, LATER)
    assert await everything_written(still) != before


@verbs
async def test_every_transaction_of_a_leader_that_writes_checks_the_epoch(
    still: Engine, verb: Verb
) -> None:
    await verb.prepare(still)
    await travel(still, LATER)
    term = await Leadership(still).step()
    assert term is not None
    watched = _Watched(still.database)
    await verb.call(Engine(watched, DatabaseClock(still.database), still.times), term, LATER)
    assert not watched.unchecked
    assert watched.checked


class _Watched(Database):
    """A database that notes of every transaction whether it writes, and whether it has checked the epoch."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.dsn, self.pooled = database.dsn, database.pooled
        self.checked = 0
        self.unchecked: list[list[str]] = []  # the statements of each that writes without a check

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        statements: list[str] = []

        def note(record: Any) -> None:
            statements.append(record.query)

        async with self._database.connection() as connection:
            connection.add_query_logger(note)
            async with connection.transaction():
                yield connection
                row = await connection.fetchrow(_TRANSACTION)
                assert row is not None
                if row["checks"]:
                    self.checked += 1
                elif row["writes"]:
                    self.unchecked.append(statements)
            connection.remove_query_logger(note)


# A check locks the row of the leader; its table then has this lock, which nothing else in Hourbell takes.
_TRANSACTION = """
select pg_current_xact_id_if_assigned() is not null as writes, exists (
  select from pg_locks where pid = pg_backend_pid() and relation = 'hourbell.leadership'::regclass
    and mode = 'RowShareLock') as checks
"""

_TABLES = """
select c.oid::regclass::text as name from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
where nspname = 'hourbell' and relkind = 'r' order by 1
"""


async def everything_written(engine: Engine) -> dict[str, list[Any]]:
    """Every row of every table with the transaction that wrote it, the row of the leader excepted."""
    tables = [row["name"] for row in await engine.database.fetch(_TABLES)]
    return {
        name: [
            tuple(row.values())
            for row in await engine.database.fetch(f"select xmin::text, * from {name}")  # noqa: S608
        ]
        for name in tables
        if name != "hourbell.leadership"
    }
