"""The documents of worker calls: claims, heartbeats, outcomes."""

from __future__ import annotations

import re
from uuid import UUID

import msgspec

from hourbell.dispatch import Session
from hourbell.dispatch.remote import ClaimRequest, ReportedOutcome
from hourbell.documents.fields import REQUIRED, Document, Field, Object
from hourbell.documents.kinds import (
    Array,
    Boolean,
    ExecutionId,
    Integer,
    Json,
    Kind,
    Label,
    Line,
    Schema,
    Short,
    String,
    Text,
    one_of,
)
from hourbell.documents.problems import Problems
from hourbell.model.errors import UnknownId
from hourbell.model.executions import (
    MAX_CHECKPOINT_BYTES,
    MAX_INTERRUPTIONS,
    MAX_PROGRESS_BYTES,
    MAX_RESULT_BYTES,
    MAX_SNOOZE_SECONDS,
    Failed,
    Interrupted,
    Released,
    Snoozed,
    Succeeded,
)
from hourbell.model.ids import MAX_ID, parse_execution_id
from hourbell.model.policies import MAX_RETRY_DELAY_SECONDS

MAX_WORKER_ID = 200
MAX_CAPACITY = 10_000
MAX_QUEUES = 50
MAX_TASKS = 100
MAX_WAIT_SECONDS = 30
MAX_CLAIM_NUMBER = 2**31 - 1
MAX_HEARTBEAT_EXECUTIONS = 20_000  # listed in one heartbeat
MAX_EXECUTION_ID = (
    40  # characters of a listed one, which may be unknown: all of them fit into a body
)
MAX_OUTCOMES = 1_000  # reported in one call
MAX_DURATION_MS = 2**31 - 1
MAX_ERROR_KIND = 200


class SessionToken(Kind[Session]):
    """A session as its worker knows it."""

    # Never session 0: it owns AWAITING executions and belongs to no worker.
    text = Text(re.compile(r"ses_[1-9][0-9]{0,17}_[0-9a-f]{32}"), "one that a claim returned")

    def read(self, value: object, path: str, problems: Problems) -> Session | None:
        text = self.text.read(value, path, problems)
        if text is None:
            return None
        _, number, token = text.split("_")
        return Session(int(number), UUID(hex=token))

    @property
    def schema(self) -> Schema:
        return self.text.schema

    def render(self, value: Session) -> object:
        return f"ses_{value.id}_{value.token.hex}"


class ClaimDocument(Document):
    worker_id = Field(
        Line(MAX_WORKER_ID), required=REQUIRED, description="A name chosen by the worker."
    )
    capacity = Field(
        Integer(1, MAX_CAPACITY),
        required=REQUIRED,
        description="Maximum number of executions to claim; fewer may be returned.",
    )
    queues = Field(
        Array(
            Label(),
            1,
            MAX_QUEUES,
            if_empty="must name at least one; omit it for the default",
        ),
        description="Queues of the session; `default` if omitted.",
    )
    tasks = Field(
        Array(
            Text(re.compile("@webhook|[A-Za-z0-9._:-]{1,200}"), "the name of a task, or @webhook"),
            1,
            MAX_TASKS,
            if_empty="must name at least one; omit it for all",
        ),
        description="Tasks that the session serves, `@webhook` for webhooks; all if omitted.",
    )
    wait_seconds = Field(Integer(0, MAX_WAIT_SECONDS), default=0)
    session_token = Field(SessionToken())
    claim_number = Field(
        Integer(1, MAX_CLAIM_NUMBER),
        description="Increases by one with each claim of a session; unchanged to repeat a claim.",
    )


class SessionDocument(Document):
    """A call in a session."""

    session_token = Field(SessionToken(), required="is required: the token that the claim returned")


class HeartbeatDocument(Document):
    session_token = Field(
        SessionToken(),
        description="Recommended. Without it, the sessions of `worker_id` that hold the listed "
        "executions are meant, or its only session.",
    )
    worker_id = Field(Line(MAX_WORKER_ID), description="Ignored if there is a `session_token`.")
    execution_ids = Field(
        Array(Short(MAX_EXECUTION_ID), 0, MAX_HEARTBEAT_EXECUTIONS),
        required="is required; send an empty array if you hold none",
        description="All executions that the worker currently holds. An unknown id is `lost`.",
    )
    claim_number = Field(
        Integer(0, MAX_CLAIM_NUMBER),
        description="The worker has received the responses to all claims up to this one.",
    )


class WorkerCall(SessionDocument):
    """A call in a session that may also name the worker."""

    worker_id = Field(
        Line(MAX_WORKER_ID),
        description="Optional; must be the worker_id of the claim that opened the session.",
    )


class FencedCall(WorkerCall):
    """A call about one execution."""

    fence_token = Field(
        Integer(0, MAX_ID),
        required="is required: the token that came with the execution",
        description="The fence token from the claim.",
    )


class ReleaseDocument(FencedCall):
    interrupted = Field(
        Boolean(),
        default=False,
        description="Whether it was started and then stopped because the worker is stopping. After"
        f" {MAX_INTERRUPTIONS} times in a row this counts as a failure.",
    )


class ProgressDocument(FencedCall):
    progress = Field(
        Json(MAX_PROGRESS_BYTES),
        required=REQUIRED,
        description=f"Any JSON value of up to {MAX_PROGRESS_BYTES} bytes.",
    )


class CheckpointDocument(FencedCall):
    checkpoint = Field(
        Json(MAX_CHECKPOINT_BYTES),
        required=REQUIRED,
        description=f"Any JSON value except null, of up to {MAX_CHECKPOINT_BYTES} bytes.",
    )


class EndedDocument(Document):
    """The outcome of an execution."""

    status = Field(
        one_of("SUCCEEDED", "FAILED", "SNOOZED"),
        required="is required: SUCCEEDED, FAILED or SNOOZED",
    )
    duration_ms = Field(
        Integer(0, MAX_DURATION_MS), required=REQUIRED, description="Duration of the attempt."
    )
    result = Field(
        Json(MAX_RESULT_BYTES),
        description=f"On success: any JSON value of up to {MAX_RESULT_BYTES} bytes.",
    )
    error = Field(String(), description="On failure: a human-readable message.")
    error_kind = Field(
        Line(MAX_ERROR_KIND),
        default="failed",
        description="On failure: the kind, matched against the job's `non_retryable`.",
    )
    retry_after_seconds = Field(
        Integer(0, MAX_RETRY_DELAY_SECONDS),
        description="On failure: the delay that the target asked for.",
    )
    snooze_seconds = Field(
        Integer(0, MAX_SNOOZE_SECONDS),
        description="With SNOOZED: how long to wait before the next run.",
    )


class OutcomeDocument(EndedDocument):
    """The outcome of the execution in the path."""

    session_token = Field(
        SessionToken(),
        description="Recommended. Without it, the claim that holds the execution now is meant.",
    )
    fence_token = Field(
        Integer(0, MAX_ID),
        description="Recommended. Without it, an outcome may end a later claim of the execution.",
    )
    worker_id = WorkerCall.worker_id


class _ListedOutcome(EndedDocument):
    fence_token = FencedCall.fence_token
    execution_id = Field(ExecutionId(), required=REQUIRED)


class OutcomesDocument(WorkerCall):
    outcomes = Field(Array(Object(_ListedOutcome), 1, MAX_OUTCOMES), required=REQUIRED)


class WorkerCaller(msgspec.Struct, frozen=True):
    """The session of a call."""

    session: Session
    worker: str | None  # the worker that the session should belong to, if given


def parse_claim(document: object) -> ClaimRequest:
    """The claim in a document; raises InvalidInput with every invalid field."""
    problems = Problems()
    claim = ClaimDocument.open(document, problems)
    worker, capacity = claim.worker_id, claim.capacity
    queues, tasks = claim.queues, claim.tasks
    wait_seconds, session, number = claim.wait_seconds, claim.session_token, claim.claim_number
    claim.finish()
    problems.raise_if_any()
    assert worker is not None
    assert capacity is not None
    return ClaimRequest(
        worker=worker,
        capacity=capacity,
        wait_seconds=wait_seconds,
        queues=queues,
        tasks=tasks,
        session=session,
        number=number,
    )


class Heartbeat(msgspec.Struct, frozen=True):
    """A heartbeat of a session, or of a worker that names none."""

    caller: Session | str
    execution_ids: dict[str, int | None]  # as they were sent; None: not the id of any execution
    claim_number: int | None


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of an execution, and what its worker says of the claim that it belongs to."""

    session: Session | None
    worker: str | None
    fence: int | None
    reported: ReportedOutcome  # under the fence, or 0


def parse_heartbeat(document: object) -> Heartbeat:
    """The caller, the executions that it holds, and the number of its latest claim."""
    call = HeartbeatDocument.open(document, Problems())
    worker, session = call.worker_id, call.session_token
    if session is None:
        if worker is None and not call.given("session_token"):
            call.wrong("session_token", "required", "is required, or else a worker_id")
        call.forbid("claim_number", "needs a session_token")
    listed, number = call.execution_ids, call.claim_number
    call.finish()
    call.problems.raise_if_any()
    caller = session if session is not None else worker
    assert caller is not None
    return Heartbeat(caller, {text: _known_id(text) for text in listed or ()}, number)


def _known_id(text: str) -> int | None:
    try:
        return parse_execution_id(text)
    except UnknownId:
        return None


def parse_outcome(document: object, execution_id: int) -> Outcome:
    """The outcome of an execution."""
    outcome = OutcomeDocument.open(document, Problems())
    session, worker, fence = outcome.session_token, outcome.worker_id, outcome.fence_token
    ended = _read_ended(outcome, execution_id, fence or 0)
    outcome.problems.raise_if_any()
    return Outcome(session, worker, fence, ended)


def parse_outcomes(document: object) -> tuple[WorkerCaller, dict[int, ReportedOutcome]]:
    """The outcomes of many executions, by their ids."""
    call = OutcomesDocument.open(document, Problems())
    session, worker = call.session_token, call.worker_id
    ended: dict[int, ReportedOutcome] = {}
    for one in call.outcomes or ():
        number = one.execution_id or 0
        if number in ended:
            one.wrong("execution_id", "conflict", "appears twice")
        ended[number] = _read_ended(one, number, one.fence_token or 0)
    call.finish()
    return _checked(call, session, worker), ended


def parse_progress(document: object) -> tuple[WorkerCaller, int, object]:
    """The fence of an execution, and its progress."""
    call = ProgressDocument.open(document, Problems())
    session, worker, fence = call.session_token, call.worker_id, call.fence_token
    progress = call.progress
    call.finish()
    return _checked(call, session, worker), fence or 0, progress


def parse_checkpoint(document: object) -> tuple[WorkerCaller, int, object]:
    """The fence of an execution, and its checkpoint."""
    call = CheckpointDocument.open(document, Problems())
    session, worker, fence = call.session_token, call.worker_id, call.fence_token
    checkpoint = call.checkpoint
    call.finish()
    return _checked(call, session, worker), fence or 0, checkpoint


def parse_release(document: object, execution_id: int) -> tuple[WorkerCaller, ReportedOutcome]:
    """The release of an execution that was not started or was interrupted."""
    call = ReleaseDocument.open(document, Problems())
    session, worker, fence = call.session_token, call.worker_id, call.fence_token
    outcome = Interrupted() if call.interrupted else Released()
    call.finish()
    return _checked(call, session, worker), ReportedOutcome(execution_id, fence or 0, outcome)


def parse_close(document: object) -> Session:
    """The session to close."""
    call = SessionDocument.open(document, Problems())
    session = call.session_token
    call.finish()
    return _checked(call, session, None).session


def _checked(document: Document, session: Session | None, worker: str | None) -> WorkerCaller:
    """The caller; raises InvalidInput with every invalid field of the document."""
    document.problems.raise_if_any()
    assert session is not None
    return WorkerCaller(session, worker)


def _read_ended(document: EndedDocument, execution_id: int, fence: int) -> ReportedOutcome:
    """The outcome in a document; invalid if a problem was recorded."""
    status, took_ms = document.status, document.duration_ms
    outcome: Succeeded | Failed | Snoozed
    if status in ("FAILED", "SNOOZED"):
        document.forbid("result", "is stored only for a success; use error")
    if status != "FAILED":
        for name in ("error", "error_kind", "retry_after_seconds"):
            document.forbid(name, "is allowed only with the status FAILED")
    if status == "SNOOZED":
        delay = document.snooze_seconds
        if delay is None:
            document.wrong("snooze_seconds", "required", "is required with the status SNOOZED")
        outcome = Snoozed(delay or 0)
    else:
        document.forbid("snooze_seconds", "is allowed only with the status SNOOZED")
        if status == "FAILED":
            after, kind = document.retry_after_seconds, document.error_kind
            outcome = Failed(document.error or "The worker gave no reason.", kind, after)
        else:
            outcome = Succeeded(document.result)
    document.finish()
    return ReportedOutcome(execution_id, fence, outcome, took_ms or 0)
