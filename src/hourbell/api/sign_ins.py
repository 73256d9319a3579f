"""Browser sessions: sign in with an API key, sign out, and see what the caller may do.

The dashboard sends the API key once. The response sets a cookie that scripts cannot read, with a
random token that stands for the key. Calls by cookie work like calls by key, with one difference: a
browser sends cookies on its own, so a write by cookie must prove that it comes from a page of this
server (`require_same_origin`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from litestar import Response
from litestar.di import NamedDependency
from litestar.params import SkipValidation

from hourbell import __version__
from hourbell.api.answers import JSON, answer
from hourbell.api.auth import (
    CLIENT_HEADER,
    COOKIES,
    DASHBOARD,
    SECURE_COOKIE,
    Authenticator,
    is_local,
    name_in,
    require_same_origin,
)
from hourbell.api.requests import AnyRequest, read_call, refuse_query
from hourbell.api.routes import EngineDep, Route
from hourbell.documents.keys import parse_sign_in
from hourbell.engine.operations import sign_ins
from hourbell.model.ids import key_text
from hourbell.model.instants import format_instant
from hourbell.security.access import ANY_ROLE, Caller, KeyRole

SESSION = "/api/v1/session"

AuthenticatorDep = NamedDependency[SkipValidation[Authenticator]]
Operations = Mapping[tuple[KeyRole, bool], tuple[str, ...]]  # by role, and whether for one tenant
OperationsDep = NamedDependency[SkipValidation[Operations]]


def operations_by_role(routes: Iterable[Route]) -> Operations:
    """The ids of the operations that each role may call, in order."""
    return {
        (role, of_tenant): tuple(
            sorted(
                route.operation_id
                for route in routes
                if (route.access is None or role in route.access)
                and not (of_tenant and route.whole_cell)
            )
        )
        for role in KeyRole
        for of_tenant in (False, True)
    }


async def create_session(
    engine: EngineDep,
    authenticator: AuthenticatorDep,
    operations: OperationsDep,
    request: AnyRequest,
) -> Response[bytes]:
    key = parse_sign_in(await read_call(request))
    require_same_origin(request)
    caller, token = await authenticator.sign_in(request, key)
    response = answer(_render_me(caller, operations, requires_keys=True))
    secure = _is_encrypted(request)
    response.set_cookie(
        key=COOKIES[secure],
        value=token,
        max_age=int(sign_ins.LIFETIME.total_seconds()),
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )
    return response


async def delete_session(authenticator: AuthenticatorDep, request: AnyRequest) -> Response[bytes]:
    refuse_query(request)
    response = answer({"status": "signed_out"})
    sent = [name for name in COOKIES if name in request.cookies]
    if not sent:
        return response
    require_same_origin(request)
    await authenticator.sign_out(request)
    for name in sent:
        response.set_cookie(
            key=name,
            value="",
            max_age=0,
            path="/",
            secure=name == SECURE_COOKIE,
            httponly=True,
            samesite="strict",
        )
    return response


async def get_me(
    engine: EngineDep,
    authenticator: AuthenticatorDep,
    operations: OperationsDep,
    request: AnyRequest,
) -> Response[bytes]:
    refuse_query(request)
    caller: Caller = request.scope["state"]["caller"]
    return answer(_render_me(caller, operations, authenticator.requires_keys))


def _render_me(caller: Caller, operations: Operations, requires_keys: bool) -> dict[str, object]:
    ends_at = caller.sign_in_ends_at
    return {
        "key_id": None if caller.key_id is None else key_text(caller.key_id),
        "name": caller.key_name,
        "role": caller.role,
        "tenant_id": caller.tenant,
        "version": __version__,
        "requires_keys": requires_keys,
        "authenticated_by": "nothing"
        if caller.key_id is None
        else "key"
        if ends_at is None
        else "session",
        "session_expires_at": None if ends_at is None else format_instant(ends_at),
        "operations": operations[caller.role, caller.tenant is not None],
    }


def _is_encrypted(request: AnyRequest) -> bool:
    """Whether the browser reaches this server over HTTPS, perhaps through a proxy that terminates it.

    The origin of the page says so. Without one, the browser has at least declared that it trusts the
    connection (`require_same_origin`), which it does for HTTPS and for this machine.
    """
    origin: str = request.headers.get("Origin", "")
    if origin:
        return origin.startswith("https://")
    return not is_local(name_in(request.headers.get("Host", "")))


_PROOF = (
    f"The request must have `{CLIENT_HEADER}: {DASHBOARD}`, and `Sec-Fetch-Site: same-origin` or, "
    f"from a browser that does not send that, an Origin equal to the Host."
)

ROUTES = (
    Route(
        method="POST",
        path=SESSION,
        handler=create_session,
        access=None,
        summary="Sign in with an API key",
        description=(
            "For browsers: the response sets a cookie that stands for the key. It is valid for 7 days, until "
            "it has not been used for 12 hours, or until the key is revoked. Worker keys are rejected. "
            + _PROOF
        ),
        body="SignIn",
        media_types=(JSON,),
        max_body_bytes=4096,
        answers={200: "Me"},
        keyed=False,
        error_codes=("unauthenticated", "forbidden", "cross_site_request", "too_many_failures"),
    ),
    Route(
        method="DELETE",
        path=SESSION,
        handler=delete_session,
        access=None,
        summary="Sign out",
        description=(
            "Ends the session of the cookie and clears the cookie. Without a cookie, does "
            "nothing. " + _PROOF
        ),
        answers={200: "SignedOut"},
        keyed=False,
        error_codes=("cross_site_request",),
    ),
    Route(
        method="GET",
        path="/api/v1/me",
        handler=get_me,
        access=ANY_ROLE,
        summary="Show who the caller is and what it may do",
        answers={200: "Me"},
    ),
)
