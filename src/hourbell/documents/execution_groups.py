"""The documents of groups of executions."""

import msgspec

from hourbell.documents.actions import WebhookDocument, check_number_of_secrets
from hourbell.documents.fields import REQUIRED, Document, Field
from hourbell.documents.kinds import Array, ExecutionId, JobId, Label, Line
from hourbell.documents.problems import Problems
from hourbell.model.jobs import MAX_NAME, SecretsCheck

MAX_ADDED = 10_000  # members added by one request


class NewGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request to create a group."""

    name: str
    tenant_id: str | None
    url: str
    headers: dict[str, str]
    secrets: SecretsCheck


class GroupDocument(Document):
    name = Field(Line(MAX_NAME), required=REQUIRED)
    tenant_id = Field(Label())
    url = WebhookDocument.url
    headers = WebhookDocument.headers
    secrets = WebhookDocument.secrets


class MembersDocument(Document):
    execution_ids = Field(Array(ExecutionId(), 0, MAX_ADDED), default=())
    job_ids = Field(
        Array(JobId(), 0, MAX_ADDED),
        default=(),
        description="One-time jobs; each counts as its execution.",
    )


def parse_new_group(document: object) -> NewGroup:
    """The group that a document describes; raises InvalidInput with every invalid field."""
    problems = Problems()
    group = GroupDocument.open(document, problems)
    name, tenant_id = group.name, group.tenant_id
    url, headers, secrets = group.url, group.headers or {}, group.secrets
    check_number_of_secrets(group, url, headers)
    group.finish()
    problems.raise_if_any()
    assert name is not None
    assert url is not None
    return NewGroup(name=name, tenant_id=tenant_id, url=url, headers=headers, secrets=secrets)


def parse_members(document: object) -> list[int]:
    """The executions to add, in order; raises InvalidInput with every invalid field."""
    members = MembersDocument.open(document, Problems())
    found = {*members.execution_ids, *members.job_ids}
    members.finish()
    members.problems.raise_if_any()
    return sorted(found)
