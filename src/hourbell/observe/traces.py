"""Traces: spans from the creation of a job to its settled outcome, by OpenTelemetry.

    send      one or many jobs are created: by the API or the library
    plan      a pass of the leader planned executions of recurring jobs   } in their own
    admit     a pass of the gate admitted executions                      } traces
    receive   a worker claimed an execution
    process   one attempt; the current span of a handler
    settle    the outcome is recorded

A job remembers the span that created it (`JobSpec.traceparent`, `JobSpec.trace_link`). `spans.py`
creates the spans, and is imported only if this process has a tracer provider: because its program
set one, or because the environment of a command names an exporter (`exporting.py`). Otherwise
nothing of OpenTelemetry is imported, and the only cost is a comparison with None.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hourbell.observe.spans import Traces

_API = "opentelemetry.trace"


def current_traces() -> Traces | None:
    """The spans of this process; None if it has no tracer provider."""
    api = sys.modules.get(_API)
    if api is None:
        return None
    provider = api.get_tracer_provider()
    return None if isinstance(provider, api.ProxyTracerProvider) else _traces_of(provider)


@lru_cache(maxsize=1)
def _traces_of(provider: Any) -> Traces:
    from hourbell.observe.spans import Traces

    return Traces(provider)


def current_ids() -> tuple[str, str] | None:
    """The ids of the current trace and span, for logs; None if there is none."""
    api = sys.modules.get(_API)
    if api is None:
        return None
    found = api.get_current_span().get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None
