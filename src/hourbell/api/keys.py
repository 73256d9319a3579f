"""API keys: create, list, read, revoke."""

from __future__ import annotations

from litestar import Response
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from hourbell.api.answers import JSON, answer, render_page
from hourbell.api.auth import Authenticator
from hourbell.api.queries import PageQuery
from hourbell.api.requests import (
    AnyRequest,
    read_bare_write,
    read_page_request,
    read_write,
    refuse_query,
)
from hourbell.api.routes import EngineDep, PathParam, Route
from hourbell.documents.keys import parse_new_key
from hourbell.engine.operations import api_keys
from hourbell.model.ids import key_text, parse_key_id
from hourbell.security.access import ADMINISTER

KEYS = "/api/v1/keys"
KEY = "/api/v1/keys/{key_id}"

AuthenticatorDep = NamedDependency[SkipValidation[Authenticator]]


async def create_key(
    engine: EngineDep, authenticator: AuthenticatorDep, request: AnyRequest
) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    made = await api_keys.create_key(engine, parse_new_key(document), write)
    authenticator.require_keys()
    location = {"Location": f"{KEYS}/{key_text(made.made.key_id)}"}
    return answer({**api_keys.render_key(made.made), "key": made.key}, 201, location)


async def list_keys(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    part = read_page_request(request)
    page = await api_keys.list_keys(engine, part.page_size, part.page_token)
    return answer(render_page(request, page, api_keys.render_key))


async def get_key(engine: EngineDep, request: AnyRequest, key_id: PathParam) -> Response[bytes]:
    refuse_query(request)
    return answer(api_keys.render_key(await api_keys.get_key(engine, parse_key_id(key_id))))


async def revoke_key(engine: EngineDep, request: AnyRequest, key_id: PathParam) -> Response[bytes]:
    write = await read_bare_write(request)
    return answer(
        api_keys.render_key(await api_keys.revoke_key(engine, parse_key_id(key_id), write))
    )


ROUTES = (
    Route(
        method="POST",
        path=KEYS,
        handler=create_key,
        access=ADMINISTER,
        summary="Create an API key",
        description=(
            "Only this response contains the key; the response to a repeated request omits it. The "
            "first key must have the role admin and no tenant. From then on every request needs a "
            "key: on this node before the response is sent, on all others within 1 second."
        ),
        body="NewKey",
        media_types=(JSON,),
        answers={201: "MadeKey"},
    ),
    Route(
        method="GET",
        path=KEYS,
        handler=list_keys,
        access=ADMINISTER,
        summary="List API keys, newest first",
        query=PageQuery,
        answers={200: "KeyPage"},
    ),
    Route(
        method="GET",
        path=KEY,
        handler=get_key,
        access=ADMINISTER,
        summary="Get an API key, without its secret",
        answers={200: "Key"},
    ),
    Route(
        method="DELETE",
        path=KEY,
        handler=revoke_key,
        access=ADMINISTER,
        summary="Revoke an API key",
        description="All nodes reject the key within 5 seconds.",
        answers={200: "Key"},
    ),
)
