"""Commands that call a server: jobs, executions, dead letters, tenants, queues, secrets."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hourbell.cli import dlq
from hourbell.cli.output import Progress
from hourbell.client.calls import Answer, Lost, Request
from hourbell.client.connections import PooledConnections
from hourbell.documents.dead_letters import PurgeDocument
from hourbell.store.embedded import embedded_dsn
from integration.cli.conftest import HOURBELL, Command, Done, ProcessCommand, eventually

YEARLY = ("--cron", "0 3 1 1 *", "--task", "count")


def made(hourbell: Command, name: str, *options: str) -> str:
    """The id of a new job."""
    return hourbell.good("jobs", "create", name, *(options or YEARLY)).out.strip()


def died(hourbell: Command, url: str, name: str) -> tuple[str, str]:
    """A job, and its execution, which is dead."""
    job = made(hourbell, name, "--cron", "0 3 1 1 *", "--url", f"{url}/nope", "--max-retries", "0")
    execution = hourbell.good("jobs", "run", job).out.strip()
    eventually(lambda: status(hourbell, execution) == "DEAD")
    return job, execution


def status(hourbell: Command, execution: str) -> Any:
    return hourbell.good("executions", "get", execution, "-o", "json").json["status"]


@pytest.mark.parametrize(
    "command",
    [
        "jobs get",
        "executions get",
        "executions cancel",
        "dlq get",
        "operations get",
        "groups get",
        "queues get",
        "tenants get",
        "calendars get",
        "calendars delete --yes",
        "secrets delete --yes",
    ],
)
def test_an_empty_id_or_name_is_a_usage_error_of_each_command(
    hourbell_process: Command, command: str
) -> None:
    for name in ("", ".."):
        done = hourbell_process(*command.split(), name)
        assert (done.code, done.out) == (2, "")
        assert f"must be a non-empty string other than '.' and '..', not {name!r}" in done.err


@pytest.mark.parametrize(("kind", "field"), [("tenants", "weight"), ("queues", "rate")])
@pytest.mark.parametrize("exists", [True, False])
def test_settings_that_two_administrators_change_at_once_are_all_kept(
    hourbell: Command,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    field: str,
    exists: bool,
) -> None:
    name = f"both-{exists}"
    if exists:
        hourbell.good(kind, "set", name, f"--{field}", "3")
    send, others = PooledConnections._send, [f"--{field}", "7"]

    def changed_meanwhile(connections: PooledConnections, request: Request) -> Answer | Lost:
        if request.method == "PUT" and others:
            process = ProcessCommand(hourbell.env)
            process.good(kind, "set", name, others.pop(0), others.pop(0))
        return send(connections, request)

    monkeypatch.setattr(PooledConnections, "_send", changed_meanwhile)
    hourbell.good(kind, "set", name, "--max-concurrency", "9")
    shown = hourbell.good(kind, "get", name, "-o", "json").json
    assert shown["max_concurrency"] == 9
    assert (shown["weight"] if field == "weight" else shown["rate_limit"]["per_second"]) == 7


def test_a_job_is_created_shown_changed_paused_resumed_and_deleted(
    hourbell_process: Command,
) -> None:
    hourbell = hourbell_process
    options = (
        "--cron",
        "0 2 * * *",
        "--timezone",
        "Asia/Kolkata",
        "--url",
        "https://example.com/r",
    )
    more = ("--header", "X-A: 1", "--body", '{"a": 1}', "--priority", "high", "--label", "team:b")
    done = hourbell.good("jobs", "create", "nightly", *options, *more)
    job_id = done.out.strip()
    assert re.fullmatch(r"job_[0-9a-z]{13}", job_id)
    assert "Created nightly; it will run at" in done.err
    shown = hourbell.good("jobs", "get", "nightly", "-o", "json").json
    assert shown["job_id"] == job_id
    assert shown["schedule"]["timezone"] == "Asia/Kolkata"
    assert shown["action"]["headers"] == {"X-A": "1"}
    assert shown["action"]["body"] == {"a": 1}
    assert shown["labels"] == {"team": "b"}
    assert "POST https://example.com/r" in hourbell.good("jobs", "get", job_id).out
    change = ("--set", "priority=LOW", "--set", "schedule.cron=0 4 * * *", "--if-version", "1")
    changed = hourbell.good("jobs", "update", job_id, *change, "-o", "json").json
    assert (changed["priority"], changed["schedule"]["cron"]) == ("LOW", "0 4 * * *")
    stale = hourbell("jobs", "update", job_id, *change)
    assert stale.code == 5
    assert hourbell.good("jobs", "pause", "nightly").out.strip() == job_id
    assert "paused" in hourbell.good("jobs", "explain", "nightly").out
    assert "PAUSED" in hourbell.good("jobs", "list", "--status", "paused").out
    hourbell.good("jobs", "resume", "nightly")
    table = hourbell.good("jobs", "next", "nightly", "--count", "2").out.splitlines()
    assert len(table) == 3
    assert table[1].endswith("04:00:00+05:30")
    refused = hourbell("jobs", "delete", "nightly")
    assert "Delete the job nightly?" in refused.err
    assert refused.code == 2
    assert "--yes" in refused.err
    hourbell.good("jobs", "delete", "nightly", "--yes")
    assert hourbell("jobs", "get", "nightly").code == 3
    assert hourbell.good("jobs", "get", job_id, "-o", "json").json["status"] == "CANCELLED"


def test_a_job_runs_once_at_an_instant_or_at_a_wall_time_of_a_zone(hourbell: Command) -> None:
    def at(*options: str) -> Done:
        return hourbell("jobs", "create", "wall", "--task", "t", "-o", "json", "--at", *options)

    berlin = ("--timezone", "Europe/Berlin")
    shown = at("2031-03-30T02:30:00", *berlin).json  # the clocks skip it
    assert shown["next_run_at"] == "2031-03-30T03:00:00+02:00"
    assert at("2031-07-01T02:30:00Z", *berlin).json["next_run_at"] == "2031-07-01T04:30:00+02:00"
    refused = at("2031-07-01T02:30:00")
    assert (refused.code, "timezone" in refused.err) == (1, True)
    assert at("tomorrow").code == 2


def test_many_jobs_come_from_a_file_or_a_pipe(hourbell: Command, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    file.write_text(
        """
        - name: from-yaml
          schedule: {cron: "0 3 1 1 *"}
          action: {type: WEBHOOK, url: "https://example.com/"}
          notifications:
            - on: [failure]
              url: https://example.com/alert
        - name: wrong
          type: RECURRING
        """
    )
    done = hourbell("jobs", "create", "-f", str(file))
    assert done.code == 1
    assert len(done.out.splitlines()) == 1
    assert "job 2 (wrong)" in done.err
    assert "Created 1 of 2 jobs." in done.err
    lines = "\n".join(
        json.dumps(
            {
                "name": f"line-{number}",
                "type": "ONE_TIME",
                "schedule": {"delay_seconds": 86_400},
                "action": {"type": "TASK", "name": "count"},
            }
        )
        for number in range(3)
    )
    assert len(hourbell.good("jobs", "create", "-f", "-", stdin=lines).out.splitlines()) == 3
    listed = hourbell.good("jobs", "list", "--name-prefix", "line-", "-o", "json").json
    assert {job["name"] for job in listed} == {"line-0", "line-1", "line-2"}


def test_a_list_says_that_there_is_more(hourbell: Command) -> None:
    for number in range(3):
        made(hourbell, f"page-{number}")
    done = hourbell.good("jobs", "list", "--name-prefix", "page-", "--limit", "2")
    assert len(done.out.splitlines()) == 3
    assert "There are more than 2." in done.err
    everything = hourbell.good("jobs", "list", "--name-prefix", "page-", "--all")
    assert len(everything.out.splitlines()) == 4


def test_monitors_and_groups_are_made_and_listed_by_name(hourbell: Command) -> None:
    document = {"type": "RECURRING", "schedule": {"cron": "0 3 * * *"}}
    action = {"action": {"type": "WEBHOOK", "url": "https://api.example/"}}
    hourbell.good(
        "jobs", "create", "-f", "-", stdin=json.dumps(document | action | {"name": "watched"})
    )
    monitor = ("monitors", "create", "watched", "--url", "https://api.example/alarm")
    made = hourbell.good(*monitor, "--grace", "60", "-o", "json").json
    (listed,) = hourbell.good("monitors", "list", "-o", "json").json
    assert (listed["monitor_id"], listed["job_name"]) == (made["monitor_id"], "watched")
    assert "watched" in hourbell.good("monitors", "list").out
    hourbell.good("monitors", "delete", made["monitor_id"], "--yes")
    assert hourbell.good("monitors", "list", "-o", "json").json == []
    hourbell.good("groups", "create", "batch", "--url", "https://api.example/done")
    (group,) = hourbell.good("groups", "list", "--state", "OPEN", "-o", "json").json
    assert (group["name"], group["closed_at"]) == ("batch", None)
    assert "OPEN" in hourbell.good("groups", "list").out


def test_a_name_that_two_jobs_have_needs_an_id(hourbell: Command) -> None:
    ids = [made(hourbell, "twin"), made(hourbell, "twin")]
    done = hourbell("jobs", "get", "twin")
    assert done.code == 2
    assert all(one in done.err for one in ids)


def test_executions_are_listed_shown_and_retried(hourbell: Command, url: str) -> None:
    _, execution = died(hourbell, url, "fails")
    table = hourbell.good("executions", "list", "--job", "fails", "--status", "dead").out
    assert execution in table
    assert "DEAD(non_retryable)" in table
    shown = hourbell.good("executions", "get", execution).out
    assert "http_404" in shown
    assert hourbell.good("executions", "retry", execution).out.strip() == execution
    eventually(lambda: status(hourbell, execution) == "DEAD")
    assert hourbell("executions", "cancel", execution).code == 5


def test_a_result_is_shown_as_json(hourbell: Command, url: str) -> None:
    target = ("--url", f"{url}/livez", "--method", "GET")
    job = made(hourbell, "lives", "--cron", "0 3 1 1 *", *target)
    execution = hourbell.good("jobs", "run", job).out.strip()
    eventually(lambda: status(hourbell, execution) == "SUCCEEDED")
    shown = hourbell.good("executions", "get", execution).out
    (line,) = (line for line in shown.splitlines() if line.startswith("Result"))
    assert json.loads(line.removeprefix("Result"))["status"] == 200


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_executions_that_were_changed_before_one_failed_are_printed(
    hourbell: Command, url: str, verb: str
) -> None:
    if verb == "cancel":
        execution = made(hourbell, "waits", "--delay", "86400", "--task", "t").replace("job", "exe")
    else:
        _, execution = died(hourbell, url, "fails")
    ids = (execution, "exe_0000000000000")
    done = hourbell("executions", verb, *ids, "-o", "json")
    assert (done.code, [each["execution_id"] for each in done.json]) == (3, [execution])


@pytest.mark.parametrize(("verb", "counts"), [("replay", "replayed"), ("purge", "purged")])
def test_dead_letters_that_were_changed_before_one_failed_are_counted(
    hourbell: Command, url: str, verb: str, counts: str
) -> None:
    _, execution = died(hourbell, url, "fails")
    yes = ("--yes",) if verb == "purge" else ()
    done = hourbell("dlq", verb, execution, "exe_0000000000000", *yes, "-o", "json")
    assert (done.code, done.json[counts]) == (3, 1)


def test_a_waiting_execution_is_explained_and_cancelled(hourbell: Command) -> None:
    job = made(hourbell, "later", "--delay", "86400", "--task", "count")
    (execution,) = hourbell.good("executions", "list", "--job", job, "-o", "json").json
    explained = hourbell.good("executions", "explain", execution["execution_id"]).out
    assert "not_due" in explained
    assert "not_due" not in hourbell.good("executions", "get", execution["execution_id"]).out
    hourbell.good("executions", "cancel", execution["execution_id"])
    assert status(hourbell, execution["execution_id"]) == "CANCELLED"


def test_an_execution_is_shown_with_what_it_waits_for(hourbell: Command) -> None:
    job = made(hourbell, "unserved", "--delay", "0", "--task", "count")
    (execution,) = hourbell.good("executions", "list", "--job", job, "-o", "json").json
    get = ("executions", "get", execution["execution_id"])
    waits = re.compile(r"^Waiting +no_worker_for_task$", re.MULTILINE)
    eventually(lambda: waits.search(hourbell.good(*get).out) is not None)
    hourbell.good("executions", "cancel", execution["execution_id"])


def test_tail_prints_a_line_for_each_change_until_it_is_interrupted(
    hourbell: Command, url: str
) -> None:
    job = made(
        hourbell, "followed", "--cron", "0 3 1 1 *", "--url", f"{url}/livez", "--method", "GET"
    )
    tail = hourbell.started(
        "executions", "tail", "--job", job, "--status", "succeeded", "-o", "json"
    )
    assert tail.stdout is not None
    assert tail.stderr is not None
    assert tail.stderr.readline().startswith("Following")
    execution = hourbell.good("jobs", "run", job).out.strip()
    line = json.loads(tail.stdout.readline())
    assert (line["execution_id"], line["status"]) == (execution, "SUCCEEDED")
    tail.send_signal(signal.SIGINT)
    _, said = tail.communicate(timeout=30)
    assert tail.returncode == 130
    assert "Traceback" not in said


def test_a_create_says_which_tenant_and_queue_it_has_created(
    hourbell: Command, tmp_path: Path
) -> None:
    names = ("--tenant", "acmee", "--queue", "mial")
    first = hourbell.good("jobs", "create", "first", *YEARLY, *names)
    assert "This created the tenant acmee.\nThis created the queue mial." in first.err
    assert "This created" not in hourbell.good("jobs", "create", "again", *YEARLY, *names).err
    file = tmp_path / "jobs.json"
    job = {"type": "RECURRING", "schedule": {"cron": "0 3 1 1 *"}, "tenant_id": "globexx"}
    jobs = [{"name": "j", "action": {"type": "TASK", "name": "t"}, **job}] * 2
    file.write_text(json.dumps(jobs))
    many = hourbell.good("jobs", "create", "--file", str(file))
    assert many.err.count("This created the tenant globexx.") == 1


def test_a_create_that_is_repeated_with_its_key_creates_nothing_twice(
    hourbell: Command, tmp_path: Path
) -> None:
    file = tmp_path / "jobs.json"
    job = {"schedule": {"every_seconds": 600}, "action": {"type": "TASK", "name": "count"}}
    file.write_text(json.dumps([{**job, "name": f"repeated-{number}"} for number in range(3)]))
    command = ("jobs", "create", "-f", str(file), "--idempotency-key", "k1")
    first = hourbell.good(*command)
    assert "Created 3 of 3 jobs." in first.err
    assert hourbell.good(*command).out == first.out
    one = ("jobs", "create", "single", *YEARLY, "--idempotency-key", "k2")
    assert hourbell.good(*one).out == hourbell.good(*one).out


def test_a_job_whose_name_looks_like_an_id_is_found_by_it(hourbell: Command) -> None:
    job = made(hourbell, "job_nightly")
    assert hourbell.good("jobs", "get", "job_nightly", "-o", "json").json["job_id"] == job
    assert hourbell("jobs", "get", "job_weekly").code == 3


def test_a_wrong_name_among_several_changes_nothing(hourbell: Command) -> None:
    made(hourbell, "survives")
    assert hourbell("jobs", "delete", "--yes", "survives", "is-not-there").code == 3
    assert hourbell.good("jobs", "get", "survives", "-o", "json").json["status"] == "SCHEDULED"


def test_tail_follows_failures(hourbell: Command, url: str) -> None:
    job = made(
        hourbell, "fails", "--cron", "0 3 1 1 *", "--url", f"{url}/nope", "--max-retries", "0"
    )
    tail = hourbell.started("executions", "tail", "--job", job, "--status", "failed", "-o", "json")
    try:
        assert tail.stdout is not None
        assert tail.stderr is not None
        assert tail.stderr.readline().startswith("Following")
        execution = hourbell.good("jobs", "run", job).out.strip()
        line = json.loads(tail.stdout.readline())
        assert (line["execution_id"], line["status"]) == (execution, "DEAD")
    finally:
        tail.send_signal(signal.SIGINT)
        tail.communicate(timeout=30)


def test_dead_letters_are_listed_replayed_and_purged(hourbell: Command, url: str) -> None:
    job, execution = died(hourbell, url, "dies")
    assert execution in hourbell.good("dlq", "list", "--job", job).out
    assert "http_404" in hourbell.good("dlq", "get", execution).out
    assert hourbell("dlq", "replay").code == 2
    for verb in ("replay", "purge"):
        wrong = hourbell("dlq", verb, "nonsense", "--yes")
        assert (wrong.code, wrong.out) == (3, "")
        assert wrong.err.startswith("hourbell: 'nonsense' is not an execution id.")
    assert hourbell("dlq", "replay", "--job", job).code == 2  # nobody to ask
    replayed = hourbell.good("dlq", "replay", "--job", job, "--yes", "-o", "json").json
    assert replayed == {"replayed": 1, "left": 0}
    eventually(lambda: execution in hourbell.good("dlq", "list", "--job", job).out)
    hourbell.good("dlq", "replay", execution)
    eventually(lambda: execution in hourbell.good("dlq", "list", "--job", job).out)
    purged = hourbell.good("dlq", "purge", "--job", job, "--yes", "-o", "json").json
    assert purged == {"purged": 1}
    assert hourbell.good("dlq", "list", "--job", job, "-o", "json").json == []


class Waits:
    """In the place of the module `time`: how long a command would have slept."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


def test_dead_letters_are_replayed_and_purged_in_pages_at_a_rate(
    hourbell: Command, up: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without a server, so that the calls are made in this process, and a page can be small.
    dsn = embedded_dsn(Path(up["HOURBELL_DATA_DIR"]))
    direct = Command(up | {"HOURBELL_DATABASE_URL": dsn})
    monkeypatch.setattr(PurgeDocument.limit, "default", 2)
    waits, shown = Waits(), list[int]()
    monkeypatch.setattr(dlq, "time", waits)
    monkeypatch.setattr(Progress, "show", lambda _, done: shown.append(done))
    job = {
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": 0},
        "action": {"type": "WEBHOOK", "url": f"{url}/nope"},
        "tenant_id": "pages",
    }
    many = json.dumps([job | {"name": f"page-{number}"} for number in range(5)])
    hourbell.good("jobs", "create", "-f", "-", stdin=many)
    chosen = ("--tenant", "pages", "--yes", "-o", "json")

    def all_dead() -> bool:
        return len(hourbell.good("dlq", "list", "--tenant", "pages", "-o", "json").json) == 5

    eventually(all_dead)
    shown.clear()  # of the creation
    replayed = direct.good("dlq", "replay", *chosen, "--rate", "1")
    assert replayed.json == {"replayed": 5, "left": 0}
    assert shown == [2, 4]
    # The second of a page is due a second after the first; the next page waits for it. A slow answer shortens the wait.
    assert len(waits.seconds) == 2
    assert 0 < max(waits.seconds) <= 1
    eventually(all_dead)
    purged = direct.good("dlq", "purge", *chosen)
    assert purged.json == {"purged": 5}
    assert shown == [2, 4, 2, 4]


@pytest.mark.parametrize("output", ["table", "json"])
def test_a_replay_that_leaves_dead_letters_out_is_refused(
    hourbell: Command, url: str, output: str
) -> None:
    job, _ = died(hourbell, url, "deleted")
    hourbell.good("jobs", "delete", "--yes", job)
    done = hourbell("dlq", "replay", "--job", job, "--yes", "-o", output)
    assert done.code == 1
    assert "1 were not replayed: 1 whose job was deleted." in done.err
    if output == "json":
        reasons = [{"code": "job_deleted", "count": 1}]
        assert done.json == {"replayed": 0, "left": 1, "left_reasons": reasons}
    hourbell.good("dlq", "purge", "--job", job, "--yes")


def test_dead_letters_of_an_error_and_jobs_of_a_label_are_left_to_an_operation(
    hourbell: Command, url: str
) -> None:
    job, execution = died(hourbell, url, "dies-alike")
    (group,) = hourbell.good("dlq", "groups", "--job", job, "-o", "json").json["items"]
    assert (group["count"], group["kind"]) == (1, "http_404")
    assert group["fingerprint"] in hourbell.good("dlq", "groups", "--job", job).out
    chosen = ("--job", job, "--fingerprint", group["fingerprint"])
    assert execution in hourbell.good("dlq", "list", *chosen).out
    assert hourbell("dlq", "purge", execution, "--background", "--yes").code == 2
    purging = hourbell.good("dlq", "purge", *chosen, "--background", "--yes").out.strip()
    eventually(lambda: "DONE" in hourbell.good("operations", "get", purging).out)
    assert hourbell.good("dlq", "list", "--job", job, "-o", "json").json == []

    made(hourbell, "labelled", *YEARLY, "--label", "kind:bulk")
    selected = ("--label", "kind:bulk", "--background")
    pausing = hourbell.good("jobs", "pause", *selected, "--reason", "provider down").out.strip()
    eventually(lambda: "DONE" in hourbell.good("operations", "get", pausing).out)
    shown = hourbell.good("jobs", "get", "labelled", "-o", "json").json
    assert shown["paused"]["reason"] == "provider down"
    assert hourbell("jobs", "resume", "labelled", "--background").code == 2
    resuming = hourbell.good("jobs", "resume", *selected, "--reason", "provider down").out.strip()
    eventually(lambda: "1 of 1" in hourbell.good("operations", "get", resuming).out)
    listed = hourbell.good("operations", "list", "-o", "json").json
    assert [each["operation_id"] for each in listed[:3]] == [resuming, pausing, purging]
    assert "label=kind:bulk" in hourbell.good("operations", "list").out
    stopped = hourbell.good("operations", "stop", pausing)
    assert "already ended: DONE" in stopped.err
    assert hourbell("operations", "get", "ops_0000000000000").code == 3


def test_settings_of_tenants_and_queues_that_are_not_given_stay(hourbell: Command) -> None:
    hourbell.good("tenants", "set", "acme", "--weight", "2", "--rate", "5", "--burst", "3")
    hourbell.good("tenants", "set", "acme", "--max-jobs", "10")
    shown = hourbell.good("tenants", "get", "acme", "-o", "json").json
    assert (shown["weight"], shown["max_jobs"]) == (2.0, 10)
    assert shown["rate_limit"] == {"per_second": 5.0, "burst": 3}
    hourbell.good("tenants", "set", "acme", "--unset", "rate")
    table = hourbell.good("tenants", "list").out
    assert re.search(r"acme +2 +- +- +10", table)
    assert hourbell("tenants", "set", "acme", "--unset", "nothing").code == 2
    hourbell.good("queues", "set", "mail", "--max-concurrency", "3")
    assert re.search(r"mail +3", hourbell.good("queues", "list").out)
    assert "Workers" in hourbell.good("queues", "get", "mail").out


def test_the_value_of_a_secret_comes_from_stdin_and_is_never_shown(hourbell: Command) -> None:
    done = hourbell.good("secrets", "set", "token", stdin="s3cret-value\n")
    assert "s3cret" not in done.out + done.err
    assert hourbell.good("secrets", "set", "sign", "--generate").out.startswith("whsec_")
    assert "token" in hourbell.good("secrets", "list").out
    hourbell.good("secrets", "delete", "token", "--yes")
    assert "token" not in hourbell.good("secrets", "list").out
    assert hourbell("secrets", "set", "empty").code == 2


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("jobs", "get", "job_0000000000000"), 3, "There is no job"),
        (("jobs", "create", "x", "--cron", "61 * * * *", "--task", "t"), 1, "schedule.cron"),
        (("jobs", "create", "x", "--task", "t"), 2, "Give exactly one of --cron"),
        (("jobs", "create", "x", "--delay", "1"), 2, "Give exactly one of --url and --task"),
        (("jobs", "create", "-f", "/no/such/file"), 2, "Cannot read"),
        (("jobs", "list", "--status", "sleeping"), 2, "'sleeping' is not one of"),
        (("jobs", "list", "--profile", "nowhere"), 2, "There is no profile nowhere"),
    ],
)
def test_an_error_is_a_sentence_and_an_exit_code(
    hourbell: Command, args: tuple[str, ...], code: int, says: str
) -> None:
    done = hourbell(*args)
    assert done.code == code
    assert says in done.err
    assert done.out == ""


def test_no_server_is_reported_with_what_to_do(hourbell: Command) -> None:
    done = hourbell("jobs", "list", HOURBELL_PORT="1")
    assert done.code == 6
    assert done.err == (
        "hourbell: No response from http://127.0.0.1:1: connection refused. Start a server with "
        "`hourbell up`, or choose one with HOURBELL_URL or --profile.\n"
    )


def test_url_and_key_come_from_the_environment_or_a_profile(
    hourbell: Command, url: str, config: Path
) -> None:
    env = {"HOURBELL_PORT": "1"}
    assert hourbell.good("jobs", "list", HOURBELL_URL=url, **env).code == 0
    config.write_text(
        f'[profiles.default]\nurl = "{url}"\n[profiles.other]\nurl = "http://127.0.0.1:1"\n'
    )
    assert hourbell.good("jobs", "list", **env).code == 0
    assert hourbell("jobs", "list", "--profile", "other").code == 6
    assert hourbell("jobs", "list", HOURBELL_PROFILE="other").code == 6
    assert hourbell.good("jobs", "list", HOURBELL_PROFILE="other", HOURBELL_URL=url).code == 0
    config.write_text("[profiles.default]\naddress = 1\n")
    done = hourbell("jobs", "list")
    assert done.code == 2
    assert "is not valid" in done.err


def test_a_terminal_gets_colours_and_a_table_that_fits_and_a_pipe_gets_neither(
    hourbell: Command,
) -> None:
    name = "a-rather-long-name-of-a-job-that-does-not-fit-into-a-narrow-terminal"
    made(hourbell, name)
    command = ("jobs", "list", "--name-prefix", "a-rather")
    seen = hourbell.on_terminal(*command, columns=80)
    assert "\x1b[36mSCHEDULED" in seen
    for columns in (60, 80, 120):
        plain = hourbell.on_terminal(*command, columns=columns, NO_COLOR="1")
        assert "\x1b" not in plain
        assert all(len(line) <= columns for line in plain.splitlines())
        assert "…" in plain
    piped = hourbell.good(*command, COLUMNS="60").out
    assert name in piped
    assert "\x1b" not in piped


def test_a_terminal_that_shows_no_colours_gets_none(hourbell: Command) -> None:
    made(hourbell, "colourless")
    for command in (("jobs", "list"), ("jobs", "get", "colourless"), ("doctor",)):
        assert "\x1b" in hourbell.on_terminal(*command)
        for how in ({"TERM": "dumb"}, {"NO_COLOR": "1"}):
            assert "\x1b" not in hourbell.on_terminal(*command, **how)


def test_a_terminal_shows_how_far_long_work_is(hourbell: Command, tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    job = {"schedule": {"every_seconds": 86_400}, "action": {"type": "TASK", "name": "count"}}
    many = [job | {"name": f"long-{n}", "labels": {"kind": "long"}} for n in range(2_001)]
    file.write_text(json.dumps(many))
    seen = hourbell.on_terminal("jobs", "create", "-f", str(file))
    assert re.search(r"Creating jobs  \[ +\]  0 of 2,001", seen)
    assert re.search(r"Creating jobs  \[#{35,39} +\]  2,000 of 2,001", seen)
    assert re.search(r"\rjob_\w{13}\nCreated 2,001 of 2,001 jobs.\n$", seen)
    for verb in ("pause", "resume"):
        seen = hourbell.on_terminal("jobs", verb, "--label", "kind:long")
        assert f"Jobs {verb}d: 2,000" in seen
        assert seen.endswith(f"\r2,001 jobs were {verb}d.\n")
    file.write_text(json.dumps({"owner": "long", "jobs": [job | {"name": n} for n in "abc"]}))
    seen = hourbell.on_terminal("apply", "-f", str(file))
    assert [f"{n} of 3" in seen for n in range(4)] == [True, True, True, False]
    assert "\r" not in hourbell.good("jobs", "pause", "--label", "kind:long").err


def test_what_a_terminal_would_obey_is_shown_and_not_sent(hourbell: Command, url: str) -> None:
    body = json.dumps({"text": "\u001b]0;title\u0007 \u202e"})
    made(hourbell, "escapes", "--cron", "0 3 1 1 *", "--url", f"{url}/livez", "--body", body)
    seen = hourbell.on_terminal("jobs", "get", "escapes", NO_COLOR="1")
    assert "\x1b" not in seen
    assert "\u202e" not in seen
    assert "title" in seen


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands_options_and_profiles(
    hourbell: Command, config: Path, shell: str
) -> None:
    assert "_HOURBELL_COMPLETE" in hourbell.good("completion", shell).out
    config.write_text('[profiles.prod]\nurl = "https://example.com"\n')
    words = {
        "COMP_WORDS": "hourbell jobs list --profile p",
        "COMP_CWORD": "p" if shell == "fish" else "4",
    }
    done = hourbell(_HOURBELL_COMPLETE=f"{shell}_complete", **words)
    assert "prod" in done.out
    words = {"COMP_WORDS": "hourbell ex", "COMP_CWORD": "ex" if shell == "fish" else "1"}
    done = hourbell(_HOURBELL_COMPLETE=f"{shell}_complete", **words)
    assert "executions" in done.out


def test_bash_completes_what_a_user_types(hourbell: Command) -> None:
    typed = """
eval "$(hourbell completion bash)"
COMP_WORDS=(hourbell jobs ex) COMP_CWORD=2
_hourbell_completion hourbell
echo "${COMPREPLY[@]}"
"""
    path = f"{HOURBELL.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", typed], env=hourbell.env | {"PATH": path}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("explain\n", "")


def test_a_calendar_is_set_shown_replaced_and_deleted(hourbell: Command) -> None:
    assert hourbell.good("calendars", "list").err == "There are no calendars.\n"
    done = hourbell.good("calendars", "set", "holidays", "2031-12-25", "2031-01-01")
    assert done.err == "holidays of tenant default has 2 dates.\n"
    dates = hourbell.good("calendars", "get", "holidays").out
    assert dates == "2031-01-01\n2031-12-25\n"
    hourbell.good("calendars", "set", "bank", "-", "--tenant", "t", stdin=dates)
    (bank,) = hourbell.good("calendars", "list", "--tenant", "t", "-o", "json").json
    assert (bank["name"], bank["dates"]) == ("bank", dates.split())
    hourbell.good("calendars", "set", "holidays", "2031-05-01")
    assert "holidays  default      1  2031-05-01" in hourbell.good("calendars", "list").out
    for args, code, says in (
        (("set", "holidays", "1 May"), 2, "'1 May' is not a date such as 2027-12-25"),
        (("set", "a b", "2031-05-01"), 1, "name"),
        (("get", "nope"), 3, "nope"),
        (("delete", "holidays"), 2, "--yes"),
    ):
        refused = hourbell("calendars", *args)
        assert (refused.code, says in refused.err) == (code, True), refused.err
    hourbell.good("calendars", "delete", "holidays", "--yes")
    assert hourbell("calendars", "get", "holidays").code == 3


def test_a_group_is_created_filled_closed_and_shown(hourbell: Command, url: str) -> None:
    jobs = [
        hourbell.good("jobs", "create", f"g{n}", "--delay", "3600", "--url", f"{url}/livez").out
        for n in range(2)
    ]
    group = hourbell.good("groups", "create", "both", "--url", f"{url}/livez").out.strip()
    assert group.startswith("grp_")
    assert "has 1 member." in hourbell.good("groups", "add", group, jobs[0].strip()).err
    assert "has 2 members" in hourbell.good("groups", "add", group, "-", stdin="".join(jobs)).err
    assert hourbell("groups", "add", group, "both").code == 2
    assert hourbell.good("groups", "close", group, "-o", "json").json["closed_at"] is not None
    assert hourbell("groups", "add", group, jobs[0].strip()).code == 5
    assert "2; 0 ended" in hourbell.good("groups", "get", group).out
    assert hourbell("groups", "get", "grp_0ahr000000000").code == 3


def test_a_name_is_that_of_the_job_that_was_put_under_it(hourbell: Command, tmp_path: Path) -> None:
    file = tmp_path / "jobs.yaml"
    job = "{name: mine, schedule: {every_seconds: 60}, action: {type: TASK, name: t}}"
    file.write_text(f"owner: me\njobs: [{job}]\n")
    hourbell.good("apply", "-f", str(file))
    hourbell.good("jobs", "create", "mine", "--every", "60", "--task", "t")
    shown = hourbell.good("jobs", "get", "mine", "-o", "json").json
    assert shown["labels"]["hourbell.owner"] == "me"


def test_many_jobs_are_paused_and_resumed_at_once(hourbell: Command) -> None:
    for number in range(3):
        hourbell.good(
            "jobs", "create", f"b{number}", "--every", "60", "--task", "t", "--label", "team:bulk"
        )
    paused = hourbell.good("jobs", "pause", "--label", "team:bulk", "--reason", "a b")
    assert "3 jobs were paused." in paused.err
    assert "a b" in hourbell.good("jobs", "explain", "b0").out
    hourbell.good("jobs", "resume", "b0")
    one = hourbell.good("jobs", "pause", "--label", "team:bulk", "--reason", "a b")
    assert "1 job was paused." in one.err
    assert hourbell.good("jobs", "resume", "--reason", "b", "-o", "json").json["resumed"] == 0
    resumed = hourbell.good("jobs", "resume", "--reason", "a b", "-o", "json").json
    assert resumed == {"resumed": 3, "left": 0}
    assert hourbell("jobs", "pause").code == 2
    assert hourbell("jobs", "pause", "b0", "--all").code == 2


@pytest.mark.parametrize("selected", ["--tenant bulk", "--queue bulk", "--all"])
def test_jobs_of_a_tenant_of_a_queue_or_all_are_paused_until_a_time(
    hourbell: Command, selected: str
) -> None:
    inside = made(hourbell, "in-bulk", *YEARLY, "--tenant", "bulk", "--queue", "bulk")
    outside = made(hourbell, "out-of-bulk")
    why = ("--reason", selected, "--until", "2031-01-01T00:00:00Z")
    hourbell.good("jobs", "pause", *selected.split(), *why)

    def paused(job: str) -> Any:
        return hourbell.good("jobs", "get", job, "-o", "json").json.get("paused")

    assert paused(inside)["reason"] == selected
    assert paused(inside)["until"] == "2031-01-01T00:00:00Z"
    assert (paused(outside) is not None) == (selected == "--all")
    hourbell.good("jobs", "resume", *selected.split(), "--reason", selected)
    assert (paused(inside), paused(outside)) == (None, None)
    hourbell.good("jobs", "delete", "--yes", inside, outside)


def test_executions_are_listed_by_statuses_reason_queue_and_label(
    hourbell: Command, url: str
) -> None:
    options = ("--cron", "0 3 1 1 *", "--url", f"{url}/nope", "--max-retries", "0")
    job = made(hourbell, "filtered", *options, "--queue", "odd", "--label", "kind:odd")
    execution = hourbell.good("jobs", "run", job).out.strip()
    eventually(lambda: status(hourbell, execution) == "DEAD")
    waiting = made(hourbell, "waits", "--delay", "86400", "--task", "t", "--queue", "odd")
    elsewhere = made(hourbell, "waits", "--delay", "86400", "--task", "t")

    def found(*filters: str) -> list[str]:
        listed = hourbell.good("executions", "list", *filters, "-o", "json").json
        return [each["execution_id"] for each in listed]

    own = waiting.replace("job_", "exe_")
    assert found("--queue", "odd") == [own, execution]
    assert found("--queue", "odd", "--status", "dead", "--status", "scheduled") == [own, execution]
    assert found("--queue", "odd", "--status", "dead") == [execution]
    assert found("--label", "kind:odd") == [execution]
    assert found("--label", "kind:odd", "--reason", "non_retryable") == [execution]
    assert found("--label", "kind:odd", "--reason", "retries_exhausted") == []
    hourbell.good("jobs", "delete", "--yes", waiting, elsewhere)


def test_a_bench_measures_the_installation_and_leaves_nothing(hourbell: Command) -> None:
    measured = hourbell.good("bench", "--jobs", "200", "-o", "json")
    assert all(each["value"] > 0 for each in measured.json)
    assert "not the most that Hourbell can do" in measured.err
    assert (
        hourbell.good("executions", "list", "--tenant", "hourbell-bench", "-o", "json").json == []
    )
    nothing = hourbell("bench", HOURBELL_DATA_DIR="/nonexistent")
    assert (nothing.code, "hourbell up" in nothing.err) == (2, True)
    lost = hourbell("bench", HOURBELL_DATABASE_URL="postgresql://u@127.0.0.1:1/x")
    assert (lost.code, "and that PostgreSQL is running" in lost.err) == (2, True)


def test_tasks_are_listed_with_their_runs_and_what_waits(hourbell: Command) -> None:
    job = made(hourbell, "nobody-serves-it", "--cron", "0 3 1 1 *", "--task", "unserved-task")
    hourbell.good("jobs", "run", job)

    def unserved() -> Any:
        found = hourbell.good("tasks", "list", "--order", "waiting", "-o", "json").json
        return next((item for item in found["items"] if item["task"] == "unserved-task"), None)

    eventually(lambda: (unserved() or {}).get("waiting") == 1)
    item = unserved()
    assert (item["workers"], item["runs"], item["duration_ms"]) == (0, 0, None)
    assert "unserved-task" in hourbell.good("tasks", "list").out


def test_keys_are_managed_over_the_api_when_a_server_is_chosen(
    hourbell: Command, url: str, config: Path
) -> None:
    # Last of its file: from here on the server requires keys.
    none = hourbell.good("keys", "list")
    assert (none.out, none.err) == ("", "There are no API keys.\n")
    admin = hourbell.good("keys", "create", "--role", "admin", "--name", "first").out.strip()
    denied = hourbell("jobs", "list")
    assert denied.code == 4
    assert "Set HOURBELL_API_KEY" in denied.err
    assert hourbell.good("jobs", "list", HOURBELL_API_KEY=admin).code == 0
    config.write_text(f'[profiles.prod]\nurl = "{url}"\napi_key = "{admin}"\n')
    prod = ("--profile", "prod")
    viewer = hourbell.good("keys", "create", "--role", "viewer", "--name", "v", *prod).out.strip()
    refused = hourbell("jobs", "create", "x", *YEARLY, HOURBELL_API_KEY=viewer)
    assert refused.code == 4
    for how in (prod, ()):  # over the API and in the database
        options = ("--role", "viewer", "--name", "as-json", "-o", "json", *how)
        as_json = hourbell.good("keys", "create", *options).json
        hourbell.good("jobs", "list", HOURBELL_API_KEY=as_json.pop("key"))
        assert as_json in hourbell.good("keys", "list", "-o", "json", *how).json
    by_api = hourbell.good("keys", "list", "-o", "json", *prod).json
    assert {key["name"] for key in by_api} == {"first", "v", "as-json"}
    assert hourbell.good("keys", "list", "-o", "json").json == by_api  # in the database
    (key_id,) = [key["key_id"] for key in by_api if key["name"] == "v"]
    revoked = hourbell.good("keys", "revoke", key_id, *prod)
    assert (revoked.out, revoked.err) == (f"{key_id}\n", f"Revoked {key_id}.\n")
    again = [hourbell.good("keys", "revoke", key_id, "-o", "json", *how).json for how in (prod, ())]
    assert again[0] == again[1]
    assert again[0]["revoked_at"] is not None
    unknown = "key_" + "0" * (len(key_id) - len("key_"))
    codes = {hourbell("keys", "revoke", unknown, *how).code for how in (prod, ())}
    assert codes == {3}  # over the API and in the database
