"""The errors of the library. Each is a HourbellError with a `code` for programs.

raised to callers     InvalidArguments, UnknownTask, UnknownQueue, UnknownTenant, DuplicateJob,
                      KeyBusy, QuotaExceeded, NotInTransaction, WrongConnection, NotOpen,
                      NoDatabase, NotMigrated, StoreUnavailable, NotFound, JobFailed,
                      ResultNotStored, WaitTimeout
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
    """A function cannot be a task in the way it is declared."""

    code = "invalid_task"
    title = "The function cannot be a task"


class UnknownTask(HourbellError):
    """The app has no task with this name."""

    code = "unknown_task"
    title = "Unknown task"


class UnknownQueue(HourbellError):
    """The queue does not exist, and a user's transaction must not create it."""

    code = "unknown_queue"
    title = "Unknown queue"


class UnknownTenant(HourbellError):
    """The tenant does not exist, and a user's transaction must not create it."""

    code = "unknown_tenant"
    title = "Unknown tenant"


class DuplicateJob(errors.DuplicateJob):
    """Another job that has not ended has the unique key; `holder` is its id."""

    def __init__(self, message: str, holder: str | None) -> None:
        HourbellError.__init__(self, message)
        self.holder = holder


class KeyBusy(Conflict):
    """Another open transaction holds the unique key, the idempotency key or the quota."""

    code = "key_busy"
    title = "Another transaction holds the key"


class QuotaExceeded(errors.QuotaExceeded):
    """The tenant has as many jobs as it may have."""

    def __init__(self, message: str) -> None:
        HourbellError.__init__(self, message)


class NotInTransaction(HourbellError):
    """`connection=` is not in a transaction."""

    code = "not_in_transaction"
    title = "The connection is in autocommit"


class WrongConnection(HourbellError):
    """`connection=` is of an unknown kind, or does not fit the call (sync or async)."""

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
            f"Cannot use the database {database}: {why.rstrip('.')}. Check App(url=…) or "
            f"HOURBELL_DATABASE_URL, and that PostgreSQL is running."
        )


class JobFailed(HourbellError):
    """The job whose result was requested did not succeed."""

    code = "job_failed"
    title = "The job did not succeed"

    def __init__(self, job: str, fate: str, reason: str | None, error: str | None) -> None:
        because = f" ({reason})" if reason else ""
        super().__init__(f"Job {job} ended as {fate}{because}. {error or ''}".rstrip())
        self.fate, self.reason, self.error = fate, reason, error


class ResultNotStored(HourbellError):
    """The job succeeded, but its result was too long or not JSON."""

    code = "result_not_stored"
    title = "The result was not stored"


class WaitTimeout(HourbellError, TimeoutError):
    """The job did not end in time; it was not changed."""

    code = "wait_timeout"
    title = "The job did not end in time"


class LeaseLost(asyncio.CancelledError):
    """This worker no longer holds the execution, and another may be running it: stop and change nothing.

    Not an Exception, so that `except Exception` in a handler does not hide it.
    """


class Suspend(BaseException):
    """The handler waits for an outside system: this run ends here, and the next one starts from the top.

    Not an Exception, so that `except Exception` in a handler does not hide it.
    """

    def __init__(self, token_digest: bytes, seconds: float) -> None:
        super().__init__("waiting for an outside system")
        self.token_digest, self.seconds = token_digest, seconds


class _Decision(Exception):
    """Raised by a handler to decide what happens next."""


def _seconds(value: float | timedelta) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= seconds < float("inf"):
        raise ValueError("a delay must be a number of seconds that is not negative")
    return seconds


class Snooze(_Decision):
    """Run again after a delay. Does not count as an attempt."""

    def __init__(self, delay: float | timedelta) -> None:
        super().__init__(f"snoozed for {delay}")
        self.seconds = _seconds(delay)


class RetryAfter(_Decision):
    """The attempt failed; retry after this delay instead of the policy's, if retries are left."""

    def __init__(self, delay: float | timedelta, why: str = "") -> None:
        super().__init__(why or f"retry requested after {delay}")
        self.seconds = _seconds(delay)


class Cancel(_Decision):
    """End the execution as CANCELLED; the reason, if any, is kept as its error."""


class Dead(_Decision):
    """The attempt failed and must not be retried; the execution becomes a dead letter."""
