"""The verification of webhooks by their receivers."""

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import hourbell
from hourbell.actions.signing import signed_headers
from hourbell.guard import BadSignature, Guard, TooOld
from hourbell.security.secrets import new_signing_secret

SECRET = new_signing_secret()
NOW = 1_800_000_000
SENT = {
    "Hourbell-Fence-Token": "41",
    "Hourbell-Attempt": "3",
    "Hourbell-Scheduled-For": "2027-01-01T00:00:00Z",
    "Hourbell-Completion-Token": "t",
}


def signed(body: bytes = b'{"a": 1}', *secrets: str, at: int = NOW) -> dict[str, str]:
    return SENT | signed_headers("exe_1", at, body, secrets or (SECRET,))


def test_a_genuine_request_is_a_delivery() -> None:
    delivery = Guard([SECRET]).verify(signed(), b'{"a": 1}', NOW)
    assert (delivery.execution_id, delivery.fence, delivery.attempt) == ("exe_1", 41, 3)
    assert (delivery.scheduled_for, delivery.sent_at) == ("2027-01-01T00:00:00Z", NOW)
    assert (delivery.completion_token, delivery.json()) == ("t", {"a": 1})


def test_names_of_headers_have_no_case_and_may_come_as_pairs() -> None:
    pairs = [(name.upper(), value) for name, value in signed().items()]
    assert Guard([SECRET]).verify(pairs, b'{"a": 1}', NOW).fence == 41


def test_another_body_secret_id_or_time_is_not_signed() -> None:
    guard = Guard([SECRET])
    for headers, body in (
        (signed(), b'{"a":1}'),
        (signed(b'{"a": 1}', new_signing_secret()), b'{"a": 1}'),
        (signed() | {"webhook-id": "exe_2"}, b'{"a": 1}'),
        (signed() | {"webhook-timestamp": str(NOW + 1)}, b'{"a": 1}'),
        (signed() | {"webhook-signature": "v1,"}, b'{"a": 1}'),
        (signed() | {"webhook-signature": "v1,?? v2,AAAA nonsense ,"}, b'{"a": 1}'),
    ):
        with pytest.raises(BadSignature, match="any of the secrets"):
            guard.verify(headers, body, NOW)


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_request_without_a_signature_is_not_genuine(missing: str) -> None:
    headers = signed()
    del headers[missing]
    with pytest.raises(BadSignature, match="lacks webhook-id"):
        Guard([SECRET]).verify(headers, b'{"a": 1}', NOW)


@pytest.mark.parametrize("timestamp", ["x", "-1", "nan", "1e9", " 1"])
def test_a_malformed_timestamp_is_named(timestamp: str) -> None:
    headers = signed() | {"webhook-timestamp": timestamp}
    with pytest.raises(BadSignature, match="webhook-timestamp is malformed"):
        Guard([SECRET]).verify(headers, b'{"a": 1}', NOW)


def test_a_body_that_was_decoded_is_refused() -> None:
    body: Any = '{"a": 1}'
    with pytest.raises(TypeError, match="must be bytes, exactly as received, not str"):
        Guard([SECRET]).verify(signed(), body, NOW)


@pytest.mark.parametrize("missing", ["Hourbell-Fence-Token", "Hourbell-Attempt"])
def test_a_signed_request_of_another_system_is_refused(missing: str) -> None:
    headers = signed() | {missing: "-1"}
    with pytest.raises(BadSignature, match="not sent by Hourbell"):
        Guard([SECRET]).verify(headers, b'{"a": 1}', NOW)


def test_while_a_secret_is_replaced_either_side_may_be_first() -> None:
    old, new = new_signing_secret(), new_signing_secret()
    body = b"x"
    assert Guard([new]).verify(signed(body, new, old), body, NOW)
    assert Guard([old]).verify(signed(body, new, old), body, NOW)
    assert Guard([new, old]).verify(signed(body, old), body, NOW)


def test_a_request_is_refused_when_it_is_too_old_or_from_the_future() -> None:
    guard = Guard([SECRET], tolerance=60)
    for now in (NOW - 60, NOW + 60):
        assert guard.verify(signed(), b'{"a": 1}', now)
    with pytest.raises(TooOld, match="61 seconds ago"):
        guard.verify(signed(), b'{"a": 1}', NOW + 61)
    with pytest.raises(TooOld, match="61 seconds in the future"):
        guard.verify(signed(), b'{"a": 1}', NOW - 61)
    with pytest.raises(TooOld):
        guard.verify(signed(), b'{"a": 1}')  # by the clock of this machine
    with pytest.raises(BadSignature):  # which is checked first: nobody learns our clock
        guard.verify(signed() | {"webhook-timestamp": "1"}, b'{"a": 1}', NOW)


def test_only_the_first_signatures_of_a_request_are_looked_at() -> None:
    headers = signed()
    headers["webhook-signature"] = "v1,AAAA " * 16 + headers["webhook-signature"]
    with pytest.raises(BadSignature):
        Guard([SECRET]).verify(headers, b'{"a": 1}', NOW)


@pytest.mark.parametrize(
    "secrets",
    [
        "whsec_text",
        [],
        ["plain"],
        ["whsec_c2hvcnQ="],
        [base64.b64encode(bytes(32)).decode()],
        [None],
    ],
)
def test_what_is_no_secret_is_refused(secrets: Any) -> None:
    with pytest.raises(ValueError, match="secret"):
        Guard(secrets)


async def test_what_is_no_connection_is_named() -> None:
    guard = Guard([SECRET])
    delivery = guard.verify(signed(), b'{"a": 1}', NOW)
    with pytest.raises(TypeError, match="SQLAlchemy or Django, not builtins object"):
        async with guard.once(object(), delivery):
            pytest.fail("it is no connection")
    with (
        pytest.raises(TypeError, match="is an asynchronous sqlalchemy AsyncSession: use once"),
        guard.once_sync(AsyncSession(), delivery),
    ):
        pytest.fail("it cannot be awaited")
    with pytest.raises(TypeError, match="is a synchronous sqlalchemy Session: use once_sync"):
        async with guard.once(Session(), delivery):
            pytest.fail("it would block")


def test_a_receiver_needs_nothing_but_the_standard_library() -> None:
    source = Path(hourbell.__path__[0]).parent
    program = (
        f"import sys; sys.path.append({str(source)!r}); import hourbell.guard;"
        "print(*(name for name in sys.modules"
        " if name.partition('.')[0] not in {'__main__', *sys.stdlib_module_names}))"
    )
    # Without site-packages.
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=True
    )
    own = {*ran.stdout.split()} - {"hourbell"}
    assert own
    assert all(name.startswith("hourbell.guard") for name in own)
