"""Request errors found before an operation is called, and unexpected errors.

    HourbellError
    ├── MalformedRequest       malformed_request        invalid HTTP, or an incomplete request
    ├── MalformedJson          malformed_json           the body is not valid JSON
    ├── BodyTooLarge           body_too_large           the body exceeds the limit
    ├── UnsupportedMediaType   unsupported_media_type   the body is not JSON
    ├── Misdirected            misdirected              a keyless server got a foreign Host header
    ├── CrossSiteRequest       cross_site_request       a write by cookie that is not from our own page
    ├── UnknownRoute           unknown_route            no route has this path
    ├── MethodNotAllowed       method_not_allowed       the path exists, but not for this method
    └── Unexpected             internal_error           a bug in Hourbell

The rest of the tree is in `hourbell.model.errors`.
"""

from collections.abc import Sequence

from hourbell.model.errors import HourbellError


class MalformedRequest(HourbellError):
    """The request is not well-formed HTTP."""

    code = "malformed_request"
    title = "The request cannot be read"


class MalformedJson(HourbellError):
    """The body is not JSON, or is ambiguous JSON such as an object with a repeated key."""

    code = "malformed_json"
    title = "The body is not valid JSON"


class BodyTooLarge(HourbellError):
    """The body exceeds the limit."""

    code = "body_too_large"
    title = "The body is too large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"The request body may have at most {limit_bytes} bytes. Send a smaller one."
        )


class UnsupportedMediaType(HourbellError):
    """The Content-Type or Content-Encoding of the body is not accepted."""

    code = "unsupported_media_type"
    title = "The media type is not supported"

    def __init__(self, accepted: Sequence[str]) -> None:
        super().__init__(
            f"The request body must have Content-Type: {' or '.join(accepted)}, "
            f"be encoded in UTF-8, and have no Content-Encoding."
        )


class Misdirected(HourbellError):
    """The Host header names another server."""

    code = "misdirected"
    title = "The Host header names another server"

    def __init__(self) -> None:
        super().__init__(
            "This server requires no API key, so it serves only requests to localhost, 127.0.0.1 "
            "and [::1]. Use one of those names, or create an API key."
        )


class CrossSiteRequest(HourbellError):
    """A write by cookie does not prove that a page of this server sent it."""

    code = "cross_site_request"
    title = "The request may come from another site"

    def __init__(self, header: str, client: str) -> None:
        super().__init__(
            f"A signed-in browser may change things only from a page of this "
            f"server: with `Sec-Fetch-Site: same-origin`, or an Origin equal to the Host, and with "
            f"`{header}: {client}`. A program must send its API key in the Authorization header."
        )


class UnknownRoute(HourbellError):
    """No route has this path."""

    code = "unknown_route"
    title = "Unknown path"

    def __init__(self) -> None:
        super().__init__("No endpoint has this path. See /schema/openapi.json for all endpoints.")


class MethodNotAllowed(HourbellError):
    """The path exists, but not for this method."""

    code = "method_not_allowed"
    title = "Method not allowed"

    def __init__(self, allowed: str) -> None:
        super().__init__(f"This path does not support that method. Supported methods: {allowed}.")
        self.allowed = allowed


class Unexpected(HourbellError):
    """A bug in Hourbell. Details are in the log, not in the response."""

    code = "internal_error"
    title = "Internal error"

    def __init__(self) -> None:
        super().__init__("The request failed with an unexpected error; see the server log.")
