"""The query parameters of the API. They are documents whose values are texts."""

from __future__ import annotations

from hourbell.documents.dead_letters import DeadLetterFilterDocument
from hourbell.documents.fields import REQUIRED, Document, Field
from hourbell.documents.kinds import (
    Choice,
    Instant,
    Integer,
    JobId,
    Kind,
    Label,
    Line,
    NameAndValue,
    Schema,
    Short,
    String,
    choice_of,
)
from hourbell.documents.problems import Problems
from hourbell.engine.views.forecast import DEFAULT_HOURS, MAX_HOURS
from hourbell.engine.views.pages import MAX_PAGE_SIZE
from hourbell.model.executions import ExecutionStatus, Reason
from hourbell.model.jobs import MAX_NAME, MAX_UNIQUE_KEY, JobStatus, JobType

DEFAULT_PAGE_SIZE = 50
MAX_NEXT_RUNS = 100
DEFAULT_NEXT_RUNS = 10


class Statuses(Kind[frozenset[ExecutionStatus]]):
    """The union of what several words mean; the parameter may be repeated or comma-separated."""

    # No execution stays FAILED: after a failed attempt it is RETRYING or DEAD.
    words = Choice(
        {
            **{status.value: frozenset({status}) for status in ExecutionStatus},
            ExecutionStatus.FAILED.value: frozenset(
                {ExecutionStatus.RETRYING, ExecutionStatus.DEAD}
            ),
        }
    )

    def read(
        self, value: object, path: str, problems: Problems
    ) -> frozenset[ExecutionStatus] | None:
        assert isinstance(value, str)
        found: frozenset[ExecutionStatus] = frozenset()
        for word in value.split(","):
            if word not in self.words.choices:
                message = f"has a value that is not allowed{self.words.hint(word)}"
                problems.add(path, "not_a_choice", message)
                return None
            found |= self.words.choices[word]
        return found

    @property
    def schema(self) -> Schema:
        return {"type": "array", "items": self.words.schema}


class TenantQuery(Document):
    tenant_id = Field(Label())


class PageQuery(Document):
    page_size = Field(Integer(1, MAX_PAGE_SIZE), default=DEFAULT_PAGE_SIZE)
    page_token = Field(String())


class TenantPageQuery(PageQuery, TenantQuery):
    """A page of a list that can be filtered by tenant."""


class JobsQuery(TenantPageQuery):
    status = Field(choice_of(JobStatus), description="If omitted: every status except CANCELLED.")
    queue = Field(Label())
    type = Field(choice_of(JobType))
    name_prefix = Field(Short(MAX_NAME))
    label = Field(NameAndValue(), description="A label as name:value, such as team:billing.")


class _AnyExecutions(PageQuery):
    status = Field(
        Statuses(),
        description=(
            "Any of these statuses; repeat the parameter or separate values by commas. FAILED "
            "means RETRYING or DEAD: the latest attempt failed."
        ),
    )
    reason = Field(
        choice_of(Reason),
        description=(
            "Why an execution has ended. The failure kind of an attempt is not one of these."
        ),
    )
    queue = JobsQuery.queue
    created_from = Field(Instant(), name="from")
    created_to = Field(Instant(), name="to", description="Exclusive.")


class ExecutionsQuery(_AnyExecutions, TenantQuery):
    job_id = Field(JobId())
    label = JobsQuery.label


class JobExecutionsQuery(_AnyExecutions):
    expand = Field(Choice({"missed": True}))


class DeadLettersQuery(DeadLetterFilterDocument, PageQuery):
    """A page of the dead letters that a filter selects."""


class NextRunsQuery(Document):
    count = Field(Integer(1, MAX_NEXT_RUNS), default=DEFAULT_NEXT_RUNS)


class ForecastQuery(TenantQuery):
    hours = Field(Integer(1, MAX_HOURS), default=DEFAULT_HOURS)


class DeletionQuery(Document):
    cancel = Field(Choice({"finish": False, "cancel": True}), default=False, name="running")


class NamedDeletionQuery(DeletionQuery, TenantQuery):
    """The deletion of a job by its name."""


class UniqueKeyQuery(TenantQuery):
    unique_key = Field(Line(MAX_UNIQUE_KEY), required=REQUIRED)


class UniqueKeyDeletionQuery(DeletionQuery, UniqueKeyQuery):
    """The deletion of a job by its unique key."""
