"""What an update says, laid over what the job is."""

from datetime import UTC, datetime
from typing import Any

import pytest

from hourbell.documents.changes import parse_changes
from hourbell.documents.jobs import parse_new_job
from hourbell.model.errors import InvalidInput
from hourbell.model.jobs import Job, JobChanges, JobStatus, NewJob, TaskAction, WebhookAction
from hourbell.model.policies import Backoff, Delivery, Priority, RetryPolicy
from hourbell.model.schedules import Cron, Every, Once, Window

CREATED = datetime(2026, 4, 6, 12, tzinfo=UTC)
NOW = datetime(2026, 5, 1, 9, 0, 30, tzinfo=UTC)
HOOK = {"type": "WEBHOOK", "url": "https://a.test/", "headers": {"X-A": "1", "X-B": "2"}}


def job(**document: Any) -> Job:
    """A job that was created with this document, and its defaults."""
    whole = {
        "name": "report",
        "type": "RECURRING",
        "schedule": {"cron": "0 2 * * *", "timezone": "Europe/Berlin"},
        "action": HOOK,
        **document,
    }
    new = parse_new_job(whole, CREATED, job_id=7)
    return Job(
        **{field: getattr(new, field) for field in NewJob.__struct_fields__},
        job_id=7,
        status=JobStatus.SCHEDULED,
        version=4,
        next_run_at=None,
        created_at=CREATED,
        updated_at=CREATED,
    )


def change(before: Job, **document: Any) -> JobChanges:
    return parse_changes(document, before, NOW)


def wrong(before: Job, **document: Any) -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        change(before, **document)
    return {error.path: error.code for error in caught.value.errors}


def test_only_what_is_given_changes():
    before = job(priority="HIGH", queue="mail", timeout_seconds=10)
    changes = change(before, name="better report", timeout_seconds=20)
    assert changes.changed == {"name", "timeout_seconds"}
    assert not changes.reschedules
    assert type(changes.job) is NewJob
    assert changes.job.name == "better report"
    assert changes.job.timeout_seconds == 20
    assert (changes.job.priority, changes.job.queue) == (Priority.HIGH, "mail")
    assert changes.job.schedule == before.schedule


def test_an_empty_update_changes_nothing():
    for document in ({}, {"schedule": {}, "action": {}, "retry_policy": {}}):
        assert change(job(), **document).changed == frozenset()


def test_saying_what_already_is_changes_nothing():
    before = job(retry_policy={"delays_seconds": [1, 2]})
    changes = change(
        before,
        name="report",
        type="RECURRING",
        tenant_id="default",
        schedule={"timezone": "Europe/Berlin"},
        retry_policy={"delays_seconds": [1, 2]},
    )
    assert changes.changed == frozenset()


def test_null_sets_back_to_the_default():
    before = job(priority="LOW", deadline_seconds=60, retry_policy={"max_retries": 9})
    changes = change(before, priority=None, deadline_seconds=None, retry_policy=None)
    assert changes.job.priority is Priority.MEDIUM
    assert changes.job.deadline_seconds is None
    assert changes.job.retry_policy == RetryPolicy()


def test_what_is_required_cannot_be_taken_away():
    found = wrong(job(), name=None, schedule=None, action=None)
    assert found == {"name": "required", "schedule": "required", "action": "required"}


def test_a_job_keeps_its_type_and_its_tenant():
    found = wrong(job(), type="ONE_TIME", tenant_id="somebody-else")
    assert found == {"type": "immutable", "tenant_id": "immutable"}
    assert wrong(job(), tenant_id=None) == {"tenant_id": "immutable"}


def test_what_the_server_says_about_a_job_cannot_be_said_by_others():
    assert wrong(job(), status="PAUSED", version=9) == {
        "status": "unknown_field",
        "version": "unknown_field",
    }


def test_a_schedule_is_changed_field_by_field():
    changes = change(job(), schedule={"timezone": "Asia/Tokyo", "max_runs": 3})
    assert changes.job.schedule == Cron("0 2 * * *", "Asia/Tokyo")
    assert changes.job.window == Window(max_runs=3)
    assert changes.changed == {"schedule", "window"}
    assert changes.reschedules


def test_naming_another_kind_of_schedule_replaces_the_old_kind():
    before = job(schedule={"cron": "0 2 * * *", "timezone": "Asia/Tokyo", "dst_gap": "skip"})
    after = change(before, schedule={"every_seconds": 60}).job.schedule
    assert after == Every(60, int(NOW.timestamp()), "Asia/Tokyo")
    back = change(job(schedule={"every_seconds": 60}), schedule={"cron": "@daily"})
    assert back.job.schedule == Cron("@daily")


def test_two_kinds_at_once_are_still_a_contradiction():
    found = wrong(job(), schedule={"every_seconds": 60, "cron": "@daily"})
    assert found == {"schedule.cron": "conflict"}
    assert wrong(job(), schedule={"at": "2026-06-01T00:00:00Z"}) == {
        "schedule.at": "conflict",
        "schedule.cron": "required",
    }


def test_an_interval_keeps_its_beat_when_something_else_changes():
    before = job(schedule={"every_seconds": 300})
    for document in (
        {"name": "new"},
        {"schedule": {"max_runs": 3}},
        {"schedule": {"every_seconds": 300, "timezone": "Asia/Tokyo"}},
    ):
        after = change(before, **document).job.schedule
        assert isinstance(after, Every)
        assert after.anchor == int(CREATED.timestamp())


def test_another_interval_or_start_begins_a_new_beat():
    before = job(schedule={"every_seconds": 300})
    faster = change(before, schedule={"every_seconds": 60}).job.schedule
    assert faster == Every(60, int(NOW.timestamp()))
    later = change(before, schedule={"starts_at": "2026-06-01T00:00:07Z"}).job.schedule
    assert later == Every(300, int(datetime(2026, 6, 1, 0, 0, 7, tzinfo=UTC).timestamp()))


def test_the_result_is_checked_as_a_whole():
    before = job(schedule={"cron": "0 2 * * *", "starts_at": "2026-06-01T00:00:00Z"})
    assert wrong(before, schedule={"ends_at": "2026-05-20T00:00:00Z"}) == {
        "schedule.ends_at": "conflict"
    }
    assert wrong(job(), schedule={"ends_at": "2026-05-01T10:00:00Z"}) == {
        "schedule.ends_at": "never_runs"
    }


def test_a_schedule_that_is_left_alone_is_not_judged_again():
    before = job(schedule={"cron": "0 2 * * *", "ends_at": "2026-04-20T00:00:00Z"})
    assert change(before, name="after its end").changed == {"name"}
    late = job(type="ONE_TIME", schedule={"delay_seconds": 60}, start_deadline_seconds=60)
    assert change(late, name="overdue").changed == {"name"}


def test_a_one_time_job_can_be_put_off():
    before = job(type="ONE_TIME", schedule={"delay_seconds": 60})
    after = change(before, schedule={"at": "2026-06-01T00:00:00Z"}).job.schedule
    assert after == Once(datetime(2026, 6, 1, tzinfo=UTC))
    again = change(before, schedule={"delay_seconds": 60}).job.schedule
    assert again == Once(datetime(2026, 5, 1, 9, 1, 30, tzinfo=UTC))


def test_an_action_is_changed_field_by_field_and_its_headers_name_by_name():
    changes = change(
        job(), action={"url": "https://b.test/", "headers": {"x-a": "3", "X-B": None, "X-C": "4"}}
    )
    assert changes.job.action == WebhookAction(
        url="https://b.test/", headers={"x-a": "3", "X-C": "4"}
    )
    assert changes.changed == {"action"}


def test_a_body_is_replaced_whole():
    before = job(action={**HOOK, "body": {"a": 1, "b": 2}})
    after = change(before, action={"body": {"a": None}}).job.action
    assert isinstance(after, WebhookAction)
    assert after.body == {"a": None}


def test_one_and_true_are_not_the_same_body():
    before = job(action={**HOOK, "body": {"a": 1}})
    assert change(before, action={"body": {"a": True}}).changed == {"action"}


def test_another_type_of_action_replaces_the_old_one():
    changes = change(job(), action={"type": "TASK", "name": "report"})
    assert changes.job.action == TaskAction(name="report")
    assert wrong(job(), action={"type": "TASK"}) == {"action.name": "required"}


def test_a_retry_policy_is_changed_field_by_field():
    before = job(retry_policy={"max_retries": 9, "backoff": "FIXED", "non_retryable": ["a"]})
    after = change(before, retry_policy={"initial_delay_seconds": 7}).job.retry_policy
    assert after == RetryPolicy(9, Backoff.FIXED, 7, non_retryable=("a",))
    after = change(before, retry_policy={"retryable": ["http_404"]}).job.retry_policy
    assert (after.non_retryable, after.retryable) == (("a",), ("http_404",))
    both = {"retry_policy.retryable": "conflict"}
    assert wrong(before, retry_policy={"retryable": ["a"]}) == both


def test_a_webhook_is_signed_by_the_secret_that_it_names():
    webhook = {"type": "WEBHOOK", "url": "https://a.test/", "signing_secret": "mine"}
    named = job(action=webhook)
    assert change(named, action={"url": "https://b.test/"}).job.action.signing_secret == "mine"
    assert change(named, action={"signing_secret": None}).job.action.signing_secret is None
    for name in ("", "a b", "x" * 65, "{{secret:a}}"):
        assert wrong(named, action={"signing_secret": name}) == {
            "action.signing_secret": "bad_format"
        }


def test_a_formula_becomes_a_list_and_a_list_a_formula():
    formula = job(retry_policy={"max_retries": 9, "backoff": "FIXED", "non_retryable": ["a"]})
    to_list = change(formula, retry_policy={"delays_seconds": [1, 2]}).job.retry_policy
    assert to_list == RetryPolicy(2, Backoff.LIST, delays_seconds=(1, 2), non_retryable=("a",))
    listed = job(retry_policy={"delays_seconds": [1, 2]})
    for document in ({"backoff": "FIXED"}, {"delays_seconds": None, "backoff": "FIXED"}):
        after = change(listed, retry_policy=document).job.retry_policy
        assert after == RetryPolicy(backoff=Backoff.FIXED)
    assert change(listed, retry_policy={"delays_seconds": None}).job.retry_policy == RetryPolicy()
    longer = change(listed, retry_policy={"delays_seconds": [1, 2, 3]}).job.retry_policy
    assert longer.max_retries == 3


def test_the_delivery_can_change_unless_retries_were_asked_for():
    at_most_once = change(job(), delivery="at_most_once").job
    assert at_most_once.delivery is Delivery.AT_MOST_ONCE
    assert at_most_once.retry_policy.max_retries == 0
    asked = job(retry_policy={"max_retries": 5})
    assert wrong(asked, delivery="at_most_once") == {"retry_policy.max_retries": "conflict"}
    back = change(job(delivery="at_most_once"), delivery="at_least_once").job
    assert back.retry_policy == RetryPolicy()


def test_a_longer_initial_delay_raises_the_maximum_unless_that_was_given():
    raised = change(job(), retry_policy={"initial_delay_seconds": 7200}).job.retry_policy
    assert raised.max_delay_seconds == 7200
    lowered = change(
        job(retry_policy={"initial_delay_seconds": 7200}), retry_policy={"initial_delay_seconds": 1}
    )
    assert lowered.job.retry_policy.max_delay_seconds == 3600
    given = job(retry_policy={"max_delay_seconds": 60})
    assert wrong(given, retry_policy={"initial_delay_seconds": 61}) == {
        "retry_policy.max_delay_seconds": "conflict"
    }


@pytest.mark.parametrize("document", [None, [], "x", 5, True])
def test_an_update_is_an_object(document: object):
    with pytest.raises(InvalidInput):
        parse_changes(document, job(), NOW)


def test_every_wrong_field_of_an_update_is_told():
    found = wrong(
        job(),
        name="",
        schedule={"timezone": "Nowhere", "crn": "x"},
        action={"url": 5, "headers": [], "bdy": None},
        retry_policy=7,
        priorty=None,
    )
    assert found == {
        "name": "bad_format",
        "schedule.timezone": "unknown_zone",
        "schedule.crn": "unknown_field",
        "action.url": "wrong_type",
        "action.headers": "wrong_type",
        "action.bdy": "unknown_field",
        "retry_policy": "wrong_type",
        "priorty": "unknown_field",
    }


def test_labels_are_changed_name_by_name():
    before = job(labels={"team": "billing", "env": "prod"})
    assert change(before, labels={"env": "test", "new": "1"}).job.labels == {
        "team": "billing",
        "env": "test",
        "new": "1",
    }
    assert change(before, labels={"env": None}).job.labels == {"team": "billing"}
    assert change(before, labels=None).job.labels == {}
    assert not change(before, labels={}).changed
    assert wrong(before, labels={"env": 5}) == {"labels.env": "wrong_type"}
