"""Sign-ins of the dashboard: a browser sends its API key once, and then a random token in a cookie.

The token stands for the key and has its rights. It ends when the key is revoked, after IDLE
without a request, and after LIFETIME. The database has only its SHA-256.
"""

from __future__ import annotations

from datetime import timedelta

from hourbell.engine.core import Engine
from hourbell.engine.operations.api_keys import caller_of_row
from hourbell.security.access import Caller, new_sign_in_token, sign_in_digest_of
from hourbell.store.queries import queries

IDLE = timedelta(hours=12)
LIFETIME = timedelta(days=7)
_USE_IS_NOTED_EVERY = timedelta(minutes=5)
_MAX_PER_KEY = 1_000  # beyond that the oldest end

_Q = queries("sign_ins")


async def sign_in(engine: Engine, key_id: int) -> str:
    """Begin a session of a key; returns its token."""
    token = new_sign_in_token()
    now = await engine.clock.now()
    digest = sign_in_digest_of(token)
    await engine.database.fetch(_Q["insert_sign_in"], digest, key_id, now, _MAX_PER_KEY)
    return token


async def signed_in(engine: Engine, digest: bytes) -> Caller | None:
    """The caller whose session token has this digest; None if there is none any more."""
    now = await engine.clock.now()
    row = await engine.database.row_or_none(
        _Q["signed_in"], digest, now, IDLE, LIFETIME, _USE_IS_NOTED_EVERY
    )
    return None if row is None else caller_of_row(row, row["ends_at"])


async def sign_out(engine: Engine, digest: bytes) -> None:
    """End a session."""
    await engine.database.fetch(_Q["delete_sign_in"], digest)
