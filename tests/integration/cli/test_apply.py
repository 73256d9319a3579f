"""`hourbell apply`: the plan, what it does, and that a second time does nothing."""

import re
import urllib.request
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from answers import opened
from hourbell.cli import apply
from hourbell.client import SyncClient
from integration.cli.conftest import Command, eventually

TWO = """
owner: {owner}
jobs:
  - name: {owner}-nightly
    schedule: {{cron: "0 2 * * *", timezone: Asia/Kolkata}}
    action:
      type: WEBHOOK
      url: https://example.com/report
      headers: {{X-Kind: nightly}}
      body: {{on: yes, at: 12:30}}
    retry_policy: {{delays_seconds: [60, 300]}}
    labels: {{team: billing}}
    notifications:
      - {{on: [failure], url: https://example.com/alert}}
  - name: {owner}-often
    schedule: {{every_seconds: 600}}
    action: {{type: TASK, name: count, payload: {{a: 1}}}}
"""


class File:
    """A file with jobs of an owner of its own."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path, self.owner = path, owner
        self.write(TWO.format(owner=owner))

    def write(self, text: str) -> None:
        self.path.write_text(text)

    def replace(self, old: str, new: str) -> None:
        text = self.path.read_text()
        assert old in text
        self.write(text.replace(old, new))

    @property
    def args(self) -> tuple[str, ...]:
        return "apply", "-f", str(self.path)


@pytest.fixture
def file(tmp_path: Path, request: pytest.FixtureRequest) -> File:
    return File(tmp_path / "jobs.yaml", re.sub(r"\W", "-", request.node.name)[5:45].strip("-"))


def changes(hourbell: Command, file: File, *args: str) -> dict[str, Any]:
    shown = hourbell.good(*file.args, "-o", "json", *args).json
    return {one["name"].removeprefix(f"{file.owner}-"): one["change"] for one in shown}


def jobs(hourbell: Command, file: File) -> dict[str, Any]:
    label = f"hourbell.owner:{file.owner}"
    listed = hourbell.good("jobs", "list", "--label", label, "--all", "-o", "json").json
    return {job["name"].removeprefix(f"{file.owner}-"): job for job in listed}


def test_a_dry_run_changes_nothing_apply_creates_and_a_second_time_does_nothing(
    hourbell_process: Command, file: File
) -> None:
    hourbell = hourbell_process
    plan = hourbell.good(*file.args, "--dry-run")
    assert f"+ {file.owner}-nightly  create: 0 2 * * * Asia/Kolkata" in plan.out
    assert "2 to create" in plan.err
    assert "nothing was changed" in plan.err
    assert jobs(hourbell, file) == {}
    assert changes(hourbell, file) == {"nightly": "create", "often": "create"}
    made = jobs(hourbell, file)
    assert made["nightly"]["action"]["body"] == {"on": "yes", "at": "12:30"}
    assert made["nightly"]["notifications"][0]["on"] == ["failure"]
    assert changes(hourbell, file) == {"nightly": "keep", "often": "keep"}
    again = hourbell.good(*file.args)
    assert again.out == ""
    assert "2 unchanged" in again.err
    assert jobs(hourbell, file) == made


def test_a_change_of_the_file_is_shown_field_by_field_and_applied(
    hourbell: Command, file: File
) -> None:
    hourbell.good(*file.args)
    file.replace("0 2 * * *", "30 2 * * *")
    file.replace("delays_seconds: [60, 300]", "max_retries: 1")
    shown = hourbell.good(*file.args).out
    assert f"~ {file.owner}-nightly  change" in shown
    assert "    schedule.cron: 0 2 * * * → 30 2 * * *" in shown
    assert "    retry_policy.delays_seconds: [60,300] → none" in shown
    assert "drift" not in shown
    job = jobs(hourbell, file)["nightly"]
    assert (job["schedule"]["cron"], job["version"]) == ("30 2 * * *", 2)


def test_a_change_by_other_means_is_reported_as_drift_and_undone(
    hourbell: Command, file: File
) -> None:
    hourbell.good(*file.args)
    hourbell.good("jobs", "update", f"{file.owner}-often", "--set", "priority=CRITICAL")
    plan = hourbell.good(*file.args, "--dry-run")
    assert re.search(r"~ \S+-often +drift: changed by \S+ at 20", plan.out)
    assert "    priority: CRITICAL → MEDIUM" in plan.out
    assert "1 drifted" in plan.err
    hourbell.good(*file.args)
    assert jobs(hourbell, file)["often"]["priority"] == "MEDIUM"


def test_a_paused_job_stays_paused(hourbell: Command, file: File) -> None:
    hourbell.good(*file.args)
    hourbell.good("jobs", "pause", f"{file.owner}-often")
    assert "is paused" in hourbell.good(*file.args).out
    file.replace("every_seconds: 600", "every_seconds: 900")
    hourbell.good(*file.args)
    job = jobs(hourbell, file)["often"]
    assert (job["status"], job["schedule"]["every_seconds"]) == ("PAUSED", 900)


def test_a_job_that_left_the_file_is_kept_until_prune_and_of_this_owner_only(
    hourbell: Command, file: File, tmp_path: Path
) -> None:
    other = File(tmp_path / "other.yaml", "somebody-else")
    hourbell.good(*other.args)
    hourbell.good(*file.args)
    file.write(file.path.read_text().partition(f"  - name: {file.owner}-often")[0])
    plan = hourbell.good(*file.args)
    assert f"? {file.owner}-often" in plan.out
    assert "delete it with --prune" in plan.out
    assert set(jobs(hourbell, file)) == {"nightly", "often"}
    assert f"- {file.owner}-often" in hourbell.good(*file.args, "--prune", "--dry-run").out
    assert changes(hourbell, file, "--prune") == {"nightly": "keep", "often": "delete"}
    assert set(jobs(hourbell, file)) == {"nightly"}
    assert set(jobs(hourbell, other)) == {"nightly", "often"}
    assert changes(hourbell, file, "--prune") == {"nightly": "keep"}


def test_jobs_of_another_owner_are_not_taken_over(hourbell: Command, file: File) -> None:
    hourbell.good(*file.args)
    file.replace(f"owner: {file.owner}\n", "owner: thief\n")
    refused = hourbell(*file.args)
    assert refused.code == 5
    assert f"belongs to the owner {file.owner}, not thief" in refused.err


def test_the_owner_may_be_named_on_the_command_line(hourbell: Command, file: File) -> None:
    file.replace(f"owner: {file.owner}\n", "")
    unnamed = hourbell(*file.args)
    assert (unnamed.code, "names no owner" in unnamed.err) == (2, True)
    owner = ("--owner", file.owner)
    assert changes(hourbell, file, *owner) == {"nightly": "create", "often": "create"}
    assert set(jobs(hourbell, file)) == {"nightly", "often"}
    file.write("jobs: []")
    assert changes(hourbell, file, "--prune", "--owner", "somebody-without-jobs") == {}
    assert set(jobs(hourbell, file)) == {"nightly", "often"}
    assert changes(hourbell, file, "--prune", *owner) == {"nightly": "delete", "often": "delete"}
    assert jobs(hourbell, file) == {}
    file.write("owner: a\njobs: []")
    other = hourbell(*file.args, *owner)
    assert (other.code, f"belongs to the owner a, not {file.owner}" in other.err) == (2, True)
    empty = hourbell(*file.args, "--owner", "")
    assert (empty.code, "The owner '' is not valid" in empty.err) == (2, True)


def test_defaults_of_a_queue_are_no_difference(hourbell: Command, file: File) -> None:
    hourbell.good("queues", "set", "slow", "--default-timeout-seconds", "77")
    file.replace(
        "schedule: {every_seconds: 600}", "queue: slow\n    schedule: {every_seconds: 600}"
    )
    hourbell.good(*file.args)
    assert jobs(hourbell, file)["often"]["timeout_seconds"] == 77
    assert changes(hourbell, file) == {"nightly": "keep", "often": "keep"}


def test_a_credential_cannot_be_compared_and_is_sent_each_time_without_a_new_version(
    hourbell: Command, file: File
) -> None:
    file.replace("X-Kind: nightly", "Authorization: Bearer abc")
    hourbell.good(*file.args)
    assert "cannot be compared" in hourbell.good(*file.args).out
    assert jobs(hourbell, file)["nightly"]["version"] == 1
    file.replace("Bearer abc", "Bearer new")
    hourbell.good(*file.args)
    assert jobs(hourbell, file)["nightly"]["version"] == 2
    assert "new" not in str(jobs(hourbell, file)["nightly"]["action"])


def test_a_one_time_job_whose_time_has_passed_does_not_run_again(
    hourbell: Command, file: File
) -> None:
    file.replace("schedule: {every_seconds: 600}", 'schedule: {at: "2026-01-01T00:00:00Z"}')
    assert changes(hourbell, file)["often"] == "passed"
    assert set(jobs(hourbell, file)) == {"nightly"}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("jobs: []", "names no owner"),
        ("owner: a\njob: []", "must contain `jobs:`"),
        ("owner: a\njobs: []\nname: x", "has the unknown field name"),
        (
            "owner: a\njobs:\n  - name: x\n    name: y",
            "line 4, column 5: the key 'name' appears twice",
        ),
        ("owner: a\njobs: [", "is not valid YAML: line 2, column 8"),
        ("", "is empty. To apply no jobs, write `jobs: []`."),
        ("owner: a b\njobs: []", "The owner 'a b' is not valid. It must be 1 to 64"),
        ("owner: a\njobs: [{name: x, action: {type: TASK, name: t}}]", "x: schedule: is required"),
        ("owner: a\njobs: !!python/object/apply:os.system [ls]", "is not valid YAML"),
        ("owner: a\njobs: [5]", "job 1: must be an object"),
        ("owner: a\njobs: [{name: ''}]", "job 1: name: must"),
        ("owner: a\njobs: [{name: x, schedule: {delay_seconds: 5}}]", "would run again"),
        ("owner: a\njobs: [{name: x, schedule: {cron: '61 * * * *'}}]", "x: schedule.cron: minute"),
        (
            "owner: a\njobs: [{name: x/y, schedule: {cron: '1 * * * *'}, action: {type: TASK, name: t}}]",
            "must not contain /",
        ),
    ],
)
def test_a_file_that_is_not_valid_is_explained_and_nothing_changes(
    hourbell: Command, file: File, text: str, says: str
) -> None:
    file.write(text)
    done = hourbell(*file.args)
    assert done.code == 2
    assert says in done.err.replace("\n", " "), done.err


SAME_NAME = """
owner: {owner}
jobs:
  - {{name: {owner}-report, schedule: {{every_seconds: 600}}, action: {{type: TASK, name: count}}}}
  - name: {owner}-report
    tenant_id: acme
    schedule: {{every_seconds: 900}}
    action: {{type: TASK, name: count}}
"""


def test_jobs_of_one_name_in_two_tenants_are_told_apart(hourbell: Command, file: File) -> None:
    def tenants() -> dict[str, Any]:
        label = f"hourbell.owner:{file.owner}"
        listed = hourbell.good("jobs", "list", "--label", label, "--all", "-o", "json").json
        return {job["tenant_id"]: job["schedule"]["every_seconds"] for job in listed}

    file.write(SAME_NAME.format(owner=file.owner))
    hourbell.good(*file.args)
    assert tenants() == {"default": 600, "acme": 900}
    assert hourbell.good(*file.args, "--prune").out == ""
    assert tenants() == {"default": 600, "acme": 900}
    file.write(file.path.read_text().partition("  - name:")[0])  # without that of acme
    assert "delete: not in" in hourbell.good(*file.args, "--prune").out
    assert tenants() == {"default": 600}
    file.replace("{name:", "{tenant_id: acme, name:")
    assert "create: " in hourbell.good(*file.args).out
    assert tenants() == {"default": 600, "acme": 600}


def test_a_job_without_an_owner_is_adopted_and_the_plan_says_so(
    hourbell: Command, file: File, url: str
) -> None:
    name = f"{file.owner}-often"
    body = b'{"type": "RECURRING", "schedule": {"every_seconds": 60}, "action": {"type": "TASK", "name": "count"}}'
    request = urllib.request.Request(
        f"{url}/api/v1/jobs/by-name/{name}",
        body,
        {"Content-Type": "application/json", "Idempotency-Key": name},
        method="PUT",
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 201
    plan = hourbell.good(*file.args, "--dry-run").out
    assert f"~ {name}    adopt: it exists and has no owner" in plan
    assert "    schedule.every_seconds: 60 → 600" in plan
    hourbell.good(*file.args)
    assert jobs(hourbell, file)["often"]["schedule"]["every_seconds"] == 600
    assert hourbell.good(*file.args).out == ""


def test_what_the_server_refuses_is_named_and_the_other_jobs_are_applied(
    hourbell: Command, file: File
) -> None:
    hourbell.good("tenants", "set", f"{file.owner}-full", "--max-jobs", "0")
    file.replace("often\n", f"often\n    tenant_id: {file.owner}-full\n")
    done = hourbell(*file.args)
    assert done.code == 1
    assert f"hourbell: {file.owner}-often: " in done.err
    assert set(jobs(hourbell, file)) == {"nightly"}
    shown = hourbell(*file.args, "-o", "json").json
    assert [(one["change"], one["applied"]) for one in shown] == [
        ("keep", False),
        ("create", False),
    ]


def test_a_one_time_job_that_has_ended_is_created_again_at_its_new_time(
    hourbell: Command, file: File, url: str
) -> None:
    with opened(f"{url}/livez", timeout=30) as answer:
        now = parsedate_to_datetime(answer.headers["Date"])  # in whole seconds
    soon = (now + timedelta(seconds=10)).isoformat()  # after it is applied, on any machine
    file.write(
        f"""
        owner: {file.owner}
        jobs:
          - name: {file.owner}-once
            schedule: {{at: "{soon}"}}
            action: {{type: WEBHOOK, url: "{url}/livez", method: GET}}
        """
    )
    hourbell.good(*file.args)
    first = jobs(hourbell, file)["once"]["job_id"]
    get = ("jobs", "get", first, "-o", "json")
    eventually(lambda: hourbell.good(*get).json["status"] == "COMPLETED")
    assert changes(hourbell, file) == {"once": "passed"}
    file.replace(soon, "2090-01-01T00:00:00Z")
    assert "the previous one has ended" in hourbell.good(*file.args).out
    label = f"hourbell.owner:{file.owner}"
    listed = hourbell.good("jobs", "list", "--label", label, "--status", "scheduled", "-o", "json")
    (again,) = listed.json
    assert again["job_id"] != first
    assert again["next_run_at"].startswith("2090-01-01")
    assert changes(hourbell, file) == {"once": "keep"}


def test_every_wrong_field_of_every_job_is_named_and_nothing_changes(
    hourbell: Command, file: File
) -> None:
    file.replace("every_seconds: 600", "every_seconds: 0")
    file.replace("0 2 * * *", "61 2 * * *")
    file.replace("delays_seconds: [60, 300]", "max_retries: -1")
    done = hourbell(*file.args)
    assert done.code == 2
    for wrong in (
        "nightly: schedule.cron:",
        "nightly: retry_policy.max_retries:",
        "often: schedule.every_seconds:",
    ):
        assert f"{file.owner}-{wrong}" in done.err
    assert jobs(hourbell, file) == {}


def test_a_job_that_is_twice_in_a_file_is_an_error(hourbell: Command, file: File) -> None:
    file.replace(f"{file.owner}-often", f"{file.owner}-nightly")
    done = hourbell(*file.args)
    assert (done.code, "appears twice" in done.err) == (2, True)
    assert jobs(hourbell, file) == {}


def test_what_another_client_changes_after_the_plan_is_not_overwritten(
    hourbell: Command, file: File, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hourbell.good(*file.args)
    file.replace("600", "1200")
    file.replace("0 2", "0 3")
    carry_out = apply._carry_out

    def changed_meanwhile(*args: Any) -> Any:
        with SyncClient(url) as client:
            often = client.jobs.get_by_name(f"{file.owner}-often")
            client.jobs.update(often.job_id, {"schedule": {"every_seconds": 900}})
        return carry_out(*args)

    with monkeypatch.context() as patched:
        patched.setattr(apply, "_carry_out", changed_meanwhile)
        done = hourbell(*file.args)
    assert done.code == 1
    assert (
        f"{file.owner}-often: it was changed after the plan was made. Run apply again." in done.err
    )
    after = jobs(hourbell, file)
    assert after["often"]["schedule"]["every_seconds"] == 900
    assert after["nightly"]["schedule"]["cron"] == "0 3 * * *"
    hourbell.good(*file.args)
    assert jobs(hourbell, file)["often"]["schedule"]["every_seconds"] == 1200
