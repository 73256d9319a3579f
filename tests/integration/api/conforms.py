"""Holds answers to the OpenAPI document: the part of JSON Schema that it uses, and no more."""

import re
from collections.abc import Iterator
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
NOTES = {"description", "default", "discriminator", "maxLength", "minLength", "maxProperties"}


def operation_of(document: Any, method: str, path: str) -> Any | None:
    """What the document says about a request, or None if it says nothing."""
    for template, operations in document["paths"].items():
        pattern = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path) and method.lower() in operations:
            return operations[method.lower()]
    return None


def problems_of(document: Any, schema: Any, value: Any, path: str = "$") -> Iterator[str]:
    """Everything in a value that is not as the schema says."""
    for word, said in schema.items():
        if word == "$ref":
            name = said.removeprefix("#/components/schemas/")
            yield from problems_of(document, document["components"]["schemas"][name], value, path)
        elif word in ("anyOf", "oneOf"):
            fits = [not [*problems_of(document, each, value, path)] for each in said]
            if not sum(fits) or (word == "oneOf" and sum(fits) > 1):
                yield f"{path}: fits {sum(fits)} of {word}"
        elif word == "type":
            if not isinstance(value, TYPES[said]) or (
                said == "integer" and isinstance(value, bool)
            ):
                yield f"{path}: is {value!r}, no {said}"
                return
        elif word == "const":
            if value != said:
                yield f"{path}: is {value!r}, not {said!r}"
        elif word == "enum":
            if value not in said:
                yield f"{path}: is {value!r}, not one of {said}"
        elif word == "properties":
            for key in said.keys() & value.keys():
                yield from problems_of(document, said[key], value[key], f"{path}.{key}")
        elif word == "required":
            yield from (f"{path}.{key}: is missing" for key in said if key not in value)
        elif word == "additionalProperties":
            extra = value.keys() - schema.get("properties", {}).keys()
            if said is False:
                yield from (f"{path}.{key}: is not described" for key in extra)
            else:
                for key in extra:
                    yield from problems_of(document, said, value[key], f"{path}.{key}")
        elif word == "propertyNames":
            for key in value:
                yield from problems_of(document, said, key, f"{path}.{key}")
        elif word == "items":
            for index, item in enumerate(value):
                yield from problems_of(document, said, item, f"{path}[{index}]")
        elif word in ("minItems", "maxItems"):
            if (len(value) < said) if word == "minItems" else (len(value) > said):
                yield f"{path}: has {len(value)} items"
        elif word == "uniqueItems":
            if any(value[:index].count(item) for index, item in enumerate(value)):
                yield f"{path}: has an item twice"
        elif word in ("minimum", "maximum"):
            if (value < said) if word == "minimum" else (value > said):
                yield f"{path}: is {value}, {word} {said}"
        elif word == "pattern":
            if not re.search(said, value):
                yield f"{path}: {value!r} does not match {said}"
        elif word == "format":
            if said == "date-time" and not INSTANT.fullmatch(value):
                yield f"{path}: {value!r} is no instant"
        else:
            assert word in NOTES, f"teach this module {word}"
