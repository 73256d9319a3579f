"""What can be wrong with a request before any operation sees it, and what nobody expected.

    HourbellError
    ├── MalformedRequest       malformed_request        it is not HTTP as it should be, or it broke off
    ├── MalformedJson          malformed_json           the body cannot be read
    ├── BodyTooLarge           body_too_large           the body is over the limit
    ├── UnsupportedMediaType   unsupported_media_type   the body is something else than JSON
    ├── Misdirected            misdirected              an open server was called under another machine's name
    ├── UnknownRoute           unknown_route            there is nothing at this path
    ├── MethodNotAllowed       method_not_allowed       there is, but not for this method
    └── Unexpected             internal_error           a mistake of ours

The rest of the tree is in `hourbell.model.errors`.
"""

from collections.abc import Sequence

from hourbell.model.errors import HourbellError


class MalformedRequest(HourbellError):
    """The request cannot be read as one."""

    code = "malformed_request"
    title = "The request cannot be read"


class MalformedJson(HourbellError):
    """The body is no JSON, or JSON that means different things to different readers."""

    code = "malformed_json"
    title = "The body is not valid JSON"


class BodyTooLarge(HourbellError):
    """The body is over the limit."""

    code = "body_too_large"
    title = "The body is too large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The body of a request can have at most {limit_bytes} bytes. Send less.")


class UnsupportedMediaType(HourbellError):
    """The body is said to be something that is not read here."""

    code = "unsupported_media_type"
    title = "The type of the body is not supported"

    def __init__(self, accepted: Sequence[str]) -> None:
        super().__init__(
            f"The body of this request must be sent with Content-Type: {' or '.join(accepted)}, "
            f"in UTF-8 and without Content-Encoding."
        )


class Misdirected(HourbellError):
    """The request was meant for somebody else, by the name that it was sent to."""

    code = "misdirected"
    title = "This is not the server that was meant"

    def __init__(self) -> None:
        super().__init__(
            "This server asks for no key, so it answers only under the names of this machine: localhost, 127.0.0.1 "
            "and [::1]. Use one of those, or make a key."
        )


class UnknownRoute(HourbellError):
    """There is nothing at this path."""

    code = "unknown_route"
    title = "There is nothing here"

    def __init__(self) -> None:
        super().__init__("There is nothing at this path. /schema/openapi.json lists what there is.")


class MethodNotAllowed(HourbellError):
    """The path is served, but not for this method."""

    code = "method_not_allowed"
    title = "The method is not allowed here"

    def __init__(self, allowed: str) -> None:
        super().__init__(f"This path does not take that method. It takes: {allowed}.")
        self.allowed = allowed


class Unexpected(HourbellError):
    """A mistake of ours; what it was stands in the log, not in the answer."""

    code = "internal_error"
    title = "Something went wrong here"

    def __init__(self) -> None:
        super().__init__("The request failed with an unexpected error; see the log of the server.")
