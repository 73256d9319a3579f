"""attention: what an operator should look at, the worst first.

Each item has a stable code, a sentence, and what it refers to. The searches are bounded, so a count
may be a lower bound. A caller restricted to one tenant gets the items of that tenant, and whether a
leader is present.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.views.failing import ADVICE, Failing, failing_rows
from hourbell.engine.views.fleet import Fleet, Leader, list_nodes, open_circuits
from hourbell.engine.views.jobs import tenant_wanted
from hourbell.engine.views.pages import walk
from hourbell.engine.views.resources import MAX_COUNTED
from hourbell.model.ids import execution_text, job_text, monitor_text
from hourbell.store.queries import queries

_Q = queries("attention")
_D = queries("diagnosis")

MAX_ITEMS = 20
MAX_DRIFT_MS = 500.0
MAX_LEADER_CHANGES = 3  # in an hour
LATE = timedelta(minutes=1)
OLD_PAUSE = timedelta(days=7)
DAY = timedelta(days=1)

_SKIPPED_BECAUSE = {
    "misfire": "nothing was running at its time",
    "overlap": "an earlier run had not ended",
    "replaced": "a later run replaced it",
    "start_deadline": "it could not start in time",
    "max_runs": "it has had all its runs",
    "calendar": "its calendar excludes the day",
}
_INTENDED = ("max_runs", "calendar", "replaced")  # as the owner of the job has asked for


class Severity(StrEnum):
    """How bad it is, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


_ORDER = list(Severity)


class Reference(msgspec.Struct, frozen=True):
    """What an item is about."""

    kind: str
    id: str | None = None
    name: str | None = None
    tenant_id: str | None = None


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """Something to look at."""

    code: str
    severity: Severity
    since: datetime | None
    count: int
    at_least: bool = False
    message: str
    refers_to: Reference


async def attention(
    engine: Engine, now: datetime, leader: Leader | None, workers: Fleet | None
) -> list[Item]:
    """The items, the worst first."""
    tenant = await tenant_wanted(engine, None)
    skipped = await engine.database.fetch(_Q["skips"], now - DAY, tenant)
    jobs = [row["job"] for row in skipped]
    lost = await walk(engine, _Q["mostly_skipped"], jobs, now) if jobs else []
    found = [
        *_of_leader(leader, now),
        *_of_skips(skipped, {row["job"] for row in lost}),
        *_of_monitors(await walk(engine, _Q["monitors_down"], now, tenant)),
        *_of_pauses(await walk(engine, _Q["old_pauses"], now - OLD_PAUSE, tenant)),
        *_of_dead_letters(await walk(engine, _Q["dead_letters"], now - DAY, tenant)),
        *_of_failing(await failing_rows(engine, now, tenant)),
    ]
    if engine.scope is None:
        found += [
            *_of_timetables(await engine.database.fetch(_Q["broken"])),
            *_of_queues(await walk(engine, _Q["unserved_queues"], now, MAX_COUNTED)),
            *_of_tasks(await walk(engine, _Q["unserved_tasks"], MAX_COUNTED)),
            *_of_failures(await walk(engine, _Q["not_admitted"], MAX_COUNTED)),
            *_of_retiring(await engine.database.fetch(_Q["retiring"])),
            *_of_overdue(await engine.database.fetch(_D["late"], now - LATE, now), now),
            *_of_circuits(await open_circuits(engine, now)),
            *_of_nodes(await list_nodes(engine)),
            *_of_workers(workers),
        ]
    found.sort(key=lambda item: (_ORDER.index(item.severity), -item.count))
    return found[:MAX_ITEMS]


async def dead_since(engine: Engine, since: datetime) -> int:
    """How many executions have died since a moment and are dead letters, up to MAX_COUNTED."""
    tenant = await tenant_wanted(engine, None)
    (row,) = await walk(engine, _Q["dead_count"], since, tenant, MAX_COUNTED)
    count: int = row["count"]
    return count


def _of_leader(leader: Leader | None, now: datetime) -> Iterator[Item]:
    if leader is None or not leader.present:
        yield Item(
            code="leader_missing",
            severity=Severity.ERROR,
            since=None if leader is None else leader.expires_at,
            count=1,
            message=(
                "No scheduler leads, so nothing is planned and nothing falls due. Start "
                "`hourbell scheduler` or `hourbell up`."
            ),
            refers_to=Reference("cell"),
        )
        return
    if leader.changes_in_1h > MAX_LEADER_CHANGES:
        yield Item(
            code="leader_changes",
            severity=Severity.WARNING,
            since=leader.first_change_in_1h,
            count=leader.changes_in_1h,
            message=f"The leader has changed {leader.changes_in_1h} times in an hour.",
            refers_to=Reference("cell"),
        )


def _of_skips(rows: Sequence[asyncpg.Record], lost: set[int]) -> Iterator[Item]:
    for row in rows:
        job = Reference("job", job_text(row["job"]), row["job_name"], row["tenant_name"])
        reason, count = row["reason"], row["n"]
        times = "an occurrence was" if count == 1 else f"{count:,} occurrences were"
        because = _SKIPPED_BECAUSE.get(reason, reason)
        name = row["job_name"] or job.id
        if row["job"] in lost:
            message = f"More than half of the last runs of {name} were skipped: {because}."
        else:
            message = f"{name}: {times} skipped in 24 hours, the last because {because}."
        mild = Severity.INFO if reason in _INTENDED else Severity.WARNING
        yield Item(
            code="runs_lost" if row["job"] in lost else "occurrences_skipped",
            severity=Severity.ERROR if row["job"] in lost and mild is not Severity.INFO else mild,
            since=row["at"],
            count=count,
            message=message,
            refers_to=job,
        )


def _of_monitors(rows: Sequence[asyncpg.Record]) -> Iterator[Item]:
    for row in rows:
        yield Item(
            code="monitor_down",
            severity=Severity.ERROR,
            since=row["down_since"],
            count=1,
            message=f"{row['job_name'] or 'A job'} has not succeeded within its grace period.",
            refers_to=Reference(
                "monitor", monitor_text(row["id"]), row["job_name"], row["tenant_name"]
            ),
        )


def _of_pauses(rows: Sequence[asyncpg.Record]) -> Iterator[Item]:
    for row in rows:
        others = f" {row['n'] - 1:,} more as well." if row["n"] > 1 else ""
        why = f' "{row["reason"]}"' if row["reason"] else ""
        yield Item(
            code="old_pause",
            severity=Severity.INFO,
            since=row["at"],
            count=row["n"],
            message=(
                f"{row['job_name']} was paused by {row['actor']} more than a week ago"
                f"{':' + why if why else ''}.{others}"
            ),
            refers_to=Reference("job", job_text(row["job"]), row["job_name"], row["tenant_name"]),
        )


def _of_dead_letters(rows: Sequence[asyncpg.Record]) -> Iterator[Item]:
    for row in rows:
        error = f": {row['error']}" if row["error"] else ""
        one = row["n"] == 1
        yield Item(
            code="new_dead_letters",
            severity=Severity.WARNING,
            since=row["since"],
            count=row["n"],
            at_least=row["n"] >= 1_000,
            message=(
                f"{row['n']:,} dead letter{'' if one else 's'} of {row['jobs']:,} "
                f"job{'' if row['jobs'] == 1 else 's'} in 24 hours, {row['reason']}{error}"
            ),
            refers_to=Reference("dead_letters", row["reason"]),
        )


def _of_timetables(rows: Sequence[asyncpg.Record]) -> Iterator[Item]:
    for row in rows:
        why = (
            f"the time zone {row['zone']} is unknown to the leader"
            if row["broken"] == "unknown_timezone"
            else f"the rule {row['rule']} cannot be computed"
        )
        jobs = "1 job is" if row["n"] == 1 else f"{row['n']:,} jobs are"
        yield Item(
            code="job_not_planned",
            severity=Severity.ERROR,
            since=None,
            count=row["n"],
            at_least=row["n"] >= 1_000,
            message=f"{jobs} not planned, because {why}.",
            refers_to=Reference("job", job_text(row["job"]), row["job_name"], row["tenant_name"]),
        )


def _of_failing(rows: Sequence[Failing]) -> Iterator[Item]:
    for row in rows:
        kind, number = (
            ("execution", row.execution_id) if row.job_id is None else ("job", row.job_id)
        )
        yield Item(
            code="row_failing",
            severity=Severity.ERROR,
            since=row.since,
            count=row.count,
            message=f"{row.message} {ADVICE}",
            refers_to=Reference(kind, number or "", row.job_name, row.tenant_id),
        )


def _of_queues(rows: Sequence[asyncpg.Record]) -> Iterator[Item]:
    for row in rows:
        wait = "1 execution waits" if row["n"] == 1 else f"{row['n']:,} executions wait"
        yield Item(
            code="queue_without_worker",
            severity=Severity.ERROR,
            since=row["since"],
            count=row["n"],
            at_least=row["n"] >= MAX_COUNTED,
            message=f"{wait} in the queue {row['queue']}, and no live worker serves it.",
            refers_to=Reference("queue", row["queue"], row["queue"]),
        )


def _of_tasks(rows: Sequence[asyncpg.Record]) -> Iterator[Item]:
    for row in rows:
        wait = "1 execution waits" if row["n"] == 1 else f"{row['n']:,} executions wait"
        yield Item(
            code="task_without_worker",
            severity=Severity.ERROR,
            since=row["since"],
            count=row["n"],
            at_least=row["n"] >= MAX_COUNTED,
            message=f"{wait} in the queue {row['queue']} for a worker with the task {row['task']}.",
            refers_to=Reference("queue", row["queue"], row["queue"]),
        )


def _of_failures(rows: Sequence[asyncpg.Record]) -> Iterator[Item]:
    for row in rows:
        cannot = "1 execution" if row["n"] == 1 else f"{row['n']:,} executions"
        yield Item(
            code="admission_failed",
            severity=Severity.ERROR,
            since=row["since"],
            count=row["n"],
            at_least=row["n"] >= MAX_COUNTED,
            message=(
                f"{cannot} cannot be admitted, because the gate fails. The log of the scheduler "
                'says why ("execution cannot be admitted").'
            ),
            refers_to=Reference("execution", execution_text(row["first"])),
        )


def _of_retiring(rows: Sequence[asyncpg.Record]) -> Iterator[Item]:
    for row in rows:
        are = "is" if row["n"] == 1 else f"and {row['n'] - 1:,} more are"
        yield Item(
            code="schedules_retiring",
            severity=Severity.INFO,
            since=row["since"],
            count=row["n"],
            at_least=row["n"] >= 1_000,
            message=(
                f"{row['job_name']} {are} no longer declared by any live worker, and will be "
                "retired ten minutes after the last worker that declared it was seen."
            ),
            refers_to=Reference("job", job_text(row["job"]), row["job_name"], row["tenant_name"]),
        )


def _of_overdue(rows: Sequence[asyncpg.Record], now: datetime) -> Iterator[Item]:
    for row in rows:
        if not row["has_worker"]:
            continue  # said already
        age = round((now - row["since"]).total_seconds())
        yield Item(
            code="executions_overdue",
            severity=Severity.ERROR,
            since=row["since"],
            count=row["executions"],
            at_least=row["executions"] >= 1_000,
            message=(
                f"{row['executions']:,} executions in the queue {row['queue']} are due and not "
                f"admitted, the first for {age:,} s."
            ),
            refers_to=Reference("queue", row["queue"], row["queue"]),
        )


def _of_circuits(rows: Sequence[asyncpg.Record]) -> Iterator[Item]:
    by_host: dict[str, list[asyncpg.Record]] = {}
    for row in rows:
        by_host.setdefault(row["host"], []).append(row)
    for host, circuits in by_host.items():
        yield Item(
            code="circuit_open",
            severity=Severity.WARNING,
            since=min(row["since"] for row in circuits),
            count=len(circuits),
            message=f"{host} keeps failing, so its requests are postponed.",
            refers_to=Reference("target", host, host),
        )


def _of_nodes(nodes: Sequence[dict[str, object]]) -> Iterator[Item]:
    for node in nodes:
        drift = node["clock_drift_ms"]
        if not node["alive"] or not isinstance(drift, float) or abs(drift) <= MAX_DRIFT_MS:
            continue
        direction = "ahead of" if drift > 0 else "behind"
        yield Item(
            code="clock_drift",
            severity=Severity.WARNING,
            since=None,
            count=1,
            message=f"The clock of {node['name']} is {abs(drift):,.0f} ms {direction} the database.",
            refers_to=Reference("node", str(node["node_id"]), str(node["name"])),
        )


def _of_workers(workers: Fleet | None) -> Iterator[Item]:
    if workers is not None and workers.lost_in_1h:
        count = workers.lost_in_1h
        were = "1 worker was" if count == 1 else f"{count:,} workers were"
        yield Item(
            code="worker_lost",
            severity=Severity.WARNING,
            since=workers.lost_since,
            count=count,
            message=f"{were} lost in the last hour, without a heartbeat for a whole lease.",
            refers_to=Reference("worker"),
        )
