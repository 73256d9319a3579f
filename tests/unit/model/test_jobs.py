import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from hourbell.engine.codes import JOB_STATUSES
from hourbell.model.executions import ExecutionStatus
from hourbell.model.jobs import (
    ONE_TIME_STATUSES,
    JobStatus,
    JobType,
    NewJob,
    SentSpec,
    TaskAction,
    WebhookAction,
    decode_job,
    decode_spec,
    encode_job,
    header_problem,
    repeated_header,
    url_problem,
)
from hourbell.model.policies import Backoff, Delivery, Misfire, Overlap, Priority, RetryPolicy
from hourbell.model.schedules import Cron, Every, Once, Window

DOCS = Path(__file__).parents[3] / "docs"
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)
SMALLEST = NewJob(
    name="remind",
    type=JobType.ONE_TIME,
    schedule=Once(NEW_YEAR),
    action=TaskAction(name="remind"),
)
LARGEST = NewJob(
    name="nightly",
    type=JobType.RECURRING,
    schedule=Cron("H 2 * * *", "Asia/Kolkata", "skip", "twice"),
    window=Window(NEW_YEAR, datetime(2028, 1, 1, tzinfo=UTC), 10),
    action=WebhookAction(
        url="https://example.test/", method="PUT", headers={"X-A": "b"}, body={"a": [1, None]}
    ),
    retry_policy=RetryPolicy(2, Backoff.LIST, 30, 3600, (1, 2), ("http_404",)),
    timeout_seconds=7,
    delivery=Delivery.AT_LEAST_ONCE,
    tenant_id="seller-platform",
    queue="mail",
    priority=Priority.CRITICAL,
    misfire_policy=Misfire.ALL,
    catch_up_window_seconds=60,
    catch_up_limit=5,
    overlap_policy=Overlap.QUEUE_ONE,
    start_deadline_seconds=30,
    deadline_seconds=600,
)


@pytest.mark.parametrize(
    "job", [SMALLEST, LARGEST, msgspec.structs.replace(LARGEST, schedule=Every(60, 7))]
)
def test_a_stored_job_is_read_back_as_it_was(job: NewJob):
    assert decode_job(encode_job(job)) == job


def test_a_worker_reads_only_its_part_of_a_stored_job():
    spec = decode_spec(encode_job(LARGEST))
    assert type(spec) is SentSpec
    assert spec.action == LARGEST.action
    assert spec.retry_policy == LARGEST.retry_policy
    assert spec.timeout_seconds == 7


def test_what_was_left_to_its_default_is_not_stored():
    assert msgspec.json.decode(encode_job(SMALLEST)) == {
        "name": "remind",
        "type": "ONE_TIME",
        "schedule": {"kind": "once", "at": "2027-01-01T00:00:00Z"},
        "action": {"type": "TASK", "name": "remind"},
    }


def test_the_defaults_are_a_promise_to_stored_jobs():
    job = decode_job(encode_job(SMALLEST))
    assert job.retry_policy == RetryPolicy()
    assert job.timeout_seconds == 300
    assert job.delivery is Delivery.AT_LEAST_ONCE
    assert (job.tenant_id, job.queue, job.priority) == ("default", "default", Priority.MEDIUM)
    assert (job.misfire_policy, job.overlap_policy) == (Misfire.LATEST, Overlap.ALLOW)
    assert (job.catch_up_window_seconds, job.catch_up_limit) == (86_400, 100)
    assert (job.start_deadline_seconds, job.deadline_seconds) == (None, None)
    assert WebhookAction(url="http://a/").method == "POST"


def test_a_field_that_a_newer_version_wrote_is_passed_over():
    stored = b'{"name": "a", "action": {"type": "TASK", "name": "b", "new": 1}, "newer": [1]}'
    assert decode_spec(stored) == SentSpec(name="a", action=TaskAction(name="b"))


@pytest.mark.parametrize(
    "url",
    [
        "https://example.test",
        "http://localhost:8080/hook?x=1&y={a}#part",
        "HTTPS://EXAMPLE.test/",
        "http://127.0.0.1/",
        "http://[::1]:80/",
        "http://my_service.internal./",
        "http://" + "a" * 63 + ".test/",
        "http://3.test/",
        "https://example.test/" + "a" * 2000,
    ],
)
def test_a_url_that_can_be_called(url: str):
    assert url_problem(url) is None


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "must not be empty"),
        ("example.test", "http://"),
        ("//example.test", "http://"),
        ("ftp://example.test", "http://"),
        ("file:///etc/passwd", "http://"),
        ("javascript:alert(1)", "http://"),
        ("https://", "a host"),
        ("https:///path", "a host"),
        ("https://:80/", "a host"),
        ("https://-a/", "a host"),
        ("https://%00/", "a host"),
        ("https://me:secret@example.test/", "user name"),
        ("https://@example.test/", "user name"),
        ("https://example.test:0/", "port"),
        ("https://example.test:/", "a host"),
        ("https://example.test:99999/", "port"),
        ("https://example.test:8a/", "a host"),
        ("https://[::1]x/", ""),  # newer Pythons refuse to read it
        ("https://../", "a host"),
        ("https://[::1/", "not a valid URL"),
        ("https://[::::]/", ""),  # newer Pythons refuse to read it
        ("http://a..b/", "1 to 63 characters between its dots"),
        ("http://a../", "1 to 63 characters between its dots"),
        ("http://" + "a" * 64 + "/", "1 to 63 characters between its dots"),
        ("http://a." + "b" * 64 + ".test:80/", "1 to 63 characters between its dots"),
        ("http://1.2.3.4.5/", "IP address"),
        ("http://127.1/", "IP address"),
        ("https://exa mple.test/", "visible ASCII"),
        ("https://example.test/\r\nX: y", "visible ASCII"),
        ("https://example.test/\x00", "visible ASCII"),
        ("https://example.test\\@other.test/", "visible ASCII"),
        ("https://bücher.test/", "visible ASCII"),
        ("https://example.test/" + "a" * 2048, "at most 2048"),
    ],
)
def test_a_url_that_cannot(url: str, why: str):
    problem = url_problem(url)
    assert problem is not None
    assert why in problem


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Shop", "a b\tc"),
        ("authorization", "Bearer abc"),
        ("x!#$%&'*+-.^_`|~9", ""),
        ("TE-X", "1"),
    ],
)
def test_a_header_that_can_be_sent(name: str, value: str):
    assert header_problem(name, value) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "x"),
        ("X Shop", "x"),
        ("X:Shop", "x"),
        ("X-Shop\n", "x"),
        ("Überschrift", "x"),
        ("X" * 129, "x"),
        ("X-Shop", "a\r\nX-Evil: 1"),
        ("X-Shop", "a\nb"),
        ("X-Shop", "a\x00b"),
        ("X-Shop", "ü"),
        ("X-Shop", "a\n"),
        ("X-Shop", "a" * 4097),
        ("Content-Length", "1"),
        ("transfer-encoding", "chunked"),
        ("HOST", "other.test"),
        ("Expect", "100-continue"),
        ("Proxy-Authorization", "Basic x"),
        ("Webhook-Signature", "v1,forged"),
        ("webhook-id", "forged"),
    ],
)
def test_a_header_that_cannot(name: str, value: str):
    assert header_problem(name, value) is not None


def test_a_header_in_two_spellings_is_found():
    assert repeated_header({"X-A": 1, "X-B": 1}) is None
    assert repeated_header({"X-A": 1, "x-a": 1}) == "x-a"


def test_the_docs_say_which_status_a_one_time_job_has():
    page = (DOCS / "concepts.md").read_text()
    table = page.partition("| execution | job |\n|---|---|\n")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| (\w+) \| (\w+) \|$", table, re.MULTILINE)) == {
        execution.value: job.value for execution, job in ONE_TIME_STATUSES.items()
    }


def test_every_execution_status_but_that_of_an_attempt_is_a_job_status():
    assert set(ExecutionStatus) - set(ONE_TIME_STATUSES) == {ExecutionStatus.FAILED}
    assert set(ONE_TIME_STATUSES.values()) == set(JobStatus) - {JobStatus.PAUSED, JobStatus.ENDED}
    assert [ended for ended, job in ONE_TIME_STATUSES.items() if job is JobStatus.COMPLETED] == [
        ExecutionStatus.SUCCEEDED
    ]


def test_the_diagram_in_the_docs_has_the_stored_statuses():
    page = (DOCS / "architecture.md").read_text()
    (diagram,) = [
        part for part in re.findall(r"```mermaid\n(.*?)```", page, re.DOTALL) if "ENDED" in part
    ]
    drawn = re.findall(r"^ +(\[\*\]|\w+) --> (\w+):", diagram, re.MULTILINE)
    assert {to for _, to in drawn} == {status.value for status in JOB_STATUSES}
