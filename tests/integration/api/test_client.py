"""Both clients against a real server; what they send and read is the same code."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hourbell import App, Options, Retry
from hourbell.api.server import ApiServer
from hourbell.client import (
    AccessDenied,
    Client,
    Conflict,
    CreatedJob,
    InvalidRequest,
    NewJob,
    NotFound,
    RateLimit,
    RefusedJob,
    RetryPolicy,
    SyncClient,
    Task,
    TenantSettings,
    Unreachable,
    Webhook,
    cron,
    delay,
    every,
)
from hourbell.client import resources as client_resources
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.errors import InvalidArguments
from integration.api.client import Client as Checked
from integration.api.client import recurring
from integration.api.working import Hand, dead

TOMORROW = delay(86_400)
YEARLY = NewJob(
    name="yearly",
    schedule=cron("0 3 1 1 *", timezone="Asia/Kolkata"),
    action=Webhook(url="https://example.com/report", headers={"X-A": "1"}, body={"a": [1, None]}),
    retry_policy=RetryPolicy(delays_seconds=(60, 300)),
    priority="HIGH",
    tenant_id="acme",
    labels={"team": "billing"},
)
ONCE = NewJob(name="once", schedule=TOMORROW, action=Task(name="count"))


class InThreads:
    """The sync client, called from a test that also runs the server."""

    def __init__(self, sync: SyncClient) -> None:
        self.sync = sync

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.sync, name)
        if not callable(found):
            return InThreads(found)

        def call(*args: Any, **kwargs: Any) -> Any:
            if not name.startswith("each"):
                return asyncio.to_thread(found, *args, **kwargs)
            return self._each(lambda: list(found(*args, **kwargs)))

        return call

    async def _each(self, items: Callable[[], list[Any]]) -> AsyncIterator[Any]:
        for item in await asyncio.to_thread(items):
            yield item


@pytest.fixture(params=["async", "sync"])
async def client(server: ApiServer, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    url = f"http://127.0.0.1:{server.port}"
    if request.param == "async":
        async with Client(url) as client:
            yield client
    else:
        with SyncClient(url) as sync:
            yield InThreads(sync)


async def test_a_job_is_created_read_changed_run_and_deleted(client: Any) -> None:
    made = await client.jobs.create(YEARLY)
    assert (made.type, made.status, made.version, made.tenant_id) == (
        "RECURRING",
        "SCHEDULED",
        1,
        "acme",
    )
    assert made.retry_policy.delays_seconds == [60, 300]
    assert made.action.body == {"a": [1, None]}
    assert made.next_run_at.utcoffset() == timedelta(hours=5, minutes=30)
    assert (made.created_tenant, made.created_queue) == (True, False)
    read = await client.jobs.get(made.job_id)
    assert read == msgspec.structs.replace(made, created_tenant=False)
    changed = await client.jobs.update(made.job_id, {"priority": "LOW"}, version=1)
    assert (changed.priority, changed.version) == ("LOW", 2)
    with pytest.raises(Conflict) as refused:
        await client.jobs.update(made.job_id, {"priority": "HIGH"}, version=1)
    assert refused.value.code == "precondition_failed"
    assert (await client.jobs.pause(made.job_id)).status == "PAUSED"
    assert (await client.jobs.explain(made.job_id)).code == "paused"
    assert (await client.jobs.resume(made.job_id)).status == "SCHEDULED"
    runs = await client.jobs.next_runs(made.job_id, count=2)
    assert len(runs.items) == 2
    requested = await client.jobs.run(made.job_id, body={"a": 2})
    execution = await client.executions.get(requested.execution_ids[0])
    assert (execution.job_id, execution.origin) == (made.job_id, "run_now")
    page = await client.jobs.executions(made.job_id, status=["SCHEDULED", "QUEUED"])
    assert [each.execution_id for each in page.items] == [execution.execution_id]
    assert (await client.jobs.delete(made.job_id, cancel_running=True)).status == "CANCELLED"
    audit = [entry async for entry in client.jobs.each_audit(made.job_id)]
    assert [entry.operation for entry in audit][-1] == "create"


async def test_a_mapping_is_sent_as_it_is(client: Any) -> None:
    document = {
        "name": "mapped",
        "type": "ONE_TIME",
        "schedule": {"delay_seconds": 86_400},
        "action": {"type": "TASK", "name": "count", "payload": None},
    }
    assert (await client.jobs.create(document)).name == "mapped"


async def test_a_bound_task_becomes_the_job_that_enqueue_would_create(
    client: Any, database: str
) -> None:
    app = App("shop", url=database)

    @app.task(
        name="remind",
        queue="mail",
        retry=Retry.delays(60, 300),
        timeout=30,
        deadline=3600,
        labels={"team": "mail"},
        concurrency_key=lambda cart_id: f"cart:{cart_id}",
        concurrency_limit=2,
    )
    async def remind(cart_id: int) -> None: ...

    @app.task(name="fragile", delivery="at_most_once", retry=Retry.never())
    async def fragile() -> None: ...

    at = datetime(2031, 5, 6, 4, 30, tzinfo=UTC)
    options: Options = {"tenant": "acme", "priority": "HIGH", "expires_in": 600}
    calls: list[Callable[[str], Any]] = [
        lambda key: remind.configure(at=at, unique_key=key, **options).bind(7),
        lambda key: remind.configure(
            delay=86_400, unique_key=key, unique_scope="tenant", retry=Retry.linear(5, step=7)
        ).bind(7),
        lambda key: fragile.configure(at=at, unique_key=key).bind(),
    ]
    own = {"job_id", "created_at", "updated_at", "next_run_at", "schedule", "unique_key"}
    own |= {"created_tenant"}
    async with app:
        for call in calls:
            over_api = await client.jobs.create(call("api"))
            (enqueued,) = await app.enqueue_many([call("library")])
            by_library = await client.jobs.get(enqueued.id)
            one, other = msgspec.structs.asdict(over_api), msgspec.structs.asdict(by_library)
            differ = {name for name in one if one[name] != other[name]} - own
            assert differ == set()
            assert over_api.unique_key == by_library.unique_key.replace("library", "api")
            due = over_api.next_run_at - by_library.next_run_at
            assert abs(due) < timedelta(seconds=60)
    (made,) = await client.jobs.create_many([remind.configure(delay=0.2).bind(8)])
    assert isinstance(made, CreatedJob)


async def test_what_only_the_library_can_do_is_not_sent(client: Any) -> None:
    app = App("shop")

    @app.task(name="remind")
    async def remind(cart_id: int) -> None: ...

    for options, text in (
        ({"expires_at": datetime(2031, 5, 6, tzinfo=UTC)}, "use expires_in="),
        ({"idempotency_key": "k"}, "pass it to the client's create"),
        ({"connection": object()}, "leave out connection="),
    ):
        with pytest.raises(InvalidArguments, match=text):
            await client.jobs.create(remind.configure(**options).bind(7))
    with pytest.raises(InvalidArguments, match="cart_id must be int, not str '7'"):
        await client.jobs.create(remind.bind("7"))  # type: ignore[arg-type]


async def test_an_invalid_job_names_every_invalid_field(client: Any) -> None:
    wrong = NewJob(name="", schedule=cron("61 * * * *"), action=Task(name="count"))
    with pytest.raises(InvalidRequest) as refused:
        await client.jobs.create(wrong)
    assert refused.value.code == "invalid_input"
    assert {error.path for error in refused.value.errors} == {"name", "schedule.cron"}


async def test_the_same_idempotency_key_creates_one_job(client: Any) -> None:
    first = await client.jobs.create(ONCE, idempotency_key="mine")
    assert await client.jobs.create(ONCE, idempotency_key="mine") == first
    assert len([job async for job in client.jobs.each()]) == 1


async def test_many_jobs_are_created_in_several_batches_with_results_in_order(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_resources, "MAX_BATCH_ITEMS", 3)
    jobs: list[Any] = [
        NewJob(name=f"job {number}", schedule=TOMORROW, action=Task(name="count"))
        for number in range(8)
    ]
    jobs[4] = {"name": "wrong"}
    results = await client.jobs.create_many(iter(jobs))
    assert [type(result) for result in results] == [
        RefusedJob if number == 4 else CreatedJob for number in range(8)
    ]
    assert results[4].code == "invalid_input"
    assert "schedule" in {error.path for error in results[4].errors}
    listed = {job.job_id: job.name async for job in client.jobs.each()}
    made = [result for result in results if isinstance(result, CreatedJob)]
    assert [listed[one.job_id] for one in made] == [f"job {n}" for n in range(8) if n != 4]


async def test_each_goes_through_all_pages_and_list_returns_one(client: Any) -> None:
    await client.jobs.create_many([ONCE] * 5)
    page = await client.jobs.list(page_size=2)
    assert len(page.items) == 2
    second = await client.jobs.list(page_size=2, page_token=page.next_page_token)
    assert len(second.items) == 2
    everything = [job.job_id async for job in client.jobs.each(page_size=2)]
    assert len(everything) == len(set(everything)) == 5
    rest = [job.job_id async for job in client.jobs.each(page_token=second.next_page_token)]
    assert rest == everything[4:]


async def test_filters_select(client: Any) -> None:
    await client.jobs.create(YEARLY)
    await client.jobs.create(ONCE)
    for selected in (
        {"tenant_id": "acme"},
        {"type": "RECURRING"},
        {"name_prefix": "year"},
        {"label": "team:billing"},
    ):
        assert [job.name async for job in client.jobs.each(**selected)] == ["yearly"]


async def test_put_creates_and_then_replaces(client: Any) -> None:
    first = await client.jobs.put("by name, ä?", {**document("RECURRING"), "priority": "HIGH"})
    second = await client.jobs.put("by name, ä?", document("RECURRING"))
    assert (second.job_id, second.priority, second.version) == (first.job_id, "MEDIUM", 2)


def document(kind: str) -> dict[str, Any]:
    return {
        "type": kind,
        "schedule": {"cron": "0 3 1 1 *"},
        "action": {"type": "TASK", "name": "x"},
    }


async def test_a_backfill_requests_past_occurrences(client: Any) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    made = await client.jobs.create(
        NewJob(name="b", schedule=every(3600, starts_at=start), action=Task(name="count"))
    )
    requested = await client.jobs.backfill(
        made.job_id, after=start, through=start + timedelta(hours=2)
    )
    assert len(requested.execution_ids) == 2


async def test_dead_letters_are_listed_replayed_and_purged(
    client: Any, dispatch: PostgresDispatch, api: Checked
) -> None:
    hand = Hand(dispatch)
    ids = [(await dead(api, hand, recurring()))["execution_id"] for _ in range(3)]
    letters = [letter async for letter in client.dead_letters.each(page_size=2)]
    assert {letter.execution_id for letter in letters} == set(ids)
    whole = await client.dead_letters.get(ids[0])
    assert len(whole.attempts) == whole.attempt
    assert whole.job is not None
    assert (await client.dead_letters.replay(ids[0])).execution_id == ids[0]
    assert (await client.dead_letters.purge(ids[1])).purged == 1
    assert (await client.dead_letters.replay_many(job_id=whole.job_id)).replayed == 0
    assert (await client.dead_letters.replay_many(limit=10, rate_per_second=5)).replayed == 1
    assert (await client.dead_letters.purge_many(reason="retries_exhausted")).purged == 0
    with pytest.raises(Conflict):
        await client.executions.cancel(ids[1])


async def test_executions_are_cancelled_and_explained(client: Any) -> None:
    made = await client.jobs.create(ONCE)
    execution = (await client.jobs.executions(made.job_id)).items[0]
    assert (await client.executions.explain(execution.execution_id)).code == "not_due"
    cancelled = await client.executions.cancel(execution.execution_id)
    assert cancelled.status == "CANCELLED"
    with pytest.raises(Conflict):
        await client.executions.retry(execution.execution_id)
    found = [one async for one in client.executions.each(status="CANCELLED", job_id=made.job_id)]
    assert [one.execution_id for one in found] == [execution.execution_id]


async def test_tenants_queues_and_targets_are_set_and_read(client: Any) -> None:
    limits = TenantSettings(weight=2.0, rate_limit=RateLimit(per_second=5.0))
    tenant = await client.tenants.set("acme", limits)
    assert (tenant.weight, tenant.rate_limit.per_second) == (2.0, 5.0)
    assert (await client.tenants.get("acme")).counts["jobs"] == 0
    assert "acme" in [one.tenant_id async for one in client.tenants.each()]
    queue = await client.queues.set("mail", {"max_concurrency": 3, "default_timeout_seconds": 9})
    assert (queue.max_concurrency, queue.default_timeout_seconds) == (3, 9)
    assert (await client.queues.get("mail")).counts["ready"] == 0
    assert "mail" in [one.queue async for one in client.queues.each()]
    target = await client.targets.set("example.com", {"max_concurrency": 1})
    assert target.max_concurrency == 1
    assert (await client.targets.get("example.com")).host == "example.com"
    assert [one.host async for one in client.targets.each()] == ["example.com"]


async def test_secrets_are_set_listed_and_deleted_and_generated_ones_are_returned(
    client: Any,
) -> None:
    assert (await client.secrets.set("token", "s3cret-value")).value is None
    assert (await client.secrets.set("signing")).value.startswith("whsec_")
    assert {one.name async for one in client.secrets.each()} == {"token", "signing"}
    assert (await client.secrets.delete("token")).name == "token"
    assert [one.name async for one in client.secrets.each()] == ["signing"]


async def test_monitors_are_created_read_listed_and_deleted(client: Any) -> None:
    job = await client.jobs.create(YEARLY)
    made = await client.monitors.create(job.job_id, "https://example.com/alert", grace_seconds=60)
    assert (await client.monitors.get(made.monitor_id)).status == "UP"
    assert [one.monitor_id async for one in client.monitors.each()] == [made.monitor_id]
    await client.monitors.delete(made.monitor_id)
    with pytest.raises(NotFound):
        await client.monitors.get(made.monitor_id)


async def test_the_audit_trail_and_the_forecast_are_read(client: Any) -> None:
    await client.jobs.create(ONCE)
    assert [entry.operation async for entry in client.cell.each_audit()] == ["create"]
    forecast = await client.cell.forecast(hours=48)
    assert sum(minute.executions for minute in forecast.minutes) == 1


async def test_without_a_key_and_without_the_right_access_is_denied(
    client: Any, server: ApiServer
) -> None:
    admin = await client.keys.create("first", "admin")
    assert admin.key is not None
    with pytest.raises(AccessDenied) as denied:
        await client.jobs.list()
    assert denied.value.code == "unauthenticated"
    async with Client(f"http://127.0.0.1:{server.port}/", admin.key) as allowed:
        viewer = await allowed.keys.create("viewer", "viewer", tenant_id="acme")
        assert {key.name async for key in allowed.keys.each()} == {"first", "viewer"}
        async with Client(f"http://127.0.0.1:{server.port}", viewer.key) as reading:
            with pytest.raises(AccessDenied) as denied:
                await reading.jobs.create(YEARLY)
            assert denied.value.code == "forbidden"
        assert (await allowed.keys.revoke(viewer.key_id)).revoked_at is not None


async def test_an_unknown_id_is_not_found(client: Any) -> None:
    with pytest.raises(NotFound):
        await client.jobs.get("job_00000000000000000000")


@pytest.mark.parametrize("passed", [0, 400], ids=["whole", "in part"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_write_whose_response_is_lost_takes_effect_once(
    server: ApiServer, kind: str, passed: int
) -> None:
    """A proxy that forwards the first request and drops its response, or the end of it."""
    dropped = 0

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal dropped
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", server.port)

        async def forward() -> None:
            while chunk := await reader.read(65_536):
                up_writer.write(chunk)
            up_writer.close()

        forwarding = asyncio.create_task(forward())
        if dropped == 0:
            answer = await up_reader.readexactly(passed + 1)
            dropped += 1
            writer.write(answer[:passed])
        else:
            while chunk := await up_reader.read(65_536):
                writer.write(chunk)
        forwarding.cancel()
        up_writer.close()
        writer.close()

    between = await asyncio.start_server(proxy, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{between.sockets[0].getsockname()[1]}"
    async with between:
        if kind == "async":
            async with Client(url) as client:
                made = await client.jobs.create(ONCE)
                jobs = [job.job_id async for job in client.jobs.each()]
        else:
            with SyncClient(url) as sync:
                made = await asyncio.to_thread(sync.jobs.create, ONCE)
                jobs = [job.job_id for job in await asyncio.to_thread(list, sync.jobs.each())]
    assert dropped == 1
    assert jobs == [made.job_id]


async def test_the_sync_client_notices_that_the_server_closed_an_idle_connection() -> None:
    body = b'{"items": [], "next_page_token": null}'
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    closed: asyncio.Queue[None] = asyncio.Queue()

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + body)
        writer.close()
        await writer.wait_closed()
        closed.put_nowait(None)

    async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as short:
        url = f"http://127.0.0.1:{short.sockets[0].getsockname()[1]}"
        with SyncClient(url, retries=0) as sync:
            for _ in range(3):
                assert (await asyncio.to_thread(sync.jobs.list)).items == []
                await closed.get()


async def test_threads_share_a_sync_client(server: ApiServer) -> None:
    with SyncClient(f"http://127.0.0.1:{server.port}") as sync:
        made = await asyncio.gather(*(asyncio.to_thread(sync.jobs.create, ONCE) for _ in range(20)))
    assert len({job.job_id for job in made}) == 20


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_no_server_is_reported_with_url_and_reason(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    reading: Awaitable[Any]
    async with Client(url, retries=1) as client:
        sync = SyncClient(url, retries=1)
        reading = client.jobs.list() if kind == "async" else asyncio.to_thread(sync.jobs.list)
        with pytest.raises(Unreachable) as lost:
            await reading
    assert lost.value.message == f"No response from {url}: connection refused."


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_server_that_does_not_answer_is_given_up(kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        reading: Awaitable[Any]
        async with Client(url, retries=0, timeout_seconds=0.2) as client:
            sync = SyncClient(url, retries=0, timeout_seconds=0.2)
            reading = client.jobs.list() if kind == "async" else asyncio.to_thread(sync.jobs.list)
            with pytest.raises(Unreachable, match=r"no response within 0\.2 seconds"):
                await reading


async def test_the_examples_of_the_documentation_run_as_they_are_printed(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs" / "client.md").read_text()
    first, second, tasks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    url = f"http://127.0.0.1:{server.port}"
    names: dict[str, Any] = {}
    exec(first.replace("http://127.0.0.1:8080", url), names)
    await names["main"]()
    assert capsys.readouterr().out.startswith("job_")
    await asyncio.to_thread(exec, second.replace("http://127.0.0.1:8080", url), {})
    async with Client(url) as client:
        assert {job.name async for job in client.jobs.each()} == {"nightly-report", "reminder"}
    found: dict[str, Any] = {}
    await asyncio.to_thread(exec, tasks.replace("http://127.0.0.1:8080", url), found)
    assert found["job"].unique_key == "shop.send_reminder:cart:7"
    assert {type(result) for result in found["results"]} == {CreatedJob}
