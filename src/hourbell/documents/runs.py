"""The documents of runs on request: one run now, or past occurrences."""

from datetime import datetime

from msgspec.structs import replace

from hourbell.documents.actions import read_templates
from hourbell.documents.fields import REQUIRED, Document, Field
from hourbell.documents.kinds import Instant, Json
from hourbell.documents.problems import Problems
from hourbell.model.jobs import MAX_BODY_BYTES, Job, NewJob, WebhookAction


class RunDocument(Document):
    body = Field(Json(MAX_BODY_BYTES), description="Overrides the job's body; WEBHOOK only.")
    payload = Field(Json(MAX_BODY_BYTES), description="Overrides the job's payload; TASK only.")


class BackfillDocument(Document):
    after = Field(Instant(), required=REQUIRED, description="Start of the range, exclusive.")
    through = Field(
        Instant(),
        required=REQUIRED,
        description="End of the range, inclusive; must not be in the future.",
    )


def parse_override(document: object, job: Job) -> NewJob | None:
    """The definition that one run uses instead of the job's own; None: no override was given."""
    problems = Problems()
    run = RunDocument.open(document, problems)
    if isinstance(job.action, WebhookAction):
        run.forbid("payload", "does not apply to this job, which has a body")
        field, value = "body", run.body
        if not job.action.literal:
            value = read_templates(run, "body", value)
    else:
        run.forbid("body", "does not apply to this job, which has a payload")
        field, value = "payload", run.payload
    run.finish()
    problems.raise_if_any()
    if value is None:
        return None
    definition = NewJob(**{name: getattr(job, name) for name in NewJob.__struct_fields__})
    return replace(definition, action=replace(job.action, **{field: value}))


def parse_backfill(document: object) -> tuple[datetime, datetime]:
    """The start of the range, exclusive, and its end, inclusive; raises InvalidInput with every invalid field."""
    problems = Problems()
    backfill = BackfillDocument.open(document, problems)
    after, through = backfill.after, backfill.through
    backfill.finish()
    problems.raise_if_any()
    assert after is not None
    assert through is not None
    return after, through
