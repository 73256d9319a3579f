"""Everything that can go wrong and that somebody outside should understand.

    HourbellError
    ├── InvalidInput               invalid_input              every wrong field, with its path
    ├── IdempotencyKeyMissing      idempotency_key_missing    a write came without its key
    ├── NotFound                   not_found                  nothing has this id (any more)
    │   └── UnknownId              unknown_id                 the text cannot be anybody's id
    ├── Conflict                   conflict                   it stands against the present state
    │   ├── IdempotencyKeyReused   idempotency_key_reused     the key was used for something else
    │   ├── QuotaExceeded          quota_exceeded             the tenant has as many jobs as it may
    │   ├── DuplicateJob           duplicate_job              another job has the unique key
    │   ├── PreconditionFailed     precondition_failed        the job is at another version than was said
    │   └── JobNotActive           job_not_active             the job is completed or cancelled
    ├── Unauthenticated            unauthenticated            the request has no key, or one that is unknown
    │   └── TooManyFailures        too_many_failures          unknown keys came too often from there
    ├── Forbidden                  forbidden                  the key is known and may not do this
    ├── NoSecretKeys               no_secret_keys             there is nothing to seal secrets with
    ├── StaleFence                 stale_fence                somebody else holds the execution now
    ├── SessionLost                session_lost               a worker was silent for too long, or has left
    ├── NotLeader                  not_leader                 another node leads, or a later epoch
    ├── Overloaded                 overloaded                 more came than can be done
    ├── StoreUnavailable           store_unavailable          the database does not answer
    ├── EmbeddedServerFailed       embedded_server_failed     the embedded PostgreSQL does not start
    └── ConfigurationError         configuration_error        a setting is missing or wrong
        ├── DataFolderBusy         data_folder_busy           another process uses the folder
        ├── UnsafeDatabase         unsafe_database            too old, or it would lose what it confirmed
        └── IncompatibleDatabase   incompatible_database      migrated by a version that this one cannot work beside

A `code` is for programs: stable, the same in the API's problems, the CLI and the docs. A `title`
names the kind. The message is for people: what happened, why, and what to do about it. Nothing
here knows of HTTP; the API has the table from code to status.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import msgspec

FieldCode = Literal[
    "required",  # the field must be given
    "unknown_field",  # there is no such field
    "immutable",  # the field cannot change after creation
    "wrong_type",  # another JSON type is expected
    "out_of_range",  # a number or a date outside its bounds
    "too_long",  # too many characters, bytes or items
    "too_deep",  # nested further than anything sensible
    "bad_format",  # a text of the wrong shape
    "not_a_choice",  # not one of the listed values
    "conflict",  # contradicts another field
    "unknown_zone",  # no such IANA time zone
    "unknown_secret",  # the tenant has no secret of this name
    "unknown_template",  # `{{` that does not begin `{{secret:name}}`
    "invalid_cron",  # a rule that cannot be read or never matches
    "never_runs",  # the job would silently do nothing
]


class FieldError(msgspec.Struct, frozen=True):
    """One thing wrong with one field of a document."""

    path: str  # as `schedule.timezone`; "" is the document itself
    code: FieldCode
    message: str


class HourbellError(Exception):
    """The root: catch it to catch everything that Hourbell raises on purpose."""

    code: ClassVar[str] = "error"
    title: ClassVar[str] = "Something went wrong"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidInput(HourbellError):
    """A document was refused; `errors` has every wrong field."""

    code = "invalid_input"
    title = "The input is not valid"

    def __init__(self, errors: Sequence[FieldError]) -> None:
        if not errors:
            raise ValueError("InvalidInput needs at least one FieldError")
        self.errors = tuple(errors)
        count = "One field is" if len(errors) == 1 else f"{len(errors)} fields are"
        lines = "; ".join(f"{error.path or 'document'}: {error.message}" for error in errors)
        super().__init__(f"{count} wrong, so the request was refused. {lines}")


class IdempotencyKeyMissing(HourbellError):
    """A write came without an idempotency key."""

    code = "idempotency_key_missing"
    title = "An idempotency key is needed"

    def __init__(self) -> None:
        super().__init__(
            "This write came without the header Idempotency-Key, so a repeat after a lost answer would "
            "do it twice. Send `Idempotency-Key:` with a value of your own making, and the same value when you repeat."
        )


class NotFound(HourbellError):
    """There is no such thing, or none that the caller may see."""

    code = "not_found"
    title = "Not found"

    def __init__(self, kind: str, identifier: str) -> None:
        super().__init__(
            f"There is no {kind} {identifier}. It may have been deleted, its history may have "
            f"been dropped by retention, or it belongs to another tenant. List to see what exists."
        )


class UnknownId(NotFound):
    """The text is not an id, so nothing can have it."""

    code = "unknown_id"
    title = "Not an id"

    def __init__(self, kind: str, text: str) -> None:
        prefix = {"job": "job_", "execution": "exe_", "key": "key_", "monitor": "mon_"}[kind]
        HourbellError.__init__(
            self,
            f"{_shown(text)} is not the id of any {kind}: such an id is {prefix} followed by 13 "
            f"lower-case letters and digits. Copy it whole from the answer that created it.",
        )


class Conflict(HourbellError):
    """The request is well formed but stands against the present state."""

    code = "conflict"
    title = "In conflict with the present state"


class IdempotencyKeyReused(Conflict):
    """The same key came with another request."""

    code = "idempotency_key_reused"
    title = "The idempotency key was used for something else"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"The idempotency key {_shown(key)} was already used for a different request, so this "
            f"one was not carried out. Use a new key for a new request; repeat a key only with "
            f"the request it was first sent with."
        )


class QuotaExceeded(Conflict):
    """The tenant has as many jobs as it may have."""

    code = "quota_exceeded"
    title = "The quota of jobs is used up"

    def __init__(self, tenant: str, quota: int) -> None:
        super().__init__(
            f"Tenant {tenant} may have {quota} jobs that are scheduled, paused, waiting or running, so "
            f"nothing was created. Delete some, wait until some have run, or ask for a higher quota."
        )


class DuplicateJob(Conflict):
    """Another job that has not ended has the unique key."""

    code = "duplicate_job"
    title = "Another job has the unique key"

    def __init__(self, job: str, replacing: bool = False) -> None:
        why = "is queued or runs, so it cannot be replaced" if replacing else "has not ended"
        super().__init__(
            f"Job {job} has this unique key and {why}. Nothing was created; wait until it has ended, "
            f"delete it, or use another key."
        )


class PreconditionFailed(Conflict):
    """The job was changed since the caller looked at it."""

    code = "precondition_failed"
    title = "The job is at another version"

    def __init__(self, job: str, version: int) -> None:
        super().__init__(
            f"Job {job} is at version {version}, which is not the one that was asked for, so nothing was "
            f"changed. Read it again, and decide again."
        )


class JobNotActive(Conflict):
    """The job has ended; what was asked makes sense only before."""

    code = "job_not_active"
    title = "The job has ended"

    def __init__(self, job: str, status: str) -> None:
        super().__init__(
            f"Job {job} is {status}: it has ended, and nothing more can be done with it. Create a "
            f"new job if it is to run again."
        )


class Unauthenticated(HourbellError):
    """Nobody knows whom the request comes from."""

    code = "unauthenticated"
    title = "A key is needed"


class TooManyFailures(Unauthenticated):
    """Unknown keys came too often from one address."""

    code = "too_many_failures"
    title = "Too many unknown keys"

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(
            f"Too many requests with unknown keys came from this address. Correct the key, and try again "
            f"in {retry_after_seconds} seconds."
        )
        self.retry_after_seconds = retry_after_seconds


class Forbidden(HourbellError):
    """It is known who asks, and he may not."""

    code = "forbidden"
    title = "This key may not do that"


class NoSecretKeys(HourbellError):
    """Secrets can be neither sealed nor opened here."""

    code = "no_secret_keys"
    title = "Secrets are not set up"

    def __init__(self, which: str) -> None:
        super().__init__(
            f"{which} Set HOURBELL_SECRET_KEYS on every API and worker process, with the same keys."
        )


class StaleFence(HourbellError):
    """A worker spoke about an execution that it no longer holds."""

    code = "stale_fence"
    title = "The lease is lost"

    def __init__(self, execution: str, fence: int) -> None:
        super().__init__(
            f"Execution {execution} is no longer held under fence {fence}: the lease ran out and "
            f"it was given to another worker, or it was cancelled. Nothing was changed; stop "
            f"working on it."
        )


class SessionLost(HourbellError):
    """A worker's hold on all that it has claimed is over."""

    code = "session_lost"
    title = "The session is over"

    def __init__(self) -> None:
        super().__init__(
            "This session is over: it was not renewed in time, it was closed, or it never was. What it "
            "held goes to others. Nothing was changed; stop all its work and claim without a session."
        )


class NotLeader(HourbellError):
    """A verb of the leader was called under an epoch that is over."""

    code = "not_leader"
    title = "Not the leader"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"This node does not lead any more ({why}): another was elected after it failed to "
            f"renew in time. Nothing was changed; campaign again."
        )


class Overloaded(HourbellError):
    """More is waiting to be done than is worth waiting for."""

    code = "overloaded"
    title = "There is too much to do"

    def __init__(self) -> None:
        super().__init__(
            "More requests are waiting here than can be carried out soon, so this one was not begun. "
            "Try again a little later."
        )


class StoreUnavailable(HourbellError):
    """The database cannot be reached or does not answer in time."""

    code = "store_unavailable"
    title = "The database is not available"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"The database does not answer ({why}). Whether this write took effect is not known; "
            f"repeat it with the same idempotency key."
        )


class EmbeddedServerFailed(HourbellError):
    """The embedded PostgreSQL could not be made or started."""

    code = "embedded_server_failed"
    title = "The embedded PostgreSQL does not start"

    def __init__(self, what: str, log: str) -> None:
        super().__init__(
            f"{what} Correct what it complains about, or name a server of your own with "
            f"HOURBELL_DATABASE_URL. Its last words:\n{log}"
        )


class ConfigurationError(HourbellError):
    """A setting is missing or wrong; the process does not start."""

    code = "configuration_error"
    title = "The configuration is wrong"


class DataFolderBusy(ConfigurationError):
    """Two processes cannot share an embedded database."""

    code = "data_folder_busy"
    title = "The data folder is in use"

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"Another Hourbell process uses the data folder {folder}. Stop it, or give this one a "
            f"folder of its own with HOURBELL_DATA_DIR."
        )


class UnsafeDatabase(ConfigurationError):
    """The database is too old, or set up to lose what it confirmed; the message says which."""

    code = "unsafe_database"
    title = "The database is not fit for use"


class IncompatibleDatabase(ConfigurationError):
    """A newer version has changed the tables in a way that this one does not know."""

    code = "incompatible_database"
    title = "The database is too new for this program"

    def __init__(self, migration: str, required: str, newest: str) -> None:
        super().__init__(
            f"The database has the migration {migration} of a newer Hourbell, and programs that do not know {required} "
            f"cannot work with its tables; this one knows them up to {newest}. Run the newer version."
        )


def _shown(text: str) -> str:
    """A text of unknown origin, short and printable enough for a message or a log line."""
    return ascii(text if len(text) <= 64 else text[:61] + "...")
