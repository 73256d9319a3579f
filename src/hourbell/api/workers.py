"""HTTP workers: claim, heartbeat, complete. Implemented by `hourbell.dispatch.remote`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from litestar import Response
from msgspec.structs import replace

from hourbell.api.answers import JSON, answer
from hourbell.api.requests import AnyRequest, read_call
from hourbell.api.routes import EngineDep, PathParam, RemoteWorkersDep, Route
from hourbell.api.worker_calls import (
    ClaimDocument,
    WorkerCaller,
    parse_checkpoint,
    parse_claim,
    parse_close,
    parse_heartbeat,
    parse_outcome,
    parse_outcomes,
    parse_progress,
    parse_release,
)
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.documents.actions import render_action
from hourbell.engine.core import Engine
from hourbell.model.errors import FieldError, Forbidden, InvalidInput, StaleFence
from hourbell.model.executions import Claimed
from hourbell.model.ids import execution_text, job_text, parse_execution_id
from hourbell.model.instants import format_instant
from hourbell.model.jobs import NO_CHECKPOINT, SentSpec
from hourbell.security.access import WORK

EXECUTIONS = "/internal/v1/executions"
EXECUTION = EXECUTIONS + "/{execution_id}"
SESSIONS = "/internal/v1/sessions"


async def claim_executions(
    engine: EngineDep, remote: RemoteWorkersDep, request: AnyRequest
) -> Response[bytes]:
    _require_all_tenants(engine)
    wanted = parse_claim(await read_call(request))
    async with _watched(request) as gone:
        given = await remote.claim(wanted, gone)
    return answer(
        {
            "session_token": ClaimDocument.session_token.render(given.session),
            "lease_seconds": remote.lease_seconds,
            "executions": [_render(claimed, spec) for claimed, spec in given.executions],
        }
    )


async def heartbeat_executions(
    engine: EngineDep, remote: RemoteWorkersDep, request: AnyRequest
) -> Response[bytes]:
    _require_all_tenants(engine)
    beat = parse_heartbeat(await read_call(request))
    listed = beat.execution_ids
    running = [number for number in listed.values() if number is not None]
    if isinstance(beat.caller, str):
        result = await remote.heartbeat_of_worker(beat.caller, running)
    else:
        result = await remote.heartbeat(beat.caller, running, beat.claim_number)
    lost, cancelled = {*result.lost, None}, {*result.cancelled}
    return answer(
        {
            "held": [text for text, number in listed.items() if number not in lost | cancelled],
            "lost": [text for text, number in listed.items() if number in lost],
            "cancelled": [text for text, number in listed.items() if number in cancelled],
            "lease_seconds": remote.lease_seconds,
        }
    )


async def complete_execution(
    engine: EngineDep, remote: RemoteWorkersDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    _require_all_tenants(engine)
    number = parse_execution_id(execution_id)
    outcome = parse_outcome(await read_call(request), number)
    session, worker, fence = outcome.session, outcome.worker, outcome.fence
    ended = outcome.reported
    if session is not None:
        await _check_worker(remote, WorkerCaller(session, worker))
    if session is None or fence is None:
        # The claim that holds it now, unless it contradicts what was sent.
        claim = await remote.current_claim(number)
        if (
            claim is None
            or session not in (None, claim.session)
            or fence not in (None, claim.fence)
            or worker not in (None, claim.worker)
        ):
            raise StaleFence(execution_id, fence)
        session, ended = claim.session, replace(ended, fence=claim.fence)
    if await remote.end(session, [ended]):
        raise StaleFence(execution_id, ended.fence)
    return answer({"execution_id": execution_id})


async def complete_executions(
    engine: EngineDep, remote: RemoteWorkersDep, request: AnyRequest
) -> Response[bytes]:
    _require_all_tenants(engine)
    caller, ended = parse_outcomes(await read_call(request))
    await _check_worker(remote, caller)
    refused = await remote.end(caller.session, [*ended.values()])
    return answer({"refused": [execution_text(number) for number in ended if number in refused]})


async def report_progress(
    engine: EngineDep, remote: RemoteWorkersDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    _require_all_tenants(engine)
    number = parse_execution_id(execution_id)
    caller, fence, progress = parse_progress(await read_call(request))
    await _check_worker(remote, caller)
    text = msgspec.json.encode(progress).decode()
    if not await remote.note_progress(caller.session, number, fence, text):
        raise StaleFence(execution_id, fence)
    return answer({"execution_id": execution_id})


async def set_checkpoint(
    engine: EngineDep, remote: RemoteWorkersDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    _require_all_tenants(engine)
    number = parse_execution_id(execution_id)
    caller, fence, checkpoint = parse_checkpoint(await read_call(request))
    await _check_worker(remote, caller)
    text = msgspec.json.encode(checkpoint).decode()
    if not await remote.set_checkpoint(caller.session, number, fence, text):
        raise StaleFence(execution_id, fence)
    return answer({"execution_id": execution_id})


async def release_execution(
    engine: EngineDep, remote: RemoteWorkersDep, request: AnyRequest, execution_id: PathParam
) -> Response[bytes]:
    _require_all_tenants(engine)
    number = parse_execution_id(execution_id)
    caller, released = parse_release(await read_call(request), number)
    await _check_worker(remote, caller)
    if await remote.end(caller.session, [released]):
        raise StaleFence(execution_id, released.fence)
    return answer({"execution_id": execution_id})


async def close_session(
    engine: EngineDep, remote: RemoteWorkersDep, request: AnyRequest
) -> Response[bytes]:
    _require_all_tenants(engine)
    await remote.close(parse_close(await read_call(request)))
    return answer({"status": "closed"})


def _require_all_tenants(engine: Engine) -> None:
    if engine.scope is not None:
        raise Forbidden(
            "The API key belongs to a tenant, but workers serve queues with work of all "
            "tenants. Use a key with the role worker and no tenant."
        )


async def _check_worker(remote: RemoteWorkers, caller: WorkerCaller) -> None:
    """Raise InvalidInput if the session belongs to a worker other than the given one.

    An ended session passes; the call itself detects it.
    """
    worker = caller.worker
    if worker is not None and await remote.worker_of(caller.session) not in (worker, None):
        message = (
            "is not the worker_id of the claim that opened this session; send that one, or omit it"
        )
        raise InvalidInput([FieldError("worker_id", "conflict", message)])


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


def _render(claimed: Claimed, spec: SentSpec) -> dict[str, Any]:
    left, checkpoint = claimed.deadline_in_seconds, spec.checkpoint
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
        "checkpoint": None if checkpoint == NO_CHECKPOINT else checkpoint,
        "traceparent": spec.traceparent or spec.trace_link,
        "action": render_action(spec.action),
    }


_COMMON: dict[str, Any] = {
    "method": "POST",
    "access": WORK,
    "whole_cell": True,
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
            "third of `lease_seconds` while you hold executions. If a response was lost, repeat "
            "the claim with the same `claim_number` to get the same executions. Secret "
            "placeholders in actions are not filled in."
        ),
        body="Claim",
        answers={200: "Claimed"},
        error_codes=("session_lost",),
        **_COMMON,
    ),
    Route(
        path=EXECUTIONS + "/heartbeat",
        handler=heartbeat_executions,
        summary="Renew the lease and find out which executions to stop",
        description=(
            "Stop `lost` executions: their outcome would be rejected. Stop and release `cancelled` "
            "ones. Without a `session_token`, the sessions of `worker_id` that hold the listed executions "
            "are meant. Executions that you hold but do not list are released: with a `claim_number`, "
            "immediately if they came with that claim or an earlier one; without it, once their claim "
            "is one lease old."
        ),
        body="Heartbeat",
        answers={200: "HeartbeatResult"},
        error_codes=("session_lost", "conflict"),
        **_COMMON,
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
        **_COMMON,
    ),
    Route(
        path=EXECUTION + "/complete",
        handler=complete_execution,
        summary="Report the outcome of an execution",
        description=(
            "After FAILED, the job's retry policy decides what happens next. SNOOZED runs again "
            "after `snooze_seconds` and does not count as an attempt. Without a `session_token` or "
            "a `fence_token`, the claim that holds the execution now is ended, also another worker's. 409: the session no "
            "longer holds the execution, and nothing was changed. Repeating the call after a lost "
            "response returns the same response."
        ),
        body="Outcome",
        answers={200: "ExecutionRef"},
        error_codes=("stale_fence",),
        **_COMMON,
    ),
    Route(
        path=EXECUTION + "/progress",
        handler=report_progress,
        summary="Report the progress of an execution",
        description="Shown with the execution while it runs, and discarded afterwards.",
        body="Progress",
        answers={200: "ExecutionRef"},
        error_codes=("stale_fence",),
        **_COMMON,
    ),
    Route(
        path=EXECUTION + "/checkpoint",
        handler=set_checkpoint,
        summary="Store a checkpoint of an execution",
        description=(
            "Replaces the previous checkpoint. It is sent with every later claim of the execution, however "
            "this run ends, until the execution has ended. 409: the session no longer holds the "
            "execution, and nothing was stored."
        ),
        body="Checkpoint",
        answers={200: "ExecutionRef"},
        error_codes=("stale_fence",),
        **_COMMON,
    ),
    Route(
        path=EXECUTION + "/release",
        handler=release_execution,
        summary="Release an execution",
        description=(
            "Use this if it was not started, or was stopped because the worker is stopping (`interrupted`). Another "
            "worker can claim it, and no attempt is counted."
        ),
        body="Release",
        answers={200: "ExecutionRef"},
        error_codes=("stale_fence",),
        **_COMMON,
    ),
    Route(
        path=SESSIONS + "/close",
        handler=close_session,
        summary="Close a session",
        description="Executions that it still holds are released immediately.",
        body="Close",
        answers={200: "Closed"},
        **_COMMON,
    ),
)
