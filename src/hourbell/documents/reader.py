"""Read a decoded JSON object field by field, so that all its errors are reported at once.

A reader returns the requested fields. For an invalid field it records a problem with the path and
returns the default, so that reading continues with the next field; at the end,
`Problems.raise_if_any` raises all problems together. A field that was never requested is unknown:
the code that reads a document also defines which fields it may have. `null` means "not given"
everywhere.

No message echoes a value of unknown size, and a key appears in a path only in a form that is safe
for every log, terminal and JSON encoder.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from itertools import islice
from typing import TypeVar

import msgspec

from hourbell.documents.kinds import LABEL, LABEL_IS, MAX_DEPTH, json_problem
from hourbell.documents.problems import (
    MAX_PROBLEMS,
    Problems,
    json_type,
    shown_key,
    suggestion,
    text_problem,
)
from hourbell.model.errors import FieldCode, FieldError, InvalidInput
from hourbell.model.instants import InvalidInstant, parse_instant

MAX_SUGGESTIONS = 10  # for the unknown fields of one object; each is expensive


__all__ = ["LABEL", "LABEL_IS", "MAX_PROBLEMS", "Problems", "shown_key", "text_problem"]
T = TypeVar("T")
D = TypeVar("D")


class ObjectReader:
    """Reads one JSON object. For an invalid field, methods record a problem, return the default."""

    def __init__(self, fields: Mapping[str, object], path: str, problems: Problems) -> None:
        self.fields = fields
        self._path = path
        self._problems = problems
        self._known: set[str] = set()

    def path(self, key: str) -> str:
        """The path of a field of this object."""
        return f"{self._path}.{shown_key(key)}" if self._path else shown_key(key)

    def wrong(self, key: str, code: FieldCode, message: str) -> None:
        """Record a problem with a field."""
        self._problems.add(self.path(key), code, message)

    def given(self, key: str) -> bool:
        """Whether the field is present and not null."""
        self._known.add(key)
        return self.fields.get(key) is not None

    def require(self, key: str, message: str = "is required") -> bool:
        """Record a problem if the field is missing."""
        if self.given(key):
            return True
        self.wrong(key, "required", message)
        return False

    def forbid(self, key: str, message: str) -> None:
        """Record a problem if the field is given, because it conflicts with others."""
        if self.given(key):
            self.wrong(key, "conflict", message)

    def whole(self, key: str, low: int, high: int, default: D) -> int | D:
        """A whole number from low to high; true and false are not numbers."""
        value = self._take(key)
        if value is None:
            return default
        number = self._whole(self.path(key), value, low, high)
        return default if number is None else number

    def number(self, key: str, low: float, high: float, default: D) -> float | D:
        """A number from low to high; true and false are not numbers."""
        value = self._take(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong_type(self.path(key), "a number", value)
            return default
        if not low <= value <= high:  # also excludes infinity
            self.wrong(key, "out_of_range", f"must be from {low:g} to {high:g}")
            return default
        return float(value)

    def wholes(self, key: str, low: int, high: int, limit: int) -> tuple[int, ...] | None:
        """An array of 1 to limit whole numbers, each from low to high."""
        values = self._array(key, 1, limit)
        if values is None:
            return None
        path = self.path(key)
        numbers = [
            self._whole(f"{path}[{index}]", value, low, high) for index, value in enumerate(values)
        ]
        return tuple(number for number in numbers if number is not None)

    def texts(self, key: str, shape: re.Pattern[str], what: str, limit: int) -> tuple[str, ...]:
        """An array of at most limit strings that match the shape; empty when not given."""
        path = self.path(key)
        found = []
        for index, value in enumerate(self._array(key, 0, limit) or ()):
            if not isinstance(value, str):
                self._wrong_type(f"{path}[{index}]", "a string", value)
            elif not shape.fullmatch(value):
                self._problems.add(f"{path}[{index}]", "bad_format", f"must be {what}")
            else:
                found.append(value)
        return tuple(found)

    def text(self, key: str, shape: re.Pattern[str], what: str, default: D) -> str | D:
        """A string that matches the shape; `what` completes "must be …"."""
        value = self.string(key)
        if value is None:
            return default
        if not shape.fullmatch(value):
            self.wrong(key, "bad_format", f"must be {what}")
            return default
        return value

    def string(self, key: str) -> str | None:
        """Any string; the caller validates its content."""
        value = self._take(key)
        if value is None or isinstance(value, str):
            return value
        self._wrong_type(self.path(key), "a string", value)
        return None

    def label(self, key: str) -> str | None:
        """The name of a tenant or a queue."""
        return self.text(key, LABEL, LABEL_IS, None)

    def printable(self, key: str, longest: int) -> str | None:
        """A line of printable text that is not blank."""
        text = self.string(key)
        if text is None:
            return None
        if not (1 <= len(text) <= longest and text.isprintable() and text.strip()):
            self.wrong(key, "bad_format", f"must be 1 to {longest} printable characters")
            return None
        return text

    def flag(self, key: str) -> bool:
        """True or false; false if it is not given."""
        value = self._take(key)
        if value is not None and not isinstance(value, bool):
            self._wrong_type(self.path(key), "true or false", value)
        return value is True

    def choice(self, key: str, choices: Mapping[str, T], default: D) -> T | D:
        """One of several words, mapped to its value."""
        value = self.string(key)
        if value is None:
            return default
        if value not in choices:
            hint = suggestion(value, choices) or f"; it must be one of {', '.join(choices)}"
            self.wrong(key, "not_a_choice", f"is not an allowed value{hint}")
            return default
        return choices[value]

    def words(self, key: str, choices: Mapping[str, T]) -> list[T] | None:
        """A comma-separated list of words, mapped to their values."""
        value = self.string(key)
        if value is None:
            return None
        words = set(value.split(","))
        for word in words:
            if word not in choices:
                hint = suggestion(word, choices) or f"; it must be one of {', '.join(choices)}"
                self.wrong(key, "not_a_choice", f"has a value that is not allowed{hint}")
                return None
        return [choices[word] for word in words]

    def instant(self, key: str) -> datetime | None:
        """An RFC 3339 date and time with an offset."""
        value = self.string(key)
        if value is None:
            return None
        try:
            return parse_instant(value)
        except InvalidInstant as error:
            self.wrong(key, "bad_format" if error.in_range else "out_of_range", str(error))
            return None

    def objects(self, key: str, limit: int) -> "list[ObjectReader]":
        """Readers of the objects in an array of at most limit; none when it is not given."""
        path = self.path(key)
        readers = []
        for index, value in enumerate(self._array(key, 0, limit) or ()):
            if isinstance(value, dict):
                readers.append(ObjectReader(value, f"{path}[{index}]", self._problems))
            else:
                self._wrong_type(f"{path}[{index}]", "an object", value)
        return readers

    def choices(self, key: str, choices: Mapping[str, T]) -> tuple[T, ...]:
        """An array of one or more of several words, without repetition."""
        path = self.path(key)
        found: dict[str, T] = {}
        for index, value in enumerate(self._array(key, 1, len(choices)) or ()):
            if not isinstance(value, str):
                self._wrong_type(f"{path}[{index}]", "a string", value)
            elif value not in choices:
                hint = suggestion(value, choices) or f"; it must be one of {', '.join(choices)}"
                self._problems.add(
                    f"{path}[{index}]", "not_a_choice", f"is not an allowed value{hint}"
                )
            elif value in found:
                self._problems.add(f"{path}[{index}]", "conflict", "appears twice")
            else:
                found[value] = choices[value]
        return tuple(found.values())

    def inner(self, key: str) -> "ObjectReader | None":
        """A reader of the object in this field."""
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self._wrong_type(self.path(key), "an object", value)
            return None
        return ObjectReader(value, self.path(key), self._problems)

    def inners(self, key: str, limit: int) -> "list[ObjectReader]":
        """Readers of the objects in an array of 1 to limit of them."""
        path = self.path(key)
        readers = []
        for index, value in enumerate(self._array(key, 1, limit) or ()):
            if isinstance(value, dict):
                readers.append(ObjectReader(value, f"{path}[{index}]", self._problems))
            else:
                self._wrong_type(f"{path}[{index}]", "an object", value)
        return readers

    def json(self, key: str, max_bytes: int) -> object:
        """Any JSON value that can be stored, sent and read back unchanged."""
        value = self._take(key)
        problem = json_problem(value, "", MAX_DEPTH)
        if problem is not None:
            inner, code, message = problem
            self._problems.add(self.path(key) + inner, code, message)
            return None
        if len(msgspec.json.encode(value)) > max_bytes:
            self.wrong(key, "too_long", f"must be at most {max_bytes} bytes as JSON")
            return None
        return value

    def finish(self) -> None:
        """Record unknown fields, up to MAX_PROBLEMS of them."""
        unknown = (key for key in self.fields if key not in self._known)
        for index, key in enumerate(islice(unknown, MAX_PROBLEMS)):
            hint = suggestion(key, self._known) if index < MAX_SUGGESTIONS else ""
            self.wrong(key, "unknown_field", f"is not a known field{hint}")

    def _take(self, key: str) -> object:
        self._known.add(key)
        return self.fields.get(key)

    def _whole(self, path: str, value: object, low: int, high: int) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int):
            self._wrong_type(path, "a whole number", value)
            return None
        if not low <= value <= high:
            self._problems.add(path, "out_of_range", f"must be from {low} to {high}")
            return None
        return value

    def _array(self, key: str, least: int, limit: int) -> list[object] | None:
        value = self._take(key)
        if value is None:
            return None
        if not isinstance(value, list):
            self._wrong_type(self.path(key), "an array", value)
            return None
        if not least <= len(value) <= limit:
            self.wrong(key, "out_of_range", f"must have from {least} to {limit} items")
            return None
        return value

    def _wrong_type(self, path: str, expected: str, value: object) -> None:
        self._problems.add(path, "wrong_type", f"must be {expected}, not {json_type(value)}")


def read_object(document: object, problems: Problems) -> ObjectReader:
    """A reader of a whole document; raises InvalidInput if it is not an object."""
    if not isinstance(document, dict):
        message = f"must be an object, not {json_type(document)}"
        raise InvalidInput([FieldError("", "wrong_type", message)])
    return ObjectReader(document, "", problems)
