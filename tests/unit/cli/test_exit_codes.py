"""The exit codes of commands that call a server, as docs/cli.md has them."""

import re
from pathlib import Path

import pytest

from hourbell.cli import remote
from hourbell.cli.remote import errors_as_exits
from hourbell.client import ClientError, UnexpectedAnswer, Unreachable
from hourbell.client.errors import Problem, error_of
from hourbell.model.errors import ConfigurationError

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
CODES = ("REFUSED", "USAGE", "NOT_FOUND", "DENIED", "CONFLICT", "UNAVAILABLE", "INTERRUPTED")


def test_every_exit_code_is_documented_and_no_other() -> None:
    section = PAGE.read_text("utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| (\d+) \| \S", section, re.MULTILINE)
    assert [int(code) for code in documented] == [0, *(getattr(remote, name) for name in CODES)]


def problem(status: int) -> ClientError:
    return error_of(Problem(code="some", title="Some", status=status, detail="Some."))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (problem(422), 1),
        (ConfigurationError("A setting is wrong."), 2),
        (ClientError("invalid_url", "The URL is wrong."), 2),
        (problem(404), 3),
        (problem(403), 4),
        (problem(409), 5),
        (problem(503), 6),
        (Unreachable("http://127.0.0.1:1", "connection refused"), 6),
        # A proxy may have answered after the server has acted: not 2, which says that nothing was changed.
        (UnexpectedAnswer("http://127.0.0.1:1", "it redirects (302)"), 6),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_an_error_of_a_call_has_its_exit_code(error: BaseException, code: int) -> None:
    with pytest.raises(SystemExit) as ended, errors_as_exits():
        raise error
    assert ended.value.code == code
