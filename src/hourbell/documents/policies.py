"""Retry policies in documents."""

import re
from typing import Any

from msgspec.structs import replace

from hourbell.documents.fields import Document, Field
from hourbell.documents.kinds import Array, Integer, Text, choice_of
from hourbell.model.policies import (
    MAX_CRASHES,
    MAX_NON_RETRYABLE,
    MAX_RETRIES,
    MAX_RETRY_DELAY_SECONDS,
    Backoff,
    Delivery,
    RetryPolicy,
)

_DEFAULT = RetryPolicy()
_DELAY = Integer(0, MAX_RETRY_DELAY_SECONDS)
_FAILURE_KINDS = Array(
    Text(re.compile(r"[!-~]{1,200}"), "a failure kind, such as http_404 or ValueError"),
    0,
    MAX_NON_RETRYABLE,
)
FORMULA_FIELDS = ("initial_delay_seconds", "max_delay_seconds")
LIST_FIELDS = ("delays_seconds",)


class RetryPolicyDocument(Document):
    max_retries = Field(Integer(0, MAX_RETRIES), default=_DEFAULT.max_retries)
    backoff = Field(choice_of(Backoff), default=_DEFAULT.backoff)
    non_retryable = Field(
        _FAILURE_KINDS,
        default=(),
        description="Failure kinds that are not retried, such as http_404 or ValueError.",
    )
    retryable = Field(
        _FAILURE_KINDS,
        default=(),
        description="Final failure kinds that are retried anyway, such as http_404.",
    )
    max_crashes = Field(
        Integer(1, MAX_CRASHES),
        description=(
            "An execution is DEAD(crashed) after this many consecutive crashes of its worker while "
            "it ran alone in the process. Default: the system's setting."
        ),
    )
    initial_delay_seconds = Field(_DELAY, default=_DEFAULT.initial_delay_seconds)
    max_delay_seconds = Field(_DELAY, default=_DEFAULT.max_delay_seconds)
    delays_seconds = Field(
        Array(_DELAY, 1, MAX_RETRIES),
        description=(
            "One delay per retry; replaces max_retries, backoff, initial_delay_seconds and "
            "max_delay_seconds."
        ),
    )


def render_retry_policy(policy: RetryPolicy) -> dict[str, Any]:
    """The document of a retry policy, with only the fields of its kind of backoff."""
    shown = RetryPolicyDocument.render(policy)
    for name in LIST_FIELDS if policy.delays_seconds is None else FORMULA_FIELDS:
        del shown[name]
    return shown


def read_retry_policy(document: RetryPolicyDocument | None, delivery: Delivery) -> RetryPolicy:
    if document is None:
        return RetryPolicy() if delivery is Delivery.AT_LEAST_ONCE else RetryPolicy(max_retries=0)
    backoff = document.backoff if document.given("backoff") else None
    non_retryable, retryable = document.non_retryable, document.retryable
    if not set(retryable).isdisjoint(non_retryable):
        document.wrong("retryable", "conflict", "has a kind that is also in non_retryable")
    if document.given("delays_seconds") or backoff is Backoff.LIST:
        policy = _read_list(document, backoff)
    else:
        policy = _read_formula(document, backoff)
    crashes = document.max_crashes
    policy = replace(policy, non_retryable=non_retryable, retryable=retryable, max_crashes=crashes)
    document.finish()
    if delivery is Delivery.AT_LEAST_ONCE:
        return policy
    if policy.max_retries > 0:
        for key in ("max_retries", "delays_seconds"):
            document.forbid(key, "cannot be combined with at_most_once, which never retries")
    return replace(policy, max_retries=0)


def _read_list(document: RetryPolicyDocument, backoff: Backoff | None) -> RetryPolicy:
    document.require("delays_seconds", "is required with backoff LIST")
    delays = document.delays_seconds or ()
    if backoff is not Backoff.LIST and document.departs("backoff"):
        document.wrong("backoff", "conflict", "must be LIST or omitted with delays_seconds")
    for key in FORMULA_FIELDS:
        document.forbid(key, "has no effect with delays_seconds")
    retries = document.max_retries
    sound = not document.problems.touch(document.path("delays_seconds"))
    if document.departs("max_retries") and sound and retries != len(delays):
        document.wrong(
            "max_retries", "conflict", "must equal the number of delays_seconds, or be omitted"
        )
    return RetryPolicy(max_retries=len(delays), backoff=Backoff.LIST, delays_seconds=delays)


def _read_formula(document: RetryPolicyDocument, backoff: Backoff | None) -> RetryPolicy:
    initial, longest = document.initial_delay_seconds, document.max_delay_seconds
    if not document.departs("max_delay_seconds"):
        longest = max(longest, initial)
    elif longest < initial:
        document.wrong(
            "max_delay_seconds", "conflict", "must not be less than initial_delay_seconds"
        )
    return RetryPolicy(
        max_retries=document.max_retries,
        backoff=backoff or _DEFAULT.backoff,
        initial_delay_seconds=initial,
        max_delay_seconds=longest,
    )
