"""Dispatch through PostgreSQL: each call is one statement of `store/functions`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat

import asyncpg
import structlog
from msgspec.structs import replace

from hourbell.dispatch import Claim, HeartbeatResult, Session, Settlement, Subscription, Wait
from hourbell.engine.core import Engine
from hourbell.engine.life.admit import admit
from hourbell.engine.life.settle import settle
from hourbell.engine.operations.reconcile import reconcile
from hourbell.model.errors import SessionLost
from hourbell.model.executions import Claimed
from hourbell.model.manifests import Manifest
from hourbell.store.database import committing
from hourbell.store.queries import queries

_OPEN = "select * from hourbell.open_session($1, $2, $3, $4, $5, $6)"
_OPEN_DECLARING = queries("manifests")["open_session"]
_CLAIM = (
    "call hourbell.claim($1, $2, $3, $4, $5, $6, $7, $8, hourbell.clock(), $9,"
    " null, null, null, null, null, null, null, null, null, null, null)"
)
_HEARTBEAT = "select * from hourbell.heartbeat($1, $2, $3, $4, $5, $6)"
_RENEW = "select * from hourbell.renew_session($1, $2, $3, $4)"
_CLAIMED_BY = "select * from hourbell.claimed_by($1, $2, $3)"
_PROGRESS = "select hourbell.note_progress($1, $2, $3, $4, $5)"
_CHECKPOINT = "select hourbell.set_checkpoint($1, $2, $3, $4, $5)"
_WAIT_OF = "select * from hourbell.wait_of($1, $2, $3, $4, $5, $6, $7)"
_IS_COMPLETED = "select hourbell.is_completed($1, $2)"
_CRASHES = "select hourbell.crashes_in_a_row($1, $2)"
_WORKER_OF = "select worker from hourbell.sessions where id = $1 and token = $2"
_SESSIONS_OF = "select * from hourbell.sessions_of($1, $2)"
_CURRENT_CLAIM = "select * from hourbell.current_claim($1)"
_ALREADY_SETTLED = "select hourbell.already_settled($1, $2, $3, $4, $5)"
_CLOSE = "select hourbell.close_session($1, $2, $3)"
_DISCARD = "select hourbell.discard_session($1, $2, $3)"
_SLAB = 100  # executions that are leased under one fence
_MAX_CACHED_NAMES = 100_000
_MAX_DELIVERED = 10_000  # tenants

log = structlog.get_logger(component="worker")


class PostgresDispatch:
    """Implements `Dispatch`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tenants: dict[int, str] = {}
        self._delivered: Counter[int] = Counter()  # by tenant, not yet added to the metrics
        engine.metrics.before_render(self._count_deliveries)

    async def open(
        self,
        worker: str,
        queues: Sequence[str] | None,
        slots: int,
        tasks: Sequence[str] | None = None,
        manifest: Manifest | None = None,
    ) -> Session:
        engine = self._engine
        now = await engine.clock.now()
        args = (
            now,
            engine.times.lease,
            worker,
            None
            if queues is None
            else [await engine.declaring().queue(name, now) for name in queues],
            None if tasks is None else await engine.tasks(tasks, now),
            slots,
        )
        if manifest is None:
            row = await engine.database.row(_OPEN, *args)
            return Session(row["id"], row["token"])
        declared = (manifest.app, manifest.digest, manifest.revision, manifest.body)
        row = await engine.database.row(_OPEN_DECLARING, *args, *declared)
        try:
            await reconcile(engine, manifest.app)
        except Exception as error:  # the worker works, and the leader reconciles too
            log.error("schedules not reconciled", app=manifest.app, exc_info=error)
        return Session(row["id"], row["token"])

    async def admit(self, session: Session | None = None) -> bool:
        passed = await admit(self._engine)
        if passed.examined:  # workers of other processes may wait for it
            self._engine.announce_ready(None if session is None else session.id)
        return not passed.busy

    async def claim(
        self,
        session: Session,
        number: int,
        limit: int,
        repeated: bool = False,
        reserved: int = 0,
        lowest_first: bool = False,
        same_start: bool = False,
    ) -> list[Claimed]:
        clock, counts = self._engine.clock, self._engine.counts
        began = clock.monotonic()
        async with committing("claim.before_commit", "claim.after_commit"):
            row = await self._engine.database.row(
                _CLAIM,
                session.id,
                session.token,
                number,
                repeated,
                limit,
                reserved,
                lowest_first,
                same_start,
                self._engine.times.lease,
            )
        counts.count_ended(row["ended"])
        if not row["alive"]:
            raise SessionLost
        claimed = await self._claimed(row)
        if not claimed:
            return claimed
        counts.claimed.add(len(claimed), clock.monotonic() - began)
        self._delivered.update(row["tenants"])
        if len(self._delivered) > _MAX_DELIVERED:
            self._count_deliveries()
        if row["waits"] is None:
            return claimed
        return [
            replace(one, start_in_seconds=max(seconds, 0.0))
            for one, seconds in zip(claimed, row["waits"], strict=True)
        ]

    async def heartbeat(
        self, session: Session, running: Sequence[int], resolved: int | None
    ) -> HeartbeatResult:
        now = await self._engine.clock.now()
        async with committing("heartbeat.before_commit", "heartbeat.after_commit"):
            row = await self._engine.database.row(
                _HEARTBEAT,
                session.id,
                session.token,
                now,
                self._engine.times.lease,
                running,
                resolved,
            )
        if not row["alive"]:
            raise SessionLost
        return HeartbeatResult(row["lost"], row["cancelled"])

    async def renew(self, session: Session) -> Subscription:
        now = await self._engine.clock.now()
        row = await self._engine.database.row(
            _RENEW,
            session.id,
            session.token,
            now,
            self._engine.times.lease,
        )
        if not row["alive"]:
            raise SessionLost
        tasks = row["tasks"]
        return Subscription(tuple(row["queues"]), None if tasks is None else tuple(tasks))

    async def claimed_by(self, session: Session, execution_ids: Sequence[int]) -> list[Claimed]:
        row = await self._engine.database.row(_CLAIMED_BY, session.id, session.token, execution_ids)
        return await self._claimed(row)

    async def worker_of(self, session: Session) -> str | None:
        worker: str | None = await self._engine.database.value(
            _WORKER_OF, session.id, session.token
        )
        return worker

    async def sessions_of(
        self, worker: str, execution_ids: Sequence[int]
    ) -> list[tuple[Session, Sequence[int]]]:
        rows = await self._engine.database.fetch(_SESSIONS_OF, worker, execution_ids)
        return [(Session(row["session"], row["token"]), row["held"]) for row in rows]

    async def current_claim(self, execution_id: int) -> Claim | None:
        row = await self._engine.database.row_or_none(_CURRENT_CLAIM, execution_id)
        if row is None:
            return None
        return Claim(Session(row["session"], row["token"]), row["worker"], row["fence"])

    async def note_progress(
        self, session: Session, execution_id: int, fence: int, progress: str
    ) -> bool:
        noted: bool = await self._engine.database.value(
            _PROGRESS, session.id, session.token, execution_id, fence, progress
        )
        return noted

    async def set_checkpoint(
        self, session: Session, execution_id: int, fence: int, value: str
    ) -> bool:
        async with committing("checkpoint.before_commit", "checkpoint.after_commit"):
            stored: bool = await self._engine.database.value(
                _CHECKPOINT, session.id, session.token, execution_id, fence, value
            )
        return stored

    async def wait_of(
        self, session: Session, execution_id: int, fence: int, name: str, token: str, waits: bool
    ) -> Wait | None:
        row = await self._engine.database.row(
            _WAIT_OF, session.id, session.token, execution_id, fence, name, token, waits
        )
        return Wait(row["token"], row["outcome"], row["value"]) if row["held"] else None

    async def is_completed(self, execution_id: int, fence: int) -> bool:
        done: bool = await self._engine.database.value(_IS_COMPLETED, execution_id, fence)
        if done:  # settled by the handler, in a transaction of its own
            self._engine.counts.count_settled(1, (), ())
        return done

    async def crashes_left(
        self, execution_id: int, attempts_before: int, max_crashes: int | None
    ) -> int:
        before: int = await self._engine.database.value(_CRASHES, execution_id, attempts_before)
        return (max_crashes or self._engine.times.max_crashes) - before - 1

    async def settle(self, session: Session, batch: Sequence[Settlement]) -> Sequence[int]:
        return await settle(self._engine, session.id, session.token, batch)

    async def already_settled(self, session: Session, batch: Sequence[Settlement]) -> Sequence[int]:
        before: list[int] = await self._engine.database.value(
            _ALREADY_SETTLED,
            session.id,
            session.token,
            [s.execution_id for s in batch],
            [s.fence for s in batch],
            [s.kind for s in batch],
        )
        return before

    async def close(self, session: Session, handed_out: bool = True) -> None:
        now = await self._engine.clock.now()
        statement = _CLOSE if handed_out else _DISCARD
        await self._engine.database.value(statement, session.id, session.token, now)

    async def _claimed(self, row: asyncpg.Record) -> list[Claimed]:
        """Decode the arrays of claimed executions; a null array has the same value for all."""
        ids = row["ids"]
        if ids is None:
            return []
        names = await self._names(row["tenants"])
        rests: Iterable[float | None] = repeat(None)
        if (finish_by := row["finish_by"]) is not None:
            now = await self._engine.clock.now()
            rests = [None if by is None else (by - now).total_seconds() for by in finish_by]
        jobs, attempts = row["jobs"] or ids, row["attempts"] or repeat(1)
        fences = row["fences"]
        if len(fences) < len(ids):  # one for each hundred
            fences = [fence for fence in fences for _ in range(_SLAB)][: len(ids)]
        epochs = row["scheduled_for"]
        return list(map(Claimed, ids, jobs, names, attempts, fences, epochs, rests, row["specs"]))

    def _count_deliveries(self) -> None:
        """Add to the metrics what was delivered: seldom, because each tenant takes a while."""
        names = self._tenants
        self._engine.counts.deliveries.add({names[n]: c for n, c in self._delivered.items()})
        self._delivered.clear()

    async def _names(self, numbers: Sequence[int]) -> list[str]:
        known = self._tenants
        if not known.keys() >= (wanted := set(numbers)):
            rows = await self._engine.database.fetch(
                "select id, name from hourbell.tenants where id = any ($1)", list(wanted)
            )
            if len(known) > _MAX_CACHED_NAMES:
                self._count_deliveries()
                known.clear()
            known.update((row["id"], row["name"]) for row in rows)
        return [known[number] for number in numbers]
