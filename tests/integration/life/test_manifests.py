"""Manifests: the schedules that live workers declare in their code exist, as the leading code says."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.engine.core import Engine
from hourbell.engine.leader.term import Term
from hourbell.engine.life.reap import reap
from hourbell.engine.life.retain import run_housekeeping
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.reconcile import GRACE, reconcile
from hourbell.engine.views.attention import attention
from hourbell.engine.views.jobs import get_job
from hourbell.failpoints import barrier, configure
from hourbell.model.errors import NotLeader
from hourbell.model.jobs import Job, JobStatus
from hourbell.model.manifests import MAX_SCHEDULES, Manifest
from hourbell.model.schedules import Cron
from integration.life.support import (
    START,
    Hand,
    admit_all,
    check_sound,
    create,
    expire_session,
    in_transaction,
    one_time,
    plan_all,
    somebody_waits,
    travel,
    working,
)

A, B = "0 2 * * *", "0 3 * * *"


def schedule(cron: str = A, **fields: Any) -> dict[str, Any]:
    return {
        "type": "RECURRING",
        "schedule": {"cron": cron},
        "action": {"type": "TASK", "name": "noop"},
    } | fields


def manifest(
    schedules: Mapping[str, str | dict[str, Any]], revision: int | None = None, app: str = "shop"
) -> Manifest:
    """Schedules by their rules, or documents."""
    documents = {
        key: schedule(said) if isinstance(said, str) else said for key, said in schedules.items()
    }
    return Manifest(app=app, revision=revision, schedules=documents)


async def opened(engine: Engine, declared: Manifest) -> Hand:
    """A worker with this code has started."""
    dispatch = PostgresDispatch(engine)
    return Hand(engine, await dispatch.open("worker", ("default",), 10, None, declared))


async def closed(hand: Hand) -> None:
    """A worker has ended, and the leader has looked."""
    await hand.dispatch.close(hand.session)
    await reconcile(hand.engine, None)


async def later(engine: Engine, after: timedelta) -> datetime:
    """Time passes, and the leader looks."""
    now = await travel(engine, await engine.clock.now() + after)
    await reconcile(engine, None)
    return now


async def active(engine: Engine, app: str = "shop") -> dict[str, Job]:
    """The jobs of an app that are not over, by key."""
    rows = await engine.database.fetch(
        "select id from hourbell.jobs where name like $1 order by id", f"app:{app}/%"
    )
    jobs = [await get_job(engine, row["id"]) for row in rows]
    alive = [job for job in jobs if job.status in (JobStatus.SCHEDULED, JobStatus.PAUSED)]
    by_key = {job.name.removeprefix(f"app:{app}/"): job for job in alive}
    assert len(by_key) == len(alive), "a schedule has two jobs"
    return by_key


async def rules(engine: Engine) -> dict[str, str]:
    return {key: _rule(job) for key, job in (await active(engine)).items()}


def _rule(job: Job) -> str:
    assert isinstance(job.schedule, Cron)
    return job.schedule.cron


async def written(engine: Engine) -> int:
    """How often jobs were created or changed."""
    number: int = await engine.database.value("select count(*) from hourbell.audit")
    return number


async def test_new_ones_are_created_and_changed_ones_updated(still: Engine) -> None:
    first = await opened(still, manifest({"nightly": A, "other": A}, 1))
    before = await active(still)
    assert {key: _rule(job) for key, job in before.items()} == {"nightly": A, "other": A}
    await opened(still, manifest({"nightly": B, "other": A, "third": B}, 2))
    after = await active(still)
    assert {key: _rule(job) for key, job in after.items()} == {"nightly": B, "other": A, "third": B}
    assert (after["nightly"].job_id, after["nightly"].version) == (before["nightly"].job_id, 2)
    assert after["other"].version == 1
    actors = await still.database.fetch("select distinct actor from hourbell.audit order by actor")
    assert [row["actor"] for row in actors] == ["app:shop@1", "app:shop@2"]
    await closed(first)
    assert await rules(still) == {"nightly": B, "other": A, "third": B}
    await check_sound(still)


async def test_further_workers_with_the_same_code_write_nothing(still: Engine) -> None:
    declared = manifest({"nightly": A, "hourly": "0 * * * *"})
    await opened(still, declared)
    before = await written(still), await marks(still)
    for _ in range(9):
        await opened(still, declared)
    await reconcile(still, None)
    assert (await written(still), await marks(still)) == before
    assert await still.database.value("select count(*) from hourbell.manifests") == 1


async def marks(engine: Engine) -> list[object]:
    """The rows of `declared`, with the transactions that wrote them."""
    return list(await engine.database.fetch("select xmin::text, * from hourbell.declared"))


async def test_ten_workers_that_start_at_once_make_one_job_of_each(engine: Engine) -> None:
    declared = manifest({f"job-{number}": A for number in range(5)}, 1)
    await asyncio.gather(*(opened(engine, declared) for _ in range(10)))
    await reconcile(engine, None)
    jobs = await active(engine)
    assert len(jobs) == 5
    assert {job.version for job in jobs.values()} == {1}
    assert await written(engine) == 5
    # All of them with the next version, at once.
    changed = manifest({f"job-{number}": B for number in range(5)}, 2)
    await asyncio.gather(*(opened(engine, changed) for _ in range(10)))
    await reconcile(engine, None)
    assert {_rule(job) for job in (await active(engine)).values()} == {B}
    assert await written(engine) == 10
    await check_sound(engine)


async def test_two_versions_that_start_at_once_end_with_the_higher(engine: Engine) -> None:
    old, new = manifest({"nightly": A, "old": A}, 1), manifest({"nightly": B, "new": B}, 2)
    await asyncio.gather(*(opened(engine, one) for one in (old, new) * 5))
    await reconcile(engine, None)
    assert await rules(engine) == {"nightly": B, "old": A, "new": B}


async def test_removed_ones_are_retired_after_a_grace_when_nobody_declares_them(
    still: Engine,
) -> None:
    old = await opened(still, manifest({"nightly": A, "gone": A}, 1))
    await opened(still, manifest({"nightly": A}, 2))
    await later(still, 2 * GRACE)
    assert set(await active(still)) == {"nightly", "gone"}  # a live worker declares it
    job = (await active(still))["gone"]
    await closed(old)
    await later(still, GRACE - timedelta(seconds=1))
    assert set(await active(still)) == {"nightly", "gone"}
    await later(still, timedelta(seconds=1))
    assert set(await active(still)) == {"nightly"}
    assert (await get_job(still, job.job_id)).status is JobStatus.CANCELLED
    wrote = await written(still)
    await later(still, GRACE)
    assert await written(still) == wrote
    await check_sound(still)


async def test_workers_that_all_stop_retire_nothing(still: Engine) -> None:
    only = await opened(still, manifest({"nightly": A}, 1))
    await closed(only)
    await later(still, timedelta(days=30))
    await run_housekeeping(still, None, await still.clock.now())
    assert set(await active(still)) == {"nightly"}


async def test_a_crash_loop_of_the_next_version_retires_nothing(still: Engine) -> None:
    await closed(await opened(still, manifest({"nightly": A}, 1)))
    for _ in range(10):
        crashing = await opened(still, manifest({}, 2))
        await later(still, GRACE / 2)
        await closed(crashing)
        await later(still, GRACE / 4)
    assert set(await active(still)) == {"nightly"}


async def test_a_rolling_deploy_there_and_back(still: Engine) -> None:
    old, new = manifest({"nightly": A, "old": A}, 41), manifest({"nightly": B, "new": B}, 42)
    workers = [await opened(still, old) for _ in range(3)]
    was = await active(still)
    for number in range(3):
        workers.append(await opened(still, new))
        await closed(workers[number])
        await later(still, timedelta(seconds=30))
        assert await rules(still) == {"nightly": B, "old": A, "new": B}
    # Rolled back within the grace: nothing was retired, and the old code leads when the new one is gone.
    for number in range(3, 6):
        workers.append(await opened(still, old))
        assert (await rules(still))["nightly"] == B
        await closed(workers[number])
    assert await rules(still) == {"nightly": A, "old": A, "new": B}
    await later(still, GRACE)
    assert await rules(still) == {"nightly": A, "old": A}
    assert {key: job.job_id for key, job in (await active(still)).items()} == {
        key: job.job_id for key, job in was.items()
    }
    # And forward again, after what only the new code has was retired.
    for number in range(6, 9):
        workers.append(await opened(still, new))
        await closed(workers[number])
    await later(still, GRACE)
    assert await rules(still) == {"nightly": B, "new": B}
    await check_sound(still)


async def test_without_revisions_the_code_that_was_first_seen_last_leads(still: Engine) -> None:
    old, new = manifest({"nightly": A}), manifest({"nightly": B})
    await opened(still, old)
    await travel(still, START + timedelta(seconds=1))
    latest = await opened(still, new)
    await opened(still, old)  # the last of a rolling deploy to come back
    assert await rules(still) == {"nightly": B}
    await closed(latest)
    assert await rules(still) == {"nightly": A}


async def test_a_lower_revision_does_not_lead_though_it_was_first_seen_last(still: Engine) -> None:
    leading = await opened(still, manifest({"nightly": B}, 42))
    await travel(still, START + timedelta(seconds=1))
    await opened(still, manifest({"nightly": A}, 41))  # a rollback to code that never ran here
    assert await rules(still) == {"nightly": B}
    await closed(leading)
    assert await rules(still) == {"nightly": A}


async def test_a_session_that_is_lost_no_longer_declares(still: Engine) -> None:
    lost = await opened(still, manifest({"nightly": B}, 2))
    await opened(still, manifest({"nightly": A}, 1))
    assert await rules(still) == {"nightly": B}
    await expire_session(still, lost.session)
    await reap(still, None, await still.clock.now())
    await reconcile(still, None)
    assert await rules(still) == {"nightly": A}


async def test_what_people_changed_stays_until_the_declaration_changes(still: Engine) -> None:
    await opened(still, manifest({"nightly": A}, 1))
    job = (await active(still))["nightly"]
    await update_job(still, job.job_id, {"schedule": {"cron": "5 5 * * *"}}, Write(actor="ada"))
    await opened(still, manifest({"nightly": A, "other": A}, 2))
    await later(still, GRACE)
    assert (await rules(still))["nightly"] == "5 5 * * *"
    await opened(still, manifest({"nightly": B, "other": A}, 3))
    assert (await rules(still))["nightly"] == B


async def test_what_people_paused_stays_paused(still: Engine) -> None:
    await opened(still, manifest({"nightly": A}, 1))
    job = (await active(still))["nightly"]
    await pause_job(still, job.job_id, Write(actor="ada"))
    await opened(still, manifest({"nightly": B}, 2))
    paused = (await active(still))["nightly"]
    assert (paused.job_id, paused.status, _rule(paused)) == (job.job_id, JobStatus.PAUSED, B)
    await resume_job(still, job.job_id, Write(actor="ada"))
    await opened(still, manifest({"nightly": B}, 3))
    assert (await active(still))["nightly"].status is JobStatus.SCHEDULED


async def test_what_people_deleted_stays_deleted_until_the_declaration_changes(
    still: Engine,
) -> None:
    await opened(still, manifest({"nightly": A}, 1))
    await delete_job(still, (await active(still))["nightly"].job_id, Write(actor="ada"))
    await opened(still, manifest({"nightly": A}, 2))
    await later(still, GRACE)
    assert await rules(still) == {}
    await opened(still, manifest({"nightly": B}, 3))
    assert await rules(still) == {"nightly": B}


async def test_a_schedule_that_moves_to_another_tenant_leaves_none_behind(still: Engine) -> None:
    await opened(still, manifest({"nightly": schedule(tenant_id="one")}, 1))
    await opened(still, manifest({"nightly": schedule(tenant_id="two")}, 2))
    assert (await active(still))["nightly"].tenant_id == "two"


async def test_apps_do_not_touch_each_other(still: Engine) -> None:
    await opened(still, manifest({"nightly": A}, 1))
    await opened(still, manifest({"nightly": B}, 7, app="bank"))
    await later(still, 2 * GRACE)
    assert await rules(still) == {"nightly": A}
    assert _rule((await active(still, "bank"))["nightly"]) == B


async def test_a_declaration_that_is_refused_keeps_no_other_from_being_applied(
    still: Engine,
) -> None:
    bad = schedule() | {"schedule": {"cron": A, "timezone": "Europe/Atlantis"}}
    await opened(still, manifest({"bad": bad, "good": A}, 1))
    assert await rules(still) == {"good": A}
    problem = await still.database.value("select problem from hourbell.declared where key = 'bad'")
    assert "Atlantis" in problem
    before = await marks(still)
    await reconcile(still, None)
    assert await marks(still) == before  # it is not tried all the time
    await opened(still, manifest({"bad": A, "good": A}, 2))
    assert await rules(still) == {"bad": A, "good": A}
    left = "select count(*) from hourbell.declared where problem is not null"
    assert await still.database.value(left) == 0


@pytest.mark.parametrize("point", ["declare.after_commit", "create.after_commit"])
async def test_a_worker_that_dies_while_it_applies_is_followed_by_the_next(
    still: Engine, point: str
) -> None:
    configure(f"{point}=drop*1")
    await opened(still, manifest({"nightly": A}, 1))
    configure("")
    assert await applied(still) == {}
    await reconcile(still, None)
    assert await rules(still) == {"nightly": A}
    assert await written(still) == 1
    assert set(await applied(still)) == {"nightly"}


async def applied(engine: Engine) -> dict[str, str]:
    rows = await engine.database.fetch(
        "select key, applied_digest from hourbell.declared where applied_digest is not null"
    )
    return {row["key"]: row["applied_digest"] for row in rows}


@pytest.mark.parametrize("point", ["declare.after_commit", "update.before_commit"])
async def test_what_an_older_view_applies_late_does_not_stay(still: Engine, point: str) -> None:
    # The process has read that revision 2 leads, and stands. Meanwhile 3 comes.
    await opened(still, manifest({"nightly": A}, 1))
    with barrier(point) as hold:
        second = asyncio.create_task(opened(still, manifest({"nightly": B}, 2)))
        await hold.reached()
        configure("")
        newest = "0 4 * * *"
        third = asyncio.create_task(opened(still, manifest({"nightly": newest}, 3)))
        await third
        assert await rules(still) == {"nightly": newest}
        configure("update.after_commit=drop*1")  # and it dies after what it does next
        hold.release()
        await second
    assert await rules(still) == {"nightly": newest}
    configure("")
    version = (await active(still))["nightly"].version
    await reconcile(still, None)
    assert (await active(still))["nightly"].version == version


async def test_a_process_that_dies_after_a_late_change_leaves_it_to_the_next(
    still: Engine,
) -> None:
    # What it changed was not recorded, so the next one looks again.
    await opened(still, manifest({"nightly": A}, 1))
    configure("update.after_commit=drop*1")
    dying = await opened(still, manifest({"nightly": B}, 2))
    configure("")
    assert (await rules(still), await applied(still)) == ({"nightly": B}, {})
    await closed(dying)
    assert await rules(still) == {"nightly": A}


async def test_a_session_that_opens_while_its_schedule_is_retired_gets_another_job(
    still: Engine,
) -> None:
    old = await opened(still, manifest({"nightly": A, "kept": A}, 1))
    await opened(still, manifest({"kept": A}, 2))
    await closed(old)
    job = (await active(still))["nightly"]
    await travel(still, START + GRACE)
    with barrier("delete.before_commit") as hold:
        leader = asyncio.create_task(reconcile(still, None))
        await hold.reached()
        configure("")
        await opened(still, manifest({"nightly": A, "kept": A}, 3))
        hold.release()
        await leader
    again = (await active(still))["nightly"]
    assert again.job_id != job.job_id
    assert (await get_job(still, job.job_id)).status is JobStatus.CANCELLED
    await later(still, GRACE)
    assert (await active(still))["nightly"].job_id == again.job_id


async def test_a_session_that_opens_before_the_retirement_is_decided_prevents_it(
    still: Engine,
) -> None:
    old = await opened(still, manifest({"nightly": A, "kept": A}, 1))
    await opened(still, manifest({"kept": A}, 2))
    await closed(old)
    job = (await active(still))["nightly"]
    await travel(still, START + GRACE)
    async with in_transaction(still) as own:
        opening = PostgresDispatch(own)
        declared = manifest({"nightly": A, "kept": A}, 1)
        await opening.open("worker", ("default",), 10, None, declared)
        leader = asyncio.create_task(reconcile(still, None))
        await somebody_waits(still, "begin_retirement")
    await leader
    assert (await active(still))["nightly"].job_id == job.job_id


async def test_a_leader_whose_epoch_is_over_retires_nothing(still: Engine) -> None:
    old = await opened(still, manifest({"nightly": A, "kept": A}, 1))
    await opened(still, manifest({"kept": A}, 2))
    await closed(old)
    await travel(still, START + GRACE)
    with pytest.raises(NotLeader):
        await reconcile(still, None, Term(uuid4(), 7))
    assert "nightly" in await active(still)


async def test_a_worker_declares_what_its_settings_have(engine: Engine) -> None:
    async with working(engine, manifest=manifest({"nightly": A}, 1)):
        assert await rules(engine) == {"nightly": A}


async def test_a_worker_works_even_if_its_schedules_cannot_be_applied(engine: Engine) -> None:
    configure("declare.before_commit=drop*1")
    async with working(engine, manifest=manifest({"nightly": A}, 1)) as worker:
        assert worker.session is not None
    assert await rules(engine) == {}


async def test_manifests_are_kept_for_a_while(still: Engine) -> None:
    for revision in (1, 2):
        await closed(await opened(still, manifest({"nightly": A}, revision)))
        await travel(still, START + timedelta(days=revision))
    kept = "select array_agg(revision order by revision) from hourbell.manifests"
    await run_housekeeping(still, None, await travel(still, START + timedelta(days=80)))
    assert await still.database.value(kept) == [1, 2]
    await run_housekeeping(still, None, await travel(still, START + timedelta(days=200)))
    assert await still.database.value(kept) == [2]


def test_a_manifest_has_a_bound() -> None:
    with pytest.raises(ValueError, match="1001 schedules"):
        manifest({str(number): A for number in range(MAX_SCHEDULES + 1)})


def test_the_order_of_what_is_declared_does_not_matter() -> None:
    one, other = manifest({"a": A, "b": B}, 1), manifest({"b": B, "a": A}, 1)
    assert one.digest == other.digest
    assert one.digest != manifest({"a": A, "b": B}, 2).digest
    assert one.digest != manifest({"a": B, "b": B}, 1).digest


async def test_what_waits_of_a_schedule_that_will_be_retired_needs_no_attention(
    still: Engine,
) -> None:
    async def wanting() -> dict[str, tuple[int, str]]:
        found = await attention(still, await still.clock.now(), None, None)
        return {
            item.code: (item.count, item.message) for item in found if item.code != "leader_missing"
        }

    await still.database.fetch("delete from hourbell.sessions where id = -1")  # serves everything
    dispatch = PostgresDispatch(still)
    declared = manifest({"gone": schedule("* * * * *")}, 1)
    old = Hand(still, await dispatch.open("old", ("default",), 10, ("noop",), declared))
    new = Hand(still, await dispatch.open("new", ("default",), 10, ("other",), manifest({}, 2)))
    await create(still, one_time())
    await closed(old)
    await later(still, timedelta(minutes=2))
    await plan_all(still)
    await admit_all(still)
    # The one-time job waits for a worker with its task, the runs of the schedule only for its end.
    assert await wanting() == {
        "task_without_worker": (
            1,
            "1 execution waits in the queue default for a worker with the task noop.",
        ),
        "schedules_retiring": (
            1,
            "app:shop/gone is no longer declared by any live worker, and will be retired ten minutes "
            "after the last worker that declared it was seen.",
        ),
    }
    await closed(new)
    (only,) = (
        await wanting()
    ).items()  # nothing will be retired, so the runs wait for a worker too
    assert (only[0], only[1][0]) == ("task_without_worker", 2)
