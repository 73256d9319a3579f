"""The documents that select dead letters: to list, replay or purge them."""

import re
from datetime import datetime

import msgspec

from hourbell.documents.fields import Document, Field
from hourbell.documents.kinds import (
    Instant,
    Integer,
    JobId,
    Label,
    String,
    Text,
    choice_of,
)
from hourbell.documents.problems import Problems
from hourbell.model.executions import REASONS, ExecutionStatus, Reason

MAX_BULK_LIMIT = 10_000  # dead letters replayed or purged in one call
DEFAULT_BULK_LIMIT = 1_000
MAX_PER_SECOND = 100_000


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters to select; None: no restriction."""

    tenant_id: str | None = None
    job_id: int | None = None
    reason: Reason | None = None
    died_from: datetime | None = None
    died_to: datetime | None = None  # exclusive
    fingerprint: str | None = None  # of the error


class BulkSelection(msgspec.Struct, frozen=True):
    """Many dead letters, selected by a filter."""

    wanted: DeadLetterFilter
    limit: int
    rate_per_second: int | None
    token: str | None


class _Fingerprint(Text):
    """The fingerprint of an error."""

    def __init__(self) -> None:
        super().__init__(re.compile("[0-9a-f]{16}"), "16 hexadecimal digits, as shown in lists")


class DeadLetterFilterDocument(Document):
    tenant_id = Field(Label())
    job_id = Field(JobId())
    reason = Field(choice_of(sorted(REASONS[ExecutionStatus.DEAD])))
    died_from = Field(Instant(), name="from", description="Lower bound of died_at, inclusive.")
    died_to = Field(Instant(), name="to", description="Upper bound of died_at, exclusive.")
    fingerprint = Field(_Fingerprint(), description="Fingerprint of the error.")


class PurgeDocument(DeadLetterFilterDocument):
    limit = Field(Integer(1, MAX_BULK_LIMIT), default=DEFAULT_BULK_LIMIT)
    page_token = Field(String(), description="The next_page_token of the previous call.")


class ReplayDocument(PurgeDocument):
    rate_per_second = Field(Integer(1, MAX_PER_SECOND), description="Executions due per second.")


def read_dead_letter_filter(document: DeadLetterFilterDocument) -> DeadLetterFilter:
    """The filter in a document."""
    return DeadLetterFilter(
        tenant_id=document.tenant_id,
        job_id=document.job_id,
        reason=document.reason,
        died_from=document.died_from,
        died_to=document.died_to,
        fingerprint=document.fingerprint,
    )


def parse_replay(document: object) -> BulkSelection:
    """The dead letters to replay; raises InvalidInput with every invalid field."""
    replay = ReplayDocument.open(document, Problems())
    return _read_bulk(replay, replay.rate_per_second)


def parse_purge(document: object) -> BulkSelection:
    """The dead letters to purge; raises InvalidInput with every invalid field."""
    return _read_bulk(PurgeDocument.open(document, Problems()), None)


def _read_bulk(document: PurgeDocument, rate_per_second: int | None) -> BulkSelection:
    wanted = read_dead_letter_filter(document)
    bulk = BulkSelection(wanted, document.limit, rate_per_second, document.page_token)
    document.finish()
    document.problems.raise_if_any()
    return bulk
