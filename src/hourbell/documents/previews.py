"""The document that previews a schedule, before any job has it."""

from datetime import datetime

import msgspec

from hourbell.documents.fields import REQUIRED, Document, Field, Object
from hourbell.documents.kinds import Boolean, Integer, JobId, Label
from hourbell.documents.problems import Problems
from hourbell.documents.schedules import ScheduleDocument, read_timing
from hourbell.model.schedules import Schedule, Window

MAX_PREVIEWED = 100
DEFAULT_PREVIEWED = 10
_EXAMPLE_JOB = 0  # its values replace H if no job is given


class PreviewDocument(Document):
    schedule = Field(
        Object(ScheduleDocument),
        required=REQUIRED,
        description="As in a job; its fields decide whether it is ONE_TIME or RECURRING.",
    )
    count = Field(Integer(1, MAX_PREVIEWED), default=DEFAULT_PREVIEWED)
    clock_changes = Field(
        Boolean(), default=True, description="If false, the list of clock changes stays empty."
    )
    job_id = Field(
        JobId(),
        description="The job that will get the schedule; its id determines H and jitter.",
    )
    tenant_id = Field(Label(), description="The tenant whose calendars the schedule excludes.")


class PreviewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, and what to report about it."""

    schedule: Schedule
    window: Window
    count: int
    clock_changes: bool
    job_id: int  # of the job, or of an example
    is_example: bool  # no job was given
    tenant_id: str | None


def parse_preview(document: object, now: datetime) -> PreviewRequest:
    """The schedule to preview; raises InvalidInput with every invalid field."""
    problems = Problems()
    preview = PreviewDocument.open(document, problems)
    job_id, schedule = preview.job_id, preview.schedule
    number = _EXAMPLE_JOB if job_id is None else job_id
    timing = None if schedule is None else read_timing(schedule, None, now, number)
    count, changes, tenant = preview.count, preview.clock_changes, preview.tenant_id
    preview.finish()
    problems.raise_if_any()
    assert timing is not None  # otherwise there is a problem
    return PreviewRequest(
        schedule=timing[0],
        window=timing[1],
        count=count,
        clock_changes=changes,
        job_id=number,
        is_example=job_id is None,
        tenant_id=tenant,
    )
