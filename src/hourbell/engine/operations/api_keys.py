"""API keys: create, look up and revoke them.

The first key must be that of an administrator of all tenants, and the last such key cannot be
revoked: otherwise no caller could ever create another key.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from hourbell.documents.keys import NewKey
from hourbell.engine.core import Engine
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    Idempotent,
    Write,
    insert_audit_row,
)
from hourbell.engine.views.pages import NEWEST, Id, Page, first_rows, read_token, walk
from hourbell.model.errors import Conflict, FieldError, InvalidInput, NotFound
from hourbell.model.ids import key_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import DEFAULT_TENANT
from hourbell.security.access import ApiKey, Caller, KeyRole, digest_of, new_key
from hourbell.store.queries import queries

FIRST_KEY = "first admin"  # its name, unless it gets another
KEYLESS_SECONDS = 1.0  # how long a node may cache an answer of `is_keyless`

_J, _K = queries("jobs"), queries("keys")
_FAILPOINTS = CommitFailpoints("configure.before_commit", "configure.after_commit")


class MadeKey(msgspec.Struct, frozen=True):
    """A key with its secret, shown only once. A repeated answer lacks it: it is never stored."""

    made: ApiKey
    key: str | None


async def create_key(engine: Engine, new: NewKey, write: Write) -> MadeKey:
    """Create a key. Within a scope it belongs to that tenant."""
    return await _create(engine, new, write, new_key())


async def create_first_key(
    engine: Engine, name: str, write: Write, key: str | None = None
) -> MadeKey:
    """Create the key of the first administrator; raises Conflict if there is, or was, any key."""
    new = NewKey(name, KeyRole.ADMIN, None)
    return await _create(engine, new, write, key or new_key(), is_first=True)


async def _create(
    engine: Engine, new: NewKey, write: Write, key: str, is_first: bool = False
) -> MadeKey:
    tenant_id = engine.scope if new.tenant_id is None else new.tenant_id
    if tenant_id is not None:
        engine.require_access(tenant_id)
        if new.role is KeyRole.WORKER:
            problem = (
                "a worker key has no tenant, so only an administrator of all tenants can create one"
            )
            raise InvalidInput([FieldError("role", "conflict", problem)])
    now = await engine.clock.now()
    number = await engine.new_id(now)
    key_owner = tenant_id or DEFAULT_TENANT  # the owner of the idempotency key and the audit entry
    digest = digest_of(key)
    writing = Idempotent(engine, write, _FAILPOINTS, key_owner, now, MadeKey)
    async for attempt in writing:
        tenant = await engine.tenant(key_owner, now)
        async with attempt.transaction(tenant) as connection:
            await connection.execute(_K["lock_keys"])
            is_admin = new.role is KeyRole.ADMIN and tenant_id is None
            has_keys = await connection.fetchval(_K["any_key"])
            if is_first and has_keys:
                raise Conflict(
                    "There is a key already, so no first one was created. `hourbell keys create --role "
                    "admin --name NAME` creates another one."
                )
            if not is_admin and not has_keys:
                raise Conflict(
                    "The first key must have the role admin and no tenant: as soon as a key exists,"
                    " every request needs one, and no other key could create more. Create that"
                    " key first."
                )
            await connection.execute(
                _K["insert_key"],
                number,
                None if tenant_id is None else tenant,
                new.role.value,
                new.name,
                digest,
                now,
            )
            await insert_audit_row(
                connection,
                write,
                now,
                tenant,
                None,
                "create_key",
                None,
                _audit_details(number, new),
            )
            attempt.answer = MadeKey(
                ApiKey(
                    key_id=number, name=new.name, role=new.role, tenant_id=tenant_id, created_at=now
                ),
                None,
            )
    made = writing.answer
    return msgspec.structs.replace(made, key=key) if writing.executed else made


async def revoke_key(engine: Engine, key_id: int, write: Write) -> ApiKey:
    """Revoke an API key; it takes effect on every node within seconds."""
    seen = await get_key(engine, key_id)
    now = await engine.clock.now()
    key_owner = seen.tenant_id or DEFAULT_TENANT
    writing = Idempotent(engine, write, _FAILPOINTS, key_owner, now, ApiKey)
    async for attempt in writing:
        tenant = await engine.tenant(key_owner, now)
        async with attempt.transaction(tenant) as connection:
            await connection.execute(_K["lock_keys"])
            if not await connection.fetchval(_K["lasting_admin"], key_id):
                raise Conflict(
                    "This is the last key of an administrator of all tenants. Create another one "
                    "first; otherwise no key could create keys any more."
                )
            await connection.execute(_K["revoke_key"], key_id, now)
            await insert_audit_row(
                connection, write, now, tenant, None, "revoke_key", None, f'"{key_text(key_id)}"'
            )
            row = await connection.fetchrow(_K["key"], key_id)
            assert row is not None
            attempt.answer = _api_key(row)
    return writing.answer


async def get_key(engine: Engine, key_id: int) -> ApiKey:
    """A key, revoked or not."""
    row = await engine.database.row_or_none(_K["key"], key_id)
    if row is None or (engine.scope is not None and row["tenant_name"] != engine.scope):
        raise NotFound("key", key_text(key_id))
    return _api_key(row)


async def list_keys(engine: Engine, page_size: int, token: str | None) -> Page:
    """Keys, newest first."""
    before = NEWEST if token is None else read_token(token, Id)
    if engine.scope is None:
        rows = await walk(engine, _K["list_keys"], before, page_size + 1)
    else:
        tenant = await engine.database.value(_J["tenant_by_name"], engine.scope)
        rows = await walk(engine, _K["list_keys_of_tenant"], before, page_size + 1, tenant)
    return first_rows(rows, page_size, _api_key)


async def is_keyless(engine: Engine) -> bool:
    """Whether no key has ever been created."""
    return not await engine.database.value(_K["any_key"])


async def has_admin(engine: Engine) -> bool:
    """Whether a key exists that can create others."""
    found: bool = await engine.database.value(_K["lasting_admin"], None)
    return found


async def caller_of(engine: Engine, digest: bytes) -> Caller | None:
    """The caller whose key has this digest; None if it is unknown or revoked."""
    row = await engine.database.row_or_none(_K["by_digest"], digest)
    return None if row is None else caller_of_row(row)


def caller_of_row(row: asyncpg.Record, sign_in_ends_at: datetime | None = None) -> Caller:
    """The caller who has the key of this row, or a session of it."""
    return Caller(
        f"{row['name']} ({key_text(row['id'])})",
        KeyRole(row["role"]),
        row["tenant_name"],
        row["id"],
        row["name"],
        sign_in_ends_at,
    )


def render_key(key: ApiKey) -> dict[str, Any]:
    """A key as users see it."""
    return {
        "key_id": key_text(key.key_id),
        "name": key.name,
        "role": key.role,
        "tenant_id": key.tenant_id,
        "created_at": format_instant(key.created_at),
        "revoked_at": None if key.revoked_at is None else format_instant(key.revoked_at),
    }


def _audit_details(number: int, new: NewKey) -> str:
    details = {"key_id": key_text(number), "role": new.role.value, "tenant_id": new.tenant_id}
    return msgspec.json.encode(details).decode()


def _api_key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(
        key_id=row["id"],
        name=row["name"],
        role=KeyRole(row["role"]),
        tenant_id=row["tenant_name"],
        created_at=row["created_at"],
        revoked_at=row["revoked_at"],
    )
