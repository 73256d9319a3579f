"""The document of a monitor."""

from hourbell.documents.actions import WebhookDocument, check_number_of_secrets
from hourbell.documents.fields import REQUIRED, Document, Field
from hourbell.documents.kinds import Integer, JobId
from hourbell.documents.problems import Problems
from hourbell.model.monitors import MAX_GRACE_SECONDS, NewMonitor


class MonitorDocument(Document):
    job_id = Field(JobId(), required=REQUIRED)
    grace_seconds = Field(
        Integer(1, MAX_GRACE_SECONDS),
        required=REQUIRED,
        description="How long after the expected occurrence the job may succeed.",
    )
    url = WebhookDocument.url
    headers = WebhookDocument.headers
    secrets = WebhookDocument.secrets


def parse_new_monitor(document: object) -> NewMonitor:
    """The monitor that a document describes; raises InvalidInput with every invalid field."""
    problems = Problems()
    monitor = MonitorDocument.open(document, problems)
    job_id, grace_seconds = monitor.job_id, monitor.grace_seconds
    url, headers, secrets = monitor.url, monitor.headers or {}, monitor.secrets
    check_number_of_secrets(monitor, url, headers)
    monitor.finish()
    problems.raise_if_any()
    assert job_id is not None
    assert grace_seconds is not None
    assert url is not None
    return NewMonitor(
        job_id=job_id, grace_seconds=grace_seconds, url=url, headers=headers, secrets=secrets
    )
