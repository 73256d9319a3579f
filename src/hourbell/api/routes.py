"""The Route struct: defined once, served by `app` and described by `openapi`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec
from litestar import Response
from litestar.di import NamedDependency
from litestar.params import FromPath, SkipValidation

from hourbell.dispatch.remote import RemoteWorkers
from hourbell.documents.fields import Document
from hourbell.engine.core import Engine
from hourbell.security.access import Access
from hourbell.security.sealing import KeyRing

# Dependencies that handlers request by parameter name.
EngineDep = NamedDependency[SkipValidation[Engine]]
KeyRingDep = NamedDependency[SkipValidation[KeyRing]]
RemoteWorkersDep = NamedDependency[SkipValidation[RemoteWorkers]]
PathParam = FromPath[str]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str  # with {parameters}
    handler: Callable[..., Awaitable[Response[Any]]]
    access: Access | None  # allowed roles; None: no API key needed
    summary: str
    answers: Mapping[int, str]  # status → name of the schema, most common first
    description: str = ""
    answer_type: str = "application/json"  # media type of the answers
    body: str | None = None  # name of the schema
    media_types: tuple[str, ...] = ()  # of the body
    max_body_bytes: int = 1024 * 1024
    query: type[Document] = Document  # its parameters
    body_required: bool = True
    conditional: bool = False  # takes If-Match
    refers_to_others: bool = False  # the body refers to another resource by id
    conflicts: bool = False  # may conflict with the current state
    needs_secret_keys: bool = False  # needs the keys that encrypt secrets
    creates_jobs: bool = False  # creates jobs, which may have unique keys
    whole_cell: bool = False  # refused to a key that belongs to a tenant
    # A write needs an Idempotency-Key; False if its own content makes it safe to repeat.
    keyed: bool = True
    error_codes: tuple[str, ...] = ()  # error codes that only a few routes have
    during_outage: bool = False  # known keys are accepted while the database is down

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def needs_key(self) -> bool:
        return self.writes and self.keyed

    @property
    def operation_id(self) -> str:
        return self.handler.__name__
