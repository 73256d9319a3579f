"""The errors that are reported to users.

    HourbellError
    ├── InvalidInput               invalid_input              every invalid field, with its path
    ├── IdempotencyKeyMissing      idempotency_key_missing    a write without an idempotency key
    ├── NotFound                   not_found                  no such resource, or no longer
    │   └── UnknownId              unknown_id                 the text is not a well-formed id
    ├── Conflict                   conflict                   conflicts with the current state
    │   ├── IdempotencyKeyReused   idempotency_key_reused     key used for another request
    │   ├── QuotaExceeded          quota_exceeded             the tenant's job quota is used up
    │   ├── DuplicateJob           duplicate_job              another job has the unique key
    │   ├── PreconditionFailed     precondition_failed        what is changed has another version
    │   └── JobNotActive           job_not_active             the job is completed or cancelled
    ├── Unauthenticated            unauthenticated            no API key, or an unknown one
    │   └── TooManyFailures        too_many_failures          too many unknown keys from an address
    ├── Forbidden                  forbidden                  the caller is not allowed to do this
    ├── NoSecretKeys               no_secret_keys             no key to encrypt or decrypt secrets
    ├── StaleFence                 stale_fence                the worker lost this execution
    ├── SessionLost                session_lost               the worker's session expired or closed
    ├── NotLeader                  not_leader                 another node, or a later epoch, leads
    ├── Overloaded                 overloaded                 too many requests are waiting
    ├── Busy                       busy                       another request is changing the same
    ├── StoreUnavailable           store_unavailable          the database does not respond
    ├── EmbeddedServerFailed       embedded_server_failed     the embedded PostgreSQL did not start
    └── ConfigurationError         configuration_error        a setting is missing or wrong
        ├── MissingExtra           missing_extra              an optional part is not installed
        ├── DataFolderBusy         data_folder_busy           another process uses the data folder
        ├── UnsafeDatabase         unsafe_database            too old, or could lose confirmed data
        ├── IncompatibleDatabase   incompatible_database      migrated by an incompatible version
        └── UnreleasedDatabase     unreleased_database        created by a development version

A `code` is for programs: it is stable, and the same in the API's problems, the CLI and the docs. A `title`
names the kind of error. The message is for people: what happened, why, and what to do about it.
Nothing here knows HTTP; the API has the table from code to status.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import msgspec

FieldCode = Literal[
    "required",  # the field must be given
    "unknown_field",  # there is no such field
    "immutable",  # the field cannot change after creation
    "wrong_type",  # a different JSON type is expected
    "out_of_range",  # a number or a date outside its bounds
    "too_long",  # too many characters, bytes or items
    "too_deep",  # nested too deeply
    "bad_format",  # text in the wrong format
    "not_a_choice",  # not one of the listed values
    "conflict",  # contradicts another field
    "unknown_zone",  # no such IANA time zone
    "unknown_calendar",  # the tenant has no calendar with this name
    "unknown_tenant",  # there is no such tenant, and a request does not create it
    "unknown_queue",  # there is no such queue, and a request does not create it
    "unknown_secret",  # the tenant has no secret with this name
    "unknown_template",  # a `{{` that begins neither `{{secret:name}}` nor `{{name}}`
    "invalid_cron",  # a rule that cannot be read or never matches
    "never_runs",  # the job would silently do nothing
]


class FieldError(msgspec.Struct, frozen=True):
    """One error in one field of a document."""

    path: str  # such as `schedule.timezone`; "" is the document itself
    code: FieldCode
    message: str


class HourbellError(Exception):
    """The base class of every error that Hourbell raises on purpose."""

    code: ClassVar[str] = "error"
    title: ClassVar[str] = "Something went wrong"
    created: Sequence[Any] = ()  # jobs that the call created before it failed

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidInput(HourbellError):
    """A document was rejected; `errors` lists every invalid field."""

    code = "invalid_input"
    title = "The input is not valid"

    def __init__(self, errors: Sequence[FieldError]) -> None:
        if not errors:
            raise ValueError("InvalidInput needs at least one FieldError")
        self.errors = tuple(errors)
        count = "One field is" if len(errors) == 1 else f"{len(errors)} fields are"
        lines = "; ".join(f"{error.path or 'document'}: {error.message}" for error in errors)
        super().__init__(f"{count} invalid, so the request was rejected. {lines}")


class IdempotencyKeyMissing(HourbellError):
    """A write has no idempotency key."""

    code = "idempotency_key_missing"
    title = "An idempotency key is required"

    def __init__(self) -> None:
        super().__init__(
            "This write has no Idempotency-Key header, so a retry after a lost response would do "
            "it twice. Send an `Idempotency-Key` with a value of your choice, and send the same value with "
            "every retry."
        )


class NotFound(HourbellError):
    """The resource does not exist, or the caller may not see it."""

    code = "not_found"
    title = "Not found"

    def __init__(self, kind: str, identifier: str) -> None:
        super().__init__(
            f"There is no {kind} {identifier}. It may have been deleted, removed by retention, or "
            f"belong to another tenant. Use a list call to see what exists."
        )


_PREFIXES = {"execution": "exe", "group": "grp"}  # of ids; for other kinds, their first letters


class UnknownId(NotFound):
    """The text is not a well-formed id."""

    code = "unknown_id"
    title = "Malformed id"

    def __init__(self, kind: str, text: str) -> None:
        prefix = f"{_PREFIXES.get(kind, kind[:3])}_"
        article = "an" if kind[0] in "aeiou" else "a"
        HourbellError.__init__(
            self,
            f"{_shown(text)} is not {article} {kind} id. Such an id is {prefix} followed by 13 "
            f"lower-case letters and digits; copy it in full from the response that created it.",
        )


class Conflict(HourbellError):
    """The request is well formed but conflicts with the current state."""

    code = "conflict"
    title = "Conflict with the current state"


class IdempotencyKeyReused(Conflict):
    """The same key was sent with a different request."""

    code = "idempotency_key_reused"
    title = "The idempotency key was used for a different request"

    def __init__(self, key: str) -> None:
        super().__init__(
            f"The idempotency key {_shown(key)} was already used for a different request, so this "
            f"one was not executed. Use a new key for a new request, and reuse a key only to repeat "
            f"the same request."
        )


class QuotaExceeded(Conflict):
    """The tenant has as many jobs as it may have."""

    code = "quota_exceeded"
    title = "The job quota is used up"

    def __init__(self, tenant: str, quota: int) -> None:
        super().__init__(
            f"Tenant {tenant} may have at most {quota} jobs that are scheduled, paused, waiting or "
            f"running, so nothing was created. Delete some, wait until some have ended, or raise "
            f"the quota."
        )


class DuplicateJob(Conflict):
    """Another job that has not ended has the unique key of a new job, or of a replayed one."""

    code = "duplicate_job"
    title = "Another job has the unique key"

    def __init__(self, job: str, replacing: bool = False, replayed: str | None = None) -> None:
        if replayed is not None:
            super().__init__(
                f"{replayed} cannot be replayed: job {job} has its unique key, or was put under its "
                f"name, and has not ended. Wait until that job has ended, or delete it."
            )
            return
        why = "is queued or running, so it cannot be replaced" if replacing else "has not ended"
        super().__init__(
            f"Job {job} has this unique key and {why}. Nothing was created. Wait until that job has "
            f"ended, delete it, or use another key."
        )


class PreconditionFailed(Conflict):
    """A job or settings have changed since the caller read them."""

    code = "precondition_failed"
    title = "Another version"

    def __init__(self, what: str, version: int) -> None:
        super().__init__(
            f"{what} has version {version}, which is not among those in If-Match, so nothing was "
            f"changed. Read it again before you change it."
        )


class JobNotActive(Conflict):
    """The job has ended, so the request no longer applies."""

    code = "job_not_active"
    title = "The job has ended"

    def __init__(self, job: str, status: str) -> None:
        super().__init__(
            f"Job {job} is {status}: it has ended and can no longer be changed or run. Create a "
            f"new job instead."
        )


class Unauthenticated(HourbellError):
    """The request is not authenticated."""

    code = "unauthenticated"
    title = "An API key is required"


class TooManyFailures(Unauthenticated):
    """Too many requests with unknown keys came from one address."""

    code = "too_many_failures"
    title = "Too many unknown keys"

    def __init__(self, retry_after_seconds: int) -> None:
        super().__init__(
            f"Too many requests with unknown API keys came from this address. Fix the key and "
            f"retry in {retry_after_seconds} seconds."
        )
        self.retry_after_seconds = retry_after_seconds


class Forbidden(HourbellError):
    """The caller is authenticated but not allowed."""

    code = "forbidden"
    title = "The API key does not allow this"


class NoSecretKeys(HourbellError):
    """This process cannot encrypt or decrypt secrets."""

    code = "no_secret_keys"
    title = "Secrets are not configured"

    def __init__(self, which: str) -> None:
        super().__init__(
            f"{which} Set HOURBELL_SECRET_KEYS on every API and worker process, with the same keys."
        )


class StaleFence(HourbellError):
    """A worker reported on an execution that it no longer holds."""

    code = "stale_fence"
    title = "The lease is lost"

    def __init__(self, execution: str, fence: int | None) -> None:
        held = "held by this worker" if fence is None else f"held under fence {fence}"
        super().__init__(
            f"Execution {execution} is no longer {held}: it has ended, its lease expired and "
            f"another worker may have claimed it, or it was cancelled. Nothing was changed. Stop "
            f"working on it."
        )


class SessionLost(HourbellError):
    """The worker's session has ended, and with it the claims that it held."""

    code = "session_lost"
    title = "The session has ended"

    def __init__(self) -> None:
        super().__init__(
            "This session has expired, was closed, or never existed. Other workers can claim its "
            "executions. Nothing was changed; stop all its work, then claim without a session."
        )


class NotLeader(HourbellError):
    """An operation of the leader was called in an epoch that has ended."""

    code = "not_leader"
    title = "Not the leader"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"This node is no longer the leader ({why}): another node was elected after this one "
            f"failed to renew its lease in time. Nothing was changed; campaign again."
        )


class Overloaded(HourbellError):
    """Too many requests are already waiting."""

    code = "overloaded"
    title = "The server is overloaded"

    def __init__(
        self,
        message: str = (
            "Too many requests are already waiting on this node, so this one was not started. "
            "Retry shortly."
        ),
    ) -> None:
        super().__init__(message)


class Busy(HourbellError):
    """Another transaction has locked what a request needs, for longer than the request waits.

    It may be an earlier request with the same key, whose commit waits for a standby.
    """

    code = "busy"
    title = "Another request is changing the same resource"

    def __init__(self) -> None:
        super().__init__(
            "Another request is changing the same resource, and has not ended. This one changed"
            " nothing; repeat it with the same idempotency key."
        )


class StoreUnavailable(HourbellError):
    """The database cannot be reached or does not respond in time."""

    code = "store_unavailable"
    title = "The database is unavailable"

    def __init__(self, why: str) -> None:
        super().__init__(
            f"The database is unavailable ({why}). This write may or may not have taken effect; "
            f"repeat it with the same idempotency key."
        )


class EmbeddedServerFailed(HourbellError):
    """The embedded PostgreSQL could not be created or started."""

    code = "embedded_server_failed"
    title = "The embedded PostgreSQL did not start"

    def __init__(self, what: str, log: str) -> None:
        super().__init__(
            f"{what} Fix the problem in its log, or set HOURBELL_DATABASE_URL to use your own "
            f"server. The end of the log:\n{log}"
        )


class ConfigurationError(HourbellError):
    """A setting is missing or wrong; the process does not start."""

    code = "configuration_error"
    title = "The configuration is wrong"


class MissingExtra(ConfigurationError):
    """A feature was used that the library alone does not include."""

    code = "missing_extra"
    title = "A required extra is not installed"

    def __init__(self, feature: str, extras: Sequence[str]) -> None:
        names = " and ".join(f'"{extra}"' for extra in extras)
        kind, them = ("extras", "them") if len(extras) > 1 else ("extra", "it")
        super().__init__(
            f"{feature} needs the {kind} {names}, which the library alone does not include. Install "
            f'{them}: pip install "hourbell[{",".join(extras)}]".'
        )


class DataFolderBusy(ConfigurationError):
    """Two processes cannot share an embedded database."""

    code = "data_folder_busy"
    title = "The data folder is in use"

    def __init__(self, folder: str) -> None:
        super().__init__(
            f"Another Hourbell process is using the data folder {folder}. Stop it, or set "
            f"HOURBELL_DATA_DIR to another folder for this process."
        )


class UnsafeDatabase(ConfigurationError):
    """The database is too old or could lose confirmed data; the message says which."""

    code = "unsafe_database"
    title = "The database is unsafe"


class IncompatibleDatabase(ConfigurationError):
    """A newer version has changed the tables in a way that this version cannot work with."""

    code = "incompatible_database"
    title = "The database is too new for this version"

    def __init__(self, migration: str, required: str, newest: str) -> None:
        super().__init__(
            f"A newer version of Hourbell has applied migration {migration} to the database, which "
            f"requires a version that knows migration {required}. This version knows migrations up to {newest}. "
            f"Run the newer version."
        )


class UnreleasedDatabase(ConfigurationError):
    """The tables come from a development version before the first release."""

    code = "unreleased_database"
    title = "The database comes from a development version"

    def __init__(self, migration: str) -> None:
        super().__init__(
            f"A development version of Hourbell has applied migration {migration} to the database, "
            f"and this version cannot migrate it. Use an empty database or another "
            f"HOURBELL_DATA_DIR, or run the version that created it."
        )


def _shown(text: str) -> str:
    """Untrusted text, shortened and escaped for a message or a log line."""
    return ascii(text if len(text) <= 64 else text[:61] + "...")
