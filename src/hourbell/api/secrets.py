"""Secrets: set, list, delete. Their values can be written but not read."""

from __future__ import annotations

from typing import Any

from litestar import Response

from hourbell.api.answers import JSON, answer, render_page
from hourbell.api.queries import TenantPageQuery, TenantQuery
from hourbell.api.requests import (
    AnyRequest,
    read_tenant_page_request,
    read_tenant_write,
    read_write,
)
from hourbell.api.routes import EngineDep, KeyRingDep, PathParam, Route
from hourbell.documents.secrets import parse_new_secret
from hourbell.engine.operations import secrets
from hourbell.engine.operations.secrets import StoredSecret
from hourbell.model.instants import format_instant
from hourbell.security.access import OPERATE

SECRETS = "/api/v1/secrets"
SECRET = "/api/v1/secrets/{name}"


async def set_secret(
    engine: EngineDep, key_ring: KeyRingDep, request: AnyRequest, name: PathParam
) -> Response[bytes]:
    document, write = await read_write(request, JSON)
    new = parse_new_secret(document)
    done = await secrets.set_secret(engine, key_ring, name, new, write)
    effective_at = format_instant(done.effective_at)
    return answer({**_render(done.secret), "value": done.value, "effective_at": effective_at})


async def list_secrets(engine: EngineDep, request: AnyRequest) -> Response[bytes]:
    tenant, part = read_tenant_page_request(request)
    page = await secrets.list_secrets(engine, tenant, part.page_size, part.page_token)
    return answer(render_page(request, page, _render))


async def delete_secret(engine: EngineDep, request: AnyRequest, name: PathParam) -> Response[bytes]:
    write, tenant = await read_tenant_write(request)
    return answer(_render(await secrets.delete_secret(engine, name, tenant, write)))


def _render(secret: StoredSecret) -> dict[str, Any]:
    until = secret.previous_until
    return {
        "name": secret.name,
        "tenant_id": secret.tenant_id,
        "created_at": format_instant(secret.created_at),
        "updated_at": format_instant(secret.updated_at),
        "previous_until": None if until is None else format_instant(until),
    }


ROUTES = (
    Route(
        method="PUT",
        path=SECRET,
        handler=set_secret,
        access=OPERATE,
        summary="Set a secret",
        description=(
            "Jobs of the tenant use it as {{secret:name}} in the url, headers and body of a "
            "webhook. Responses never contain its value, except that a generated value is returned "
            "once. With keep_previous_seconds, requests are also signed with the previous value "
            "for that long. The secret `webhook-signing`, and a secret that replaces a signing "
            "secret, must be a signing secret."
        ),
        body="NewSecret",
        media_types=(JSON,),
        answers={200: "SetSecret"},
        needs_secret_keys=True,
    ),
    Route(
        method="GET",
        path=SECRETS,
        handler=list_secrets,
        access=OPERATE,
        summary="List the secrets of a tenant, without their values",
        query=TenantPageQuery,
        answers={200: "SecretPage"},
    ),
    Route(
        method="DELETE",
        path=SECRET,
        handler=delete_secret,
        access=OPERATE,
        summary="Delete a secret",
        query=TenantQuery,
        answers={200: "Secret"},
    ),
)
