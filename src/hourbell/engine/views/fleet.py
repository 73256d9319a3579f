"""fleet: the leader, the processes, the workers, and how much waits for them.

These belong to the cell. A caller restricted to one tenant sees the leader, and nothing of workers,
processes and what other tenants wait for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from hourbell.engine.core import Engine
from hourbell.engine.views.jobs import tenant_wanted
from hourbell.engine.views.pages import NEWEST, Id, Page, page_token, read_token, walk
from hourbell.engine.views.resources import MAX_COUNTED
from hourbell.model.errors import NotFound
from hourbell.model.ids import session_text
from hourbell.model.policies import Priority
from hourbell.store.queries import queries

_Q = queries("fleet")

ALIVE_SECONDS = 60.0  # a process without a heartbeat for longer counts as dead
CIRCUITS_SECONDS = 15.0  # how long the last report of a process about its circuits is used
MAX_HELD = 100  # executions of a worker that are listed
_PAST = timedelta(days=1)  # for which ended workers are listed


class Leader(msgspec.Struct, frozen=True, kw_only=True):
    """The node that leads, or led last."""

    node_id: UUID
    name: str | None  # of its process; None: not reported
    epoch: int
    since: datetime | None
    renewed_at: datetime
    expires_at: datetime
    present: bool
    clock_drift_ms: float | None
    planned_until: datetime  # every occurrence before this is planned
    planner_lag_seconds: float  # how far that is behind the horizon
    changes_in_1h: int
    first_change_in_1h: datetime | None
    changes_in_24h: int


class Fleet(msgspec.Struct, frozen=True):
    """The workers, in numbers."""

    alive: int
    lost_in_1h: int
    lost_since: datetime | None  # when the first of these was lost
    slots: int
    running: int


class Depth(msgspec.Struct, frozen=True):
    """How much waits and runs, of one priority."""

    priority: Priority
    ready: int
    parked: int
    running: int
    oldest: datetime | None  # since when the first waits
    at_least: tuple[str, ...]  # counts that are lower bounds


class UnderWay(msgspec.Struct, frozen=True):
    """Executions that run."""

    by_priority: Mapping[int, int]
    by_minute: Mapping[datetime, int]  # of their claim
    with_workers: int  # the others wait for their targets

    @property
    def total(self) -> int:
        return sum(self.by_priority.values())


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker process; None: all queues or tasks or, if it has ended, not known any more."""

    session_id: int
    worker_id: str | None
    state: str
    queues: Sequence[str] | None = None
    tasks: Sequence[str] | None = None
    slots: int | None = None
    running: int | None = None
    quarantine: bool = False
    started_at: datetime | None = None
    renewed_at: datetime | None = None
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    returned: int | None = None  # executions, when its lease had expired


class Held(msgspec.Struct, frozen=True):
    """An execution that a worker runs."""

    execution_id: int
    job_id: int
    job_name: str | None
    tenant_id: str
    claimed_at: datetime
    attempt: int
    timeout_seconds: int | None
    progress: Any


async def leader(engine: Engine, now: datetime) -> Leader | None:
    """The node that leads, or led last; None: none ever did."""
    row = await engine.database.row_or_none(_Q["leader"], now)
    if row is None:
        return None
    horizon = now + engine.times.horizon
    planned = min(row["not_planned"] or horizon, horizon)
    return Leader(
        node_id=row["node"],
        name=row["name"] if engine.scope is None else None,
        epoch=row["epoch"],
        since=row["began_at"],
        renewed_at=row["renewed_at"],
        expires_at=row["expires_at"],
        present=row["expires_at"] > now,
        clock_drift_ms=row["drift_ms"],
        planned_until=planned,
        planner_lag_seconds=round((horizon - planned).total_seconds(), 3),
        changes_in_1h=row["changes_in_1h"],
        first_change_in_1h=row["first_change_in_1h"],
        changes_in_24h=row["changes_in_24h"],
    )


async def under_way(engine: Engine) -> UnderWay:
    """Executions that run, of the tenant of the scope or of all; up to MAX_COUNTED."""
    tenant = await tenant_wanted(engine, None)
    rows = await walk(engine, _Q["running"], MAX_COUNTED, tenant)
    priorities: Counter[int] = Counter()
    minutes: Counter[datetime] = Counter()
    for row in rows:
        priorities[row["priority"]] += row["n"]
        minutes[row["started_in"]] += row["n"]
    return UnderWay(priorities, minutes, sum(row["n"] for row in rows if not row["awaiting"]))


async def fleet(engine: Engine, now: datetime, running: UnderWay) -> Fleet:
    """The workers, in numbers."""
    row = await engine.database.row(_Q["fleet"], now)
    return Fleet(row["alive"], row["lost"], row["lost_since"], row["slots"], running.with_workers)


async def depth(engine: Engine, now: datetime, running: UnderWay) -> list[Depth]:
    """How much waits and runs, by priority."""
    ready = {row["priority"]: row for row in await walk(engine, _Q["ready"], MAX_COUNTED)}
    parked = {row["priority"]: row for row in await walk(engine, _Q["parked"], MAX_COUNTED)}
    overdue = {row["priority"]: row["oldest"] for row in await walk(engine, _Q["overdue"], now)}
    every_parked = sum(row["n"] for row in parked.values()) < MAX_COUNTED
    found = []
    for priority in Priority:
        in_ready, in_parked = ready.get(priority), parked.get(priority)
        waiting = 0 if in_ready is None else in_ready["n"]
        since = [each["oldest"] for each in (in_ready, in_parked) if each is not None]
        since.append(overdue.get(priority))
        at_least = [
            name
            for name, is_bound in (
                ("ready", waiting >= MAX_COUNTED),
                ("parked", not every_parked),
                ("running", running.total >= MAX_COUNTED),
            )
            if is_bound
        ]
        found.append(
            Depth(
                priority,
                min(waiting, MAX_COUNTED),
                0 if in_parked is None else in_parked["n"],
                running.by_priority.get(priority, 0),
                min((each for each in since if each is not None), default=None),
                tuple(at_least),
            )
        )
    return found


async def list_workers(engine: Engine, state: str, page_size: int, token: str | None) -> Page:
    """Workers, the newest first: those that live, those that were lost within a day, or all."""
    before = NEWEST if token is None else read_token(token, Id)
    if engine.scope is not None:
        return Page([], None)
    now = await engine.clock.now()
    found: list[Worker] = []
    if state != "lost":
        rows = await walk(engine, _Q["workers"], before, page_size + 1, MAX_COUNTED)
        found += [_worker(row, now) for row in rows]
    if state != "alive":
        rows = await walk(
            engine, _Q["past_workers"], before, page_size + 1, state == "lost", now - _PAST
        )
        found += [_past_worker(row) for row in rows]
    found.sort(key=lambda worker: worker.session_id, reverse=True)
    part = found[:page_size]
    more = len(found) > page_size
    return Page(part, page_token(part[-1].session_id) if more else None)


async def get_worker(engine: Engine, session_id: int) -> tuple[Worker, list[Held]]:
    """A worker, and what it runs: the oldest MAX_HELD executions."""
    if engine.scope is None:
        now = await engine.clock.now()
        rows = await walk(engine, _Q["worker"], session_id, MAX_COUNTED)
        if rows:
            held = await walk(engine, _Q["held"], session_id, MAX_HELD)
            return _worker(rows[0], now), [_held(row) for row in held]
        row = await engine.database.row_or_none(_Q["past_worker"], session_id)
        if row is not None:
            return _past_worker(row), []
    raise NotFound("worker", session_text(session_id))


async def list_nodes(engine: Engine) -> list[dict[str, Any]]:
    """The processes of the cell, by name."""
    if engine.scope is not None:
        return []
    now = await engine.clock.now()
    return [
        {
            "node_id": str(row["id"]),
            "name": row["name"],
            "roles": sorted(row["roles"]),
            "leads": row["leads"],
            "alive": (now - row["seen_at"]).total_seconds() < ALIVE_SECONDS,
            "version": row["version"],
            "tzdata": row["tz_version"],
            "started_at": row["started_at"],
            "seen_at": row["seen_at"],
            "clock_drift_ms": row["drift_ms"],
            "connections": {"in_use": row["connections"], "size": row["max_connections"]},
        }
        for row in await engine.database.fetch(_Q["nodes"], now)
    ]


async def open_circuits(engine: Engine, now: datetime) -> Sequence[asyncpg.Record]:
    """Open circuits, as the processes last said; of the tenant of the scope, or all."""
    seen_since = now - timedelta(seconds=CIRCUITS_SECONDS)
    return await engine.database.fetch(_Q["circuits"], seen_since, engine.scope)


def _worker(row: asyncpg.Record, now: datetime) -> Worker:
    return Worker(
        session_id=row["id"],
        worker_id=row["worker"],
        state="alive" if row["expires_at"] > now else "expired",
        queues=None if row["all_queues"] else row["queue_names"],
        tasks=None if row["tasks"] is None else row["task_names"],
        slots=row["slots"],
        running=row["running"],
        quarantine=row["quarantine"],
        started_at=row["started_at"],
        renewed_at=row["renewed_at"],
        expires_at=row["expires_at"],
    )


def _past_worker(row: asyncpg.Record) -> Worker:
    return Worker(
        session_id=row["id"],
        worker_id=row["worker"],
        state="stopped" if row["returned"] is None else "lost",
        ended_at=row["ended_at"],
        returned=row["returned"],
    )


def _held(row: asyncpg.Record) -> Held:
    progress = row["progress"]
    return Held(
        row["id"],
        row["job"],
        row["job_name"],
        row["tenant_name"],
        row["claimed_at"],
        row["attempt"],
        row["timeout_seconds"],
        None if progress is None else msgspec.json.decode(progress),
    )
