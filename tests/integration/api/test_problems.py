"""What is answered when something breaks on our side."""

import asyncpg
import pytest
import structlog

from hourbell import failpoints
from hourbell.engine.core import Engine
from integration.api.client import Client, one_time


async def test_a_database_that_is_away_is_a_503_that_tells_no_addresses(
    api: Client, engine: Engine
):
    await engine.database.close()
    for answer in (
        await api.post("/api/v1/jobs", one_time()),
        await api.get("/api/v1/jobs"),
    ):
        assert answer.is_problem(503, "store_unavailable")
        assert answer.headers["Retry-After"] == "1"
        assert "repeat it with the same idempotency key" in answer.body["detail"]
        assert "pool" not in answer.body["detail"]
    assert (await api.get("/livez")).status == 200


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
    (line,) = [line for line in logs if line["event"] == "unexpected_error"]
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
