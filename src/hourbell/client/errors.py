"""The errors of the client.

    ClientError
    ├── Unreachable       no response: refused, broken or timed out, even after retries
    ├── UnexpectedAnswer  the response is not from Hourbell
    └── ProblemError      the server reported an error; `code` is that of the problem document
        ├── InvalidRequest   400, 413, 415, 422: `errors` lists every invalid field
        ├── AccessDenied     401, 403, 421: the key is missing, unknown, or does not allow this
        ├── NotFound         404
        ├── Conflict         409, 412: conflicts with the current state
        └── Unavailable      429, 5xx: the server cannot respond now, even after retries

A `code` is stable and for programs; the message is for people.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class FieldError(msgspec.Struct, frozen=True):
    """One error in one field of a request."""

    path: str  # such as `schedule.timezone`; "" is the document itself
    code: str
    message: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """A problem document of the API."""

    code: str
    title: str
    status: int
    detail: str
    errors: Sequence[FieldError] = ()


class ClientError(Exception):
    """The base class of every error that the client raises on purpose."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Unreachable(ClientError):
    """No response arrived. A write may have taken effect."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__("unreachable", f"No response from {url}: {reason}.")


class UnexpectedAnswer(ClientError):
    """The response does not come from Hourbell's API."""

    def __init__(self, url: str, what: str) -> None:
        super().__init__(
            "unexpected_answer",
            f"The response from {url} is not from Hourbell: {what}. Check the URL and any proxy in front of it.",
        )


class ProblemError(ClientError):
    """The server reported an error."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code, problem.detail)
        self.status = problem.status
        self.title = problem.title
        self.errors = tuple(problem.errors)


class InvalidRequest(ProblemError):
    """The request was rejected; `errors` lists every invalid field."""


class AccessDenied(ProblemError):
    """The API key is missing, unknown, or does not allow this."""


class NotFound(ProblemError):
    """The resource does not exist, or the key may not see it."""


class Conflict(ProblemError):
    """The request conflicts with the current state."""


class Unavailable(ProblemError):
    """The server cannot respond now."""


_BY_STATUS = {
    401: AccessDenied,
    403: AccessDenied,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    421: AccessDenied,
    429: Unavailable,
}


def error_of(problem: Problem) -> ProblemError:
    """The exception for a problem document."""
    otherwise = Unavailable if problem.status >= 500 else InvalidRequest
    return _BY_STATUS.get(problem.status, otherwise)(problem)
