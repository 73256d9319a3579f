"""Secrets in what is sent: `{{secret:name}}`, filled in when it is sent, and struck out of whatever comes back.

Only the worker that sends a webhook has the values. What it keeps of the answer goes through a `Redactor` first: a target may
echo what it was sent, plainly or in one of the usual disguises.
"""

from __future__ import annotations

import base64
import json
import re
import secrets as random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote, quote_plus

import msgspec

SECRET_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
SECRET_NAME_IS = "1 to 64 letters, digits or . _ -"
PLACEHOLDER = re.compile(rf"\{{\{{secret:({SECRET_NAME.pattern})\}}\}}")
FEWEST_CHARACTERS = (
    8  # of a value: what is shorter could not be struck out without hurting innocent text
)
STRUCK_OUT = "[secret]"


class Secret(msgspec.Struct, frozen=True):
    """The values of a secret: the present one, and while it is being replaced the one before."""

    value: str
    previous: str | None = None

    @property
    def values(self) -> tuple[str, ...]:
        """All that are good now, the newest first."""
        return (self.value,) if self.previous is None else (self.value, self.previous)

    def __repr__(self) -> str:
        return "Secret(…)"  # it must not get into a log by accident


class SecretSource(Protocol):
    """Where a worker gets the values from. It is asked for every webhook, so it has to remember them for a while."""

    async def values(self, tenant: str, names: Collection[str]) -> Mapping[str, Secret]:
        """Those of a tenant's secrets that there are."""


def new_signing_secret() -> str:
    """A secret for signatures after Standard Webhooks that nobody knows yet."""
    return "whsec_" + base64.b64encode(random.token_bytes(32)).decode()


def names_in(value: Any) -> set[str]:
    """The secrets that a text, or a document, asks for."""
    found: set[str] = set()

    def note(text: str) -> str:
        found.update(PLACEHOLDER.findall(text))
        return text

    _map_texts(value, note)
    return found


def filled(value: Any, secrets: Mapping[str, str]) -> Any:
    """The same with the values in their places; KeyError for one that there is not."""
    return _map_texts(value, lambda text: PLACEHOLDER.sub(lambda found: secrets[found[1]], text))


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_map_texts(inner, change) for inner in value]
    return value


class Redactor:
    """Strikes values out of texts: as they are, and as base64, hexadecimal, percent-encoded and in JSON."""

    def __init__(self, values: Iterable[str]) -> None:
        spellings = {spelling for value in values for spelling in _spellings(value)}
        # The longest first, so that no part of one is left over.
        ordered = sorted(spellings, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered)), re.IGNORECASE)
        self._spellings = [spelling.lower() for spelling in ordered]

    def redacted(self, text: str) -> str:
        return self._pattern.sub(STRUCK_OUT, text) if self._spellings else text

    def redacted_beginning(self, text: str) -> str:
        """Of a text that was cut off somewhere: a value may have been cut through, and its beginning goes too."""
        text = self.redacted(text)
        end = text.lower()
        for spelling in self._spellings:
            for length in range(min(len(spelling) - 1, len(end)), 0, -1):
                if end.endswith(spelling[:length]):
                    text, end = text[:-length], end[:-length]
                    break
        return text


def _spellings(value: str) -> set[str]:
    raw = value.encode()
    found = {value, quote(value, safe=""), quote(value), quote_plus(value), raw.hex()}
    found |= {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    for offset in range(3):
        found |= _inside_base64(raw, offset)
    return found


def _inside_base64(raw: bytes, offset: int) -> set[str]:
    """What base64 of something with these bytes in it has in it, if they begin so many bytes after a group of three."""
    encoded = base64.b64encode(bytes(offset) + raw).decode().rstrip("=")
    whole = encoded[(offset * 8 + 5) // 6 :]
    if (offset + len(raw)) % 3:
        whole = whole[:-1]  # it depends on what follows
    return {whole, whole.replace("+", "-").replace("/", "_")}
