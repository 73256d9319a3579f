"""limits: set and read the limits of tenants, queues and targets at run time.

A setting is written in a transaction of its own and takes effect immediately. Executions that were
ready before a limit was set or lowered are checked when claimed, and go through the gate again if
necessary. Running executions are counted by the next pass of the gate. Executions that wait for a
limit that was raised or removed are woken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from urllib.parse import urlsplit

import asyncpg
import msgspec

from hourbell.documents.problems import shown_key
from hourbell.documents.settings import check_label, check_retry_policy
from hourbell.engine.core import Engine
from hourbell.engine.operations.idempotency import (
    CommitFailpoints,
    Idempotent,
    Write,
    insert_audit_row,
)
from hourbell.model.errors import FieldError, Forbidden, InvalidInput, NotFound
from hourbell.model.jobs import DEFAULT_TENANT, host_of, url_problem
from hourbell.model.limits import Limits, QueueSettings, RateLimit, TenantSettings
from hourbell.model.policies import RetryPolicy
from hourbell.store.database import Connection
from hourbell.store.queries import queries

# Kinds of blockers, as in functions/codes.sql.
(
    BLOCKER_QUEUE,
    BLOCKER_TENANT,
    BLOCKER_TARGET,
    BLOCKER_CONCURRENCY_KEY,
    BLOCKER_JOB,
    BLOCKER_TASK,
    BLOCKER_FAILURE,
) = range(1, 8)

_Q = queries("limits")
_RESOURCES = queries("resources")
_FAILPOINTS = CommitFailpoints("configure.before_commit", "configure.after_commit")


async def set_tenant(engine: Engine, name: str, settings: TenantSettings, write: Write) -> None:
    """Set the weight, limits, quota and retention of a tenant; they replace the current ones."""
    if engine.scope is not None:
        raise Forbidden("The limits of a tenant can only be set with a key of all tenants.")
    check_label(name, "tenant_id")
    settings.check()
    _check_ledger_days(engine, settings)
    now = await engine.clock.now()
    writing = Idempotent(engine, write, _FAILPOINTS, name, now, type(None))
    async for attempt in writing:
        await _require_version(engine.database.row_or_none, write, "tenant", name)
        number = await engine.declaring().tenant(name, now)
        async with attempt.transaction(number) as connection:
            await connection.execute(_Q["lock_limits"])
            await _require_version(connection.fetchrow, write, "tenant", name)
            await connection.execute(
                _Q["update_tenant"],
                number,
                settings.weight,
                settings.max_jobs,
                settings.ledger_days,
                settings.dead_letter_days,
                settings.audit_days,
            )
            await _set_limit(connection, BLOCKER_TENANT, number, settings, now)
            after = _named("tenant_id", name, settings)
            await insert_audit_row(
                connection, write, now, number, None, "configure_tenant", None, after
            )
            attempt.answer = None
    if writing.executed:
        engine.announce()


def _named(kind: str, name: str, settings: Limits) -> str:
    """Settings with whose they are, for the audit trail."""
    return msgspec.json.encode({kind: name} | msgspec.to_builtins(settings)).decode()


def _check_ledger_days(engine: Engine, settings: TenantSettings) -> None:
    max_days = engine.times.ledger_days
    if settings.ledger_days is not None and settings.ledger_days > max_days:
        problem = (
            f"must be at most {max_days}: the cell drops whole days after that"
            " (HOURBELL_LEDGER_DAYS)"
        )
        raise InvalidInput([FieldError("ledger_days", "out_of_range", problem)])


async def set_queue(engine: Engine, name: str, settings: QueueSettings, write: Write) -> None:
    """Set the limits and defaults of a queue of the cell; they replace the current ones."""
    if engine.scope is not None:
        raise NotFound("queue", shown_key(name))
    check_label(name, "queue")
    settings.check()
    retries = settings.default_retry_policy
    if retries is not None:
        check_retry_policy(retries, "default_retry_policy")
    now = await engine.clock.now()
    tenant = await engine.tenant(DEFAULT_TENANT, now)
    writing = Idempotent(engine, write, _FAILPOINTS, DEFAULT_TENANT, now, type(None))
    async for attempt in writing:
        await _require_version(engine.database.row_or_none, write, "queue", name)
        number = await engine.declaring().queue(name, now)
        async with attempt.transaction(tenant) as connection:
            await connection.execute(_Q["lock_limits"])
            await _require_version(connection.fetchrow, write, "queue", name)
            await _set_limit(connection, BLOCKER_QUEUE, number, settings, now)
            stored = None if retries is None else msgspec.json.encode(retries).decode()
            await connection.execute(
                _Q["set_defaults"], number, settings.default_timeout_seconds, stored
            )
            after = _named("queue", name, settings)
            await insert_audit_row(
                connection, write, now, tenant, None, "configure_queue", None, after
            )
            attempt.answer = None
    if writing.executed:
        engine.announce()


async def set_target(engine: Engine, host: str, limits: Limits, write: Write) -> None:
    """Set the limits of a host that webhooks call, for the whole cell; replaces current ones."""
    if engine.scope is not None:
        raise NotFound("target", shown_key(host))
    limits.check()
    now = await engine.clock.now()
    named = host_named(host)
    tenant = await engine.tenant(DEFAULT_TENANT, now)
    writing = Idempotent(engine, write, _FAILPOINTS, DEFAULT_TENANT, now, type(None))
    async for attempt in writing:
        await _require_version(engine.database.row_or_none, write, "target", named)
        number = await engine.target(named, now)
        async with attempt.transaction(tenant) as connection:
            await connection.execute(_Q["lock_limits"])
            await _require_version(connection.fetchrow, write, "target", named)
            await _set_limit(connection, BLOCKER_TARGET, number, limits, now)
            after = _named("host", host, limits)
            await insert_audit_row(
                connection, write, now, tenant, None, "configure_target", None, after
            )
            attempt.answer = None
    if writing.executed:
        engine.announce()


def limits_of(row: asyncpg.Record) -> Limits:
    """The limits in a row of `resources.sql`."""
    rate = None if row["rate"] is None else RateLimit(row["rate"], row["burst"])
    return Limits(max_concurrency=row["max_concurrency"], rate_limit=rate)


def queue_of(row: asyncpg.Record) -> QueueSettings:
    """The settings of a queue in a row of `resources.sql`."""
    return queue_settings(limits_of(row), row["timeout_seconds"], row["retry_policy"])


def queue_settings(limits: Limits, timeout: int | None, retries: str | None) -> QueueSettings:
    """The settings of a queue from its limits and its row."""
    return QueueSettings(
        max_concurrency=limits.max_concurrency,
        rate_limit=limits.rate_limit,
        default_timeout_seconds=timeout,
        default_retry_policy=None
        if retries is None
        else msgspec.json.decode(retries, type=RetryPolicy),
    )


def tenant_of(row: asyncpg.Record) -> TenantSettings:
    """The settings of a tenant in a row of `resources.sql`."""
    limits = limits_of(row)
    return TenantSettings(
        max_concurrency=limits.max_concurrency,
        rate_limit=limits.rate_limit,
        weight=row["weight"],
        max_jobs=row["max_jobs"],
        ledger_days=row["ledger_days"],
        dead_letter_days=row["dead_letter_days"],
        audit_days=row["audit_days"],
    )


_SETTINGS: Mapping[str, Callable[[asyncpg.Record], Limits]] = {
    "tenant": tenant_of,
    "queue": queue_of,
    "target": limits_of,
}


async def _require_version(
    read: Callable[..., Awaitable[asyncpg.Record | None]], write: Write, kind: str, name: str
) -> None:
    """Raise PreconditionFailed if the settings have another version than the write requires."""
    if write.if_versions is not None:
        row = await read(_RESOURCES[kind], name)
        version = 0 if row is None else _SETTINGS[kind](row).version
        write.require_version(f"{kind.capitalize()} {name}", version)


def host_named(text: object) -> str:
    """A host in the form that jobs use in their urls, or InvalidInput."""
    url = f"http://{text}/"
    found = host_of(url) if isinstance(text, str) and url_problem(url) is None else None
    if found is None or urlsplit(url).path != "/" or urlsplit(url).port is not None:
        problem = "must be a host as in a url, without scheme, port and path"
        raise InvalidInput([FieldError("host", "bad_format", problem)])
    return found


async def _set_limit(
    connection: Connection, kind: int, key: int, limits: Limits, now: datetime
) -> None:
    """Set or delete the limits of the blocker (kind, key)."""
    rate = limits.rate_limit
    if limits.max_concurrency is None and rate is None:
        await connection.execute(_Q["delete_limit"], kind, key)
    else:
        changed = await connection.fetchval(
            _Q["set_limit"],
            kind,
            key,
            limits.max_concurrency,
            None if rate is None else rate.per_second,
            None if rate is None else rate.burst,
        )
        if changed is not None:
            await connection.execute(_Q["recheck"], kind, key)
    await connection.execute(_Q["wake_gate"], now, kind, key)
