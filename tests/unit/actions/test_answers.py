"""What the answer to a webhook means."""

import pytest

from hourbell.actions.answers import MAX_REFUSAL_CHARACTERS, is_accepted, refusal, result
from hourbell.model.executions import Failed, Reason
from hourbell.model.policies import Dead, Retry, RetryPolicy, decide
from hourbell.security.secrets import REDACTED, Redactor

NO_SECRETS = Redactor(())
DATE = "Wed, 21 Oct 2026 07:28:00 GMT"


def refused(status: int, answer: bytes = b"", **headers: str) -> Failed:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return refusal(status, given, answer, NO_SECRETS)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 502, 503, 504, 599])
def test_what_may_be_over_the_next_time_is_tried_again(status: int) -> None:
    assert isinstance(decide(RetryPolicy(), 1, refused(status), 1), Retry)


@pytest.mark.parametrize("status", [300, 301, 302, 304, 307, 400, 401, 403, 404, 410, 422, 451])
def test_what_would_be_the_same_the_next_time_is_final(status: int) -> None:
    assert decide(RetryPolicy(), 1, refused(status), 1) == Dead(Reason.NON_RETRYABLE)


def test_the_job_has_the_last_word_about_what_is_tried_again() -> None:
    policy = RetryPolicy(retryable=("http_404",), non_retryable=("http_500",))
    assert isinstance(decide(policy, 1, refused(404), 1), Retry)
    assert decide(policy, 1, refused(500), 1) == Dead(Reason.NON_RETRYABLE)
    assert decide(policy, 1, refused(403), 1) == Dead(Reason.NON_RETRYABLE)


def test_only_410_says_that_nobody_is_there_any_more() -> None:
    assert [status for status in range(300, 600) if refused(status).gone] == [410]


def test_a_redirect_says_that_it_is_not_followed() -> None:
    error = refused(302, Location="http://169.254.169.254/").error
    assert error == "The target answered 302, a redirect; redirects are not followed."


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("17", 17.0),
        (" 17 ", 17.0),
        ("0", 0.0),
        ("9" * 5000, float("inf")),
        ("Wed, 21 Oct 2026 07:30:00 GMT", 120.0),
        ("Wed, 21 Oct 2026 07:00:00 GMT", 0.0),
        ("Wed, 21 Oct 2026 07:30:00", None),
        ("-5", None),
        ("1.5", None),
        ("١٢", None),
        ("soon", None),
        ("", None),
        ("Wed, 99 Oct 2026 07:30:00 GMT", None),
        ("Wed, 21 Oct 99999999999999999999 07:30:00 GMT", None),
    ],
)
def test_a_busy_target_says_when_to_come_back(said: str, seconds: float | None) -> None:
    for status in (429, 503):
        assert refused(status, Retry_After=said, Date=DATE).retry_after_seconds == seconds


def test_nobody_is_parked_for_ever_by_what_a_target_asks_for() -> None:
    endless = refused(503, Retry_After="9" * 400)
    assert decide(RetryPolicy(max_delay_seconds=60), 1, endless, 1) == Retry(60.0)


def test_a_date_without_the_targets_own_date_says_nothing() -> None:
    assert refused(503, Retry_After=DATE).retry_after_seconds is None


def test_only_those_who_are_busy_say_when() -> None:
    assert refused(500, Retry_After="17").retry_after_seconds is None


def test_the_beginning_of_what_was_said_is_kept_in_one_line() -> None:
    assert refused(500, b" no\r\n  such\x00table ").error == (
        "The target answered 500. Response: no such\x00table"
    )
    long = refused(500, b"x" * 9999).error
    assert len(long) == len("The target answered 500. Response: ") + MAX_REFUSAL_CHARACTERS


def test_no_secret_is_kept_not_even_a_part_of_one_that_was_cut_through() -> None:
    redactor = Redactor(["canary-0123456789"])
    kept = refusal(500, {}, b"you sent canary-0123456789 and canary-01234", redactor).error
    assert kept.endswith(f"you sent {REDACTED} and")
    cut = b"x" * (16 * 1024 - 10) + b"canary-012"
    assert "canary" not in result(200, cut, redactor)["body"]


@pytest.mark.parametrize(
    ("status", "value", "accepted"),
    [(202, "1", True), (202, " 1 ", True), (202, "0", False), (202, "", False), (200, "1", False)],
)
def test_a_target_goes_on_by_itself_if_it_says_so(status: int, value: str, accepted: bool) -> None:
    assert is_accepted(status, {"Hourbell-Async": value}) is accepted
