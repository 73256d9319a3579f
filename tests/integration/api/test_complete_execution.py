"""POST /internal/v1/executions/{execution_id}/complete, and the same for many at once"""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import Engine
from hourbell.engine.life.reap import reap
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.runs import cancel_execution
from hourbell.failpoints import barrier, configure
from hourbell.model.ids import execution_text, parse_execution_id
from integration.api.client import Client
from integration.api.workers import EXECUTIONS, NOBODY, RemoteWorker, enqueue
from integration.life.support import check_sound, eventually

NO_RETRIES = {"max_retries": 0}


async def lose_session(engine: Engine) -> None:
    await engine.database.value(
        "update hourbell.sessions set expires_at = '2000-01-01' where id > 0"
    )
    await reap(engine, None, await engine.clock.now())


async def snapshot(engine: Engine) -> Any:
    """All that a stale call might change."""
    rows = await engine.database.fetch(
        "select 'ledger' as place, id, fence, status::text as what from hourbell.ledger"
        " union all select 'leased', id, fence, session::text from hourbell.leases"
        " union all select 'executions', id, fence, attempt::text from hourbell.live order by 1, 2"
    )
    return [tuple(row) for row in rows]


async def test_a_success_is_recorded_with_its_result_and_duration(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    answer = await worker.complete(execution, result={"rows": 3}, duration_ms=0)
    assert (answer.status, answer.body) == (200, {"execution_id": execution["execution_id"]})
    shown = await worker.status(execution)
    assert (shown["status"], shown["result"]) == ("SUCCEEDED", {"rows": 3})
    assert shown["started_at"] == shown["finished_at"]


async def test_an_attempt_never_began_before_its_claim_whatever_the_worker_says(
    api: Client, engine: Engine
):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    claimed = (await worker.status(execution))["started_at"]
    await worker.complete(execution, duration_ms=2**31 - 1)
    shown = await worker.status(execution)
    assert shown["started_at"] == claimed
    assert shown["finished_at"] > claimed


async def test_a_failure_is_retried_as_the_job_wishes(api: Client, engine: Engine):
    await enqueue(engine, retry_policy={"delays_seconds": [120]})
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    answer = await worker.complete(execution, "FAILED", error="Boom.", error_kind="Bang")
    assert answer.status == 200
    shown = await worker.status(execution)
    assert (shown["status"], shown["error"]) == ("RETRYING", "Boom.")
    assert shown["attempts"][0]["kind"] == "Bang"
    wait = await engine.database.value("select run_at - hourbell.clock() from hourbell.live")
    assert 110 < wait.total_seconds() <= 120


@pytest.mark.parametrize(
    ("job", "said", "reason"),
    [
        ({"retry_policy": NO_RETRIES}, {}, "retries_exhausted"),
        ({"retry_policy": {"non_retryable": ["Bang"]}}, {"error_kind": "Bang"}, "non_retryable"),
        ({"delivery": "at_most_once"}, {}, "retries_exhausted"),
        ({"deadline_seconds": 60}, {"retry_after_seconds": 600}, "deadline"),
    ],
)
async def test_a_failure_is_the_end_if_the_job_wishes_so(
    api: Client, engine: Engine, job: dict[str, Any], said: dict[str, Any], reason: str
):
    await enqueue(engine, **job)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    for _ in range(2):
        assert (await worker.complete(execution, "FAILED", error="Boom.", **said)).status == 200
    shown = await worker.status(execution)
    assert (shown["status"], shown["reason"], shown["error"]) == ("DEAD", reason, "Boom.")
    assert await engine.database.value("select count(*) from hourbell.dead_letters") == 1


async def test_what_the_target_asked_for_is_waited_for(api: Client, engine: Engine):
    await enqueue(engine, retry_policy={"backoff": "FIXED", "initial_delay_seconds": 1})
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    await worker.complete(execution, "FAILED", retry_after_seconds=500)
    wait = await engine.database.value("select run_at - hourbell.clock() from hourbell.live")
    assert 490 < wait.total_seconds() <= 500


async def test_what_is_snoozed_runs_again_later_and_no_attempt_is_burnt(
    api: Client, engine: Engine
):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    configure("settle.after_commit=drop*1")
    lost = await worker.complete(execution, "SNOOZED", snooze_seconds=3600)
    assert lost.is_problem(503, "store_unavailable")
    assert (await worker.complete(execution, "SNOOZED", snooze_seconds=3600)).status == 200
    assert await engine.database.value("select snoozes from hourbell.reruns") == 1
    shown = await worker.status(execution)
    assert (shown["status"], shown["attempt"]) == ("SCHEDULED", 0)
    path = f"/api/v1/executions/{execution['execution_id']}/explain"
    assert (await api.get(path)).body["code"] == "snoozed"


async def test_a_failure_of_what_was_cancelled_is_not_retried(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    await cancel_execution(engine, parse_execution_id(execution["execution_id"]), Write())
    for _ in range(2):
        assert (await worker.complete(execution, "FAILED")).status == 200
    assert (await worker.status(execution))["status"] == "CANCELLED"


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
async def test_a_repeated_outcome_gets_the_same_answer_and_changes_nothing(
    api: Client, engine: Engine, status: str
):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    first = await worker.complete(execution, status)
    known = await snapshot(engine)
    again = await worker.complete(execution, status)
    assert (again.status, again.body) == (first.status, first.body) == (200, first.body)
    other = "FAILED" if status == "SUCCEEDED" else "SUCCEEDED"
    assert (await worker.complete(execution, other)).is_problem(409, "stale_fence")
    assert await snapshot(engine) == known


@pytest.mark.parametrize("kind", ["lost", "crashed", "cancelled", "retries_exhausted"])
async def test_a_failure_is_known_again_whatever_its_worker_calls_it(
    api: Client, engine: Engine, kind: str
):
    await enqueue(engine, 2)
    worker, stranger = RemoteWorker(api), RemoteWorker(api)
    [execution] = await worker.claim(1)
    await stranger.claim(1)
    for _ in range(2):
        assert (await worker.complete(execution, "FAILED", error_kind=kind)).status == 200
    assert (await stranger.complete(execution, "FAILED")).is_problem(409, "stale_fence")
    number = worker.token.split("_")[1]
    guessed = await worker.complete(
        execution, "FAILED", session_token=f"ses_{number}_{stranger.token.split('_')[2]}"
    )
    assert guessed.is_problem(409, "stale_fence")


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_an_outcome_whose_answer_was_lost_can_be_repeated(
    api: Client, engine: Engine, status: str, moment: str
):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    configure(f"settle.{moment}_commit=drop*1")
    assert (await worker.complete(execution, status)).is_problem(503, "store_unavailable")
    assert (await worker.complete(execution, status)).status == 200
    shown = await worker.status(execution)
    assert shown["status"] == ("SUCCEEDED" if status == "SUCCEEDED" else "RETRYING")
    assert len(shown["attempts"]) == 1


async def test_a_failure_that_was_recorded_is_known_after_the_next_attempt_too(
    api: Client, engine: Engine
):
    await enqueue(engine, retry_policy={"backoff": "FIXED", "initial_delay_seconds": 0})
    worker = RemoteWorker(api)
    [first] = await worker.claim()
    await worker.complete(first, "FAILED")
    [second] = await worker.claim()
    assert (await worker.complete(first, "FAILED")).status == 200
    assert (await worker.complete(second)).status == 200
    assert (await worker.complete(first, "FAILED")).status == 200
    assert (await worker.complete(first)).is_problem(409, "stale_fence")


@pytest.mark.parametrize("status", ["SUCCEEDED", "FAILED"])
@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
async def test_an_outcome_after_the_session_was_lost_is_refused(
    api: Client, engine: Engine, status: str, delivery: str
):
    await enqueue(engine, delivery=delivery)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    await lose_session(engine)
    known = await snapshot(engine)
    assert (await worker.complete(execution, status)).is_problem(409, "stale_fence")
    assert await snapshot(engine) == known
    if delivery == "at_least_once":
        other = RemoteWorker(api)
        [again] = await other.claim()
        assert (again["attempt"], again["fence_token"] > execution["fence_token"]) == (2, True)
        known = await snapshot(engine)
        assert (await worker.complete(execution, status)).is_problem(409, "stale_fence")
        assert (await worker.complete(again, status)).is_problem(409, "stale_fence")
        assert await snapshot(engine) == known
        assert (await other.complete(again)).status == 200
    await check_sound(engine)


async def test_an_outcome_recorded_before_the_session_was_lost_is_still_known(
    api: Client, engine: Engine
):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    await worker.complete(execution)
    await lose_session(engine)
    assert (await worker.complete(execution)).status == 200


async def test_another_fence_is_refused(api: Client, engine: Engine):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    for fence in (0, execution["fence_token"] - 1, execution["fence_token"] + 1):
        for status in ("SUCCEEDED", "FAILED"):
            answer = await worker.complete(execution, status, fence_token=fence)
            assert answer.is_problem(409, "stale_fence")
    assert (await worker.complete(execution)).status == 200


async def test_an_unknown_execution_is_refused_like_a_strangers(api: Client, engine: Engine):
    await enqueue(engine, 2)
    worker, stranger = RemoteWorker(api), RemoteWorker(api)
    await worker.claim(1)
    [theirs] = await stranger.claim(1)
    missing = theirs | {"execution_id": execution_text(7)}
    first, second = await worker.complete(theirs), await worker.complete(missing)
    assert first.is_problem(409, "stale_fence")

    def without_id(answer: Any, execution: Any) -> str:
        return str(answer.body).replace(execution["execution_id"], "")

    assert without_id(first, theirs) == without_id(second, missing)
    answer = await worker.complete({"execution_id": "exe_1", "fence_token": 1})
    assert answer.is_problem(404, "unknown_id")


async def gathered(remote: RemoteWorkers, count: int) -> None:
    """Until so many outcomes wait for the settle that is under way."""

    async def waiting() -> bool:
        return sum(len(each._waiting) for each in remote._settle_batchers.values()) == count

    await eventually(waiting)


async def test_outcomes_that_come_at_once_are_settled_together(
    api: Client, engine: Engine, remote: RemoteWorkers
):
    await enqueue(engine, 60)
    worker = RemoteWorker(api)
    executions = await worker.claim(60)
    with barrier("settle.before_commit") as hold:
        completing = [asyncio.create_task(worker.complete(executions[0]))]
        await hold.reached()
        completing += [asyncio.create_task(worker.complete(each)) for each in executions[1:]]
        await gathered(remote, 59)
    answers = await asyncio.gather(*completing)
    assert {answer.status for answer in answers} == {200}
    batches = await engine.database.value("select count(distinct recorded_at) from hourbell.ledger")
    assert batches == 2


async def test_two_outcomes_of_one_execution_at_once_are_not_both_taken(
    api: Client, engine: Engine, remote: RemoteWorkers
):
    await enqueue(engine, 2)
    worker = RemoteWorker(api)
    first, second = await worker.claim()
    with barrier("settle.before_commit") as hold:
        asked = [asyncio.create_task(worker.complete(first))]
        await hold.reached()
        asked += [
            asyncio.create_task(worker.complete(second, status))
            for status in ("SUCCEEDED", "FAILED", "SUCCEEDED", "FAILED")
        ]
        await gathered(remote, 4)
    statuses = [answer.status for answer in await asyncio.gather(*asked)]
    assert statuses in ([200, 200, 409, 200, 409], [200, 409, 200, 409, 200])
    await check_sound(engine)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"fence_token": "7"}, "fence_token"),
        ({"fence_token": 2**63}, "fence_token"),
        ({"fence_token": -1}, "fence_token"),
        ({"status": None}, "status"),
        ({"status": "DONE"}, "status"),
        ({"duration_ms": None}, "duration_ms"),
        ({"duration_ms": -1}, "duration_ms"),
        ({"duration_ms": 2**31}, "duration_ms"),
        ({"error": "oh"}, "error"),
        ({"status": "FAILED", "result": 1}, "result"),
        ({"status": "FAILED", "error": 7}, "error"),
        ({"status": "FAILED", "error_kind": ""}, "error_kind"),
        ({"status": "FAILED", "error_kind": "a\nb"}, "error_kind"),
        ({"status": "FAILED", "retry_after_seconds": -1}, "retry_after_seconds"),
        ({"status": "SNOOZED"}, "snooze_seconds"),
        ({"status": "SNOOZED", "snooze_seconds": -1}, "snooze_seconds"),
        ({"status": "SNOOZED", "snooze_seconds": 1, "result": 1}, "result"),
        ({"snooze_seconds": 1}, "snooze_seconds"),
        ({"result": "x" * 17_000}, "result"),
        ({"result": {"a": "\x00"}}, "result.a"),
        ({"colour": "red"}, "colour"),
    ],
)
async def test_a_bad_field_is_named_and_nothing_changes(
    api: Client, engine: Engine, fields: dict[str, Any], path: str
):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    answer = await worker.complete(execution, **fields)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {path}
    assert (await worker.complete(execution)).status == 200


async def test_an_error_of_any_length_and_with_odd_characters_is_kept_as_far_as_it_goes(
    api: Client, engine: Engine
):
    await enqueue(engine, retry_policy=NO_RETRIES)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    assert (await worker.complete(execution, "FAILED", error="a\x00" + "x" * 9_000)).status == 200
    assert (await worker.status(execution))["error"].startswith("a\\x00xxx")


# Many at once.


async def complete_many(worker: RemoteWorker, outcomes: Any) -> Any:
    body = {"session_token": worker.token, "outcomes": outcomes}
    return await worker.call(f"{EXECUTIONS}/complete", body)


def outcome(execution: Any, status: str = "SUCCEEDED", **fields: Any) -> dict[str, Any]:
    return {
        "execution_id": execution["execution_id"],
        "fence_token": execution["fence_token"],
        "status": status,
        "duration_ms": 1,
        **fields,
    }


async def test_many_outcomes_are_told_at_once_and_the_refused_are_named(
    api: Client, engine: Engine
):
    await enqueue(engine, 4)
    worker = RemoteWorker(api)
    good, bad, stale, odd = await worker.claim()
    outcomes = [
        outcome(good, result={"a": 1}),
        outcome(bad, "FAILED", error="Boom."),
        outcome(stale, fence_token=1),
        outcome(odd | {"execution_id": execution_text(7)}),
    ]
    for _ in range(2):
        answer = await complete_many(worker, outcomes)
        assert answer.body == {"refused": [stale["execution_id"], execution_text(7)]}
    assert (await worker.status(good))["result"] == {"a": 1}
    assert (await worker.status(bad))["status"] == "RETRYING"
    assert (await worker.status(stale))["status"] == "RUNNING"


async def test_outcomes_of_a_lost_session_are_all_refused(api: Client):
    worker = RemoteWorker(api)
    worker.token = NOBODY
    one = {"execution_id": execution_text(7), "fence_token": 1}
    answer = await complete_many(worker, [outcome(one)])
    assert answer.body == {"refused": [execution_text(7)]}


@pytest.mark.parametrize(
    ("outcomes", "path"),
    [
        (None, "outcomes"),
        ([], "outcomes"),
        ([7], "outcomes[0]"),
        ([{}] * 1_001, "outcomes"),
        (
            [{"execution_id": "x", "fence_token": 1, "status": "FAILED", "duration_ms": 1}],
            "outcomes[0].execution_id",
        ),
        (
            [outcome({"execution_id": execution_text(7), "fence_token": 1})] * 2,
            "outcomes[1].execution_id",
        ),
    ],
)
async def test_bad_outcomes_are_named(api: Client, outcomes: Any, path: str):
    worker = RemoteWorker(api)
    worker.token = NOBODY
    answer = await complete_many(worker, outcomes)
    assert answer.is_problem(422, "invalid_input")
    assert answer.paths == {path}


async def test_the_calls_about_an_execution_take_the_worker_id_of_its_session(
    api: Client, engine: Engine
):
    await enqueue(engine, 4)
    worker = RemoteWorker(api, "one")
    first, second, third, fourth = await worker.claim()
    calls = {
        "complete": lambda who: worker.complete(first, worker_id=who),
        "progress": lambda who: worker.tell(second, "progress", progress=1, worker_id=who),
        "release": lambda who: worker.tell(third, "release", worker_id=who),
        "complete many": lambda who: worker.call(
            f"{EXECUTIONS}/complete",
            {
                "worker_id": who,
                "session_token": worker.token,
                "outcomes": [
                    {
                        "execution_id": fourth["execution_id"],
                        "fence_token": fourth["fence_token"],
                        "status": "SUCCEEDED",
                        "duration_ms": 1,
                    }
                ],
            },
        ),
    }
    for name, call in calls.items():
        other = await call("two")
        assert other.is_problem(422, "invalid_input"), name
        assert other.paths == {"worker_id"}
        assert "claim that opened this session" in other.body["detail"]
    assert {(await worker.status(each))["status"] for each in (first, second, third, fourth)} == {
        "RUNNING"
    }
    for name, call in calls.items():
        assert (await call("one")).status == 200, name
    worker.token = NOBODY
    assert (await calls["complete"]("one")).is_problem(409, "stale_fence")  # as without a worker_id


async def test_each_failure_of_a_worker_over_http_is_one_line_of_the_log(
    api: Client, engine: Engine
):
    await enqueue(engine)
    worker = RemoteWorker(api)
    [execution] = await worker.claim()
    with capture_logs() as logged:
        for _ in range(2):  # the second report is a repetition
            assert (await worker.complete(execution, "FAILED")).status == 200
    (line,) = [line for line in logged if line["event"] == "attempt failed"]
    assert (line["component"], line["attempt"]) == ("api", 1)
    assert line["execution_id"] == execution["execution_id"]
    assert line["follows"].startswith("retry at 2")
