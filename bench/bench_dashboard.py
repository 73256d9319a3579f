"""The pages of the dashboard on big tables: how long each of the calls takes that they make, and how long the first page.

A fresh embedded server, filled straight into the tables: recurring jobs, the ledger of a month, a backlog of every kind,
dead letters, and the counts of a day. The API is a process of its own, as `hourbell api` runs it; calls are made one
after the other, over HTTP on the loopback interface. The first call of each is not counted: it plans the statements.
Then Chromium, if it is installed, loads the overview with an empty cache, until what needs attention is on the page.

    python bench/bench_dashboard.py [JOBS [EXECUTIONS]]    a million and ten million unless told
"""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import sys
import time
from collections import Counter
from datetime import timedelta
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from urllib.parse import urlencode

import psutil
import uvloop
from playwright.sync_api import Browser, sync_playwright
from support import engine, free_port, report, server, spawn

from hourbell.api.dashboard import FILES
from hourbell.compose import Role, running, tune_garbage_collector
from hourbell.engine.core import Engine
from hourbell.engine.leader.activity import MINUTE, SAMPLE, minute_of
from hourbell.settings import Settings
from hourbell.store.function_set import connect
from hourbell.store.queries import queries

JOBS = 1_000_000
EXECUTIONS = 10_000_000
LIVE = 100_000  # executions that wait or run, of each place
DAYS = timedelta(days=30)
CALLS = 30
LOADS = 10
CHUNK = 200_000
TARGET_MS = 300.0

# No look-ups of foreign keys row by row, nothing written to temporary files, and no commit that waits for the disk.
FASTER = """
set session_replication_role = replica;
set work_mem = '256MB';
set maintenance_work_mem = '512MB';
set synchronous_commit = off;
"""
# Built after the rows are there: with fifty million of them, most of the time would be spent on random pages.
INDEXES = """
select indexrelid::regclass::text as name, replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ') as definition
from pg_index where indrelid = 'hourbell.executions'::regclass and not indisprimary
"""
# Rows as the engine would have made them; $1 is now. Every spread is a remainder, nothing is random.
TIMETABLES = """
insert into hourbell.timetables (rule, zone, dst_gap, dst_overlap, planned_through, next_fire_at, plan_from, tz_version)
select '@every 86400+' || n, 'UTC', 'run_after', 'once', $1::timestamptz, $1 + n * interval '4 s', $1 + n * interval '4 s', '2026a'
from generate_series(1, 20000) as n
"""
# Half of the jobs are on three timetables.
MADE_JOBS = """
with made as (
  select hourbell.id_base($1::timestamptz - interval '40 days' + k * interval '1 s') | k as id, k, 1 + k % 97 as tenant, case when k % 2 = 0 then 1 + k % 3 else 4 + k % 19997 end as timetable,
    (k % 4)::smallint as priority, (1 + k % 4)::smallint as queue,
    (case when k % 50 = 7 then 1 when k % 200 = 9 then 3 else 0 end)::smallint as status
  from generate_series($2::int, $3::int) as k),
jobs as (
  insert into hourbell.jobs (id, tenant, queue, priority, status, timetable, created_at, updated_at, name, spec)
  select id, tenant, queue, priority, status, timetable, $1, $1, 'report-' || k, format(
    '{"name":"report-%s","action":{"type":"TASK","name":"noop","payload":{"pad":"%s"}},"type":"RECURRING","labels":{"team":"t%s"},"schedule":{"kind":"cron","cron":"%s %s * * *"}}',
    k, repeat('x', 180), k % 500, k % 60, k % 24)
  from made)
insert into hourbell.memberships
  (timetable, priority, job, version, active_since, joined_through, tenant, queue, misfire, catch_up_seconds, catch_up_limit,
   overlap, at_most_once)
select timetable, priority, id, 1, $1, $1, tenant, queue, 1, 86400, 100, 0, false from made where status = 0
"""
# A month, the oldest first, $4 in all: two of five are one-time jobs, and one job has had every 200th run. Of a hundred two
# are dead, one was skipped and one cancelled.
ENDED = """
with made as (
  insert into hourbell.executions as e (id, job, occurrence, run_at, tenant, version, queue, priority, origin, spec)
  select hourbell.id_base(at) | (n & 4194303), case when n % 5 > 1 then hourbell.id_base($1::timestamptz - interval '40 days' + k * interval '1 s') | k end, at, at, 1 + k % 97, 1, 1 + n % 4, n % 4, 0,
    case when n % 5 < 2 then format(
      '{"name":"reminder-%s","action":{"type":"TASK","name":"noop","payload":{"pad":"%s"}},"type":"ONE_TIME","schedule":{"kind":"once","at":"2026-01-01T00:00:00Z"}}',
      n, repeat('x', 180)) end
  from generate_series($2::bigint, $3::bigint) as n
  cross join lateral (
    select $1::timestamptz - (1 - n::float8 / $4::bigint) * interval '30 days' - interval '1 s' as at,
      case when n % 200 = 4 then 1 else 1 + n * 7919 % $5::bigint end as k) as t
  returning e, e.id, e.job, e.tenant, e.run_at),
ended as (
  select *, case when n < 2 then 1 when n = 2 then 4 when n = 3 then 2 else 0 end as fate,
    case when n < 2 then 'retries_exhausted' when n = 2 then 'overlap' when n = 3 then 'cancelled' end as reason,
    case when n < 2 then 'the target answered ' || 500 + id % 4 || ' after ' || id % 977 || ' ms' end as error
  from (select *, (id & 4194303) % 100 as n from made) as m),
outcomes as (
  insert into hourbell.outcomes (id, fence, started_at, finished_at, recorded_at, session, version, fate, reason, error)
  select id, 1, run_at, run_at + interval '50 ms', run_at + interval '60 ms', case when n not in (2, 3) then 1 end, 1, fate,
    reason, error
  from ended)
insert into hourbell.dead_letters (id, job, tenant, died_at, reason, error, execution)
select id, job, tenant, run_at + interval '60 ms', reason, error,
  hourbell.dead_letter_of(e, 1, 1, run_at, run_at + interval '50 ms', 'http_503', error, null)
from ended where fate = 1
"""
# One-time jobs that wait, are ready, parked and run, $2 of each; $3 is the number of the place.
LIVE_ROWS = """
insert into hourbell.executions (id, occurrence, run_at, tenant, version, queue, priority, origin, spec)
select hourbell.id_base($1::timestamptz) | ($3::int * $2::int + n), at, at, 1 + n % 97, 1, 1 + n % 4, n % 4, 0,
  '{"name":"waiting","action":{"type":"TASK","name":"noop"},"type":"ONE_TIME","schedule":{"kind":"once","at":"2026-01-01T00:00:00Z"}}'
from generate_series(0, $2 - 1) as n
cross join lateral (select $1::timestamptz + case when $3 = 0 then n * interval '500 ms' else interval '-1 s' end as at) as t
"""
PLACES = (
    """
    insert into hourbell.due (run_at, id, tenant, queue, priority, flags)
    select run_at, id, tenant, queue, priority, 0 from hourbell.executions where id between $1 and $2""",
    """
    insert into hourbell.ready (tag, last_tag, generation, task, queue, priority, limited, ids)
    select 1000 + min(n), 1000 + max(n), 0, 0, queue, priority, false, array_agg(id) from (
      select *, row_number() over (partition by queue, priority order by id) as n from hourbell.executions
      where id between $1 and $2) as e
    group by queue, priority, n / 100""",
    """
    insert into hourbell.parked (kind, key, priority, rank, id)
    select 2, tenant, priority, 1, id from hourbell.executions where id between $1 and $2""",
    """
    insert into hourbell.leased (session, fence, claimed_at, claim, alone, limited, notifies, ids)
    select 1 + n % 50, n + 1, hourbell.clock(), 1, false, false, false, array_agg(id) from (
      select id, (id - $1) / 100 as n from hourbell.executions where id between $1 and $2) as e
    group by n""",
)
OTHERS = """
insert into hourbell.sessions (id, token, worker, queues, slots, started_at, renewed_at, expires_at)
select n, gen_random_uuid(), 'worker-' || n, '{1,2,3,4}', 2000, hourbell.clock(), hourbell.clock(),
  hourbell.clock() + interval '1 day'
from generate_series(1, 50) as n;
insert into hourbell.virtual_time (queue, priority, v, highest, pass)
select queue, priority, min(tag), max(last_tag), 1 from hourbell.ready group by 1, 2;
"""


async def fill(made: Engine, jobs: int, executions: int) -> None:
    """Jobs, the ledger of a month, and a backlog."""
    now = await made.clock.now()
    await made.queues([f"queue-{number}" for number in range(4)], now)
    await made.tenants([f"tenant-{number}" for number in range(97)], now)
    connection = await connect(made.database.dsn)  # without a timeout
    try:
        await connection.execute(FASTER)
        begin = await connection.fetchval("select hourbell.id_base($1)", now)
        await connection.execute("select hourbell.make_partitions($1, 32, 3)", now - DAYS)
        await connection.execute(TIMETABLES, now)
        for first, last in chunks(jobs):
            await connection.execute(MADE_JOBS, now, first, last)
        indexes = await connection.fetch(INDEXES)
        for index in indexes:
            await connection.execute(f"drop index {index['name']}")
        for first, last in chunks(executions):
            await connection.execute(ENDED, now, first, last, executions, jobs)
        for index in indexes:
            await connection.execute(index["definition"])
        for number, place in enumerate(PLACES):
            first = begin + number * LIVE
            await connection.execute(LIVE_ROWS, now, LIVE, number)
            await connection.execute(place, first, first + LIVE - 1)
        await connection.execute(OTHERS)
        await connection.execute("vacuum analyze")
    finally:
        await connection.close()


def chunks(count: int) -> list[tuple[int, int]]:
    return [(first, min(first + CHUNK - 1, count)) for first in range(1, count + 1, CHUNK)]


async def count_day(made: Engine) -> dict[str, float]:
    """Counts a day as the leader does, minute by minute; how long a minute took, in ms."""
    now = await made.clock.now()
    taken = []
    for number in range(1440, 0, -1):
        minute = minute_of(now) - number * MINUTE
        began = time.monotonic()
        await made.database.fetch(
            queries("activity")["count_minute"], None, None, minute, now, True, SAMPLE
        )
        taken.append(time.monotonic() - began)
    return spread(taken)


def spread(taken: list[float]) -> dict[str, float]:
    ordered = sorted(taken)
    return {
        "p50_ms": round(median(ordered) * 1000, 1),
        "p99_ms": round(ordered[int(len(ordered) * 0.99)] * 1000, 1),
    }


def calls(connection: HTTPConnection) -> dict[str, str]:
    """What the pages read, by name."""
    now = time.time()

    def ago(hours: float) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - hours * 3600))

    def path(name: str, **query: object) -> str:
        return f"/api/v1/{name}?{urlencode(query)}" if query else f"/api/v1/{name}"

    def jobs(**query: object) -> str:
        return path("jobs", page_size=50, last_outcomes=20, **query)

    def runs(**query: object) -> str:
        return path("executions", page_size=50, **query)

    (job,) = read(connection, path("jobs", type="RECURRING", page_size=1))["items"]
    (dead,) = read(connection, path("dead-letters", page_size=1))["items"]
    ended = read(connection, path("executions", page_size=500, to=ago(1)))["items"]
    busy = Counter(each["job_id"] for each in ended).most_common(1)[0][0]
    worker = read(connection, path("workers", page_size=1))["items"][0]["session_id"]
    of_job = f"jobs/{job['job_id']}"
    return {
        "overview, 1 h": path("overview", window="1h"),
        "overview, 24 h": path("overview", window="24h"),
        "jobs": jobs(),
        "jobs, recurring": jobs(type="RECURRING"),
        "jobs, one-time": jobs(type="ONE_TIME"),
        "jobs, paused": jobs(status="PAUSED"),
        "jobs, cancelled": jobs(status="CANCELLED"),
        "jobs of a tenant": jobs(tenant_id="tenant-7"),
        "jobs of a tenant, paused": jobs(tenant_id="tenant-7", status="PAUSED"),
        "jobs of a queue": jobs(queue="queue-2"),
        "jobs, label that few have": jobs(label="team:t77"),
        "jobs, label that none has": jobs(label="team:none"),
        "jobs, prefix of a new name": jobs(name_prefix=job["name"][:-1]),
        "jobs, prefix of an old name": jobs(name_prefix="report-100"),
        "jobs, prefix that none has": jobs(name_prefix="zzz"),
        "search": path("jobs", name_prefix="report-9", page_size=8),
        "job": path(of_job),
        "job: explain": path(of_job + "/explain"),
        "job: next runs": path(of_job + "/next-runs", count=10),
        "job: runs": path(of_job + "/executions", page_size=100),
        "job: audit": path(of_job + "/audit", page_size=50),
        "job with many runs": path(f"jobs/{busy}/executions", page_size=100),
        "executions": runs(),
        "executions, failed": runs(status="FAILED"),
        "executions, running": runs(status="RUNNING"),
        "executions, queued": runs(status="QUEUED"),
        "executions, skipped for a reason": runs(status="SKIPPED", reason="overlap"),
        "executions, reason that none has": runs(reason="crashed"),
        "executions of an hour of last week": runs(**{"from": ago(169), "to": ago(168)}),
        "executions of a tenant": runs(tenant_id="tenant-7"),
        "executions of a tenant, dead": runs(tenant_id="tenant-7", status="DEAD"),
        "executions of a queue, dead": runs(queue="queue-2", status="DEAD"),
        "execution": path(f"executions/{dead['execution_id']}"),
        "dead letters": path("dead-letters", page_size=50),
        "dead letters of a day": path("dead-letters", page_size=50, **{"from": ago(24)}),
        "dead letters, groups of a day": path("dead-letters/groups", **{"from": ago(24)}),
        "dead letters, groups": path("dead-letters/groups"),
        "tenants": path("tenants", page_size=200),
        "tenants by share, with counts": path("tenants", order="share", counts="true"),
        "tenants by name, with counts": path("tenants", page_size=100, counts="true"),
        "tenant": path("tenants/tenant-7"),
        "queues": path("queues", page_size=100),
        "queue": path("queues/queue-2"),
        "forecast, 24 h": path("forecast", hours=24),
        "forecast of a tenant, 24 h": path("forecast", hours=24, tenant_id="tenant-7"),
        "forecast, the minute in an hour": path("forecast/minute", at=ago(-1)),
        "forecast of a tenant, the same": path("forecast/minute", at=ago(-1), tenant_id="tenant-7"),
        "workers": path("workers", page_size=100),
        "worker": path(f"workers/{worker}"),
        "nodes": path("nodes"),
        "circuits": path("circuits"),
        "operations": path("operations", page_size=25),
        "monitors": path("monitors", page_size=50),
        "audit": path("audit", page_size=50),
    }


def read(connection: HTTPConnection, path: str) -> dict[str, list[dict[str, str]]]:
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read()
    assert response.status == 200, f"{path}: {response.status} {body!r}"
    found: dict[str, list[dict[str, str]]] = json.loads(body)
    return found


def measured(connection: HTTPConnection, path: str) -> dict[str, object]:
    found = read(connection, path)
    taken = []
    for _ in range(CALLS):
        began = time.monotonic()
        connection.request("GET", path)
        connection.getresponse().read()
        taken.append(time.monotonic() - began)
    items = {"items": len(found["items"])} if "items" in found else {}
    return spread(taken) | items


def loads(url: str) -> dict[str, object]:
    """How long the overview takes in a browser that has nothing of it in its cache."""
    program = shutil.which("chromium")
    if program is None:
        return {"left_out": "Chromium is not installed"}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        load(browser, url)  # the browser itself is warm
        taken, processor = zip(*(load(browser, url) for _ in range(LOADS)), strict=True)
        browser.close()
    return spread(list(taken)) | {"processor_ms": round(median(processor) * 1000)} | script_sizes()


def load(browser: Browser, url: str) -> tuple[float, float]:
    """The seconds until what needs attention is shown, and the processor time of the browser."""
    context = browser.new_context()
    page = context.new_page()
    began, before = time.monotonic(), browser_seconds()
    page.goto(url, wait_until="commit")
    page.get_by_role("heading", name="Needs attention").wait_for()
    taken = time.monotonic() - began, browser_seconds() - before
    context.close()
    return taken


def browser_seconds() -> float:
    """The processor time of the children of this process that live."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        if "chrom" in child.name():
            times = child.cpu_times()
            total += times.user + times.system
    return total


def script_sizes() -> dict[str, int]:
    """The bytes of all scripts of the dashboard, compressed as the server sends them."""
    sizes = [len(gzip.compress(each.read_bytes(), 9)) for each in FILES.rglob("*.js")]
    return {"scripts": len(sizes), "script_bytes_gzip": sum(sizes)}


async def serve(dsn: str, port: int) -> None:
    settings = Settings(data_dir=Path("unused"), database_url=dsn, port=port)
    async with running(dsn, settings, {Role.API}):
        tune_garbage_collector()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def prepare(dsn: str, jobs: int, executions: int) -> dict[str, float]:
    async with engine(dsn) as made:
        await fill(made, jobs, executions)
        return await count_day(made)


def measure(dsn: str) -> tuple[dict[str, dict[str, object]], dict[str, object]]:
    port = free_port()
    api = spawn("serve", dsn, str(port))
    assert api.stdout is not None
    assert api.stdout.readline() == "ready\n"
    connection = HTTPConnection("127.0.0.1", port)
    found = {name: measured(connection, path) for name, path in calls(connection).items()}
    connection.close()
    cold = loads(f"http://127.0.0.1:{port}/")
    api.communicate("")
    return found, cold


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        uvloop.run(serve(sys.argv[2], int(sys.argv[3])))
        return
    numbers = [int(each) for each in sys.argv[1:]]
    jobs, executions = [*numbers, *(JOBS, EXECUTIONS)[len(numbers) :]]
    with server() as dsn:
        counting = uvloop.run(prepare(dsn, jobs, executions))
        pages, cold = measure(dsn)
    slow = [name for name, each in pages.items() if float(str(each["p99_ms"])) > TARGET_MS]
    report(
        "dashboard",
        jobs=jobs,
        executions=executions,
        counting=counting,
        slow=slow,
        pages=pages,
        cold_load=cold,
    )


if __name__ == "__main__":
    main()
