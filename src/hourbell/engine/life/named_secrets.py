"""named: check that the secrets which jobs and monitors name exist, before storing them.

Jobs that name none cost nothing; those of a group or a batch are looked up together, each name
once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hourbell.engine.core import Engine
from hourbell.model.errors import FieldError, InvalidInput
from hourbell.model.jobs import NewJob
from hourbell.security.secrets import MAX_OF_REQUEST, required_secrets
from hourbell.store.queries import queries

_Q = queries("secrets")

Required = Mapping[str, Collection[str]]  # names of secrets by the path of the field


class NamedSecrets:
    """The secrets looked up so far."""

    def __init__(self) -> None:
        self._exists: dict[tuple[str, str], bool] = {}

    async def look_up(self, engine: Engine, required: Iterable[tuple[str, Required]]) -> None:
        """Look up required secrets that are not known yet, in at most one statement."""
        wanted = {
            (tenant, name)
            for tenant, fields in required
            for names in fields.values()
            for name in names
        } - self._exists.keys()
        if not wanted:
            return
        tenants, names = zip(*wanted, strict=True)
        rows = await engine.database.fetch(_Q["existing"], list(tenants), list(names))
        self._exists |= dict.fromkeys(wanted, False)
        self._exists |= {(row["tenant"], row["name"]): True for row in rows}

    def require(self, tenant: str, required: Required) -> None:
        """Raise InvalidInput with every field that names a secret the tenant does not have."""
        problems = [
            FieldError(path, "unknown_secret", _missing(name, tenant))
            for path, names in required.items()
            for name in sorted(names)
            if not self._exists[tenant, name]
        ]
        if problems:
            raise InvalidInput(problems[:MAX_OF_REQUEST])


async def require_secrets(engine: Engine, tenant: str, required: Required) -> None:
    """Raise InvalidInput if a tenant lacks a required secret."""
    named = NamedSecrets()
    await named.look_up(engine, [(tenant, required)])
    named.require(tenant, required)


async def require_secrets_of(engine: Engine, job: NewJob) -> None:
    """Raise InvalidInput if the tenant of a job lacks a secret that the job requires."""
    await require_secrets(engine, job.tenant_id, required_secrets(job))


def _missing(name: str, tenant: str) -> str:
    return (
        f"names the secret {name}, which tenant {tenant} does not have. Set it with "
        f'PUT /api/v1/secrets/{name}, or send "secrets": "lazy" to set it later'
    )
