"""Standard Webhooks signatures: the target can verify that a request is authentic and recent.

The signed text is `id.timestamp.body`; the id is the execution id, the same for all attempts. A
secret is `whsec_` followed by base64. While a secret is rotated, a request carries one signature
per value, separated by a space.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

PREFIX = "whsec_"
MIN_BYTES, MAX_BYTES = 24, 64


def secret_problem(text: str) -> str | None:
    """Why a text is not a signing secret, or None."""
    if not text.startswith(PREFIX):
        return f"must begin with {PREFIX}"
    try:
        size = len(base64.b64decode(text.removeprefix(PREFIX), validate=True))
    except (binascii.Error, ValueError):
        return f"must be base64 after {PREFIX}"
    if not MIN_BYTES <= size <= MAX_BYTES:
        return f"must have {MIN_BYTES} to {MAX_BYTES} bytes"
    return None


def signed_headers(
    message_id: str, timestamp: int, body: bytes, keys: Sequence[str]
) -> dict[str, str]:
    """The headers of a request signed with all of these secrets; unsigned if there are none."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    if keys:
        content = f"{message_id}.{timestamp}.".encode() + body
        headers["webhook-signature"] = " ".join(_signature(key, content) for key in keys)
    return headers


def _signature(key: str, content: bytes) -> str:
    secret = base64.b64decode(key.removeprefix(PREFIX))
    digest = hmac.new(secret, content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
