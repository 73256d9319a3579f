"""What a webhook sends: the job's own request with its secrets filled in, and what Hourbell says about itself.

The execution id is the same over all attempts and goes along as an idempotency key, with the fence. Signatures follow
Standard Webhooks; see `signing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import msgspec
from multidict import CIMultiDict

from hourbell.actions import Run
from hourbell.actions.signing import secret_problem, signed_headers
from hourbell.model.ids import execution_text
from hourbell.model.instants import format_instant
from hourbell.model.jobs import WebhookAction, header_value_problem, url_problem
from hourbell.security.secrets import (
    MAX_BYTES_OF_REQUEST,
    MAX_OF_REQUEST,
    Redactor,
    Secret,
    SecretSource,
    filled,
    names_of,
    signer_of,
)

MAX_FILLED_BYTES = 1024 * 1024  # of a body with its secrets

MISSING_SECRET, BAD_SECRET = "missing_secret", "bad_secret"  # kinds of failure

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_OPENS = "{{secret:"
_OPENS_BYTES = _OPENS.encode()
_NO_SECRETS = Redactor(())
_instant = lru_cache(maxsize=256)(format_instant)  # much is scheduled for the same moment


class CannotSend(Exception):
    """A request cannot be made: a secret is missing, or is not what it is used as. Tells names, never values."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class Prepared(msgspec.Struct, frozen=True):
    """A request that is ready to be sent."""

    url: str
    headers: CIMultiDict[str]
    body: bytes | None
    redactor: Redactor  # for whatever is kept of what comes back


async def prepared(
    action: WebhookAction, run: Run, secrets: SecretSource, token: str, timestamp: int
) -> Prepared:
    """The request of this attempt. `token` completes it later, if the target asks for that."""
    url, headers, content = action.url, action.headers, action.body
    body = _encoded(content)
    fillable = None if action.literal else body
    names = names_of(action) if _may_have_secrets(url, headers, fillable) else set()
    if len(names) > MAX_OF_REQUEST:
        raise CannotSend(f"It names more than {MAX_OF_REQUEST} secrets.", BAD_SECRET)
    known = await secrets.values(run.claimed.tenant_id, {*names, signer_of(action)})
    if names:
        values = {name: secret.value for name, secret in known.items()}
        for name in sorted(names - values.keys()):
            raise _missing(name)
        _check_secrets(known)
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
        # Of one name, the last stands: a job may choose what is usual, not what the target trusts us to say.
        request.update(headers)
        request.update(own)
    return Prepared(url, request, body, _redactor(known))


def _may_have_secrets(url: str, headers: Mapping[str, str], body: bytes | None) -> bool:
    """A quick look, for the many that have none."""
    if body is not None and _OPENS_BYTES in body:
        return True
    return _OPENS in url or (bool(headers) and any(_OPENS in value for value in headers.values()))


def _own_headers(run: Run, token: str) -> dict[str, str]:
    claimed = run.claimed
    execution_id = execution_text(claimed.execution_id)
    trace_id = blake2b(execution_id.encode(), digest_size=16).hexdigest()
    return {
        "Idempotency-Key": execution_id,
        "Hourbell-Execution-Id": execution_id,
        "Hourbell-Fence-Token": str(claimed.fence),
        "Hourbell-Attempt": str(claimed.attempt),
        "Hourbell-Scheduled-For": _instant(claimed.scheduled_for),
        "Hourbell-Completion-Token": token,
        "traceparent": f"00-{trace_id}-{claimed.fence:016x}-01",
    }


def _keys(action: WebhookAction, known: Mapping[str, Secret]) -> Sequence[str]:
    """What to sign by: nothing if nothing is said about it, and the tenant has no usual secret for it."""
    name = signer_of(action)
    secret = known.get(name)
    if secret is None:
        if action.signing_secret is not None:
            raise _missing(name)
        return ()
    for value in secret.values:
        problem = secret_problem(value)
        if problem:
            raise CannotSend(f"The secret {name!r} cannot sign anything: it {problem}.", BAD_SECRET)
    return secret.values


def _missing(name: str) -> CannotSend:
    return CannotSend(f"There is no secret {name!r}.", MISSING_SECRET)


def _check_secrets(known: Mapping[str, Secret]) -> None:
    """What comes back has to be searched for all of them."""
    if sum(len(value.encode()) for one in known.values() for value in one.values) > (
        MAX_BYTES_OF_REQUEST
    ):
        message = f"Its secrets have more than {MAX_BYTES_OF_REQUEST} bytes together."
        raise CannotSend(message, BAD_SECRET)


def _check_size(body: bytes, values: Mapping[str, str]) -> None:
    """Before anything is filled in: a short placeholder may stand for much, and often."""
    size = len(body) + sum(
        body.count(f"{_OPENS}{name}}}}}".encode()) * len(value.encode())
        for name, value in values.items()
    )
    if size > MAX_FILLED_BYTES:
        message = f"With its secrets filled in, the body has more than {MAX_FILLED_BYTES} bytes."
        raise CannotSend(message, BAD_SECRET)


def _check_filled(url: str, headers: Mapping[str, str]) -> None:
    """Once more after the secrets have come in: they may bring along whatever they like."""
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


def _redactor(known: Mapping[str, Secret]) -> Redactor:
    if not known:
        return _NO_SECRETS
    values = tuple(sorted(value for one in known.values() for value in one.values))
    return (_large if sum(map(len, values)) > _MOST_SMALL else _small)(values)


# Most webhooks of a tenant have the same secrets, and a redactor takes long to make; a large one is not small in memory.
# So the values of the last ones stay in memory: docs/security.md says so.
_MOST_SMALL = 4096
_small = lru_cache(maxsize=256)(Redactor)
_large = lru_cache(maxsize=16)(Redactor)
