"""Actions: what an execution does when it runs. An action turns a run into an outcome and decides nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from hourbell.model.executions import Claimed, Outcome
from hourbell.model.jobs import JobSpec


class Run(msgspec.Struct, frozen=True, gc=False):
    """One attempt, as an action sees it."""

    claimed: Claimed
    spec: JobSpec
    timeout_seconds: float  # it is cancelled after this


class Action(Protocol):
    """A way to run executions: webhook or task."""

    async def run(self, action: Any, run: Run) -> Outcome:
        """Do the work that `action`, the job's own specification, asks for.

        An exception is a failure of the kind of its class's name.
        """


Actions = Mapping[type, Action]  # by the type of the job's specification
