"""Spans, named and described according to OpenTelemetry's conventions for messaging and HTTP.

The destination is the task, or `webhook`. A one-time job created alone is processed in the
trace of the span that created it. Runs of a recurring job, and of jobs created together, have
their own traces with a link to that span: no tool usefully shows a trace with thousands of
runs, or with a year of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import msgspec
import structlog
from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    get_current_span,
    set_span_in_context,
)

from hourbell.model.executions import Claimed, Crashed, Failed, Outcome
from hourbell.model.ids import created_at, execution_text, job_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import DEFAULT_QUEUE, Action, SentSpec, TaskAction

log = structlog.get_logger(component="process")

P = ParamSpec("P")
R = TypeVar("R")
_Attributes = dict[str, str | int | float]
_SYSTEM = "messaging.system"
_DESTINATION = "messaging.destination.name"
_COUNT = "messaging.batch.message_count"
_MESSAGE_ID = "messaging.message.id"
_ERROR_TYPE = "error.type"
_NO_PARENT = Context()
WEBHOOK = "webhook"  # the destination of all webhooks, whose hosts may be many


def _harmless(function: Callable[P, R]) -> Callable[P, R | None]:
    """Catch errors of the program's own processor or sampler: no run may fail because of them."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            log.error("span not recorded", step=function.__name__, exc_info=error)
            return None

    return call


class _Settings(msgspec.Struct):
    """A field of a job that a worker decodes for no other purpose."""

    queue: str = DEFAULT_QUEUE


def _destination_of(action: Action) -> str:
    return action.name if isinstance(action, TaskAction) else WEBHOOK


class Traces:
    """The spans of a process."""

    def __init__(self, provider: TracerProvider) -> None:
        from hourbell import __version__

        self._provider = provider
        self._tracer = provider.get_tracer("hourbell", __version__)

    @_harmless
    def flush(self) -> None:
        """Export finished spans, if the provider can; blocks as long as the exporter tries."""
        flush = getattr(self._provider, "force_flush", None)
        if flush is not None:
            flush()

    @contextmanager
    def sending(self, caller: str | None = None) -> Iterator[SendSpan]:
        """The creation of jobs: a child of the current span, or of a remote caller's span."""
        span = self._start_send(caller) or INVALID_SPAN
        try:
            yield SendSpan(span, caller)
        except Exception as error:
            _fail(span, type(error).__name__, str(error))
            raise
        finally:
            _end(span)

    @_harmless
    def _start_send(self, caller: str | None) -> Span:
        is_within = get_current_span().get_span_context().is_valid
        parent = None if is_within or caller is None else _context_of(caller)
        return self._tracer.start_span("send", parent, SpanKind.PRODUCER, _messaging("send"))

    @_harmless
    def note_pass(self, name: str, began_ns: int, executions: int) -> None:
        """A pass of the leader or the gate that has done something; it ends now."""
        attributes = {"hourbell.executions": executions}
        span = self._tracer.start_span(name, _NO_PARENT, attributes=attributes, start_time=began_ns)
        span.end()

    @_harmless
    def start_run(
        self, claimed: Claimed, spec: SentSpec, worker: str, claim: tuple[int, int] | None
    ) -> RunSpan:
        """The span of an attempt; `claim` is when its claim began and ended."""
        destination = _destination_of(spec.action)
        parent, links = _NO_PARENT, []
        if spec.traceparent is not None:
            parent = _context_of(spec.traceparent)
            links = [Link(get_current_span(parent).get_span_context())]
        elif spec.trace_link is not None:
            links = [Link(get_current_span(_context_of(spec.trace_link)).get_span_context())]
        span = self._tracer.start_span(
            f"process {destination}", parent, SpanKind.CONSUMER, links=links
        )
        run = RunSpan(self, span, destination)
        if span.is_recording():
            run.attributes = _attributes_of(claimed, spec, worker, destination)
            span.set_attributes(run.attributes | _operation("process"))
            span.set_attribute("hourbell.planned_at", _planned_at(claimed))
            if claim is not None:
                within = parent if spec.traceparent is not None else run.context
                self._note_claim(run, within, *claim)
        return run

    @_harmless
    def _note_claim(self, run: RunSpan, within: Context, began_ns: int, ended_ns: int) -> None:
        span = self._tracer.start_span(
            f"receive {run.destination}",
            within,
            SpanKind.CLIENT,
            run.attributes | _operation("receive"),
            start_time=began_ns,
        )
        span.end(ended_ns)

    @contextmanager
    def calling_batch(self, runs: Sequence[RunSpan]) -> Iterator[None]:
        """One function call for several executions: its current span, linked to theirs."""
        is_decided = any(run.attributes for run in runs)
        span = self._start_batch(runs) if is_decided else None
        if span is None:
            with runs[0].current():
                yield
            return
        token = contexts.attach(set_span_in_context(span, _NO_PARENT))
        try:
            yield
        except Exception as error:
            _record_exception(span, error)
            _fail(span, type(error).__name__, str(error))
            raise
        finally:
            contexts.detach(token)
            _end(span)

    @_harmless
    def _start_batch(self, runs: Sequence[RunSpan]) -> Span:
        destination = runs[0].destination
        return self._tracer.start_span(
            f"process {destination} batch",
            _NO_PARENT,
            SpanKind.CONSUMER,
            _messaging("process") | {_DESTINATION: destination, _COUNT: len(runs)},
            [Link(run.span_context) for run in runs],
        )

    def start_settle(self, run: RunSpan) -> Span:
        return self._tracer.start_span(
            f"settle {run.destination}",
            run.context,
            SpanKind.CLIENT,
            run.attributes | _operation("settle"),
        )

    def start_request(self, run: RunSpan, method: str, host: str, port: int) -> RequestSpan:
        """The HTTP request of a webhook, without path and query, which may contain credentials."""
        attributes: _Attributes = {
            "http.request.method": method,
            "server.address": host,
            "server.port": port,
        }
        span = self._tracer.start_span(method, run.context, SpanKind.CLIENT, attributes)
        return RequestSpan(span)


class SendSpan:
    """The creation of one or many jobs."""

    def __init__(self, span: Span, caller: str | None) -> None:
        self._span = span
        self._caller = caller

    @property
    def traceparent(self) -> str | None:
        """What the jobs remember; None if there is no trace."""
        return _traceparent_of(self._span) or self._caller

    @_harmless
    def created(self, action: Action | str, job_id: int) -> None:
        """One job was created: with this action, or with the task of this name."""
        self._describe(action if isinstance(action, str) else _destination_of(action))
        self._span.set_attribute("hourbell.job_id", job_text(job_id))

    @_harmless
    def created_many(self, destination: str | None, count: int) -> None:
        """Jobs were created, all for this destination; None if they have several."""
        self._describe(destination)
        self._span.set_attribute(_COUNT, count)

    def _describe(self, destination: str | None) -> None:
        if destination is not None and self._span.is_recording():
            self._span.update_name(f"send {destination}")
            self._span.set_attribute(_DESTINATION, destination)


class RunSpan:
    """One attempt, from its start until its outcome is settled."""

    def __init__(self, traces: Traces, span: Span, destination: str) -> None:
        self._traces = traces
        self._span = span
        self._settle: Span | None = None
        self.context = set_span_in_context(span, _NO_PARENT)
        self.destination = destination
        self.attributes: _Attributes = {}  # of all spans of the attempt; empty: not recorded

    @property
    def traceparent(self) -> str | None:
        return _traceparent_of(self._span)

    @property
    def span_context(self) -> SpanContext:
        return self._span.get_span_context()

    def batch(self, runs: Sequence[RunSpan]) -> AbstractContextManager[None]:
        """Make a span for several attempts, including this one, the current span."""
        return self._traces.calling_batch(runs)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this the current span of the handler that runs inside."""
        token = contexts.attach(self.context)
        try:
            yield
        finally:
            contexts.detach(token)

    @_harmless
    def request(self, method: str, host: str, port: int) -> RequestSpan:
        return self._traces.start_request(self, method, host, port)

    def record_exception(self, error: BaseException) -> None:
        """Record what the handler raised; its outcome says whether the attempt failed."""
        _record_exception(self._span, error)

    @_harmless
    def end(self, outcome: Outcome, settles: bool) -> None:
        """The attempt has ended; `settles` says whether its outcome is about to be recorded."""
        span = self._span
        if span.is_recording():
            span.set_attribute("hourbell.outcome", type(outcome).__name__.lower())
            if isinstance(outcome, Failed):
                _fail(span, outcome.kind, outcome.error)
            elif isinstance(outcome, Crashed):
                _fail(span, "crashed", outcome.error)
            if settles:
                self._settle = self._traces.start_settle(self)
        span.end()

    @_harmless
    def settled(self, status: str) -> None:
        """The outcome was recorded: the execution is now in this state."""
        if self._settle is not None:
            self._settle.set_attribute("hourbell.status", status)
            self._settle.end()
            self._settle = None

    @_harmless
    def not_settled(self, why: str) -> None:
        """The outcome was not recorded."""
        if self._settle is not None:
            _fail(self._settle, why, "The outcome was not recorded.")
            self._settle.end()
            self._settle = None


class RequestSpan:
    """The HTTP request of a webhook."""

    def __init__(self, span: Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        return _traceparent_of(self._span)

    @_harmless
    def answered(self, status: int) -> None:
        self._span.set_attribute("http.response.status_code", status)

    @_harmless
    def end(self, outcome: Outcome | None) -> None:
        """`outcome` is None if the request was cancelled, at its timeout or for another reason."""
        if outcome is None:
            _fail(self._span, "cancelled", "The request was cancelled.")
        elif isinstance(outcome, Failed):
            _fail(self._span, outcome.kind, outcome.error)
        self._span.end()


@contextmanager
def remote_parent(traceparent: str) -> Iterator[None]:
    """Make a span of another process the parent of what runs inside."""
    token = contexts.attach(_context_of(traceparent))
    try:
        yield
    finally:
        contexts.detach(token)


@_harmless
def _end(span: Span) -> None:
    span.end()


@_harmless
def _record_exception(span: Span, error: BaseException) -> None:
    span.record_exception(error)


def _messaging(operation: str) -> _Attributes:
    return {_SYSTEM: "hourbell"} | _operation(operation)


def _operation(name: str) -> _Attributes:
    return {"messaging.operation.name": name, "messaging.operation.type": name}


def _attributes_of(claimed: Claimed, spec: SentSpec, worker: str, destination: str) -> _Attributes:
    execution_id = execution_text(claimed.execution_id)
    return {
        _SYSTEM: "hourbell",
        _DESTINATION: destination,
        _MESSAGE_ID: execution_id,
        "messaging.client.id": worker,
        "hourbell.execution_id": execution_id,
        "hourbell.job_id": job_text(claimed.job_id),
        "hourbell.job_name": spec.name,
        "hourbell.tenant": claimed.tenant_id,
        "hourbell.queue": msgspec.json.decode(claimed.spec, type=_Settings).queue,
        "hourbell.attempt": claimed.attempt,
        "hourbell.fence": claimed.fence,
        "hourbell.scheduled_for": format_instant(claimed.scheduled_for),
    }


def _planned_at(claimed: Claimed) -> str:
    """When the execution was created, according to its id."""
    return format_instant(created_at(claimed.execution_id))


def _context_of(traceparent: str) -> Context:
    """The context of a span in another process, whose `traceparent` is valid."""
    _, trace_id, span_id, flags = traceparent.split("-")
    span = SpanContext(
        int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16))
    )
    return set_span_in_context(NonRecordingSpan(span), _NO_PARENT)


def _traceparent_of(span: Span) -> str | None:
    found = span.get_span_context()
    if not found.is_valid:
        return None
    return f"00-{found.trace_id:032x}-{found.span_id:016x}-{found.trace_flags & 1:02x}"


@_harmless
def _fail(span: Span, kind: str, message: str) -> None:
    if span.is_recording():
        span.set_attribute(_ERROR_TYPE, kind)
        span.set_status(Status(StatusCode.ERROR, message))
