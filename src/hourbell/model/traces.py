"""W3C trace contexts as text: the span of a caller, which a job remembers."""

from __future__ import annotations

import re

# A later version may add fields, so more may follow; only the first of its flags is known.
_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_INVALID_VERSION = "ff"
_CURRENT_VERSION = "00"
_SAMPLED, _RANDOM = 1, 2  # flags


def read_traceparent(text: str | None) -> str | None:
    """A `traceparent` as version 00 writes it; None if there is none or it is not valid.

    An invalid one is ignored, as the W3C recommends: a trace is never a reason to reject a job.
    """
    found = None if text is None else _TRACEPARENT.fullmatch(text.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == _INVALID_VERSION or (version == _CURRENT_VERSION and more is not None):
        return None
    if not trace_id.strip("0") or not span_id.strip("0"):
        return None
    known = _SAMPLED | _RANDOM if version == _CURRENT_VERSION else _SAMPLED
    return f"00-{trace_id}-{span_id}-{int(flags, 16) & known:02x}"
