"""What a route is: said once, served by `app` and described by `openapi`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import msgspec
from litestar import Response
from litestar.di import NamedDependency
from litestar.params import FromPath, SkipValidation

from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import Engine
from hourbell.security.access import Access
from hourbell.security.sealing import KeyRing

# What handlers ask for by name.
TheEngine = NamedDependency[SkipValidation[Engine]]
TheKeyRing = NamedDependency[SkipValidation[KeyRing]]
TheWorkers = NamedDependency[SkipValidation[RemoteWorkers]]
InPath = FromPath[str]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str  # with {parameters}
    handler: Callable[..., Awaitable[Response[bytes]]]
    access: Access | None  # who may; None: anybody, without a key of his own
    summary: str
    answers: Mapping[int, str]  # status → name of the schema, the usual one first
    description: str = ""
    body: str | None = None  # name of the schema
    media_types: tuple[str, ...] = ()  # of the body
    max_body_bytes: int = 1024 * 1024
    query: tuple[str, ...] = ()  # names of parameters
    body_required: bool = True
    conditional: bool = False  # takes If-Match
    names_others: bool = False  # the body names something by its id
    conflicts: bool = False  # may stand against the present state
    seals: bool = False  # needs the keys of secrets
    creates: bool = False  # makes jobs, which may have unique keys
    keyed: bool = (
        True  # if it writes, it needs an Idempotency-Key; else what it says makes it safe to repeat
    )
    refusals: tuple[str, ...] = ()  # codes that only a few routes have

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def needs_key(self) -> bool:
        return self.writes and self.keyed

    @property
    def operation_id(self) -> str:
        return self.handler.__name__
