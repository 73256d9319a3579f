"""The meaning of the response to a webhook.

    2xx                   success; 202 with `Hourbell-Async: 1`: accepted, outcome reported later
    408, 425, 429, 5xx    failed, retryable; 429 and 503 may set the delay (`Retry-After`)
    410                   failed, final, and the job is paused: the target is gone
    everything else       failed, final: a retry would get the same response; redirects are never
                          followed

The job's retry policy can override this: `retryable` and `non_retryable` list kinds such as
`http_404`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from hourbell.model.executions import Failed
from hourbell.security.secrets import Redactor

MAX_RESULT_BYTES = 16 * 1024  # as JSON; the worker keeps no larger result
MAX_REFUSAL_CHARACTERS = 500

_TEMPORARY = frozenset({408, 425, 429})  # the temporary ones among 4xx
_GONE = 410
_MAY_SET_DELAY = frozenset({429, 503})


def is_success(status: int) -> bool:
    return 200 <= status < 300


def is_accepted(status: int, headers: Mapping[str, str]) -> bool:
    """Whether the target works asynchronously and will report the outcome."""
    return status == 202 and headers.get("Hourbell-Async", "").strip() == "1"


def refusal(status: int, headers: Mapping[str, str], answer: bytes, redactor: Redactor) -> Failed:
    """The failure for a status, with the beginning of the response body."""
    text = " ".join(redactor.redacted_beginning(answer.decode("utf-8", "replace")).split())
    message = f"The target answered {status}"
    if 300 <= status < 400:
        message += ", a redirect; redirects are not followed"
    elif status == _GONE:
        message += ": it is gone"
    return Failed(
        f"{message}. Response: {text[:MAX_REFUSAL_CHARACTERS]}" if text else f"{message}.",
        f"http_{status}",
        _retry_after(headers) if status in _MAY_SET_DELAY else None,
        final=status < 500 and status not in _TEMPORARY,
        gone=status == _GONE,
    )


def result(status: int, answer: bytes, redactor: Redactor) -> dict[str, Any]:
    """Status and body, with as many characters of the body as fit."""
    text = answer.decode("utf-8", "replace")
    whole = len(answer) < MAX_RESULT_BYTES
    text = redactor.redacted(text) if whole else redactor.redacted_beginning(text)

    def size(characters: int) -> int:
        return len(msgspec.json.encode({"status": status, "body": text[:characters]}))

    # A character is at most six bytes of JSON, so most responses need no measuring.
    if len(text) * 6 > MAX_RESULT_BYTES - 64 and size(len(text)) > MAX_RESULT_BYTES:
        text = text[: bisect_right(range(len(text)), MAX_RESULT_BYTES, key=size) - 1]
    return {"status": status, "body": text}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """The delay in seconds. A date is relative to the response's own Date: clocks may differ."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
        seconds = (until - parsedate_to_datetime(headers.get("Date", ""))).total_seconds()
    except (ValueError, TypeError, OverflowError):  # TypeError: only one of them has a zone
        return None
    return max(seconds, 0.0)
