"""Workers over HTTP: claim, heartbeat, complete (R43). `hourbell.dispatch.remote` implements it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
from litestar import Response

from hourbell.api.answers import JSON, answer
from hourbell.api.requests import AnyRequest, read_call
from hourbell.api.routes import InPath, Route, TheEngine, TheWorkers
from hourbell.dispatch import Session
from hourbell.dispatch.remote import ClaimRequest, RemoteWorkers, ReportedOutcome
from hourbell.documents.actions import render_action
from hourbell.documents.reader import LABEL, LABEL_IS, ObjectReader, Problems, read_object
from hourbell.engine.core import Engine
from hourbell.engine.life.outcomes import MOST_RESULT_BYTES
from hourbell.model.errors import FieldError, Forbidden, InvalidInput, StaleFence, UnknownId
from hourbell.model.executions import Claimed, Failed, Released, Succeeded
from hourbell.model.ids import MAX_ID, execution_text, job_text, parse_execution_id
from hourbell.model.instants import format_instant
from hourbell.model.jobs import JobSpec
from hourbell.model.policies import MAX_RETRY_DELAY_SECONDS
from hourbell.security.access import WORK

EXECUTIONS = "/internal/v1/executions"
EXECUTION = EXECUTIONS + "/{execution_id}"
SESSIONS = "/internal/v1/sessions"

MAX_WORKER_ID = 200
MAX_CAPACITY = 10_000
MAX_QUEUES = 50
MAX_TASKS = 100
MAX_WAIT_SECONDS = 30
MAX_CLAIM_NUMBER = 2**31 - 1
MAX_HELD = 20_000  # executions named in one heartbeat
MAX_OUTCOMES = 1_000  # in one call
MAX_DURATION_MS = 2**31 - 1
MAX_ERROR_KIND = 200
MAX_PROGRESS_BYTES = 4096
DEFAULT_ERROR_KIND = "failed"

# Never session 0: it owns AWAITING executions and belongs to no worker.
SESSION_TOKEN = r"ses_[1-9][0-9]{0,17}_[0-9a-f]{32}"
_SESSION_TOKEN = re.compile(SESSION_TOKEN)
TASK = r"@webhook|[A-Za-z0-9._:-]{1,200}"
_TASK = re.compile(TASK)
_TASK_IS = "the name of a task, or @webhook"
_ANY_TEXT = re.compile(r"(?s).*")
_STATUSES = {"SUCCEEDED": True, "FAILED": False}


async def claim_executions(
    engine: TheEngine, remote: TheWorkers, request: AnyRequest
) -> Response[bytes]:
    _require_all_tenants(engine)
    wanted = _read_claim_request(await read_call(request))
    async with _watched(request) as gone:
        given = await remote.claim(wanted, gone)
    return answer(
        {
            "session_token": None if given.session is None else _token(given.session),
            "lease_seconds": remote.lease_seconds,
            "executions": [_render(claimed, spec) for claimed, spec in given.executions],
        }
    )


async def heartbeat_executions(
    engine: TheEngine, remote: TheWorkers, request: AnyRequest
) -> Response[bytes]:
    _require_all_tenants(engine)
    problems = Problems()
    reader = read_object(await read_call(request), problems)
    reader.printable("worker_id", MAX_WORKER_ID)
    session = _read_session(reader, required=True)
    running = _read_ids(reader, problems)
    number = reader.whole("claim_number", 0, MAX_CLAIM_NUMBER, None)
    reader.finish()
    problems.raise_if_any()
    assert session is not None
    heard = await remote.heartbeat(session, running, number)
    stop = {*heard.lost, *heard.unwanted}
    return answer(
        {
            "held": [execution_text(each) for each in running if each not in stop],
            "lost": [*map(execution_text, heard.lost)],
            "cancelled": [*map(execution_text, heard.unwanted)],
            "lease_seconds": remote.lease_seconds,
        }
    )


async def complete_execution(
    engine: TheEngine, remote: TheWorkers, request: AnyRequest, execution_id: InPath
) -> Response[bytes]:
    _require_all_tenants(engine)
    number = parse_execution_id(execution_id)
    problems = Problems()
    reader = read_object(await read_call(request), problems)
    session, worker = _read_session(reader, required=True), _read_worker(reader)
    ended = _read_ended(reader, number)
    problems.raise_if_any()
    assert session is not None
    await _check_worker(remote, session, worker)
    if await remote.end(session, [ended]):
        raise StaleFence(execution_id, ended.fence)
    return answer({"execution_id": execution_id})


async def complete_executions(
    engine: TheEngine, remote: TheWorkers, request: AnyRequest
) -> Response[bytes]:
    _require_all_tenants(engine)
    problems = Problems()
    reader = read_object(await read_call(request), problems)
    session, worker = _read_session(reader, required=True), _read_worker(reader)
    ended: dict[int, ReportedOutcome] = {}
    if reader.require("outcomes"):
        for one in reader.inners("outcomes", MAX_OUTCOMES):
            number = _read_id(one)
            if number in ended:
                one.wrong("execution_id", "conflict", "appears twice")
            ended[number] = _read_ended(one, number)
    reader.finish()
    problems.raise_if_any()
    assert session is not None
    await _check_worker(remote, session, worker)
    refused = await remote.end(session, [*ended.values()])
    return answer({"refused": [execution_text(number) for number in ended if number in refused]})


async def report_progress(
    engine: TheEngine, remote: TheWorkers, request: AnyRequest, execution_id: InPath
) -> Response[bytes]:
    _require_all_tenants(engine)
    number = parse_execution_id(execution_id)
    problems = Problems()
    reader = read_object(await read_call(request), problems)
    session, worker = _read_session(reader, required=True), _read_worker(reader)
    fence = _read_fence(reader)
    reader.require("progress")
    progress = reader.json("progress", MAX_PROGRESS_BYTES)
    reader.finish()
    problems.raise_if_any()
    assert session is not None
    await _check_worker(remote, session, worker)
    text = msgspec.json.encode(progress).decode()
    if not await remote.note_progress(session, number, fence, text):
        raise StaleFence(execution_id, fence)
    return answer({"execution_id": execution_id})


async def release_execution(
    engine: TheEngine, remote: TheWorkers, request: AnyRequest, execution_id: InPath
) -> Response[bytes]:
    _require_all_tenants(engine)
    number = parse_execution_id(execution_id)
    problems = Problems()
    reader = read_object(await read_call(request), problems)
    session, worker = _read_session(reader, required=True), _read_worker(reader)
    fence = _read_fence(reader)
    reader.finish()
    problems.raise_if_any()
    assert session is not None
    await _check_worker(remote, session, worker)
    if await remote.end(session, [ReportedOutcome(number, fence, Released())]):
        raise StaleFence(execution_id, fence)
    return answer({"execution_id": execution_id})


async def close_session(
    engine: TheEngine, remote: TheWorkers, request: AnyRequest
) -> Response[bytes]:
    _require_all_tenants(engine)
    problems = Problems()
    reader = read_object(await read_call(request), problems)
    session = _read_session(reader, required=True)
    reader.finish()
    problems.raise_if_any()
    assert session is not None
    await remote.close(session)
    return answer({"status": "closed"})


# Reading.


def _require_all_tenants(engine: Engine) -> None:
    if engine.scope is not None:
        raise Forbidden(
            "The API key belongs to a tenant, but workers serve queues that hold the work of all "
            "tenants. Use a key with the role worker and without a tenant."
        )


def _read_claim_request(document: object) -> ClaimRequest:
    problems = Problems()
    reader = read_object(document, problems)
    reader.require("worker_id")
    worker = reader.printable("worker_id", MAX_WORKER_ID)
    reader.require("capacity")
    capacity = reader.whole("capacity", 1, MAX_CAPACITY, 0)
    queues = reader.texts("queues", LABEL, LABEL_IS, MAX_QUEUES)
    if reader.given("queues") and not queues and not problems.touch("queues"):
        reader.wrong("queues", "out_of_range", "must name at least one; omit it for the default")
    tasks = reader.texts("tasks", _TASK, _TASK_IS, MAX_TASKS)
    if reader.given("tasks") and not tasks and not problems.touch("tasks"):
        reader.wrong("tasks", "out_of_range", "must name at least one; omit it for all")
    wait_seconds = reader.whole("wait_seconds", 0, MAX_WAIT_SECONDS, 0)
    session = _read_session(reader, required=False)
    number = reader.whole("claim_number", 1, MAX_CLAIM_NUMBER, None)
    reader.finish()
    problems.raise_if_any()
    assert worker is not None
    return ClaimRequest(
        worker=worker,
        capacity=capacity,
        wait_seconds=wait_seconds,
        queues=queues or None,
        tasks=tasks or None,
        session=session,
        number=number,
    )


def _read_ended(reader: ObjectReader, number: int) -> ReportedOutcome:
    """The remaining fields of an outcome; the result is invalid if a problem was recorded."""
    fence = _read_fence(reader)
    reader.require("status", "is required: SUCCEEDED or FAILED")
    succeeded = reader.choice("status", _STATUSES, None)
    reader.require("duration_ms")
    took_ms = reader.whole("duration_ms", 0, MAX_DURATION_MS, 0)
    outcome: Succeeded | Failed
    if succeeded is False:
        reader.forbid("result", "is stored for a success only; use error")
        after = reader.whole("retry_after_seconds", 0, MAX_RETRY_DELAY_SECONDS, None)
        kind = reader.printable("error_kind", MAX_ERROR_KIND) or DEFAULT_ERROR_KIND
        outcome = Failed(reader.string("error") or "The worker gave no reason.", kind, after)
    else:
        for name in ("error", "error_kind", "retry_after_seconds"):
            reader.forbid(name, "is allowed only with the status FAILED")
        outcome = Succeeded(reader.json("result", MOST_RESULT_BYTES))
    reader.finish()
    return ReportedOutcome(number, fence, outcome, took_ms)


def _read_session(reader: ObjectReader, required: bool) -> Session | None:
    if required:
        reader.require("session_token", "is required: the one that the claim returned")
    text = reader.text("session_token", _SESSION_TOKEN, "one that a claim returned", None)
    if text is None:
        return None
    _, number, token = text.split("_")
    return Session(int(number), UUID(hex=token))


def _read_worker(reader: ObjectReader) -> str | None:
    return reader.printable("worker_id", MAX_WORKER_ID)


async def _check_worker(remote: RemoteWorkers, session: Session, worker: str | None) -> None:
    """Raise InvalidInput if the session belongs to another worker than the one given.

    An ended session passes; the call itself detects it.
    """
    if worker is not None and await remote.worker_of(session) not in (worker, None):
        message = (
            "is not the worker_id of the claim that opened this session; send that one or omit it"
        )
        raise InvalidInput([FieldError("worker_id", "conflict", message)])


def _read_fence(reader: ObjectReader) -> int:
    reader.require("fence_token", "is required: the one that came with the execution")
    return reader.whole("fence_token", 0, MAX_ID, 0)


def _read_id(reader: ObjectReader) -> int:
    """The execution that an object is about."""
    if reader.require("execution_id") and (text := reader.string("execution_id")) is not None:
        try:
            return parse_execution_id(text)
        except UnknownId:
            reader.wrong("execution_id", "bad_format", "is not the id of any execution")
    return 0


def _read_ids(reader: ObjectReader, problems: Problems) -> list[int]:
    reader.require("execution_ids", "is required; send an empty array if you hold none")
    ids = []
    texts = reader.texts("execution_ids", _ANY_TEXT, "the id of an execution", MAX_HELD)
    for index, text in enumerate(texts):
        try:
            ids.append(parse_execution_id(text))
        except UnknownId:
            path = f"execution_ids[{index}]"
            problems.add(path, "bad_format", "is not the id of any execution")
    return ids


@asynccontextmanager
async def _watched(request: AnyRequest) -> AsyncIterator[asyncio.Future[None]]:
    """A future that completes when the client disconnects."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    watching = asyncio.create_task(left())
    try:
        yield watching
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching


# Responses.


def _token(session: Session) -> str:
    return f"ses_{session.id}_{session.token.hex}"


def _render(claimed: Claimed, spec: JobSpec) -> dict[str, Any]:
    left = claimed.deadline_in_seconds
    return {
        "execution_id": execution_text(claimed.execution_id),
        "job_id": job_text(claimed.job_id),
        "tenant_id": claimed.tenant_id,
        "name": spec.name,
        "attempt": claimed.attempt,
        "fence_token": claimed.fence,
        "scheduled_for": format_instant(claimed.scheduled_for),
        "timeout_seconds": spec.timeout_seconds,
        "deadline_in_seconds": None if left is None else round(left, 3),
        "action": render_action(spec.action),
    }


_OF_ALL: dict[str, Any] = {
    "method": "POST",
    "access": WORK,
    "media_types": (JSON,),
    "keyed": False,
}

ROUTES = (
    Route(
        path=EXECUTIONS + "/claim",
        handler=claim_executions,
        summary="Claim executions to run",
        description=(
            "Waits up to `wait_seconds` for an execution. The first response with executions opens "
            "a session: send its `session_token` with all further calls, and a heartbeat every "
            "third of `lease_seconds` while you hold executions. If the response was lost, repeat "
            "the claim with the same `claim_number` to get the same executions. Secret "
            "placeholders in actions are not filled in."
        ),
        body="Claim",
        answers={200: "Claimed"},
        refusals=("session_lost",),
        **_OF_ALL,
    ),
    Route(
        path=EXECUTIONS + "/heartbeat",
        handler=heartbeat_executions,
        summary="Renew the lease and learn which executions to stop",
        description=(
            "Stop `lost` executions: their outcome would be rejected. Stop and release `cancelled` "
            "ones. Executions that you hold but do not list are released: with a `claim_number`, "
            "immediately if they came with that claim or an earlier one; without, once their claim "
            "is one lease old."
        ),
        body="Heartbeat",
        answers={200: "HeartbeatResult"},
        refusals=("session_lost",),
        **_OF_ALL,
    ),
    Route(
        path=EXECUTIONS + "/complete",
        handler=complete_executions,
        summary="Report the outcomes of many executions",
        description=(
            "Each outcome is handled as if reported alone; `refused` lists the executions that the "
            "session no longer holds."
        ),
        body="Outcomes",
        answers={200: "Completed"},
        **_OF_ALL,
    ),
    Route(
        path=EXECUTION + "/complete",
        handler=complete_execution,
        summary="Report the outcome of an execution",
        description=(
            "After FAILED, the retry policy of the job decides what follows. 409: the session no "
            "longer holds the execution, and nothing was changed. Repeating the call after a lost "
            "response returns the same response."
        ),
        body="Outcome",
        answers={200: "ExecutionRef"},
        refusals=("stale_fence",),
        **_OF_ALL,
    ),
    Route(
        path=EXECUTION + "/progress",
        handler=report_progress,
        summary="Report the progress of an execution",
        description="Shown with the execution while it runs, and discarded afterwards.",
        body="Progress",
        answers={200: "ExecutionRef"},
        refusals=("stale_fence",),
        **_OF_ALL,
    ),
    Route(
        path=EXECUTION + "/release",
        handler=release_execution,
        summary="Release an execution",
        description="It was not started; another worker can claim it, and no attempt is counted.",
        body="Release",
        answers={200: "ExecutionRef"},
        refusals=("stale_fence",),
        **_OF_ALL,
    ),
    Route(
        path=SESSIONS + "/close",
        handler=close_session,
        summary="Close a session",
        description="Executions that it still holds are released immediately.",
        body="Close",
        answers={200: "Closed"},
        **_OF_ALL,
    ),
)
