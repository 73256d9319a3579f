"""Standard Webhooks signatures: the target can verify that a request is authentic and recent.

The signed text is `id.timestamp.body`; the id is the execution id, the same for all attempts. A
secret is `whsec_` followed by base64. While a secret is rotated, a request carries one signature
per value, separated by a space.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence

from hourbell.security.secrets import SIGNING_PREFIX


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
    secret = base64.b64decode(key.removeprefix(SIGNING_PREFIX))
    digest = hmac.new(secret, content, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"
