"""What is answered when something breaks on our side."""

import asyncpg
import pytest
import structlog

from hourbell import failpoints
from hourbell.api.app import ROUTES
from hourbell.engine.core import Engine
from hourbell.model.errors import StoreUnavailable
from integration.api.client import Client, one_time
from integration.api.test_auth import of_nobody


async def test_a_database_that_is_away_is_a_503_that_tells_no_addresses(
    api: Client, engine: Engine
):
    await engine.database.close()
    claim = {"worker_id": "w", "capacity": 1}
    for answer, advice in (
        (await api.post("/api/v1/jobs", one_time()), "repeat it with the same Idempotency-Key."),
        (await api.post("/internal/v1/executions/claim", claim, key=None), "repeat it unchanged."),
        (await api.get("/api/v1/jobs"), "currently unavailable. Try again."),
    ):
        assert answer.is_problem(503, "store_unavailable")
        assert answer.headers["Retry-After"] == "1"
        assert answer.body["detail"].endswith(advice)
        assert "pool" not in answer.body["detail"]
    assert (await api.get("/livez")).status == 200


@pytest.mark.parametrize(
    ("failure", "status"), [(None, 422), (StoreUnavailable("x"), 503), (RuntimeError("x"), 500)]
)
async def test_no_read_speaks_of_changes(
    api: Client, engine: Engine, monkeypatch: pytest.MonkeyPatch, failure: Exception, status: int
):
    async def fails(*_: object) -> None:
        raise failure

    if failure is not None:
        for name in ("connection", "fetch", "row", "row_or_none", "value", "transaction"):
            monkeypatch.setattr(engine.database, name, fails)
    paths = [route.path for route in ROUTES if route.method == "GET" and route.access]
    assert len(paths) > 10
    for path in paths:
        with structlog.testing.capture_logs():
            answer = await api.get(of_nobody(path) + ("?nonsense=1" if failure is None else ""))
        assert answer.status == status, path
        detail = answer.body["detail"].lower()
        assert not [word for word in ("change", "write", "idempotency") if word in detail], detail


async def test_the_missing_idempotency_key_is_named_by_its_header(api: Client):
    answer = await api.post("/api/v1/jobs", one_time(), key=None)
    assert answer.is_problem(400, "idempotency_key_missing")
    assert "no Idempotency-Key header" in answer.body["detail"]


async def test_a_create_whose_answer_was_lost_is_repeated_without_a_double(api: Client):
    failpoints.configure("create.after_commit=drop*1")
    lost = await api.post("/api/v1/jobs", one_time(), key="mine")
    assert lost.is_problem(503, "store_unavailable")
    again = await api.post("/api/v1/jobs", one_time(), key="mine")
    assert again.status == 201
    (job,) = (await api.get("/api/v1/jobs")).body["items"]
    assert job["job_id"] == again.body["job_id"]


async def test_a_create_that_failed_before_its_commit_leaves_nothing(api: Client):
    failpoints.configure("create.before_commit=drop*1")
    assert (await api.post("/api/v1/jobs", one_time(), key="mine")).status == 503
    assert (await api.get("/api/v1/jobs")).body["items"] == []
    assert (await api.post("/api/v1/jobs", one_time(), key="mine")).status == 201


async def test_the_unexpected_is_logged_and_not_told(api: Client):
    failpoints.configure("create.before_commit=error*1")
    with structlog.testing.capture_logs() as logs:
        answer = await api.post("/api/v1/jobs", one_time())
    assert answer.is_problem(500, "internal_error")
    assert "failpoint" not in answer.body["detail"]
    (line,) = [line for line in logs if line["event"] == "unexpected error"]
    assert (line["method"], line["path"]) == ("POST", "/api/v1/jobs")
    assert "failpoint" in str(line["exc_info"])


@pytest.mark.parametrize("table", ["idempotency", "audit"])
async def test_a_database_that_breaks_halfway_keeps_nothing(api: Client, database: str, table: str):
    connection = await asyncpg.connect(database)
    await connection.execute(f"alter table hourbell.{table} rename to moved")
    with structlog.testing.capture_logs():
        answer = await api.post("/api/v1/jobs", one_time())
    assert answer.is_problem(500, "internal_error")
    await connection.execute(f"alter table hourbell.moved rename to {table}")
    await connection.close()
    assert (await api.get("/api/v1/jobs")).body["items"] == []
