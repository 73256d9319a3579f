"""Limits and settings of queues, tenants and targets.

Limits           concurrency and rate limits of a queue, a tenant or a target host
QueueSettings    plus defaults for jobs that do not set a timeout or a retry policy
TenantSettings   plus weight, job quota and retention
"""

import hashlib
import math
from typing import cast

import msgspec

from hourbell.model.errors import FieldError, InvalidInput
from hourbell.model.jobs import MAX_TIMEOUT_SECONDS
from hourbell.model.policies import RetryPolicy

MAX_CONCURRENCY = 1_000_000
MIN_RATE = 0.001
MAX_RATE = 1_000_000.0
MAX_BURST = 1_000_000
MAX_WEIGHT = 1_000.0
MAX_JOBS = 1_000_000_000
MAX_DAYS = 3_650  # of retention
_BURST_SECONDS = 0.05


class RateLimit(msgspec.Struct, frozen=True):
    """A token bucket: in any T seconds, at most per_second * T + burst starts."""

    per_second: float
    burst: int = msgspec.UNSET  # type: ignore[assignment]  # if unset, default_burst(per_second)

    def __post_init__(self) -> None:
        if cast(object, self.burst) is msgspec.UNSET:
            msgspec.structs.force_setattr(self, "burst", default_burst(self.per_second))


def default_burst(per_second: float) -> int:
    """The smallest burst with which a remote worker that claims every 50 ms reaches the rate."""
    if not isinstance(per_second, (int, float)) or not MIN_RATE <= per_second <= MAX_RATE:
        return 1  # the rate itself is rejected later
    return max(1, math.ceil(per_second * _BURST_SECONDS))


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Concurrency and rate limits; None means unlimited."""

    max_concurrency: int | None = None  # ready or running at once; 0 stops all work
    rate_limit: RateLimit | None = None

    @property
    def version(self) -> int:
        """A number that differs if any setting differs; 0 if all have their defaults.

        It is computed from the values, so that builds that know different settings agree on it.
        """
        defaults = type(self)()
        changed = {
            name: getattr(self, name)
            for name in self.__struct_fields__
            if getattr(self, name) != getattr(defaults, name)
        }
        if not changed:
            return 0
        digest = hashlib.sha256(msgspec.json.encode(changed, order="deterministic")).digest()
        return int.from_bytes(digest[:6])  # a number in JSON holds 53 bits

    def check(self) -> None:
        """Raise InvalidInput with every value that is out of bounds."""
        problems = self.problems()
        if problems:
            raise InvalidInput(problems)

    def problems(self) -> list[FieldError]:
        found = _wrong("max_concurrency", self.max_concurrency, 0, MAX_CONCURRENCY)
        if self.rate_limit is not None:
            found += _wrong(
                "rate_limit.per_second", self.rate_limit.per_second, MIN_RATE, MAX_RATE, float
            )
            found += _wrong("rate_limit.burst", self.rate_limit.burst, 1, MAX_BURST)
        return found


class QueueSettings(Limits, frozen=True, kw_only=True):
    """Settings of a queue. Defaults apply when a job is created, and never change existing jobs."""

    default_timeout_seconds: int | None = None
    default_retry_policy: RetryPolicy | None = None

    def problems(self) -> list[FieldError]:
        timeout = self.default_timeout_seconds
        return super().problems() + _wrong(
            "default_timeout_seconds", timeout, 1, MAX_TIMEOUT_SECONDS
        )


class TenantSettings(Limits, frozen=True, kw_only=True):
    weight: float = 1.0  # relative share; twice the weight is twice the share
    max_jobs: int | None = None  # scheduled, paused, waiting or running
    # Retention; None: the cell's setting.
    ledger_days: int | None = None  # ended executions; at most the cell's setting
    dead_letter_days: int | None = None
    audit_days: int | None = None

    def problems(self) -> list[FieldError]:
        found = super().problems()
        found += _wrong("weight", self.weight, 1 / MAX_WEIGHT, MAX_WEIGHT, float)
        for field in ("ledger_days", "dead_letter_days", "audit_days"):
            found += _wrong(field, getattr(self, field), 1, MAX_DAYS)
        return found + _wrong("max_jobs", self.max_jobs, 0, MAX_JOBS)


def _wrong(
    path: str, value: float | None, low: float, high: float, kind: type[float] | type[int] = int
) -> list[FieldError]:
    """The error in a number, if any; an int is accepted as a float."""
    if value is None:
        return []
    if isinstance(value, bool) or not isinstance(value, (kind, int)):
        what = "a whole number" if kind is int else "a number"
        return [FieldError(path, "wrong_type", f"must be {what}")]
    if low <= value <= high:  # false for NaN
        return []
    return [FieldError(path, "out_of_range", f"must be from {low:g} to {high:g}")]
