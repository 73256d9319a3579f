"""The job that holds a name or a unique key: the one job with it that has not ended."""

from __future__ import annotations

import msgspec

from hourbell.documents.fields import Field
from hourbell.documents.jobs import JobDocument
from hourbell.documents.problems import Problems
from hourbell.engine.core import Engine
from hourbell.engine.life.create.rows import NAME, UNIQUE_KEY
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import NotFound
from hourbell.model.jobs import DEFAULT_TENANT, Job
from hourbell.store.queries import queries

_Q = queries("jobs")


class JobKey(msgspec.Struct, frozen=True):
    """The name or the unique key of a job, as requested."""

    tenant: str
    space: int
    text: str

    @property
    def described(self) -> str:
        what = "put under the name" if self.space == NAME else "with the unique_key"
        return f"{what} {self.text} that has not ended"


def name_key(engine: Engine, name: str, tenant_id: str | None) -> JobKey:
    """A name that PUT has given; InvalidInput if no job can have it."""
    return _key(engine, NAME, JobDocument.name, name, tenant_id)


def unique_key(engine: Engine, text: str, tenant_id: str | None) -> JobKey:
    """A unique key; InvalidInput if no job can have it."""
    return _key(engine, UNIQUE_KEY, JobDocument.unique_key, text, tenant_id)


def _key(
    engine: Engine, space: int, field: Field[str | None], text: str, tenant_id: str | None
) -> JobKey:
    if tenant_id is not None:
        engine.require_access(tenant_id)
    problems = Problems()
    field.kind.read(text, field.name, problems)
    problems.raise_if_any()
    return JobKey(tenant_id or engine.scope or DEFAULT_TENANT, space, text)


async def find_holder(engine: Engine, tenant: str, space: int, text: str) -> int | None:
    """The id of the job that holds a key; None: there is none that has not ended."""
    holder: int | None = await engine.database.value(_Q["holder"], tenant, space, text)
    return holder


async def holder_of(engine: Engine, key: JobKey) -> int:
    """The id of the job that holds a key; NotFound if there is none."""
    holder = await find_holder(engine, key.tenant, key.space, key.text)
    if holder is None:
        raise NotFound("job", key.described)
    return holder


async def get_job_by_key(engine: Engine, key: JobKey) -> Job:
    """The job that holds a key."""
    return await get_job(engine, await holder_of(engine, key))
