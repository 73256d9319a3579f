"""Authentication: an API key in `Authorization: Bearer hb_…`, looked up and cached briefly.

A server that only this machine can reach needs no key until the first one is created. Until then it
serves only requests whose Host header names this machine, so that a web page cannot reach it
through DNS rebinding.

The node that creates the first key starts to require keys before it responds. Every other node
checks the database again after KEYLESS_SECONDS.
"""

from __future__ import annotations

import time
from ipaddress import ip_address

import structlog

from hourbell.api.errors import Misdirected
from hourbell.api.requests import AnyRequest
from hourbell.api.routes import Route
from hourbell.engine.core import Engine
from hourbell.engine.groups import GroupExecutor, Submission
from hourbell.engine.operations.api_keys import KEYLESS_SECONDS, caller_of, is_keyless
from hourbell.model.errors import Forbidden, TooManyFailures, Unauthenticated
from hourbell.security.access import ANONYMOUS, Caller, digest_of

FRESH_SECONDS = 2.0  # how long a key is cached, so how long a revoked one may still be accepted
MAX_FAILURES = 20  # burst of failures allowed from one address,
SECONDS_PER_FAILURE = 3  # then one in this many seconds
_MAX_CACHED = 10_000
_MAX_WAITING = 100_000  # more than a server has connections

_SCHEME = "Bearer "
_HOW_TO_AUTHENTICATE = (
    "Send it as `Authorization: Bearer hb_…`. An administrator creates keys with "
    "POST /api/v1/keys or `hourbell keys create`."
)

_log = structlog.get_logger(__name__)


class Authenticator:
    """Authenticates requests and checks the role of the caller."""

    def __init__(self, engine: Engine, local: bool) -> None:
        self._engine = engine
        self._local = local  # only this machine can reach the server, and no key exists
        self._known: dict[bytes, tuple[Caller, float]] = {}
        self._failures: dict[str, float] = {}  # address → when its failure count is back to 0
        self._keyless_until = 0.0
        # Every second many requests need this at once; without a group each would have its query.
        self._lookups: GroupExecutor[None, None] = GroupExecutor(max_waiting=_MAX_WAITING)

    async def authorize(self, request: AnyRequest, route: Route) -> Caller:
        """The caller of an operation; raises Unauthenticated or Forbidden."""
        caller = await self._caller(request)
        if route.access is not None and caller.role not in route.access:
            allowed = ", ".join(sorted(route.access))
            raise Forbidden(
                f"A key with the role {caller.role} may not do this; allowed roles: {allowed}."
            )
        return caller

    def require_keys(self) -> None:
        """Require a key from now on, because one exists."""
        self._local = False

    async def _caller(self, request: AnyRequest) -> Caller:
        headers = request.headers.getall("Authorization", [])
        if not headers:
            if await self._is_keyless():
                _refuse_strange_host(request)
                return ANONYMOUS
            raise Unauthenticated(f"The request has no API key. {_HOW_TO_AUTHENTICATE}")
        if len(headers) > 1 or not headers[0].startswith(_SCHEME):
            raise Unauthenticated(
                f"The Authorization header is not an API key. {_HOW_TO_AUTHENTICATE}"
            )
        digest = digest_of(headers[0].removeprefix(_SCHEME))
        known = None if digest is None else self._known.get(digest)
        if known is not None and known[1] > time.monotonic():
            return known[0]
        address = request.client.host if request.client else ""
        at = time.monotonic()
        caller = None if digest is None else await caller_of(self._engine, digest)
        if caller is None or digest is None:
            self._refuse_if_too_many(address)
            self._note_failure(address)
            raise Unauthenticated(f"The API key is unknown or revoked. {_HOW_TO_AUTHENTICATE}")
        if len(self._known) >= _MAX_CACHED:
            self._known.clear()
        self._known[digest] = (caller, at + FRESH_SECONDS)
        return caller

    async def _is_keyless(self) -> bool:
        if self._local and time.monotonic() >= self._keyless_until:
            await self._lookups.submit(None, self._look_for_keys)
        return self._local

    async def _look_for_keys(self, submissions: list[Submission[None, None]]) -> None:
        # Measured before the query, so that a key created after it is seen within KEYLESS_SECONDS.
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


def _refuse_strange_host(request: AnyRequest) -> None:
    """Block DNS rebinding: a foreign page in a local browser can point its own name at us."""
    host = request.headers.get("Host", "")
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if not is_local(name.removeprefix("[").removesuffix("]")):
        raise Misdirected
