"""What a command loads: nobody waits for a web server to see a list of keys."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hourbell.cli.main import COMMANDS, main
from hourbell.cli.roles import worker_command

SERVE_OR_SEND = ("litestar", "uvicorn", "aiohttp")


@pytest.mark.parametrize(
    "command",
    ["calendars", "dlq", "executions", "jobs", "keys", "migrate", "next", "secrets", "tenants"],
)
def test_a_command_that_serves_nothing_loads_no_web_server(command: str) -> None:
    script = f"import hourbell.cli.{command}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    loaded = done.stdout.decode().split()
    assert f"hourbell.cli.{command}" in loaded
    assert not set(SERVE_OR_SEND) & set(loaded)


@pytest.mark.parametrize("command", ["dlq", "executions", "jobs", "keys", "secrets", "tenants"])
def test_a_command_that_calls_a_server_loads_no_database_driver(command: str) -> None:
    script = f"import hourbell.cli.{command}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert not {"asyncpg", "hourbell.engine", "cryptography"} & set(done.stdout.decode().split())


def test_the_list_of_commands_has_the_first_sentences_of_their_help() -> None:
    for name, (place, summary) in COMMANDS.items():
        module, _, attribute = place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert command.name == name
        assert summary.endswith(".")


@pytest.mark.parametrize(
    ("command", "has_rich"), [("scheduler", False), ("worker shop:app", True), ("worker", False)]
)
def test_rich_is_left_to_the_apps_of_users(command: str, has_rich: bool) -> None:
    script = """
import sys
from hourbell.cli.main import main
context = main.make_context("hourbell", sys.argv[1:])
main.resolve_command(context, sys.argv[1:])
import structlog.dev
print(structlog.dev.rich is not None)
"""
    command_line = [sys.executable, "-c", script, *command.split()]
    done = subprocess.run(command_line, capture_output=True, check=True)
    assert done.stdout.decode().split() == [str(has_rich)]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [("--queues", ",", "name a queue, such as mail,default"), ("--drain", "-1", "is not in the")],
)
def test_an_option_of_a_worker_that_means_nothing_is_refused(
    option: str, value: str, said: str
) -> None:
    done = CliRunner().invoke(worker_command, ["shop:app", option, value])
    assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command)
        else:
            yield command


def test_every_command_that_prints_json_has_the_same_short_option_for_it() -> None:
    spellings = {
        command.name: set(option.opts)
        for command in commands(main)
        for option in command.params
        if option.name == "output"
    }
    assert len(spellings) > 20
    assert all(names == {"--output", "-o"} for names in spellings.values()), spellings


@pytest.mark.parametrize("command", ["--help", "next @daily", "doctor"])
@pytest.mark.parametrize(
    ("stdout", "why"),
    [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")],
    ids=["closed", "full"],
)
def test_a_stdout_that_cannot_be_written_is_a_failure_without_a_traceback(
    command: str, stdout: str, why: str, tmp_path: Path
) -> None:
    hourbell = f"{sys.executable} -m hourbell {command} {stdout}"
    done = subprocess.run(
        ["sh", "-c", hourbell], env={"HOURBELL_DATA_DIR": str(tmp_path)}, capture_output=True
    )
    assert "Traceback" not in done.stderr.decode()
    assert "Exception" not in done.stderr.decode()
    assert done.stderr.decode().endswith(f"hourbell: The output: {why}.\n")
    assert done.returncode == 1
