"""Exports the spans of a process that Hourbell owns, as configured by the standard OTEL_… variables."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence

import structlog

from hourbell.observe.traces import current_traces

log = structlog.get_logger(component="process")

_SERVICE = "hourbell"
_EXPORTERS = "opentelemetry_traces_exporter"  # OpenTelemetry's entry point group
_FLUSH_SECONDS = 5.0  # at process exit


def configure_traces(env: Mapping[str, str]) -> None:
    """Export the spans of this process as the OTEL_… variables say; called once, by a command.

    A program that has set a tracer provider, or that runs under `opentelemetry-instrument`, keeps
    its own.
    """
    names = _exporter_names(env)
    if not names or current_traces() is not None:
        return
    try:
        _export(names, env)
    except ImportError as error:
        log.warning(
            "traces are off: OpenTelemetry is not installed. Install hourbell[otel], or unset the "
            "OTEL_… variables that name an exporter",
            error=str(error),
        )
    except _NoExporter as error:
        log.warning(
            "traces are off: no installed package provides this exporter. Install one, or change "
            "OTEL_TRACES_EXPORTER and OTEL_EXPORTER_OTLP_PROTOCOL",
            exporter=str(error),
        )
    except Exception as error:  # whatever an exporter reports about its own variables
        log.warning(
            "traces are off: an exporter rejected its settings. Check the OTEL_… variables",
            exporter=",".join(names),
            error=f"{type(error).__name__}: {error}",
        )


def flush_traces() -> None:
    """Export finished spans, within seconds; at the exit of a process that Hourbell owns."""
    if (traces := current_traces()) is not None:
        # In a thread, so that an unresponsive collector does not delay the exit any longer.
        flushing = threading.Thread(target=traces.flush, name="flush-traces", daemon=True)
        flushing.start()
        flushing.join(_FLUSH_SECONDS)


class _NoExporter(Exception):
    """No installed package provides an exporter with this name."""


def _exporter_names(env: Mapping[str, str]) -> list[str]:
    """The configured exporters, by the names that packages give them."""
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    named = env.get("OTEL_TRACES_EXPORTER", "")
    names = list(dict.fromkeys(filter(None, (name.strip() for name in named.split(",")))))
    if not names and (
        env.get("OTEL_EXPORTER_OTLP_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    ):
        names = ["otlp"]
    protocol = env.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or env.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL"
    )
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    return [otlp if name == "otlp" else name for name in names if name != "none"]


def _export(names: Sequence[str], env: Mapping[str, str]) -> None:
    """Set a tracer provider with these exporters; all read their settings from the environment."""
    from importlib.metadata import entry_points

    from opentelemetry import trace
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporters = []
    for name in names:
        found = entry_points(group=_EXPORTERS, name=name)
        if not found:
            raise _NoExporter(name)
        (entry, *_) = found
        exporters.append(entry.load()())
    own = {SERVICE_NAME: _SERVICE}
    if env.get("OTEL_SERVICE_NAME") or SERVICE_NAME in env.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        own = {}
    provider = TracerProvider(resource=Resource.create(own))
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    forward_logs()


def forward_logs() -> None:
    """Log what OpenTelemetry logs, such as an unavailable collector, like everything else."""
    own = logging.getLogger("opentelemetry")
    own.handlers = [_Forwarder(logging.WARNING)]
    own.propagate = False


class _Forwarder(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)
