"""The testing kit: tasks and schedules in virtual time, for applications and for Hourbell itself.

All time-based decisions in Hourbell use one SQL function, `hourbell.clock()`, which only reads the
database's clock. If that function is replaced, the whole engine uses virtual time: schedules fire,
leases expire and retries become due when the test says so. Nothing else is replaced: the database
and its transactions are real, and so are the operations of the engine and the worker that runs tasks.

    bell.py         Bell: the app under test, with its clock, assertions and faults
    driver.py       moves time from event to event
    worker.py       the worker, which claims only when the test tells it to
    runs.py         what was enqueued and what has run
    contexts.py     contexts for calling a task's function directly
    servers.py      one PostgreSQL per test run, and a copy of a template per test
    plugin.py       the pytest plugin: fixtures `bell` and others; asyncio_fixtures.py: for
                    pytest-asyncio
    errors.py       misuse of the kit, and failed attempts
    clock.py        VirtualClock: the clock alone, for tests of the engine
    filling.py      many jobs at once, for tests and benchmarks of the engine
    conformance.py  the tests that each implementation of Dispatch must pass

Applications use the fixture `bell`, or `start`. A test of the engine installs the clock alone:

    clock = await VirtualClock.install(database, at)
    engine = Engine(database, clock)
    ...
    await clock.advance(timedelta(hours=1))     # an hour passes, without waiting

Such a clock can change in two ways. Time *passes* (`set`, `advance`): the wall clock and the
monotonic clock advance together, never backwards. Or the wall clock *steps*, when it is corrected
or after a failover to a machine with a different clock: it may go backwards, and the monotonic
clock does not change. To simulate an outage, let time pass without calling the engine.

Use the kit only on a dedicated test database: it replaces that database's clock permanently.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hourbell.testing.bell import Bell as Bell
    from hourbell.testing.bell import TestClock as TestClock
    from hourbell.testing.bell import Watching as Watching
    from hourbell.testing.bell import start as start
    from hourbell.testing.contexts import context as context
    from hourbell.testing.contexts import sync_context as sync_context
    from hourbell.testing.errors import AttemptFailed as AttemptFailed
    from hourbell.testing.errors import EndlessRuns as EndlessRuns
    from hourbell.testing.errors import Misuse as Misuse
    from hourbell.testing.runs import Run as Run

# Imported on first use: pytest imports this package whenever it starts.
_PUBLIC = {
    "AttemptFailed": "errors",
    "Bell": "bell",
    "EndlessRuns": "errors",
    "Misuse": "errors",
    "Run": "runs",
    "TestClock": "bell",
    "Watching": "bell",
    "context": "contexts",
    "start": "bell",
    "sync_context": "contexts",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'hourbell.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"hourbell.testing.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return sorted((*globals(), *_PUBLIC))
