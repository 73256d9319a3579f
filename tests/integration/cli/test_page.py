"""The examples of docs/cli.md, run as they are printed."""

import re
import shlex
import signal
from pathlib import Path

import click

from hourbell.cli.main import COMMANDS, main
from integration.cli.conftest import Command, eventually

PAGE = (Path(__file__).parents[3] / "docs" / "cli.md").read_text("utf-8")
EXAMPLES = re.findall(r"^    \$ hourbell (.*)$", PAGE, re.MULTILINE)
SYNOPSIS = re.findall(
    r"^    hourbell ([a-z0-9| -]+?)(?: {2,}.*| [A-Z\[-].*)?$",
    PAGE.partition("For example:")[0],
    re.MULTILINE,
)


def died(hourbell: Command, url: str) -> str:
    """The fingerprint of a dead letter."""
    options = ("--delay", "0", "--url", f"{url}/nope", "--max-retries", "0")
    job = hourbell.good("jobs", "create", "dies", *options).out.strip()
    groups = ("dlq", "groups", "--job", job, "-o", "json")
    eventually(lambda: bool(hourbell.good(*groups).json["items"]))
    (group,) = hourbell.good(*groups).json["items"]
    return str(group["fingerprint"])


def test_the_commands_of_the_page_run_one_after_the_other(hourbell: Command, url: str) -> None:
    assert len(EXAMPLES) > 7
    fingerprint, printed = died(hourbell, url), ""
    for line in EXAMPLES:
        # Ids of the page are those that earlier commands of the page have printed.
        known = re.sub(r"\b(?:exe|ops)_\w{13}\b", lambda _, last=printed: str(last), line)
        words = shlex.split(re.sub(r"\b[0-9a-f]{16}\b", fingerprint, known))
        if words[:2] == ["executions", "tail"]:
            tail = hourbell.started(*words)
            assert tail.stderr is not None
            assert tail.stderr.readline().startswith("Following")
            tail.send_signal(signal.SIGINT)
            tail.communicate(timeout=30)
            assert tail.returncode == 130
            continue
        # Without a terminal, a replay by a filter has to be confirmed.
        done = hourbell.good(*words, *(["--yes"] if words[:2] == ["dlq", "replay"] else []))
        if re.fullmatch(r"(?:exe|ops)_\w{13}\n", done.out):
            printed = done.out.strip()


def test_the_file_of_the_page_is_applied_and_a_second_time_changes_nothing(
    hourbell: Command, tmp_path: Path
) -> None:
    (text,) = re.findall(r"^    owner: billing\n(?:    .*\n)+", PAGE, re.MULTILINE)
    file = tmp_path / "jobs.yaml"
    file.write_text(re.sub(r"^    ", "", text, flags=re.MULTILINE))
    assert "2 to create" in hourbell.good("apply", "-f", str(file)).err
    again = hourbell.good("apply", "-f", str(file))
    assert (again.out, "2 unchanged" in again.err) == ("", True)


def test_the_synopsis_has_every_command() -> None:
    named = {name for line in SYNOPSIS for name in re.split(r"[ |]+", line.split("  ")[0]) if name}
    missing = set(COMMANDS) - named
    assert missing == set()
    context = click.Context(main)
    for line in SYNOPSIS:
        groups, _, below = line.replace(" | ", "|").partition(" ")
        for name in groups.split("|"):
            command = main.get_command(context, name)
            assert command is not None, name
            if isinstance(command, click.Group):
                assert set(filter(None, below.strip().split("|"))) == set(
                    command.list_commands(context)
                ), name
