"""diagnosis: what is wrong with a cell, and what to do about it.

`examine` reads, `findings` decides. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.views.failing import ADVICE, Failing, failing_rows
from hourbell.engine.views.pages import walk
from hourbell.engine.views.resources import MAX_COUNTED
from hourbell.model.ids import execution_text
from hourbell.store.function_set import function_set
from hourbell.store.queries import queries
from hourbell.timing.zones import tz_version

_Q = queries("diagnosis")
_A = queries("attention")

LATE = timedelta(minutes=1)
MAX_DRIFT_SECONDS = 1.0
MAX_TRANSACTION_SECONDS = 600.0
MAX_CONNECTION_SHARE = 0.9
OLD_PROBLEM = timedelta(minutes=5)  # of a schedule in code; it is retried every minute
OLD_FUNCTIONS = timedelta(hours=2)  # running processes mark theirs every hour


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    level: Level
    what: str
    advice: str = ""


class LateQueue(msgspec.Struct, frozen=True):
    """Executions of a queue that are overdue."""

    queue: str
    executions: int
    since: datetime
    has_worker: bool


class Unserved(msgspec.Struct, frozen=True):
    """Due executions that no live worker serves."""

    queue: str
    executions: int
    task: str | None = None  # None: no live worker serves the queue at all


class State(msgspec.Struct, frozen=True, kw_only=True):
    """What was read."""

    now: datetime
    server_version: str
    pooled: bool
    connections: int
    max_connections: int
    commits_wait: bool  # for the disk
    oldest_transaction_seconds: float
    hidden_sessions: int  # whose transactions this role may not see
    role: str  # of this connection, quoted if necessary
    drift_seconds: float | None  # None: the round trip was too slow to tell
    tz_version: str
    planned_with: Sequence[str]  # versions of tzdata
    function_versions: Sequence[str]  # of other builds that are in use
    has_functions: bool
    epoch: int | None
    led_until: datetime | None
    late_timetables: int
    broken_timetables: Sequence[str]
    refused_schedules: Sequence[str]  # in code, each with the reason
    late_queues: Sequence[LateQueue]
    workers: int
    expired_sessions: int
    unserved: Sequence[Unserved]
    failing: Sequence[Failing]  # rows on which a step fails
    not_admitted: int  # because the gate failed on them
    first_not_admitted: int | None
    suspects: int
    notices: int
    dead_letters: int  # of the last day


async def examine(engine: Engine, drift_seconds: float | None) -> State:
    """Read the state of a migrated cell."""
    database = engine.database
    now = await engine.clock.now()
    late = now - LATE
    server = await database.row(_Q["server"])
    leader = await database.row_or_none(_Q["leader"])
    timetables = await database.row(_Q["timetables"], late)
    stuck = await database.row(_Q["stuck"], late, now, now - timedelta(days=1))
    sets = await database.fetch(_Q["function_sets"], function_set().digest)
    recent = now - OLD_FUNCTIONS
    return State(
        now=now,
        server_version=server["version"],
        pooled=database.pooled,
        connections=server["connections"],
        max_connections=server["max_connections"],
        commits_wait=server["commits_wait"],
        oldest_transaction_seconds=server["oldest_transaction"],
        hidden_sessions=server["hidden"],
        role=server["role"],
        drift_seconds=drift_seconds,
        tz_version=tz_version(),
        planned_with=timetables["tz_versions"],
        function_versions=[
            row["version"] for row in sets if not row["own"] and row["used_at"] > recent
        ],
        has_functions=any(row["own"] for row in sets),
        epoch=None if leader is None else leader["epoch"],
        led_until=None if leader is None else leader["expires_at"],
        late_timetables=timetables["late"],
        broken_timetables=timetables["broken"],
        refused_schedules=[
            row["refused"] for row in await database.fetch(_Q["refused"], now - OLD_PROBLEM)
        ],
        late_queues=[
            LateQueue(row["queue"], row["executions"], row["since"], row["has_worker"])
            for row in await database.fetch(_Q["late"], late, now)
        ],
        workers=stuck["workers"],
        expired_sessions=stuck["expired_sessions"],
        unserved=[
            *(
                Unserved(row["queue"], row["n"])
                for row in await walk(engine, _A["unserved_queues"], now, MAX_COUNTED)
            ),
            *(
                Unserved(row["queue"], row["n"], row["task"])
                for row in await walk(engine, _A["unserved_tasks"], MAX_COUNTED)
            ),
        ],
        failing=await failing_rows(engine, now, None),
        not_admitted=stuck["not_admitted"],
        first_not_admitted=stuck["first_not_admitted"],
        suspects=stuck["suspects"],
        notices=stuck["notices"],
        dead_letters=stuck["dead_letters"],
    )


def findings(state: State) -> Iterator[Finding]:
    """The result of every check."""
    yield _connections(state)
    yield _commits(state)
    yield _transactions(state)
    yield _pooler(state)
    yield _drift(state)
    yield _tzdata(state)
    yield _functions(state)
    yield _leader(state)
    yield from _planning(state)
    yield _schedules(state)
    yield _workers(state)
    yield from _queues(state)
    yield from _tasks(state)
    yield _admission(state)
    yield _rows(state)
    yield _suspects(state)
    yield _notices(state)
    yield _dead_letters(state)


def _finding(check: str, fine: bool, what: str, advice: str, level: Level) -> Finding:
    return Finding(check, Level.OK, what) if fine else Finding(check, level, what, advice)


def _connections(state: State) -> Finding:
    return _finding(
        "database",
        state.connections <= MAX_CONNECTION_SHARE * state.max_connections,
        f"PostgreSQL {state.server_version}, {state.connections} of {state.max_connections} "
        "connections in use",
        "Raise max_connections, or use a pooler, before new processes are refused.",
        Level.WARNING,
    )


def _commits(state: State) -> Finding:
    return _finding(
        "commits",
        state.commits_wait,
        "commits wait for the disk" if state.commits_wait else "synchronous_commit is off",
        "A crash of the server can undo jobs that were confirmed and claims that are running. Set "
        "it to on for the database and the role of Hourbell.",
        Level.WARNING,
    )


def _transactions(state: State) -> Finding:
    seconds = state.oldest_transaction_seconds
    if state.hidden_sessions and seconds <= MAX_TRANSACTION_SECONDS:
        return Finding(
            "transactions",
            Level.WARNING,
            f"the role {state.role} may not see the transactions of other roles' sessions "
            f"({state.hidden_sessions})",
            f"Run `grant pg_read_all_stats to {state.role}` as a superuser, so that a transaction "
            "that stays open is found.",
        )
    return _finding(
        "transactions",
        seconds <= MAX_TRANSACTION_SECONDS,
        f"the oldest transaction has been open for {seconds:.0f} s",
        "Vacuum cannot remove rows that it may see, so tables grow. Find it in pg_stat_activity by "
        "xact_start, and end it with pg_terminate_backend.",
        Level.WARNING,
    )


def _pooler(state: State) -> Finding:
    return _finding(
        "pooler",
        not state.pooled,
        "behind a pooler in transaction mode" if state.pooled else "connected without a pooler",
        "Notifications do not pass through it, so starts wait for the next poll. Let schedulers "
        "and workers connect to PostgreSQL directly.",
        Level.WARNING,
    )


def _drift(state: State) -> Finding:
    drift = state.drift_seconds
    if drift is None:
        advice = "Run it again when the database is less busy."
        return Finding("clock", Level.WARNING, "the database answered too slowly to tell", advice)
    direction = "ahead of" if drift >= 0 else "behind"
    what = f"this machine is {abs(drift):.2f} s {direction} the database"
    if abs(drift) < 0.01:
        what = "this machine and the database have the same time, within 0.01 s"
    return _finding(
        "clock",
        abs(drift) <= MAX_DRIFT_SECONDS,
        what,
        "Synchronize both with NTP. Schedules follow the database; logs and signatures are wrong.",
        Level.WARNING,
    )


def _tzdata(state: State) -> Finding:
    year = int(state.tz_version[:4]) if state.tz_version[:4].isdigit() else 0
    is_old = state.now.year - year > 1 or (state.now.year > year and state.now.month > 6)
    others = sorted(set(state.planned_with) - {state.tz_version})
    what = f"time zones of IANA release {state.tz_version}"
    if others:
        what += f"; timetables were planned with {', '.join(others)}"
    return _finding(
        "tzdata",
        not is_old and not others,
        what,
        "Upgrade the tzdata package"
        + (", to the same version on every node." if others else ": rules may have changed since."),
        Level.WARNING,
    )


def _functions(state: State) -> Finding:
    others = sorted(set(state.function_versions))
    if not state.has_functions:
        advice = "Run `hourbell migrate` with this version."
        return Finding("functions", Level.FAILURE, "the functions are not loaded", advice)
    count = len(state.function_versions)
    return _finding(
        "functions",
        count == 0,
        f"other builds are in use: {', '.join(others)}" if count else "one build is in use",
        "This is expected during an upgrade. Otherwise find the processes that were not upgraded.",
        Level.WARNING,
    )


def _leader(state: State) -> Finding:
    is_led = state.led_until is not None and state.led_until > state.now
    return _finding(
        "leader",
        is_led,
        f"a scheduler leads, epoch {state.epoch}" if is_led else "no scheduler leads",
        "Nothing is planned. Start `hourbell scheduler` or `hourbell up`, and look at its log.",
        Level.FAILURE,
    )


def _planning(state: State) -> Iterator[Finding]:
    if state.broken_timetables:
        yield Finding(
            "planning",
            Level.FAILURE,
            f"the leader cannot compute {'; '.join(state.broken_timetables)}",
            "Upgrade tzdata on the scheduler for an unknown time zone, or correct the jobs: "
            "`hourbell jobs explain` names the reason.",
        )
    if state.late_timetables:
        yield Finding(
            "planning",
            Level.FAILURE,
            "1 timetable is late"
            if state.late_timetables == 1
            else f"{state.late_timetables:,} timetables are late",
            "The leader does not keep up, or there is none. Look at its log and the database's load.",
        )
    if not state.broken_timetables and not state.late_timetables:
        yield Finding("planning", Level.OK, "every timetable is planned in time")


def _rows(state: State) -> Finding:
    return _finding(
        "rows",
        not state.failing,
        " ".join(one.message for one in state.failing[:5]) or "no row fails",
        ADVICE,
        Level.FAILURE,
    )


def _schedules(state: State) -> Finding:
    refused = state.refused_schedules
    return _finding(
        "schedules",
        not refused,
        f"not applied: {' '.join(refused)}" if refused else "every schedule in code is applied",
        "The job of such a schedule does not exist, or has its earlier declaration. Correct the "
        "declaration, or what it names. It is retried every minute.",
        Level.FAILURE,
    )


def _workers(state: State) -> Finding:
    if state.expired_sessions:
        return Finding(
            "workers",
            Level.FAILURE,
            "1 worker is gone, and its executions were not returned"
            if state.expired_sessions == 1
            else f"{state.expired_sessions:,} workers are gone, and their executions were not returned",
            "The leader does this. Look at its log.",
        )
    return _finding(
        "workers",
        state.workers > 0,
        f"{state.workers} live" if state.workers else "there is no live worker",
        "Nothing runs. Start `hourbell worker`, `hourbell up` or a worker over HTTP.",
        Level.FAILURE,
    )


def _queues(state: State) -> Iterator[Finding]:
    late = {one.queue for one in state.late_queues}
    unserved = [one for one in state.unserved if one.task is None and one.queue not in late]
    if not state.late_queues and not unserved:
        yield Finding("queues", Level.OK, "nothing has been due for more than a minute")
    for one in state.late_queues:
        advice = (
            "Add workers or raise the limits: `hourbell executions explain ID` names what one "
            "waits for."
            if one.has_worker
            else _serve(one.queue)
        )
        age = round((state.now - one.since).total_seconds())
        waiting = f"{_have(one.executions)} been due for up to {age} s"
        yield Finding("queues", Level.FAILURE, f"in queue {one.queue}, {waiting}", advice)
    for waiting_one in unserved:
        what = f"in queue {waiting_one.queue}, {_wait(waiting_one.executions)} for a live worker"
        yield Finding("queues", Level.WARNING, what, _serve(waiting_one.queue))


def _serve(queue: str) -> str:
    return (
        f"No live worker serves it. Start one: HOURBELL_WORKER_QUEUES={queue}, or for an app "
        f"`hourbell worker --queues {queue}`. If the name is wrong, correct the job's queue."
    )


def _tasks(state: State) -> Iterator[Finding]:
    unserved = [one for one in state.unserved if one.task is not None]
    if not unserved:
        yield Finding("tasks", Level.OK, "every task has a worker")
    for one in unserved:
        yield Finding(
            "tasks",
            Level.WARNING,
            f"in queue {one.queue}, {_wait(one.executions)} for a live worker with the task {one.task}",
            "Start a worker of this queue that has the task, or correct the name of the task or the "
            "queue: `hourbell executions list --status QUEUED` shows them.",
        )


def _wait(executions: int) -> str:
    return "1 execution waits" if executions == 1 else f"{executions:,} executions wait"


def _have(executions: int) -> str:
    return "1 execution has" if executions == 1 else f"{executions:,} executions have"


def _admission(state: State) -> Finding:
    if state.first_not_admitted is None:
        return Finding("gate", Level.OK, "the gate has failed on no execution")
    first = execution_text(state.first_not_admitted)
    return Finding(
        "gate",
        Level.FAILURE,
        f"the gate fails on 1 execution, {first}"
        if state.not_admitted == 1
        else f"the gate fails on {state.not_admitted:,} executions, such as {first}",
        'It does not become ready. The log of the scheduler says why ("execution cannot be admitted"): '
        "correct that, or cancel the execution. The gate tries again every minute.",
    )


def _suspects(state: State) -> Finding:
    what = "no execution is suspected of crashing its worker"
    if state.suspects == 1:
        what = "1 execution crashed its worker twice and waits to run alone"
    elif state.suspects:
        what = f"{state.suspects:,} executions crashed their worker twice and wait to run alone"
    return _finding(
        "suspects",
        state.suspects == 0,
        what,
        "Look at the logs of the workers: memory, or a crash of native code.",
        Level.WARNING,
    )


def _notices(state: State) -> Finding:
    what = f"{state.notices:,} notifications are late" if state.notices else "none is late"
    return _finding(
        "notifications",
        state.notices == 0,
        "1 notification is late" if state.notices == 1 else what,
        "The leader sends them. Look at its log.",
        Level.FAILURE,
    )


def _dead_letters(state: State) -> Finding:
    return _finding(
        "dead letters",
        state.dead_letters == 0,
        f"{state.dead_letters} in the last 24 hours" if state.dead_letters else "none in 24 hours",
        "See `hourbell dlq list`; replay them with `hourbell dlq replay` once the cause is gone.",
        Level.WARNING,
    )
