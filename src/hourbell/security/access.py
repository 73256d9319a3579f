"""Who may do what: the roles of API keys, and the keys themselves.

    admin      everything, keys and limits too
    operator   produce, and keep house: dead letters, secrets, monitors
    producer   read, and create, change, run and end jobs
    viewer     read
    worker     claim executions and settle them, and nothing else

A key belongs to one tenant, and then nothing else exists for it, or to none and sees all of them. A worker's key belongs to
none: a worker serves queues, and everybody's work is in them.

The key itself is shown once, when it is made. Only its SHA-256 is kept: it is 32 random bytes, which nobody guesses and no
table lists, so a slow hash would protect nothing and cost every request.
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


class KeyRole(StrEnum):
    """What the holder of a key may do."""

    ADMIN = "admin"
    OPERATOR = "operator"
    PRODUCER = "producer"
    VIEWER = "viewer"
    WORKER = "worker"


# Who may call an operation.
Access = frozenset[KeyRole]
ADMINISTER = Access({KeyRole.ADMIN})
OPERATE = ADMINISTER | {KeyRole.OPERATOR}
PRODUCE = OPERATE | {KeyRole.PRODUCER}
READ = PRODUCE | {KeyRole.VIEWER}
WORK = Access({KeyRole.ADMIN, KeyRole.WORKER})


class Caller(msgspec.Struct, frozen=True):
    """Whom a request comes from."""

    name: str  # as the audit trail knows it
    role: KeyRole
    tenant: str | None  # None: of no tenant, sees all


ANYBODY = Caller("anonymous", KeyRole.ADMIN, None)  # where no key is asked for


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as people see it: everything but the key."""

    key_id: int
    name: str
    role: KeyRole
    tenant_id: str | None
    created_at: datetime
    revoked_at: datetime | None = None


def new_key() -> str:
    """A key that nobody knows yet."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def digest_of(key: str) -> bytes | None:
    """What is kept of a key; None for what cannot be one."""
    return hashlib.sha256(key.encode()).digest() if _KEY.fullmatch(key) else None
