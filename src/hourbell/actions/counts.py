"""What a worker counts about its webhooks: responses of targets, and circuits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hourbell.actions.circuits import Circuits
from hourbell.model.executions import TIMEOUT
from hourbell.observe.metrics import Metrics

# Failure kinds without a complete response.
_INCOMPLETE = frozenset({"connection", "tls", "bad_answer", "forbidden_target", TIMEOUT})


class WebhookCounts:
    """The metrics of webhooks. `monotonic` is the clock of the circuits."""

    def __init__(self, metrics: Metrics, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._metrics = metrics
        self._answers = metrics.counter(
            "hourbell_webhook_responses_total",
            "Webhooks by response status, or by the reason there was no complete response.",
            ("code",),
        )
        # Reserved, so that targets that respond with many codes do not crowd these out.
        for kind in sorted(_INCOMPLETE):
            self._answers.series(kind)
        self._opened = metrics.counter(
            "hourbell_circuits_opened_total",
            "Times that a circuit opened, or stayed open because its probe failed.",
            ("scope",),
        )
        for scope in ("host", "endpoint"):
            self._opened.series(scope)  # starts at 0, so that the first one is an increase

    def answered(self, status: int) -> None:
        self._answers.series(str(status)).add()

    def failed(self, kind: str, status: int | None) -> None:
        """Count a failure; one without a complete response is counted by its kind."""
        if kind in _INCOMPLETE:
            self._answers.series(kind).add()
        elif status is not None:
            self.answered(status)

    def opened(self, scope: str) -> None:
        self._opened.series(scope).add()

    def watch(self, circuits: Mapping[str, Circuits]) -> None:
        """Expose the states of circuits by scope: host or endpoint."""
        family = self._metrics.gauge(
            "hourbell_circuits",
            "Circuits of this process that are not closed.",
            ("scope", "state"),
        )

        def update() -> None:
            for scope, each in circuits.items():
                is_open, half_open = each.states(self._monotonic())
                family.series(scope, "open").set(is_open)
                family.series(scope, "half_open").set(half_open)

        self._metrics.before_render(update)
