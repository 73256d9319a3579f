"""Whatever the fast reader reads, it reads as the full one does; what is not plain it leaves alone."""

import json
from datetime import UTC, datetime
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from hourbell.api.errors import MalformedJson
from hourbell.api.requests import _canonical_json, _decode
from hourbell.documents.common_case import read_simple_job
from hourbell.documents.jobs import parse_new_job
from hourbell.model.errors import InvalidInput
from hourbell.model.jobs import NewJob
from hourbell.model.limits import QueueSettings
from hourbell.model.policies import RetryPolicy
from hourbell.security.secrets import required_secrets
from property.model.test_documents_properties import (
    ANY_JSON,
    GOOD_JSON,
    LABELS,
    NAMES,
    ONE_TIME_DOCUMENTS,
    TIMES,
)

NOW = datetime(2026, 4, 6, 12, 0, 0, 250_000, tzinfo=UTC)
QUEUES = st.sampled_from(
    [
        None,
        QueueSettings(),
        QueueSettings(default_timeout_seconds=7),
        QueueSettings(default_retry_policy=RetryPolicy(max_retries=9)),
    ]
)
WORDS = st.sampled_from(["CRITICAL", "LOW", "low", "", None, 1])
PLAIN = st.fixed_dictionaries(
    {
        "name": NAMES | ANY_JSON,
        "type": st.just("ONE_TIME") | WORDS,
        "schedule": st.fixed_dictionaries(
            {}, optional={"at": TIMES | ANY_JSON, "delay_seconds": st.integers() | ANY_JSON}
        ),
        "action": st.fixed_dictionaries(
            {"type": st.just("TASK"), "name": LABELS | ANY_JSON}, optional={"payload": GOOD_JSON}
        )
        | st.fixed_dictionaries(
            {
                "type": st.just("WEBHOOK"),
                "url": st.sampled_from(["https://a.test/x", "ftp://x", ""]),
            },
            optional={"method": st.sampled_from(["GET", "get"]), "body": ANY_JSON},
        ),
    },
    optional={
        "tenant_id": LABELS | ANY_JSON,
        "queue": LABELS | ANY_JSON,
        "priority": WORDS,
        "timeout_seconds": st.integers(-1, 100_000) | ANY_JSON,
        "other": ANY_JSON,
    },
)


def by_the_full_reader(text: bytes, queue: QueueSettings | None) -> NewJob | None:
    try:
        return parse_new_job(_decode(text), NOW, 38, queue)
    except (InvalidInput, MalformedJson):
        return None


def check(text: bytes, queue: QueueSettings | None = None) -> bool:
    """Whether the fast reader reads it; if so, it is right."""
    plain = read_simple_job(text)
    if plain is not None:
        assert plain.canonical == _canonical_json(_decode(text))  # so that both are one request
    new = None if plain is None else plain.new_job(NOW, queue)
    if plain is None or new is None:
        return False
    full = by_the_full_reader(text, queue)
    assert full == new
    # As JSON too, because to Python 1 and true are equal.
    assert msgspec.json.encode(full.action) == msgspec.json.encode(new.action)
    assert plain.document() == msgspec.json.decode(text)
    assert not required_secrets(new)
    return True


@given(PLAIN | ONE_TIME_DOCUMENTS, QUEUES, st.booleans())
def test_both_readers_agree(document: Any, queue: QueueSettings | None, ascii_only: bool):
    try:
        text = json.dumps(document, ensure_ascii=ascii_only).encode()
    except UnicodeEncodeError:
        return
    check(text, queue)


PARTS = [
    '"name":"a"',
    '"type":"ONE_TIME"',
    '"schedule":{"delay_seconds":5}',
    '"action":{"type":"TASK","name":"t"}',
]
ODD = st.sampled_from(
    [
        '"name":"b"',
        '"name":" "',
        '"name":"a\\u0000"',
        '"\\u006eame":"b"',
        '"schedule":{"delay_seconds":5,"delay_seconds":6}',
        '"schedule":{"delay_seconds":5.0}',
        '"schedule":{"delay_seconds":5,"at":"2026-05-01T00:00:00Z"}',
        '"schedule":{"at":"2020-05-01T00:00:00Z"}',
        '"schedule":{"at":"2026-05-01T00:00:00"}',
        '"action":{"type":"TASK","name":"t\\n"}',
        '"action":{"type":"TASK","name":"t","payload":{"a":1,"a":2}}',
        '"action":{"type":"TASK","name":"t","payload":NaN}',
        '"action":{"type":"TASK","name":"t","payload":1e400}',
        f'"action":{{"type":"TASK","name":"t","payload":{"9" * 5000}}}',
        f'"action":{{"type":"TASK","name":"t","payload":{"9" * 400}}}',
        f'"action":{{"type":"TASK","name":"t","payload":{"[" * 33 + "]" * 33}}}',
        f'"action":{{"type":"TASK","name":"t","payload":{"[" * 26 + "]" * 26}}}',
        '"action":{"type":"TASK","type":"TASK","name":"t"}',
        '"action":{"type":"TASK","name":"t","payload":"{{secret:a}} {{secrets.a}}"}',
        '"action":{"type":"WEBHOOK","url":"https://a.test/","body":"{{secret:a}}"}',
        '"action":{"type":"WEBHOOK","url":"https://a.test/","body":{"{{secrets.a}}":1}}',
        '"queue":null',
        '"timeout_seconds":true',
    ]
)


@given(st.lists(ODD, min_size=1, max_size=3), st.permutations(PARTS), st.integers(0, 4))
@example(['"name":"b"'], PARTS, 0)
def test_odd_texts_are_left_to_the_full_reader_or_read_alike(
    odd: list[str], parts: list[str], whole: int
):
    check(("{" + ",".join([*parts[whole:], *odd]) + "}").encode())


@given(st.integers(0, 700), st.integers(290, 5_000))
def test_a_long_number_is_left_to_the_full_reader_wherever_it_stands(before: int, digits: int):
    payload = f'["{"x" * before}",{"9" * digits}]'
    action = f'"action":{{"type":"TASK","name":"t","payload":{payload}}}'
    assert check(("{" + ",".join([*PARTS[:3], action]) + "}").encode()) is (digits < 300)


def test_a_simple_document_requires_no_secret():
    webhook = '"action":{"type":"WEBHOOK","url":"https://a.test/","body":"{{secret:a}}"}'
    assert read_simple_job(("{" + ",".join([*PARTS[:3], webhook]) + "}").encode()) is None
    task = '"action":{"type":"TASK","name":"t","payload":"{{secret:a}}"}'
    simple = read_simple_job(("{" + ",".join([*PARTS[:3], task]) + "}").encode())
    assert simple is not None
    new = simple.new_job(NOW, None)
    assert new is not None
    assert required_secrets(new) == {}


@given(st.binary(max_size=200))
def test_any_bytes_are_read_alike(text: bytes):
    check(text)


def test_the_usual_documents_are_read_fast():
    usual = [*PARTS, '"tenant_id":"t"', '"priority":"HIGH"', '"timeout_seconds":5']
    assert check(("{" + ",".join(usual) + "}").encode())
    webhook = '"action":{"type":"WEBHOOK","url":"https://a.test/","method":"PUT","body":{"a":[1]}}'
    at = '"schedule":{"at":"2026-05-01T00:00:00+02:00"}'
    assert check(("{" + ",".join([*PARTS[:2], at, webhook]) + "}").encode())
