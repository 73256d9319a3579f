"""What /metrics of a whole system says, after work of every kind has come to rest, is what the database says.

The system runs once, in the fixture `rest`; the tests look at what it said.
"""

import asyncio
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import asyncpg
import pytest

import services
from conftest import DatabaseMaker
from exposition import Metric, parsed
from hourbell import App
from hourbell.compose import ALL_ROLES, running
from hourbell.engine.codes import FATES
from hourbell.engine.views import cell_metrics
from hourbell.model.policies import Priority
from hourbell.sdk.running import entered
from hourbell.security.egress import LOOPBACK
from hourbell.settings import Settings
from integration.life.support import eventually
from ports import free_port

DOCS = Path(__file__).parents[3] / "docs"

_PLACES = """
select q.name as queue, e.priority, p.state, count(*)::int as n from (
  select id, case when run_at <= clock_timestamp() then 'due' else 'scheduled' end as state from hourbell.due
  union all
  select unnest(ids), case when run_at <= clock_timestamp() then 'due' else 'scheduled' end from hourbell.due_slabs
  union all select id, 'parked' from hourbell.parked
  union all select id, 'paused' from hourbell.paused
  union all select unnest(ids), 'ready' from hourbell.ready
  union all select id, 'ready' from hourbell.suspects
  union all select id, case session when 0 then 'awaiting' else 'running' end from hourbell.leases) as p
join hourbell.executions as e on e.id = p.id join hourbell.queues as q on q.id = e.queue
group by 1, 2, 3
"""
_ENDED = "select status, reason, count(*)::int as n from hourbell.ledger group by 1, 2"
_LETTERS = "select count(*)::int from hourbell.dead_letters"
_PARKED = "select count(*)::int from hourbell.parked where kind = 1"
_EPOCH = "select epoch from hourbell.leadership"
# Attempts that were made, by tenant: those that have failed, the one that ended it, and the one that runs.
_ATTEMPTS = """
select t.name as tenant, sum(e.attempt + (o.session is not null)::int + (l.id is not null)::int)::int as n
from hourbell.executions as e join hourbell.tenants as t on t.id = e.tenant
left join hourbell.outcomes as o on o.id = e.id left join hourbell.leases as l on l.id = e.id
group by 1 having sum(e.attempt + (o.session is not null)::int + (l.id is not null)::int) > 0
"""


class Rest(NamedTuple):
    """A system at rest: what it says, and what its database says."""

    text: str
    metrics: dict[str, Metric]
    executions: dict[tuple[str, str, str], int]  # by queue, priority, state
    ended: dict[tuple[str, str], int]  # by status and reason
    attempts: dict[str, int]  # by tenant
    dead_letters: int
    parked: int
    epoch: int


async def succeeds() -> None: ...


async def fails() -> None:
    raise ValueError("bad")


def job(task: str, **fields: Any) -> dict[str, Any]:
    action = {"type": "TASK", "name": f"shop.{task}"}
    once = {"delay_seconds": 0}
    return {"name": "job", "type": "ONE_TIME", "schedule": once, "action": action} | fields


class Api:
    """Creates jobs, each under a key of its own."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http
        self._keys = 0

    async def post(self, path: str, document: object = None, key: str | None = None) -> Any:
        self._keys += 1
        headers = {"Idempotency-Key": key or f"key-{self._keys}"}
        async with self._http.post(path, json=document or {}, headers=headers) as answer:
            assert answer.status in (200, 201, 202, 409), await answer.text()
            return await answer.json(content_type=None)

    async def create(self, document: object, count: int = 1) -> list[str]:
        return [(await self.post("/api/v1/jobs", document))["job_id"] for _ in range(count)]


async def create_work(api: Api, url: str) -> None:
    """Executions of every kind: ENDED of them end, and one runs until it was looked at."""
    later, mail = {"delay_seconds": 3600}, {"queue": "mail", "priority": "HIGH"}
    await api.create(job("succeeds", tenant_id="acme"), 12)
    await api.create(job("succeeds", tenant_id="globex", **mail), 8)
    await api.create(job("fails", retry_policy={"max_retries": 0}), 3)
    await api.create(job("fails", retry_policy={"delays_seconds": [3600]}), 2)
    for paused in await api.create(job("succeeds", schedule=later, **mail), 3):
        await api.post(f"/api/v1/jobs/{paused}/pause")
    await api.create(job("succeeds", schedule=later, priority="LOW"), 4)
    await api.create(job("succeeds", queue="reports"), 2)  # nobody serves it
    await api.create(job("succeeds", queue="reports", start_deadline_seconds=1))
    await api.create(job("waits", priority="CRITICAL"))
    await api.create(job("succeeds", queue="remote"))
    for path in ("livez", "nowhere"):
        webhook = {"type": "WEBHOOK", "url": f"{url}/{path}", "method": "GET"}
        await api.create(job("", action=webhook, retry_policy={"max_retries": 0}))
    for _ in range(3):
        await api.post("/api/v1/jobs", job("succeeds", schedule=later, name="a"), key="the same")
        await api.post("/api/v1/jobs", job("succeeds", schedule=later, unique_key="one"))


async def work_over_http(http: aiohttp.ClientSession) -> None:
    """One execution of the queue `remote`, by a worker that leaves then."""

    async def call(path: str, **body: object) -> Any:
        async with http.post(f"/internal/v1/{path}", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    wanted = {"queues": ["remote"], "capacity": 1, "wait_seconds": 20}
    claim = await call("executions/claim", worker_id="elsewhere", **wanted)
    [execution], token = claim["executions"], {"session_token": claim["session_token"]}
    fence = {"fence_token": execution["fence_token"], "status": "SUCCEEDED", "duration_ms": 5}
    await call(f"executions/{execution['execution_id']}/complete", **token, **fence)
    await call("sessions/close", **token)


ENDED, RETRYING = 12 + 8 + 3 + 1 + 2 + 1, 2


async def is_at_rest(connection: asyncpg.Connection) -> bool:
    ended = await connection.fetchval("select count(*) from hourbell.outcomes")
    retrying = await connection.fetchval(
        "select count(*) from hourbell.executions where attempt > 0"
    )
    held = await connection.fetchval("select count(*) from hourbell.leases")
    return (ended, retrying, held) == (ENDED, RETRYING, 1)


@pytest.fixture(scope="module")
async def rest(
    postgres: str, new_database: DatabaseMaker, tmp_path_factory: pytest.TempPathFactory
) -> Rest:
    seen = asyncio.Event()

    app = App("shop")

    @app.task(name="waits")
    async def waits() -> None:
        await seen.wait()

    app.task(name="succeeds")(succeeds)
    app.task(name="fails")(fails)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    async with new_database(postgres) as dsn:
        settings = Settings(
            data_dir=tmp_path_factory.mktemp("data"),
            database_url=dsn,
            port=port,
            worker_queues="default,mail",
            egress_allow=",".join(LOOPBACK),
        )
        connection = await asyncpg.connect(dsn)
        await connection.execute("delete from hourbell.sessions")  # of nobody, who serves all
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cell_metrics, "FRESH_SECONDS", 0.0)
            for name in ("ANSWER_SECONDS", "READ_SECONDS"):
                patch.setattr(cell_metrics, name, 20.0)
            async with (
                entered(app) as tasks,
                running(dsn, settings, ALL_ROLES, tasks),
                aiohttp.ClientSession(url) as http,
            ):
                await create_work(Api(http), url)
                await work_over_http(http)
                await eventually(lambda: is_at_rest(connection), 60)
                found = await looked_at(connection, http)
                seen.set()
        await connection.close()
        return found


async def looked_at(connection: asyncpg.Connection, http: aiohttp.ClientSession) -> Rest:
    async with http.get("/metrics") as answer:
        assert answer.status == 200
        text = await answer.text()
    return Rest(
        text,
        parsed(text),
        {
            (row["queue"], Priority(row["priority"]).name, row["state"]): row["n"]
            for row in await connection.fetch(_PLACES)
        },
        {
            (FATES[row["status"]].value, row["reason"] or "none"): row["n"]
            for row in await connection.fetch(_ENDED)
        },
        {row["tenant"]: row["n"] for row in await connection.fetch(_ATTEMPTS)},
        await connection.fetchval(_LETTERS),
        await connection.fetchval(_PARKED),
        await connection.fetchval(_EPOCH),
    )


def nonzero(metric: Metric, *labels: str) -> dict[tuple[str, ...], float]:
    """The samples that are not 0, by the values of these labels."""
    found: Counter[tuple[str, ...]] = Counter()
    for (_, own), value in metric.samples.items():
        found[tuple(dict(own)[label] for label in labels)] += value  # type: ignore[assignment]
    return {key: value for key, value in found.items() if value}


def test_the_depth_of_each_queue_is_that_of_the_database(rest: Rest) -> None:
    depth = nonzero(rest.metrics["hourbell_queue_executions"], "queue", "priority", "state")
    assert depth == rest.executions
    assert {state for _, _, state in depth} >= {"scheduled", "parked", "paused", "running"}
    assert rest.metrics["hourbell_parked"].value(blocker="queue") == rest.parked == 2


def test_outcomes_by_status_and_reason_are_those_of_the_ledger(rest: Rest) -> None:
    outcomes = nonzero(rest.metrics["hourbell_outcomes_total"], "status", "reason")
    assert outcomes == rest.ended
    assert ("SKIPPED", "start_deadline") in outcomes
    assert rest.metrics["hourbell_dead_letters"].value() == rest.dead_letters > 0


def test_deliveries_are_the_attempts_of_each_tenant(rest: Rest) -> None:
    deliveries = nonzero(rest.metrics["hourbell_deliveries_total"], "tenant")
    assert {tenant: count for (tenant,), count in deliveries.items()} == rest.attempts


def test_each_run_has_its_time_and_each_first_start_its_delay(rest: Rest) -> None:
    metrics, attempts = rest.metrics, sum(rest.attempts.values())
    runs = metrics["hourbell_run_duration_seconds"]
    assert runs.value("_count", task="shop.succeeds") == 20
    assert runs.value("_count", task="shop.fails") == 5
    assert runs.value("_count", task="@webhook") == 2
    delays = metrics["hourbell_schedule_delay_seconds"]
    assert delays.value("_count") == attempts  # none has been tried again
    assert delays.value("_sum") < 10 * attempts
    for verb in ("claim", "settle", "create", "admit"):
        assert metrics["hourbell_batch_size"].value("_count", verb=verb) > 0
    assert metrics["hourbell_batch_size"].value("_sum", verb="claim") == attempts
    assert metrics["hourbell_batch_size"].value("_sum", verb="settle") == attempts - 1


def test_retries_duplicates_and_webhooks_are_counted(rest: Rest) -> None:
    metrics = rest.metrics
    assert nonzero(metrics["hourbell_retries_total"], "kind") == {("ValueError",): 2}
    assert nonzero(metrics["hourbell_duplicates_total"], "layer") == {
        ("idempotency_key",): 2,
        ("unique_key",): 2,
    }
    assert nonzero(metrics["hourbell_webhook_responses_total"], "code") == {
        ("200",): 1,
        ("404",): 1,
    }
    assert metrics["hourbell_worker_in_flight"].value() == 1
    assert metrics["hourbell_worker_slots"].value() == 200


def test_leader_workers_and_connections_are_shown(rest: Rest) -> None:
    metrics = rest.metrics
    assert metrics["hourbell_leading"].value() == 1
    assert metrics["hourbell_leader_changes_total"].value() == 1
    assert metrics["hourbell_leader_epoch"].value() == rest.epoch
    assert metrics["hourbell_workers"].value() == 1
    assert metrics["hourbell_queue_workers"].values("queue") == {
        "default": 1,
        "mail": 1,
        "remote": 0,
        "reports": 0,
    }
    assert metrics["hourbell_queue_slots"].value(queue="mail") == 200
    assert metrics["hourbell_database_up"].value() == 1
    assert abs(metrics["hourbell_clock_drift_seconds"].value()) < 1
    assert metrics["hourbell_pool_max_connections"].values("pool") == {"engine": 12, "api": 12}
    assert metrics["hourbell_queue_oldest_age_seconds"].value(queue="reports") > 0
    assert metrics["hourbell_queue_oldest_age_seconds"].value(queue="default") == 0
    assert metrics["hourbell_queue_backlog_seconds"].value(queue="reports") > 0


# What users are given.


def documented() -> dict[str, tuple[str, set[str]]]:
    """The table of all metrics: type and labels by name."""
    text = (DOCS / "metrics.md").read_text()
    rows = re.findall(r"^\| `(hourbell_\w+)` \| (\w+) \|([^|]*)\|", text, re.MULTILINE)
    assert len({name for name, _, _ in rows}) == len(rows)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_the_page_lists_exactly_what_is_printed(rest: Rest) -> None:
    printed = {
        name: (metric.kind, {label for _, own in metric.samples for label, _ in own} - {"le"})
        for name, metric in rest.metrics.items()
    }
    assert printed == documented()


def test_promtool_finds_nothing_wrong_with_what_is_printed(rest: Rest) -> None:
    promtool("check", "metrics", stdin=rest.text)


def test_each_alert_fires_in_its_example_and_none_while_all_is_well() -> None:
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts_test.yml")
    rules = (DOCS / "monitoring" / "alerts.yml").read_text()
    tests = (DOCS / "monitoring" / "alerts_test.yml").read_text()
    alerts = set(re.findall(r"- alert: (\w+)", rules))
    fire = re.findall(r"alertname: (\w+)\n +exp_alerts:\n", tests)
    silent = re.findall(r"eval_time: 25m\n +alertname: (\w+)\n +exp_alerts: \[\]", tests)
    assert alerts == set(fire) == set(silent)


@pytest.mark.parametrize("file", ["alerts.yml", "grafana.json", "keda.yaml"])
def test_every_expression_names_only_metrics_and_labels_that_exist(file: str) -> None:
    known = documented()
    for expression in expressions(file):
        selectors = re.findall(r"(hourbell_\w+)(?:\{([^}]*)\})?", expression)
        assert selectors, expression
        for name, matchers in selectors:
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            kind, labels = known[base if known.get(base, ("",))[0] == "histogram" else name]
            used = set(re.findall(r"(\w+)=~?\"", matchers)) - {"job"}
            assert used <= labels, expression
            assert (kind == "histogram") == (base != name), expression


def test_every_expression_finds_something_among_what_is_printed(rest: Rest, tmp_path: Path) -> None:
    series = [
        {"series": f"{name}{suffix}{{{labelled(own)}}}", "values": f"{value}x20"}
        for name, metric in rest.metrics.items()
        for (suffix, own), value in metric.samples.items()
    ]
    found = [
        {
            "expr": f"count({filled_in(expression)}) >= bool 1",
            "eval_time": "10m",
            "exp_samples": [{"labels": "{}", "value": 1}],
        }
        for expression in (*expressions("grafana.json"), *expressions("keda.yaml"))
    ]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": found}
    file = tmp_path / "expressions.yml"
    file.write_text(json.dumps({"evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", str(file))


def labelled(own: Iterable[tuple[str, str]]) -> str:
    return ",".join(f"{label}={json.dumps(value)}" for label, value in (*own, ("job", "hourbell")))


def filled_in(expression: str) -> str:
    """As Grafana sends it, with `All` for the job."""
    return expression.replace("$job", ".*").replace("$__rate_interval", "5m")


def expressions(file: str) -> list[str]:
    text = (DOCS / "monitoring" / file).read_text()
    if file == "grafana.json":
        return [target["expr"] for panel in panels(json.loads(text)) for target in panel["targets"]]
    return re.findall(r"^ +(?:expr|query): (.+)$", text, re.MULTILINE)


def panels(board: Any) -> Iterable[Any]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_every_name_of_a_metric_in_the_pages_exists() -> None:
    known = documented()
    others = {f"hourbell_{fixture}" for fixture in ("app", "database", "prepare", "server")}
    for page in sorted(DOCS.glob("**/*.md")):
        names = set(re.findall(r"`(hourbell_\w+)`", page.read_text()))
        assert names <= known.keys() | others, page


def test_the_board_is_one_that_grafana_can_import() -> None:
    board = json.loads((DOCS / "monitoring" / "grafana.json").read_text())
    assert board["schemaVersion"] >= 36
    assert {each["name"]: each["type"] for each in board["templating"]["list"]} == {
        "datasource": "datasource",
        "job": "query",
    }
    source = {"type": "prometheus", "uid": "${datasource}"}
    for panel in board["panels"]:
        if panel["type"] == "row":
            assert (panel["collapsed"], panel["panels"]) == (False, [])
            continue
        assert panel["type"] in ("stat", "timeseries")
        assert panel["datasource"] == source
        assert panel["fieldConfig"]["overrides"] == []
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        for target in panel["targets"]:
            assert target["datasource"] == source
            labels = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            grouped = re.findall(r"by \(([^)]*)\)", target["expr"])
            kept = {label.strip() for group in grouped for label in group.split(",")}
            assert set(labels) <= kept | ({"instance", "pool"} if not grouped else set()), panel
        if panel["type"] == "stat":  # the first step of thresholds has no value; the others rise
            first, *rest = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            assert first["value"] is None
            assert [step["value"] for step in rest] == sorted(step["value"] for step in rest)


def test_the_board_has_panels_that_do_not_overlap_and_have_a_unit() -> None:
    board = json.loads((DOCS / "monitoring" / "grafana.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert taken.isdisjoint(cells), panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert all(panel["fieldConfig"]["defaults"]["unit"] for panel in panels(board))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def promtool(*arguments: str, stdin: str = "") -> None:
    done = subprocess.run(
        [services.promtool(), *arguments],
        input=stdin,
        cwd=DOCS / "monitoring",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
