"""Jobs that this build cannot read, because a newer one stored them: they harm no other, and wait for it."""

from structlog.testing import capture_logs

from hourbell.dispatch import DEAD, Settlement
from hourbell.documents.dead_letters import DeadLetterFilter
from hourbell.engine.core import Engine
from hourbell.engine.operations.dead_letters import list_dead_letters
from hourbell.engine.views.executions import (
    ExecutionFilter,
    get_execution,
    list_executions,
    search_executions,
)
from hourbell.engine.views.explain import explain_execution, explain_job
from hourbell.model.executions import ExecutionStatus
from hourbell.model.ids import execution_text, job_text
from integration.life.support import (
    Hand,
    admit_all,
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


async def test_an_outcome_with_a_reason_of_a_newer_version_is_shown_with_it(engine: Engine) -> None:
    job = await create(engine, one_time("no", retry_policy={"max_retries": 0}))
    await admit_all(engine)
    hand = await Hand.opened(engine)
    (one,) = await hand.claim()
    dead = Settlement(one.execution_id, one.fence, DEAD, 0, 1, None, "retries_exhausted", "bad")
    assert not await hand.dispatch.settle(hand.session, [dead])
    for table in ("outcomes", "dead_letters"):
        await engine.database.value(f"update hourbell.{table} set reason = 'full_moon'")  # noqa: S608
    for execution in (
        await get_execution(engine, job.job_id),
        *(await search_executions(engine, ExecutionFilter())).items,
        *(await list_executions(engine, job.job_id)).items,
        *(await list_dead_letters(engine, DeadLetterFilter())).items,
    ):
        assert execution.reason == "full_moon"
    assert "full_moon" in (await explain_execution(engine, job.job_id)).message
    assert "full_moon" in (await explain_job(engine, job.job_id)).message
