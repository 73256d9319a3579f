"""Observability: logs, traces, metrics and clock drift."""
