"""The query parameters of the API: documents whose values are strings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from hourbell.documents.dead_letters import DeadLetterFilterDocument
from hourbell.documents.fields import REQUIRED, Document, Field
from hourbell.documents.kinds import (
    ID,
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
from hourbell.engine.operations.execution_groups import GroupState
from hourbell.engine.views.activity import DEFAULT_WINDOW, WINDOWS
from hourbell.engine.views.forecast import DEFAULT_HOURS, MAX_HOURS
from hourbell.engine.views.job_details import MAX_LAST_OUTCOMES
from hourbell.engine.views.pages import MAX_PAGE_SIZE
from hourbell.engine.views.tasks import ORDERS
from hourbell.model.executions import ExecutionStatus, Reason
from hourbell.model.jobs import MAX_NAME, MAX_UNIQUE_KEY, JobStatus, JobType

DEFAULT_PAGE_SIZE = 50
MAX_NEXT_RUNS = 100
DEFAULT_NEXT_RUNS = 10
MAX_TOPICS = 20  # per stream


MAX_ACTOR = 200
S = TypeVar("S", bound=StrEnum)


class Statuses(Kind[frozenset[S]]):
    """The union of several words; the parameter may be repeated or comma-separated."""

    def __init__(self, words: Mapping[str, frozenset[S]]) -> None:
        self.words = Choice(words)

    def read(self, value: object, path: str, problems: Problems) -> frozenset[S] | None:
        assert isinstance(value, str)
        found: frozenset[S] = frozenset()
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


class LastOutcomesQuery(Document):
    last_outcomes = Field(
        Integer(0, MAX_LAST_OUTCOMES),
        default=0,
        description="How many of the latest executions of each job to show.",
    )


class JobsQuery(TenantPageQuery, LastOutcomesQuery):
    status = Field(
        Statuses({status.value: frozenset({status}) for status in JobStatus}),
        description=(
            "Any of these statuses; repeat the parameter or separate values with commas. If omitted, "
            "every status except CANCELLED."
        ),
    )
    late = Field(
        Choice({"false": False, "true": True}),
        default=False,
        description="true: only one-time jobs that are QUEUED for more than a minute.",
    )
    total = Field(
        Choice({"false": False, "true": True}),
        default=False,
        description="true: with the number of jobs that match, counted up to 10,000.",
    )
    queue = Field(Label())
    type = Field(choice_of(JobType))
    name_prefix = Field(Short(MAX_NAME))
    label = Field(NameAndValue(), description="A label as name:value, such as team:billing.")
    q = Field(
        Short(MAX_NAME),
        description=(
            "A text, in any case, in the name, the task, the host that is called, or a label "
            "(name:value) of the job."
        ),
    )


class _AnyExecutions(PageQuery):
    status = Field(
        Statuses(
            {
                **{status.value: frozenset({status}) for status in ExecutionStatus},
                # No execution stays FAILED: after a failed attempt it is RETRYING or DEAD.
                ExecutionStatus.FAILED.value: frozenset(
                    {ExecutionStatus.RETRYING, ExecutionStatus.DEAD}
                ),
            }
        ),
        description=(
            "Any of these statuses; repeat the parameter or separate values with commas. FAILED "
            "means RETRYING or DEAD: the latest attempt failed."
        ),
    )
    reason = Field(
        choice_of(Reason),
        description=("Why an execution ended. The failure kind of an attempt is not one of these."),
    )
    queue = JobsQuery.queue
    created_from = Field(Instant(), name="from")
    created_to = Field(Instant(), name="to", description="Exclusive.")


class ExecutionsQuery(_AnyExecutions, TenantQuery):
    job_id = Field(JobId())
    label = JobsQuery.label
    order = Field(
        Choice({"newest": False, "duration": True}),
        default=False,
        description=(
            "duration: of the newest 2,000 that match, or of fewer if few match, those that took or "
            "have run longest, the longest first. The next page has the longest of older ones."
        ),
    )


class JobExecutionsQuery(_AnyExecutions):
    expand = Field(Choice({"missed": True}))


class AuditQuery(TenantPageQuery):
    actor = Field(Line(MAX_ACTOR), description="The name of the key, as in the entries.")
    operation = Field(Label(), description="Such as pause or delete.")
    at_from = Field(Instant(), name="from")
    at_to = Field(Instant(), name="to", description="Exclusive.")


class GroupsQuery(TenantPageQuery):
    state = Field(
        Choice({state.value: state for state in GroupState}),
        description="OPEN: members can be added; CLOSED: members run; ENDED: all have ended.",
    )


class DeadLettersQuery(DeadLetterFilterDocument, PageQuery):
    """A page of the dead letters that match a filter."""


class DeadLetterGroupsQuery(DeadLetterFilterDocument):
    """The dead letters that match a filter."""


class NextRunsQuery(Document):
    count = Field(Integer(1, MAX_NEXT_RUNS), default=DEFAULT_NEXT_RUNS)


class ForecastQuery(TenantQuery):
    hours = Field(Integer(1, MAX_HOURS), default=DEFAULT_HOURS)


class ForecastMinuteQuery(TenantQuery):
    at = Field(Instant(), required=REQUIRED, description="Any instant in the minute.")


class OverviewQuery(Document):
    window = Field(Choice({name: name for name in WINDOWS}), default=DEFAULT_WINDOW)


class TasksQuery(OverviewQuery):
    order = Field(
        Choice({name: name for name in ORDERS}),
        default="runs",
        description="The largest first; by name: in the order of names.",
    )


class Topics(Kind[frozenset[str]]):
    """Topics of events, separated by commas."""

    pattern = re.compile(rf"overview|executions|job:job_{ID}|operation:ops_{ID}")

    def read(self, value: object, path: str, problems: Problems) -> frozenset[str] | None:
        assert isinstance(value, str)
        found = frozenset(value.split(","))
        if len(found) > MAX_TOPICS:
            problems.add(path, "too_long", f"may have at most {MAX_TOPICS} topics")
        elif not all(self.pattern.fullmatch(topic) for topic in found):
            message = (
                "must be `overview`, `executions`, `job:` and a job id, or `operation:` "
                "and the id of a bulk operation, separated by commas"
            )
            problems.add(path, "bad_format", message)
        return found

    @property
    def schema(self) -> Schema:
        one = f"({self.pattern.pattern})"
        return {"type": "string", "pattern": f"^{one}(,{one}){{0,{MAX_TOPICS - 1}}}$"}


class EventsQuery(Document):
    topics = Field(Topics(), required=REQUIRED)


class WorkersQuery(PageQuery):
    state = Field(Choice({name: name for name in ("alive", "lost", "all")}), default="alive")


class TenantsQuery(PageQuery):
    order = Field(
        Choice({"name": False, "share": True}),
        default=False,
        description="share: the 100 tenants with the most starts in the last hour, most starts first.",
    )
    counts = Field(
        Choice({"false": False, "true": True}),
        default=False,
        description="Whether to include counts; a page then has at most 100 tenants.",
    )


class DeletionQuery(Document):
    cancel = Field(Choice({"finish": False, "cancel": True}), default=False, name="running")


class NamedDeletionQuery(DeletionQuery, TenantQuery):
    """The deletion of a job by its name."""


class UniqueKeyQuery(TenantQuery):
    unique_key = Field(Line(MAX_UNIQUE_KEY), required=REQUIRED)


class UniqueKeyDeletionQuery(DeletionQuery, UniqueKeyQuery):
    """The deletion of a job by its unique key."""
