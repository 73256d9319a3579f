"""`hourbell next`."""

import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner, Result

from hourbell.cli import next as next_module
from hourbell.cli.next import next_command
from hourbell.model.ids import job_text
from hourbell.timing.cron import resolve_hash


def run(*arguments: str) -> Result:
    return CliRunner().invoke(next_command, arguments)


def test_json_as_promised() -> None:
    result = run(
        "30 2 * * *",
        *("--timezone", "America/New_York", "--from", "2027-03-13T12:00:00Z"),
        *("--count", "5", "--output", "json"),
    )
    assert result.exit_code == 0
    runs = json.loads(result.stdout)
    assert len(runs) == 5
    assert runs[0] == {
        "utc": "2027-03-14T07:00:00Z",
        "local": "2027-03-14T03:00:00-04:00",
        "note": "02:30 does not exist on 2027-03-14 (clocks go forward): runs at 03:00",
    }
    assert runs[1] == {
        "utc": "2027-03-15T06:30:00Z",
        "local": "2027-03-15T02:30:00-04:00",
        "note": "",
    }


def test_the_moment_may_have_an_offset() -> None:
    result = run("0 0 * * *", "--from", "2027-01-01T01:30:00+02:00", "--count", "1")
    assert result.stdout.splitlines()[1].split()[0] == "2027-01-01T00:00:00Z"


def test_without_a_moment_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_module, "_now", lambda: datetime(2031, 5, 1, tzinfo=UTC))
    assert "2031-05-01T12:00:00Z" in run("0 12 * * *", "--count", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["30 26 * * *"], ["hour", "0 to 23"]),
        (["0 0 30 2 *"], ["expression", "never matches"]),
        (["H 2 * * *", "--job", "nonsense"], ["--job", "is not a job id"]),
        (["@every 5m"], ["every_seconds: 300"]),
        (["rate(1 hour)"], ["every_seconds: 3600"]),
        (["cron(0 12 * * ? *)"], ["0 12 * * *"]),
        (["* * * * *", "--timezone", "Europe/Berln"], ["timezone", "Europe/Berlin"]),
        (["* * * * *", "--from", "yesterday"], ["--from", "date and time"]),
        (["* * * * *", "--from", "2027-01-01T00:00:00"], ["--from", "offset"]),
        (["* * * * *", "--count", "0"], ["--count", "1000"]),
        (["* * * * *", "--count", "1001"], ["--count", "1000"]),
        (["* * * * *", "--dst-gap", "maybe"], ["--dst-gap", "run_after"]),
        ([], ["RULE"]),
    ],
)
def test_what_is_wrong_is_told_on_stderr(arguments: list[str], words: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr


def test_h_is_shown_for_the_job_that_is_named() -> None:
    for number in (0, 1, 77):
        job = job_text(number)
        result = run("H H * * *", "--job", job, "--from", "2027-01-01T00:00:00Z", "--count", "1")
        assert result.stderr == ""
        minute, hour, *_ = resolve_hash("H H * * *", number).split()
        assert f"2027-01-01T{int(hour):02}:{int(minute):02}:00Z" in result.stdout


def test_h_without_a_job_is_shown_for_an_example_and_says_so() -> None:
    result = run("H 2 * * *", "--from", "2027-01-01T00:00:00Z", "--count", "1", "--output", "json")
    assert result.exit_code == 0
    rule = resolve_hash("H 2 * * *", 0)
    assert f"with an example id the rule is {rule}" in result.stderr
    assert len(json.loads(result.stdout)) == 1


def test_a_rule_that_probably_has_its_seconds_last_is_warned_about() -> None:
    result = run("* * * * * 5", "--count", "1", "--output", "json")
    assert result.exit_code == 0
    assert "put it first: 5 * * * * *" in result.stderr
    assert len(json.loads(result.stdout)) == 1
    assert run("0 * * * * 5", "--count", "1").stderr == ""
