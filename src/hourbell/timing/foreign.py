"""Rules in the syntax of other schedulers: rejected, with a hint at the equivalent syntax here.

@every 1h30m            Go's cron libraries        every_seconds
rate(5 minutes)         Amazon EventBridge         every_seconds
cron(0 12 * * ? *)      Amazon EventBridge         the five fields alone
"""

import re
from decimal import Decimal

_EVERY = re.compile(r"@every\b\s*(.*)", re.IGNORECASE)
_WHOLE = re.compile(r"[0-9]{1,9}")
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,3})?(?:ms|[hms]))+", re.IGNORECASE)
_PART = re.compile(r"([0-9.]+)(ms|[hms])", re.IGNORECASE)
_PART_SECONDS = {"h": Decimal(3600), "m": Decimal(60), "s": Decimal(1), "ms": Decimal("0.001")}
_RATE = re.compile(r"rate\s*\(\s*(?:([0-9]{1,9})\s+(minute|hour|day)s?)?.*", re.IGNORECASE)
_RATE_SECONDS = {"minute": 60, "hour": 3600, "day": 86_400}
_CRON = re.compile(r"cron\s*\((.*?)\)?", re.IGNORECASE)
_ANY = ("*", "?")


def refusal_of(rule: str) -> str | None:
    """Why a rule of another scheduler is rejected, and what to write instead; None if it is not one."""
    if match := _EVERY.fullmatch(rule):
        return _interval(_seconds_of_duration(match[1].strip()))
    if match := _RATE.fullmatch(rule):
        return _interval(int(match[1]) * _RATE_SECONDS[match[2].lower()] if match[1] else None)
    if match := _CRON.fullmatch(rule):
        return _fields(match[1].split())
    return None


def _seconds_of_duration(text: str) -> int | None:
    if _WHOLE.fullmatch(text):
        return int(text)
    if not _DURATION.fullmatch(text):
        return None
    seconds = sum(
        Decimal(number) * _PART_SECONDS[unit.lower()] for number, unit in _PART.findall(text)
    )
    return int(seconds) if seconds == int(seconds) else None


def _interval(seconds: int | None) -> str:
    example = (
        f"every_seconds: {seconds}" if seconds else "every_seconds, a whole number of seconds,"
    )
    return f"is an interval, not a cron rule; use {example} instead of cron"


def _fields(fields: list[str]) -> str:
    hint = "must be written without cron( ) and without a year here"
    if len(fields) == 6 and fields[4] in _ANY and fields[5] in _ANY:
        five = " ".join("*" if field in _ANY else field for field in fields[:5])
        return f"{hint}; write {five}"
    return (
        f"{hint}; write minute, hour, day-of-month, month and day-of-week, where Sunday is 0 "
        "and Monday is 1"
    )
