"""Retry policies in documents."""

import re

from msgspec.structs import replace

from hourbell.documents.reader import ObjectReader, Problems
from hourbell.model.policies import (
    MAX_CRASHES,
    MAX_NON_RETRYABLE,
    MAX_RETRIES,
    MAX_RETRY_DELAY_SECONDS,
    Backoff,
    Delivery,
    RetryPolicy,
)

_KIND = re.compile(r"[!-~]{1,200}")
_KIND_IS = "a failure kind, such as http_404 or ValueError"
_BACKOFFS = {choice.value: choice for choice in Backoff}


def read_retry_policy(
    reader: ObjectReader | None, delivery: Delivery, problems: Problems
) -> RetryPolicy:
    if reader is None:
        return RetryPolicy() if delivery is Delivery.AT_LEAST_ONCE else RetryPolicy(max_retries=0)
    backoff = reader.choice("backoff", _BACKOFFS, None)
    non_retryable = reader.texts("non_retryable", _KIND, _KIND_IS, MAX_NON_RETRYABLE)
    retryable = reader.texts("retryable", _KIND, _KIND_IS, MAX_NON_RETRYABLE)
    if not set(retryable).isdisjoint(non_retryable):
        reader.wrong("retryable", "conflict", "has a kind that is also in non_retryable")
    if reader.given("delays_seconds") or backoff is Backoff.LIST:
        policy = _read_list(reader, backoff, problems)
    else:
        policy = _read_formula(reader, backoff)
    crashes = reader.whole("max_crashes", 1, MAX_CRASHES, None)
    policy = replace(policy, non_retryable=non_retryable, retryable=retryable, max_crashes=crashes)
    reader.finish()
    if delivery is Delivery.AT_LEAST_ONCE:
        return policy
    if policy.max_retries > 0:
        for key in ("max_retries", "delays_seconds"):
            reader.forbid(key, "cannot be combined with at_most_once, which never retries")
    return replace(policy, max_retries=0)


def _read_list(reader: ObjectReader, backoff: Backoff | None, problems: Problems) -> RetryPolicy:
    reader.require("delays_seconds", "is required with backoff LIST")
    delays = reader.wholes("delays_seconds", 0, MAX_RETRY_DELAY_SECONDS, MAX_RETRIES) or ()
    if backoff not in (None, Backoff.LIST):
        reader.wrong("backoff", "conflict", "must be LIST or omitted with delays_seconds")
    for key in ("initial_delay_seconds", "max_delay_seconds"):
        reader.forbid(key, "has no effect with delays_seconds")
    retries = reader.whole("max_retries", 0, MAX_RETRIES, None)
    sound = not problems.touch(reader.path("delays_seconds"))
    if retries is not None and sound and retries != len(delays):
        reader.wrong("max_retries", "conflict", "must be the number of delays_seconds or omitted")
    return RetryPolicy(max_retries=len(delays), backoff=Backoff.LIST, delays_seconds=delays)


def _read_formula(reader: ObjectReader, backoff: Backoff | None) -> RetryPolicy:
    default = RetryPolicy()
    initial = reader.whole(
        "initial_delay_seconds", 0, MAX_RETRY_DELAY_SECONDS, default.initial_delay_seconds
    )
    longest = reader.whole("max_delay_seconds", 0, MAX_RETRY_DELAY_SECONDS, None)
    if longest is None:
        longest = max(default.max_delay_seconds, initial)
    elif longest < initial:
        reader.wrong("max_delay_seconds", "conflict", "must not be below initial_delay_seconds")
    return RetryPolicy(
        max_retries=reader.whole("max_retries", 0, MAX_RETRIES, default.max_retries),
        backoff=backoff or default.backoff,
        initial_delay_seconds=initial,
        max_delay_seconds=longest,
    )
