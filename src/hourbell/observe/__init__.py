"""Observability: logs and clock drift."""
