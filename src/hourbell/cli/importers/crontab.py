"""crontab files: a user's, or the system's (with a user column)."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath
from typing import Any

from hourbell.cli.importers import (
    COMMAND_TASK,
    RUNS_A_COMMAND,
    Import,
    Imported,
    job_name,
    with_distinct_names,
)

TIMEOUT_SECONDS = 3600
_VARIABLE = re.compile(r"^\s*(\w+|'\w+'|\"\w+\")\s*=\s*(.*?)\s*$")
# Not -L and -k: a webhook never follows redirects and always verifies certificates.
_CURL_FLAGS = re.compile(r"-[sSfgv46]+|--(?:silent|show-error|fail|no-progress-meter)")
_FORM = "application/x-www-form-urlencoded"
_SINGLE_QUOTED = re.compile(r"'[^']*'")
_DOUBLE_QUOTED = re.compile(r'"[^"$`]*"')
_SHELL = re.compile(r"[|&;<>$`(){}*?]")
_CHANGE_FOLDER = re.compile(r"^\s*cd\s+\S+\s*(?:&&|;)\s*")
_LAUNCHERS = (
    "nice",
    "ionice",
    "env",
    "bash",
    "sh",
    "sudo",
    "flock",
    "timeout",
    "python",
    "python3",
)


def read_crontab(text: str, timezone: str, system: bool) -> Import:
    """The jobs in a crontab."""
    variables: dict[str, str] = {}
    jobs: list[Imported] = []
    notes = [
        "cron does not retry or catch up, and has no timeout: these jobs do not retry, skip missed "
        f"runs, and are stopped after {TIMEOUT_SECONDS} s"
    ]
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        variable = _VARIABLE.match(stripped)
        if variable and not stripped.startswith(("*", "@")) and not stripped[0].isdigit():
            name, value = (part.strip("\"'") for part in variable.groups())
            if name == "CRON_TZ":
                timezone = value
            elif name == "MAILTO":
                where = f"to {value} " if value else "nowhere "
                notes.append(f"line {number}: output was mailed {where}(MAILTO); use notifications")
            else:
                variables[name] = value
            if name == "TZ":
                notes.append(
                    f"line {number}: TZ={value} is a variable for the commands and does not shift "
                    f"their schedule; in cron, only CRON_TZ does"
                )
            continue
        jobs.append(_entry(stripped, number, timezone, dict(variables), system))
    return Import(with_distinct_names(jobs), notes)


def _entry(
    line: str, number: int, timezone: str, variables: dict[str, str], system: bool
) -> Imported:
    where = f"line {number}: "
    count = 1 if line.startswith("@") else 5
    parts = line.split(None, count + system)
    if len(parts) < count + system + 1:
        return Imported({"name": f"line-{number}"}, [f"{where}not an entry: {line}"], False)
    rule, command = " ".join(parts[:count]), parts[-1]
    notes: list[str] = []
    payload: dict[str, Any] = {}
    if system:
        payload["user"] = parts[count]
    command, standard_input = _split_input(command)
    if standard_input is not None:
        payload["stdin"] = standard_input
    if variables:
        payload["environment"] = variables
    document: dict[str, Any] = {
        "name": _name_of(command),
        "schedule": {"cron": rule, "timezone": timezone},
        "action": None,
        "retry_policy": {"max_retries": 0},
        "misfire_policy": "skip",
        "timeout_seconds": TIMEOUT_SECONDS,
    }
    request = _request_of(command) if standard_input is None else None
    if request is not None:
        document |= request
    else:
        payload = {"command": command, **payload}
        document["action"] = {"type": "TASK", "name": COMMAND_TASK, "payload": payload}
        notes.append(where + RUNS_A_COMMAND)
    if rule == "@reboot":
        return Imported(document, [f"{where}@reboot has no equivalent: {command}"], False)
    return Imported(document, notes)


def _split_input(command: str) -> tuple[str, str | None]:
    """The command, and its standard input: whatever follows the first %."""
    parts = re.split(r"(?<!\\)%", command, maxsplit=1)
    texts = [part.replace(r"\%", "%") for part in parts]
    if len(texts) == 1:
        return texts[0].strip(), None
    rest = re.sub(r"(?<!\\)%", "\n", parts[1]).replace(r"\%", "%")
    return texts[0].strip(), rest + "\n"


def _name_of(command: str) -> str:
    command = _CHANGE_FOLDER.sub("", command)
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    for word in words:
        base = PurePosixPath(word).name
        is_name = base and not word.startswith("-") and "=" not in word and not word.isdigit()
        if is_name and base not in _LAUNCHERS:
            return job_name(base)
    return job_name(command)


def _request_of(command: str) -> dict[str, Any] | None:
    """The job fields that match a plain curl command; None if it is something else."""
    command = re.sub(r"\s*(?:>\s*/dev/null\s*(?:2>&1)?|&>\s*/dev/null|2>&1)\s*$", "", command)
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    unquoted = _DOUBLE_QUOTED.sub("", _SINGLE_QUOTED.sub("", command))
    if not words or PurePosixPath(words[0]).name != "curl" or _SHELL.search(unquoted):
        return None
    fields: dict[str, Any] = {}
    headers: dict[str, str] = {}
    data: list[str] = []
    url = method = ""
    rest = iter(words[1:])
    for word in rest:
        if word.startswith(("http://", "https://")) and not url:
            url = word
        elif word in ("-X", "--request"):
            method = next(rest, "")
        elif word in ("-H", "--header"):
            name, _, value = next(rest, "").partition(":")
            headers[name.strip()] = value.strip()
        elif word in ("-d", "--data", "--data-raw"):
            data.append(next(rest, ""))
        elif word in ("-m", "--max-time"):
            fields["timeout_seconds"] = _whole(next(rest, ""))
        elif word == "--retry":
            fields["retry_policy"] = {"max_retries": _whole(next(rest, ""))}
        elif word in ("-o", "--output"):
            next(rest, "")
        elif not _CURL_FLAGS.fullmatch(word):
            return None
    # `-d @name` sends the contents of a file; so does `-H @name`, and `-H 'Name:'` removes a header.
    if not url or any(one.startswith("@") for one in data) or not all(headers.values()):
        return None
    webhook: dict[str, Any] = {"type": "WEBHOOK", "url": url}
    webhook["method"] = method or ("POST" if data else "GET")
    if data and "content-type" not in map(str.lower, headers):
        headers["Content-Type"] = _FORM
    if headers:
        webhook["headers"] = headers
    if data:
        webhook["body"] = "&".join(data)
    name = job_name(url.partition("://")[2].partition("?")[0])
    return {**fields, "name": name, "action": webhook}


def _whole(text: str) -> int | None:
    return int(text) if text.isdigit() else None
