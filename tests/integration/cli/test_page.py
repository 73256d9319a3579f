"""The examples of docs/cli.md, and the commands of other pages, run as they are printed."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import click
import pytest

from hourbell.cli.main import COMMANDS, main
from integration.cli.conftest import HOURBELL, Command, eventually

ROOT = Path(__file__).parents[3]
IMPORTS = ROOT / "tests" / "data" / "imports"
PAGE = (ROOT / "docs" / "cli.md").read_text("utf-8")
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
    file.write_text("owner: billing\njobs: []\n")  # other tests use the same names
    hourbell.good("apply", "-f", str(file), "--prune")


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


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with other schedulers, whose programs print what they would print there."""
    schedule = json.loads((IMPORTS / "eventbridge.json").read_text())["Schedules"][0]
    (tmp_path / "schedule.json").write_text(json.dumps(schedule))
    for program, file in (
        ("crontab", IMPORTS / "crontab"),
        ("kubectl", IMPORTS / "cronjobs.yaml"),
        ("aws", tmp_path / "schedule.json"),
    ):
        (tmp_path / program).write_text(f"#!/bin/sh\ncat {file}\n")
        (tmp_path / program).chmod(0o755)
    (tmp_path / "proj").mkdir()
    (tmp_path / "proj" / "celery.py").symlink_to(IMPORTS / "celeryconfig.py")
    return {"PATH": f"{tmp_path}:{HOURBELL.parent}:{os.environ['PATH']}"}


IMPORTING = re.findall(r"^    (.*hourbell import \w+ [^F].*)$", PAGE, re.MULTILINE)


def test_there_is_an_example_of_each_importer() -> None:
    command = main.get_command(click.Context(main), "import")
    assert isinstance(command, click.Group)
    shown = {line.partition(" import ")[2].split()[0] for line in IMPORTING}
    assert shown == set(command.list_commands(click.Context(command)))


@pytest.mark.parametrize("line", IMPORTING)
def test_a_command_of_the_page_imports_jobs_that_can_be_applied(
    tmp_path: Path, machine: dict[str, str], hourbell: Command, line: str
) -> None:
    command = line.replace("/etc/crontab", str(IMPORTS / "crontab.system"))
    done = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=machine, capture_output=True, text=True
    )
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    file = tmp_path / "jobs.yaml"
    assert (done.stdout == "") is (">" in line)
    if done.stdout:
        file.write_text(done.stdout)
    planned = hourbell.good("apply", "-f", str(file), "--dry-run")
    assert "to create" in planned.out + planned.err


def test_the_configuration_file_of_the_page_chooses_a_server(
    hourbell: Command, url: str, config: Path
) -> None:
    (text,) = re.findall(r"^    \[profiles\.default\]\n(?:(?:    .*)?\n)+", PAGE, re.MULTILINE)
    assert text.count("hb_…") == 2
    known = re.sub(r"^    ", "", text, flags=re.MULTILINE).replace("hb_…", "hb_key")
    known = known.replace("https://hourbell.example.com", "http://127.0.0.1:1")
    config.write_text(known.replace("https://hourbell.staging.example.com", url))
    assert hourbell("jobs", "list").code == 6
    assert hourbell("jobs", "list", "--profile", "staging").code != 6


def test_the_lines_of_the_page_complete_commands(tmp_path: Path) -> None:
    bash, fish = re.findall(
        r"^    (.*hourbell completion .*)$", PAGE.split("## Completion")[1], re.M
    )
    env = os.environ | {"PATH": f"{HOURBELL.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", f"{bash}\ncomplete -p hourbell"], env=env, capture_output=True, text=True
    )
    assert ("hourbell" in done.stdout, done.stderr) == (True, ""), done
    command, _, source = fish.partition("#")[0].rpartition("|")
    assert source.strip() == "source"
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True)
    assert "complete --no-files --command hourbell" in done.stdout


def commands_of(page: str) -> list[str]:
    """The indented lines of a page that run `hourbell`."""
    text = (ROOT / "docs" / page).read_text("utf-8")
    return re.findall(r"^    (hourbell [a-z].*)$", text, re.MULTILINE)


async def test_the_keys_of_the_security_page_are_created_listed_and_revoked(
    database: str, tmp_path: Path
) -> None:
    hourbell = Command({"HOURBELL_DATABASE_URL": database, "HOME": str(tmp_path)})

    async def run(*words: str) -> str:
        return (await asyncio.to_thread(hourbell.good, *words)).out

    # Those after it rotate keys: test_roles.py
    first, admin, producer, listed, revoke = (
        shlex.split(line, comments=True)[1:] for line in list(commands_of("security.md"))[:5]
    )
    for created in (first, admin, producer):
        assert re.fullmatch(r"hb_\S+\n", await run(*created))
    table = await run(*listed)
    assert "ops team" in table
    assert "shop" in table
    keys = json.loads(await run(*listed, "--output", "json"))
    assert {(key["name"], key["role"], key["tenant_id"]) for key in keys} == {
        ("first admin", "admin", None),
        ("ops team", "admin", None),
        ("shop", "producer", "shop"),
    }
    (id_,) = (key["key_id"] for key in keys if key["name"] == "shop")
    await run(*(id_ if word == "key_…" else word for word in revoke))
    keys = json.loads(await run(*listed, "--output", "json"))
    assert [key["name"] for key in keys if key["revoked_at"] is None] == [
        "ops team",
        "first admin",
    ]


def test_the_calendar_of_the_page_on_time_is_set(hourbell: Command) -> None:
    (line,) = (each for each in commands_of("time.md") if "calendars" in each)
    words = shlex.split(line, comments=True)[1:]
    hourbell.good(*words)
    assert hourbell.good("calendars", "get", "holidays").out.split() == words[3:]
