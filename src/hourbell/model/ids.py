"""Ids of jobs, executions, keys, monitors, groups, sessions and operations: 63-bit numbers inside, text outside.

The text is `job_`, `exe_`, `key_`, `mon_`, `grp_`, `ses_` or `ops_`, then 13 characters of Crockford's base 32 in lower
case (no i, l, o, u, so that ids survive being read aloud). Because of the fixed width, text order
is number order. A one-time job *is* its execution: both ids then have the same number.

Parsing is strict: every number has exactly one text, and any other text raises `UnknownId`
(a `NotFound`).
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache

from hourbell.model.errors import UnknownId

MAX_ID = 2**63 - 1  # what a PostgreSQL bigint holds

# Upper 41 bits: milliseconds since 2024. Lower 22: a sequence (store/migrations/0001_core.sql).
_SEQUENCE_BITS = 22
_ID_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)

_JOB = "job_"
_EXECUTION = "exe_"
_KEY = "key_"
_MONITOR = "mon_"
_GROUP = "grp_"
_SESSION = "ses_"
_OPERATION = "ops_"
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_VALUES = {character: value for value, character in enumerate(_ALPHABET)}
_WIDTH = 13
# Encoded two characters at a time; only the first of the thirteen is encoded alone.
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


def job_text(job_id: int) -> str:
    """The text of a job id, such as `job_0000000000016`."""
    return _JOB + _encode(job_id)


def execution_text(execution_id: int) -> str:
    """The text of an execution id, such as `exe_0000000000016`."""
    return _EXECUTION + _encode(execution_id)


def key_text(key_id: int) -> str:
    """The text of an API key's id, such as `key_0000000000016`."""
    return _KEY + _encode(key_id)


def monitor_text(monitor_id: int) -> str:
    """The text of a monitor id, such as `mon_0000000000016`."""
    return _MONITOR + _encode(monitor_id)


def group_text(group_id: int) -> str:
    """The text of the id of a group, such as `grp_0000000000016`."""
    return _GROUP + _encode(group_id)


def session_text(session_id: int) -> str:
    """The text of the id of a worker's session, such as `ses_0000000000016`."""
    return _SESSION + _encode(session_id)


def operation_text(operation_id: int) -> str:
    """The text of the id of a bulk operation, such as `ops_0000000000016`."""
    return _OPERATION + _encode(operation_id)


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


def parse_group_id(text: str) -> int:
    """The number of a group from its text; raises UnknownId for anything else."""
    return _parse(text, _GROUP, "group")


def parse_session_id(text: str) -> int:
    """The number of a worker's session from its text; raises UnknownId for anything else."""
    return _parse(text, _SESSION, "session")


def parse_operation_id(text: str) -> int:
    """The number of a bulk operation from its text; raises UnknownId for anything else."""
    return _parse(text, _OPERATION, "operation")


def created_at(number: int) -> datetime:
    """The creation time encoded in an id, in whole milliseconds."""
    return _ID_EPOCH + timedelta(milliseconds=number >> _SEQUENCE_BITS)


def first_id_at(moment: datetime) -> int:
    """The smallest id that can have been created at or after a moment."""
    passed = -((_ID_EPOCH - moment) // timedelta(milliseconds=1))
    return min(max(passed, 0) << _SEQUENCE_BITS, MAX_ID)


def _encode(number: int) -> str:
    # A batch response has thousands of ids, and few distinct upper bits.
    return f"{_encode_upper(number >> 20)}{_PAIRS[number >> 10 & 1023]}{_PAIRS[number & 1023]}"


@lru_cache(1024)
def _encode_upper(bits: int) -> str:
    if not 0 <= bits <= MAX_ID >> 20:
        raise ValueError("an id is a number from 0 to 2**63 - 1")
    pairs = [_PAIRS[bits >> shift & 1023] for shift in (30, 20, 10, 0)]
    return _ALPHABET[bits >> 40] + "".join(pairs)


def _parse(text: object, prefix: str, kind: str) -> int:
    if not isinstance(text, str):
        raise UnknownId(kind, str(text))
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
