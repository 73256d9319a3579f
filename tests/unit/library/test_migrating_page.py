"""The right-hand sides of docs/migrating.md name what exists."""

import inspect
import re
from pathlib import Path

import click
import pytest

import hourbell
from hourbell import App, Context, Job, Options, Retry, cron, every
from hourbell.cli.main import main
from hourbell.sdk.tasks import Configured, Task, TaskOptions

PAGE = Path(__file__).parents[3] / "docs" / "migrating.md"
OURS = re.findall(r"^\| .*? \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
CODE = [code for cell in OURS for code in re.findall(r"`([^`]+)`", cell)]


def test_there_is_a_table_for_each_library() -> None:
    assert len(OURS) > 60
    assert re.findall(r"^## (.+)$", PAGE.read_text("utf-8"), re.MULTILINE) == [
        "Celery and beat",
        "APScheduler",
        "RQ",
    ]


def test_each_library_has_a_list_of_what_is_lost() -> None:
    everywhere, *parts = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    assert "**What you lose, whichever library you come from:**\n\n- " in everywhere
    for part in parts:
        _, _, lost = part.partition("**What you lose:**\n\n")
        assert len(re.findall(r"^- ", lost.partition("\n\n")[0], re.MULTILINE)) >= 3, part[:20]


def keywords(function: str) -> list[str]:
    """The keywords that the page passes to a function."""
    calls = re.findall(rf"(?<!\w){re.escape(function)}\(((?:[^()]|\([^()]*\))*)\)", "\n".join(CODE))
    own = [re.sub(r"\([^()]*\)", "", call) for call in calls]  # not those of calls inside
    return [name for call in own for name in re.findall(r"(?:^|, )(\w+)=", call)]


@pytest.mark.parametrize(
    ("function", "known"),
    [
        ("configure", Options.__annotations__),
        ("@app.task", TaskOptions.__struct_fields__),
        ("App", inspect.signature(App).parameters),
        ("cron", {*inspect.signature(cron).parameters, *inspect.signature(every).parameters}),
    ],
)
def test_the_keywords_of_the_page_exist(function: str, known: object) -> None:
    found = keywords(function)
    assert found
    assert [name for name in found if name not in known] == []  # type: ignore[operator]


def test_the_names_of_the_page_exist() -> None:
    text = "\n".join(CODE)
    for name in re.findall(r"\bRetry\.(\w+)", text):
        assert hasattr(Retry, name), name
    for name in re.findall(r"\bctx\.(\w+)", text):
        assert hasattr(Context, name), name
    for name in re.findall(r"\bjob\.(\w+)", text):
        assert hasattr(Job, name), name
    for name in re.findall(r"\bapp\.(\w+)\(", text):
        assert hasattr(App("shop"), name), name
    for name in re.findall(r"\b(?:mail|send|f)\.(\w+)\(", text):
        assert hasattr(Task, name) or hasattr(Configured, name), name
    for name in re.findall(r"\braise (\w+)|\bhourbell\.(\w+)\(", text):
        assert hasattr(hourbell, name[0] or name[1]), name


def test_the_commands_of_the_page_exist() -> None:
    lines = [code.split() for code in CODE if code.startswith("hourbell ")]
    assert len(lines) > 10
    for _, *words in lines:
        command: click.Command = main
        context = click.Context(main)
        while words and isinstance(command, click.Group):
            found = command.get_command(context, words[0])
            assert found is not None, words
            command = found
            words = words[1:]
        options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
        assert [word for word in words if word.startswith("--") and word not in options] == []
