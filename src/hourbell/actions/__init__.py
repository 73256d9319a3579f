"""Actions: what an execution does. An action turns a run into an outcome and makes no other decisions.

threads.py    threads for task handlers, which hourbell.sdk runs
webhook.py    an HTTP request:
    requests.py, signing.py             the content of the request
    egress.py, names.py, trust.py       allowed targets, DNS, and TLS certificates
    answers.py                          the meaning of the response
    circuits.py                         circuit breakers for hosts and endpoints
    counts.py                           how targets responded, for the metrics
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from hourbell.model.executions import Claimed, Failed, Outcome
from hourbell.model.jobs import SentSpec

if TYPE_CHECKING:
    from hourbell.observe.spans import RunSpan


class WorkerCalls(Protocol):
    """What an action can ask of the worker that runs it."""

    async def set_checkpoint(self, claimed: Claimed, value: str) -> bool:
        """Store a checkpoint, as JSON; the next run of the execution has it in its spec.

        The checkpoint is durable when this returns True. False: the lease is lost, another worker may
        already be running the execution, and nothing was stored.
        """


class Run(msgspec.Struct, frozen=True, gc=False):
    """One attempt, as passed to an action."""

    claimed: Claimed
    spec: SentSpec
    timeout_seconds: float  # it is cancelled after this
    worker: WorkerCalls
    span: RunSpan | None = None  # of this attempt; None: the worker has no traces


class StillRunning(asyncio.CancelledError):
    """The action was cancelled, but its thread cannot be stopped and runs until `ended`."""

    def __init__(self, ended: asyncio.Future[Outcome]) -> None:
        self.ended = ended


def failed(error: BaseException) -> Failed:
    """The failure for an exception; its kind is the name of the exception class.

    The text begins with the class as a traceback does: with its module, unless it is built in.
    """
    kind, module = type(error).__name__, type(error).__module__
    shown = type(error).__qualname__
    if module not in ("builtins", "__main__"):
        shown = f"{module}.{shown}"
    try:
        return Failed(f"{shown}: {error}", kind)
    except Exception:
        return Failed(shown, kind)  # the exception's own __str__ failed


class ActionRunner(Protocol):
    """Runs the actions of one type: webhooks or tasks."""

    async def run(self, action: Any, run: Run) -> Outcome:
        """Perform `action`, which is the job's own specification.

        An exception is a failure, see `failed`. The call is cancelled at its timeout or when
        cancellation of the execution was requested.
        """


ActionRunners = Mapping[type, ActionRunner]  # by the type of the job's specification
