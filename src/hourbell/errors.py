"""The errors of the library. Every one is a HourbellError, with a `code` for programs.

raised to callers     InvalidArguments, UnknownTask, UnknownQueue, UnknownTenant, DuplicateJob,
                      KeyBusy, QuotaExceeded, NotInTransaction, WrongConnection, NotOpen,
                      NoDatabase, NotMigrated, StoreUnavailable, NotFound, JobFailed, WaitTimeout
raised by handlers    Snooze, RetryAfter, Cancel, Dead
raised into handlers  LeaseLost, Suspend
raised at decoration  InvalidTask
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from hourbell.model import errors
from hourbell.model.errors import ConfigurationError as ConfigurationError
from hourbell.model.errors import Conflict as Conflict
from hourbell.model.errors import HourbellError as HourbellError
from hourbell.model.errors import NotFound as NotFound
from hourbell.model.errors import StoreUnavailable as StoreUnavailable


class InvalidArguments(HourbellError, TypeError):
    """Arguments or options of a task are wrong; nothing was enqueued."""

    code = "invalid_arguments"
    title = "The arguments are not valid"


class InvalidTask(HourbellError, TypeError):
    """A function cannot be a task as it is declared."""

    code = "invalid_task"
    title = "The function cannot be a task"


class UnknownTask(HourbellError):
    """The app has no task of this name."""

    code = "unknown_task"
    title = "Unknown task"


class UnknownQueue(HourbellError):
    """The queue does not exist, and the transaction of a user must not create it."""

    code = "unknown_queue"
    title = "Unknown queue"


class UnknownTenant(HourbellError):
    """The tenant does not exist, and the transaction of a user must not create it."""

    code = "unknown_tenant"
    title = "Unknown tenant"


class DuplicateJob(errors.DuplicateJob):
    """Another job that has not ended has the unique key; `holder` is its id."""

    def __init__(self, message: str, holder: str | None) -> None:
        HourbellError.__init__(self, message)
        self.holder = holder


class KeyBusy(Conflict):
    """Another open transaction holds the unique key or the quota."""

    code = "key_busy"
    title = "Another transaction holds the key"


class QuotaExceeded(errors.QuotaExceeded):
    """The tenant has as many jobs as it may have."""

    def __init__(self, message: str) -> None:
        HourbellError.__init__(self, message)


class NotInTransaction(HourbellError):
    """`connection=` was given outside of a transaction."""

    code = "not_in_transaction"
    title = "The connection is in autocommit"


class WrongConnection(HourbellError):
    """`connection=` is of an unknown kind, or of another kind than the call."""

    code = "wrong_connection"
    title = "The connection cannot be used"


class NotOpen(HourbellError):
    """The app is not open, or is open in another event loop."""

    code = "not_open"
    title = "The app is not open"


class NoDatabase(ConfigurationError):
    """No database is configured."""

    code = "no_database"
    title = "No database"


class NotMigrated(ConfigurationError):
    """The database lacks tables or functions of this version."""

    code = "not_migrated"
    title = "The database is not migrated"


class CannotConnect(StoreUnavailable):
    """The database cannot be reached when an app is opened."""

    def __init__(self, database: str, why: str) -> None:
        HourbellError.__init__(self, self.text(database, why))

    @staticmethod
    def text(database: str, why: str) -> str:
        return (
            f"The database {database} cannot be used: {why.rstrip('.')}. Check App(url=…) or "
            f"HOURBELL_DATABASE_URL, and that PostgreSQL runs there."
        )


class JobFailed(HourbellError):
    """A job whose result is wanted has not succeeded."""

    code = "job_failed"
    title = "The job has not succeeded"

    def __init__(self, job: str, fate: str, reason: str | None, error: str | None) -> None:
        because = f" ({reason})" if reason else ""
        super().__init__(f"Job {job} ended as {fate}{because}. {error or ''}".rstrip())
        self.fate, self.reason, self.error = fate, reason, error


class WaitTimeout(HourbellError, TimeoutError):
    """A job has not ended in time; it is left as it is."""

    code = "wait_timeout"
    title = "The job has not ended in time"


class LeaseLost(asyncio.CancelledError):
    """This worker no longer holds the execution, and another one may run it: stop, change nothing.

    Not an Exception, so that `except Exception` in a handler does not hide it.
    """


class Suspend(BaseException):
    """The handler waits for an outside system: it ends here, and runs again from its top.

    Not an Exception, so that `except Exception` in a handler does not hide it.
    """

    def __init__(self, token_digest: bytes, seconds: float) -> None:
        super().__init__("waits for an outside system")
        self.token_digest, self.seconds = token_digest, seconds


class _Decision(Exception):
    """Raised by a handler to decide what follows."""


def _seconds(value: float | timedelta) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= seconds < float("inf"):
        raise ValueError("a delay is a number of seconds that is not negative")
    return seconds


class Snooze(_Decision):
    """Run again after a delay. No attempt is used."""

    def __init__(self, delay: float | timedelta) -> None:
        super().__init__(f"snoozed for {delay}")
        self.seconds = _seconds(delay)


class RetryAfter(_Decision):
    """The attempt failed; retry after a delay of at least this, if retries are left."""

    def __init__(self, delay: float | timedelta, why: str = "") -> None:
        super().__init__(why or f"to be retried after {delay}")
        self.seconds = _seconds(delay)


class Cancel(_Decision):
    """End the execution as CANCELLED; the reason, if any, is kept as its error."""


class Dead(_Decision):
    """The attempt failed and is not retried; the execution becomes a dead letter."""
