"""Failpoints: named places where a process can be made to fail.

    HOURBELL_FAILPOINTS="plan.after_commit=kill;settle.before_commit=pause:5;claim.answer=drop*1"

The behaviour after a crash between two particular lines can only be tested by crashing the shipped
code there. So the failpoints stay in the product; an inactive one costs a call and a dictionary
lookup.

A point is named after the verb it interrupts and the moment in it. The actions are:

    kill            the process ends as if by kill -9
    stop            the process stops as if by SIGSTOP, until it receives SIGCONT
    pause:SECONDS   the caller waits while other tasks continue (the sync form blocks its thread)
    error           FailpointError: the step failed
    drop            AnswerLost, a ConnectionResetError: the step took effect, its response was lost

`*N` after an action limits it to the first N hits of the point, `@N` to exactly the Nth.

Tests in the same process need no action: `barrier(name)` stops the first caller at a point and
signals the test that it has arrived.

The table of active points is the only global of Hourbell. Passing failpoints through every
signature down to the last commit would add a parameter that is unused in production. The
composition root writes the table once, before anything runs; tests also write it.
"""

import asyncio
import contextlib
import difflib
import os
import re
import signal
from collections.abc import Iterator
from typing import Literal, cast

import msgspec

from hourbell.model.errors import ConfigurationError

# All failpoints. `tests/test_tidy.py` compares this list with the calls in the source.
NAMES: tuple[str, ...] = (
    "admit.after_commit",
    "admit.before_commit",
    "announce.after_commit",
    "announce.before_commit",
    "cancel.after_commit",
    "cancel.before_commit",
    "checkpoint.after_commit",
    "checkpoint.before_commit",
    "claim.after_commit",
    "claim.before_commit",
    "complete.after_commit",
    "complete.before_commit",
    "configure.after_commit",
    "configure.before_commit",
    "create.after_commit",
    "create.before_commit",
    "declare.after_commit",
    "declare.before_commit",
    "delete.after_commit",
    "delete.before_commit",
    "end.after_commit",
    "end.before_commit",
    "expire.after_commit",
    "expire.before_commit",
    "heartbeat.after_commit",
    "heartbeat.before_commit",
    "join.after_commit",
    "join.before_commit",
    "monitor.after_commit",
    "monitor.before_commit",
    "notify.after_commit",
    "notify.before_commit",
    "operate.after_commit",
    "operate.before_commit",
    "pause.after_commit",
    "pause.before_commit",
    "plan.after_chunk",
    "plan.after_open",
    "plan.before_chunk",
    "plan.before_open",
    "purge.after_commit",
    "purge.before_commit",
    "reap.after_commit",
    "reap.before_commit",
    "renew.after_commit",
    "renew.before_commit",
    "replay.after_commit",
    "replay.before_commit",
    "resume.after_commit",
    "resume.before_commit",
    "run.after_commit",
    "run.before_commit",
    "settle.after_commit",
    "settle.before_commit",
    "update.after_commit",
    "update.before_commit",
    "watch.after_commit",
    "watch.before_commit",
)

MAX_PAUSE_SECONDS = 3600.0

Verb = Literal["kill", "stop", "pause", "error", "drop"]


class FailpointError(Exception):
    """The failure that a failpoint causes. No code catches it by name."""


class AnswerLost(ConnectionResetError):
    """Simulates a connection that was lost after the effect and before its response."""


class FailpointAction(msgspec.Struct, frozen=True):
    """What happens at a point, and at which of its hits."""

    verb: Verb
    pause_seconds: float = 0.0
    first_hits: int | None = None  # `*N`
    only_hit: int | None = None  # `@N`

    def applies_to(self, hit: int) -> bool:
        """Whether the action applies to this hit; the first is number 1."""
        if self.only_hit is not None:
            return hit == self.only_hit
        return self.first_hits is None or hit <= self.first_hits


class Barrier:
    """A point at which the first caller waits until the test releases it."""

    def __init__(self) -> None:
        self._reached = asyncio.Event()
        self._released = asyncio.Event()

    async def reached(self) -> None:
        """Wait until a caller has reached the point."""
        await self._reached.wait()

    def release(self) -> None:
        """Release the caller that waits there now or arrives later."""
        self._released.set()

    async def _wait_for_release(self) -> None:
        if not self._reached.is_set():
            self._reached.set()
            await self._released.wait()


class _Point:
    """An active point, with the count of its hits."""

    def __init__(self, does: FailpointAction | Barrier) -> None:
        self.does = does
        self._hits = 0

    def next_action(self) -> FailpointAction | None:
        self._hits += 1
        assert isinstance(self.does, FailpointAction)
        return self.does if self.does.applies_to(self._hits) else None


_points: dict[str, _Point] = {}


async def failpoint(name: str) -> None:
    """Fail here if the point is active. A pause does not block the event loop."""
    point = _points.get(name)
    if point is None:
        return
    if isinstance(point.does, Barrier):
        await point.does._wait_for_release()
        return
    action = point.next_action()
    if action is None:
        return
    if action.verb == "pause":
        await asyncio.sleep(action.pause_seconds)
    else:
        _fail(name, action.verb)


def _fail(name: str, verb: Verb) -> None:
    match verb:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "error":
            raise FailpointError(f"failpoint {name}")
        case "drop":
            raise AnswerLost(f"failpoint {name}: the answer is lost")


def configure(text: str, *, names: tuple[str, ...] = NAMES) -> None:
    """Activate the points in the text and no others; the empty text activates none."""
    actions = parse(text, names=names)
    _points.clear()
    _points.update({name: _Point(action) for name, action in actions.items()})


@contextlib.contextmanager
def barrier(name: str, *, names: tuple[str, ...] = NAMES) -> Iterator[Barrier]:
    """Stop the first caller at a point until `release` or the end of the block."""
    _refuse_unknown(name, names)
    before = _points.get(name)
    new = Barrier()
    _points[name] = _Point(new)
    try:
        yield new
    finally:
        new.release()
        if before is None:
            _points.pop(name, None)  # `configure` may have removed it meanwhile
        else:
            _points[name] = before


def parse(text: str, *, names: tuple[str, ...] = NAMES) -> dict[str, FailpointAction]:
    """Parse `name=action;name=action`; raises ConfigurationError at the first error."""
    actions: dict[str, FailpointAction] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        name, equals, what = entry.partition("=")
        if not equals:
            raise ConfigurationError(
                f"The failpoint {entry!r} has no action; write it as name=action."
            )
        _refuse_unknown(name, names)
        if name in actions:
            raise ConfigurationError(f"The failpoint {name!r} is set twice; remove one.")
        actions[name] = _parse_action(what)
    return actions


_ACTION = re.compile(
    r"(?:(?P<verb>kill|stop|error|drop)|pause:(?P<seconds>\d+(?:\.\d+)?))"
    r"(?:\*(?P<first>[1-9]\d{0,8})|@(?P<only>[1-9]\d{0,8}))?"
)


def _parse_action(text: str) -> FailpointAction:
    found = _ACTION.fullmatch(text)
    if found is None or float(found["seconds"] or 0) > MAX_PAUSE_SECONDS:
        raise ConfigurationError(
            f"The failpoint action {text!r} is invalid. It is one of kill, stop, error, drop, "
            f"pause:SECONDS (at most {MAX_PAUSE_SECONDS:g}), and may end in *N (the first N hits) "
            f"or @N (the Nth hit)."
        )
    return FailpointAction(
        verb=cast(Verb, found["verb"] or "pause"),
        pause_seconds=float(found["seconds"] or 0),
        first_hits=int(found["first"]) if found["first"] else None,
        only_hit=int(found["only"]) if found["only"] else None,
    )


def _refuse_unknown(name: str, names: tuple[str, ...]) -> None:
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {close[0]!r}?" if close else f"Failpoints: {', '.join(names)}."
        raise ConfigurationError(f"There is no failpoint {name!r}. {hint}")
