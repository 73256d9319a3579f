"""The documents of bulk operations: an action on everything that matches a filter."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, get_args

import msgspec

from hourbell.documents.dead_letters import (
    MAX_PER_SECOND,
    DeadLetterFilter,
    DeadLetterFilterDocument,
    read_dead_letter_filter,
)
from hourbell.documents.fields import REQUIRED, Document, Field, Object
from hourbell.documents.kinds import (
    Choice,
    Instant,
    Integer,
    Line,
    NameAndValue,
    OperationId,
    Short,
)
from hourbell.documents.pauses import PauseDocument
from hourbell.documents.problems import Problems
from hourbell.model.jobs import MAX_NAME, MAX_PAUSE_REASON

Act = Literal["pause", "resume", "replay", "purge"]
ACTS_ON_JOBS: frozenset[Act] = frozenset({"pause", "resume"})
_ACTS: dict[str, Act] = {act: act for act in get_args(Act)}
_OF_PAUSED_JOBS = ("paused_reason", "operation_id")
_OF_JOBS = ("queue", "label", "name_prefix", *_OF_PAUSED_JOBS)
_OF_DEAD_LETTERS = ("job_id", "reason", "from", "to", "fingerprint")


class JobSelector(msgspec.Struct, frozen=True, kw_only=True):
    """Which jobs an operation applies to; None: no restriction."""

    tenant_id: str | None = None
    queue: str | None = None
    label: str | None = None  # as `team:billing`
    name_prefix: str | None = None
    paused_reason: str | None = None  # paused with exactly this reason
    operation_id: int | None = None  # paused by this operation


class OperationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An action, and what it applies to."""

    act: Act
    filter: Mapping[str, Any]  # as given in the request
    selected: JobSelector | DeadLetterFilter
    reason: str | None = None
    until: datetime | None = None
    rate_per_second: int | None = None

    @property
    def tenant_id(self) -> str | None:
        return self.selected.tenant_id


class OperationFilterDocument(DeadLetterFilterDocument):
    queue = Field(DeadLetterFilterDocument.tenant_id.kind, description="Only jobs in this queue.")
    label = Field(
        NameAndValue(),
        description="Only jobs with this label, as name:value, such as team:billing.",
    )
    name_prefix = Field(Short(MAX_NAME), description="Only jobs whose names begin with this.")
    paused_reason = Field(
        Line(MAX_PAUSE_REASON), description="Only jobs that were paused with this reason."
    )
    operation_id = Field(OperationId(), description="Only jobs that were paused by this operation.")


class OperationPreviewDocument(Document):
    act = Field(
        Choice(_ACTS),
        required=REQUIRED,
        description="`pause` and `resume` apply to jobs, `replay` and `purge` to dead letters.",
    )
    filter = Field(
        Object(OperationFilterDocument),
        required="is required; {} selects everything that the caller may see",
    )


class OperationDocument(OperationPreviewDocument):
    reason = Field(
        PauseDocument.reason.kind,
        description="Why; for `pause`, also the pause reason of each job.",
    )
    until = Field(Instant(), description="For `pause`: when the jobs are resumed.")
    rate_per_second = Field(
        Integer(1, MAX_PER_SECOND), description="For `replay`: executions due per second."
    )


def parse_operation_preview(document: object) -> OperationRequest:
    """The action and its filter; raises InvalidInput with every invalid field."""
    opened = OperationPreviewDocument.open(document, Problems())
    request = _read(opened)
    opened.finish()
    opened.problems.raise_if_any()
    assert request is not None  # otherwise there is a problem
    return request


def parse_operation(document: object) -> OperationRequest:
    """An operation; raises InvalidInput with every invalid field."""
    opened = OperationDocument.open(document, Problems())
    request = _read(opened)
    reason, until, rate = opened.reason, opened.until, opened.rate_per_second
    if request is not None and request.act != "pause":
        opened.forbid("until", "applies only to pause")
    if request is not None and request.act != "replay":
        opened.forbid("rate_per_second", "applies only to replay")
    opened.finish()
    opened.problems.raise_if_any()
    assert request is not None
    return msgspec.structs.replace(request, reason=reason, until=until, rate_per_second=rate)


def _read(document: OperationPreviewDocument) -> OperationRequest | None:
    act, chosen = document.act, document.filter
    if act is None or chosen is None:
        return None
    for key in _OF_DEAD_LETTERS if act in ACTS_ON_JOBS else _OF_JOBS:
        chosen.forbid(key, f"does not apply to {act}")
    if act == "pause":
        for key in _OF_PAUSED_JOBS:
            chosen.forbid(key, "does not apply to pause")
    selected: JobSelector | DeadLetterFilter
    if act in ACTS_ON_JOBS:
        selected = JobSelector(
            tenant_id=chosen.tenant_id,
            queue=chosen.queue,
            label=chosen.label,
            name_prefix=chosen.name_prefix,
            paused_reason=chosen.paused_reason if act == "resume" else None,
            operation_id=chosen.operation_id if act == "resume" else None,
        )
    else:
        selected = read_dead_letter_filter(chosen)
    chosen.finish()
    given = {name: value for name, value in chosen.values.items() if value is not None}
    return OperationRequest(act=act, filter=given, selected=selected)
