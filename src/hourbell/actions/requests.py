"""The request of a webhook: the job's own request with secrets filled in, plus Hourbell's headers.

The execution id is the same for all attempts and is sent as the idempotency key, together with the
fence. Signatures follow Standard Webhooks; see `signing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec
from multidict import CIMultiDict

from hourbell.actions import Run
from hourbell.actions.signing import signed_headers
from hourbell.model.ids import execution_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import WebhookAction, header_value_problem, url_problem
from hourbell.security.secrets import (
    MAX_SECRET_BYTES_PER_REQUEST,
    MAX_SECRETS_PER_REQUEST,
    Redactor,
    Secret,
    SecretSource,
    filled,
    literal_credentials,
    secret_names,
    signer_of,
    signing_secret_problem,
)

MAX_FILLED_BYTES = 1024 * 1024  # of a body with its secrets filled in

MISSING_SECRET, BAD_SECRET = "missing_secret", "bad_secret"  # kinds of failure

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_OPENS = "{{secret:"
_OPENS_BYTES = _OPENS.encode()
_NO_SECRETS = Redactor(())
_instant = lru_cache(maxsize=256)(format_instant)  # many executions share the same instant


class CannotSend(Exception):
    """The request cannot be built: a secret is missing or unusable. Contains names, never values."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class PreparedRequest(msgspec.Struct, frozen=True):
    """A request that is ready to be sent."""

    url: str
    headers: CIMultiDict[str]
    body: bytes | None
    redactor: Redactor  # for whatever is stored from the response


async def prepare_request(
    action: WebhookAction, run: Run, secrets: SecretSource, token: str, timestamp: int
) -> PreparedRequest:
    """The request of this attempt. With `token`, the target can complete it asynchronously."""
    url, headers, content = action.url, action.headers, action.body
    body = _encoded(content)
    fillable = None if action.literal else body
    names = secret_names(action) if _may_have_secrets(url, headers, fillable) else set()
    if len(names) > MAX_SECRETS_PER_REQUEST:
        raise CannotSend(
            f"The request uses more than {MAX_SECRETS_PER_REQUEST} secrets.", BAD_SECRET
        )
    known = await secrets.values(run.claimed.tenant_id, {*names, signer_of(action)})
    values = {name: secret.value for name, secret in known.items()}
    for name in sorted(names - values.keys()):
        raise _missing(name)
    redactor = _redactor(known, literal_credentials(headers))
    if names:
        if not action.literal:
            _check_size(body or b"", values)
            content = filled(content, values)
            body = _encoded(content)
        url, headers = filled([url, headers], values)
        _check_filled(url, headers)
    usual = {"User-Agent": "Hourbell", "Accept-Encoding": "identity"}
    if body is not None:
        usual["Content-Type"] = _TEXT if isinstance(content, str) else _JSON
    own = _own_headers(run, token)
    own |= signed_headers(own["Idempotency-Key"], timestamp, body or b"", _keys(action, known))
    request: CIMultiDict[str] = CIMultiDict(usual if headers else usual | own)
    if headers:
        # The last value wins: a job may override the defaults, but not the headers that targets
        # trust to come from Hourbell.
        request.update(headers)
        request.update(own)
    return PreparedRequest(url, request, body, redactor)


def _may_have_secrets(url: str, headers: Mapping[str, str], body: bytes | None) -> bool:
    """A cheap check first, because most requests have no secrets."""
    if body is not None and _OPENS_BYTES in body:
        return True
    return _OPENS in url or (bool(headers) and any(_OPENS in value for value in headers.values()))


def _own_headers(run: Run, token: str) -> dict[str, str]:
    claimed = run.claimed
    execution_id = execution_text(claimed.execution_id)
    return {
        "Idempotency-Key": execution_id,
        "Hourbell-Execution-Id": execution_id,
        "Hourbell-Fence-Token": str(claimed.fence),
        "Hourbell-Attempt": str(claimed.attempt),
        "Hourbell-Scheduled-For": _instant(claimed.scheduled_for),
        "Hourbell-Completion-Token": token,
        "traceparent": _traceparent(run, execution_id),
    }


def _traceparent(run: Run, execution_id: str) -> str:
    """The trace of this attempt; if the worker itself has none, the caller's trace unchanged."""
    if run.spec.traceparent is not None:
        return run.spec.traceparent
    trace_id = blake2b(execution_id.encode(), digest_size=16).hexdigest()
    return f"00-{trace_id}-{run.claimed.fence:016x}-01"


def _keys(action: WebhookAction, known: Mapping[str, Secret]) -> Sequence[str]:
    """The signing keys; none if the job names no secret and the tenant has no default one."""
    name = signer_of(action)
    secret = known.get(name)
    if secret is None:
        if action.signing_secret is not None:
            raise _missing(name)
        return ()
    for value in secret.values:
        problem = signing_secret_problem(value)
        if problem:
            raise CannotSend(
                f"The secret {name!r} cannot be used to sign: it {problem}.", BAD_SECRET
            )
    return secret.values


def _missing(name: str) -> CannotSend:
    return CannotSend(f"There is no secret {name!r}.", MISSING_SECRET)


def _check_size(body: bytes, values: Mapping[str, str]) -> None:
    """Bound the size before filling in: short placeholders may expand a lot, many times."""
    size = len(body) + sum(
        body.count(f"{_OPENS}{name}}}}}".encode()) * len(value.encode())
        for name, value in values.items()
    )
    if size > MAX_FILLED_BYTES:
        message = f"With its secrets filled in, the body exceeds {MAX_FILLED_BYTES} bytes."
        raise CannotSend(message, BAD_SECRET)


def _check_filled(url: str, headers: Mapping[str, str]) -> None:
    """Validate again after filling in, because secrets may contain any text."""
    problem = url_problem(url)
    if problem:
        raise CannotSend(f"With its secrets filled in, the url {problem}.", BAD_SECRET)
    for name, value in headers.items():
        problem = header_value_problem(value)
        if problem:
            message = f"With its secrets filled in, the header {name!r} {problem}."
            raise CannotSend(message, BAD_SECRET)


def _encoded(body: Any) -> bytes | None:
    if body is None:
        return None
    return body.encode() if isinstance(body, str) else msgspec.json.encode(body)


def _redactor(known: Mapping[str, Secret], credentials: Set[str]) -> Redactor:
    """Redacts the secrets and the literal credentials of the request.

    Their total size is bounded, because every response is searched for all of them.
    """
    if not known and not credentials:
        return _NO_SECRETS
    values = tuple(
        sorted({*credentials, *(value for one in known.values() for value in one.values)})
    )
    if sum(len(value.encode()) for value in values) > MAX_SECRET_BYTES_PER_REQUEST:
        message = (
            f"The secrets of the request exceed {MAX_SECRET_BYTES_PER_REQUEST} bytes in total."
        )
        raise CannotSend(message, BAD_SECRET)
    return (_large if sum(map(len, values)) > _MAX_SMALL else _small)(values)


# Most webhooks of a tenant use the same secrets, and a redactor is expensive to build, so redactors
# are cached; fewer of the large ones, which take much memory. Recently used values therefore stay in
# memory, as docs/security.md says.
_MAX_SMALL = 4096
_small = lru_cache(maxsize=256)(Redactor)
_large = lru_cache(maxsize=16)(Redactor)
