"""Dead letters by error: those that died of the same error, counted together.

Fingerprints are computed when they are read, and not stored (decision 0020). A call reads a bounded
number of the newest dead letters, and says how far back that was.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

import msgspec

from hourbell.documents.dead_letters import DeadLetterFilter
from hourbell.engine.core import Engine
from hourbell.engine.operations.dead_letters import DeadLetter, read_page
from hourbell.model.jobs import WEBHOOK_TASK
from hourbell.store.queries import queries

_Q = queries("dead_letters")

MAX_LOOKED_AT = 5_000
MAX_GROUPS = 100
_MAX_TENANTS = 10  # that are named in a group


class DeadLetterGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of the same error, among those that were read."""

    fingerprint: str
    count: int
    action: str | None  # the host or the task; None: it is no longer known
    first_died_at: datetime
    last_died_at: datetime
    newest: DeadLetter  # as a sample
    jobs: int
    tenants: list[str]  # the first few


class DeadLetterGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The groups with the most dead letters."""

    groups: list[DeadLetterGroup]
    looked_at: int
    looked_back_to: datetime | None  # None: there are none
    complete: bool  # all dead letters that match were read


async def list_groups(engine: Engine, wanted: DeadLetterFilter) -> DeadLetterGroups:
    """The newest dead letters that match, by error; the largest groups first."""
    page = await read_page(engine, wanted, MAX_LOOKED_AT, None)
    letters: list[DeadLetter] = page.items
    by_error: dict[str, list[DeadLetter]] = {}
    for letter in letters:
        by_error.setdefault(letter.fingerprint, []).append(letter)
    largest = sorted(by_error.values(), key=len, reverse=True)[:MAX_GROUPS]
    names = await _names(engine, {group[0].target for group in largest})
    return DeadLetterGroups(
        groups=[_group(group, names) for group in largest],
        looked_at=len(letters),
        looked_back_to=letters[-1].died_at if letters else None,
        complete=page.next_token is None,
    )


def _group(letters: list[DeadLetter], names: dict[int, str]) -> DeadLetterGroup:
    newest, oldest = letters[0], letters[-1]
    tenants = dict.fromkeys(letter.tenant_id for letter in letters)
    return DeadLetterGroup(
        fingerprint=newest.fingerprint,
        count=len(letters),
        action=None if newest.target is None else names.get(newest.target),
        first_died_at=oldest.died_at,
        last_died_at=newest.died_at,
        newest=newest,
        jobs=len({letter.job_id for letter in letters}),
        tenants=list(tenants)[:_MAX_TENANTS],
    )


async def _names(engine: Engine, targets: Iterable[int | None]) -> dict[int, str]:
    """The names of hosts and tasks by their numbers."""
    known = [target for target in targets if target is not None]
    rows = await engine.database.fetch(_Q["names_of_targets"], known)
    return {-1: WEBHOOK_TASK} | {row["id"]: row["name"] for row in rows}
