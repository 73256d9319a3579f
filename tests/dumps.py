"""Reads the database when a run is over, for the judge (`verify`), which knows nothing of the product's tables."""

from __future__ import annotations

import json
from datetime import datetime

import asyncpg
import msgspec

from hourbell.model.ids import execution_text, job_text
from verify.history import Alive, Attempt, Dump, Ended, JobRow, Seconds, Term, Written

_FATES = ("SUCCEEDED", "DEAD", "CANCELLED", "SUPERSEDED", "SKIPPED")
_JOBS = ("SCHEDULED", "PAUSED", "COMPLETED", "CANCELLED")
_PLACES = {
    "due": "(select id from hourbell.due union all select unnest(ids) from hourbell.due_slabs) as d",
    "parked": "hourbell.parked",
    "held": "hourbell.paused",
    "ready": "(select unnest(ids) as id from hourbell.ready) as r",
    "suspects": "hourbell.suspects",
    "leased": "hourbell.leases",
}


class Noted(msgspec.Struct, frozen=True):
    """What a test has noted beside the product's tables, if it has."""

    workers: dict[tuple[int, int], str] = {}  # by execution and fence, the process that claimed it
    claimed_at: dict[int, Seconds] = {}  # by execution, first
    terms: list[Term] = []
    written: list[Written] = []


async def read(connection: asyncpg.Connection, at: Seconds, noted: Noted) -> Dump:
    """All that the judge needs to see, in the transaction of the caller."""
    tenants = {
        row["id"]: row["name"] for row in await connection.fetch("select * from hourbell.tenants")
    }
    leases = {
        row["id"]: row["expires_at"].timestamp()
        for row in await connection.fetch(
            "select l.id, s.expires_at from hourbell.leases as l join hourbell.sessions as s on s.id = l.session"
        )
    }
    places: dict[int, str] = {}
    for place, table in _PLACES.items():
        for row in await connection.fetch(f"select id from {table}"):  # noqa: S608
            places[row["id"]] = place
    return Dump(
        at=at,
        jobs=[
            JobRow(
                job_id=job_text(row["id"]),
                name=row["name"],
                tenant=tenants[row["tenant"]],
                status=_JOBS[row["status"]],
                type="RECURRING",
            )
            for row in await connection.fetch("select * from hourbell.jobs order by id")
        ],
        ended=[
            _ended(row, tenants, noted)
            for row in await connection.fetch(
                "select * from hourbell.ledger order by recorded_at, id"
            )
        ],
        alive=[
            Alive(
                execution_id=execution_text(row["id"]),
                job_id=job_text(row["job"] or row["id"]),
                origin=row["origin"],
                scheduled_for=row["occurrence"].timestamp(),
                place=places.get(row["id"], "nowhere"),
                run_at=row["run_at"].timestamp(),
                planned_ahead=row["occurrence"].timestamp() > at,
                lease_until=leases.get(row["id"]),
                claimed_at=noted.claimed_at.get(row["id"]),
                attempts=_history(row, noted),
            )
            for row in await connection.fetch("select * from hourbell.live order by id")
        ],
        dead_letters=[
            execution_text(row["id"])
            for row in await connection.fetch("select id from hourbell.dead_letters order by id")
        ],
        terms=noted.terms,
        written=noted.written,
    )


def _history(row: asyncpg.Record, noted: Noted) -> list[Attempt]:
    """The attempts that were followed by another, or that will be."""
    return [
        Attempt(
            attempt=one["attempt"],
            fence=one["fence"],
            started_at=datetime.fromisoformat(one["started_at"]).timestamp(),
            finished_at=datetime.fromisoformat(one["finished_at"]).timestamp(),
            reason=one["reason"],
            worker=noted.workers.get((row["id"], one["fence"])),
        )
        for one in json.loads(row["history"] or "[]")
    ]


def _ended(row: asyncpg.Record, tenants: dict[int, str], noted: Noted) -> Ended:
    attempts = _history(row, noted)
    if row["session"] is not None:  # the session that the last attempt ended with
        attempts.append(
            Attempt(
                attempt=row["attempt"],
                fence=row["fence"],
                started_at=row["started_at"].timestamp(),
                finished_at=row["finished_at"].timestamp(),
                reason=row["reason"],
                session=row["session"],
                worker=noted.workers.get((row["id"], row["fence"])),
            )
        )
    return Ended(
        execution_id=execution_text(row["id"]),
        job_id=job_text(row["job"]),
        tenant=tenants[row["tenant"]],
        priority=row["priority"],
        origin=row["origin"],
        scheduled_for=row["scheduled_for"].timestamp(),
        status=_FATES[row["status"]],
        reason=row["reason"],
        recorded_at=row["recorded_at"].timestamp(),
        started_at=attempts[0].started_at if attempts else None,
        attempts=attempts,
        counted=row["attempt"],
        fence=row["fence"],
        missed=row["missed"],
        missed_through=_seconds(row["missed_through"]),
        claimed_at=noted.claimed_at.get(row["id"]),
    )


def _seconds(moment: datetime | None) -> Seconds | None:
    return None if moment is None else moment.timestamp()
