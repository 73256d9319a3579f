"""Whatever is sent, the answer is a checked value or the list of wrong fields; nothing else."""

from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hourbell.documents.changes import parse_changes
from hourbell.documents.jobs import parse_new_job
from hourbell.documents.problems import MAX_PROBLEMS
from hourbell.documents.render import render_job
from hourbell.documents.schedules import first_run
from hourbell.model.errors import InvalidInput
from hourbell.model.instants import format_instant
from hourbell.model.jobs import (
    Job,
    JobStatus,
    JobType,
    NewJob,
    decode_job,
    decode_spec,
    encode_job,
)
from hourbell.model.schedules import Every, Once

NOW = datetime(2026, 4, 6, 12, 0, 0, 250_000, tzinfo=UTC)
LATER = NOW + timedelta(days=30)
ADDED = (
    "job_id",
    "status",
    "version",
    "next_run_at",
    "schedule_words",
    "created_at",
    "updated_at",
    "warnings",
    "problem",
)

# JSON as hostile decoders may hand it out: infinities, huge integers, lone surrogates, NUL.
ANY_TEXT = st.text(st.characters(exclude_categories=()))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**4000, -(10**4000), 2**63, 0, -1, 1])
    | st.floats()
    | ANY_TEXT
    | st.sampled_from(["", "\0", "\ud800", "UTC", "2026-04-07T00:00:00Z", "* * * * *", "LIST"])
)
ANY_JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=10,
)

TIMES = st.timedeltas(timedelta(days=1), timedelta(days=20_000)).map(
    lambda ahead: format_instant(NOW + ahead)
)
RULES = st.sampled_from(
    ["0 2 * * *", "*/15 * * * *", "H H * * *", "@daily", "0 0 12 ? * MON#1", "30 9 LW * *"]
)
ZONES = st.sampled_from(["UTC", "Asia/Kolkata", "Europe/Berlin", "America/New_York"])
LABELS = st.from_regex(r"[A-Za-z0-9._:-]{1,64}", fullmatch=True)
# Without what begins a template, most of which are refused.
PLAIN_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0{"))
GOOD_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | PLAIN_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PLAIN_TEXT, inner, max_size=3),
    max_leaves=6,
)
WINDOW = {"starts_at": TIMES, "max_runs": st.integers(1, 10**9)}
ONCE = st.fixed_dictionaries({"at": TIMES}, optional={"timezone": ZONES}) | st.fixed_dictionaries(
    {"delay_seconds": st.integers(0, 10**8)}
)
CRON = st.fixed_dictionaries(
    {"cron": RULES},
    optional={
        "timezone": ZONES,
        "dst_gap": st.sampled_from(["run_after", "skip"]),
        "dst_overlap": st.sampled_from(["once", "twice"]),
        **WINDOW,
    },
)
EVERY = st.fixed_dictionaries(
    {"every_seconds": st.integers(1, 31_536_000)}, optional={"timezone": ZONES, **WINDOW}
)
ACTIONS = st.fixed_dictionaries(
    {"type": st.just("WEBHOOK"), "url": st.just("https://a.test/x")},
    optional={
        "method": st.sampled_from(["GET", "PUT"]),
        "headers": st.dictionaries(st.sampled_from(["X-A", "X-B"]), st.just("v")),
        "body": GOOD_JSON,
    },
) | st.fixed_dictionaries(
    {"type": st.just("TASK"), "name": LABELS}, optional={"payload": GOOD_JSON}
)
RETRIES = st.fixed_dictionaries(
    {},
    optional={
        "max_retries": st.integers(0, 100),
        "backoff": st.sampled_from(["FIXED", "LINEAR", "EXPONENTIAL", "EXPONENTIAL_WITH_JITTER"]),
        "initial_delay_seconds": st.integers(0, 3600),
        "max_delay_seconds": st.integers(3600, 604_800),
        "non_retryable": st.lists(st.just("http_404"), max_size=2),
        "retryable": st.lists(st.just("http_410"), max_size=2),
    },
) | st.fixed_dictionaries(
    {"delays_seconds": st.lists(st.integers(0, 604_800), min_size=1, max_size=100)}
)
COMMON = {
    "tenant_id": LABELS,
    "queue": LABELS,
    "priority": st.sampled_from(["CRITICAL", "HIGH", "MEDIUM", "LOW"]),
    "retry_policy": RETRIES,
    "timeout_seconds": st.integers(1, 86_400),
    "start_deadline_seconds": st.integers(1, 86_400),
    "deadline_seconds": st.integers(1, 86_400),
    "labels": st.dictionaries(LABELS, st.sampled_from(["billing", "Zürich 1"]), max_size=3),
}
NAMES = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=200)
ONE_TIME_DOCUMENTS = st.fixed_dictionaries(
    {"name": NAMES, "type": st.just("ONE_TIME"), "schedule": ONCE, "action": ACTIONS},
    optional=COMMON,
)
RECURRING_DOCUMENTS = st.fixed_dictionaries(
    {"name": NAMES, "type": st.just("RECURRING"), "schedule": CRON | EVERY, "action": ACTIONS},
    optional={
        **COMMON,
        "misfire_policy": st.sampled_from(["skip", "latest", "all"]),
        "catch_up_window_seconds": st.integers(1, 2_592_000),
        "catch_up_limit": st.integers(1, 1000),
        "overlap_policy": st.sampled_from(["allow", "forbid", "replace", "queue_one"]),
    },
)
DOCUMENTS = ONE_TIME_DOCUMENTS | RECURRING_DOCUMENTS
JOB_IDS = st.integers(0, 2**63 - 1)


@st.composite
def nearly_documents(draw: st.DrawFn) -> Any:
    """A good document in which a few places were taken away, replaced or added."""
    document = deepcopy(draw(DOCUMENTS))
    strange = ANY_JSON | ACTIONS | CRON | ONCE | EVERY | RETRIES
    for _ in range(draw(st.integers(1, 3))):
        inner: Any = document
        while True:
            key = draw(st.sampled_from(sorted(inner)) if inner else ANY_TEXT)
            if isinstance(inner.get(key), dict) and draw(st.booleans()):
                inner = inner[key]
                continue
            if draw(st.integers(0, 3)) == 0:
                inner.pop(key, None)
            else:
                added = draw(ANY_TEXT | st.sampled_from([*sorted(COMMON), "at", "cron", "body"]))
                inner[draw(st.sampled_from([key, added]))] = draw(strange)
            break
    return document


def stored(new: NewJob, job_id: int = 7) -> Job:
    return Job(
        **{field: getattr(new, field) for field in NewJob.__struct_fields__},
        job_id=job_id,
        status=JobStatus.SCHEDULED,
        version=1,
        next_run_at=LATER,
        created_at=NOW,
        updated_at=NOW,
    )


def check_refusal(error: InvalidInput) -> None:
    assert 1 <= len(error.errors) <= MAX_PROBLEMS
    paths = [wrong.path for wrong in error.errors]
    assert len(set(paths)) == len(paths)
    assert len(msgspec.json.encode(error.errors)) < 200_000
    error.message.encode()


def check_job(new: NewJob, job_id: int, now: datetime) -> None:
    assert decode_job(encode_job(new)) == new
    assert decode_spec(encode_job(new)).action == new.action
    msgspec.json.encode(render_job(stored(new)))
    assert isinstance(new.schedule, Once) == (new.type is JobType.ONE_TIME)
    if not isinstance(new.schedule, Once):
        run = first_run(new.schedule, new.window, job_id, now)
        assert run is not None
        assert run > now


def without_anchor(new: NewJob) -> NewJob:
    if isinstance(new.schedule, Every):
        schedule = msgspec.structs.replace(new.schedule, anchor=0)
        return msgspec.structs.replace(new, schedule=schedule)
    return new


@given(ANY_JSON)
def test_any_json_is_a_job_or_is_refused_with_reasons(document: Any):
    try:
        check_job(parse_new_job(document, NOW, 7), 7, NOW)
    except InvalidInput as error:
        check_refusal(error)


@given(nearly_documents(), JOB_IDS)
def test_a_nearly_good_document_is_a_job_or_is_refused_with_reasons(document: Any, job_id: int):
    try:
        check_job(parse_new_job(document, NOW, job_id), job_id, NOW)
    except InvalidInput as error:
        check_refusal(error)


@given(DOCUMENTS, JOB_IDS)
def test_a_good_document_is_accepted_and_left_as_it_was(document: Any, job_id: int):
    before = deepcopy(document)
    check_job(parse_new_job(document, NOW, job_id), job_id, NOW)
    assert document == before


@given(DOCUMENTS)
def test_what_is_shown_of_a_job_would_create_it_again(document: Any):
    new = parse_new_job(document, NOW, 7)
    shown = msgspec.json.decode(msgspec.json.encode(render_job(stored(new))))
    for key in ADDED:
        del shown[key]
    assert without_anchor(parse_new_job(shown, NOW, 7)) == without_anchor(new)


@given(DOCUMENTS, ANY_JSON | nearly_documents())
def test_any_update_is_a_change_or_is_refused_with_reasons(document: Any, update: Any):
    job = stored(parse_new_job(document, NOW, 7))
    if isinstance(update, dict):
        update = {key: value for key, value in update.items() if key not in ("type", "tenant_id")}
    try:
        changes = parse_changes(update, job, NOW)
    except InvalidInput as error:
        check_refusal(error)
    else:
        check_job(changes.job, 7, NOW)
        assert (changes.job.type, changes.job.tenant_id) == (job.type, job.tenant_id)
        assert bool(changes.changed) == (encode_job(stored(changes.job)) != encode_job(job))


@given(DOCUMENTS)
def test_an_update_with_the_document_of_a_job_changes_nothing_but_what_counts_from_now(
    document: Any,
):
    new = parse_new_job(document, NOW, 7)
    changes = parse_changes(document, stored(new), NOW)
    assert changes.changed == frozenset()
    assert changes.job == new


@given(DOCUMENTS, DOCUMENTS)
def test_an_update_made_twice_changes_nothing_the_second_time(document: Any, other: Any):
    job = stored(parse_new_job(document, NOW, 7))
    update = {key: value for key, value in other.items() if key not in ("type", "tenant_id")}
    try:
        once = parse_changes(update, job, NOW)
    except InvalidInput:
        return  # such as the schedule of a recurring job for a one-time job
    twice = parse_changes(update, stored(once.job), NOW)
    assert twice.changed == frozenset()
