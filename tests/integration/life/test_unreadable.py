"""Jobs that this build cannot read, because a newer one stored them: they harm no other, and wait for it."""

from structlog.testing import capture_logs

from hourbell.engine.core import Engine
from hourbell.engine.views.executions import get_execution
from hourbell.model.executions import ExecutionStatus
from hourbell.model.ids import execution_text, job_text
from integration.life.support import (
    create,
    eventually,
    fates,
    fill,
    one_time,
    scheduling,
    store_newer,
    working,
)


async def test_a_job_that_a_worker_cannot_read_waits_for_one_that_can(engine: Engine) -> None:
    bad = (await create(engine, one_time())).job_id
    await store_newer(engine, bad)
    await fill(engine, 20)

    async def is_over() -> bool:
        seen = await get_execution(engine, bad)
        assert seen.status is not ExecutionStatus.DEAD
        return seen.waiting_for == "unreadable" and await fates(engine) == {"SUCCEEDED": 20}

    with capture_logs() as logs:
        async with scheduling(engine), working(engine):
            await eventually(is_over)
    execution = await get_execution(engine, bad)
    assert (execution.status, execution.attempt) == (ExecutionStatus.QUEUED, 0)
    (line,) = [line for line in logs if line["event"] == "job cannot be read"]
    assert (line["execution_id"], line["job_id"]) == (execution_text(bad), job_text(bad))
