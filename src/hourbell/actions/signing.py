"""Signatures after Standard Webhooks: the target can tell that a request is ours, whole, and of now.

What is signed is `id.timestamp.body`; the id is the execution's and stays the same over its attempts. A secret is `whsec_` and
base64. While secrets are rotated a request carries a signature by each of them, with a space in between.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

PREFIX = "whsec_"
FEWEST_BYTES, MOST_BYTES = 24, 64


def secret_problem(text: str) -> str | None:
    """Why a text is no signing secret, or None."""
    if not text.startswith(PREFIX):
        return f"must begin with {PREFIX}"
    try:
        size = len(base64.b64decode(text.removeprefix(PREFIX), validate=True))
    except (binascii.Error, ValueError):
        return f"must be base64 after {PREFIX}"
    if not FEWEST_BYTES <= size <= MOST_BYTES:
        return f"must be of {FEWEST_BYTES} to {MOST_BYTES} bytes"
    return None


def signed_headers(
    message_id: str, timestamp: int, body: bytes, keys: Sequence[str]
) -> dict[str, str]:
    """The headers of a request that is signed by all of these secrets; without one, it is not."""
    headers = {"webhook-id": message_id, "webhook-timestamp": str(timestamp)}
    if keys:
        content = f"{message_id}.{timestamp}.".encode() + body
        headers["webhook-signature"] = " ".join(_signature(key, content) for key in keys)
    return headers


def _signature(key: str, content: bytes) -> str:
    secret = base64.b64decode(key.removeprefix(PREFIX))
    digest = hmac.new(secret, content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
