"""What a worker counts: how late executions start, how long they run, and what it holds.

Runners and the settler only append numbers to lists. The claimer adds the lists to the metrics once
per turn, a batch at a time, so that an execution costs an append each. For executions that it sends
to workers over HTTP, the API counts how late they start.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Protocol

from hourbell.model.executions import Claimed
from hourbell.model.jobs import WEBHOOK_TASK, SentSpec, TaskAction
from hourbell.observe.metrics import Metrics

_MAX_TASKS = 50


class Held(Protocol):
    """The executions that a worker holds."""

    def __len__(self) -> int: ...

    @property
    def lingering(self) -> int: ...


class RunCounts:
    """The metrics of a worker.

    `now` is the database's time in seconds since 1970, estimated; `monotonic` this machine's.
    """

    def __init__(
        self, metrics: Metrics, now: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._metrics = metrics
        self._now = now
        self._monotonic = monotonic
        self._delays: list[float] = []  # start, monotonic, minus the scheduled time since 1970
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)  # of runs, by task
        self._delay = metrics.histogram(
            "hourbell_schedule_delay_seconds",
            "From the scheduled time of an execution to the start of its first attempt.",
        ).series()
        self._run = metrics.histogram(
            "hourbell_run_duration_seconds",
            "Time of an attempt; `@webhook` stands for all webhooks.",
            ("task",),
            max_series=_MAX_TASKS,
        )
        metrics.before_render(self.flush)

    def watch(self, slots: int, held: Held) -> None:
        """Show what a worker holds."""
        metrics = self._metrics
        metrics.gauge(
            "hourbell_worker_slots", "Executions that the worker may run at once."
        ).series().set(slots)
        in_flight = metrics.gauge(
            "hourbell_worker_in_flight", "Executions that the worker has claimed and not settled."
        ).series()
        unstoppable = metrics.gauge(
            "hourbell_worker_unstoppable", "Handlers that were stopped and still run."
        ).series()

        def update() -> None:
            in_flight.set(len(held))
            unstoppable.set(held.lingering)

        metrics.before_render(update)

    def started(self, claimed: Claimed, spec: SentSpec, now: float) -> None:
        """Count the start of an execution, unless it has started before."""
        if claimed.attempt == 1 and not spec.interruptions and not spec.snoozes:
            self._delays.append(now - claimed.scheduled_epoch)

    def sent(self, executions: Sequence[tuple[Claimed, SentSpec]]) -> None:
        """Count executions that start when they are sent to their worker, which is elsewhere."""
        now = self._monotonic()
        for claimed, spec in executions:
            self.started(claimed, spec, now + claimed.start_in_seconds)
        self.flush()

    def ended(self, spec: SentSpec, seconds: float) -> None:
        """Count the end of an attempt."""
        action = spec.action
        name = action.name if type(action) is TaskAction else WEBHOOK_TASK
        self._seconds[name].append(seconds)

    def flush(self) -> None:
        """Add what was appended to the metrics."""
        if self._delays:
            self._delay.observe_all(self._delays, self._now() - self._monotonic())
            self._delays.clear()
        if self._seconds:
            for name, seconds in self._seconds.items():
                self._run.series(name).observe_all(seconds)
            self._seconds.clear()
