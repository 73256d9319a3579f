"""The example of docs/webhooks.md works."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hourbell.actions.signing import signed_headers
from hourbell.security.secrets import new_signing_secret

PAGE = Path(__file__).parents[3] / "docs" / "webhooks.md"


@pytest.fixture
def is_genuine() -> Any:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    [example] = [each for each in examples if "def is_genuine" in each]
    assert len(example.strip().splitlines()) <= 10
    names: dict[str, Any] = {}
    exec(example, names)
    return names["is_genuine"]


def test_a_receiver_knows_what_is_from_us(is_genuine: Any) -> None:
    secret, body = new_signing_secret(), b'{"cart":7}'
    now = int(datetime.now(UTC).timestamp())  # noqa: TID251 - the package compares with the real time
    headers = signed_headers("exe_1", now, body, [secret])
    assert is_genuine(secret, headers, body)
    assert not is_genuine(secret, headers, body + b" ")
    assert not is_genuine(new_signing_secret(), headers, body)
    assert not is_genuine(secret, signed_headers("exe_1", now - 3600, body, [secret]), body)
    assert not is_genuine(secret, signed_headers("exe_1", now, body, []), body)
