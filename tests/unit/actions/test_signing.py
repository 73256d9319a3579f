"""Signatures after Standard Webhooks."""

import pytest

from hourbell.actions.signing import signed_headers
from hourbell.security.secrets import new_signing_secret, signing_secret_problem


def test_the_published_vector() -> None:
    headers = signed_headers(
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_while_secrets_are_rotated_each_signs() -> None:
    old, new = new_signing_secret(), new_signing_secret()
    both = signed_headers("exe_1", 7, b"x", [new, old])["webhook-signature"].split(" ")
    alone = [signed_headers("exe_1", 7, b"x", [key])["webhook-signature"] for key in (new, old)]
    assert both == alone
    assert both[0] != both[1]


def test_a_new_secret_is_one() -> None:
    assert signing_secret_problem(new_signing_secret()) is None
    assert new_signing_secret() != new_signing_secret()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "begin with"),
        ("whsec_not base64!", "base64"),
        ("whsec_c2hvcnQ=", "24 to 64"),
        ("whsec_", "24 to 64"),
    ],
)
def test_what_is_no_secret_is_told_why(text: str, why: str) -> None:
    assert why in (signing_secret_problem(text) or "")
