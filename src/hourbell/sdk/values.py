"""Values that users write: retry policies, schedules, options, and their checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from math import ceil, inf, isfinite
from typing import Any, Final, Literal, NotRequired, TypedDict, TypeVar

import msgspec

from hourbell.errors import HourbellError, InvalidArguments
from hourbell.model.jobs import (
    MAX_CONCURRENCY_LIMIT,
    MAX_DEADLINE_SECONDS,
    MAX_START_DEADLINE_SECONDS,
    MAX_TIMEOUT_SECONDS,
)
from hourbell.model.policies import (
    MAX_RETRIES,
    MAX_RETRY_DELAY_SECONDS,
    Backoff,
    Misfire,
    Overlap,
    Priority,
    RetryPolicy,
)
from hourbell.model.schedules import (
    MAX_DELAY_SECONDS,
    MAX_JITTER_SECONDS,
    DstGap,
    DstOverlap,
)
from hourbell.model.texts import text_problem
from hourbell.timing.intervals import MAX_EVERY_SECONDS

E = TypeVar("E", bound=StrEnum)
Seconds = float | timedelta
PriorityLike = Priority | Literal["CRITICAL", "HIGH", "MEDIUM", "LOW"]
OnDuplicateLike = Literal["reject", "keep", "replace"]

_LABEL = re.compile(r"[A-Za-z0-9._:-]{1,64}")


class Without(Enum):
    """The type of NONE."""

    NONE = "NONE"

    def __repr__(self) -> str:
        return self.name


NONE: Final = Without.NONE  # for `configure`: without this option, even if the task declares it
Absent = Without | None


class Options(TypedDict, total=False):
    """The options that `configure` takes. None means: as declared; NONE, where it is allowed: without."""

    at: datetime | None  # aware, or naive together with `timezone`
    delay: Seconds | None
    timezone: str | None
    queue: str | None
    priority: PriorityLike | None
    tenant: str | None
    labels: Mapping[str, str] | Absent
    unique_key: str | Absent
    on_duplicate: OnDuplicateLike | None
    unique_scope: Literal["task", "tenant"] | None
    concurrency_key: str | Absent
    concurrency_limit: int | None
    expires_at: datetime | None  # if it has not started by then, it is SKIPPED
    expires_in: Seconds | Absent  # the same, counted from the job's time
    deadline: Seconds | Absent  # over all attempts
    timeout: Seconds | None  # of one attempt
    retry: Retry | Absent
    idempotency_key: str | None  # a repeated call returns the first job
    connection: Any  # of asyncpg, psycopg, SQLAlchemy or Django, in a transaction
    notify: bool | None


MAY_BE_NONE = ("labels", "unique_key", "concurrency_key", "expires_in", "deadline", "retry")


class Unique(msgspec.Struct, frozen=True):
    """Which jobs of a task exclude each other while they have not ended.

    Without a key: those with the same arguments. `key` is called with the arguments of a job.
    """

    key: Callable[..., str] | None = None
    on_duplicate: OnDuplicateLike = "keep"
    scope: Literal["task", "tenant"] = "task"


class Retry(msgspec.Struct, frozen=True):
    """How often, and after which delays, a failed attempt is retried."""

    policy: RetryPolicy

    @staticmethod
    def exponential(
        max_retries: int = 3, *, initial: Seconds = 30, maximum: Seconds = 3600, jitter: bool = True
    ) -> Retry:
        """Delays that double, up to a maximum; with jitter, each is between half and all of that."""
        kind = Backoff.EXPONENTIAL_WITH_JITTER if jitter else Backoff.EXPONENTIAL
        first, longest = whole_seconds("initial", initial), whole_seconds("maximum", maximum)
        return _formula(kind, max_retries, first, longest)

    @staticmethod
    def fixed(max_retries: int = 3, *, every: Seconds = 30) -> Retry:
        """The same delay before each retry."""
        delay = whole_seconds("every", every)
        return _formula(Backoff.FIXED, max_retries, delay, delay)

    @staticmethod
    def linear(max_retries: int = 3, *, step: Seconds = 30, maximum: Seconds = 3600) -> Retry:
        """Delays that grow by a step, up to a maximum."""
        first, longest = whole_seconds("step", step), whole_seconds("maximum", maximum)
        return _formula(Backoff.LINEAR, max_retries, first, longest)

    @staticmethod
    def delays(*seconds: Seconds) -> Retry:
        """These delays, one per retry."""
        if not seconds:
            raise InvalidArguments(
                "Retry.delays() needs at least one delay. For no retries, use Retry.never()."
            )
        whole = tuple(whole_seconds("delay", each) for each in seconds)
        return _checked(
            RetryPolicy(max_retries=len(whole), backoff=Backoff.LIST, delays_seconds=whole)
        )

    @staticmethod
    def never() -> Retry:
        return Retry(RetryPolicy(max_retries=0))


def _formula(kind: Backoff, max_retries: int, first: int, longest: int) -> Retry:
    return _checked(
        RetryPolicy(
            max_retries=max_retries,
            backoff=kind,
            initial_delay_seconds=first,
            max_delay_seconds=max(first, longest),
        )
    )


def _checked(policy: RetryPolicy) -> Retry:
    if not is_whole(policy.max_retries) or not 0 <= policy.max_retries <= MAX_RETRIES:
        raise InvalidArguments(
            f"The number of retries must be from 0 to {MAX_RETRIES}, not {shown_value(policy.max_retries)}."
        )
    delays = policy.delays_seconds or (policy.initial_delay_seconds, policy.max_delay_seconds)
    if not all(0 <= each <= MAX_RETRY_DELAY_SECONDS for each in delays):
        raise InvalidArguments("The delay before a retry must be from 0 seconds to 7 days.")
    return Retry(policy)


class Notification(TypedDict):
    """A webhook that reports events of the runs of a schedule: a notification of the API's jobs."""

    on: Sequence[Literal["success", "failure", "dead_letter"]]
    url: str
    headers: NotRequired[Mapping[str, str]]
    secrets: NotRequired[Literal["required", "lazy"]]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """When a task runs on its own. Create one with `cron` or `every`."""

    cron: str | None = None
    every_seconds: int | None = None
    timezone: str = "UTC"
    key: str | None = None  # distinguishes the schedules of one task; None: by their rule
    args: Mapping[str, Any] = {}  # the arguments of every run
    jitter_seconds: int = 0
    misfire: Misfire = Misfire.LATEST
    overlap: Overlap = Overlap.ALLOW
    gap: DstGap = "run_after"
    repeated: DstOverlap = "once"
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    exclude: tuple[str, ...] = ()  # names of calendars
    notifications: tuple[Notification, ...] = ()


def cron(
    rule: str,
    *,
    timezone: str = "UTC",
    key: str | None = None,
    args: Mapping[str, Any] | None = None,
    jitter: Seconds = 0,
    misfire: Literal["skip", "latest", "all"] = "latest",
    overlap: Literal["allow", "forbid", "replace", "queue_one"] = "allow",
    gap: DstGap = "run_after",
    repeated: DstOverlap = "once",
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    exclude: Sequence[str] = (),
    notifications: Sequence[Notification] = (),
) -> Schedule:
    """A schedule by a cron rule of 5 or 6 fields, or a macro such as @daily, in a time zone."""
    from hourbell.timing.cron import resolve_hash
    from hourbell.timing.errors import TimingError
    from hourbell.timing.rules import compile_rule

    try:
        compile_rule(resolve_hash(rule, 0), timezone, gap, repeated)
    except TimingError as error:
        raise InvalidArguments(f"cron({rule!r}, timezone={timezone!r}): {error}") from None
    return Schedule(
        cron=rule,
        timezone=timezone,
        key=key,
        args=dict(args or {}),
        jitter_seconds=_jitter(jitter),
        misfire=_choice("misfire", Misfire, misfire),
        overlap=_choice("overlap", Overlap, overlap),
        gap=gap,
        repeated=repeated,
        starts_at=_aware("starts_at", starts_at),
        ends_at=_aware("ends_at", ends_at),
        exclude=_names("exclude", exclude),
        notifications=_notifications(notifications),
    )


def every(
    interval: Seconds,
    *,
    key: str | None = None,
    args: Mapping[str, Any] | None = None,
    jitter: Seconds = 0,
    misfire: Literal["skip", "latest", "all"] = "latest",
    overlap: Literal["allow", "forbid", "replace", "queue_one"] = "allow",
    starts_at: datetime | None = None,
    ends_at: datetime | None = None,
    exclude: Sequence[str] = (),
    notifications: Sequence[Notification] = (),
) -> Schedule:
    """A schedule by elapsed time, in whole seconds."""
    seconds = seconds_of(interval, "interval")
    if not 1 <= seconds <= MAX_EVERY_SECONDS or seconds != int(seconds):
        raise InvalidArguments(
            f"every({shown_value(interval)}): the interval must be a whole number of seconds, from 1 to "
            f"{MAX_EVERY_SECONDS}."
        )
    return Schedule(
        every_seconds=int(seconds),
        key=key,
        args=dict(args or {}),
        jitter_seconds=_jitter(jitter),
        misfire=_choice("misfire", Misfire, misfire),
        overlap=_choice("overlap", Overlap, overlap),
        starts_at=_aware("starts_at", starts_at),
        ends_at=_aware("ends_at", ends_at),
        exclude=_names("exclude", exclude),
        notifications=_notifications(notifications),
    )


def _jitter(value: Seconds) -> int:
    seconds = whole_seconds("jitter", value)
    if seconds > MAX_JITTER_SECONDS:
        raise InvalidArguments(
            f"jitter must be from 0 to {MAX_JITTER_SECONDS} seconds, not {shown_value(value)}."
        )
    return seconds


def _names(name: str, value: Sequence[str]) -> tuple[str, ...]:
    if isinstance(value, str):  # its letters would be names
        raise InvalidArguments(f"{name} must be a list of names, not {value!r}.")
    return tuple(value)


def _notifications(value: Sequence[Notification]) -> tuple[Notification, ...]:
    """Notifications as they are stored, checked as the API checks them."""
    if not value:
        return ()
    from hourbell.documents.actions import NotificationDocument, read_notification
    from hourbell.documents.fields import Object
    from hourbell.documents.kinds import Array
    from hourbell.documents.problems import Problems
    from hourbell.model.errors import InvalidInput
    from hourbell.model.jobs import MAX_NOTIFICATIONS

    problems = Problems()
    many = Array(Object(NotificationDocument), 1, MAX_NOTIFICATIONS)
    try:
        stored = msgspec.json.decode(msgspec.json.encode(value))
        for document in many.read(stored, "notifications", problems) or ():
            read_notification(document)
        problems.raise_if_any()
    except InvalidInput as error:
        first = error.errors[0]
        raise InvalidArguments(f"{first.path} {first.message.rstrip('.')}.") from None
    except TypeError as error:
        raise InvalidArguments(f"notifications must be JSON: {error}") from None
    return tuple(stored)


def _choice(name: str, kind: type[E], value: str) -> E:
    try:
        return kind(value)
    except ValueError:
        values = ", ".join(each.value for each in kind)
        raise InvalidArguments(f"{name}={value!r} must be one of {values}.") from None


def check_options(
    where: str, options: Mapping[str, Any], error: type[HourbellError] = InvalidArguments
) -> None:
    """Raise an error for an option of the wrong type or out of its range; None counts as not given.

    A text that cannot be stored would abort the user's transaction. The database checks ranges too,
    because it also serves callers in other languages. It is given only numbers that fit its types.
    """
    for name, value in options.items():
        if value is None or name not in _KINDS:
            continue
        fits, expected = _KINDS[name]
        if not fits(value):
            raise error(f"{where}: {name} must be {expected}, not {shown_value(value)}.")
        if name in _BOUNDS:
            low, high = _BOUNDS[name]
            # Compared as they are: neither a huge number nor NaN becomes a float here.
            seconds = value.total_seconds() if isinstance(value, timedelta) else value
            if not low <= seconds <= high:
                raise error(
                    f"{where}: {name} must be from {low} to {high} seconds, not {shown_value(value)}."
                )
        problem = _text_problem(value)
        if problem is not None:
            raise error(f"{where}: {name} {problem}.")


def is_whole(value: object) -> bool:
    """Whether a value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def shown_value(value: object) -> str:
    """A value in an error message; a huge number is not written out."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_BITS:
        return "a number with hundreds of digits"
    return repr(value)


def _text_problem(value: object) -> str | None:
    """Why a text, or a mapping of texts, cannot be stored; None for any other value."""
    if isinstance(value, str):
        return text_problem(value)
    if isinstance(value, Mapping):
        texts = (text for pair in value.items() for text in pair)
        return next(filter(None, map(text_problem, texts)), None)
    return None


def _is_label(value: object) -> bool:
    return isinstance(value, str) and _LABEL.fullmatch(value) is not None


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_instant(value: object) -> bool:
    return isinstance(value, datetime)


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float | timedelta) and not isinstance(value, bool)


def _is_priority(value: object) -> bool:
    return isinstance(value, Priority) or (isinstance(value, str) and value in Priority.__members__)


def _is_concurrency_limit(value: object) -> bool:
    return is_whole(value) and 1 <= value <= MAX_CONCURRENCY_LIMIT  # type: ignore[operator]


def _is_labels(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(text, str) for pair in value.items() for text in pair
    )


_Kind = tuple[Callable[[Any], bool], str]  # the check of a value, and its description
_NAMED: _Kind = _is_label, "1 to 64 letters, digits or . _ : -"
_TEXT: _Kind = _is_text, "a non-empty string"
_INSTANT: _Kind = _is_instant, "a datetime"
_SECONDS: _Kind = _is_seconds, "a number of seconds or a timedelta"
_KINDS: Mapping[str, _Kind] = {
    "at": _INSTANT,
    "delay": _SECONDS,
    "timezone": _TEXT,
    "queue": _NAMED,
    "priority": (_is_priority, "CRITICAL, HIGH, MEDIUM or LOW"),
    "tenant": _NAMED,
    "labels": (_is_labels, "a mapping of strings"),
    "unique_key": _TEXT,
    "on_duplicate": (("reject", "keep", "replace").__contains__, "reject, keep or replace"),
    "unique_scope": (("task", "tenant").__contains__, "task or tenant"),
    "concurrency_key": _TEXT,
    "concurrency_limit": (
        _is_concurrency_limit,
        f"a whole number from 1 to {MAX_CONCURRENCY_LIMIT}",
    ),
    "expires_at": _INSTANT,
    "expires_in": _SECONDS,
    "deadline": _SECONDS,
    "timeout": _SECONDS,
    "retry": (lambda value: isinstance(value, Retry), "a Retry, such as Retry.fixed(3, every=60)"),
    "idempotency_key": _TEXT,
    "name": _TEXT,  # of a task or a group
    "token": _TEXT,
    "error": (lambda value: isinstance(value, str), "a string"),
}
# Of options in seconds: as in the documents of the API.
_BOUNDS: Mapping[str, tuple[int, int]] = {
    "delay": (0, MAX_DELAY_SECONDS),
    "expires_in": (1, MAX_START_DEADLINE_SECONDS),
    "deadline": (1, MAX_DEADLINE_SECONDS),
    "timeout": (1, MAX_TIMEOUT_SECONDS),
}
_SHOWN_BITS = 1024  # of a number in a message; Python refuses to write out much longer ones


def seconds_of(value: Seconds, name: str | None = None) -> float:
    """A number of seconds; infinity and NaN are rejected. `name` is the name of the option."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    try:
        if isinstance(value, str | bool):  # which `float` would read
            raise ValueError
        seconds = float(value)
    except OverflowError:
        seconds = inf
    except (TypeError, ValueError):
        given = repr(value) if name is None else f"{name}={value!r}"
        raise InvalidArguments(
            f"{given} is not a number. Use a number of seconds or a timedelta."
        ) from None
    if not isfinite(seconds):
        given = f"{seconds:g}" if name is None else f"{name}={seconds:g}"
        raise InvalidArguments(
            f"{given} is not a finite number. Use a number of seconds or a timedelta."
        )
    return seconds


def whole_seconds(name: str, value: Seconds) -> int:
    """Whole seconds, rounded up; less than one second is rejected, unless it is zero."""
    seconds = seconds_of(value, name)
    if 0 < seconds < 1 or seconds < 0:
        raise InvalidArguments(
            f"{name}={seconds:g} is too short. Use 1 second or more (fractions are rounded up)."
        )
    return ceil(seconds)


def _aware(name: str, value: datetime | None) -> datetime | None:
    if value is not None and not isinstance(value, datetime):
        raise InvalidArguments(f"{name} must be a datetime, not {value!r}.")
    if value is not None and value.tzinfo is None:
        raise InvalidArguments(f"{name} has no time zone: use a datetime with tzinfo.")
    return value


def instant_of(options: Options) -> datetime | None:
    """The instant of `at`; a naive one is a wall time in `timezone`, by the rule of a fixed time."""
    at, timezone = options.get("at"), options.get("timezone")
    if at is None:
        if timezone is not None:
            raise InvalidArguments("timezone= needs at=, a wall time in that zone.")
        return None
    if options.get("delay") is not None:
        raise InvalidArguments("at= and delay= cannot be combined.")
    if at.tzinfo is not None:
        if timezone is not None:
            raise InvalidArguments("at= already has a time zone: leave out timezone=.")
        return at
    if timezone is None:
        raise InvalidArguments(
            "at= has no time zone. Use a datetime with tzinfo, or set timezone=."
        )
    from hourbell.timing import rules
    from hourbell.timing.errors import TimingError

    try:
        instant = rules.instant_of(at, timezone)
    except TimingError as error:
        raise InvalidArguments(f"timezone={timezone!r}: {error}") from None
    except OverflowError:
        instant = None
    if instant is None:
        raise InvalidArguments(
            f"at={at} does not exist in {timezone}: its clocks skip more than three hours there."
        )
    return instant
