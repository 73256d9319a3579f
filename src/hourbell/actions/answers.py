"""What the answer to a webhook means.

    2xx                   success; 202 with `Hourbell-Async: 1` means that the target goes on with it and will say how it ended
    408, 425, 429, 5xx    failed, to be tried again; 429 and 503 may say when (`Retry-After`)
    410                   failed for good, and the job is paused: nobody is there any more
    everything else       failed for good: the same request would get the same answer; redirects are never followed

The retry policy of the job has the last word: `retryable` and `non_retryable` name kinds such as `http_404`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from hourbell.model.executions import Failed
from hourbell.security.secrets import Redactor

MOST_RESULT_BYTES = 16 * 1024  # as JSON; the worker keeps no larger result
MOST_REFUSAL_CHARACTERS = 500

_PASSING = frozenset({408, 425, 429})  # of 4xx, those that may be over the next time
_GONE = 410
_SAY_WHEN = frozenset({429, 503})


def is_success(status: int) -> bool:
    return 200 <= status < 300


def is_accepted(status: int, headers: Mapping[str, str]) -> bool:
    """Whether the target goes on with it by itself, and will say how it ended."""
    return status == 202 and headers.get("Hourbell-Async", "").strip() == "1"


def refusal(status: int, headers: Mapping[str, str], answer: bytes, redactor: Redactor) -> Failed:
    """The failure that a status means, with the beginning of what was said about it."""
    said = " ".join(redactor.redacted_beginning(answer.decode("utf-8", "replace")).split())
    message = f"The target answered {status}"
    if 300 <= status < 400:
        message += ", a redirect; redirects are not followed"
    elif status == _GONE:
        message += ": it is gone, and wants no more of this job"
    return Failed(
        f"{message}. It said: {said[:MOST_REFUSAL_CHARACTERS]}" if said else f"{message}.",
        f"http_{status}",
        _retry_after(headers) if status in _SAY_WHEN else None,
        final=status < 500 and status not in _PASSING,
        gone=status == _GONE,
    )


def result(status: int, answer: bytes, redactor: Redactor) -> dict[str, Any]:
    """Status and body, with as many characters of the body as fit."""
    text = answer.decode("utf-8", "replace")
    whole = len(answer) < MOST_RESULT_BYTES
    text = redactor.redacted(text) if whole else redactor.redacted_beginning(text)

    def size(characters: int) -> int:
        return len(msgspec.json.encode({"status": status, "body": text[:characters]}))

    # A character is six bytes of JSON at most, so most answers need no measuring.
    if len(text) * 6 > MOST_RESULT_BYTES - 64 and size(len(text)) > MOST_RESULT_BYTES:
        text = text[: bisect_right(range(len(text)), MOST_RESULT_BYTES, key=size) - 1]
    return {"status": status, "body": text}


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, or a date: seen from the date of the answer itself, because their clock need not agree with ours."""
    said = headers.get("Retry-After", "").strip()
    if said.isascii() and said.isdigit():
        return float(said)
    try:
        until = parsedate_to_datetime(said)
        seconds = (until - parsedate_to_datetime(headers.get("Date", ""))).total_seconds()
    except (ValueError, TypeError, OverflowError):  # TypeError: only one of them has a zone
        return None
    return max(seconds, 0.0)
