"""secrets: set, list and delete secrets; read them for workers and for redacting completions.

A value comes in once and is never returned: not in answers, not in the audit trail, not in the
stored answer of a write. A request that sets a value may keep the previous one valid for a while:
for signing secrets, both then sign.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

import asyncpg
import msgspec

from hourbell.documents.secrets import NewSecret
from hourbell.engine.core import Engine
from hourbell.engine.groups import GroupExecutor, Submission
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    Idempotent,
    Write,
    insert_audit_row,
)
from hourbell.engine.views.pages import Page, by_name, first_rows, read_name
from hourbell.model.errors import Conflict, FieldError, InvalidInput, NoSecretKeys, NotFound
from hourbell.model.jobs import DEFAULT_TENANT, WebhookAction
from hourbell.security.sealing import KeyRing, Sealed
from hourbell.security.secrets import (
    DEFAULT_SIGNING_SECRET,
    MAX_SECRET_BYTES_PER_REQUEST,
    SECRET_NAME,
    SECRET_NAME_IS,
    SIGNING_PREFIX,
    Redactor,
    Secret,
    literal_credentials,
    new_signing_secret,
    secret_names,
    signer_of,
    signing_secret_problem,
)
from hourbell.store.database import translate_errors
from hourbell.store.queries import queries

MAX_SECRETS = 1_000  # of one tenant
FRESH_SECONDS = 2.0  # how long a worker uses a cached value
_MAX_CACHED = 10_000
_MAX_WAITING_LOOKUPS = 100_000  # more than the slots of a worker
_LOOKUP_SECONDS = 5.0  # timeout of a lookup, since other callers wait for it
_RESEAL_BATCH = 100
# How long a worker may use a value that was replaced: a cached one, or the result of a slow lookup.
IN_USE_SECONDS = max(FRESH_SECONDS, _LOOKUP_SECONDS)

_Q = queries("secrets")
_FAILPOINTS = CommitFailpoints("configure.before_commit", "configure.after_commit")


class StoredSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret as users see it: everything but its value."""

    name: str
    tenant_id: str
    created_at: datetime
    updated_at: datetime
    previous_until: datetime | None


class SetSecret(msgspec.Struct, frozen=True):
    """The secret that was set; a value generated here is shown only in this answer."""

    secret: StoredSecret
    value: str | None
    # Webhooks that begin after this are signed and filled in with the value; earlier ones perhaps too.
    effective_at: datetime


async def set_secret(
    engine: Engine, ring: KeyRing, name: str, new: NewSecret, write: Write
) -> SetSecret:
    """Set the value of a tenant's secret; an unknown name creates the secret."""
    _check_name(name)
    tenant_id = _owner(engine, new.tenant_id)
    now = await engine.clock.now()
    value = new_signing_secret() if new.value is None else new.value
    cannot_sign = signing_secret_problem(value)
    if cannot_sign and (name == DEFAULT_SIGNING_SECRET or value.startswith(SIGNING_PREFIX)):
        raise _unusable(f"{cannot_sign}, because webhooks are signed with it")
    sealed = ring.seal(value, _belongs_to(tenant_id, name))
    # The fingerprint covers the value, and some values are easy to guess, so it is stored as a MAC.
    # MACs by older keys are still recognized.
    newest, *older = ring.macs(write.fingerprint)
    write = msgspec.structs.replace(write, fingerprint=newest, older_fingerprints=tuple(older))
    writing = Idempotent(engine, write, _FAILPOINTS, tenant_id, now, StoredSecret)
    async for attempt in writing:
        tenant = await engine.tenant(tenant_id, now)
        async with attempt.transaction(tenant) as connection:
            row = await connection.fetchrow(_Q["lock_secret"], tenant, name)
            if (
                row is None
                and await connection.fetchval(_Q["count_secrets"], tenant) >= MAX_SECRETS
            ):
                raise Conflict(f"A tenant can have {MAX_SECRETS} secrets. Delete one first.")
            if row is not None and row["signs"] and cannot_sign:
                raise _unusable(
                    f"{cannot_sign}, because it replaces a signing secret. To store another kind "
                    "of value under this name, delete the secret first"
                )
            keeps = row is not None and new.keep_previous_seconds > 0
            until = now + timedelta(seconds=new.keep_previous_seconds) if keeps else None
            created = await connection.fetchval(
                _Q["put_secret"],
                tenant,
                name,
                sealed.content,
                sealed.by,
                row["sealed"] if keeps and row else None,
                row["sealed_by"] if keeps and row else None,
                until,
                now,
                cannot_sign is None,
            )
            details = msgspec.json.encode({"name": name}).decode()
            await insert_audit_row(
                connection, write, now, tenant, None, "set_secret", None, details
            )
            attempt.answer = StoredSecret(
                name=name,
                tenant_id=tenant_id,
                created_at=created,
                updated_at=now,
                previous_until=until,
            )
    generated = writing.executed and new.value is None
    effective_at = await engine.clock.now() + timedelta(seconds=IN_USE_SECONDS)
    return SetSecret(writing.answer, value if generated else None, effective_at)


async def delete_secret(
    engine: Engine, name: str, tenant_id: str | None, write: Write
) -> StoredSecret:
    """Delete a secret; it is unavailable from now on."""
    _check_name(name)
    tenant_id = _owner(engine, tenant_id)
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _FAILPOINTS, tenant_id, now, StoredSecret)
    async for attempt in writing:
        tenant = await engine.tenant(tenant_id, now)
        async with attempt.transaction(tenant) as connection:
            row = await connection.fetchrow(_Q["lock_secret"], tenant, name)
            if row is None:
                raise NotFound("secret", name)
            await connection.execute(_Q["delete_secret"], tenant, name)
            details = msgspec.json.encode({"name": name}).decode()
            await insert_audit_row(
                connection, write, now, tenant, None, "delete_secret", details, None
            )
            attempt.answer = _stored(row, tenant_id)
    return writing.answer


async def list_secrets(
    engine: Engine, tenant_id: str | None, page_size: int, token: str | None
) -> Page:
    """The secrets of a tenant by name, without their values."""
    tenant_id = _owner(engine, tenant_id)
    after = read_name(token)
    rows = await engine.database.fetch(_Q["list_secrets"], tenant_id, after, page_size + 1)
    return first_rows(rows, page_size, lambda row: _stored(row, tenant_id), by_name)


async def reseal(engine: Engine, ring: KeyRing) -> int:
    """Re-encrypt all values sealed by older keys with the first of the ring; returns how many."""
    count = 0
    while True:
        rows = await engine.database.fetch(_Q["sealed_by_others"], ring.sealing_key, _RESEAL_BATCH)
        for row in rows:
            belongs_to = _belongs_to(row["tenant_name"], row["name"])
            value = ring.open(Sealed(row["sealed"], row["sealed_by"]), belongs_to)
            fresh = ring.seal(value, belongs_to)
            before = None
            if row["previous"] is not None:
                previous = ring.open(Sealed(row["previous"], row["previous_by"]), belongs_to)
                before = ring.seal(previous, belongs_to)
            await engine.database.value(
                _Q["reseal"],
                row["tenant"],
                row["name"],
                row["sealed"],
                fresh.content,
                fresh.by,
                None if before is None else before.content,
                None if before is None else before.by,
            )
        count += len(rows)
        if len(rows) < _RESEAL_BATCH:
            return count


class _Read(msgspec.Struct, frozen=True):
    """A sealed secret, or None if there is none, with the time of the read."""

    row: asyncpg.Record | None
    at: float  # monotonic


_Name = tuple[str, str]  # the names of a tenant and of its secret
_Names = Sequence[_Name]
_Found = Mapping[_Name, _Read]


class StoredSecrets:
    """The secrets of tenants, for a worker that sends requests: cached sealed, opened each time."""

    def __init__(self, engine: Engine, ring: KeyRing) -> None:
        self._engine = engine
        self._ring = ring
        self._read: dict[_Name, _Read] = {}
        # Lookups by webhooks of many tenants at the same moment share one query.
        self._lookups: GroupExecutor[_Names, _Found] = GroupExecutor(
            max_waiting=_MAX_WAITING_LOOKUPS
        )

    async def values(self, tenant: str, names: Collection[str]) -> Mapping[str, Secret]:
        """The values of the given secrets that exist."""
        wanted = [(tenant, name) for name in names]
        known = {key: read for key in wanted if (read := self._read.get(key)) is not None}
        fresh_since = time.monotonic() - FRESH_SECONDS
        missing = [key for key in wanted if key not in known or known[key].at < fresh_since]
        if missing:
            found = await self._lookups.submit(missing, self._look_up)
            # Values that were fresh before the wait may have been replaced during it.
            known |= {key: self._read[key] for key in wanted if key in self._read}
            known |= {key: found[key] for key in missing}
        sealed = [row for key in wanted if (row := known[key].row) is not None]
        if not sealed:
            return {}
        rotates = any(row["previous"] is not None for row in sealed)
        now = await self._engine.clock.now() if rotates else None
        return {row["name"]: _unsealed(self._ring, tenant, row, now) for row in sealed}

    async def _look_up(self, submissions: Sequence[Submission[_Names, _Found]]) -> None:
        wanted = {key for submission in submissions for key in submission.request}
        at = time.monotonic()
        with translate_errors():
            async with asyncio.timeout(_LOOKUP_SECONDS):
                rows = await _sealed(self._engine, wanted)
        found = {key: _Read(None, at) for key in wanted}
        found |= {(row["tenant"], row["name"]): _Read(row, at) for row in rows}
        if len(self._read) > _MAX_CACHED:
            self._read.clear()
        self._read |= found
        for submission in submissions:
            submission.answer(found)


async def redactor_of_sent(
    engine: Engine, ring: KeyRing, tenant: str, action: WebhookAction, sent_at: datetime
) -> Redactor | None:
    """A redactor for the secrets and the literal credentials of a sent request.

    None if the secrets cannot be determined or opened.
    """
    names = secret_names(action)
    rows = await _sealed(engine, [(tenant, name) for name in {*names, signer_of(action)}])
    if not names <= {row["name"] for row in rows}:
        return None
    # A worker may have read the value slightly earlier; a re-created secret has no previous value.
    since = sent_at - timedelta(seconds=IN_USE_SECONDS)
    if any(row["updated_at"] > since for row in rows if row["name"] in names):
        return None
    try:
        known = [_unsealed(ring, tenant, row, sent_at) for row in rows]
    except NoSecretKeys:
        return None
    values = {value for secret in known for value in secret.values}
    values |= literal_credentials(action.headers)
    if sum(len(value.encode()) for value in values) > MAX_SECRET_BYTES_PER_REQUEST:
        return None
    return Redactor(sorted(values))


async def _sealed(engine: Engine, wanted: Collection[_Name]) -> Sequence[asyncpg.Record]:
    """The given secrets that exist, sealed."""
    return await engine.database.fetch(
        _Q["sealed"], [tenant for tenant, _ in wanted], [name for _, name in wanted]
    )


def _unsealed(ring: KeyRing, tenant: str, row: asyncpg.Record, now: datetime | None) -> Secret:
    """A secret, with its previous value if that is still valid at `now`."""
    belongs_to = _belongs_to(tenant, row["name"])
    previous = None
    if now is not None and row["previous"] is not None and row["previous_until"] > now:
        previous = ring.open(Sealed(row["previous"], row["previous_by"]), belongs_to)
    return Secret(ring.open(Sealed(row["sealed"], row["sealed_by"]), belongs_to), previous)


def _unusable(message: str) -> InvalidInput:
    return InvalidInput([FieldError("value", "bad_format", message)])


def _owner(engine: Engine, tenant_id: str | None) -> str:
    if tenant_id is None:
        return engine.scope or DEFAULT_TENANT
    engine.require_access(tenant_id)
    return tenant_id


def _check_name(name: str) -> None:
    if not SECRET_NAME.fullmatch(name):
        raise InvalidInput([FieldError("name", "bad_format", f"must be {SECRET_NAME_IS}")])


def _belongs_to(tenant_id: str, name: str) -> str:
    return f"{tenant_id}\0{name}"


def _stored(row: asyncpg.Record, tenant_id: str) -> StoredSecret:
    return StoredSecret(
        name=row["name"],
        tenant_id=tenant_id,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        previous_until=row["previous_until"],
    )
