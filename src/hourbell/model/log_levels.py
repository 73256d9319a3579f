"""Log levels: one for everything, and others for single components: `info,worker=debug`."""

from __future__ import annotations

import difflib

import msgspec

from hourbell.model.errors import ConfigurationError

# What a log line names as its component.
COMPONENTS = (
    "api",  # requests, keys, workers over HTTP
    "process",  # start and end, processes of workers, clocks, traces
    "scheduler",  # leadership, planning, reaping, notifications, schedules in code
    "tasks",  # handlers of an app, and what they log themselves
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
    """Levels from their text; raises ConfigurationError.

    A level without a component is that of all others; it is `info` if there is none.
    """
    default = None
    components: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        component, named, level = part.rpartition("=")
        if level not in LEVELS:
            raise ConfigurationError(
                f"{level[:40]!r} is not a log level. There are {', '.join(LEVELS)}; write for "
                f"example info,worker=debug."
            )
        if named:
            components[_known(component)] = LEVELS[level]
        elif default is None:
            default = LEVELS[level]
        else:
            raise ConfigurationError(
                f"{text[:100]!r} has two levels without a component. Write one, and component=level "
                f"for the others, such as info,worker=debug."
            )
    return LogLevels(LEVELS["info"] if default is None else default, components)


def _known(component: str) -> str:
    if component in COMPONENTS:
        return component
    close = difflib.get_close_matches(component, COMPONENTS, n=1)
    hint = f"Did you mean {close[0]}?" if close else f"There are {', '.join(COMPONENTS)}."
    raise ConfigurationError(f"{component[:40]!r} is not a component that logs. {hint}")
