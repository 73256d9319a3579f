"""The errors of a document, collected so that all of them are reported at once.

No message echoes a value of unknown size, and a key appears in a path only in a form that is safe
for every log, terminal and JSON encoder.
"""

import difflib
import math
from collections.abc import Iterable

from hourbell.model.errors import FieldCode, FieldError, InvalidInput

MAX_PROBLEMS = 100  # keeps the response to a document with a million invalid fields small

_ALIKE = 0.65  # similarity of two words: one in three letters may differ


class Problems:
    """The invalid fields found so far."""

    def __init__(self) -> None:
        self._errors: list[FieldError] = []

    def add(self, path: str, code: FieldCode, message: str) -> None:
        """Record a problem: only the first one per field, and at most MAX_PROBLEMS."""
        if len(self._errors) < MAX_PROBLEMS and all(path != known.path for known in self._errors):
            self._errors.append(FieldError(path, code, message))

    def add_wrong_type(self, path: str, expected: str, value: object) -> None:
        """Record that a value does not have the expected JSON type."""
        self.add(path, "wrong_type", f"must be {expected}, not {json_type(value)}")

    def touch(self, *paths: str) -> bool:
        """Whether one of these fields, or part of it, has a recorded problem."""
        return any(
            error.path == path or error.path.startswith((path + ".", path + "["))
            for error in self._errors
            for path in paths
        )

    def raise_if_any(self) -> None:
        """Raise InvalidInput with all recorded problems, if there are any."""
        if self._errors:
            raise InvalidInput(self._errors)


def json_type(value: object) -> str:
    """The JSON type of a value, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "a number"
    if isinstance(value, float):
        return "a fractional number" if math.isfinite(value) else "an infinite number"
    if isinstance(value, str):
        return "a string"
    return "an array" if isinstance(value, list) else "an object"


def shown_key(key: str) -> str:
    """A key as part of a path: verbatim if short and printable, else truncated and escaped."""
    if len(key) <= 64 and key.isprintable():
        return key
    return ascii(key[:61] + "..." if len(key) > 64 else key)[1:-1]


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of a message that suggests a similar known word; empty if there is none."""
    # Comparing is quadratic in the length, and no field name is this long.
    if len(word) > 64:
        return ""
    by_folded = {name.casefold(): name for name in sorted(known)}
    for close in difflib.get_close_matches(word.casefold(), by_folded):
        if _own_parts_are_alike(word.casefold(), close):
            return f"; did you mean {by_folded[close]}?"
    return ""


def _own_parts_are_alike(one: str, other: str) -> bool:
    """Whether two names are similar apart from their common first and last words.

    `jitter_seconds` is not similar to `every_seconds`.
    """
    ones, others = one.split("_"), other.split("_")
    while ones and others and ones[-1] == others[-1]:
        ones.pop()
        others.pop()
    while ones and others and ones[0] == others[0]:
        ones.pop(0)
        others.pop(0)
    if not ones or not others:
        return True  # one is part of the other, like `timeout` and `timeout_seconds`
    matcher = difflib.SequenceMatcher(None, "_".join(ones), "_".join(others))
    return matcher.ratio() >= _ALIKE
