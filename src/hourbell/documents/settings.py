"""The documents of settings: tenants, queues and targets."""

from typing import Any

from hourbell.documents.fields import REQUIRED, Document, Field, Object
from hourbell.documents.kinds import LABEL, LABEL_IS, Integer, Number
from hourbell.documents.policies import RetryPolicyDocument, read_retry_policy, render_retry_policy
from hourbell.documents.problems import Problems
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


class RateLimitDocument(Document):
    per_second = Field(Number(MIN_RATE, MAX_RATE), required=REQUIRED)
    burst = Field(
        Integer(1, MAX_BURST),
        description="Default: the tokens that accrue in 50 ms, rounded up; at least 1.",
    )


class LimitsDocument(Document):
    max_concurrency = Field(
        Integer(0, MAX_CONCURRENCY),
        description="How many may be queued for a worker or running at once.",
    )
    rate_limit = Field(Object(RateLimitDocument))


class TenantSettingsDocument(LimitsDocument):
    weight = Field(Number(1 / MAX_WEIGHT, MAX_WEIGHT), default=1.0)
    max_jobs = Field(
        Integer(0, MAX_JOBS),
        description="How many jobs may be scheduled, paused, waiting or running.",
    )
    ledger_days = Field(
        Integer(1, MAX_DAYS),
        description="How long ended executions are kept, at most as long as the cell keeps them.",
    )
    dead_letter_days = Field(Integer(1, MAX_DAYS), description="How long dead letters are kept.")
    audit_days = Field(Integer(1, MAX_DAYS), description="How long audit entries are kept.")


class QueueSettingsDocument(LimitsDocument):
    default_timeout_seconds = Field(Integer(1, MAX_TIMEOUT_SECONDS))
    default_retry_policy = Field(Object(RetryPolicyDocument, "RetryPolicy"))


def render_limits(limits: Limits) -> dict[str, Any]:
    """The settings of a tenant, a queue or a target: the document that would set them."""
    match limits:
        case TenantSettings():
            return TenantSettingsDocument.render(limits)
        case QueueSettings():
            retries = limits.default_retry_policy
            shown = None if retries is None else render_retry_policy(retries)
            return QueueSettingsDocument.render(limits, default_retry_policy=shown)
    return LimitsDocument.render(limits)


def check_label(name: object, path: str) -> None:
    """Raise InvalidInput if this is not a valid name of a tenant or a queue."""
    if not isinstance(name, str) or not LABEL.fullmatch(name):
        raise InvalidInput([FieldError(path, "bad_format", f"must be {LABEL_IS}")])


def check_retry_policy(policy: RetryPolicy, path: str) -> None:
    """Raise InvalidInput with all errors of a policy, under the given path."""
    problems = Problems()
    document = RetryPolicyDocument(render_retry_policy(policy), path + ".", problems)
    read_retry_policy(document, Delivery.AT_LEAST_ONCE)
    problems.raise_if_any()


def parse_tenant_settings(document: object) -> TenantSettings:
    """The complete settings of a tenant; omitted fields have their defaults."""
    problems = Problems()
    settings = TenantSettingsDocument.open(document, problems)
    read = TenantSettings(
        max_concurrency=settings.max_concurrency,
        rate_limit=_read_rate_limit(settings.rate_limit),
        weight=settings.weight,
        max_jobs=settings.max_jobs,
        ledger_days=settings.ledger_days,
        dead_letter_days=settings.dead_letter_days,
        audit_days=settings.audit_days,
    )
    settings.finish()
    problems.raise_if_any()
    return read


def parse_queue_settings(document: object) -> QueueSettings:
    """The complete settings of a queue; omitted fields have their defaults."""
    problems = Problems()
    settings = QueueSettingsDocument.open(document, problems)
    read = QueueSettings(
        max_concurrency=settings.max_concurrency,
        rate_limit=_read_rate_limit(settings.rate_limit),
        default_timeout_seconds=settings.default_timeout_seconds,
        default_retry_policy=read_retry_policy(retries, Delivery.AT_LEAST_ONCE)
        if (retries := settings.default_retry_policy)
        else None,
    )
    settings.finish()
    problems.raise_if_any()
    return read


def parse_limits(document: object) -> Limits:
    """The complete limits of a target."""
    problems = Problems()
    limits = LimitsDocument.open(document, problems)
    read = Limits(
        max_concurrency=limits.max_concurrency, rate_limit=_read_rate_limit(limits.rate_limit)
    )
    limits.finish()
    problems.raise_if_any()
    return read


def _read_rate_limit(document: RateLimitDocument | None) -> RateLimit | None:
    if document is None:
        return None
    per_second, burst = document.per_second, document.burst
    document.finish()
    if per_second is None:
        return None
    return RateLimit(per_second) if burst is None else RateLimit(per_second, burst)
