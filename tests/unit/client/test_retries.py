"""What the client does about a try that fails: decided without I/O, so tested without a server."""

from typing import Any

import msgspec
import pytest

from hourbell.client.calls import (
    LONGEST_RETRY_AFTER_SECONDS,
    Answer,
    Call,
    Endpoint,
    Lost,
    Request,
    Wait,
    steps_of,
)
from hourbell.client.errors import (
    AccessDenied,
    ClientError,
    Conflict,
    InvalidRequest,
    NotFound,
    ProblemError,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
)

ENDPOINT = Endpoint(url="http://127.0.0.1:1", api_key="k")
READ = Call(method="GET", path="/jobs/{id}", answer=dict, parameters={"id": "a/b ?"})
WRITE = Call(method="POST", path="/jobs", answer=dict, body=b"{}")
FINE = Answer(200, b'{"ok": true}')
BROKEN = Lost("connection reset by peer")


def problem(status: int, code: str, retry_after: str | None = None) -> Answer:
    body = {"code": code, "title": "t", "status": status, "detail": f"because of {code}"}
    return Answer(status, msgspec.json.encode(body), retry_after)


def play(call: Call[Any], *answers: Answer | Lost, retries: int = 5) -> Any:
    """The result of a call that gets these answers; then its requests and its waits."""
    steps = steps_of(msgspec.structs.replace(ENDPOINT, retries=retries), call)
    requests: list[Request] = []
    waits: list[float] = []
    rest = list(answers)
    learnt: Answer | Lost | None = None
    try:
        while True:
            step = steps.send(learnt)
            if isinstance(step, Wait):
                waits.append(step.seconds)
                learnt = None
            else:
                requests.append(step)
                learnt = rest.pop(0)
    except StopIteration as end:
        result = end.value
    except ClientError as error:
        result = error
    assert rest == [], "not every answer was asked for"
    return result, requests, waits


def test_a_write_keeps_its_idempotency_key_over_its_retries_and_another_write_has_another() -> None:
    result, requests, waits = play(WRITE, BROKEN, problem(503, "overloaded"), FINE)
    assert result == {"ok": True}
    assert len({request.headers["Idempotency-Key"] for request in requests}) == 1
    assert len(requests) == 3
    assert len(waits) == 2
    _, others, _ = play(WRITE, FINE)
    assert others[0].headers["Idempotency-Key"] != requests[0].headers["Idempotency-Key"]


def test_a_read_has_no_idempotency_key_and_every_request_has_the_api_key() -> None:
    _, requests, _ = play(READ, FINE)
    assert "Idempotency-Key" not in requests[0].headers
    assert requests[0].headers["Authorization"] == "Bearer k"


def test_what_goes_into_a_path_is_escaped() -> None:
    _, requests, _ = play(READ, FINE)
    assert requests[0].target == "/jobs/a%2Fb%20%3F"


@pytest.mark.parametrize("value", ["", None, 7, ".", "..", "a\ud800"])
def test_what_is_no_segment_of_a_path_is_refused_before_it_is_sent(value: Any) -> None:
    error, requests, _ = play(msgspec.structs.replace(READ, parameters={"id": value}))
    assert error.code == "invalid_id"
    assert error.message.startswith("id must ")
    assert requests == []


def test_an_unpaired_surrogate_in_the_query_is_refused_before_it_is_sent() -> None:
    error, requests, _ = play(msgspec.structs.replace(READ, query={"tenant_id": "a\ud800"}))
    assert error.code == "invalid_tenant_id"
    assert requests == []


def test_the_waits_grow_and_differ_from_call_to_call() -> None:
    all_waits = [play(READ, *[BROKEN] * 6)[2] for _ in range(20)]
    for waits in all_waits:
        assert len(waits) == 5
        for number, seconds in enumerate(waits):
            assert 0.5 <= seconds / (0.2 * 2**number) <= 1
    assert len({waits[0] for waits in all_waits}) > 1


def test_five_retries_then_the_last_error() -> None:
    error, requests, _ = play(READ, *[BROKEN] * 6)
    assert isinstance(error, Unreachable)
    assert len(requests) == 6
    assert error.code == "unreachable"
    assert "connection reset by peer" in error.message


def test_the_number_of_retries_can_be_none() -> None:
    error, requests, waits = play(READ, BROKEN, retries=0)
    assert isinstance(error, Unreachable)
    assert (len(requests), waits) == (1, [])


def test_retry_after_is_honoured() -> None:
    _, _, waits = play(READ, problem(503, "overloaded", retry_after="7"), FINE)
    assert 7 <= waits[0] <= 7.2


def test_a_server_that_asks_for_too_long_a_wait_gets_no_retry() -> None:
    too_long = str(int(LONGEST_RETRY_AFTER_SECONDS) + 1)
    error, _, waits = play(READ, problem(429, "too_many_failures", retry_after=too_long))
    assert isinstance(error, Unavailable)
    assert waits == []


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "malformed_json", InvalidRequest),
        (401, "unauthenticated", AccessDenied),
        (403, "forbidden", AccessDenied),
        (404, "not_found", NotFound),
        (409, "job_not_active", Conflict),
        (409, "conflict", Conflict),
        (412, "precondition_failed", Conflict),
        (422, "invalid_input", InvalidRequest),
    ],
)
def test_an_error_that_a_repeat_would_not_change_is_raised_at_once(
    status: int, code: str, kind: type[ProblemError]
) -> None:
    error, requests, _ = play(WRITE, problem(status, code))
    assert type(error) is kind
    assert (error.code, error.status) == (code, status)
    assert error.message == f"because of {code}"
    assert len(requests) == 1


def test_a_conflict_after_a_lost_response_is_retried_for_the_first_try_may_still_run() -> None:
    result, requests, _ = play(WRITE, BROKEN, problem(409, "conflict"), FINE)
    assert result == {"ok": True}
    assert len(requests) == 3


def test_a_conflict_after_a_response_that_changed_nothing_is_final() -> None:
    error, _, _ = play(WRITE, problem(429, "too_many_failures"), problem(409, "conflict"))
    assert isinstance(error, Conflict)


def test_an_error_page_of_a_proxy_is_a_problem_with_its_status() -> None:
    page = Answer(502, b"<html>\n  <h1>Bad Gateway</h1>\x1b[31m")
    error, requests, _ = play(READ, *[page] * 6)
    assert isinstance(error, Unavailable)
    assert error.code == "http_502"
    assert "Bad Gateway" in error.message
    assert "\x1b" not in error.message
    assert len(requests) == 6


@pytest.mark.parametrize(
    "answer", [Answer(200, b"<html>hello"), Answer(200, b"[]"), Answer(302, b"")]
)
def test_a_server_that_is_not_hourbell_is_named_as_such(answer: Answer) -> None:
    error, requests, _ = play(READ, answer)
    assert isinstance(error, UnexpectedAnswer)
    assert "is not from Hourbell" in error.message
    assert len(requests) == 1


@pytest.mark.parametrize("key", ["ä", "a\r\nX: y", "\x00"])
def test_an_idempotency_key_that_no_header_can_have_is_refused_before_it_is_sent(key: str) -> None:
    error, requests, _ = play(msgspec.structs.replace(WRITE, idempotency_key=key))
    assert error.code == "invalid_idempotency_key"
    assert requests == []
