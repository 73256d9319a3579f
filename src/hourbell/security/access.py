"""Authorization: API keys and their roles.

    admin      everything, including keys and limits
    operator   what a producer may do, plus dead letters, secrets, monitors and bulk pauses
    producer   read, and create, change, run and delete jobs
    viewer     read
    worker     claim executions and settle them, and nothing else

A key either belongs to one tenant and sees only that tenant, or belongs to none and sees all. A
worker's key belongs to none: workers serve queues, which hold the work of all tenants.

The key itself is shown once, when it is created. Only its SHA-256 is stored: the key is 32 random
bytes, which cannot be guessed or looked up in a rainbow table, so a slow hash would add no
protection and slow down every request.
"""

import hashlib
import re
import secrets
from datetime import datetime
from enum import StrEnum

import msgspec

KEY_PREFIX = "hb_"
MAX_KEY_NAME = 100

_KEY = re.compile(rf"{KEY_PREFIX}[A-Za-z0-9_-]{{43}}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")


class KeyRole(StrEnum):
    """The permissions of a key."""

    ADMIN = "admin"
    OPERATOR = "operator"
    PRODUCER = "producer"
    VIEWER = "viewer"
    WORKER = "worker"


# The roles that may call an operation.
Access = frozenset[KeyRole]
ADMINISTER = Access({KeyRole.ADMIN})
OPERATE = ADMINISTER | {KeyRole.OPERATOR}
PRODUCE = OPERATE | {KeyRole.PRODUCER}
READ = PRODUCE | {KeyRole.VIEWER}
WORK = Access({KeyRole.ADMIN, KeyRole.WORKER})
ANY_ROLE = READ | WORK


class Caller(msgspec.Struct, frozen=True):
    """The authenticated caller of a request."""

    name: str  # as recorded in the audit trail
    role: KeyRole
    tenant: str | None  # None: sees all tenants
    key_id: int | None = None  # None: no key is required
    key_name: str = ""
    sign_in_ends_at: datetime | None = None  # None: the caller sent the key itself


# Where no key is required.
ANONYMOUS = Caller("anonymous", KeyRole.ADMIN, None, key_name="anonymous")
# A command that works directly on the database needs no key either.
COMMAND_LINE = Caller("command line", KeyRole.ADMIN, None, key_name="command line")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a key, without the key itself."""

    key_id: int
    name: str
    role: KeyRole
    tenant_id: str | None
    created_at: datetime
    revoked_at: datetime | None = None


def new_key() -> str:
    """A new random key."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> bytes | None:
    """The stored digest of a key; None if the text is not a key."""
    return hashlib.sha256(key.encode()).digest() if _KEY.fullmatch(key) else None


def new_sign_in_token() -> str:
    """A new random token for a browser that has signed in."""
    return secrets.token_urlsafe(32)


def sign_in_digest_of(token: str) -> bytes | None:
    """The stored digest of a session token; None if the text is not such a token."""
    return hashlib.sha256(token.encode()).digest() if _TOKEN.fullmatch(token) else None
