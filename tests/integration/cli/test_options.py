"""Options of commands, by what they change on the server or which rows they select."""

import json
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from answers import opened
from integration.cli.conftest import Command, eventually

YEARLY = ("--cron", "0 3 1 1 *")
Ask = Callable[..., Any]


@pytest.fixture
def ask(url: str) -> Ask:
    """A request to the API; its answer."""

    def ask(path: str, body: object = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        with opened(urllib.request.Request(url + path, data, headers), timeout=30) as answer:
            return json.load(answer)

    return ask


def made(hourbell: Command, name: str, *options: str) -> str:
    return hourbell.good("jobs", "create", name, *options).out.split()[-1]


def claimed(ask: Ask, task: str, execution: str) -> tuple[Any, dict[str, Any]]:
    """An execution of a task, given to a worker over HTTP, and the call that names it."""
    claim = {"worker_id": "options", "capacity": 1, "tasks": [task], "wait_seconds": 20}
    answer = ask("/internal/v1/executions/claim", claim)
    (one,) = answer["executions"]
    assert one["execution_id"] == execution
    return one, {"session_token": answer["session_token"], "execution_ids": [execution]}


def test_a_unique_key_and_a_timeout_are_those_of_the_new_job(hourbell: Command, ask: Ask) -> None:
    options = (*YEARLY, "--task", "count", "--unique-key", "cart:7", "--timeout", "77")
    job = ask(f"/api/v1/jobs/{made(hourbell, 'unique', *options)}")
    assert (job["unique_key"], job["timeout_seconds"]) == ("cart:7", 77)
    assert hourbell("jobs", "create", "unique", *options).code == 5


def test_a_job_is_updated_from_a_file_and_from_a_pipe(
    hourbell: Command, ask: Ask, tmp_path: Path
) -> None:
    job = made(hourbell, "patched", *YEARLY, "--task", "count", "--label", "team:b")
    (tmp_path / "patch.yaml").write_text("priority: LOW\nlabels: {team: null, kind: c}\n")
    hourbell.good("jobs", "update", job, "--file", str(tmp_path / "patch.yaml"))
    shown = ask(f"/api/v1/jobs/{job}")
    assert (shown["priority"], shown["labels"]) == ("LOW", {"kind": "c"})
    hourbell.good("jobs", "update", job, "-f", "-", stdin='{"timeout_seconds": 9}')
    shown = ask(f"/api/v1/jobs/{job}")
    assert (shown["priority"], shown["timeout_seconds"]) == ("LOW", 9)


@pytest.mark.parametrize("wrong", ["{n: 1}", '{"n": NaN}', ' {"n": 1,}'])
def test_an_object_with_a_mistake_is_not_sent_as_a_text(hourbell: Command, wrong: str) -> None:
    for action in (("--task", "t", "--payload"), ("--url", "http://127.0.0.1/", "--body")):
        refused = hourbell("jobs", "create", "mistake", "--delay", "60", *action, wrong)
        assert refused.code == 2
        assert "A value that begins with { must be JSON: JSON is malformed" in refused.err


def test_a_text_that_begins_with_a_template_is_sent_as_it_is(hourbell: Command, url: str) -> None:
    hourbell.good("secrets", "set", "template", stdin="a secret")
    action = ("--url", f"{url}/livez", "--body", "{{secret:template}} and text")
    job = made(hourbell, "templated", "--cron", "0 3 1 1 *", *action)
    assert hourbell.good("jobs", "get", job, "-o", "json").json["action"]["body"] == action[-1]


def test_the_payload_and_the_body_of_a_run_are_for_that_run_only(
    hourbell: Command, ask: Ask, url: str
) -> None:
    task = made(hourbell, "pays", *YEARLY, "--task", "options.pay", "--payload", '{"n": 1}')
    for given, payload in (((), {"n": 1}), (("--payload", '{"n": 2}'), {"n": 2})):
        run = hourbell.good("jobs", "run", task, *given).out.split()[-1]
        one, call = claimed(ask, "options.pay", run)
        assert one["action"]["payload"] == payload
        outcome = {
            "session_token": call["session_token"],
            "fence_token": one["fence_token"],
            "status": "SUCCEEDED",
            "duration_ms": 0,
        }
        ask(f"/internal/v1/executions/{run}/complete", outcome)
    assert ask(f"/api/v1/jobs/{task}")["action"]["payload"] == {"n": 1}

    def creating(name: str) -> str:
        schedule = {"cron": "0 3 1 1 *"}
        action = {"type": "TASK", "name": "count"}
        return json.dumps(
            {"name": name, "type": "RECURRING", "schedule": schedule, "action": action}
        )

    webhook = (*YEARLY, "--url", f"{url}/api/v1/jobs", "--body", creating("by-its-own-body"))
    job = made(hourbell, "creates", *webhook)
    for given, created in (
        (("--body", creating("by-the-body-of-a-run")), {"by-the-body-of-a-run"}),
        ((), {"by-the-body-of-a-run", "by-its-own-body"}),
    ):
        run = hourbell.good("jobs", "run", job, *given).out.split()[-1]
        eventually(lambda run=run: ask(f"/api/v1/executions/{run}")["status"] == "SUCCEEDED")
        names = {one["name"] for one in hourbell.good("jobs", "list", "-o", "json").json}
        assert {name for name in names if name.startswith("by-")} == created


def test_delete_cancels_what_runs_only_if_it_is_told_to(hourbell: Command, ask: Ask) -> None:
    for given, cancelled in (((), False), (("--cancel-running",), True)):
        job = made(hourbell, "deleted", *YEARLY, "--task", "options.long")
        run = hourbell.good("jobs", "run", job).out.split()[-1]
        one, call = claimed(ask, "options.long", run)
        hourbell.good("jobs", "delete", job, "--yes", *given)
        answer = ask("/internal/v1/executions/heartbeat", call)
        assert (run in answer["cancelled"]) is cancelled
        release = {"session_token": call["session_token"], "fence_token": one["fence_token"]}
        ask(f"/internal/v1/executions/{run}/release", release)


def test_jobs_are_listed_by_type_tenant_and_queue(hourbell: Command) -> None:
    task = ("--task", "count", "--label", "kind:listed")
    once = made(hourbell, "once", *task, "--delay", "86400")
    ours = made(hourbell, "ours", *task, *YEARLY, "--tenant", "listed")
    mail = made(hourbell, "mail", *task, *YEARLY, "--queue", "listed-mail")
    for options, found in (
        (("--type", "one_time"), {once}),
        (("--type", "recurring"), {ours, mail}),
        (("--tenant", "listed"), {ours}),
        (("--queue", "listed-mail"), {mail}),
    ):
        listed = hourbell.good("jobs", "list", "--label", "kind:listed", *options, "-o", "json")
        assert {job["job_id"] for job in listed.json} == found, options


def test_executions_are_listed_from_and_to_the_time_of_their_creation(
    hourbell: Command, ask: Ask
) -> None:
    job = made(hourbell, "timed", *YEARLY, "--task", "count")
    runs = [hourbell.good("jobs", "run", job).out.split()[-1] for _ in range(3)]
    middle = ask(f"/api/v1/executions/{runs[1]}")["created_at"]
    for options, found in (
        (("--from", middle), runs[1:]),
        (("--to", middle), runs[:1]),
        (("--from", middle, "--to", middle), []),
    ):
        listed = hourbell.good("executions", "list", "--job", job, *options, "-o", "json").json
        assert sorted(one["execution_id"] for one in listed) == found, options


def died(hourbell: Command, ask: Ask, url: str, name: str, *options: str) -> str:
    """An execution that is dead."""
    job = made(hourbell, name, *YEARLY, "--url", f"{url}/nope", *options)
    run = hourbell.good("jobs", "run", job).out.split()[-1]
    eventually(lambda: ask(f"/api/v1/executions/{run}")["status"] == "DEAD")
    return run


def test_dead_letters_are_selected_by_time_reason_and_tenant_and_replayed_at_a_rate(
    hourbell: Command, ask: Ask, url: str
) -> None:
    first = died(hourbell, ask, url, "first", "--tenant", "dying")
    second = died(hourbell, ask, url, "second", "--tenant", "dying")
    other = died(hourbell, ask, url, "other")
    letters = {one["execution_id"]: one for one in ask("/api/v1/dead-letters")["items"]}
    assert set(letters) == {first, second, other}
    at = letters[second]["died_at"]

    def listed(*options: str) -> set[str]:
        done = hourbell.good("dlq", "list", *options, "-o", "json")
        return {one["execution_id"] for one in done.json}

    assert listed("--tenant", "dying") == {first, second}
    assert listed("--to", at) == {first}
    assert listed("--reason", "non_retryable") == {first, second, other}
    assert listed("--reason", "crashed") == set()
    assert listed("--all") == {first, second, other}

    hourbell.good("dlq", "purge", "--tenant", "dying", "--to", at, "--yes")
    assert listed() == {second, other}
    asked = datetime.now(UTC)  # noqa: TID251 - a client's own clock
    hourbell.good("dlq", "replay", "--all", "--rate", "1", "--yes")
    eventually(lambda: listed() == {second, other})
    starts = [
        datetime.fromisoformat(attempts[-1]["started_at"])
        for attempts in (ask(f"/api/v1/executions/{run}")["attempts"] for run in (second, other))
    ]
    # The second is due a second later; the first may have been late itself.
    assert max(starts) - asked > timedelta(seconds=0.9)
    hourbell.good("dlq", "purge", "--all", "--yes")
    assert ask("/api/v1/dead-letters")["items"] == []


def test_the_previous_value_of_a_secret_stays_in_use_for_a_while(
    hourbell: Command, ask: Ask
) -> None:
    hourbell.good("secrets", "set", "rotated", stdin="a value of many characters")
    assert the_only(ask("/api/v1/secrets"), "rotated")["previous_until"] is None
    again = ("secrets", "set", "rotated", "--keep-previous", "3600")
    hourbell.good(*again, stdin="another value of many characters")
    assert the_only(ask("/api/v1/secrets"), "rotated")["previous_until"] is not None


def the_only(listed: Any, name: str) -> Any:
    (one,) = (each for each in listed["items"] if each["name"] == name)
    return one


def test_a_tenant_keeps_its_history_for_its_own_number_of_days(hourbell: Command, ask: Ask) -> None:
    days = ("--ledger-days", "5", "--dead-letter-days", "60", "--audit-days", "90")
    hourbell.good("tenants", "set", "historic", *days)
    hourbell.good("tenants", "set", "historic", "--unset", "audit-days")
    shown = ask("/api/v1/tenants/historic")
    assert (shown["ledger_days"], shown["dead_letter_days"], shown["audit_days"]) == (5, 60, None)


def test_a_forecast_is_that_of_one_tenant(hourbell: Command) -> None:
    task = ("--task", "count", "--delay", "600")
    for tenant, count in (("cast-a", 1), ("cast-b", 2)):
        for _ in range(count):
            made(hourbell, "due", *task, "--tenant", tenant)
    for tenant, count in (("cast-a", 1), ("cast-b", 2)):
        forecast = hourbell.good("forecast", "--hours", "1", "--tenant", tenant, "-o", "json").json
        assert sum(minute["executions"] for minute in forecast["minutes"]) == count
