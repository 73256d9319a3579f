"""Each failed attempt and each death is one log line; a flood of them is a bounded number of lines."""

import asyncio
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import structlog
from structlog.testing import capture_logs

from hourbell import App, Retry
from hourbell.compose import Role, running
from hourbell.engine.core import Engine
from hourbell.engine.life.failures import MAX_LINES, FailureLog
from hourbell.engine.life.reap import reap
from hourbell.engine.life.settlement import RETRY, Settlement
from hourbell.engine.loop import Loop
from hourbell.model.errors import StoreUnavailable
from hourbell.model.executions import Claimed
from hourbell.model.ids import job_text
from hourbell.settings import Settings
from integration.life.support import Hand, create, eventually, expire_session, fates, one_time
from ports import free_port

FAILURES = ("attempt failed", "execution died")


async def test_each_attempt_of_a_webhook_that_fails_is_one_line_with_what_follows(
    database: str, engine: Engine, tmp_path: Path
) -> None:
    settings = Settings(
        data_dir=tmp_path, database_url=database, port=free_port(), egress_allow="127.0.0.0/8"
    )
    url = f"http://127.0.0.1:{free_port()}/refused"
    retry = {"max_retries": 1, "backoff": "FIXED", "initial_delay_seconds": 1}
    with capture_logs() as logged:
        async with running(database, settings, {Role.WORKER, Role.SCHEDULER}):
            job = await create(
                engine,
                one_time(action={"type": "WEBHOOK", "url": url}, retry_policy=retry),
            )

            async def has_died() -> bool:
                return await fates(engine) == {"DEAD(retries_exhausted)": 1}

            await eventually(has_died)
    failed, died = [line for line in logged if line["event"] in FAILURES]
    retry_at = datetime.fromisoformat(failed["follows"].removeprefix("retry at "))
    assert abs((retry_at - datetime.fromtimestamp(time.time(), UTC)).total_seconds()) < 60  # noqa: TID251
    assert (failed["event"], failed["log_level"], failed["attempt"]) == (FAILURES[0], "warning", 1)
    assert (died["event"], died["log_level"], died["attempt"]) == (FAILURES[1], "error", 2)
    assert (died["reason"], died["follows"]) == ("retries_exhausted", "dead")
    assert failed["reason"] == died["failure"] == "connection"
    for line in (failed, died):
        assert line["component"] == "worker"
        assert line["job_id"] == job_text(job.job_id)
        assert line["execution_id"].startswith("exe_")
        assert line["tenant"] == "default"
        assert line["error"] == "The target could not be reached."


async def test_the_failure_of_a_task_is_one_line_of_the_worker_too(
    database: str, engine: Engine
) -> None:
    own = App("own", url=database)

    @own.task(name="fail", retry=Retry.never())
    async def fail() -> None:
        raise ValueError("no")

    with capture_logs() as logged:
        async with own, own.worker():
            job = await fail.enqueue()
            await job.wait(20)
    events = Counter(line["event"] for line in logged)
    assert (events["task failed"], events["execution died"]) == (1, 1)


async def test_the_death_of_an_execution_whose_worker_died_is_one_line(
    database: str, engine: Engine
) -> None:
    job = await create(engine, one_time("note", delivery="at_most_once"))
    hand = await Hand.opened(engine)
    await hand.dispatch.admit()
    (claimed,) = await hand.claim()
    await expire_session(engine, hand.session)
    with capture_logs() as logged:
        await reap(engine, None, await engine.clock.now())
        await reap(engine, None, await engine.clock.now())
    (died,) = [line for line in logged if line["event"] == "execution died"]
    assert (died["job_id"], died["reason"]) == (job_text(job.job_id), "lost")
    assert (died["attempt"], died["tenant"], died["follows"]) == (1, claimed.tenant_id, "dead")


async def test_a_flood_of_failures_is_a_bounded_number_of_lines_and_the_rest_is_counted() -> None:
    claimed = Claimed(1 << 22, 1 << 22, "acme", 1, 1, 0.0, None, "")
    decided = Settlement(1 << 22, 1, RETRY, delay_seconds=1.0, reason="http_503", error="busy")
    flood = 100_000
    with capture_logs() as logged:
        failures = FailureLog(structlog.get_logger(component="worker"))
        began = time.process_time()
        for _ in range(flood):
            failures.note(decided, claimed)
        took = time.process_time() - began

        async def is_counted() -> bool:
            return logged[-1]["event"] == "log lines left out"

        await eventually(is_counted)
    assert took < 1.0  # 10 µs for each
    lines = [line for line in logged if line["event"] == "attempt failed"]
    (*_, last) = logged
    windows = -(-len(lines) // MAX_LINES)
    assert windows <= 2 + took
    assert last["of"] == "attempt failed"
    left_out = sum(line.get("number", 0) for line in logged)
    assert len(lines) + left_out == flood


async def test_a_loop_without_a_database_logs_the_reason_and_no_advice_for_callers() -> None:
    async def step() -> bool:
        raise StoreUnavailable("x") from ConnectionRefusedError(111, "refused")

    with capture_logs() as logged:
        task = asyncio.create_task(Loop("drift", step, 1.0).run())

        async def is_logged() -> bool:
            return bool(logged)

        await eventually(is_logged)
        task.cancel()
    assert logged[0]["event"] == "database unavailable"
    assert logged[0]["error"] == "the connection was refused"
