"""The client has what the API has: every call, every field."""

import inspect
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hourbell.api.app import ROUTES
from hourbell.api.schemas import schemas
from hourbell.client import SyncClient, values
from hourbell.client.calls import Call
from hourbell.client.errors import ClientError, FieldError, Problem
from hourbell.client.methods import Method

ROOT = Path(__file__).parents[3]

# Of people and probes, of workers, of targets, and of the dashboard: not of programs that create jobs.
NOT_IN_CLIENT = (
    *("/", "/livez", "/readyz", "/metrics", "/schema/", "/internal/", "/complete"),
    *("/api/v1/session", "/api/v1/me", "/api/v1/events"),
)

SENT = {
    "NewOneTimeJob": values.NewJob,
    "NewRecurringJob": values.NewJob,
    "Webhook": values.Webhook,
    "Task": values.Task,
    "RetryPolicy": values.RetryPolicy,
    "Notification": values.Notification,
    "TenantSettings": values.TenantSettings,
    "QueueSettings": values.QueueSettings,
    "TargetSettings": values.TargetSettings,
}
RETURNED = {
    "CreatedJob": values.Job,
    "NextRuns": values.NextRuns,
    "SchedulePreview": values.SchedulePreview,
    "AuditEntry": values.AuditEntry,
    "Execution": values.Execution,
    "DeadLetter": values.DeadLetter,
    "DeadLetterGroups": values.DeadLetterGroups,
    "Replayed": values.Replayed,
    "Purged": values.Purged,
    "Tenant": values.Tenant,
    "Queue": values.Queue,
    "Target": values.Target,
    "Forecast": values.Forecast,
    "ForecastMinute": values.ForecastMinute,
    "DeclaredTask": values.DeclaredTask,
    "Overview": values.Overview,
    "Worker": values.Worker,
    "WorkerWithExecutions": values.WorkerWithExecutions,
    "Nodes": values.Nodes,
    "Circuits": values.Circuits,
    "Monitor": values.Monitor,
    "Calendar": values.Calendar,
    "BulkPaused": values.BulkPaused,
    "Operation": values.Operation,
    "OperationPreview": values.OperationPreview,
    "BulkResumed": values.BulkResumed,
    "Requested": values.Requested,
    "Explanation": values.Explanation,
    "Key": values.Key,
    "MadeKey": values.MadeKey,
    "Secret": values.Secret,
    "SetSecret": values.StoredSecret,
}


def test_every_call_of_the_api_is_a_method_of_the_client_and_no_other() -> None:
    described = {
        (route.method, route.path)
        for route in ROUTES
        if route.path != "/" and not any(part in route.path for part in NOT_IN_CLIENT[1:])
    }
    assert {(call.method, call.path) for call in every_call()} == described


def test_every_query_parameter_of_the_api_is_an_argument() -> None:
    wanted = {(route.method, route.path): set(route.query.FIELDS) for route in ROUTES}
    for call in every_call():
        assert set(call.query) == wanted[call.method, call.path], call.path


@pytest.mark.parametrize("name", SENT)
def test_a_request_has_the_fields_of_its_schema(name: str) -> None:
    if name.startswith("New"):
        both = schemas()["NewOneTimeJob"]["properties"] | schemas()["NewRecurringJob"]["properties"]
        described = set(both) - {"type"}  # follows from the schedule
    else:
        described = set(schemas()[name]["properties"]) - {"type"}
    assert set(SENT[name].__struct_encode_fields__) == described


def test_a_schedule_has_the_fields_of_all_kinds_of_schedules() -> None:
    kinds = ("CronSchedule", "IntervalSchedule", "InstantSchedule", "DelaySchedule")
    described = {field for kind in kinds for field in schemas()[kind]["properties"]}
    assert set(values.Schedule.__struct_fields__) == described


@pytest.mark.parametrize("name", RETURNED)
def test_a_response_has_the_fields_of_its_schema(name: str) -> None:
    assert set(RETURNED[name].__struct_encode_fields__) == set(schemas()[name]["properties"])


def test_problems_have_the_fields_of_their_schema() -> None:
    described = schemas()["Problem"]["properties"]
    assert set(Problem.__struct_fields__) == set(described) - {"type", "instance"}
    inner = described["errors"]["items"]["properties"]
    assert set(FieldError.__struct_fields__) == set(inner)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8080",
        "ftp://host",
        "http://",
        "http://u:p@host",
        "http://host?x=1",
        "http://h:x",
        "http://h/ä",
    ],
)
def test_a_url_that_is_not_one_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(ClientError, match="is not a valid server URL"):
        SyncClient(url)


@pytest.mark.parametrize("key", ["hb_…", "hb_1\nX: y", "hb_ä"])
def test_a_key_that_no_header_can_have_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ClientError) as refused:
        SyncClient("http://127.0.0.1", key)
    assert refused.value.code == "invalid_api_key"
    assert "hb_" not in refused.value.message


def test_an_unpaired_surrogate_in_a_document_is_refused() -> None:
    job = values.NewJob(name="a\ud800", schedule=values.every(60), action=values.Task(name="t"))
    with pytest.raises(ClientError, match="must not contain an unpaired surrogate"):
        SyncClient("http://127.0.0.1:1", retries=0).jobs.create(job)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_cannot_represent_is_refused(number: float) -> None:
    task = values.Task(name="t", payload={"a": [1.0, number]})
    job = values.NewJob(name="a", schedule=values.every(60), action=task)
    with pytest.raises(ClientError, match="must not be NaN or infinite"):
        SyncClient("http://127.0.0.1:1", retries=0).jobs.create(job)


def test_importing_the_client_loads_neither_aiohttp_nor_the_server() -> None:
    script = "import hourbell.client, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    loaded = set(done.stdout.decode().split())
    assert not loaded & {
        "aiohttp",
        "litestar",
        "asyncpg",
        "uvicorn",
        "cryptography",
        "hourbell.engine",
    }


def test_type_checkers_know_what_both_clients_return(tmp_path: Path) -> None:
    program = """
        from collections.abc import AsyncIterator, Iterator

        from hourbell.client import Client, CreatedJob, Execution, Job, RefusedJob, SyncClient


        async def right(client: Client, sync: SyncClient) -> None:
            job: Job = await client.jobs.get("job_1")
            same: Job = sync.jobs.get("job_1")
            name: str = job.tenant_id + same.queue
            jobs: AsyncIterator[Job] = client.jobs.each(status="PAUSED")
            executions: Iterator[Execution] = sync.executions.each(job_id=name)
            results = sync.jobs.create_many([{"name": "x"}])
            ids = [result.job_id for result in results if isinstance(result, CreatedJob)]
            codes = [result.code for result in results if isinstance(result, RefusedJob)]


        async def wrong(client: Client, sync: SyncClient) -> None:
            sync.jobs.get(7)  # error
            sync.jobs.list(state="PAUSED")  # error
            job: Job = client.jobs.get("job_1")  # error
            sync.jobs.get("job_1").no_such_field  # error
    """
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(program))
    # A cache of its own: that of `make check` has our files as sources, not as an installed package.
    cache = Path(__file__).parents[3] / ".mypy_cache" / "programs"
    command = [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={cache}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    lines = file.read_text().splitlines()
    expected = [number for number, line in enumerate(lines, 1) if line.endswith("# error")]
    found = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert found == expected, done.stdout + done.stderr


def every_call() -> Iterator[Call[Any]]:
    """The calls of all methods, with any arguments."""
    for part in vars(SyncClient("http://127.0.0.1")).values():
        for name, method in inspect.getmembers(type(part)):
            if isinstance(method, Method):
                yield call_of(name, method)


def call_of(name: str, method: Method[Any, Any]) -> Call[Any]:
    parameters = list(inspect.signature(method.plan).parameters.values())[1:]
    required = [one for one in parameters if one.default is inspect.Parameter.empty]
    arguments: dict[str, Any] = {one.name: "x" for one in required}
    if "job" in arguments:
        arguments["job"] = {}
    if name == "create_many":
        arguments["jobs"] = [{}]
    plan: Any = method.plan(None, **arguments)
    return plan if isinstance(plan, Call) else next(plan)


@pytest.mark.parametrize("job", ["nightly", 7, None])
def test_what_is_no_job_is_refused_before_it_is_sent(job: Any) -> None:
    with (
        SyncClient("http://127.0.0.1:9") as client,
        pytest.raises(ClientError, match=r"a mapping or task\.bind\(…\), not a (str|int|None)"),
    ):
        client.jobs.create(job)


def test_a_job_that_was_read_says_how_it_is_made() -> None:
    # Both ways: what is read can be sent.
    text = b"""{"job_id": "job_1", "type": "RECURRING", "status": "SCHEDULED", "version": 1,
      "next_run_at": "2026-04-08T02:00:00+05:30", "name": "n", "tenant_id": "t", "queue": "default",
      "schedule": {"cron": "0 2 * * *", "timezone": "Asia/Kolkata", "starts_at": null},
      "action": {"type": "TASK", "name": "count", "payload": {"a": 1}}, "retry_policy": {"max_retries": 3},
      "priority": "HIGH", "timeout_seconds": 30, "delivery": "at_least_once", "labels": {},
      "notifications": [], "created_at": "2026-04-08T02:00:00Z", "updated_at": "2026-04-08T02:00:00Z",
      "a_field_of_a_newer_server": 1}"""
    job = msgspec.json.decode(text, type=values.Job)
    assert job.schedule == values.cron("0 2 * * *", timezone="Asia/Kolkata")
    assert job.action == values.Task(name="count", payload={"a": 1})
    assert job.next_run_at is not None
    assert job.next_run_at.isoformat() == "2026-04-08T02:00:00+05:30"


def test_the_page_of_all_methods_is_what_the_script_prints() -> None:
    printed = subprocess.run(
        [ROOT / "scripts" / "client-methods"], capture_output=True, text=True, check=True
    )
    assert (ROOT / "docs" / "client-methods.md").read_text() == printed.stdout, (
        "run scripts/client-methods > docs/client-methods.md"
    )
