"""Jobs that are created without the library have what their tasks declare."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from hourbell import App, Retry, Unique
from hourbell.cli.reconcile import Change, Verb, plan, read_wanted
from hourbell.client import values as client
from hourbell.dispatch import Session
from hourbell.dispatch.postgres import PostgresDispatch
from hourbell.documents.render import render_job
from hourbell.engine.core import Engine
from hourbell.engine.life.create import Made, Refused, create_batch, create_job
from hourbell.engine.operations.change import update_job
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import run_now
from hourbell.engine.operations.upsert import put_job
from hourbell.engine.views.explain import explain_execution, explain_job
from hourbell.engine.views.jobs import get_job
from hourbell.model.errors import DuplicateJob, InvalidInput
from hourbell.model.jobs import Job, NewJob
from hourbell.model.policies import Priority
from hourbell.sdk.schedules import manifest_of


class Item(msgspec.Struct):
    sku: str
    count: int = 1


def app_of(revision: int | None = None) -> App:
    app = App("shop", revision=revision)

    @app.task(
        name="mail",
        queue="mail",
        priority="HIGH",
        retry=Retry.delays(5, 60),
        timeout=7,
        deadline=timedelta(hours=2),
        expires_in=timedelta(hours=1),
        labels={"team": "growth"},
        aliases=["old-mail"],
    )
    async def mail(cart_id: int, items: list[Item] | None = None, *, lang: str = "en") -> None: ...

    @app.task(name="once", unique=Unique())
    async def once(number: int) -> None: ...

    @app.task(name="anything")
    async def anything(first: Any, **others: int) -> None: ...

    return app


async def declare(engine: Engine, app: App) -> Session:
    dispatch = PostgresDispatch(engine)
    return await dispatch.open("w", None, 1, manifest=manifest_of(app, None))


def job_of(task: str, payload: Any = None, **fields: Any) -> dict[str, Any]:
    action = {"type": "TASK", "name": f"shop.{task}", "payload": payload}
    schedule = {"delay_seconds": 60}
    return {"name": "n", "type": "ONE_TIME", "schedule": schedule, "action": action} | fields


async def created(engine: Engine, document: dict[str, Any]) -> Job:
    return (await create_job(engine, document, Write())).job


async def wrong(engine: Engine, payload: Any, task: str = "mail") -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        await created(engine, job_of(task, payload))
    return {each.path: each.code for each in caught.value.errors}


def is_declared(job: NewJob) -> bool:
    return (job.queue, job.priority, job.timeout_seconds) == ("mail", Priority.HIGH, 7)


async def test_a_job_takes_what_its_task_declares(engine: Engine) -> None:
    before = await created(engine, job_of("mail", {"cart_id": "seven"}))  # nobody knows the task
    assert (before.queue, before.priority) == ("default", Priority.MEDIUM)
    await declare(engine, app_of())
    job = await created(engine, job_of("mail", {"cart_id": 7}))
    assert is_declared(job)
    assert job.retry_policy.delays_seconds == (5, 60)
    assert (job.deadline_seconds, job.start_deadline_seconds) == (7200, 3600)
    assert job.labels == {"team": "growth"}
    nightly = job_of("mail", {"cart_id": 7}, type="RECURRING", schedule={"cron": "0 2 * * *"})
    assert is_declared(await created(engine, nightly))
    assert is_declared((await put_job(engine, "named", nightly | {"name": "named"}, Write())).job)
    assert is_declared((await put_job(engine, "named", nightly | {"name": "named"}, Write())).job)
    assert is_declared(await created(engine, job_of("old-mail", {"cart_id": 7})))


async def test_each_job_of_a_batch_takes_what_its_task_declares(engine: Engine) -> None:
    await declare(engine, app_of())
    documents = [job_of("mail", {"cart_id": 7}), job_of("mail", {}), job_of("unknown", {})]
    fits, lacks, unknown = await create_batch(engine, documents, lambda one: one, Write())
    assert isinstance(fits, Made)  # it is the first to name its queue
    assert isinstance(unknown, int)
    assert isinstance(lacks, Refused)
    assert [each.path for each in lacks.errors] == ["action.payload.cart_id"]
    queue = (
        "select q.name from hourbell.executions as e join hourbell.queues as q on q.id = e.queue"
    )
    assert await engine.database.value(f"{queue} where e.id = $1", fits.job_id) == "mail"


async def test_what_a_request_says_takes_precedence(engine: Engine) -> None:
    await declare(engine, app_of())
    said = {"queue": "other", "priority": "LOW", "timeout_seconds": 9, "labels": {"a": "b"}}
    said |= {"retry_policy": {"max_retries": 1}, "deadline_seconds": 8000}
    job = await created(engine, job_of("mail", {"cart_id": 7}, **said))
    assert (job.queue, job.priority, job.timeout_seconds) == ("other", Priority.LOW, 9)
    assert (job.retry_policy.max_retries, job.deadline_seconds) == (1, 8000)
    assert job.labels == {"team": "growth", "a": "b"}
    job = await created(engine, job_of("mail", {"cart_id": 7}, delivery="at_most_once"))
    assert job.retry_policy.max_retries == 0


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        ({}, {"cart_id": "required"}),
        (None, {"cart_id": "required"}),
        ({"cart_id": "7"}, {"cart_id": "wrong_type"}),
        ({"cart_id": True}, {"cart_id": "wrong_type"}),
        ({"cart_id": 7, "land": "de"}, {"land": "unknown_field"}),
        ({"cart_id": 7, "lang": 5, "items": 3}, {"lang": "wrong_type", "items": "wrong_type"}),
        ({"cart_id": 7, "items": [{"sku": "a"}, {}]}, {"items[1].sku": "required"}),
        ([7], {"": "wrong_type"}),
    ],
)
async def test_a_payload_that_does_not_fit_is_refused(
    engine: Engine, payload: Any, found: dict[str, str]
) -> None:
    await declare(engine, app_of())
    expected = {f"action.payload.{p}" if p else "action.payload": c for p, c in found.items()}
    assert await wrong(engine, payload) == expected
    await created(engine, job_of("mail", {"cart_id": 7, "items": None, "lang": "de"}))
    await created(engine, job_of("anything", {"first": [1, None], "second": 2}))
    assert await wrong(engine, {"first": 1, "second": "2"}, "anything") == {
        "action.payload.second": "wrong_type"
    }


async def test_a_unique_task_is_unique_by_its_arguments_as_enqueue_makes_it(
    engine: Engine,
) -> None:
    app = app_of()
    await declare(engine, app)
    first = await created(engine, job_of("once", {"number": 7}))
    call = app.tasks["shop.once"].bind(number=7)
    assert first.unique_key == call.as_job()["unique_key"]
    assert (await created(engine, job_of("once", {"number": 7}))).job_id == first.job_id
    assert (await created(engine, job_of("once", {"number": 8}))).job_id != first.job_id
    with pytest.raises(DuplicateJob):
        await created(engine, job_of("once", {"number": 7}, on_duplicate="reject"))


async def test_options_are_of_the_leading_version_and_arguments_of_any_live_one(
    engine: Engine,
) -> None:
    def versioned(revision: int, queue: str, old: bool) -> App:
        app = App("shop", revision=revision)
        if old:

            @app.task(name="mail", queue=queue)
            async def mail(cart_id: int) -> None: ...
        else:

            @app.task(name="mail", queue=queue)
            async def mail_in(cart_id: int, lang: str) -> None: ...

        return app

    new = await declare(engine, versioned(2, "new", old=False))
    old = await declare(engine, versioned(1, "old", old=True))
    for payload in ({"cart_id": 7}, {"cart_id": 7, "lang": "de"}):
        assert (await created(engine, job_of("mail", payload))).queue == "new"
    assert await wrong(engine, {}) == {
        "action.payload.cart_id": "required",
        "action.payload.lang": "required",
    }
    await PostgresDispatch(engine).close(new)
    engine.declarations._read_at = -1000.0  # seconds later
    assert (await created(engine, job_of("mail", {"cart_id": 7}))).queue == "old"
    assert await wrong(engine, {"cart_id": 7, "lang": "de"}) == {
        "action.payload.lang": "unknown_field"
    }
    await PostgresDispatch(engine).close(old)
    engine.declarations._read_at = -1000.0
    assert (await created(engine, job_of("mail", {"cart_id": 7, "lang": "de"}))).queue == "new"


async def test_a_declaration_of_a_newer_version_that_cannot_be_read_changes_nothing(
    engine: Engine,
) -> None:
    await declare(engine, app_of())
    await engine.database.value(
        "update hourbell.manifests set body = jsonb_set(body::jsonb, '{tasks,shop.once}', '7')::json"
    )
    assert is_declared(await created(engine, job_of("mail", {"cart_id": 7})))
    assert (await created(engine, job_of("once", {"number": "x"}))).unique_key is None


async def test_explain_says_which_argument_does_not_fit(engine: Engine) -> None:
    job = await created(engine, job_of("once", {"number": "x"}))
    await declare(engine, app_of())
    await engine.database.value("update hourbell.executions set waits_for = 'payload_mismatch'")
    explained = await explain_execution(engine, job.job_id)
    assert explained.code == "payload_mismatch"
    assert "number must be a whole number, not a string" in explained.message


async def test_a_second_apply_of_a_job_that_takes_options_of_its_task_changes_nothing(
    engine: Engine,
) -> None:
    await declare(engine, app_of())
    document = job_of("mail", {"cart_id": 7}, type="RECURRING", schedule={"cron": "0 2 * * *"})
    now = await engine.clock.now()
    await engine.declarations.refresh(engine.database, 0, engine.clock.monotonic())
    task = engine.declarations.of_task("shop.mail")
    assert task is not None
    tasks = {task.name: task}
    [wanted] = read_wanted([document], "me", now, {}, tasks)
    await put_job(engine, "n", wanted.document, Write())

    def planned(job: Job, documents: list[dict[str, Any]]) -> list[Change]:
        shown = msgspec.convert(json.loads(json.dumps(render_job(job))), client.Job)
        return plan(read_wanted(documents, "me", now, {}, tasks), [shown], now, False, None)

    job = (await put_job(engine, "n", wanted.document, Write())).job
    [kept] = planned(job, [document])
    assert (kept.verb, kept.fields) == (Verb.KEEP, ())
    [changed] = planned(job, [document | {"timeout_seconds": 8}])
    assert changed.verb is Verb.UPDATE
    assert not changed.drifted
    other = msgspec.structs.replace(
        job, schedule=msgspec.structs.replace(job.schedule, cron="1 2 * * *")
    )
    [drifted] = planned(other, [document])
    assert drifted.drifted
    # Also in a field that the file leaves to the task.
    [drifted] = planned(msgspec.structs.replace(job, timeout_seconds=77), [document])
    assert drifted.drifted
    assert [path for path, _, _ in drifted.fields] == ["timeout_seconds"]


async def test_a_patched_payload_is_checked(engine: Engine):
    await declare(engine, app_of())
    for timing in ({"delay_seconds": 60}, {"cron": "0 3 * * *"}):
        kind = "ONE_TIME" if "delay_seconds" in timing else "RECURRING"
        job = await created(engine, job_of("mail", {"cart_id": 1}, type=kind, schedule=timing))
        with pytest.raises(InvalidInput) as caught:
            await update_job(engine, job.job_id, with_payload("mail", {"cart_id": "x"}), Write())
        (error,) = caught.value.errors
        assert (error.path, error.code) == ("action.payload.cart_id", "wrong_type")
        assert (await get_job(engine, job.job_id)).action == job.action
        await update_job(engine, job.job_id, with_payload("mail", {"cart_id": 2}), Write())
        with pytest.raises(InvalidInput):  # the arguments of another task
            await update_job(engine, job.job_id, with_payload("once", {"cart_id": 2}), Write())
        await update_job(engine, job.job_id, with_payload("unknown", {"cart": 2}), Write())


async def test_a_change_of_other_fields_does_not_check_a_payload_that_is_stored(engine: Engine):
    old = await created(engine, job_of("mail", {"cart": 1}))  # before the app declares its task
    await declare(engine, app_of())
    changed = await update_job(engine, old.job_id, {"priority": "HIGH"}, Write())
    assert changed.priority is Priority.HIGH


async def test_the_payload_of_a_run_on_request_is_checked(engine: Engine):
    await declare(engine, app_of())
    timing = {"type": "RECURRING", "schedule": {"cron": "0 3 * * *"}}
    job = await created(engine, job_of("mail", {"cart_id": 1}, **timing))
    with pytest.raises(InvalidInput) as caught:
        await run_now(engine, job.job_id, Write(), {"payload": {"cart_id": 1, "lang": 5}})
    assert [(each.path, each.code) for each in caught.value.errors] == [
        ("payload.lang", "wrong_type")
    ]
    await run_now(engine, job.job_id, Write(), {"payload": {"cart_id": 1, "lang": "de"}})
    await run_now(engine, job.job_id, Write())


async def test_explain_says_that_no_worker_has_declared_the_task(engine: Engine):
    await engine.database.fetch("delete from hourbell.sessions")
    note = "No worker has declared its task shop.mial"
    timing = {"type": "RECURRING", "schedule": {"cron": "0 3 * * *"}}
    for document in (job_of("mial"), job_of("mial", **timing)):
        wrong = await created(engine, document)
        assert note in (await explain_job(engine, wrong.job_id)).message
    await declare(engine, app_of())
    right = await created(engine, job_of("mail", {"cart_id": 1}))
    assert "declared" not in (await explain_job(engine, right.job_id)).message


async def test_a_task_of_a_worker_without_an_app_is_not_called_undeclared(engine: Engine):
    await PostgresDispatch(engine).open("w", None, 1, ["shop.mial"])
    job = await created(engine, job_of("mial"))
    assert "declared" not in (await explain_job(engine, job.job_id)).message


def with_payload(task: str, payload: Any) -> dict[str, Any]:
    return {"action": {"type": "TASK", "name": f"shop.{task}", "payload": payload}}
