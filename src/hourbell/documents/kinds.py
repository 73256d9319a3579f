"""The types of values that fields have: how each is read, rendered, and described in JSON Schema.

A kind reads one JSON value that is not null. For an invalid value it records the problem and
returns None.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

from hourbell.documents.problems import Problems, shown_key, suggestion
from hourbell.model.errors import FieldCode, UnknownId
from hourbell.model.ids import (
    execution_text,
    job_text,
    operation_text,
    parse_execution_id,
    parse_job_id,
    parse_operation_id,
)
from hourbell.model.instants import (
    InvalidInstant,
    format_instant,
    parse_instant,
    parse_instant_or_wall,
)
from hourbell.model.texts import text_problem

MAX_DEPTH = 32  # of arrays and objects inside a body or payload
MAX_INTEGER_BITS = 1024  # of a number inside a body or payload: the range of a double

_MAX_NAME_AND_VALUE = 200  # characters of a label with its value
LABEL = re.compile(r"[A-Za-z0-9._:-]{1,64}")
LABEL_IS = "1 to 64 letters, digits or . _ : -"
ID = "[0-9a-hjkmnp-tv-z]{13}"  # after the prefix

Schema = dict[str, Any]
T = TypeVar("T")
E = TypeVar("E", bound=Enum)


class Kind(ABC, Generic[T]):
    """A kind of value."""

    @abstractmethod
    def read(self, value: object, path: str, problems: Problems) -> T | None:
        """The checked value, or None after recording what is wrong."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The JSON Schema of a value in a request."""

    @property
    def response_schema(self) -> Schema:
        """The JSON Schema of a value in a response: what was sent can be shown."""
        return self.schema

    def render(self, value: T) -> object:
        """The JSON value of a value."""
        return value


class Integer(Kind[int]):
    """A whole number from low to high; true and false are not numbers."""

    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high

    def read(self, value: object, path: str, problems: Problems) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int):
            problems.add_wrong_type(path, "a whole number", value)
            return None
        if not self.low <= value <= self.high:
            problems.add(path, "out_of_range", f"must be from {self.low} to {self.high}")
            return None
        return value

    @property
    def schema(self) -> Schema:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}


class Number(Kind[float]):
    """A number from low to high; true and false are not numbers."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def read(self, value: object, path: str, problems: Problems) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float):
            problems.add_wrong_type(path, "a number", value)
            return None
        if not self.low <= value <= self.high:  # also excludes infinity
            problems.add(path, "out_of_range", f"must be from {self.low:g} to {self.high:g}")
            return None
        return float(value)

    @property
    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.low, "maximum": self.high}


class Boolean(Kind[bool]):
    """True or false."""

    def read(self, value: object, path: str, problems: Problems) -> bool | None:
        if not isinstance(value, bool):
            problems.add_wrong_type(path, "true or false", value)
            return None
        return value

    @property
    def schema(self) -> Schema:
        return {"type": "boolean"}


class String(Kind[str]):
    """Any string. Kinds with further rules extend this class."""

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        if isinstance(value, str):
            return value
        problems.add_wrong_type(path, "a string", value)
        return None

    @property
    def schema(self) -> Schema:
        return {"type": "string"}


class Text(String):
    """A string that matches a pattern; `what` completes "must be …"."""

    def __init__(self, pattern: re.Pattern[str], what: str) -> None:
        self.pattern, self.what = pattern, what

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        text = super().read(value, path, problems)
        if text is not None and not self.pattern.fullmatch(text):
            problems.add(path, "bad_format", f"must be {self.what}")
            return None
        return text

    @property
    def schema(self) -> Schema:
        pattern = self.pattern.pattern
        return {"type": "string", "pattern": f"^({pattern})$" if "|" in pattern else f"^{pattern}$"}


class Label(Text):
    """The name of a tenant or a queue, or another label."""

    def __init__(self) -> None:
        super().__init__(LABEL, LABEL_IS)


class Line(String):
    """A line of printable text that is not blank."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        text = super().read(value, path, problems)
        if text is None:
            return None
        if not (1 <= len(text) <= self.max_length and text.isprintable() and text.strip()):
            message = f"must be 1 to {self.max_length} printable characters"
            problems.add(path, "bad_format", message)
            return None
        return text

    @property
    def schema(self) -> Schema:
        return {"type": "string", "minLength": 1, "maxLength": self.max_length}


class Short(String):
    """Any text of limited length."""

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        text = super().read(value, path, problems)
        if text is None:
            return None
        reason = text_problem(text)
        if reason:
            problems.add(path, "bad_format", reason)
        elif len(text) > self.max_length:
            problems.add(path, "too_long", f"must be at most {self.max_length} characters")
        return text

    @property
    def schema(self) -> Schema:
        return {"type": "string", "maxLength": self.max_length}


class NameAndValue(Short):
    """A label and its value."""

    def __init__(self) -> None:
        super().__init__(_MAX_NAME_AND_VALUE)

    def read(self, value: object, path: str, problems: Problems) -> str | None:
        label = super().read(value, path, problems)
        if label is not None and ":" not in label:
            problems.add(path, "bad_format", "must be name:value, such as team:billing")
        return label


class Choice(Kind[T]):
    """One of several words, each of which maps to a value."""

    def __init__(self, choices: Mapping[str, T]) -> None:
        self.choices = choices
        self._words = {value: word for word, value in choices.items()}

    def read(self, value: object, path: str, problems: Problems) -> T | None:
        if not isinstance(value, str):
            problems.add_wrong_type(path, "a string", value)
            return None
        if value not in self.choices:
            message = f"is not an allowed value{self.hint(value)}"
            problems.add(path, "not_a_choice", message)
            return None
        return self.choices[value]

    def hint(self, word: str) -> str:
        """The end of a message about a word that is not a choice."""
        return suggestion(word, self.choices) or f"; it must be one of {', '.join(self.choices)}"

    @property
    def schema(self) -> Schema:
        return {"enum": list(self.choices)}

    def render(self, value: T) -> object:
        return self._words[value]


def one_of(*words: str) -> Choice[str]:
    """A choice between words that stand for themselves."""
    return Choice({word: word for word in words})


def choice_of(members: Iterable[E]) -> Choice[E]:
    """A choice between the values of these members of an enumeration."""
    return Choice({member.value: member for member in members})


class Instant(Kind[datetime]):
    """An RFC 3339 date and time with an offset."""

    def read(self, value: object, path: str, problems: Problems) -> datetime | None:
        if not isinstance(value, str):
            problems.add_wrong_type(path, "a string", value)
            return None
        try:
            return parse_instant(value)
        except InvalidInstant as error:
            problems.add(path, "bad_format" if error.in_range else "out_of_range", str(error))
            return None

    @property
    def schema(self) -> Schema:
        return {"type": "string", "format": "date-time"}

    def render(self, value: datetime) -> object:
        return format_instant(value)


class InstantOrWall(Instant):
    """An instant, or a date and time without an offset: naive, a wall time in some zone."""

    def read(self, value: object, path: str, problems: Problems) -> datetime | None:
        if not isinstance(value, str):
            problems.add_wrong_type(path, "a string", value)
            return None
        try:
            return parse_instant_or_wall(value)
        except InvalidInstant as error:
            problems.add(path, "bad_format" if error.in_range else "out_of_range", str(error))
            return None

    @property
    def schema(self) -> Schema:
        wall = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?$"
        return {"type": "string", "anyOf": [{"format": "date-time"}, {"pattern": wall}]}


class Array(Kind[tuple[T, ...]]):
    """An array of `min_items` to `max_items` values of a kind; if `distinct`, without duplicates.

    `if_empty` is the message for an empty array, if there is more to say than the limits.
    """

    def __init__(
        self,
        kind: Kind[T],
        min_items: int,
        max_items: int,
        *,
        distinct: bool = False,
        if_empty: str = "",
    ) -> None:
        self.kind, self.min_items, self.max_items = kind, min_items, max_items
        self.distinct, self.if_empty = distinct, if_empty

    def read(self, value: object, path: str, problems: Problems) -> tuple[T, ...] | None:
        if not isinstance(value, list):
            problems.add_wrong_type(path, "an array", value)
            return None
        if not self.min_items <= len(value) <= self.max_items:
            message = f"must have from {self.min_items} to {self.max_items} items"
            problems.add(path, "out_of_range", message if value else self.if_empty or message)
            return None
        found: list[T] = []
        for index, item in enumerate(value):
            one = self.kind.read(item, f"{path}[{index}]", problems)
            if one is None:
                continue
            if self.distinct and one in found:
                problems.add(f"{path}[{index}]", "conflict", "appears twice")
            else:
                found.append(one)
        return tuple(found)

    @property
    def schema(self) -> Schema:
        return self._array(self.kind.schema)

    @property
    def response_schema(self) -> Schema:
        return self._array(self.kind.response_schema)

    def _array(self, items: Schema) -> Schema:
        return (
            {"type": "array", "items": items}
            | ({"minItems": self.min_items} if self.min_items else {})
            | {"maxItems": self.max_items}
            | ({"uniqueItems": True} if self.distinct else {})
        )

    def render(self, value: tuple[T, ...]) -> object:
        render = self.kind.render
        return [render(one) for one in value]


class Json(Kind[object]):
    """Any JSON value that can be stored, sent and read back unchanged."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes

    def read(self, value: object, path: str, problems: Problems) -> object:
        problem = _json_problem(value, "", MAX_DEPTH)
        if problem is not None:
            inner, code, message = problem
            problems.add(path + inner, code, message)
            return None
        if len(msgspec.json.encode(value)) > self.max_bytes:
            problems.add(path, "too_long", f"must be at most {self.max_bytes} bytes as JSON")
            return None
        return value

    @property
    def schema(self) -> Schema:
        return {}


class _Id(Kind[int]):
    """The id of a thing: a prefix and a number."""

    def __init__(
        self, what: str, prefix: str, parse: Callable[[str], int], text: Callable[[int], str]
    ) -> None:
        self._what, self._prefix, self._parse, self._text = what, prefix, parse, text

    def read(self, value: object, path: str, problems: Problems) -> int | None:
        if not isinstance(value, str):
            problems.add_wrong_type(path, "a string", value)
            return None
        try:
            return self._parse(value)
        except UnknownId:
            message = f"is not {self._what}, such as {self._prefix}_0000000000016"
            problems.add(path, "bad_format", message)
            return None

    @property
    def schema(self) -> Schema:
        return {"type": "string", "pattern": f"^{self._prefix}_{ID}$"}

    def render(self, value: int) -> object:
        return self._text(value)


class JobId(_Id):
    """The id of a job."""

    def __init__(self) -> None:
        super().__init__("a job id", "job", parse_job_id, job_text)


class ExecutionId(_Id):
    """The id of an execution."""

    def __init__(self) -> None:
        super().__init__("an execution id", "exe", parse_execution_id, execution_text)


class OperationId(_Id):
    """The id of a bulk operation."""

    def __init__(self) -> None:
        super().__init__("an operation id", "ops", parse_operation_id, operation_text)


def _json_problem(value: object, path: str, depth: int) -> tuple[str, FieldCode, str] | None:
    """The first part of a JSON value that cannot be stored and read back, with its path."""
    if isinstance(value, str):
        reason = text_problem(value)
        return (path, "bad_format", reason) if reason else None
    if isinstance(value, float) and not math.isfinite(value):
        return path, "out_of_range", "must be a finite number"
    if isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
        return path, "out_of_range", f"must be a number of at most {MAX_INTEGER_BITS} bits"
    if not isinstance(value, dict | list):
        return None
    if not depth:
        return path, "too_deep", f"must not be nested more than {MAX_DEPTH} levels deep"
    inner: Iterable[tuple[str, object]]
    if isinstance(value, list):
        inner = ((f"[{index}]", item) for index, item in enumerate(value))
    else:
        for key in value:
            reason = text_problem(key)
            if reason:
                return f"{path}.{shown_key(key)}", "bad_format", reason
        inner = ((f".{shown_key(key)}", item) for key, item in value.items())
    for step, item in inner:
        problem = _json_problem(item, path + step, depth - 1)
        if problem is not None:
            return problem
    return None
