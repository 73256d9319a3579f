"""What the tests of the life of an execution share.

    eventually           wait for a condition, with a bound
    travel               set the database's clock; every verb then goes by it
    one_time, recurring  documents of jobs
    standing             a call that stands at a failpoint
    in_transaction       verbs that do not commit before the end of a block
    store_newer          a job as a newer build may store it
    one_round            what the scheduler does at a moment, once
    Hand                 a worker's calls made by hand, one at a time
    working, scheduling  the real worker and scheduler in this process
    history, places      what the database says about a job, and where executions are
    check_sound          what holds at every moment

Nothing here sleeps and hopes: `eventually` is the only way of waiting.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import asyncpg
import msgspec

from handlers import Handler, Handlers
from hourbell.dispatch import RETRY, SUCCEEDED, HeartbeatResult, Session, Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.documents.jobs import parse_new_job
from hourbell.engine.codes import FATES
from hourbell.engine.core import Engine, Times
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.engine.life.admit import admit
from hourbell.engine.life.create import create_job
from hourbell.engine.life.plan import end_memberships, plan
from hourbell.engine.life.reap import expire, reap
from hourbell.engine.operations.idempotency import Write
from hourbell.failpoints import barrier
from hourbell.model.executions import Claimed
from hourbell.model.jobs import Job, TaskAction, WebhookAction
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Connection, Database
from hourbell.store.function_set import connect
from hourbell.testing.filling import create_one_time_jobs
from hourbell.worker.runtime import Worker, WorkerSettings
from uncommitted import POINTS, UncommittedDatabase

T = TypeVar("T")

# Short enough for tests, long enough for a machine that is busy with other things.
TIMES = Times(horizon_seconds=60, lease_seconds=3, leader_lease_seconds=1.5)

START = datetime(2031, 5, 6, 10, 0, 30, tzinfo=UTC)  # a moment far from every change of the clocks

PLACES = ("due", "parked", "paused", "ready", "suspects", "leased")
PATIENCE_SECONDS = 40.0  # for what takes milliseconds, or seconds where a process has to start
# A look takes a few milliseconds of processor time, which everything that a test waits for needs too: the longer it has
# waited, the less often it looks.
_POLL_SECONDS = 0.01
_LONGEST_POLL_SECONDS = 0.1


def at(clock: str) -> datetime:
    """The moment of START's day at this wall time, as `10:01` or `10:01:30`."""
    hour, minute, *second = (int(part) for part in clock.split(":"))
    return START.replace(hour=hour, minute=minute, second=second[0] if second else 0)


async def eventually(condition: Callable[[], Awaitable[T]], seconds: float = PATIENCE_SECONDS) -> T:
    """What the condition gives as soon as it is true; fails when it does not become so."""
    began = time.monotonic()
    while not (seen := await condition()):
        waited = time.monotonic() - began
        if waited > seconds:
            raise AssertionError(f"not within {seconds:g} s; the last answer was {seen!r}")
        await asyncio.sleep(min(max(_POLL_SECONDS, waited / 10), _LONGEST_POLL_SECONDS))
    return seen


@contextlib.asynccontextmanager
async def open_engine(
    dsn: str, times: Times = TIMES, connections: int = 10
) -> AsyncIterator[Engine]:
    database = await UncommittedDatabase.open(dsn, connections)
    try:
        yield Engine(database, DatabaseClock(database), times)
    finally:
        await database.close()


@contextlib.asynccontextmanager
async def standing(point: str, call: Coroutine[Any, Any, Any]) -> AsyncIterator[None]:
    """Within it, the call stands at this failpoint; at its end it goes on, and ends."""
    with barrier(point, names=POINTS) as hold:
        running = asyncio.create_task(call)
        try:
            await hold.reached()
            yield
        except BaseException:
            running.cancel()
            await asyncio.wait([running])
            raise
        hold.release()
        await running


class _OneConnection(Database):
    """A database of which everything goes through one connection."""

    def __init__(self, connection: asyncpg.Connection, dsn: str) -> None:
        self._only = connection
        self.dsn = dsn
        self.pooled = False

    @contextlib.asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        yield self._only


@contextlib.asynccontextmanager
async def in_transaction(engine: Engine, **settings: str) -> AsyncIterator[Engine]:
    """An engine whose verbs hold all their locks until the end of the block, and then commit."""
    connection = await connect(engine.database.dsn, server_settings=settings)
    try:
        async with connection.transaction():
            database = _OneConnection(connection, engine.database.dsn)
            own = Engine(database, DatabaseClock(database), engine.times)
            own._announcer = engine._announcer  # which runs beside the verbs, and beside the commit
            yield own
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def blocked(engine: Engine, table: str) -> AsyncIterator[None]:
    """Within it, a statement that writes to this table waits in the middle of it."""
    async with in_transaction(engine) as own, own.database.connection() as connection:
        await connection.execute(f"lock table hourbell.{table} in share row exclusive mode")
        yield


async def somebody_waits(engine: Engine, statement: str) -> None:
    """Wait until a statement that contains this waits for a lock."""

    async def waits() -> bool:
        return bool(
            await engine.database.value(
                "select exists (select from pg_stat_activity where datname = current_database()"
                " and wait_event_type = 'Lock' and query like $1)",
                f"%{statement}%",
            )
        )

    await eventually(waits)


async def install_clock(connection: Connection) -> None:
    """A clock that stands at the moment of a row while there is one, and goes on otherwise."""
    # A new function for every moment would make the server forget the plans of all that call it.
    await connection.execute(
        """
        create table hourbell.virtual_clock (one boolean primary key default true, now timestamptz not null);
        create or replace function hourbell.clock() returns timestamptz language sql volatile
        return coalesce((select now from hourbell.virtual_clock), clock_timestamp())
        """
    )


async def travel(engine: Engine, moment: datetime) -> datetime:
    """Stop the database's clock at a moment."""
    await engine.database.value(
        "insert into hourbell.virtual_clock (now) values ($1)"
        " on conflict (one) do update set now = excluded.now",
        moment,
    )
    return moment


# Documents.


def one_time(task: str = "noop", payload: object = None, **fields: object) -> dict[str, object]:
    """A job that is due at once, unless the fields say otherwise."""
    return {
        "name": "once",
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": 0},
        "action": {"type": "TASK", "name": task, "payload": payload},
    } | fields


def recurring(
    cron: str = "* * * * *",
    task: str = "noop",
    window: Mapping[str, object] | None = None,
    **fields: object,
) -> dict[str, object]:
    """A job of every minute, unless the fields say otherwise; a number of seconds is an interval."""
    return {
        "name": "again",
        "type": "RECURRING",
        "schedule": {"cron": cron} | dict(window or {}),
        "action": {"type": "TASK", "name": task},
    } | fields


def every(seconds: int, task: str = "noop", **fields: object) -> dict[str, object]:
    """A job of every so many seconds."""
    return recurring(task=task, **fields) | {"schedule": {"every_seconds": seconds}}


async def create(engine: Engine, document: Mapping[str, object], key: str | None = None) -> Job:
    return (await create_job(engine, document, Write(key))).job


async def create_many(engine: Engine, documents: Sequence[Mapping[str, object]]) -> list[Job]:
    """Jobs created side by side, a few at a time; in the order of their documents."""
    few = asyncio.Semaphore(4)

    async def one(document: Mapping[str, object]) -> Job:
        async with few:
            return await create(engine, document)

    return list(await asyncio.gather(*map(one, documents)))


async def fill(engine: Engine, number: int, document: Mapping[str, object] | None = None) -> None:
    """So many one-time jobs that are due, created at once."""
    new = parse_new_job(document or one_time(), await engine.clock.now(), 1)
    await create_one_time_jobs(engine, [new] * number, Write())


# Driving the verbs by hand.


async def plan_all(engine: Engine, now: datetime | None = None) -> None:
    """Plan until there is no more to plan."""
    now = now or await engine.clock.now()
    while await plan(engine, None, now):
        pass


async def admit_all(engine: Engine, now: datetime | None = None) -> None:
    """Pass the gate until nothing more is due."""
    now = now or await engine.clock.now()
    while (await admit(engine, now)).more:
        pass


async def one_round(engine: Engine, moment: datetime) -> None:
    """Time comes, and one round of the scheduler."""
    await travel(engine, moment)
    now = await engine.clock.now()
    await plan_all(engine, now)
    await end_memberships(engine, None, now)
    await expire(engine, None, now)
    await admit_all(engine, now)


class Hand:
    """A worker's calls, made one by one by a test."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self.engine = engine
        self.dispatch = PostgresDispatch(engine)
        self.session = session
        self._claims = 0

    @classmethod
    async def opened(
        cls,
        engine: Engine,
        queues: Sequence[str] | None = ("default",),
        tasks: Sequence[str] | None = None,
    ) -> "Hand":
        return cls(engine, await PostgresDispatch(engine).open("hand", queues, 1000, tasks))

    async def claim(self, limit: int = 1000, same_start: bool = False) -> list[Claimed]:
        self._claims += 1
        return await self.dispatch.claim(self.session, self._claims, limit, same_start=same_start)

    async def claim_again(self, limit: int = 1000) -> list[Claimed]:
        """The last claim once more, because its answer was lost."""
        return await self.dispatch.claim(self.session, self._claims, limit, repeated=True)

    async def claim_all(self) -> list[Claimed]:
        """Everything that is ready."""
        claimed: list[Claimed] = []
        while batch := await self.claim():
            claimed += batch
        return claimed

    async def beat(
        self, running: Sequence[Claimed], resolved: int | None = None
    ) -> HeartbeatResult:
        known = self._claims if resolved is None else resolved
        return await self.dispatch.heartbeat(
            self.session, [one.execution_id for one in running], known
        )

    async def succeed(self, claimed: Sequence[Claimed]) -> Sequence[int]:
        """Settle as SUCCEEDED; returns what was refused."""
        return await self.dispatch.settle(
            self.session, [Settlement(one.execution_id, one.fence, SUCCEEDED) for one in claimed]
        )

    async def fail(self, claimed: Sequence[Claimed], delay_seconds: float) -> Sequence[int]:
        """Settle as failed, to be tried again; returns what was refused."""
        return await self.dispatch.settle(
            self.session,
            [
                Settlement(one.execution_id, one.fence, RETRY, 0, 1, delay_seconds, "Bad", "bad")
                for one in claimed
            ],
        )

    async def run_all(self) -> list[Claimed]:
        """Admit, claim and settle until nothing more is due; everything succeeds."""
        done: list[Claimed] = []
        while True:
            await admit_all(self.engine)
            claimed = await self.claim_all()
            if not claimed:
                return done
            assert not await self.succeed(claimed)
            done += claimed


async def expire_session(engine: Engine, session: Session) -> None:
    """Make a session look as if its worker had not been heard for long."""
    await engine.database.value(
        "update hourbell.sessions set expires_at = $2 where id = $1",
        session.id,
        await engine.clock.now() - timedelta(seconds=1),
    )


async def take_session(engine: Engine, session: Session) -> None:
    """End a session under a worker that lives and renews: between the two steps no heartbeat can come."""
    async with in_transaction(engine) as own:
        # A claim under way holds it, and the reaper would pass over it.
        await own.database.value(
            "select id from hourbell.sessions where id = $1 for update", session.id
        )
        await expire_session(own, session)
        await reap(own, None, await own.clock.now())


# The real worker and scheduler.


async def noop(payload: object, claimed: Claimed) -> None:
    """A handler that does nothing."""


@contextlib.asynccontextmanager
async def working(
    engine: Engine,
    handlers: Mapping[str, Handler] | None = None,
    webhooks: Any = None,
    **settings: Any,
) -> AsyncIterator[Worker]:
    """A worker with a session; at the end it drains."""
    chosen = WorkerSettings(
        **{"name": "test", "lease_seconds": engine.times.lease_seconds, "drain_seconds": 5.0}
        | settings
    )
    actions = {
        TaskAction: Handlers({"noop": noop} | dict(handlers or {})),
        WebhookAction: webhooks,
    }
    worker = Worker(PostgresDispatch(engine), actions, chosen)
    running = asyncio.create_task(worker.run())

    async def has_session() -> bool:
        return worker.session is not None or running.done()

    try:
        await eventually(has_session)
        yield worker
    finally:
        worker.stop()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await running


@contextlib.asynccontextmanager
async def scheduling(engine: Engine) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(engine)
    scheduler.start()
    try:
        yield scheduler
    finally:
        await scheduler.stop()


async def store_newer(engine: Engine, job_id: int, **fields: object) -> str:
    """Store a job as a newer build may, with a value that this one cannot read; returns it as it was."""
    values = fields or {"delivery": "exactly_once"}
    async with engine.database.connection() as connection:
        for table in ("executions", "jobs"):
            kept = await connection.fetchval(
                f"select spec from hourbell.{table} where id = $1 and spec is not null",  # noqa: S608
                job_id,
            )
            if kept is not None:
                newer = msgspec.json.encode(msgspec.json.decode(kept) | values).decode()
                await connection.execute(
                    f"update hourbell.{table} set spec = $2 where id = $1",  # noqa: S608
                    job_id,
                    newer,
                )
                return str(kept)
    raise AssertionError("no such job")


# What the database says.


class Fate(NamedTuple):
    """What became of an occurrence, or of a stretch of missed ones; the status is `live` until then."""

    occurrence: datetime
    status: str
    reason: str | None = None
    missed: int | None = None


_HISTORY = """
select occurrence, -1 as status, null::text as reason, null::int as missed
from hourbell.live where coalesce(job, id) = $1 and occurrence <= $2
union all
select scheduled_for, status, reason, missed from hourbell.ledger where job = $1
order by occurrence
"""


async def history(engine: Engine, job_id: int, through: datetime | None = None) -> list[Fate]:
    """Every occurrence of a job up to a moment, or else up to now, in order, each with its fate."""
    through = through or await engine.clock.now()
    return [
        Fate(
            row["occurrence"],
            "live" if row["status"] < 0 else str(FATES[row["status"]]),
            row["reason"],
            row["missed"],
        )
        for row in await engine.database.fetch(_HISTORY, job_id, through)
    ]


async def fates(engine: Engine) -> Counter[str]:
    """How many ledger rows there are of each fate, as `SUCCEEDED` or `DEAD(crashed)`."""
    rows = await engine.database.fetch(
        "select status, reason, count(*) as n from hourbell.ledger group by status, reason"
    )
    named: Counter[str] = Counter()
    for row in rows:
        why = f"({row['reason']})" if row["reason"] else ""
        named[f"{FATES[row['status']]}{why}"] += row["n"]
    return named


_IDS = {
    "due": "(select id from hourbell.due union all select unnest(ids) from hourbell.due_slabs) as d",
    "ready": "(select unnest(ids) as id from hourbell.ready) as r",
    "leased": "hourbell.leases",
}
_PLACES = " union all ".join(
    f"select '{name}' as name, id from {_IDS.get(name, f'hourbell.{name}')}"  # noqa: S608
    for name in PLACES
)


async def places(engine: Engine) -> Counter[str]:
    """How many executions are in each place; places without any are left out."""
    rows = await engine.database.fetch(_PLACES)
    return Counter(row["name"] for row in rows)


async def place_of(engine: Engine, execution_id: int) -> list[str]:
    rows = await engine.database.fetch(_PLACES)
    return sorted(row["name"] for row in rows if row["id"] == execution_id)


_DOUBLED = """
select job, occurrence, origin, count(*) from (
  select coalesce(job, id) as job, occurrence, origin from hourbell.live
  union all
  select job, scheduled_for, origin from hourbell.ledger) as known
where origin in (0, 2)
group by job, occurrence, origin having count(*) > 1
"""
_LOST = """
select e.id from hourbell.live as e
where not exists (select from hourbell.due as p where p.id = e.id)
  and not exists (select from hourbell.due_slabs as p where e.id = any (p.ids))
  and not exists (select from hourbell.parked as p where p.id = e.id)
  and not exists (select from hourbell.paused as p where p.id = e.id)
  and not exists (select from hourbell.ready as p where e.id = any (p.ids))
  and not exists (select from hourbell.suspects as p where p.id = e.id)
  and not exists (select from hourbell.leases as p where p.id = e.id)
"""
_TWICE = (
    f"select id, array_agg(name) as names from ({_PLACES}) as p group by id having count(*) > 1"  # noqa: S608
)
_ORPHANS = f"""
select p.id, p.name from ({_PLACES}) as p
where not exists (select from hourbell.live as e where e.id = p.id)
"""  # noqa: S608
_UNHELD = """
select ids from hourbell.leased as l where not exists (select from hourbell.sessions as s where s.id = l.session)
"""

_OPEN = """
(select job, occurrence, origin, id from hourbell.open_runs
 except all select job, occurrence, origin, id from hourbell.live where job is not null)
union all
(select job, occurrence, origin, id from hourbell.live where job is not null
 except all select job, occurrence, origin, id from hourbell.open_runs)
"""
_HOLLOW = """
select ids from hourbell.leased as l where not exists (
  select from unnest(l.ids) as i(id) join hourbell.live as e on e.id = i.id)
"""
_MISCOUNTED = """
select tenant, sum(jobs) as too_many from (
  select tenant, jobs from hourbell.quota_counts union all select tenant, jobs from hourbell.quota_changes
  union all select tenant, -1 from hourbell.quota_jobs
  union all select tenant, -1 from hourbell.jobs where status in (0, 1)) as counted
group by tenant having sum(jobs) <> 0
"""
_WIDOWED = "select id from hourbell.outcomes except all select id from hourbell.executions"


def violations_of(invariants: Mapping[str, str]) -> str:
    """One statement for all of these queries, each of which finds what must not be: one snapshot, and one call."""
    return " union all ".join(
        f"(select '{problem}' as problem, to_json(found)::text as row from ({query}) as found limit 5)"  # noqa: S608
        for problem, query in invariants.items()
    )


_SOUND = violations_of(
    {
        "an occurrence has two rows": _DOUBLED,
        "an execution is nowhere": _LOST,
        "an execution is in two places": _TWICE,
        "a place holds what is no execution": _ORPHANS,
        "a lease belongs to no session": _UNHELD,
        "open runs are not the live runs": _OPEN,
        "an outcome is of no execution": _WIDOWED,
        "nothing of a lease is left": _HOLLOW,
        "the count of a quota is wrong": _MISCOUNTED,
    }
)


async def check_sound(engine: Engine, more: str = "") -> None:
    """What holds at every moment: one row per occurrence, each execution in exactly one place.

    `more`: other `violations_of`, looked for at the same moment.
    """
    rows = await engine.database.fetch(f"{_SOUND} union all {more}" if more else _SOUND)
    assert not rows, "\n".join(f"{row['problem']}: {row['row']}" for row in rows)


async def payloads(claimed: Sequence[Claimed]) -> list[Any]:
    """The payloads of claimed tasks."""
    return [msgspec.json.decode(one.spec)["action"].get("payload") for one in claimed]
