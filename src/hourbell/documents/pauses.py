"""The documents that pause and resume jobs: a single one, or all that match a filter."""

import msgspec

from hourbell.documents.fields import Document, Field
from hourbell.documents.kinds import Instant, Integer, Label, Line, NameAndValue, String
from hourbell.documents.problems import Problems
from hourbell.model.jobs import MAX_PAUSE_REASON, Pause

MAX_BULK_LIMIT = 10_000  # jobs paused or resumed in one call
DEFAULT_BULK_LIMIT = 1_000


class JobSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs to pause or resume; None: no restriction."""

    tenant_id: str | None = None
    queue: str | None = None
    label: str | None = None  # as `team:billing`
    limit: int = DEFAULT_BULK_LIMIT
    token: str | None = None


class PauseDocument(Document):
    reason = Field(Line(MAX_PAUSE_REASON), description="Shown by explain.")
    until = Field(Instant(), description="When the job is resumed. Must be in the future.")


class _SelectionDocument(Document):
    tenant_id = Field(Label())
    queue = Field(Label())
    label = Field(NameAndValue(), description="A label as name:value, such as team:billing.")
    limit = Field(Integer(1, MAX_BULK_LIMIT), default=DEFAULT_BULK_LIMIT)
    page_token = Field(String(), description="The next_page_token of the previous call.")


class BulkPauseDocument(PauseDocument, _SelectionDocument):
    """Pauses the selected jobs."""


class BulkResumeDocument(_SelectionDocument):
    reason = Field(
        Line(MAX_PAUSE_REASON), description="Only jobs that were paused with this reason."
    )


def parse_pause(document: object) -> Pause:
    """The details of a pause; raises InvalidInput with every invalid field."""
    pause = PauseDocument.open(document, Problems())
    found = Pause(pause.reason, pause.until)
    pause.finish()
    pause.problems.raise_if_any()
    return found


def parse_bulk_pause(document: object) -> tuple[JobSelection, Pause]:
    """The jobs to pause, and the details; raises InvalidInput with every invalid field."""
    bulk = BulkPauseDocument.open(document, Problems())
    pause = Pause(bulk.reason, bulk.until)
    return _selection(bulk), pause


def parse_bulk_resume(document: object) -> tuple[JobSelection, str | None]:
    """The jobs to resume, and the reason they were paused with; None: any."""
    bulk = BulkResumeDocument.open(document, Problems())
    reason = bulk.reason
    return _selection(bulk), reason


def _selection(document: _SelectionDocument) -> JobSelection:
    selection = JobSelection(
        tenant_id=document.tenant_id,
        queue=document.queue,
        label=document.label,
        limit=document.limit,
        token=document.page_token,
    )
    document.finish()
    document.problems.raise_if_any()
    return selection
