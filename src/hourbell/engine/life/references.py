"""References: the secrets and calendars that jobs and monitors name must exist when they are stored.

Jobs that name none cost nothing; those of a group or a batch are looked up together, each name
once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

import asyncpg

from hourbell.engine.core import Engine
from hourbell.model.errors import FieldCode, FieldError, InvalidInput
from hourbell.model.jobs import NewJob
from hourbell.model.schedules import Once, Schedule
from hourbell.security.secrets import MAX_SECRETS_PER_REQUEST, SIGNING_SECRET, required_secrets
from hourbell.store.queries import queries

_Q = queries("secrets")
_C = queries("calendars")

K = TypeVar("K")

Required = Mapping[str, Collection[str]]  # names of secrets by the path of the field


class _References:
    """References of one kind: the names looked up so far, and whether they exist."""

    def __init__(self, statement: str, code: FieldCode, missing: Callable[[str, str], str]) -> None:
        self._statement = statement
        self._code: FieldCode = code
        self._message = missing
        self._found: dict[tuple[str, str], asyncpg.Record | None] = {}

    async def missing(
        self, engine: Engine, required: Mapping[K, tuple[str, Required]]
    ) -> dict[K, InvalidInput]:
        """For each that requires what its tenant does not have: every field that names it.

        Names that are not known yet are looked up, in at most one statement.
        """
        unknown = {
            (tenant, name)
            for tenant, fields in required.values()
            for names in fields.values()
            for name in names
        } - self._found.keys()
        if unknown:
            tenants, wanted = zip(*unknown, strict=True)
            rows = await engine.database.fetch(self._statement, list(tenants), list(wanted))
            self._found |= dict.fromkeys(unknown)
            self._found |= {(row["tenant"], row["name"]): row for row in rows}
        problems = {}
        for key, (tenant, fields) in required.items():
            if errors := self._errors(tenant, fields):
                problems[key] = InvalidInput(errors[:MAX_SECRETS_PER_REQUEST])
        return problems

    def _errors(self, tenant: str, required: Required) -> list[FieldError]:
        return [
            error
            for path, names in required.items()
            for name in sorted(names)
            if (error := self._error(path, name, tenant, self._found[tenant, name])) is not None
        ]

    def _error(
        self, path: str, name: str, tenant: str, found: asyncpg.Record | None
    ) -> FieldError | None:
        if found is None:
            return FieldError(path, self._code, self._message(name, tenant))
        return None


class SecretReferences(_References):
    """References to secrets."""

    def __init__(self) -> None:
        super().__init__(_Q["existing"], "unknown_secret", _missing)

    def _error(
        self, path: str, name: str, tenant: str, found: asyncpg.Record | None
    ) -> FieldError | None:
        if found is not None and path == SIGNING_SECRET and not found["signs"]:
            message = (
                f"names the secret {name}, which cannot sign webhooks: it is not whsec_ and base64"
            )
            return FieldError(path, "bad_format", message)
        return super()._error(path, name, tenant, found)


class CalendarReferences(_References):
    """References to calendars."""

    def __init__(self) -> None:
        super().__init__(_C["existing_calendars"], "unknown_calendar", _missing_calendar)


def required_calendars(schedule: Schedule) -> Required:
    """The calendars that a schedule names."""
    exclude = () if isinstance(schedule, Once) else schedule.exclude
    return {"schedule.exclude": exclude} if exclude else {}


async def require_calendars(engine: Engine, tenant: str, schedule: Schedule) -> None:
    """Raise InvalidInput if a tenant lacks a calendar that a schedule names."""
    required = required_calendars(schedule)
    if required:
        named = {0: (tenant, required)}
        for error in (await CalendarReferences().missing(engine, named)).values():
            raise error


async def require_secrets(engine: Engine, tenant: str, required: Required) -> None:
    """Raise InvalidInput if a tenant lacks a required secret."""
    missing = await SecretReferences().missing(engine, {tenant: (tenant, required)})
    for error in missing.values():
        raise error


async def require_secrets_of(engine: Engine, job: NewJob) -> None:
    """Raise InvalidInput if the tenant of a job lacks a secret that the job requires."""
    await require_secrets(engine, job.tenant_id, required_secrets(job))


def _missing(name: str, tenant: str) -> str:
    return (
        f"names the secret {name}, which tenant {tenant} does not have. Set it with "
        f"PUT /api/v1/secrets/{name} or `hourbell secrets set {name} --tenant {tenant}`, "
        f'or send "secrets": "lazy" to set it later. {{{{ in a body is sent as it stands '
        f'with "literal": true'
    )


def _missing_calendar(name: str, tenant: str) -> str:
    return (
        f"names the calendar {name}, which tenant {tenant} does not have. Create it with "
        f"PUT /api/v1/calendars/{name}"
    )
