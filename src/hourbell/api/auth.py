"""Authentication: an API key in `Authorization: Bearer hb_…`, looked up and cached briefly.

A browser that has signed in sends a cookie instead (`sign_ins.py`). If a request has both, the key is
used. A write authenticated by cookie must come from a page of this server: see `require_same_origin`.

A server that only this machine can reach needs no key until the first one is created. Until then it
serves only requests whose Host header names this machine, so that a web page cannot reach it
through DNS rebinding.

The node that creates the first key starts to require keys before it responds. Every other node
checks the database again after KEYLESS_SECONDS.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from urllib.parse import urlsplit

import structlog

from hourbell.api.errors import CrossSiteRequest, Misdirected
from hourbell.api.requests import AnyRequest
from hourbell.api.routes import Route
from hourbell.engine.core import Engine
from hourbell.engine.groups import GroupExecutor, Submission
from hourbell.engine.operations.api_keys import KEYLESS_SECONDS, caller_of, is_keyless
from hourbell.engine.operations.sign_ins import sign_in, sign_out, signed_in
from hourbell.model.errors import (
    Forbidden,
    StoreUnavailable,
    TooManyFailures,
    Unauthenticated,
)
from hourbell.security.access import (
    ANONYMOUS,
    Caller,
    KeyRole,
    digest_of,
    sign_in_digest_of,
)

FRESH_SECONDS = 2.0  # how long a key is cached, so how long a revoked one may still be accepted
MAX_FAILURES = 20  # burst of failures allowed from one address,
SECONDS_PER_FAILURE = 3  # then one in this many seconds
OUTAGE_SECONDS = (
    2.0  # after this the database counts as down, for routes that work during an outage
)
_MAX_CACHED = 10_000
_MAX_WAITING = 100_000  # more than the connections of a server

# Browsers accept a cookie with this prefix only over HTTPS and only from this host.
SECURE_COOKIE = "__Host-hourbell"
COOKIES = ("hourbell", SECURE_COOKIE)  # by whether the page was loaded over HTTPS
CLIENT_HEADER = "X-Hourbell-Client"
DASHBOARD = "dashboard"

_SCHEME = "bearer"  # in small letters; any are allowed
_HOW_TO_AUTHENTICATE = (
    "Send it as `Authorization: Bearer hb_…`. An administrator creates keys with "
    "POST /api/v1/keys or `hourbell keys create`."
)

_log = structlog.get_logger(component="api")


class Authenticator:
    """Authenticates requests and checks the role of the caller."""

    def __init__(self, engine: Engine, local: bool, caller: Caller | None = None) -> None:
        self._engine = engine
        self._caller = caller  # the caller of all requests, which then need no key
        self._local = local  # only this machine can reach the server, and no key exists
        self._known: dict[bytes, tuple[Caller, float]] = {}
        self._failures: dict[str, float] = {}  # address → when its failure count is back to 0
        # By `_digest_in`, for routes that work during an outage.
        self._accepted: dict[bytes, Caller] = {}
        self._keyless_until = 0.0
        # Many requests need this at the same time; grouped, they share one query.
        self._lookups: GroupExecutor[None, None] = GroupExecutor(max_waiting=_MAX_WAITING)

    async def authorize(self, request: AnyRequest, route: Route) -> Caller:
        """The caller of an operation; raises Unauthenticated or Forbidden."""
        find_caller = self._caller_during_outage if route.during_outage else self.caller
        caller = await find_caller(request)
        if caller.sign_in_ends_at is not None and route.writes:
            require_same_origin(request)
        if route.access is not None and caller.role not in route.access:
            allowed = ", ".join(sorted(route.access))
            raise Forbidden(
                f"A key with the role {caller.role} may not do this; allowed roles: {allowed}."
            )
        return caller

    @property
    def requires_keys(self) -> bool:
        """Whether requests need a key."""
        return not self._local

    def require_keys(self) -> None:
        """Require a key from now on, because one exists."""
        self._local = False

    async def sign_in(self, request: AnyRequest, key: str) -> tuple[Caller, str]:
        """Start a browser session: return its caller, and the token that stands for the key."""
        caller = await self._caller_with_key(request, key)
        if caller.role is KeyRole.WORKER:
            raise Forbidden(
                "This key belongs to a worker, which may claim and settle executions but cannot read "
                "anything, so it cannot sign in. Use a key with another role."
            )
        assert caller.key_id is not None
        await self.sign_out(request)
        token = await sign_in(self._engine, caller.key_id)
        session = await self._signed_in(token)
        if session is None:  # revoked just now
            raise _unknown_key()
        _log.info("signed in", caller=caller.name)
        return session, token

    async def sign_out(self, request: AnyRequest) -> None:
        """End the sessions in the cookies of a request: on this node immediately, on others soon."""
        for name in COOKIES:
            digest = sign_in_digest_of(request.cookies.get(name, ""))
            if digest is not None:
                await sign_out(self._engine, digest)
                self._known.pop(digest, None)
                self._accepted.pop(digest, None)

    async def _caller_during_outage(self, request: AnyRequest) -> Caller:
        """The caller; while the database is down, one whose key was accepted before."""
        digest = _digest_in(request)
        try:
            async with asyncio.timeout(OUTAGE_SECONDS):
                caller = await self.caller(request)
        except Unauthenticated:
            self._accepted.pop(digest, None)
            raise
        except (StoreUnavailable, TimeoutError) as error:
            known = self._accepted.get(digest)
            if known is None or (known is ANONYMOUS and not self._local):
                raise StoreUnavailable("the API key cannot be looked up") from error
            if known is ANONYMOUS:
                _refuse_strange_host(request)
            return known
        if len(self._accepted) >= _MAX_CACHED:
            self._accepted.clear()
        self._accepted[digest] = caller
        return caller

    async def caller(self, request: AnyRequest) -> Caller:
        """The caller of a request; raises Unauthenticated."""
        if self._caller is not None:
            return self._caller
        headers = request.headers.getall("Authorization", [])
        if not headers:
            token = sign_in_token_of(request)
            caller = None if token is None else await self._signed_in(token)
            if caller is not None:
                return caller
            if await self._is_keyless():
                _refuse_strange_host(request)
                return ANONYMOUS
            if token is not None:
                raise Unauthenticated("The session has ended. Sign in again.")
            raise Unauthenticated(f"The request has no API key. {_HOW_TO_AUTHENTICATE}")
        key = _key_in(headers[0])
        if len(headers) > 1 or key is None:
            raise Unauthenticated(
                f"The Authorization header does not contain an API key. {_HOW_TO_AUTHENTICATE}"
            )
        return await self._caller_with_key(request, key)

    async def _caller_with_key(self, request: AnyRequest, key: str) -> Caller:
        caller = await self._look_up(digest_of(key), caller_of)
        if caller is None:
            address = request.client.host if request.client else ""
            self._refuse_if_too_many(address)
            self._note_failure(address)
            raise _unknown_key()
        return caller

    async def _signed_in(self, token: str) -> Caller | None:
        return await self._look_up(sign_in_digest_of(token), signed_in)

    async def _look_up(
        self, digest: bytes | None, find: Callable[[Engine, bytes], Awaitable[Caller | None]]
    ) -> Caller | None:
        """The caller with this key or token digest, at most FRESH_SECONDS old."""
        if digest is None:
            return None
        known = self._known.get(digest)
        at = time.monotonic()
        if known is not None and known[1] > at:
            return known[0]
        caller = await find(self._engine, digest)
        if caller is None:
            return None
        if len(self._known) >= _MAX_CACHED:
            self._known.clear()
        self._known[digest] = (caller, at + FRESH_SECONDS)
        return caller

    async def _is_keyless(self) -> bool:
        if self._local and time.monotonic() >= self._keyless_until:
            await self._lookups.submit(None, self._look_for_keys)
        return self._local

    async def _look_for_keys(self, submissions: list[Submission[None, None]]) -> None:
        # Read before the query, so that a key created after it is seen within KEYLESS_SECONDS.
        at = time.monotonic()
        if await is_keyless(self._engine):
            self._keyless_until = at + KEYLESS_SECONDS
        else:
            self.require_keys()
        for submission in submissions:
            submission.answer(None)

    def _refuse_if_too_many(self, address: str) -> None:
        excess = self._failures.get(address, 0.0) - time.monotonic()
        if excess > (MAX_FAILURES - 1) * SECONDS_PER_FAILURE:
            raise TooManyFailures(SECONDS_PER_FAILURE)

    def _note_failure(self, address: str) -> None:
        now = time.monotonic()
        if len(self._failures) >= _MAX_CACHED:
            self._failures = {
                address: until for address, until in self._failures.items() if until > now
            }
            if len(self._failures) >= _MAX_CACHED:
                self._failures.clear()
        self._failures[address] = max(self._failures.get(address, 0.0), now) + SECONDS_PER_FAILURE
        _log.warning("unknown API key", address=address)


def is_local(host: str) -> bool:
    """Whether only this machine can reach a server that listens on this host."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def name_in(host: str) -> str:
    """The name or address in a Host header, without the port."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    return name.removeprefix("[").removesuffix("]")


def sign_in_token_of(request: AnyRequest) -> str | None:
    """The session token in the cookies of a request.

    Another host in the same domain can set a cookie without a prefix, carrying a session that it
    chose. So over HTTPS only the cookie with the prefix counts. Browsers send Sec-Fetch-Site over
    HTTPS, and to this machine.
    """
    cookies, headers = request.cookies, request.headers
    over_https = "Sec-Fetch-Site" in headers and not is_local(name_in(headers.get("Host", "")))
    names = (SECURE_COOKIE,) if over_https else tuple(reversed(COOKIES))
    return next((cookies[name] for name in names if name in cookies), None)


def require_same_origin(request: AnyRequest) -> None:
    """Raise CrossSiteRequest unless a page of this server sent this request.

    A browser also adds the cookie to requests that other sites make it send. It reports the origin in
    Sec-Fetch-Site or, over plain HTTP to another machine, in Origin; no page can set these. Our own
    client's header cannot be sent to another site without that site's consent (CORS).
    """
    headers = request.headers
    site = headers.get("Sec-Fetch-Site")
    if site is None:
        same = _host_of(headers.get("Origin", "")) == headers.get("Host", "").lower()
    else:
        same = site == "same-origin"
    if not same or headers.get(CLIENT_HEADER) != DASHBOARD:
        raise CrossSiteRequest(CLIENT_HEADER, DASHBOARD)


def _digest_in(request: AnyRequest) -> bytes:
    """The digest of the key or session that authenticates a request; empty if it has neither."""
    header = request.headers.get("Authorization")
    if header is not None:
        return digest_of(_key_in(header) or "") or b""
    return sign_in_digest_of(sign_in_token_of(request) or "") or b""


def _key_in(header: str) -> str | None:
    """The API key in an Authorization header; None if it has another scheme."""
    scheme, _, key = header.partition(" ")
    return key.lstrip(" ") if scheme.lower() == _SCHEME else None


def _host_of(origin: str) -> str | None:
    """Host and port of an origin; None if it has none, such as `null`."""
    try:
        return urlsplit(origin).netloc.lower() or None
    except ValueError:
        return None


def _unknown_key() -> Unauthenticated:
    return Unauthenticated(f"The API key is unknown or revoked. {_HOW_TO_AUTHENTICATE}")


def _refuse_strange_host(request: AnyRequest) -> None:
    """Block DNS rebinding: a foreign page in a local browser can point its own name at this server."""
    if not is_local(name_in(request.headers.get("Host", ""))):
        raise Misdirected
