"""Values as JSON, without losing any."""

from __future__ import annotations

import math

import msgspec

_encode = msgspec.json.Encoder().encode


def to_json(value: object) -> bytes:
    """A value as JSON. Raises ValueError for NaN and infinity, which msgspec writes as null."""
    encoded = _encode(value)
    if b"null" in encoded:
        _refuse_infinite(msgspec.to_builtins(value, str_keys=True))
    return encoded


def _refuse_infinite(value: object) -> None:
    """Raise ValueError if a plain value contains NaN or infinity."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON cannot represent the number {value}")
    elif isinstance(value, dict):
        for inner in value.values():
            _refuse_infinite(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _refuse_infinite(inner)
