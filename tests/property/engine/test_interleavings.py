"""Interleavings of plan, join, pause, update, resume, delete and create, against what must come out of them."""

from datetime import datetime

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hourbell.model.executions import FATES, TRANSITIONS, ExecutionStatus
from hourbell.store.database import Database
from property.engine.conftest import Runs, slowly
from property.engine.interleaving import TIMES, Interleaving
from simulation.checker import check
from simulation.recorder import promise_of

# An example that fails is made smaller first, and that may take minutes.
pytestmark = pytest.mark.timeout(600)

Command = tuple[str, int, int]

# As often as they are written.
PLANNING = (
    *("advance", "advance", "advance", "advance"),
    *("plan", "plan", "work", "work", "join"),
    *("create", "update", "update", "update", "pause", "resume", "resume", "delete", "cancel"),
    *("release", "release", "open", "chunk", "chunk", "begin_chunk", "commit_chunk", "end"),
)
RUNNING = (
    *("admit", "admit", "claim", "claim", "settle", "settle", "settle", "settle_stale"),
    *("lose_worker", "expire", "advance", "plan", "create", "cancel", "update", "pause", "resume"),
)
numbers = st.integers(0, 11)


def commands(names: tuple[str, ...]) -> st.SearchStrategy[list[Command]]:
    """Two jobs, then anything."""
    first = st.tuples(st.just("create"), numbers, st.just(0))
    anything = st.tuples(st.sampled_from(names), numbers, numbers)
    rest = st.lists(anything, min_size=12, max_size=40)
    return st.builds(lambda a, b, more: [a, b, *more], first, first, rest)


_SECOND = ("advance", 0, 0)
_MINUTES = ("advance", 3, 0)
_TWO_JOBS = [("create", 0, 0), ("create", 0, 0)]


@settings(slowly, max_examples=110)
@given(commands(PLANNING))
# Found by it: a join that comes late, by minutes of which some are planned and still to come;
@example([*_TWO_JOBS, *[_SECOND] * 9, ("create", 1, 1), _MINUTES, ("plan", 0, 0)])
# what was planned by the old version while its change stood, and had not run when the new one joined;
@example([*_TWO_JOBS, *[_SECOND] * 9, ("update", 0, 2), ("plan", 0, 0), _MINUTES])
# one that had missed something meanwhile, within what the new one missed;
@example(
    [
        ("create", 0, 0),
        ("create", 3, 0),
        *[_SECOND] * 8,
        ("update", 9, 2),
        ("advance", 2, 0),
        _MINUTES,
        ("plan", 0, 0),
    ]
)
# a worker that has not renewed for long and is not gone: its queue is served;
@example([*_TWO_JOBS, *[_SECOND] * 9, ("work", 0, 0), _MINUTES, _MINUTES, _MINUTES])
# what was planned while a change stood, superseded by it, and followed by another change;
@example(
    [
        *_TWO_JOBS,
        *[_SECOND] * 9,
        ("plan", 0, 0),
        ("update", 0, 2),
        _MINUTES,
        ("plan", 0, 0),
        ("release", 0, 0),
        ("advance", 2, 0),
        ("work", 0, 0),
        _SECOND,
        ("update", 0, 0),
        _MINUTES,
    ]
)
# a chunk that had read its members before the change, and commits after it.
@example(
    [
        *_TWO_JOBS,
        *[_SECOND] * 6,
        ("update", 1, 0),
        ("open", 0, 0),
        ("chunk", 0, 0),
        ("begin_chunk", 0, 0),
        ("update", 0, 0),
        _MINUTES,
    ]
)
def test_every_occurrence_is_produced_once_whatever_comes_between(
    in_database: Runs, script: list[Command]
) -> None:
    async def work(database: Database) -> None:
        life = await Interleaving.begin(database)
        try:
            for command in script:
                await life.do(*command)
            history = await life.finish()
        finally:
            await life.close()
        violations = check(history, promise_of(TIMES))
        assert [violation.sentence for violation in violations] == []

    in_database(work)


@settings(slowly, max_examples=70)
@given(commands(RUNNING))
def test_every_change_of_status_is_an_allowed_one(in_database: Runs, script: list[Command]) -> None:
    async def work(database: Database) -> None:
        life = await Interleaving.begin(database)
        before: dict[int, tuple[ExecutionStatus, datetime]] = {}
        try:
            for command in script:
                await life.do(*command)
                after = await life.statuses()
                for number in before.keys() | after.keys():
                    was, is_now = before.get(number), after.get(number)
                    if was is None or is_now is None or was[0] is not is_now[0]:
                        assert _allowed(was, is_now, life.now), (number, command, was, is_now)
                before = after
        finally:
            await life.close()

    in_database(work)


def _allowed(
    was: tuple[ExecutionStatus, datetime] | None,
    is_now: tuple[ExecutionStatus, datetime] | None,
    now: datetime,
) -> bool:
    if is_now is None:
        # Taken back before its time: nobody has seen it happen.
        assert was is not None
        return was[0] is ExecutionStatus.SCHEDULED and was[1] > now
    return is_now[0] in TRANSITIONS[was[0] if was else None]


def test_no_fate_is_ever_left() -> None:
    assert all(not TRANSITIONS[fate] for fate in FATES)
