"""One rule for failing rows: in a busy cell everything else runs on time, and the bad ones can be removed.

Whatever this build cannot read is put into a cell at work: documents, a timetable, a target, a
calendar and a declaration. Every other job runs on time, every step of the leader succeeds, and the
bad rows are listed, counted, alarmed and removed.
"""

from datetime import timedelta
from typing import Any

from hourbell.dispatch import Settlement
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.documents.calendars import NewCalendar
from hourbell.engine.core import Engine
from hourbell.engine.leader.scheduler import Scheduler
from hourbell.engine.life.settlement import ACCEPTED
from hourbell.engine.operations.calendars import set_calendar
from hourbell.engine.operations.change import delete_job, pause_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.monitors import create_monitor
from hourbell.engine.views.attention import attention
from hourbell.engine.views.cell_metrics import read_cell
from hourbell.engine.views.diagnosis import examine, findings
from hourbell.engine.views.executions import ExecutionFilter, search_executions
from hourbell.engine.views.explain import explain_job
from hourbell.engine.views.jobs import get_job, list_jobs
from hourbell.model.ids import job_text
from hourbell.model.jobs import LIVE_STATUSES, Job, JobStatus, Pause
from hourbell.model.manifests import Manifest
from integration.life.support import (
    Hand,
    admit_all,
    check_sound,
    create,
    eventually,
    every,
    one_time,
    recurring,
    scheduling,
    store_newer,
    working,
)

DIGEST = "ab" * 32
ON_TIME_SECONDS = 5.0  # on a machine that is busy with other tests
TELLING = [{"on": ["success"], "url": "https://hooks.example/told"}]


async def accepted(engine: Engine) -> int:
    """A job that its target has accepted, and does not complete in time."""
    job = await create(engine, one_time(retry_policy={"max_retries": 0}))
    await admit_all(engine)
    hand = await Hand.opened(engine)
    (one,) = await hand.claim()
    held = Settlement(one.execution_id, one.fence, ACCEPTED, 0, 0, 0.5, result=f'"{DIGEST}"')
    assert not await hand.dispatch.settle(hand.session, [held])
    await hand.dispatch.close(hand.session)
    return job.job_id


async def told(engine: Engine) -> int:
    """A job that has succeeded, and of which nobody was notified yet."""
    job = await create(engine, one_time(notifications=TELLING))
    await admit_all(engine)
    hand = await Hand.opened(engine)
    await hand.succeed(await hand.claim())
    await hand.dispatch.close(hand.session)
    return job.job_id


async def paused(engine: Engine) -> int:
    """A job whose pause ends soon."""
    job = await create(engine, recurring("0 0 1 1 *"))
    until = await engine.clock.now() + timedelta(seconds=2)
    await pause_job(engine, job.job_id, Write(), Pause("soon over", until))
    return job.job_id


async def abandoned(engine: Engine) -> int:
    """A job whose target has answered 410."""
    job = await create(engine, recurring("0 0 1 1 *"))
    await engine.database.value("insert into hourbell.abandoned_jobs values ($1, 1)", job.job_id)
    return job.job_id


async def watched(engine: Engine) -> int:
    """A job that has not succeeded in time, and has a monitor that is due."""
    job = await create(engine, recurring("0 0 1 1 *"))
    document = {"job_id": job_text(job.job_id), "grace_seconds": 60, "url": "https://x.example"}
    await create_monitor(engine, document, Write())
    await engine.database.value(
        "update hourbell.monitors set expected_at = $2::timestamptz - interval '1 hour',"
        " since = $2 - interval '1 hour', check_at = $2 where job = $1",
        job.job_id,
        await engine.clock.now(),
    )
    return job.job_id


async def late(engine: Engine) -> int:
    """A job that waits for a worker, and has a deadline that passes soon."""
    return (
        await create(engine, one_time(queue="nobody", deadline_seconds=2, start_deadline_seconds=2))
    ).job_id


KINDS = (accepted, told, paused, abandoned, watched, late)


async def values(engine: Engine, statement: str, *args: Any) -> list[Any]:
    return [row[0] for row in await engine.database.fetch(statement, *args)]


async def declare(engine: Engine, app: str, document: dict[str, Any]) -> None:
    manifest = Manifest(app=app, revision=1, schedules={"nightly": document})
    dispatch = PostgresDispatch(engine)
    await dispatch.open("worker", ("nobody",), 1, None, manifest)


async def test_unreadable_rows_in_a_busy_cell_stop_no_other(engine: Engine) -> None:
    calendar = NewCalendar(((await engine.clock.now()).date(),), None)
    await set_calendar(engine, "holidays", calendar, Write())
    regular = [(await create(engine, every(1, name=f"good {n}"))).job_id for n in range(5)]
    good = {kind.__name__: await kind(engine) for kind in KINDS}

    bad: dict[str, int] = {kind.__name__: await kind(engine) for kind in KINDS}
    for number in bad.values():
        await store_newer(engine, number)
    await engine.database.value(
        "update hourbell.notices set spec = '{}' where job = $1", bad["told"]
    )
    for name, newer in {
        "document": {"delivery": "exactly_once"},
        "action": {"action": {"type": "MAIL", "to": "you"}},
        "target": {"action": {"type": "WEBHOOK", "url": "http://[", "port": "x"}},
        "calendar": {"schedule": {"kind": "moon", "exclude": {"but": "holidays"}}},
    }.items():
        bad[name] = (await create(engine, every(1, name=name))).job_id
        await store_newer(engine, bad[name], **newer)
    bad["once"] = (await create(engine, one_time())).job_id
    await store_newer(engine, bad["once"])
    bad["timetable"] = (await create(engine, recurring("* * * * * *", name="timetable"))).job_id
    await engine.database.value(
        "update hourbell.timetables set rule = 'full moon' where id ="
        " (select timetable from hourbell.memberships where job = $1)",
        bad["timetable"],
    )
    await declare(engine, "bad", {"type": "RECURRING", "schedule": []})
    document = recurring("0 2 * * *")
    document.pop("name")
    await declare(engine, "good", document)
    await engine.database.value(
        'update hourbell.manifests set body = \'{"schedules": {"nightly":'
        ' {"digest": "x", "document": "["}}}\' where app = \'bad\''
    )

    began = await engine.clock.now()
    async with scheduling(engine) as scheduler, working(engine, queues=("default",)):
        await eventually(lambda: everything_else_went_on(engine, good, began))
        await check_on_time(engine, regular, began)
        await check_steps(engine, scheduler)
        await check_shown(engine, bad)

        # They can be removed, and then nothing is wrong any more.
        for number in bad.values():
            if (await get_job(engine, number)).status in LIVE_STATUSES:
                await delete_job(engine, number, Write())
    left: list[Job] = (await list_jobs(engine, page_size=200)).items
    kept = {"accepted", "told", "late"}  # one-time jobs, which have ended or run
    assert {job.job_id for job in left if job.problem} <= {bad[name] for name in kept}
    await check_sound(engine)


async def everything_else_went_on(engine: Engine, good: dict[str, int], began: Any) -> bool:
    """Each of the leader's steps has done its work on the good rows."""
    ended = await values(
        engine,
        "select reason from hourbell.outcomes where id = any ($1) order by reason",
        [good["accepted"], good["late"]],
    )
    sent = await values(
        engine,
        "select spec from hourbell.executions where origin = 3 and spec like '%told%' and spec like $1",
        f"%{job_text(good['told'])}%",
    )
    alerts = await values(
        engine, "select down_since from hourbell.monitors where job = $1", good["watched"]
    )
    declared = await values(
        engine, "select count(*) from hourbell.jobs where name = 'app:good/nightly'"
    )
    runs = await values(
        engine,
        "select count(*) from hourbell.outcomes as o join hourbell.executions as e on e.id = o.id"
        " where e.job is not null and o.fate = 0 and o.recorded_at > $1",
        began,
    )
    done = {
        "ended": sorted(ended) == ["retries_exhausted", "start_deadline"],
        "resumed": (await get_job(engine, good["paused"])).status is JobStatus.SCHEDULED,
        "paused": (await get_job(engine, good["abandoned"])).status is JobStatus.PAUSED,
        "notified": len(sent) == 1,
        "alerted": alerts[0] is not None,
        "declared": declared == [1],
        "run": runs[0] >= 50,
    }
    missing = {name for name, is_done in done.items() if not is_done}
    assert not missing or (await engine.clock.now()) - began < timedelta(seconds=35), missing
    return not missing


async def check_on_time(engine: Engine, regular: list[int], began: Any) -> None:
    """Each occurrence of the good jobs has run, and at its time."""
    for job_id in regular:
        rows = await engine.database.fetch(
            "select e.occurrence, o.fate, o.started_at from hourbell.executions as e"
            " left join hourbell.outcomes as o on o.id = e.id"
            " where e.job = $1 and e.occurrence > $2 and e.occurrence < $3 order by 1",
            job_id,
            began,
            await engine.clock.now() - timedelta(seconds=ON_TIME_SECONDS),
        )
        for row in rows:
            assert row["fate"] == 0, row
            assert (row["started_at"] - row["occurrence"]).total_seconds() < ON_TIME_SECONDS, row
        times = [row["occurrence"] for row in rows]
        assert times == [times[0] + timedelta(seconds=n) for n in range(len(times))]


async def check_steps(engine: Engine, scheduler: Scheduler) -> None:
    """Every loop of the leader succeeds, again and again."""
    before = {loop.name: loop.last_success for loop in scheduler._loops}
    for loop in scheduler._loops:
        loop.wake()

    async def again() -> bool:
        return all(
            loop.last_success is not None and loop.last_success != before[loop.name]
            for loop in scheduler._loops
        )

    await eventually(again)
    assert scheduler.makes_progress()


async def check_shown(engine: Engine, bad: dict[str, int]) -> None:
    now = await engine.clock.now()
    listed: list[Job] = (await list_jobs(engine, page_size=200)).items
    problems = {job.job_id for job in listed if job.problem}
    readable = {"timetable", "target"}  # their documents are
    assert problems == {number for name, number in bad.items() if name not in readable}
    await search_executions(engine, ExecutionFilter())
    for number in bad.values():
        await explain_job(engine, number)
    items = await attention(engine, now, None, None)
    named = {item.refers_to.id for item in items if item.code == "row_failing"}
    for name in ("document", "action", "once", "accepted", "told", "watched"):
        assert job_text(bad[name]) in named, name
    assert "job_not_planned" in {item.code for item in items}
    assert (await read_cell(engine)).failing_rows >= 6
    found = {finding.check: finding for finding in findings(await examine(engine, 0.0))}
    assert "job_" in found["rows"].what
    assert "nightly: DecodeError" in found["schedules"].what
