"""Fingerprints of errors: failures that differ only in numbers, ids and quoted text share one.

One API response may need ten thousand of them, so the rule is a fast one: a word with a digit in it
is a number or an id.
"""

import hashlib
import re
from string import ascii_letters

_MAX_READ = 1_000  # characters of an error
_MAX_CHARS = 300  # of the normalized error: the rest is rarely the same twice
_CHARS = 16  # of a fingerprint, in hexadecimal digits

_QUOTED = re.compile(r'"[^"]*"|`[^`]*`')
_IN_APOSTROPHES = re.compile(r"(?<!\w)'[^']*'(?!\w)")  # not an apostrophe within a word
_FROM_A_DIGIT = re.compile(r"[0-9][\w.:-]*")
_OF_A_WORD = ascii_letters + "_-"


def normalized(error: str) -> str:
    """An error with a # in place of numbers, ids and quoted text."""
    text = error[:_MAX_READ]
    if '"' in text or "`" in text:
        text = _QUOTED.sub("#", text)
    if "'" in text:
        text = _IN_APOSTROPHES.sub("#", text)
    *parts, last = _FROM_A_DIGIT.split(text)
    # The letters before the first digit belong to the same word.
    text = "#".join([*(part.rstrip(_OF_A_WORD) for part in parts), last])
    return " ".join(text.split())[:_MAX_CHARS]


def fingerprint_of(target: int | None, kind: str, error: str | None) -> str:
    """The fingerprint of a failure; `target` is the host or the task, as in `executions.target`."""
    parts = (str(target), kind, normalized(error or ""))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:_CHARS]
