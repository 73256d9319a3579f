"""`hourbell import`: realistic files become jobs that Hourbell accepts, and nothing is dropped without a word."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hourbell.cli.files import read_documents
from hourbell.cli.imports import import_command
from hourbell.cli.reconcile import read_wanted
from hourbell.model.errors import ConfigurationError

FILES = Path(__file__).parents[2] / "data" / "imports"
NOW = datetime(2026, 11, 17, tzinfo=UTC)


def imported(*args: str) -> Result:
    result = CliRunner().invoke(import_command, [args[0], str(FILES / args[1]), *args[2:]])
    assert result.exit_code == 0, result.output
    return result


def jobs_of(result: Result, tmp_path: Path) -> dict[str, Any]:
    """The jobs by name, as `apply` reads them; all are valid."""
    file = tmp_path / "jobs.yaml"
    file.write_text(result.stdout)
    (document,) = read_documents(str(file))
    assert len(read_wanted(document["jobs"], document["owner"], NOW, {}, {})) == len(
        document["jobs"]
    )
    return {job["name"]: job for job in document["jobs"]}


def written(text: str, tmp_path: Path, *args: str) -> Result:
    """The import of a file with this text."""
    file = tmp_path / "file"
    file.write_text(text)
    result = CliRunner().invoke(import_command, [args[0], str(file), *args[1:]])
    assert result.exit_code == 0, result.output
    return result


def unwrapped(result: Result) -> str:
    """The output with each comment on one line."""
    return " ".join(result.stdout.replace("#", " ").split())


def test_a_crontab(tmp_path: Path) -> None:
    result = imported("crontab", "crontab")
    jobs = jobs_of(result, tmp_path)
    dump = jobs["dump.sh"]
    assert dump["schedule"] == {"cron": "15 2 * * *", "timezone": "Europe/Berlin"}
    assert dump["action"]["payload"]["command"].startswith("nice -n 10 /opt/backup/dump.sh")
    assert dump["action"]["payload"]["environment"]["SHELL"] == "/bin/bash"
    assert (dump["retry_policy"], dump["misfire_policy"]) == ({"max_retries": 0}, "skip")
    ping = jobs["hc.example.com-ping-7"]
    assert ping["action"] == {
        "type": "WEBHOOK",
        "url": "https://hc.example.com/ping/7",
        "method": "GET",
    }
    assert (ping["timeout_seconds"], ping["retry_policy"]) == (10, {"max_retries": 5})
    report = jobs["example.com-report"]["action"]
    assert (report["method"], report["body"]) == ("POST", '{"kind":"weekday"}')
    mail = jobs["mail"]["action"]["payload"]
    assert mail["command"] == '/usr/bin/mail -s "report % done" team'
    assert mail["stdin"] == "Hello\nWorld\n"
    assert {"rails", "rails-2", "rotate"} < set(jobs)
    text = result.stdout
    assert "# line 11: @reboot has no equivalent: /usr/local/bin/start-agent" in text
    assert "mailed to ops@example.com" in text
    assert "never matches" in text
    assert "not an entry: broken line" in text
    assert "Imported 7 of 10 jobs" in result.stderr


def test_a_crontab_from_a_pipe() -> None:
    result = CliRunner().invoke(import_command, ["crontab", "-"], input="0 2 * * * /bin/true\n")
    assert result.stdout.startswith("# Imported from stdin. Check it, then: hourbell apply")


def test_a_system_crontab_has_users(tmp_path: Path) -> None:
    jobs = jobs_of(imported("crontab", "crontab.system", "--system"), tmp_path)
    assert jobs["php"]["action"]["payload"]["user"] == "www-data"
    assert jobs["php"]["schedule"] == {"cron": "47 6 * * 7", "timezone": "UTC"}
    assert jobs["run-parts"]["action"]["payload"]["command"].startswith("cd / && run-parts")


def test_tz_in_a_crontab_reaches_the_command_and_does_not_move_the_schedule(tmp_path: Path) -> None:
    text = "CRON_TZ=Europe/Berlin\nTZ=Asia/Tokyo\n0 9 * * * /bin/report\n"
    result = written(text, tmp_path, "crontab")
    report = jobs_of(result, tmp_path)["report"]
    assert report["schedule"] == {"cron": "0 9 * * *", "timezone": "Europe/Berlin"}
    assert report["action"]["payload"]["environment"] == {"TZ": "Asia/Tokyo"}
    assert "line 2: TZ=Asia/Tokyo is a variable for the commands and does not" in unwrapped(result)


def test_a_curl_command_sends_the_body_and_type_that_curl_sends(tmp_path: Path) -> None:
    command = "curl -d a=1 --data b=2 https://example.com/form"
    jobs = jobs_of(written(f"@daily {command}\n", tmp_path, "crontab"), tmp_path)
    assert jobs["example.com-form"]["action"] == {
        "type": "WEBHOOK",
        "url": "https://example.com/form",
        "method": "POST",
        "headers": {"Content-Type": "application/x-www-form-urlencoded"},
        "body": "a=1&b=2",
    }
    command = "curl -X PUT -H 'content-type: text/csv' -d a,b https://example.com/form"
    jobs = jobs_of(written(f"@daily {command}\n", tmp_path, "crontab"), tmp_path)
    put = jobs["example.com-form"]["action"]
    assert (put["method"], put["headers"]) == ("PUT", {"content-type": "text/csv"})


@pytest.mark.parametrize(
    "options",
    ["-L", "-k", "-fsSL", "--location", "--insecure", "-d x -d @file", "-d x -H Content-Type:"],
)
def test_a_curl_command_that_a_webhook_would_change_stays_a_command(
    tmp_path: Path, options: str
) -> None:
    command = f"curl {options} https://example.com/"
    jobs = jobs_of(written(f"@daily {command}\n", tmp_path, "crontab"), tmp_path)
    assert jobs["curl"]["action"]["name"] == "shell"
    assert jobs["curl"]["action"]["payload"]["command"] == command


def test_a_celery_beat_schedule(tmp_path: Path) -> None:
    result = imported("celery", "celeryconfig.py", "--owner", "shop")
    jobs = jobs_of(result, tmp_path)
    assert jobs["add-every-30-seconds"]["schedule"] == {"every_seconds": 30}
    assert jobs["add-every-30-seconds"]["action"]["payload"] == {"args": [16, 16]}
    monday = jobs["monday-morning"]
    assert monday["schedule"] == {"cron": "30 7 * * mon", "timezone": "Europe/London"}
    assert monday["action"]["payload"] == {"kind": "weekly"}
    assert (monday["queue"], monday["start_deadline_seconds"]) == ("reports", 15)
    assert jobs["quarterly"]["schedule"]["cron"] == "0 0 1 1,4,7,10 *"
    assert jobs["sync"]["schedule"] == {"every_seconds": 600}
    assert jobs["backup"]["schedule"] == {"every_seconds": 86_400}
    assert all(job["retry_policy"] == {"max_retries": 0} for job in jobs.values())
    assert "these jobs do not retry" in unwrapped(result)
    text = result.stdout
    assert "owner: shop" in text
    assert "# add-every-30-seconds: args (16, 16) have no names: replace `args`" in text
    assert "# half: runs every 0.5 s: rounded to 1 s" in text
    assert "# monday-morning: option priority=3 is not carried over" in text
    assert "# at-sunset: its schedule cannot be carried over: solar('sunset'" in text
    assert "# from-settings: its task is computed: settings.TASK" in text


@pytest.mark.parametrize(
    ("fields", "payload", "note"),
    [
        ("'kwargs': {'days': 7}", {"days": 7}, None),
        ("'args': [1], 'kwargs': {'days': 7}", {"days": 7, "args": [1]}, "args [1] have no names"),
        ("'args': [1], 'kwargs': {'args': 7}", {"args": 7}, "args [1] have no names"),
        ("'args': (16)", None, "args are of another type: 16"),
        ("'kwargs': options()", None, "kwargs are computed: options()"),
        ("**common", None, "** fields are not carried over: common"),
    ],
)
def test_the_payload_of_a_celery_entry_has_the_names_of_parameters(
    tmp_path: Path, fields: str, payload: object, note: str | None
) -> None:
    text = f"beat_schedule = {{'a': {{'task': 't', 'schedule': 60, {fields}}}}}\n"
    result = written(text, tmp_path, "celery", "--timezone", "UTC")
    assert jobs_of(result, tmp_path)["a"]["action"].get("payload") == payload
    assert ("have no names" in result.stdout) == ("'args': [" in fields)
    assert note is None or f"a: {note}" in unwrapped(result)


@pytest.mark.parametrize(
    ("days", "cron"),
    [
        ("day_of_month='1-7', day_of_week='sat'", "0 22 * * SAT#1"),
        ("day_of_month='8-14', day_of_week=6", "0 22 * * SAT#2"),
        ("day_of_month='15-21', day_of_week='sunday'", "0 22 * * SUN#3"),
        ("day_of_month=[22, 23, 24, 25, 26, 27, 28], day_of_week='0'", "0 22 * * SUN#4"),
        ("day_of_month='1-7,15-21', day_of_week='sat'", "0 22 * * SAT#1,SAT#3"),
        ("day_of_month='29-31', day_of_week='friday'", "0 22 * * FRI#5"),
        ("day_of_month='8-21', day_of_week='Saturday,sun'", "0 22 * * SUN#2,SUN#3,SAT#2,SAT#3"),
        ("day_of_week='monday,friday'", "0 22 * * mon,fri"),
        ("day_of_week='monday-friday', month_of_year='january'", "0 22 * jan mon-fri"),
        ("day_of_month='*/2', day_of_week='sat'", "0 22 */2 * sat"),
        ("day_of_month='1-7', day_of_week='*/2'", "0 22 1-7 * */2"),
        ("day_of_month='1-7'", "0 22 1-7 * *"),
        ("day_of_month='1-8', day_of_week='sat'", None),
        ("day_of_month='13', day_of_week='fri'", None),
        ("day_of_month='1-7,15', day_of_week='sat'", None),
        ("day_of_month='1-7', day_of_week='caturday'", None),
        ("day_of_month='25-5', day_of_week='sat'", None),
    ],
)
def test_celery_runs_on_days_that_match_both_day_fields(
    tmp_path: Path, days: str, cron: str | None
) -> None:
    rule = f"crontab(minute=0, hour=22, {days})"
    text = f"beat_schedule = {{'a': {{'task': 't', 'schedule': {rule}}}}}\n"
    result = written(text, tmp_path, "celery", "--timezone", "Europe/Paris")
    jobs = jobs_of(result, tmp_path)
    if cron is not None:
        assert jobs["a"]["schedule"] == {"cron": cron, "timezone": "Europe/Paris"}
        assert "match both" not in result.stdout
    else:
        assert jobs == {}
        assert "a: Celery runs it on days that match both day_of_month and" in unwrapped(result)


@pytest.mark.parametrize(
    ("line", "args", "zone", "note"),
    [
        ("CELERY_TIMEZONE = TIME_ZONE", [], None, "the timezone is computed: TIME_ZONE."),
        ("app.conf.timezone = settings.TZ", [], None, "the timezone is computed: settings.TZ."),
        ("app.conf.update(timezone=tz())", [], None, "the timezone is computed: tz()."),
        ("app.conf.timezone = settings.TZ", ["--timezone=Asia/Tokyo"], "Asia/Tokyo", None),
        ("timezone = 'Asia/Tokyo'", [], "Asia/Tokyo", None),
        ("timezone = 'Asia/Tokyo'", ["--timezone=Asia/Seoul"], "Asia/Seoul", None),
        ("", [], None, "this file sets no timezone"),
        ("show(now, timezone=utc)", [], None, "this file sets no timezone"),
        ("timezone = 'Asia/Tokyo'\nDateTime(timezone=True)", [], "Asia/Tokyo", None),
    ],
)
def test_a_computed_timezone_of_celery_has_to_be_given(
    tmp_path: Path, line: str, args: list[str], zone: str | None, note: str | None
) -> None:
    text = f"{line}\nbeat_schedule = {{'a': {{'task': 't', 'schedule': crontab(hour=2)}}}}\n"
    result = written(text, tmp_path, "celery", *args)
    assert jobs_of(result, tmp_path)["a"]["schedule"].get("timezone") == zone
    assert ("--timezone" in result.stdout) == (note is not None)
    assert note is None or note in unwrapped(result)


def test_celery_entries_that_are_added_later_are_read_or_noted(tmp_path: Path) -> None:
    text = """
def setup(sender):
    sender.conf.beat_schedule["early"] = {"task": "t", "schedule": 5}
    sender.add_periodic_task(10.0, ping.s("hello"), name="ping")

app.conf.beat_schedule = {"old": {"task": "t", "schedule": 1}}
app.conf.beat_schedule = {"a": {"task": "t", "schedule": 10}, **MORE}
app.conf.beat_schedule["b"] = {"task": "t", "schedule": 20}
app.conf.beat_schedule.update({"c": {"task": "t", "schedule": 30}}, d={"task": "t", "schedule": 40})
app.conf.beat_schedule.update({"a": {"task": "t", "schedule": 11}})
app.conf.beat_schedule.update(EXTRA)
app.conf.beat_schedule |= {"e": {"task": "t", "schedule": 50}}
app.conf.beat_schedule["b"]["schedule"] = 21
"""
    result = written(text, tmp_path, "celery")
    jobs = jobs_of(result, tmp_path)
    found = {name: job["schedule"]["every_seconds"] for name, job in jobs.items()}
    assert found == {"a": 11, "early": 5, "b": 20, "c": 30, "d": 40, "e": 50}
    for note in (
        "line 4: not carried over: sender.add_periodic_task(10.0, ping.s('hello'), name='ping')",
        "line 7: beat_schedule is assigned again: the entries of line 6 are not carried over",
        "** entries are not carried over: MORE",
        "line 11: entries are computed and not carried over: EXTRA",
        "line 13: this change is not carried over: app.conf.beat_schedule['b']['schedule'] = 21",
    ):
        assert note in unwrapped(result)


def test_a_celery_file_with_calls_only_has_a_note_for_each(tmp_path: Path) -> None:
    result = written("app.add_periodic_task(10.0, ping.s())\n", tmp_path, "celery")
    assert jobs_of(result, tmp_path) == {}
    assert "line 1: not carried over: app.add_periodic_task(10.0, ping.s())" in result.stdout
    assert "contains no jobs that can be imported. See the 2 notes" in result.stderr


def test_a_python_file_is_never_executed(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    file = tmp_path / "conf.py"
    file.write_text(
        f"open({str(proof)!r}, 'w')\n"
        f"beat_schedule = {{'a': {{'task': 't', 'schedule': open({str(proof)!r}, 'w')}}}}\n"
    )
    result = CliRunner().invoke(import_command, ["celery", str(file)])
    assert result.exit_code == 0
    assert not proof.exists()


def test_kubernetes_cron_jobs(tmp_path: Path) -> None:
    result = imported("k8s", "cronjobs.yaml")
    jobs = jobs_of(result, tmp_path)
    report = jobs["billing.nightly-report"]
    assert report["schedule"] == {"cron": "30 2 * * *", "timezone": "America/New_York"}
    assert report["overlap_policy"] == "forbid"
    assert (report["start_deadline_seconds"], report["deadline_seconds"]) == (600, 1800)
    assert report["retry_policy"]["max_retries"] == 4
    assert report["action"]["payload"]["args"] == ["--all", "on"]
    assert report["action"]["payload"]["environment"] == {"LEVEL": "info"}
    assert report["labels"]["team"] == "billing"
    assert jobs["cleanup"]["schedule"] == {"cron": "@hourly"}
    for note in (
        "env PASSWORD comes from a secret",
        "volumeMounts of the container is not carried over",
        "cleanup: is suspended: after apply, run `hourbell jobs pause cleanup`",
        "runs several pods",
        "Service web is not a CronJob",
    ):
        assert note in unwrapped(result)


def test_eventbridge_schedules_and_rules(tmp_path: Path) -> None:
    result = imported("eventbridge", "eventbridge.json")
    jobs = jobs_of(result, tmp_path)
    report = jobs["nightly-report"]
    assert report["schedule"]["cron"] == "0 2 * * 1-5"  # 2-6 of Amazon is Monday to Friday
    assert report["schedule"]["timezone"] == "Asia/Kolkata"
    assert report["action"]["payload"]["kind"] == "nightly"
    assert (report["retry_policy"], report["deadline_seconds"]) == ({"max_retries": 5}, 3600)
    assert jobs["every-five"]["schedule"] == {"every_seconds": 300}
    assert jobs["every-five"]["action"]["payload"] == "plain text"
    assert jobs["third-friday"]["schedule"]["cron"] == "15 10 * * 5#3"
    assert jobs["last-day"]["schedule"]["cron"] == "0 18 L * *"
    assert "odd" not in jobs
    for note in (
        "may start up to 15 minutes later",
        "<aws.…> placeholders",
        "has a dead-letter queue",
        "every-five: is disabled",
        "the year 2026 is not carried over",
        "cannot read the rate rate(1 fortnight)",
        "on-event reacts to events",
    ):
        assert note in unwrapped(result)


@pytest.mark.parametrize(
    ("zone", "schedule"),
    [
        ("Asia/Kolkata", {"at": "2027-03-01T09:00:00", "timezone": "Asia/Kolkata"}),
        ("UTC", {"at": "2027-03-01T09:00:00Z"}),
        (None, {"at": "2027-03-01T09:00:00Z"}),
    ],
)
def test_an_eventbridge_time_is_a_wall_time_of_its_zone(
    tmp_path: Path, zone: str | None, schedule: object
) -> None:
    entry = {"Name": "n", "ScheduleExpression": "at(2027-03-01T09:00:00)"}
    text = json.dumps(entry | ({"ScheduleExpressionTimezone": zone} if zone else {}))
    result = written(text, tmp_path, "eventbridge")
    assert jobs_of(result, tmp_path)["n"]["schedule"] == schedule
    assert "correct it" not in result.stdout


def test_a_list_of_eventbridge_schedules_says_where_the_expressions_are(tmp_path: Path) -> None:
    entry = {
        "Arn": "arn:aws:scheduler:eu-west-1:123456789012:schedule/billing/report",
        "GroupName": "billing",
        "Name": "report",
        "State": "ENABLED",
        "Target": {"Arn": "arn:aws:lambda:eu-west-1:123456789012:function:report"},
    }
    result = written(json.dumps({"Schedules": [entry]}), tmp_path, "eventbridge")
    use = "use `aws scheduler get-schedule --name report --group-name billing`"
    assert f"report has no expression in this file: {use}" in unwrapped(result)
    assert "reacts to events" not in result.stdout


@pytest.mark.parametrize(
    ("days", "ours"),
    [
        ("1", "0"),
        ("7", "6"),
        ("2-6", "1-5"),
        ("6L", "5L"),
        ("2,4", "1,3"),
        ("MON-FRI", "MON-FRI"),
        ("1/2", "0/2"),
    ],
)
def test_amazon_counts_the_days_of_the_week_from_one(tmp_path: Path, days: str, ours: str) -> None:
    file = tmp_path / "one.json"
    file.write_text(f'{{"Name": "n", "ScheduleExpression": "cron(0 1 ? * {days} *)"}}')
    result = CliRunner().invoke(import_command, ["eventbridge", str(file)])
    assert jobs_of(result, tmp_path)["n"]["schedule"]["cron"] == f"0 1 * * {ours}"


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("celery", "def (", "it is not valid Python: line 1"),
        ("celery", "x = 1", "assigns no dictionary"),
        ("k8s", "a: 1", "contains no Kubernetes manifest"),
        ("eventbridge", "{}", "contains no schedule"),
        ("k8s", "a: [", "is not valid YAML"),
        ("k8s --owner=:%", "a: [", "The owner ':%' is not valid"),
        ("crontab --timezone=Mars", "", "'Mars' is not a time zone"),
        ("celery --timezone=Mars", "", "'Mars' is not a time zone"),
    ],
)
def test_a_file_of_another_kind_is_refused_in_a_sentence(
    tmp_path: Path, kind: str, text: str, says: str
) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    result = CliRunner().invoke(import_command, [*kind.split(), str(file)])
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: on", {"a": "on"}),
        ("on: no", {"on": "no"}),
        ("a: 12:30", {"a": "12:30"}),
        ("a: 2026-01-01", {"a": "2026-01-01"}),
        ("a: 010", {"a": "010"}),
        ("a: [1, -2, 1.5, 1e3, true, null, ~]", {"a": [1, -2, 1.5, 1000.0, True, None, None]}),
        ("x: &d {p: 1}\ny: {<<: *d, q: 2}", {"x": {"p": 1}, "y": {"p": 1, "q": 2}}),
    ],
)
def test_words_mean_what_yaml_1_2_says(tmp_path: Path, text: str, value: Any) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text)
    assert read_documents(str(file)) == [value]


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('{\n\t"a": [\n\t\t1\n\t]\n}', [{"a": [1]}]),
        (r'{"a": "\ud83d\ude00"}', [{"a": "😀"}]),
        (r'a: "\ud83d\ude00"', [{"a": "😀"}]),
        (r'{"a": "\ud83d\ude00"}' + "\n\n" + '{"b":\t"\u2028"}\n', [{"a": "😀"}, {"b": "\u2028"}]),
        ('{"a": 1}\n---\n{"b": 2}\n', [{"a": 1}, {"b": 2}]),
        ("null", []),
        ("", []),
    ],
)
def test_files_are_json_or_lines_of_json_or_yaml(tmp_path: Path, text: str, values: Any) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert read_documents(str(file)) == values


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nX-Api-Key: {{secret:token}}", "not valid YAML: line 2, column 13: a key is an obj"),
        (
            "spec:\n  schedule: {{ .Values.x }}",
            'quote a value that begins with {, as in "{{secret:name}}"',
        ),
        ("[a, b]: c", "line 1, column 1: a key is an object or a list"),
        ('{\n\t"a": 1,\n\t"a": 2\n}', "neither valid JSON (the key 'a' appears twice) nor"),
        ('{"a": 1,\n "a": 2}', "valid YAML (line 2, column 2: the key 'a' appears twice)"),
        ('{"a": 1}\n{"b": 1, "b": 2}', "JSON (line 2: the key 'b' appears twice)"),
        ('{\n\t"a": 1\n\t"b": 2\n}', "neither valid JSON (line 3, column 2: "),
        (r'{"a": "\ud83d"}', "valid YAML (line 1, column 7: a \\u escape is half of a surrogate"),
        (r'a: "\ude00\ud83d"', "line 1, column 4: a \\u escape is half of a surrogate pair"),
        ("[" * 100_000, "neither valid JSON ("),
        ('{"a": NaN}', "is not valid: NaN is not a JSON number; quote it if it is text"),
        ('{"a": 1}\n{"a": -Infinity}', "line 2: -Infinity is not a JSON number"),
        ("a: 1\nb: .nan", "line 2, column 4: .nan is not a JSON number; quote it if it is text"),
        ("a: [-.inf]", "line 1, column 5: -.inf is not a JSON number"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_its_place(
    tmp_path: Path, text: str, says: str
) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        read_documents(str(file))
    assert says in refused.value.message
