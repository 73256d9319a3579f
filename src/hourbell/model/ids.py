"""The ids of jobs, executions, keys and monitors: 63-bit numbers inside, short fixed-width text outside.

`job_`, `exe_`, `key_` or `mon_`, then 13 characters of Crockford's base 32 in lower case (no i, l, o, u, so that
ids survive being read aloud). Fixed width makes text order the order of the numbers. A one-time
job *is* its execution: both texts then carry the same number.

Parsing is strict. There is exactly one text for every number; anything else names nothing, and
`UnknownId` (a `NotFound`) says so.
"""

from datetime import UTC, datetime, timedelta

from hourbell.model.errors import UnknownId

MAX_ID = 2**63 - 1  # what a PostgreSQL bigint holds

# The upper 41 bits are milliseconds since 2024, the lower 22 a sequence (store/migrations/0001_core.sql).
_SEQUENCE_BITS = 22
_BEGINNING = datetime(2024, 1, 1, tzinfo=UTC)

_JOB = "job_"
_EXECUTION = "exe_"
_KEY = "key_"
_MONITOR = "mon_"
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_WIDTH = 13
# Two characters at a time; the first of the thirteen stands alone.
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


def job_text(job_id: int) -> str:
    """The text of a job's id, as `job_0000000000016`."""
    return _JOB + _encode(job_id)


def execution_text(execution_id: int) -> str:
    """The text of an execution's id, as `exe_0000000000016`."""
    return _EXECUTION + _encode(execution_id)


def key_text(key_id: int) -> str:
    """The text of the id of an API key, as `key_0000000000016`."""
    return _KEY + _encode(key_id)


def monitor_text(monitor_id: int) -> str:
    """The text of a monitor's id, as `mon_0000000000016`."""
    return _MONITOR + _encode(monitor_id)


def parse_job_id(text: str) -> int:
    """The number of a job from its text; raises UnknownId for anything else."""
    return _parse(text, _JOB, "job")


def parse_execution_id(text: str) -> int:
    """The number of an execution from its text; raises UnknownId for anything else."""
    return _parse(text, _EXECUTION, "execution")


def parse_key_id(text: str) -> int:
    """The number of an API key from the text of its id; raises UnknownId for anything else."""
    return _parse(text, _KEY, "key")


def parse_monitor_id(text: str) -> int:
    """The number of a monitor from its text; raises UnknownId for anything else."""
    return _parse(text, _MONITOR, "monitor")


def created_at(number: int) -> datetime:
    """The moment that is in every id, in whole milliseconds."""
    return _BEGINNING + timedelta(milliseconds=number >> _SEQUENCE_BITS)


def first_id_at(moment: datetime) -> int:
    """The smallest id that can have been made at a moment or after it."""
    passed = -((_BEGINNING - moment) // timedelta(milliseconds=1))
    return min(max(passed, 0) << _SEQUENCE_BITS, MAX_ID)


def _encode(number: int) -> str:
    if not 0 <= number <= MAX_ID:
        raise ValueError("an id is a number from 0 to 2**63 - 1")
    pairs = _PAIRS  # written out: the answer to a batch has thousands
    return (
        f"{_ALPHABET[number >> 60]}{pairs[number >> 50 & 1023]}{pairs[number >> 40 & 1023]}{pairs[number >> 30 & 1023]}"
        f"{pairs[number >> 20 & 1023]}{pairs[number >> 10 & 1023]}{pairs[number & 1023]}"
    )


def _parse(text: str, prefix: str, kind: str) -> int:
    digits = text.removeprefix(prefix)
    if len(text) != len(prefix) + _WIDTH or len(digits) != _WIDTH:
        raise UnknownId(kind, text)
    number = 0
    for digit in digits:
        value = _VALUES.get(digit)
        if value is None:
            raise UnknownId(kind, text)
        number = number << 5 | value
    if number > MAX_ID:
        raise UnknownId(kind, text)
    return number
