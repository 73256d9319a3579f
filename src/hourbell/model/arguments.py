"""The arguments that a task declares, as JSON Schema, and what in a payload does not fit them.

`sdk/signature.py` writes the schemas, so only the words that it uses are read here; a word that is
not known allows everything. What passes may still be refused by the worker, whose types say more.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hourbell.model.errors import FieldCode

Schema = Mapping[str, Any]
MAX_PROBLEMS = 20
_MAX_DEPTH = 40  # of values and references; deeper ones are left to the worker
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_ARTICLES = {"object": "an object", "array": "an array", "integer": "a whole number"}


class ArgumentProblem(msgspec.Struct, frozen=True):
    """A part of a payload that does not fit."""

    path: str  # within the payload: `items[2].name`; empty: the payload itself
    code: FieldCode
    message: str  # completes "<path> …"


def problems_of_payload(schemas: Sequence[Schema], payload: object) -> list[ArgumentProblem]:
    """Why a payload fits none of these schemas, according to the first; empty: it fits one."""
    if payload is None:
        payload = {}  # as a worker takes it
    first: list[ArgumentProblem] = []
    for schema in schemas:
        found = [*_limited(_problems(schema, payload, "", schema.get("$defs", {}), _MAX_DEPTH))]
        if not found:
            return []
        first = first or found
    return first


def digest_of_payload(payload: object) -> str:
    """A key shared by payloads with the same arguments."""
    canonical = msgspec.json.encode(payload, order="sorted")
    return f"sha256:{hashlib.sha256(canonical).hexdigest()}"


def _limited(problems: Iterator[ArgumentProblem]) -> Iterator[ArgumentProblem]:
    for _, problem in zip(range(MAX_PROBLEMS), problems, strict=False):
        yield problem


def _problems(
    schema: Schema, value: object, path: str, defs: Mapping[str, Schema], depth: int
) -> Iterator[ArgumentProblem]:
    if not depth:
        return
    depth -= 1
    if "$ref" in schema:
        inner = defs.get(str(schema["$ref"]).removeprefix("#/$defs/"), {})
        yield from _problems(inner, value, path, defs, depth)
    if "anyOf" in schema:
        yield from _of_several(schema["anyOf"], value, path, defs, depth)
    if "enum" in schema and not any(_equal(value, one) for one in schema["enum"]):
        shown = ", ".join(msgspec.json.encode(one).decode() for one in schema["enum"][:10])
        yield ArgumentProblem(path, "not_a_choice", f"must be one of {shown}")
    if "const" in schema and not _equal(value, schema["const"]):
        shown = msgspec.json.encode(schema["const"]).decode()
        yield ArgumentProblem(path, "not_a_choice", f"must be {shown}")
    kind = schema.get("type")
    if kind is not None and not _is(kind, value, schema):
        expected = _ARTICLES.get(kind, f"a {kind}") if kind != "null" else "null"
        yield ArgumentProblem(path, "wrong_type", f"must be {expected}, not {_kind_of(value)}")
    elif isinstance(value, dict):
        yield from _of_object(schema, value, path, defs, depth)
    elif isinstance(value, list):
        yield from _of_array(schema, value, path, defs, depth)
    elif isinstance(value, str):
        yield from _of_text(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _of_number(schema, value, path)


def _of_several(
    schemas: Sequence[Schema],
    value: object,
    path: str,
    defs: Mapping[str, Schema],
    depth: int,
) -> Iterator[ArgumentProblem]:
    left: list[list[ArgumentProblem]] = []
    for schema in schemas:
        found = [*_limited(_problems(schema, value, path, defs, depth))]
        if not found:
            return
        if schema.get("type") != "null":
            left.append(found)
    if len(left) == 1:
        yield from left[0]
    else:
        yield ArgumentProblem(path, "wrong_type", "has none of the types that it may have")


def _of_object(
    schema: Schema, value: dict[str, Any], path: str, defs: Mapping[str, Schema], depth: int
) -> Iterator[ArgumentProblem]:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    inner = f"{path}." if path else ""
    for name in schema.get("required", ()):
        if name not in value:
            yield ArgumentProblem(f"{inner}{name}", "required", "is missing")
    others = schema.get("additionalProperties", True)
    for name, one in value.items():
        if name in properties:
            yield from _problems(properties[name], one, f"{inner}{name}", defs, depth)
        elif others is False:
            yield ArgumentProblem(f"{inner}{name}", "unknown_field", "is not an argument of it")
        elif isinstance(others, Mapping):
            yield from _problems(others, one, f"{inner}{name}", defs, depth)


def _of_array(
    schema: Schema, value: list[Any], path: str, defs: Mapping[str, Schema], depth: int
) -> Iterator[ArgumentProblem]:
    low, high = schema.get("minItems", 0), schema.get("maxItems", math.inf)
    if not low <= len(value) <= high:
        yield ArgumentProblem(path, "out_of_range", f"has {len(value)} elements")
        return
    first: Sequence[Schema] = schema.get("prefixItems", ())
    rest = schema.get("items", {})
    for index, one in enumerate(value):
        inner = first[index] if index < len(first) else rest
        if isinstance(inner, Mapping):
            yield from _problems(inner, one, f"{path}[{index}]", defs, depth)


def _of_text(schema: Schema, value: str, path: str) -> Iterator[ArgumentProblem]:
    low, high = schema.get("minLength", 0), schema.get("maxLength", math.inf)
    if not low <= len(value) <= high:
        yield ArgumentProblem(path, "out_of_range", f"has {len(value)} characters")
    elif "pattern" in schema and not re.search(schema["pattern"], value[:10_000]):
        yield ArgumentProblem(path, "bad_format", f"must match {schema['pattern']}")


def _of_number(schema: Schema, value: float, path: str) -> Iterator[ArgumentProblem]:
    low, high = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    above, below = (
        schema.get("exclusiveMinimum", -math.inf),
        schema.get("exclusiveMaximum", math.inf),
    )
    if not (low <= value <= high and above < value < below):
        yield ArgumentProblem(path, "out_of_range", "is out of range")


def _is(kind: str, value: object, schema: Schema) -> bool:
    if schema.get("format") == "decimal" and isinstance(value, int | float):
        return not isinstance(value, bool)  # the library takes both
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES.get(kind, (object,)))


def _equal(value: object, other: object) -> bool:
    return type(value) is type(other) and value == other


def _kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "a boolean"
    names = [kind for kind, types in _TYPES.items() if isinstance(value, types)]
    return "null" if value is None else _ARTICLES.get(names[0], f"a {names[0]}")
