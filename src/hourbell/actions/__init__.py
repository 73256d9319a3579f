"""Actions: what an execution does when it runs. An action turns a run into an outcome and decides nothing else.

task.py       a handler in this process
webhook.py    an HTTP request:
    requests.py, signing.py             what is sent
    egress.py, names.py, trust.py       where it may go, by which address, and whom to believe
    answers.py                          what the answer means
    circuits.py                         hosts and endpoints that keep failing
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from hourbell.model.executions import Claimed, Failed, Outcome
from hourbell.model.jobs import JobSpec


class Run(msgspec.Struct, frozen=True, gc=False):
    """One attempt, as an action sees it."""

    claimed: Claimed
    spec: JobSpec
    timeout_seconds: float  # it is cancelled after this


class StillRunning(asyncio.CancelledError):
    """The action was cancelled, but what it started cannot be stopped and goes on until `ended`."""

    def __init__(self, ended: asyncio.Future[Outcome]) -> None:
        self.ended = ended


def failed(error: BaseException) -> Failed:
    """An exception is a failure of the kind of its class's name."""
    kind = type(error).__name__
    try:
        return Failed(f"{kind}: {error}", kind)
    except Exception:
        return Failed(kind, kind)  # it cannot even be written


class Action(Protocol):
    """A way to run executions: webhook or task."""

    async def run(self, action: Any, run: Run) -> Outcome:
        """Do the work that `action`, the job's own specification, asks for.

        What it raises is a failure, see `failed`. It is cancelled when it is over its time or not wanted any more.
        """


Actions = Mapping[type, Action]  # by the type of the job's specification
