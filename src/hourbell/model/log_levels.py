"""Log levels: one for everything, with exceptions for single components: `info,worker=debug`."""

from __future__ import annotations

import difflib

import msgspec

from hourbell.model.errors import ConfigurationError

# The components that log lines name.
COMPONENTS = (
    "api",  # requests, keys, workers over HTTP
    "process",  # startup and shutdown, worker processes, clocks, traces
    "scheduler",  # leadership, planning, the gate, reaping, notifications, schedules in code
    "tasks",  # handlers of an app, and their own log lines
    "webhooks",  # requests to targets, circuits, egress rules
    "worker",  # claims, sessions, outcomes
)
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}  # as in the standard library


class LogLevels(msgspec.Struct, frozen=True):
    """The level of each component."""

    default: int = LEVELS["info"]
    components: dict[str, int] = {}

    def of(self, component: str | None) -> int:
        return self.default if component is None else self.components.get(component, self.default)


def parse_log_levels(text: str) -> LogLevels:
    """Parse log levels; raises ConfigurationError.

    A level without a component applies to all other components; the default is `info`.
    """
    default = None
    components: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        component, named, level = part.rpartition("=")
        if level not in LEVELS:
            raise ConfigurationError(
                f"{level[:40]!r} is not a log level. Use one of {', '.join(LEVELS)}, for "
                f"example info,worker=debug."
            )
        if named:
            components[_known(component)] = LEVELS[level]
        elif default is None:
            default = LEVELS[level]
        else:
            raise ConfigurationError(
                f"{text[:100]!r} has two levels without a component. Use one, and component=level "
                f"for the rest, such as info,worker=debug."
            )
    return LogLevels(LEVELS["info"] if default is None else default, components)


def _known(component: str) -> str:
    if component in COMPONENTS:
        return component
    close = difflib.get_close_matches(component, COMPONENTS, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"Use one of {', '.join(COMPONENTS)}."
    raise ConfigurationError(f"{component[:40]!r} is not a logging component. {hint}")
