"""What a route is: said once, served by `app` and described by `openapi`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

import msgspec
from litestar import Response
from litestar.di import NamedDependency
from litestar.params import FromPath, SkipValidation

from hourbell.engine.core import Engine

# What handlers ask for by name.
TheEngine = NamedDependency[SkipValidation[Engine]]
InPath = FromPath[str]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str  # with {parameters}
    handler: Callable[..., Awaitable[Response[bytes]]]
    summary: str
    answers: Mapping[int, str]  # status → name of the schema, the usual one first
    description: str = ""
    body: str | None = None  # name of the schema
    media_types: tuple[str, ...] = ()  # of the body
    query: tuple[str, ...] = ()  # names of parameters
    conflicts: bool = False  # may stand against the present state

    @property
    def writes(self) -> bool:
        return self.method != "GET"

    @property
    def operation_id(self) -> str:
        return self.handler.__name__
