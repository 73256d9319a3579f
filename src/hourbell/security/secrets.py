"""Secrets in requests: `{{secret:name}}` is filled in when sent, and redacted from the response.

Only the worker that sends a webhook decrypts the values, as does the API process that receives its
asynchronous completion. Everything stored from a response passes through a `Redactor` first, because
a target may echo the request, verbatim or in a common encoding.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import re
import secrets as random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote, quote_plus, unquote

import msgspec

from hourbell.model.jobs import (
    NewJob,
    Notification,
    SecretsCheck,
    WebhookAction,
    is_credential_header,
)

SECRET_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
SECRET_NAME_IS = "1 to 64 letters, digits or . _ -"
PLACEHOLDER = re.compile(rf"\{{\{{secret:({SECRET_NAME.pattern})\}}\}}")
_SHORT_PLACEHOLDER = re.compile(
    rf"\{{\{{(?!secrets?\.)({SECRET_NAME.pattern})\}}\}}", re.IGNORECASE
)
_ALMOST_PLACEHOLDER = re.compile(
    rf"\{{\{{\s*secrets?\s*[:.]\s*(?:{SECRET_NAME.pattern})\s*\}}\}}", re.IGNORECASE
)
MASKED = "[masked; use {{secret:name}} instead]"  # shown in place of a credential
# What may precede a secret in a header value that is shown: `Bearer `, `session=`.
_BETWEEN_WORDS = re.compile(r"[\s,;]+")
_PARAMETER = re.compile(r"^[A-Za-z0-9_-]+=(?=[^=])")  # not the padding of base64
_BESIDE_SECRET = re.compile(r"(?:[A-Za-z][A-Za-z0-9_-]{0,31}[ =])?")
SIGNING_SECRET = "action.signing_secret"  # the path of the field
SIGNING_PREFIX = "whsec_"
MIN_SIGNING_BYTES, MAX_SIGNING_BYTES = 24, 64
MIN_CHARACTERS = 8  # of a value: redacting a shorter one would also hit unrelated text
MAX_SECRETS_PER_REQUEST = 50
MAX_SECRET_BYTES_PER_REQUEST = 32 * 1024  # in total: each response is searched for all of them
DEFAULT_SIGNING_SECRET = "webhook-signing"  # signs a tenant's webhooks that name no other
REDACTED = "[secret]"
WITHHELD_WHOLE = "[withheld: contains a secret in a form that could not be redacted]"
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
# `-` and `_` are `+` and `/` of another base64, and `+` is a space in forms.
_BETWEEN = str.maketrans("_", "/", " \t\r\n\f\v+-")
# Matches any level of escaping.
_JSON_ESCAPE = re.compile(
    r"\\+(?:(?P<pair>u[dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2})|u(?P<code>[0-9a-fA-F]{4})|(?P<letter>.))",
    re.DOTALL,
)
_HTML_ESCAPE = re.compile(r"&(?:#0{0,8}[0-9]{1,7}|#[xX]0{0,8}[0-9a-fA-F]{1,6}|[A-Za-z0-9]{2,31});?")
_CUT_ESCAPE = re.compile(r"(?:\\+(?:u[0-9a-fA-F]{0,3})?|%[0-9a-fA-F]?|&#?[A-Za-z0-9]{0,31})\Z")
_MAX_ESCAPE = 40
_BETWEEN_TEXTS = "\0"
_ENDING = 8  # characters at the end of a text that are searched for first


class Secret(msgspec.Struct, frozen=True):
    """The values of a secret: the current one and, during a rotation, the previous one."""

    value: str
    previous: str | None = None

    @property
    def values(self) -> tuple[str, ...]:
        """All values that are currently valid, newest first."""
        return (self.value,) if self.previous is None else (self.value, self.previous)

    def __repr__(self) -> str:
        return "Secret(…)"  # so that it cannot end up in a log by accident


class SecretSource(Protocol):
    """The worker's source of secret values. Called for every webhook, so it must cache them."""

    async def values(self, tenant: str, names: Collection[str]) -> Mapping[str, Secret]:
        """The secrets of a tenant with these names; missing ones are omitted."""


def new_signing_secret() -> str:
    """A new random secret for Standard Webhooks signatures."""
    return SIGNING_PREFIX + base64.b64encode(random.token_bytes(32)).decode()


def signing_secret_problem(text: str) -> str | None:
    """Why a text is not a signing secret, or None."""
    if not text.startswith(SIGNING_PREFIX):
        return f"must begin with {SIGNING_PREFIX}"
    try:
        size = len(base64.b64decode(text.removeprefix(SIGNING_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        return f"must be base64 after {SIGNING_PREFIX}"
    if not MIN_SIGNING_BYTES <= size <= MAX_SIGNING_BYTES:
        return f"must have {MIN_SIGNING_BYTES} to {MAX_SIGNING_BYTES} bytes"
    return None


def secret_names(action: WebhookAction) -> set[str]:
    """The secrets that are filled into a request."""
    return names_in([action.url, action.headers, None if action.literal else action.body])


def signer_of(action: WebhookAction) -> str:
    """The name of the secret that signs the request, if the tenant has it."""
    return action.signing_secret or DEFAULT_SIGNING_SECRET


def names_in(value: Any) -> set[str]:
    """The names of the secrets used in a text or a document."""
    return {name for text in texts_in(value) for name in PLACEHOLDER.findall(text)}


def may_name_secrets(spec: bytes) -> bool:
    """A cheap check of a job's JSON, because most jobs use no secrets."""
    return b"{{secret:" in spec or b'"signing_secret"' in spec


def required_secrets(job: NewJob) -> dict[str, set[str]]:
    """The secrets that must exist when a job is created or changed, by the path of their field."""
    found: dict[str, set[str]] = {}
    action = job.action
    if isinstance(action, WebhookAction):
        found |= _required_by("action", action)
        if action.secrets is SecretsCheck.REQUIRED:
            found["action.body"] = set() if action.literal else names_in(action.body)
            if action.signing_secret is not None:
                found[SIGNING_SECRET] = {action.signing_secret}
    for index, notification in enumerate(job.notifications):
        found |= _required_by(f"notifications[{index}]", notification)
    return {path: names for path, names in found.items() if names}


def required_by_webhook(path: str, url: str, headers: Mapping[str, str]) -> dict[str, set[str]]:
    """The same for the url and headers of one webhook at a path."""
    prefix = f"{path}." if path else ""
    found = {f"{prefix}url": names_in(url)}
    found |= {f"{prefix}headers.{name}": names_in(value) for name, value in headers.items()}
    return {path: names for path, names in found.items() if names}


def _required_by(path: str, webhook: WebhookAction | Notification) -> dict[str, set[str]]:
    if webhook.secrets is SecretsCheck.LAZY:
        return {}
    return required_by_webhook(path, webhook.url, webhook.headers)


def spelled_out(value: Any) -> Any:
    """A copy of a text or a document in which each `{{name}}` is written `{{secret:name}}`.

    Jobs are stored like this, so that nothing else needs to know of the short form.
    """
    return _map_texts(value, _spelled_out_text)


def _spelled_out_text(text: str) -> str:
    return _SHORT_PLACEHOLDER.sub(r"{{secret:\1}}", text) if "{{" in text else text


def template_problem(text: str) -> str | None:
    """The problem with a `{{` that begins no template, spelled out or not, or None."""
    if "{{" not in text:
        return None
    left = PLACEHOLDER.sub(" ", _spelled_out_text(text))
    if "{{" not in left:
        return None
    almost = _ALMOST_PLACEHOLDER.search(left)
    if almost is not None:
        name = SECRET_NAME.search(almost[0].replace(".", ":", 1).partition(":")[2])
        assert name is not None
        return f"has an unknown template; did you mean {{{{secret:{name[0]}}}}}?"
    return "has a {{ that begins neither {{secret:name}} nor {{name}}, which means the same"


def masked(name: str, value: str) -> str:
    """The value of a header as shown to users: literal credentials masked, secret names shown."""
    if not is_credential_header(name):
        return value
    beside, found = PLACEHOLDER.subn("", value)
    return value if found and _BESIDE_SECRET.fullmatch(beside) else MASKED


def literal_credentials(headers: Mapping[str, str]) -> set[str]:
    """The credentials that headers contain themselves, to be redacted like the values of secrets.

    A header is its value, its words (`Bearer <token>`), its parameters (`session=<token>`) and the
    password of `Basic`, because a target that echoes it may have parsed it.
    """
    found = set()
    for name, value in headers.items():
        if value and is_credential_header(name):
            literal = PLACEHOLDER.sub(" ", value).strip()
            words = [_PARAMETER.sub("", word).strip('"') for word in _BETWEEN_WORDS.split(literal)]
            found |= {literal, *words, *map(_basic_password, words)}
    return {each for each in found if len(each) >= MIN_CHARACTERS}


def _basic_password(word: str) -> str:
    """The password that a word contains as the credentials of `Basic`, or nothing."""
    try:
        return base64.b64decode(word, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def filled(value: Any, secrets: Mapping[str, str]) -> Any:
    """A copy with the secrets filled in; raises KeyError for a missing one."""
    return _map_texts(value, lambda text: PLACEHOLDER.sub(lambda found: secrets[found[1]], text))


def texts_in(value: Any) -> list[str]:
    """All texts of a document, in the order of `_map_texts`."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    _map_texts(value, note)
    return found


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(key): _map_texts(inner, change) for key, inner in value.items()}
    if isinstance(value, list):
        return [_map_texts(inner, change) for inner in value]
    return value


class Redactor:
    """Redacts values from texts: verbatim, base64, hexadecimal, percent-encoded, in JSON and HTML.

    A text is withheld entirely if a value is still in it after decoding all of these, because most
    values have several encodings. The run time is linear in the sizes of text and values, whatever
    they contain: it runs in the event loop, and tenants choose both.
    """

    def __init__(self, values: Iterable[str]) -> None:
        values = list(values)
        found = {_folded(each) for value in values for each in _spellings(value)} - {""}
        self._spellings = {each: _period(each) for each in found}
        bare = {_bare(each) for value in values for each in _decoded_spellings(value)}
        self._bare = {each for each in bare if len(each) >= MIN_CHARACTERS}

    def redacted(self, text: str) -> str:
        if not text or not self._spellings:
            return text
        left = self._without_values(text, len(text))
        copies = "\0".join(_decoded(left))
        return WITHHELD_WHOLE if any(each in copies for each in self._bare) else left

    def redacted_document(self, document: Any) -> Any:
        """Redact a JSON document; withheld entirely if a value appears outside of its texts."""
        if not self._spellings:
            return document
        texts = texts_in(document)
        # All in one pass: a document may have thousands of texts.
        pieces = self.redacted(_BETWEEN_TEXTS.join(texts)).split(_BETWEEN_TEXTS) if texts else []
        if len(pieces) != len(texts):
            return WITHHELD_WHOLE
        left = iter(pieces)
        redacted = _map_texts(document, lambda text: next(left))
        written = msgspec.json.encode(redacted).decode()
        return redacted if self.redacted(written) == written else WITHHELD_WHOLE

    def redacted_beginning(self, text: str) -> str:
        """Redact a truncated text, including the beginning of a value that was cut off."""
        if not self._spellings:
            return text
        text = text.rstrip("\ufffd")  # left by a character that was cut off
        folded = _folded(text)
        begun = max(_begun_at_end(folded, each) for each in self._spellings)
        left = self._without_values(text, len(text) - begun)
        for copy in _decoded(left[:-_MAX_ESCAPE] + _CUT_ESCAPE.sub("", left[-_MAX_ESCAPE:])):
            if any(each in copy or _begun_at_end(copy, each) >= _ENDING for each in self._bare):
                return WITHHELD_WHOLE
        return left

    def _without_values(self, text: str, end: int) -> str:
        """The redacted text before `end`, including values that begin before it."""
        pieces = []
        after = 0  # end of the last value
        for start, stop in sorted(self._found_in(_folded(text))):
            if start >= end:
                break
            if start >= after:
                pieces += [text[after:start], REDACTED]
            after = max(after, stop)
        return "".join(pieces) + text[after:end]

    def _found_in(self, folded: str) -> Iterator[tuple[int, int]]:
        for spelling, period in self._spellings.items():
            size = len(spelling)
            start = folded.find(spelling)
            while start >= 0:
                stop = start + size
                if period < size:
                    stop = _repeated_until(folded, stop, spelling[-period:])
                yield start, stop
                # Any other overlapping match begins at least a quarter of its length later: two
                # short periods would have a common one.
                start = folded.find(spelling, stop - size + 1)


def _period(spelling: str) -> int:
    """The period of a spelling, or its length if it has no short period."""
    size = len(spelling)
    period = spelling.find(spelling[: (size + 1) // 2], 1)
    return period if period > 0 and spelling.startswith(spelling[period:]) else size


def _repeated_until(text: str, start: int, unit: str) -> int:
    """The end of the repetitions of a unit from `start`, found by steps that double, then halve."""
    step = unit
    while text.startswith(step, start):
        start += len(step)
        step += step
    while len(step) > len(unit):
        step = step[: len(step) // 2]
        if text.startswith(step, start):
            start += len(step)
    return start


def _folded(text: str) -> str:
    """Lower case of equal length: some characters lower to two, or differ at the end of a word."""
    return text.replace("\u0130", "i").lower().replace("\u03c2", "\u03c3")


def _bare(text: str) -> str:
    """Lower case, without whitespace and without the characters that encode or replace it."""
    return _folded(text).translate(_BETWEEN)


def _decoded(text: str) -> set[str]:
    """All plausible decodings of a text, bare."""
    written = {text, _JSON_ESCAPE.sub(_unescaped, text)}
    decoded = {_HTML_ESCAPE.sub(lambda found: html.unescape(found[0]), each) for each in written}
    decoded |= {unquote(each, code, "replace") for each in written for code in ("utf-8", "latin-1")}
    return {_bare(each) for each in written | decoded}


def _unescaped(found: re.Match[str]) -> str:
    if found["pair"]:
        return bytes.fromhex(found["pair"].replace("\\", "").replace("u", "")).decode("utf-16-be")
    if found["code"]:
        return chr(int(found["code"], 16))
    return " " if found["letter"] in "nrt" else found["letter"]


def _begun_at_end(text: str, spelling: str) -> int:
    """How many characters at the end of a text are a proper prefix of a spelling."""
    ending = text[-_ENDING:]
    length = min(len(spelling) - 1, len(text))
    while (at := spelling.rfind(ending, 0, length)) >= 0:
        length = at + len(ending)
        if text.endswith(spelling[:length]):
            return length
        length -= 1
    shorter = range(min(len(ending), len(spelling)) - 1, 0, -1)
    return next((length for length in shorter if ending.endswith(spelling[:length])), 0)


def _spellings(value: str) -> set[str]:
    raw = value.encode()
    found = {value, quote(value, safe=""), quote(value), quote_plus(value), raw.hex()}
    found |= {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)}
    found |= {html.escape(value), html.escape(value, quote=False)}
    found.add(_NOT_ASCII.sub("\ufffd", value))  # echoed in another charset, decoded as UTF-8
    for offset in range(3):
        found |= _inside_base64(raw, offset)
    return found


def _decoded_spellings(value: str) -> set[str]:
    """The spellings that remain after escapes are decoded."""
    raw = value.encode()
    encoded = {each for offset in range(3) for each in _inside_base64(raw, offset)}
    return {value, raw.hex()} | encoded


def _inside_base64(raw: bytes, offset: int) -> set[str]:
    """The base64 of these bytes within a longer text, at this offset in a group of three."""
    encoded = base64.b64encode(bytes(offset) + raw).decode().rstrip("=")
    whole = encoded[(offset * 8 + 5) // 6 :]
    if (offset + len(raw)) % 3:
        whole = whole[:-1]  # the last character depends on the following bytes
    return {whole, whole.replace("+", "-").replace("/", "_")}
