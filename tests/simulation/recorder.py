"""Writes the history of a run in virtual time down as it happens."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import dumps
from hourbell.engine.core import Times
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import Job
from hourbell.store.database import Database
from verify.history import Call, Checkpoint, History, Phase, Step
from verify.promise import Document, Promise

_ROUNDING_SECONDS = 0.000_001  # of times that were added; every clock here is the same one


def promise_of(times: Times) -> Promise:
    """What is promised where every moment is known exactly."""
    return Promise(
        lease_seconds=times.lease_seconds,
        leader_lease_seconds=times.leader_lease_seconds,
        horizon_seconds=times.horizon_seconds,
        misfire_grace_seconds=times.grace_seconds,
        crash_limit=2 + times.max_crashes,  # two in company, the others alone
        late_seconds=0.0,
        early_seconds=0.0,
        stuck_seconds=-_ROUNDING_SECONDS,
        clock_seconds=0.001,  # when a one-time job was created is in its id, in milliseconds
        edge_seconds=0.0,
        stamp_seconds=_ROUNDING_SECONDS,
        obey_seconds=0.0,
    )


class Recorder:
    """What users were told, and what workers and schedulers did."""

    def __init__(self, seed: int, begins_at: datetime) -> None:
        self._seed = seed
        self._begins_at = begins_at
        self._calls: list[Call] = []
        self._checkpoints: list[Checkpoint] = []
        self._names: dict[int, tuple[str, str]] = {}  # by job: its tenant and its name
        self.steps: list[Step] = []
        self.cancelled: set[int] = set()  # executions whose cancellation was acknowledged

    def create(self, job: Job, document: Document, asked_at: datetime, now: datetime) -> None:
        self._names[job.job_id] = (job.tenant_id, job.name)
        answer = {"created_at": job.created_at.isoformat()}
        if "delay_seconds" in document["schedule"]:
            answer |= {"schedule": {"at": job.schedule.at.isoformat()}}
        self._call("create", job.job_id, asked_at, now, document | {"name": job.name}, answer)

    def change(
        self,
        operation: str,
        job: Job,
        patch: Document | None,
        asked_at: datetime,
        now: datetime,
        told: datetime | None = None,
    ) -> None:
        """`told`: from when on it holds, if the job itself does not say that."""
        holds_from = (told or job.updated_at).isoformat()
        answer = {"updated_at": holds_from, "version": job.version}
        self._call(operation, job.job_id, asked_at, now, patch, answer)

    def request(
        self, operation: str, job: int, made: Iterable[int], asked_at: datetime, now: datetime
    ) -> None:
        """A run or a backfill."""
        answer = {"execution_ids": [execution_text(number) for number in made]}
        self._call(operation, job, asked_at, now, None, answer)

    def cancel(
        self, job: int, execution: int, ended: bool, asked_at: datetime, now: datetime
    ) -> None:
        self.cancelled.add(execution)
        answer = {"status": "CANCELLED" if ended else "RUNNING"}
        self._call("cancel", job, asked_at, now, None, answer, execution)

    def _call(
        self,
        operation: str,
        job: int,
        asked_at: datetime,
        now: datetime,
        document: Document | None,
        answer: dict[str, Any],
        execution: int | None = None,
    ) -> None:
        self._calls.append(
            Call(
                operation=operation,
                key=None,
                tenant=self._names[job][0],
                job_id=job_text(job),
                execution_id=None if execution is None else execution_text(execution),
                document=document,
                asked_at=asked_at.timestamp(),
                answered_at=now.timestamp(),
                status=200,
                answer=answer | {"job_id": job_text(job)},
            )
        )

    async def checkpoint(self, database: Database, now: datetime) -> None:
        """The ledger as it is now; it may only grow."""
        async with database.connection() as connection:
            dump = await dumps.read(connection, now.timestamp(), dumps.Noted())
        fates = {row.execution_id: (row.status, row.reason) for row in dump.ended}
        self._checkpoints.append(Checkpoint(now.timestamp(), fates))

    async def finish(self, database: Database, now: datetime) -> History:
        async with database.connection() as connection:
            dump = await dumps.read(connection, now.timestamp(), dumps.Noted())
        begun = self._begins_at.timestamp()
        return History(
            seed=self._seed,
            calls=self._calls,
            deliveries=[],  # the judge makes them of the claims
            dump=dump,
            phases=[Phase(at=begun, name="loaded"), Phase(at=begun, name="healed")],
            steps=self.steps,
            checkpoints=self._checkpoints,
        )
