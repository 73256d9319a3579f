"""What the body of a create may say, what it means, and what is answered when it is wrong."""

import time
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hourbell.documents.jobs import parse_new_job
from hourbell.documents.problems import MAX_PROBLEMS
from hourbell.documents.schedules import first_run, timetable_of
from hourbell.model.errors import InvalidInput
from hourbell.model.jobs import JobType, NewJob, TaskAction, WebhookAction
from hourbell.model.policies import Backoff, Delivery, Misfire, Overlap, Priority, RetryPolicy
from hourbell.model.schedules import Cron, Every, Once, Window

NOW = datetime(2026, 4, 6, 12, 0, 0, 250_000, tzinfo=UTC)
JOB_ID = 38

CONTRACT: dict[str, Any] = {
    "name": "nightly-seller-report",
    "type": "RECURRING",
    "schedule": {
        "cron": "0 2 * * *",
        "timezone": "Asia/Kolkata",
        "starts_at": "2026-04-07T00:00:00Z",
    },
    "action": {
        "type": "WEBHOOK",
        "url": "https://reports.example.test/run",
        "method": "POST",
        "headers": {"X-Team": "sellers"},
        "body": {"kind": "nightly"},
    },
    "retry_policy": {
        "max_retries": 3,
        "backoff": "EXPONENTIAL_WITH_JITTER",
        "initial_delay_seconds": 30,
    },
    "priority": "HIGH",
    "tenant_id": "seller-platform",
}

ONE_TIME: dict[str, Any] = {
    "name": "remind",
    "type": "ONE_TIME",
    "schedule": {"at": "2026-04-07T09:00:00+02:00"},
    "action": {"type": "TASK", "name": "mail.remind", "payload": {"cart": 7}},
}


def with_field(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The document with one field set; `...` takes it away."""
    changed = deepcopy(document)
    *way, last = path.split(".")
    inner = changed
    for key in way:
        inner = inner.setdefault(key, {})
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return changed


def recurring(**schedule: Any) -> dict[str, Any]:
    return {**CONTRACT, "schedule": schedule}


def one_time(**schedule: Any) -> dict[str, Any]:
    return {**ONE_TIME, "schedule": schedule}


def parse(document: object) -> NewJob:
    return parse_new_job(document, NOW, JOB_ID)


def wrong(document: object) -> dict[str, str]:
    """The wrong fields of a document: path to code."""
    with pytest.raises(InvalidInput) as caught:
        parse(document)
    return {error.path: error.code for error in caught.value.errors}


def message(document: object) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse(document)
    return caught.value.errors[0].message


# What is accepted.


def test_the_contract_is_accepted_as_it_stands():
    assert parse(CONTRACT) == NewJob(
        tenant_id="seller-platform",
        name="nightly-seller-report",
        type=JobType.RECURRING,
        schedule=Cron("0 2 * * *", "Asia/Kolkata"),
        window=Window(starts_at=datetime(2026, 4, 7, tzinfo=UTC)),
        action=WebhookAction(
            url="https://reports.example.test/run",
            headers={"X-Team": "sellers"},
            body={"kind": "nightly"},
        ),
        priority=Priority.HIGH,
    )


def test_a_one_time_job_at_an_instant():
    job = parse(ONE_TIME)
    assert job.schedule == Once(datetime(2026, 4, 7, 7, tzinfo=UTC))
    assert job.action == TaskAction(name="mail.remind", payload={"cart": 7})


def test_a_one_time_job_after_a_delay():
    job = parse(one_time(delay_seconds=86_400))
    assert job.schedule == Once(NOW + timedelta(days=1))
    assert parse(one_time(delay_seconds=0)).schedule == Once(NOW)


def test_an_interval_counts_from_its_creation():
    job = parse(recurring(every_seconds=300))
    assert isinstance(job.schedule, Every)
    first = first_run(job.schedule, job.window, JOB_ID, NOW)
    assert first == NOW.replace(microsecond=0) + timedelta(seconds=300)


@pytest.mark.parametrize(
    ("starts_at", "first"),
    [
        ("2026-04-07T00:00:07Z", "2026-04-07T00:00:07+00:00"),  # the start itself
        ("2026-04-07T00:00:07.5Z", "2026-04-07T00:00:08+00:00"),  # never before it
        ("2026-04-06T11:59:50Z", "2026-04-06T12:04:50+00:00"),  # passed, but still the beat
    ],
)
def test_an_interval_with_a_start_counts_from_there(starts_at: str, first: str):
    job = parse(recurring(every_seconds=300, starts_at=starts_at))
    assert isinstance(job.schedule, Every)
    run = first_run(job.schedule, job.window, JOB_ID, NOW)
    assert run is not None
    assert run.isoformat() == first


def test_everything_that_is_not_said_has_a_default():
    job = parse(one_time(at="2026-04-07T09:00:00Z"))
    assert (job.tenant_id, job.queue, job.priority) == ("default", "default", Priority.MEDIUM)
    assert job.retry_policy == RetryPolicy()
    assert job.timeout_seconds == 300
    assert job.delivery is Delivery.AT_LEAST_ONCE
    assert job.schedule.timezone == "UTC"


def test_null_means_not_said():
    document = {
        **CONTRACT,
        "priority": None,
        "retry_policy": None,
        "deadline_seconds": None,
        "queue": None,
    }
    assert parse(document).priority is Priority.MEDIUM
    assert parse(with_field(CONTRACT, "schedule.ends_at", None)).window.ends_at is None
    assert (
        parse(with_field(CONTRACT, "action.headers", None)).action
        == parse(with_field(CONTRACT, "action.headers", {})).action
    )


def test_every_policy_can_be_said():
    job = parse(
        {
            **CONTRACT,
            "schedule": {
                "cron": "30 2 * * *",
                "timezone": "Europe/Berlin",
                "dst_gap": "skip",
                "dst_overlap": "twice",
                "ends_at": "2027-01-01T00:00:00Z",
                "max_runs": 5,
            },
            "queue": "mail",
            "misfire_policy": "all",
            "catch_up_window_seconds": 2_592_000,
            "catch_up_limit": 1000,
            "overlap_policy": "queue_one",
            "delivery": "at_most_once",
            "retry_policy": {"non_retryable": ["http_404"]},
            "timeout_seconds": 86_400,
            "start_deadline_seconds": 60,
            "deadline_seconds": 600,
        }
    )
    assert job.schedule == Cron("30 2 * * *", "Europe/Berlin", "skip", "twice")
    assert job.window == Window(None, datetime(2027, 1, 1, tzinfo=UTC), 5)
    assert (job.misfire_policy, job.overlap_policy) == (Misfire.ALL, Overlap.QUEUE_ONE)
    assert (job.catch_up_window_seconds, job.catch_up_limit) == (2_592_000, 1000)
    assert (job.start_deadline_seconds, job.deadline_seconds) == (60, 600)
    assert job.retry_policy == RetryPolicy(max_retries=0, non_retryable=("http_404",))


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Calcutta", "Etc/GMT+5"])
def test_any_kind_of_schedule_may_name_a_zone_to_be_shown_in(zone: str):
    assert parse(one_time(delay_seconds=5, timezone=zone)).schedule.timezone == zone
    assert parse(recurring(every_seconds=5, timezone=zone)).schedule.timezone == zone


def test_at_most_once_has_no_retries_without_being_told():
    job = parse({**ONE_TIME, "delivery": "at_most_once"})
    assert job.retry_policy.max_retries == 0
    zero = {**ONE_TIME, "delivery": "at_most_once", "retry_policy": {"max_retries": 0}}
    assert parse(zero).retry_policy.max_retries == 0


def test_a_list_of_delays_says_how_many_retries_there_are():
    policy = RetryPolicy(3, Backoff.LIST, delays_seconds=(60, 300, 1800))
    for said in (
        {"delays_seconds": [60, 300, 1800]},
        {"delays_seconds": [60, 300, 1800], "backoff": "LIST"},
        {"delays_seconds": [60, 300, 1800], "max_retries": 3},
    ):
        assert parse({**ONE_TIME, "retry_policy": said}).retry_policy == policy


def test_the_maximum_follows_a_long_initial_delay():
    long = parse({**ONE_TIME, "retry_policy": {"initial_delay_seconds": 7200}}).retry_policy
    assert long.max_delay_seconds == 7200


@pytest.mark.parametrize("body", ["raw text", "", 0, False, [], {}, 1.5, 10**30, "ü\u2028😀"])
def test_a_body_is_any_json(body: Any):
    action = parse(with_field(CONTRACT, "action.body", body)).action
    assert isinstance(action, WebhookAction)
    assert action.body == body


def test_an_instant_that_has_passed_runs_at_once():
    job = parse(one_time(at="2026-04-06T11:59:59Z"))
    assert job.schedule == Once(datetime(2026, 4, 6, 11, 59, 59, tzinfo=UTC))
    assert parse(one_time(at="2025-04-07T00:00:00Z"))


def test_a_run_at_exactly_the_end_still_happens():
    assert parse(recurring(cron="0 2 * * *", ends_at="2026-04-07T02:00:00Z"))
    assert wrong(recurring(cron="0 2 * * *", ends_at="2026-04-07T01:59:59.999999Z")) == {
        "schedule.ends_at": "never_runs"
    }


def test_h_becomes_a_time_of_the_jobs_own():
    schedule = parse(recurring(cron="H H * * *")).schedule
    assert isinstance(schedule, Cron)
    assert schedule.cron == "H H * * *"
    tables = {timetable_of(schedule, job_id).rule for job_id in range(50)}
    assert len(tables) > 40
    assert not any("H" in rule for rule in tables)


def test_jobs_of_one_rhythm_share_a_timetable():
    plain, named = Cron("@daily", "Europe/Berlin"), Cron("0  0 * * *", "Europe/Berlin")
    assert timetable_of(plain, 1) == timetable_of(named, 2)
    assert timetable_of(Every(300, 7), 1) == timetable_of(Every(300, 607), 2)
    assert timetable_of(Every(300, 7, "Asia/Tokyo"), 1).rule == "@every 300+7"


# What is refused.


@pytest.mark.parametrize("document", [None, True, 5, 1.5, "text", [], [{}]])
def test_a_document_is_an_object(document: object):
    assert wrong(document) == {"": "wrong_type"}


def test_every_required_field_is_told():
    assert wrong({}) == {
        "name": "required",
        "type": "required",
        "schedule": "required",
        "action": "required",
    }
    assert wrong({**CONTRACT, "schedule": {}, "action": {}}) == {
        "schedule.cron": "required",
        "action.type": "required",
    }
    assert wrong(one_time()) == {"schedule.at": "required"}


def test_all_wrong_fields_are_told_at_once():
    document = {
        "name": "",
        "type": "SOMETIMES",
        "schedule": {"cron": "99 * * * *", "timezone": "Mars/Olympus", "starts_at": "soon"},
        "action": {"type": "WEBHOOK", "url": "ftp://x", "headers": {"X-A": "b\n", "X-B": 1}},
        "retry_policy": {"max_retries": -1, "backoff": "SLOWLY", "delay": 3},
        "priority": "URGENT",
        "tenant_id": "a b",
        "timeout_seconds": 0,
        "colour": "red",
    }
    assert wrong(document) == {
        "name": "bad_format",
        "type": "not_a_choice",
        "schedule.timezone": "unknown_zone",
        "schedule.starts_at": "bad_format",
        "schedule.cron": "invalid_cron",
        "action.url": "bad_format",
        "action.headers.X-A": "bad_format",
        "action.headers.X-B": "wrong_type",
        "retry_policy.max_retries": "out_of_range",
        "retry_policy.backoff": "not_a_choice",
        "retry_policy.delay": "unknown_field",
        "priority": "not_a_choice",
        "tenant_id": "bad_format",
        "timeout_seconds": "out_of_range",
        "colour": "unknown_field",
    }


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("name", 5, "wrong_type"),
        ("name", "", "bad_format"),
        ("name", "   ", "bad_format"),
        ("name", "a\nb", "bad_format"),
        ("name", "a\x00b", "bad_format"),
        ("name", "a\ud800", "bad_format"),
        ("name", "a" * 201, "bad_format"),
        ("tenant_id", "", "bad_format"),
        ("tenant_id", "a" * 65, "bad_format"),
        ("tenant_id", "a\n", "bad_format"),
        ("tenant_id", "ä", "bad_format"),
        ("queue", "a/b", "bad_format"),
        ("queue", ["a"], "wrong_type"),
        ("type", "recurring", "not_a_choice"),
        ("type", 1, "wrong_type"),
        ("priority", 1, "wrong_type"),
        ("priority", "high", "not_a_choice"),
        ("schedule", "0 2 * * *", "wrong_type"),
        ("schedule", [], "wrong_type"),
        ("schedule.cron", "", "invalid_cron"),
        ("schedule.cron", "* * *", "invalid_cron"),
        ("schedule.cron", "0 0 30 2 *", "invalid_cron"),
        ("schedule.cron", "@every 5", "invalid_cron"),
        ("schedule.cron", "0 2 * * *\x00", "invalid_cron"),
        ("schedule.cron", "\ud800", "invalid_cron"),
        pytest.param("schedule.cron", "*" * 100_000, "invalid_cron", id="long rule"),
        ("schedule.cron", 5, "wrong_type"),
        ("schedule.timezone", "", "unknown_zone"),
        ("schedule.timezone", "Berlin", "unknown_zone"),
        ("schedule.timezone", "../../etc/passwd", "unknown_zone"),
        ("schedule.timezone", "a\x00\ud800", "unknown_zone"),
        pytest.param("schedule.timezone", "A" * 100_000, "unknown_zone", id="long zone"),
        ("schedule.timezone", 0, "wrong_type"),
        ("schedule.starts_at", "2026-04-07T00:00:00", "bad_format"),
        ("schedule.starts_at", 1_775_520_000, "wrong_type"),
        ("schedule.starts_at", "1969-12-31T00:00:00Z", "out_of_range"),
        ("schedule.ends_at", "2026-04-07T00:00:00Z", "conflict"),  # not after starts_at
        ("schedule.ends_at", "2026-04-07T00:00:01Z", "never_runs"),  # before the first run
        ("schedule.max_runs", 0, "out_of_range"),
        ("schedule.max_runs", True, "wrong_type"),
        ("schedule.max_runs", 1.0, "wrong_type"),
        ("schedule.dst_gap", "jump", "not_a_choice"),
        ("schedule.dst_overlap", "thrice", "not_a_choice"),
        ("schedule.every_seconds", 60, None),  # beside cron: see below
        ("schedule.jitter", 5, "unknown_field"),
        ("action", "WEBHOOK", "wrong_type"),
        ("action.type", "QUEUE", "not_a_choice"),
        ("action.url", ..., "required"),
        ("action.url", "https://me:pw@example.test/", "bad_format"),
        ("action.method", "post", "not_a_choice"),
        ("action.method", "TRACE", "not_a_choice"),
        ("action.headers", [], "wrong_type"),
        ("action.headers", {f"X-{n}": "" for n in range(51)}, "too_long"),
        ("action.body", {"a": "\x00"}, None),
        ("action.payload", {}, "unknown_field"),
        ("retry_policy", 3, "wrong_type"),
        ("retry_policy.max_retries", -1, "out_of_range"),
        ("retry_policy.max_retries", 101, "out_of_range"),
        pytest.param("retry_policy.max_retries", 10**5000, "out_of_range", id="huge"),
        ("retry_policy.max_retries", float("inf"), "wrong_type"),
        ("retry_policy.max_retries", "3", "wrong_type"),
        ("retry_policy.max_retries", True, "wrong_type"),
        ("retry_policy.initial_delay_seconds", 604_801, "out_of_range"),
        ("retry_policy.max_delay_seconds", 29, "conflict"),
        ("retry_policy.non_retryable", "http_404", "wrong_type"),
        ("retry_policy.non_retryable", ["a"] * 51, "out_of_range"),
        ("retry_policy.retryable", "http_404", "wrong_type"),
        ("retry_policy.retryable", ["a"] * 51, "out_of_range"),
        ("timeout_seconds", 0, "out_of_range"),
        ("timeout_seconds", 86_401, "out_of_range"),
        ("start_deadline_seconds", 0, "out_of_range"),
        ("deadline_seconds", 0, "out_of_range"),
        ("misfire_policy", "most", "not_a_choice"),
        ("catch_up_window_seconds", 2_592_001, "out_of_range"),
        ("catch_up_limit", 1001, "out_of_range"),
        ("catch_up_limit", 0, "out_of_range"),
        ("overlap_policy", "FORBID", "not_a_choice"),
        ("delivery", "exactly_once", "not_a_choice"),
    ],
)
def test_a_wrong_field_is_told_with_its_path(path: str, value: Any, code: str | None):
    found = wrong(with_field(CONTRACT, path, value))
    if code is not None:
        assert found == {path: code}
    else:
        assert len(found) == 1


@pytest.mark.parametrize(
    ("document", "found"),
    [
        (recurring(cron="0 2 * * *", every_seconds=60), {"schedule.cron": "conflict"}),
        (recurring(at="2026-04-07T00:00:00Z", cron="0 2 * * *"), {"schedule.at": "conflict"}),
        (
            recurring(at="2026-04-07T00:00:00Z"),
            {"schedule.at": "conflict", "schedule.cron": "required"},
        ),
        (recurring(every_seconds=60, dst_gap="skip"), {"schedule.dst_gap": "conflict"}),
        (recurring(every_seconds=0), {"schedule.every_seconds": "out_of_range"}),
        (recurring(every_seconds=31_536_001), {"schedule.every_seconds": "out_of_range"}),
        (recurring(every_seconds=0.5), {"schedule.every_seconds": "wrong_type"}),
        (
            one_time(at="2026-04-07T00:00:00Z", delay_seconds=5),
            {"schedule.delay_seconds": "conflict"},
        ),
        (
            one_time(cron="0 2 * * *"),
            {"schedule.cron": "conflict", "schedule.at": "required"},
        ),
        (one_time(delay_seconds=-1), {"schedule.delay_seconds": "out_of_range"}),
        (one_time(delay_seconds=10**400), {"schedule.delay_seconds": "out_of_range"}),
        (one_time(at="yesterday"), {"schedule.at": "bad_format"}),
        (one_time(at="2025-04-06T11:59:59Z"), {"schedule.at": "out_of_range"}),
        (one_time(at="9999-12-31T23:59:59Z"), {"schedule.at": "out_of_range"}),
        (
            one_time(delay_seconds=5, max_runs=1, starts_at="2026-04-07T00:00:00Z"),
            {"schedule.max_runs": "conflict", "schedule.starts_at": "conflict"},
        ),
        ({**ONE_TIME, "overlap_policy": "forbid"}, {"overlap_policy": "conflict"}),
        ({**ONE_TIME, "misfire_policy": "nonsense"}, {"misfire_policy": "conflict"}),
        ({**ONE_TIME, "catch_up_limit": 1}, {"catch_up_limit": "conflict"}),
    ],
)
def test_what_contradicts_itself_is_refused(document: object, found: dict[str, str]):
    assert wrong(document) == found


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ({"delays_seconds": []}, {"retry_policy.delays_seconds": "out_of_range"}),
        ({"delays_seconds": 60}, {"retry_policy.delays_seconds": "wrong_type"}),
        ({"delays_seconds": [60] * 101}, {"retry_policy.delays_seconds": "out_of_range"}),
        (
            {"delays_seconds": [1, True, -1, 604_801, "5"], "max_retries": 5},
            {
                "retry_policy.delays_seconds[1]": "wrong_type",
                "retry_policy.delays_seconds[2]": "out_of_range",
                "retry_policy.delays_seconds[3]": "out_of_range",
                "retry_policy.delays_seconds[4]": "wrong_type",
            },
        ),
        ({"delays_seconds": [1, 2], "max_retries": 4}, {"retry_policy.max_retries": "conflict"}),
        ({"delays_seconds": [1], "backoff": "FIXED"}, {"retry_policy.backoff": "conflict"}),
        (
            {"delays_seconds": [1], "initial_delay_seconds": 1},
            {"retry_policy.initial_delay_seconds": "conflict"},
        ),
        ({"backoff": "LIST"}, {"retry_policy.delays_seconds": "required"}),
        ({"non_retryable": ["a", "", 1]}, None),
    ],
)
def test_a_retry_policy_that_makes_no_sense(policy: Any, found: dict[str, str] | None):
    expected = found or {
        "retry_policy.non_retryable[1]": "bad_format",
        "retry_policy.non_retryable[2]": "wrong_type",
    }
    assert wrong({**ONE_TIME, "retry_policy": policy}) == expected


def test_at_most_once_and_retries_contradict_each_other():
    once = {**ONE_TIME, "delivery": "at_most_once"}
    assert wrong({**once, "retry_policy": {"max_retries": 1}}) == {
        "retry_policy.max_retries": "conflict"
    }
    assert wrong({**once, "retry_policy": {"delays_seconds": [1]}}) == {
        "retry_policy.delays_seconds": "conflict"
    }


def test_a_deadline_that_has_passed_already_would_be_a_job_that_does_nothing():
    late = one_time(at="2026-04-06T11:59:00Z")
    assert wrong({**late, "start_deadline_seconds": 60}) == {"start_deadline_seconds": "never_runs"}
    assert wrong({**late, "deadline_seconds": 60}) == {"deadline_seconds": "never_runs"}
    assert parse({**late, "start_deadline_seconds": 61, "deadline_seconds": 61})
    far = one_time(at="9999-12-30T00:00:00Z")
    assert parse({**far, "deadline_seconds": 86_400})


@pytest.mark.parametrize(
    "schedule",
    [
        {"cron": "0 2 * * *", "ends_at": "2026-04-06T11:00:00Z"},  # over before it began
        {"cron": "0 2 29 2 *", "ends_at": "2028-02-01T00:00:00Z"},
        {"every_seconds": 300, "ends_at": "2026-04-06T12:04:59Z"},
        {
            "cron": "0 2 * * *",
            "timezone": "Asia/Kolkata",
            "starts_at": "2026-04-07T00:00:00Z",
            "ends_at": "2026-04-07T20:29:59Z",
        },
    ],
)
def test_a_window_without_a_single_run_is_refused(schedule: dict[str, Any]):
    assert wrong(recurring(**schedule)) == {"schedule.ends_at": "never_runs"}


def test_a_start_after_the_last_match_is_refused():
    document = recurring(cron="0 0 1 1 *", starts_at="9999-06-01T00:00:00Z")
    assert wrong(document) == {"schedule.starts_at": "never_runs"}


def test_a_wrong_zone_does_not_hide_a_wrong_rule():
    assert wrong(recurring(cron="61 * * * *", timezone="Nowhere")) == {
        "schedule.cron": "invalid_cron",
        "schedule.timezone": "unknown_zone",
    }


def test_a_rule_is_refused_with_the_field_that_is_wrong():
    assert message(recurring(cron="0 25 * * *")).startswith("hour: ")


@pytest.mark.parametrize(
    ("body", "path", "code"),
    [
        ("a\x00", "action.body", "bad_format"),
        ("\ud800", "action.body", "bad_format"),
        ({"a": [0, {"b": "\udfff"}]}, "action.body.a[1].b", "bad_format"),
        ({"a\x00": 1}, "action.body.a\\x00", "bad_format"),
        ({"\ud800": 1}, "action.body.\\ud800", "bad_format"),
        ([float("inf")], "action.body[0]", "out_of_range"),
        ({"a": float("nan")}, "action.body.a", "out_of_range"),
        pytest.param(10**5000, "action.body", "out_of_range", id="huge"),
        pytest.param("x" * 262_144, "action.body", "too_long", id="long"),
    ],
)
def test_a_body_that_could_not_be_stored_is_refused(body: Any, path: str, code: str):
    assert wrong(with_field(CONTRACT, "action.body", body)) == {path: code}


def test_a_payload_has_the_same_bounds_as_a_body():
    assert wrong(with_field(ONE_TIME, "action.payload", ["\x00"])) == {
        "action.payload[0]": "bad_format"
    }


def test_nesting_has_an_end():
    deep: Any = 0
    for _ in range(32):
        deep = [deep]
    assert parse(with_field(CONTRACT, "action.body", deep))
    found = wrong(with_field(CONTRACT, "action.body", [deep]))
    assert list(found.values()) == ["too_deep"]
    for _ in range(100_000):
        deep = [deep]
    for path in ("action.body", "name", "schedule", "schedule.x", "retry_policy", "nonsense"):
        assert wrong(with_field(CONTRACT, path, deep))


def test_a_header_in_two_spellings_is_refused():
    assert wrong(with_field(CONTRACT, "action.headers", {"X-A": "1", "x-a": "2"})) == {
        "action.headers.x-a": "conflict"
    }


def test_a_header_is_never_null():
    assert wrong(with_field(CONTRACT, "action.headers", {"X-A": None})) == {
        "action.headers.X-A": "wrong_type"
    }


@pytest.mark.parametrize(
    ("path", "value", "hint"),
    [
        ("shedule", {}, "did you mean schedule?"),
        ("Priority", "HIGH", "did you mean priority?"),
        ("schedule.time_zone", "UTC", "did you mean timezone?"),
        ("schedule.evry_seconds", 5, "did you mean every_seconds?"),
        ("timeout", 5, "did you mean timeout_seconds?"),
        ("retry_policy.max_retry", 1, "did you mean max_retries?"),
        ("priority", "high", "did you mean HIGH?"),
        ("type", "RECURING", "did you mean RECURRING?"),
        ("overlap_policy", "never", "one of allow, forbid, replace, queue_one"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_right_one(path: str, value: Any, hint: str):
    assert hint in message(with_field(CONTRACT, path, value))


@pytest.mark.parametrize(
    "key", ["spread_seconds", "retry_seconds", "interval_seconds", "max_spread_seconds"]
)
def test_a_unit_in_common_is_no_likeness(key: str):
    document = CONTRACT | {"schedule": CONTRACT["schedule"] | {key: 5}}
    assert wrong(document) == {f"schedule.{key}": "unknown_field"}
    assert "did you mean" not in message(document)


@pytest.mark.parametrize(
    ("cron", "instead"),
    [
        ("@every 5m", "use every_seconds: 300 instead of cron"),
        ("rate(5 minutes)", "use every_seconds: 300 instead of cron"),
        ("cron(0 12 * * ? *)", "write 0 12 * * *"),
    ],
)
def test_a_rule_of_another_scheduler_is_refused_with_our_spelling(cron: str, instead: str):
    document = CONTRACT | {"schedule": {"cron": cron}}
    assert wrong(document) == {"schedule.cron": "invalid_cron"}
    assert instead in message(document)


def test_an_unknown_field_is_told_even_when_it_is_null():
    assert wrong({**CONTRACT, "shedule": None}) == {"shedule": "unknown_field"}


def test_a_key_that_cannot_be_printed_is_told_in_a_form_that_can():
    found = wrong({**CONTRACT, "\ud800\x00": 1, "k" * 1000: 1})
    for path in found:
        path.encode()
        assert path.isprintable()
        assert len(path) < 200


def test_the_answer_to_a_huge_bad_document_stays_small():
    assert len(wrong({f"field {n}": n for n in range(5000)})) == MAX_PROBLEMS


@pytest.mark.parametrize("key", ["k{:08}", "schedule" * 7 + "{:07}", "x" * 70 + "{:08}"])
@pytest.mark.parametrize("inside", ["", "schedule", "retry_policy"])
def test_a_huge_bad_document_is_refused_quickly(key: str, inside: str):
    fields = {key.format(n): n for n in range(70_000)}
    document = CONTRACT | ({inside: fields} if inside else fields)
    began = time.process_time()
    with pytest.raises(InvalidInput):
        parse_new_job(document, NOW, JOB_ID)
    assert time.process_time() - began < 0.3


def test_only_the_first_unknown_fields_get_a_suggestion():
    document = CONTRACT | {f"shedule{n}": n for n in range(50)}
    with pytest.raises(InvalidInput) as refused:
        parse_new_job(document, NOW, JOB_ID)
    messages = [error.message for error in refused.value.errors]
    assert len(messages) == 50
    assert [("did you mean" in each) for each in messages] == [True] * 10 + [False] * 40


def test_a_rule_that_only_matches_skipped_times_is_refused_as_the_rule():
    document = recurring(cron="*/15 2 8-14 3 */7", timezone="America/New_York")
    assert wrong(document) == {"schedule.cron": "never_runs"}


def test_labels_are_kept_as_they_are():
    labels = {"team": "billing", "env:stage": "Zürich 1"}
    assert parse(with_field(ONE_TIME, "labels", labels)).labels == labels
    assert parse(with_field(ONE_TIME, "labels", None)).labels == {}


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        ([], {"labels": "wrong_type"}),
        ({"team": 5}, {"labels.team": "wrong_type"}),
        ({"team": None}, {"labels.team": "required"}),
        ({"team": ""}, {"labels.team": "bad_format"}),
        ({"team": "a\nb"}, {"labels.team": "bad_format"}),
        ({"team": "x" * 65}, {"labels.team": "bad_format"}),
        ({"a team": "x"}, {"labels.a team": "bad_format"}),
        ({"": "x"}, {"labels.": "bad_format"}),
        ({f"l{n}": "x" for n in range(17)}, {"labels": "too_long"}),
    ],
)
def test_a_wrong_label_is_told(labels: Any, problem: dict[str, str]):
    assert wrong(with_field(ONE_TIME, "labels", labels)) == problem
