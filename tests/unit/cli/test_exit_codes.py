"""The exit codes of commands, as docs/cli.md has them."""

import ast
import re
from pathlib import Path

import pytest

from hourbell.cli import exit_codes
from hourbell.cli.remote import errors_as_exits
from hourbell.client import ClientError, UnexpectedAnswer, Unreachable
from hourbell.client.errors import Problem, error_of
from hourbell.model.errors import ConfigurationError, Conflict, NotFound, StoreUnavailable

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
CODES = {name: code for name, code in vars(exit_codes).items() if name.isupper()}


def test_every_exit_code_is_documented_and_no_other() -> None:
    section = PAGE.read_text("utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    documented = re.findall(r"^\| (\d+) \| \S", section, re.MULTILINE)
    assert [int(code) for code in documented] == sorted(CODES.values())


def test_every_exit_of_a_command_names_its_code() -> None:
    for file in Path(exit_codes.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Call) and re.search(
                r"(?i)exit$|^fail$", ast.unparse(node.func)
            ):
                numbers = [arg for arg in node.args if isinstance(arg, ast.Constant)]
                assert not any(isinstance(arg.value, int) for arg in numbers), ast.unparse(node)


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
        # Of work directly on the database.
        (NotFound("key", "key_1"), 3),
        (Conflict("It is the last key."), 5),
        (StoreUnavailable("the connection was closed"), 6),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else str(value),
)
def test_an_error_of_a_call_has_its_exit_code(error: BaseException, code: int) -> None:
    with pytest.raises(SystemExit) as ended, errors_as_exits():
        raise error
    assert ended.value.code == code
