"""kill -9 before and after every commit of the life.

A process that has all roles, and a client that does everything there is to do, is killed at a
failpoint: first before the commit, then, begun again, after it. Begun a third time it is left in
peace. Then everything that was acknowledged has run, nothing is lost, every occurrence has one
fate, and nothing is left behind anywhere.
"""

import json
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from hourbell.engine.core import Engine
from hourbell.engine.operations.change import pause_job
from hourbell.engine.operations.idempotency import Write
from hourbell.failpoints import NAMES
from hourbell.model.ids import execution_text, parse_execution_id
from integration.life.children import child
from integration.life.support import (
    Hand,
    admit_all,
    check_sound,
    create,
    eventually,
    expire_session,
    fill,
    one_time,
    places,
)

VERBS = sorted({name.replace("before", "*").replace("after", "*") for name in NAMES})
JOBS = 400
DEADLINES = (1, 2)
LEFT_BEHIND = """
select (select count(*) from hourbell.live) as executions,
  (select count(*) from hourbell.fires) as fires,
  (select count(*) from hourbell.notices) as notices,
  (select count(*) from hourbell.memberships where joined_through is null) as joining
"""


@pytest.mark.parametrize("verb", VERBS, ids=[verb.replace("*_", "") for verb in VERBS])
async def test_a_life_that_is_killed_before_and_after_a_commit_loses_and_doubles_nothing(
    database: str, engine: Engine, tmp_path: Path, verb: str
) -> None:
    log = tmp_path / "started"
    await fill(engine, JOBS, one_time("note"))
    await a_worker_died_here(engine)
    await some_wait_for_their_deadline(engine)
    acknowledged: list[str] = []
    for moment in ("before", "after"):
        point = verb.replace("*", moment)
        async with child("life", database, str(log), f"{point}=kill") as killed:
            acknowledged += await killed.last_words()
            assert await killed.ends() == -9, f"{point} was not reached"
    async with child("life", database, str(log), "") as last:
        repeated = [await last.says("ok")]
        while not repeated[-1].startswith("delete"):
            repeated.append(await last.says("ok"))
        repeated.append(await last.says("ok"))
        await last.says("done")
        await eventually(lambda: nothing_left(engine))
    did = {line.removeprefix("ok ") for line in acknowledged if line.startswith("ok ")}
    assert did <= set(repeated)
    await check_sound(engine)
    await everything_has_its_fate(engine, repeated, log)


async def a_worker_died_here(engine: Engine) -> None:
    """Some of the jobs were claimed by a worker that is gone: there is something to reap."""
    await admit_all(engine)
    hand = await Hand.opened(engine)
    assert len(await hand.claim(10)) == 10
    await expire_session(engine, hand.session)


async def some_wait_for_their_deadline(engine: Engine) -> None:
    """Jobs that are paused and must have started soon: there is something to expire."""
    for seconds in DEADLINES:
        document = one_time(schedule={"delay_seconds": 0}, start_deadline_seconds=seconds)
        job = await create(engine, document)
        await pause_job(engine, job.job_id, Write())


async def nothing_left(engine: Engine) -> bool:
    row = await engine.database.row(LEFT_BEHIND)
    return not any(row.values()) and not await places(engine)


async def everything_has_its_fate(engine: Engine, acknowledged: list[str], log: Path) -> None:
    rows = await engine.database.fetch(
        "select l.id, l.job, l.scheduled_for, l.origin, l.status, l.reason, l.missed, l.spec, j.name"
        " from hourbell.ledger as l left join hourbell.jobs as j on j.id = l.job"
        " where not exists (select from hourbell.replays as r where r.id = l.id and r.died_at = l.recorded_at)"
    )
    by_id = Counter(row["id"] for row in rows)
    assert by_id.most_common(1)[0][1] == 1
    started = {parse_execution_id(line.split()[0]) for line in log.read_text().splitlines()}
    succeeded = {row["id"] for row in rows if row["status"] == 0}
    assert succeeded <= started

    fates = {row["id"]: (row["status"], row["reason"]) for row in rows}
    created = [int(line.split()[1]) for line in acknowledged if line.startswith("create")]
    steady, changing, once, retried, later, accepted, counted, replayed, purged = created
    assert fates[once] == fates[retried] == fates[accepted] == fates[replayed] == (0, None)
    assert fates[counted] == (0, None)
    assert fates[purged] == (1, "retries_exhausted")
    assert await engine.database.value("select count(*) from hourbell.dead_letters") == 0
    assert Counter(fates.values())[4, "start_deadline"] == len(DEADLINES)
    assert fates[later] == (2, "cancelled")
    (ran,) = [int(line.split()[1]) for line in acknowledged if line.startswith("run")]
    assert fates[ran] in ((0, None), (3, "deleted"))
    one_timers = [row for row in rows if row["job"] == row["id"] and row["origin"] == 0]
    assert len(one_timers) == JOBS + len(DEADLINES) + 7

    # Every success of the two jobs with notifications was delivered once.
    bodies = [json.loads(row["spec"])["action"]["body"] for row in rows if row["origin"] == 3]
    told = [body["execution_id"] for body in bodies if body["event"] == "success"]
    worth_telling = {row["id"] for row in rows if row["job"] in (steady, once)} & succeeded
    assert sorted(told) == sorted(map(execution_text, worth_telling))

    # Every second of the steady job is there once, from its creation to its deletion. What a chunk was
    # planning just then is superseded.
    job = await engine.database.row(
        "select created_at, updated_at from hourbell.jobs where id = $1", steady
    )
    of_steady = [row for row in rows if row["job"] == steady and row["origin"] == 0]
    assert all(row["status"] == 3 for row in of_steady if row["scheduled_for"] > job["updated_at"])
    seconds = sorted(
        row["scheduled_for"] for row in of_steady if row["scheduled_for"] <= job["updated_at"]
    )
    assert {second - first for first, second in pairwise(seconds)} <= {timedelta(seconds=1)}
    assert timedelta(0) < seconds[0] - job["created_at"] <= timedelta(seconds=1)
    assert timedelta(0) <= job["updated_at"] - seconds[-1] < timedelta(seconds=1)
    assert {row["status"] for row in rows if row["job"] in (steady, changing)} <= {0, 3}
