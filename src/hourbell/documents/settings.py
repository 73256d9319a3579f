"""The documents of settings: tenants, queues and targets."""

from hourbell.documents.policies import read_retry_policy
from hourbell.documents.reader import LABEL, LABEL_IS, ObjectReader, Problems, read_object
from hourbell.documents.render import render_retry_policy
from hourbell.model.errors import FieldError, InvalidInput
from hourbell.model.jobs import MAX_TIMEOUT_SECONDS
from hourbell.model.limits import (
    MAX_BURST,
    MAX_CONCURRENCY,
    MAX_DAYS,
    MAX_JOBS,
    MAX_RATE,
    MAX_WEIGHT,
    MIN_RATE,
    Limits,
    QueueSettings,
    RateLimit,
    TenantSettings,
)
from hourbell.model.policies import Delivery, RetryPolicy


def check_label(name: object, path: str) -> None:
    """Raise InvalidInput if this is not a valid name of a tenant or a queue."""
    if not isinstance(name, str) or not LABEL.fullmatch(name):
        raise InvalidInput([FieldError(path, "bad_format", f"must be {LABEL_IS}")])


def check_retry_policy(policy: RetryPolicy, path: str) -> None:
    """Raise InvalidInput with all errors of a policy, under a path."""
    problems = Problems()
    reader = read_object({path: render_retry_policy(policy)}, problems)
    read_retry_policy(reader.inner(path), Delivery.AT_LEAST_ONCE, problems)
    problems.raise_if_any()


def parse_tenant_settings(document: object) -> TenantSettings:
    """The complete settings of a tenant; omitted fields have their defaults."""
    problems = Problems()
    reader = read_object(document, problems)
    concurrency, rate = _read_limits(reader)
    settings = TenantSettings(
        max_concurrency=concurrency,
        rate_limit=rate,
        weight=reader.number("weight", 1 / MAX_WEIGHT, MAX_WEIGHT, 1.0),
        max_jobs=reader.whole("max_jobs", 0, MAX_JOBS, None),
        ledger_days=reader.whole("ledger_days", 1, MAX_DAYS, None),
        dead_letter_days=reader.whole("dead_letter_days", 1, MAX_DAYS, None),
        audit_days=reader.whole("audit_days", 1, MAX_DAYS, None),
    )
    reader.finish()
    problems.raise_if_any()
    return settings


def parse_queue_settings(document: object) -> QueueSettings:
    """The complete settings of a queue; omitted fields have their defaults."""
    problems = Problems()
    reader = read_object(document, problems)
    concurrency, rate = _read_limits(reader)
    timeout = reader.whole("default_timeout_seconds", 1, MAX_TIMEOUT_SECONDS, None)
    retries = reader.inner("default_retry_policy")
    policy = None
    if retries is not None:
        policy = read_retry_policy(retries, Delivery.AT_LEAST_ONCE, problems)
    reader.finish()
    problems.raise_if_any()
    return QueueSettings(
        max_concurrency=concurrency,
        rate_limit=rate,
        default_timeout_seconds=timeout,
        default_retry_policy=policy,
    )


def parse_limits(document: object) -> Limits:
    """The complete limits of a target."""
    problems = Problems()
    reader = read_object(document, problems)
    concurrency, rate = _read_limits(reader)
    reader.finish()
    problems.raise_if_any()
    return Limits(max_concurrency=concurrency, rate_limit=rate)


def _read_limits(reader: ObjectReader) -> tuple[int | None, RateLimit | None]:
    concurrency = reader.whole("max_concurrency", 0, MAX_CONCURRENCY, None)
    inner = reader.inner("rate_limit")
    if inner is None:
        return concurrency, None
    inner.require("per_second")
    per_second = inner.number("per_second", MIN_RATE, MAX_RATE, None)
    burst = inner.whole("burst", 1, MAX_BURST, None)
    inner.finish()
    if per_second is None:
        return concurrency, None
    return concurrency, RateLimit(per_second) if burst is None else RateLimit(per_second, burst)
