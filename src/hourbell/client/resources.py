"""The resources of the API: each method returns a description of its call.

`list` returns one page; `each` iterates over all pages. A page may be short or empty and still
have a next page.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any, Protocol

import msgspec

from hourbell.client import values as v
from hourbell.client.calls import MERGE_PATCH, NDJSON, Call
from hourbell.client.errors import ClientError, FieldError
from hourbell.client.methods import Items, Method, Part, R


class BoundCall(Protocol):
    """A task of an app with its arguments and options, as returned by `task.bind(…)`."""

    def as_job(self) -> Mapping[str, Any]: ...


JobDefinition = v.NewJob | Mapping[str, Any] | BoundCall

MAX_BATCH_ITEMS = 10_000
MAX_MEMBERS_ADDED = 10_000
MAX_BATCH_BYTES = 15 * 1024 * 1024  # of the 16 MB that the API accepts

_API = "/api/v1"
_JOBS = f"{_API}/jobs"
_JOB = f"{_API}/jobs/{{job_id}}"
_EXECUTIONS = f"{_API}/executions"
_EXECUTION = f"{_API}/executions/{{execution_id}}"
_GROUPS = f"{_API}/groups"
_GROUP = f"{_API}/groups/{{group_id}}"
_LETTERS = f"{_API}/dead-letters"
_LETTER = f"{_API}/dead-letters/{{execution_id}}"

_OPERATIONS = f"{_API}/operations"
_OPERATION = f"{_API}/operations/{{operation_id}}"


class _RawResult(msgspec.Struct):
    """A batch result: one struct for both kinds, which have no tag."""

    job_id: str | None = None
    created_tenant: bool = False
    created_queue: bool = False
    code: str = ""
    detail: str = ""
    errors: Sequence[FieldError] = ()


class _RawResults(msgspec.Struct):
    results: Sequence[_RawResult]


def _encode(document: object) -> bytes:
    try:
        encoded = msgspec.json.encode(document)
    except UnicodeEncodeError:
        raise ClientError(
            "invalid_document", "A text in the document must not contain an unpaired surrogate."
        ) from None
    if b"null" in encoded:  # as which msgspec writes NaN and infinity
        try:
            json.dumps(msgspec.to_builtins(document, str_keys=True), allow_nan=False)
        except ValueError:
            raise ClientError(
                "invalid_document", "A number in the document must not be NaN or infinite."
            ) from None
    return encoded


def document_of(job: JobDefinition) -> Mapping[str, Any]:
    """The JSON document that creates a job."""
    if isinstance(job, Mapping):
        return job
    if hasattr(job, "as_job"):
        return job.as_job()
    if not isinstance(job, v.NewJob):
        raise ClientError(
            "invalid_job",
            f"A job must be a NewJob, a mapping or task.bind(…), not a {type(job).__name__}.",
        )
    document: dict[str, Any] = msgspec.to_builtins(job, builtin_types=(datetime,))
    return {"type": "RECURRING" if job.schedule.recurs else "ONE_TIME"} | document


class Jobs(Part[R]):
    """Jobs: create, read, change, run."""

    @Method
    def create(self, job: JobDefinition, *, idempotency_key: str | None = None) -> Call[v.Job]:
        """Create a job."""
        return Call(
            method="POST",
            path=_JOBS,
            answer=v.Job,
            body=_encode(document_of(job)),
            idempotency_key=idempotency_key,
        )

    @Method
    def create_many(
        self, jobs: Iterable[JobDefinition], *, idempotency_key: str | None = None
    ) -> Generator[Call[_RawResults], _RawResults, Sequence[v.CreatedJob | v.RefusedJob]]:
        """Create any number of jobs, up to 10,000 per request.

        The results are in the order of the jobs. A rejected job does not affect the others.
        """
        results: list[v.CreatedJob | v.RefusedJob] = []
        for number, body in enumerate(_batches(jobs)):
            answer = yield Call(
                method="POST",
                path=f"{_JOBS}/batch",
                answer=_RawResults,
                body=body,
                media_type=NDJSON,
                idempotency_key=idempotency_key and f"{idempotency_key}-{number}",
            )
            results += [
                v.CreatedJob(result.job_id, result.created_tenant, result.created_queue)
                if result.job_id is not None
                else v.RefusedJob(result.code, result.detail, result.errors)
                for result in answer.results
            ]
        return results

    @Method
    def put(self, name: str, job: JobDefinition, *, version: int | None = None) -> Call[v.Job]:
        """Create a job under this name, or replace the definition of the one put under it before.

        With `version`, only if that job still has that version; 0: only if there is none.
        """
        return Call(
            method="PUT",
            path=f"{_JOBS}/by-name/{{name}}",
            answer=v.Job,
            parameters={"name": name},
            body=_encode(document_of(job)),
            version=version,
        )

    @Method
    def get(self, job_id: str, *, last_outcomes: int | None = None) -> Call[v.Job]:
        """Read a job; with `last_outcomes`, also that many of its latest executions."""
        return Call(
            method="GET",
            path=_JOB,
            answer=v.Job,
            parameters={"job_id": job_id},
            query={"last_outcomes": last_outcomes},
        )

    @Method
    def list(
        self,
        *,
        tenant_id: str | None = None,
        status: str | Sequence[str] | None = None,
        late: bool | None = None,
        total: bool | None = None,
        queue: str | None = None,
        type: str | None = None,
        name_prefix: str | None = None,
        q: str | None = None,
        label: str | None = None,
        last_outcomes: int | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Page[v.Job]]:
        """One page of jobs, newest first. A label is `name:value`."""
        query = {
            "tenant_id": tenant_id,
            "status": status,
            "late": None if late is None else str(late).lower(),
            "total": None if total is None else str(total).lower(),
            "queue": queue,
            "type": type,
            "name_prefix": name_prefix,
            "q": q,
            "label": label,
            "last_outcomes": last_outcomes,
            "page_size": page_size,
            "page_token": page_token,
        }
        return Call(method="GET", path=_JOBS, answer=v.Page[v.Job], query=query)

    each = Items(list)

    @Method
    def update(
        self, job_id: str, patch: Mapping[str, Any], *, version: int | None = None
    ) -> Call[v.Job]:
        """Change the given fields of a job; None resets a field to its default.

        With `version`, only if the job still has that version.
        """
        return Call(
            method="PATCH",
            path=_JOB,
            answer=v.Job,
            parameters={"job_id": job_id},
            body=_encode(patch),
            media_type=MERGE_PATCH,
            version=version,
        )

    @Method
    def delete(
        self, job_id: str, *, cancel_running: bool = False, version: int | None = None
    ) -> Call[v.Job]:
        """Delete a job. Running executions finish, or are cancelled."""
        return Call(
            method="DELETE",
            path=_JOB,
            answer=v.Job,
            parameters={"job_id": job_id},
            query={"running": "cancel" if cancel_running else None},
            version=version,
        )

    @Method
    def get_by_name(self, name: str, *, tenant_id: str | None = None) -> Call[v.Job]:
        """The job that was put under this name and has not ended."""
        return _found("GET", "by-name/{name}", {"name": name}, {"tenant_id": tenant_id})

    @Method
    def delete_by_name(
        self, name: str, *, tenant_id: str | None = None, cancel_running: bool = False
    ) -> Call[v.Job]:
        """Delete the job that was put under this name."""
        query = {"tenant_id": tenant_id, "running": "cancel" if cancel_running else None}
        return _found("DELETE", "by-name/{name}", {"name": name}, query)

    @Method
    def get_by_unique_key(self, unique_key: str, *, tenant_id: str | None = None) -> Call[v.Job]:
        """The job that has this unique key and has not ended."""
        query = {"unique_key": unique_key, "tenant_id": tenant_id}
        return _found("GET", "by-unique-key", {}, query)

    @Method
    def delete_by_unique_key(
        self, unique_key: str, *, tenant_id: str | None = None, cancel_running: bool = False
    ) -> Call[v.Job]:
        """Delete the job that has this unique key."""
        running = "cancel" if cancel_running else None
        query = {"unique_key": unique_key, "tenant_id": tenant_id, "running": running}
        return _found("DELETE", "by-unique-key", {}, query)

    @Method
    def pause(
        self,
        job_id: str,
        *,
        reason: str | None = None,
        until: datetime | None = None,
        version: int | None = None,
    ) -> Call[v.Job]:
        """Pause a job: no further runs start until it is resumed, at `until` or by a request."""
        document = {"reason": reason, "until": until}
        return _on_job("pause", job_id, version, document if reason or until else None)

    @Method
    def pause_many(
        self,
        *,
        tenant_id: str | None = None,
        queue: str | None = None,
        label: str | None = None,
        reason: str | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.BulkPaused]:
        """Pause the jobs of a tenant, queue or label, or all jobs; continue with the returned token."""
        document = {
            "tenant_id": tenant_id,
            "queue": queue,
            "label": label,
            "reason": reason,
            "until": until,
            "limit": limit,
            "page_token": page_token,
        }
        return Call(
            method="POST", path=f"{_JOBS}/pause", answer=v.BulkPaused, body=_given(document)
        )

    @Method
    def resume_many(
        self,
        *,
        tenant_id: str | None = None,
        queue: str | None = None,
        label: str | None = None,
        reason: str | None = None,
        limit: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.BulkResumed]:
        """Resume paused jobs, all or those paused with a reason; continue with the returned token."""
        document = {
            "tenant_id": tenant_id,
            "queue": queue,
            "label": label,
            "reason": reason,
            "limit": limit,
            "page_token": page_token,
        }
        return Call(
            method="POST", path=f"{_JOBS}/resume", answer=v.BulkResumed, body=_given(document)
        )

    @Method
    def resume(self, job_id: str, *, version: int | None = None) -> Call[v.Job]:
        """Resume a paused job. Runs missed during the pause are not made up."""
        return _on_job("resume", job_id, version)

    @Method
    def run(
        self,
        job_id: str,
        *,
        body: Any = None,
        payload: Any = None,
        idempotency_key: str | None = None,
    ) -> Call[v.Requested]:
        """Run a job now; `body` (webhook) or `payload` (task) applies to this run only."""
        override = {"body": body, "payload": payload}
        given = {name: value for name, value in override.items() if value is not None}
        return Call(
            method="POST",
            path=f"{_JOB}/run",
            answer=v.Requested,
            parameters={"job_id": job_id},
            body=_encode(given) if given else None,
            idempotency_key=idempotency_key,
        )

    @Method
    def backfill(self, job_id: str, *, after: datetime, through: datetime) -> Call[v.Requested]:
        """Run the occurrences later than `after` and up to and including `through`."""
        return Call(
            method="POST",
            path=f"{_JOB}/backfill",
            answer=v.Requested,
            parameters={"job_id": job_id},
            body=_encode({"after": after, "through": through}),
        )

    @Method
    def explain(self, job_id: str) -> Call[v.Explanation]:
        """The one thing that a job is waiting for."""
        return Call(
            method="GET",
            path=f"{_JOB}/explain",
            answer=v.Explanation,
            parameters={"job_id": job_id},
        )

    @Method
    def next_runs(self, job_id: str, *, count: int | None = None) -> Call[v.NextRuns]:
        """The next runs of a job, as currently known."""
        return Call(
            method="GET",
            path=f"{_JOB}/next-runs",
            answer=v.NextRuns,
            parameters={"job_id": job_id},
            query={"count": count},
        )

    @Method
    def executions(
        self,
        job_id: str,
        *,
        status: str | Sequence[str] | None = None,
        reason: str | None = None,
        queue: str | None = None,
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        expand_missed: bool = False,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Page[v.Execution]]:
        """One page of a job's executions, latest first."""
        query = {
            "status": status,
            "reason": reason,
            "queue": queue,
            "from": created_from,
            "to": created_to,
            "expand": "missed" if expand_missed else None,
            "page_size": page_size,
            "page_token": page_token,
        }
        return Call(
            method="GET",
            path=f"{_JOB}/executions",
            answer=v.Page[v.Execution],
            parameters={"job_id": job_id},
            query=query,
        )

    each_execution = Items(executions)

    @Method
    def audit(
        self, job_id: str, *, page_size: int | None = None, page_token: str | None = None
    ) -> Call[v.Page[v.AuditEntry]]:
        """One page of the changes of a job and their actors, latest first."""
        return Call(
            method="GET",
            path=f"{_JOB}/audit",
            answer=v.Page[v.AuditEntry],
            parameters={"job_id": job_id},
            query={"page_size": page_size, "page_token": page_token},
        )

    each_audit = Items(audit)


def _on_job(
    verb: str, job_id: str, version: int | None, document: Mapping[str, object] | None = None
) -> Call[v.Job]:
    return Call(
        method="POST",
        path=f"{_JOB}/{verb}",
        answer=v.Job,
        parameters={"job_id": job_id},
        body=None if document is None else _given(document),
        version=version,
    )


def _found(
    method: str, path: str, parameters: Mapping[str, str], query: Mapping[str, Any]
) -> Call[v.Job]:
    """A call for the job with a name or a unique key."""
    return Call(
        method=method, path=f"{_JOBS}/{path}", answer=v.Job, parameters=parameters, query=query
    )


def _batches(jobs: Iterable[JobDefinition]) -> Iterable[bytes]:
    """Request bodies with one job per line, each within the limits of the API."""
    lines: list[bytes] = []
    size = 0
    for job in jobs:
        line = _encode(document_of(job))
        if lines and (len(lines) == MAX_BATCH_ITEMS or size + len(line) + 1 > MAX_BATCH_BYTES):
            yield b"\n".join(lines)
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield b"\n".join(lines)


class Executions(Part[R]):
    """Executions: search, read, explain, cancel, retry."""

    @Method
    def list(
        self,
        *,
        tenant_id: str | None = None,
        job_id: str | None = None,
        status: str | Sequence[str] | None = None,
        reason: str | None = None,
        queue: str | None = None,
        label: str | None = None,
        order: str | None = None,
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Page[v.Execution]]:
        """One page of executions of all jobs, latest created first; order="duration": the longest."""
        query = {
            "tenant_id": tenant_id,
            "job_id": job_id,
            "status": status,
            "reason": reason,
            "queue": queue,
            "label": label,
            "order": order,
            "from": created_from,
            "to": created_to,
            "page_size": page_size,
            "page_token": page_token,
        }
        return Call(method="GET", path=_EXECUTIONS, answer=v.Page[v.Execution], query=query)

    each = Items(list)

    @Method
    def get(self, execution_id: str) -> Call[v.Execution]:
        """Read an execution with all its attempts."""
        return _of_execution("GET", _EXECUTION, execution_id, v.Execution)

    @Method
    def explain(self, execution_id: str) -> Call[v.Explanation]:
        """The one thing that an execution is waiting for."""
        return _of_execution("GET", f"{_EXECUTION}/explain", execution_id, v.Explanation)

    @Method
    def cancel(self, execution_id: str) -> Call[v.Execution]:
        """Cancel an execution. If it is running, its worker is asked to stop it."""
        return _of_execution("POST", f"{_EXECUTION}/cancel", execution_id, v.Execution)

    @Method
    def retry(self, execution_id: str) -> Call[v.Execution]:
        """Retry a RETRYING execution now, or replay a DEAD one."""
        return _of_execution("POST", f"{_EXECUTION}/retry", execution_id, v.Execution)


def _of_execution(method: str, path: str, execution_id: str, answer: type[v.T]) -> Call[v.T]:
    return Call(method=method, path=path, answer=answer, parameters={"execution_id": execution_id})


class DeadLetters(Part[R]):
    """Dead letters: list, read, replay, purge."""

    @Method
    def list(
        self,
        *,
        tenant_id: str | None = None,
        job_id: str | None = None,
        reason: str | None = None,
        died_from: datetime | None = None,
        died_to: datetime | None = None,
        fingerprint: str | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Page[v.DeadLetter]]:
        """One page of dead letters, latest first."""
        query = _selection(tenant_id, job_id, reason, died_from, died_to, fingerprint)
        query |= {"page_size": page_size, "page_token": page_token}
        return Call(method="GET", path=_LETTERS, answer=v.Page[v.DeadLetter], query=query)

    each = Items(list)

    @Method
    def groups(
        self,
        *,
        tenant_id: str | None = None,
        job_id: str | None = None,
        reason: str | None = None,
        died_from: datetime | None = None,
        died_to: datetime | None = None,
        fingerprint: str | None = None,
    ) -> Call[v.DeadLetterGroups]:
        """The newest dead letters grouped by error, most frequent first."""
        query = _selection(tenant_id, job_id, reason, died_from, died_to, fingerprint)
        path = f"{_LETTERS}/groups"
        return Call(method="GET", path=path, answer=v.DeadLetterGroups, query=query)

    @Method
    def get(self, execution_id: str) -> Call[v.DeadLetter]:
        """Read a dead letter with all its attempts and the job as it was then."""
        return _of_execution("GET", _LETTER, execution_id, v.DeadLetter)

    @Method
    def replay(self, execution_id: str) -> Call[v.Execution]:
        """Make the execution due again, under the same id."""
        return _of_execution("POST", f"{_LETTER}/replay", execution_id, v.Execution)

    @Method
    def purge(self, execution_id: str) -> Call[v.Purged]:
        """Remove a dead letter."""
        return _of_execution("DELETE", _LETTER, execution_id, v.Purged)

    @Method
    def replay_many(
        self,
        *,
        tenant_id: str | None = None,
        job_id: str | None = None,
        reason: str | None = None,
        died_from: datetime | None = None,
        died_to: datetime | None = None,
        fingerprint: str | None = None,
        limit: int | None = None,
        rate_per_second: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Replayed]:
        """Replay up to `limit` matching dead letters; continue with `next_page_token`."""
        wanted = _selection(tenant_id, job_id, reason, died_from, died_to, fingerprint)
        wanted |= {"limit": limit, "rate_per_second": rate_per_second, "page_token": page_token}
        return Call(
            method="POST", path=f"{_LETTERS}/replay", answer=v.Replayed, body=_given(wanted)
        )

    @Method
    def purge_many(
        self,
        *,
        tenant_id: str | None = None,
        job_id: str | None = None,
        reason: str | None = None,
        died_from: datetime | None = None,
        died_to: datetime | None = None,
        fingerprint: str | None = None,
        limit: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Purged]:
        """Remove up to `limit` matching dead letters; continue with `next_page_token`."""
        wanted = _selection(tenant_id, job_id, reason, died_from, died_to, fingerprint)
        wanted |= {"limit": limit, "page_token": page_token}
        return Call(method="POST", path=f"{_LETTERS}/purge", answer=v.Purged, body=_given(wanted))


def _selection(
    tenant_id: str | None,
    job_id: str | None,
    reason: str | None,
    died_from: datetime | None,
    died_to: datetime | None,
    fingerprint: str | None,
) -> dict[str, object]:
    return {
        "tenant_id": tenant_id,
        "job_id": job_id,
        "reason": reason,
        "from": died_from,
        "to": died_to,
        "fingerprint": fingerprint,
    }


def _given(document: Mapping[str, object]) -> bytes:
    return _encode({name: value for name, value in document.items() if value is not None})


class Operations(Part[R]):
    """Bulk operations: preview, start, read, stop."""

    @Method
    def preview(self, act: str, filter: Mapping[str, Any]) -> Call[v.OperationPreview]:
        """Count what an operation would apply to."""
        body = _encode({"act": act, "filter": filter})
        path = f"{_OPERATIONS}/preview"
        return Call(method="POST", path=path, answer=v.OperationPreview, body=body)

    @Method
    def create(
        self,
        act: str,
        filter: Mapping[str, Any],
        *,
        reason: str | None = None,
        until: datetime | None = None,
        rate_per_second: int | None = None,
    ) -> Call[v.Operation]:
        """Pause, resume, replay or purge everything that matches the filter."""
        document = {
            "act": act,
            "filter": filter,
            "reason": reason,
            "until": until,
            "rate_per_second": rate_per_second,
        }
        return Call(method="POST", path=_OPERATIONS, answer=v.Operation, body=_given(document))

    @Method
    def list(
        self,
        *,
        tenant_id: str | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Page[v.Operation]]:
        """One page of operations, newest first."""
        query = {"tenant_id": tenant_id, "page_size": page_size, "page_token": page_token}
        return Call(method="GET", path=_OPERATIONS, answer=v.Page[v.Operation], query=query)

    each = Items(list)

    @Method
    def get(self, operation_id: str) -> Call[v.Operation]:
        """Read an operation and its progress."""
        return _named("GET", _OPERATION, {"operation_id": operation_id}, v.Operation)

    @Method
    def stop(self, operation_id: str) -> Call[v.Operation]:
        """Stop an operation; what it has done so far is not undone."""
        return _named("POST", f"{_OPERATION}/stop", {"operation_id": operation_id}, v.Operation)


class Tenants(Part[R]):
    """Tenants: settings and counts."""

    @Method
    def list(
        self,
        *,
        order: str | None = None,
        counts: bool | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Page[v.Tenant]]:
        """One page of tenants by name, or (`order="share"`) those with the most starts."""
        query = {
            "order": order,
            "counts": None if counts is None else str(counts).lower(),
            "page_size": page_size,
            "page_token": page_token,
        }
        return Call(method="GET", path=f"{_API}/tenants", answer=v.Page[v.Tenant], query=query)

    each = Items(list)

    @Method
    def get(self, name: str) -> Call[v.Tenant]:
        """Read the settings and current counts of a tenant."""
        return _named("GET", f"{_API}/tenants/{{name}}", {"name": name}, v.Tenant)

    @Method
    def set(
        self,
        name: str,
        settings: v.TenantSettings | Mapping[str, Any],
        *,
        version: int | None = None,
    ) -> Call[v.Tenant]:
        """Replace all settings of a tenant; omitted ones return to their defaults.

        With `version`, only if the settings still have that version; 0: there are none yet.
        """
        path = f"{_API}/tenants/{{name}}"
        return _named("PUT", path, {"name": name}, v.Tenant, settings, version)


class Queues(Part[R]):
    """Queues: settings and counts."""

    @Method
    def list(
        self, *, page_size: int | None = None, page_token: str | None = None
    ) -> Call[v.Page[v.Queue]]:
        """One page of queues, by name."""
        return _listed(f"{_API}/queues", v.Page[v.Queue], page_size, page_token)

    each = Items(list)

    @Method
    def get(self, name: str) -> Call[v.Queue]:
        """Read the settings and current counts of a queue."""
        return _named("GET", f"{_API}/queues/{{name}}", {"name": name}, v.Queue)

    @Method
    def set(
        self,
        name: str,
        settings: v.QueueSettings | Mapping[str, Any],
        *,
        version: int | None = None,
    ) -> Call[v.Queue]:
        """Replace all settings of a queue; omitted ones return to their defaults.

        With `version`, only if the settings still have that version; 0: there are none yet.
        """
        path = f"{_API}/queues/{{name}}"
        return _named("PUT", path, {"name": name}, v.Queue, settings, version)


class Targets(Part[R]):
    """Target hosts of webhooks: limits and counts."""

    @Method
    def list(
        self, *, page_size: int | None = None, page_token: str | None = None
    ) -> Call[v.Page[v.Target]]:
        """One page of target hosts, by name."""
        return _listed(f"{_API}/targets", v.Page[v.Target], page_size, page_token)

    each = Items(list)

    @Method
    def get(self, host: str) -> Call[v.Target]:
        """Read the limits of a host and how many executions wait for them."""
        return _named("GET", f"{_API}/targets/{{host}}", {"host": host}, v.Target)

    @Method
    def set(
        self,
        host: str,
        settings: v.TargetSettings | Mapping[str, Any],
        *,
        version: int | None = None,
    ) -> Call[v.Target]:
        """Replace all limits of a host; omitted ones are removed.

        With `version`, only if the settings still have that version; 0: there are none yet.
        """
        path = f"{_API}/targets/{{host}}"
        return _named("PUT", path, {"host": host}, v.Target, settings, version)


def _listed(
    path: str, answer: type[v.T], page_size: int | None, page_token: str | None
) -> Call[v.T]:
    query = {"page_size": page_size, "page_token": page_token}
    return Call(method="GET", path=path, answer=answer, query=query)


def _named(
    method: str,
    path: str,
    parameters: Mapping[str, str],
    answer: type[v.T],
    body: object = None,
    version: int | None = None,
) -> Call[v.T]:
    return Call(
        method=method,
        path=path,
        answer=answer,
        parameters=parameters,
        body=None if body is None else _encode(body),
        version=version,
    )


class Secrets(Part[R]):
    """Secrets: set, list, delete. Their values cannot be read."""

    @Method
    def set(
        self,
        name: str,
        value: str | None = None,
        *,
        tenant_id: str | None = None,
        keep_previous_seconds: int | None = None,
    ) -> Call[v.StoredSecret]:
        """Set a secret; without a value, a signing secret is generated and returned once."""
        document = {
            "value": value,
            "generate": "signing" if value is None else None,
            "tenant_id": tenant_id,
            "keep_previous_seconds": keep_previous_seconds,
        }
        return Call(
            method="PUT",
            path=f"{_API}/secrets/{{name}}",
            answer=v.StoredSecret,
            parameters={"name": name},
            body=_given(document),
        )

    @Method
    def list(
        self,
        *,
        tenant_id: str | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Page[v.Secret]]:
        """One page of a tenant's secrets, without their values."""
        query = {"tenant_id": tenant_id, "page_size": page_size, "page_token": page_token}
        return Call(method="GET", path=f"{_API}/secrets", answer=v.Page[v.Secret], query=query)

    each = Items(list)

    @Method
    def delete(self, name: str, *, tenant_id: str | None = None) -> Call[v.Secret]:
        """Delete a secret."""
        return Call(
            method="DELETE",
            path=f"{_API}/secrets/{{name}}",
            answer=v.Secret,
            parameters={"name": name},
            query={"tenant_id": tenant_id},
        )


class Keys(Part[R]):
    """API keys: create, list, read, revoke."""

    @Method
    def create(self, name: str, role: str, *, tenant_id: str | None = None) -> Call[v.MadeKey]:
        """Create an API key. Only this response contains it."""
        document = {"name": name, "role": role, "tenant_id": tenant_id}
        return Call(method="POST", path=f"{_API}/keys", answer=v.MadeKey, body=_given(document))

    @Method
    def list(
        self, *, page_size: int | None = None, page_token: str | None = None
    ) -> Call[v.Page[v.Key]]:
        """One page of API keys, newest first."""
        return _listed(f"{_API}/keys", v.Page[v.Key], page_size, page_token)

    each = Items(list)

    @Method
    def get(self, key_id: str) -> Call[v.Key]:
        """An API key, without its secret."""
        return _named("GET", f"{_API}/keys/{{key_id}}", {"key_id": key_id}, v.Key)

    @Method
    def revoke(self, key_id: str) -> Call[v.Key]:
        """Revoke an API key. All nodes reject it within 5 seconds."""
        return _named("DELETE", f"{_API}/keys/{{key_id}}", {"key_id": key_id}, v.Key)


class Monitors(Part[R]):
    """Monitors: dead man's switches for jobs."""

    @Method
    def create(
        self,
        job_id: str,
        url: str,
        *,
        grace_seconds: int,
        headers: Mapping[str, str] | None = None,
        secrets: str | None = None,
    ) -> Call[v.Monitor]:
        """Send an alert to `url` if the job does not succeed within the grace period."""
        document = {
            "job_id": job_id,
            "url": url,
            "grace_seconds": grace_seconds,
            "headers": headers,
            "secrets": secrets,
        }
        return Call(method="POST", path=f"{_API}/monitors", answer=v.Monitor, body=_given(document))

    @Method
    def list(
        self, *, page_size: int | None = None, page_token: str | None = None
    ) -> Call[v.Page[v.Monitor]]:
        """One page of monitors, newest first."""
        return _listed(f"{_API}/monitors", v.Page[v.Monitor], page_size, page_token)

    each = Items(list)

    @Method
    def get(self, monitor_id: str) -> Call[v.Monitor]:
        """Read a monitor."""
        path = f"{_API}/monitors/{{monitor_id}}"
        return _named("GET", path, {"monitor_id": monitor_id}, v.Monitor)

    @Method
    def delete(self, monitor_id: str) -> Call[v.Monitor]:
        """Delete a monitor."""
        path = f"{_API}/monitors/{{monitor_id}}"
        return _named("DELETE", path, {"monitor_id": monitor_id}, v.Monitor)


class Groups(Part[R]):
    """Groups: one callback when many executions have ended."""

    @Method
    def create(
        self,
        name: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        secrets: str | None = None,
        tenant_id: str | None = None,
    ) -> Call[v.Group]:
        """Create an open group; its callback is sent to `url`."""
        document = {
            "name": name,
            "url": url,
            "headers": headers,
            "secrets": secrets,
            "tenant_id": tenant_id,
        }
        return Call(method="POST", path=_GROUPS, answer=v.Group, body=_given(document))

    @Method
    def list(
        self,
        *,
        tenant_id: str | None = None,
        state: str | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Page[v.Group]]:
        """One page of groups, newest first; a state is OPEN, CLOSED or ENDED."""
        query = {
            "tenant_id": tenant_id,
            "state": state,
            "page_size": page_size,
            "page_token": page_token,
        }
        return Call(method="GET", path=_GROUPS, answer=v.Page[v.Group], query=query)

    each = Items(list)

    @Method
    def get(self, group_id: str) -> Call[v.Group]:
        """Read a group."""
        return _named("GET", _GROUP, {"group_id": group_id}, v.Group)

    @Method
    def add(
        self,
        group_id: str,
        *,
        job_ids: Iterable[str] = (),
        execution_ids: Iterable[str] = (),
    ) -> Generator[Call[v.Group], v.Group, v.Group]:
        """Add one-time jobs or executions to an open group, up to 10,000 per request."""
        jobs, executions = [*job_ids], [*execution_ids]
        while True:
            some_jobs, jobs = jobs[:MAX_MEMBERS_ADDED], jobs[MAX_MEMBERS_ADDED:]
            some, executions = executions[:MAX_MEMBERS_ADDED], executions[MAX_MEMBERS_ADDED:]
            group = yield Call(
                method="POST",
                path=f"{_GROUP}/members",
                answer=v.Group,
                parameters={"group_id": group_id},
                body=_encode({"job_ids": some_jobs, "execution_ids": some}),
            )
            if not jobs and not executions:
                return group

    @Method
    def close(self, group_id: str) -> Call[v.Group]:
        """Close a group: its callback is sent when all members have ended."""
        return _named("POST", f"{_GROUP}/close", {"group_id": group_id}, v.Group)


class Calendars(Part[R]):
    """Calendars: named lists of dates that schedules can exclude."""

    @Method
    def set(
        self, name: str, dates: Iterable[date], *, tenant_id: str | None = None
    ) -> Call[v.Calendar]:
        """Create a calendar, or replace its dates."""
        document = {"dates": [*dates], "tenant_id": tenant_id}
        return Call(
            method="PUT",
            path=f"{_API}/calendars/{{name}}",
            answer=v.Calendar,
            parameters={"name": name},
            body=_given(document),
        )

    @Method
    def list(
        self,
        *,
        tenant_id: str | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Page[v.Calendar]]:
        """One page of a tenant's calendars, by name."""
        query = {"tenant_id": tenant_id, "page_size": page_size, "page_token": page_token}
        return Call(method="GET", path=f"{_API}/calendars", answer=v.Page[v.Calendar], query=query)

    each = Items(list)

    @Method
    def get(self, name: str, *, tenant_id: str | None = None) -> Call[v.Calendar]:
        """Read a calendar."""
        return _calendar("GET", name, tenant_id)

    @Method
    def delete(self, name: str, *, tenant_id: str | None = None) -> Call[v.Calendar]:
        """Delete a calendar."""
        return _calendar("DELETE", name, tenant_id)


def _calendar(method: str, name: str, tenant_id: str | None) -> Call[v.Calendar]:
    return Call(
        method=method,
        path=f"{_API}/calendars/{{name}}",
        answer=v.Calendar,
        parameters={"name": name},
        query={"tenant_id": tenant_id},
    )


class Cell(Part[R]):
    """The cell as a whole: audit trail, forecast, overview and fleet."""

    @Method
    def audit(
        self,
        *,
        tenant_id: str | None = None,
        actor: str | None = None,
        operation: str | None = None,
        at_from: datetime | None = None,
        at_to: datetime | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Page[v.AuditEntry]]:
        """One page of all changes and their actors, latest first."""
        query = {
            "tenant_id": tenant_id,
            "actor": actor,
            "operation": operation,
            "from": at_from,
            "to": at_to,
            "page_size": page_size,
            "page_token": page_token,
        }
        return Call(method="GET", path=f"{_API}/audit", answer=v.Page[v.AuditEntry], query=query)

    each_audit = Items(audit)

    @Method
    def preview_schedule(
        self,
        schedule: v.Schedule | Mapping[str, Any],
        *,
        count: int | None = None,
        clock_changes: bool = True,
        job_id: str | None = None,
        tenant_id: str | None = None,
    ) -> Call[v.SchedulePreview]:
        """A schedule in words, its next runs, and the effect of clock changes."""
        document = {
            "schedule": schedule,
            "count": count,
            "clock_changes": None if clock_changes else False,
            "job_id": job_id,
            "tenant_id": tenant_id,
        }
        path = f"{_API}/schedules/preview"
        return Call(method="POST", path=path, answer=v.SchedulePreview, body=_given(document))

    @Method
    def forecast(
        self, *, hours: int | None = None, tenant_id: str | None = None
    ) -> Call[v.Forecast]:
        """The number of executions due per minute."""
        query = {"hours": hours, "tenant_id": tenant_id}
        return Call(method="GET", path=f"{_API}/forecast", answer=v.Forecast, query=query)

    @Method
    def forecast_minute(
        self, at: datetime, *, tenant_id: str | None = None
    ) -> Call[v.ForecastMinute]:
        """The jobs that will be due in the minute of this instant, at most 100."""
        query = {"at": at, "tenant_id": tenant_id}
        path = f"{_API}/forecast/minute"
        return Call(method="GET", path=path, answer=v.ForecastMinute, query=query)

    @Method
    def overview(self, *, window: str | None = None) -> Call[v.Overview]:
        """The state of the cell: what happened in a window (15m, 1h, 6h, 24h) and what is waiting."""
        path = f"{_API}/overview"
        return Call(method="GET", path=path, answer=v.Overview, query={"window": window})

    @Method
    def tasks(self, *, window: str | None = None, order: str | None = None) -> Call[v.Tasks]:
        """Tasks and hosts of webhooks: runs, failures, durations, waiting and workers."""
        query = {"window": window, "order": order}
        return Call(method="GET", path=f"{_API}/tasks", answer=v.Tasks, query=query)

    @Method
    def declared_task(self, name: str) -> Call[v.DeclaredTask]:
        """Read what a task declares for its jobs."""
        return _named("GET", f"{_API}/tasks/{{name}}", {"name": name}, v.DeclaredTask)

    @Method
    def workers(
        self,
        *,
        state: str | None = None,
        page_size: int | None = None,
        page_token: str | None = None,
    ) -> Call[v.Page[v.Worker]]:
        """One page of workers, newest first: alive, lost or all."""
        query = {"state": state, "page_size": page_size, "page_token": page_token}
        return Call(method="GET", path=f"{_API}/workers", answer=v.Page[v.Worker], query=query)

    each_worker = Items(workers)

    @Method
    def worker(self, session_id: str) -> Call[v.WorkerWithExecutions]:
        """Read a worker and what it is running."""
        return Call(
            method="GET",
            path=f"{_API}/workers/{{session_id}}",
            answer=v.WorkerWithExecutions,
            parameters={"session_id": session_id},
        )

    @Method
    def nodes(self) -> Call[v.Nodes]:
        """The processes of the cell."""
        return Call(method="GET", path=f"{_API}/nodes", answer=v.Nodes)

    @Method
    def circuits(self) -> Call[v.Circuits]:
        """The open circuits of webhook targets."""
        return Call(method="GET", path=f"{_API}/circuits", answer=v.Circuits)
