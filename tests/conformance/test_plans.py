"""Plan guards: what the hot statements read, in a database with 600,000 jobs.

Tables are empty at night and huge at midnight, and the planner's statistics are wrong at both times. So every hot
statement is run here (and rolled back) on `tests/data/big.sql` in three states of the statistics (and in the worst of
them by PostgreSQL 15 too), once planned for its arguments and once for any, as a cached plan is. It fails when it reads a big table from end to end, when it reads more
rows of any table than its answer needs, or more pages than a small bound. That catches a sequential scan, a bitmap over
the backlog, a sort of the backlog (who sorts it has read it) and an index that is walked in the wrong order, also inside
functions, whose plans `explain` does not show.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import msgspec
import pytest
import pytest_asyncio

from conftest import in_database
from hourbell.model.ids import first_id_at
from hourbell.store.function_set import connect, function_set
from hourbell.store.migrations import migrate
from hourbell.store.queries import queries

pytestmark = [
    pytest.mark.timeout(600),  # the data are made within the first test
    pytest.mark.asyncio(loop_scope="module"),  # of the connection that all cases use
]

J, E, P = queries("jobs"), queries("executions"), queries("planning")
L, A, O, F = (queries(name) for name in ("dead_letters", "audit", "resources", "forecast"))  # noqa: E741
M, V, B = queries("metrics"), queries("activity"), queries("operations")
N, W, K, S = (queries(name) for name in ("notices", "awaiting", "keys", "secrets"))

OWN = function_set().digest  # at the end of the names of our functions
NODE = "00000000-0000-0000-0000-000000000001"  # leads in the epoch 1
NEWEST = 2**63 - 1
FAR = datetime.max.replace(tzinfo=UTC)
EARLY = datetime(1970, 1, 1, tzinfo=UTC)
LOOK = 10_000
SLABS = (
    2_600  # of `leased` with more than one execution: all of them are read where one is looked for
)
SINGLES = 23_000  # of one
SMALL = 1_000  # rows; a table that has fewer may well be read from end to end

TAKE = (
    "select * from hourbell.take_ready($1, $2, $3, $4, $5, 0, false, false, $6, $7,"
    " null, null, null, null, null, null, null, null, null, null)"
)
SETTLE = "select hourbell.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"
HEARTBEAT = "select * from hourbell.heartbeat($1, $2, $3, $4, $5, $6)"
ADMIT = "select * from hourbell.admit($1, $2, '1 minute')"
FAN_OUT = "select * from hourbell.fan_out($1, $2, $3, $4, $5)"
JOIN = "select * from hourbell.join_timetable($1, $2, $3, $4, $5, $6, null)"
EXPIRE = "select hourbell.expire($1, $2, $3, $4)"
REAP = "select * from hourbell.reap($1, $2, $3, $4)"
# An error unless its outcome is the one that is guarded.
CHANGE = "select 1 / (outcome = $5)::int from hourbell.change_job($1, $2, $3, $4)"
CANCEL = "select 1 / (outcome = $6)::int from hourbell.cancel_execution($1, $2, $3, $4, $5)"
WRITE = json.dumps(
    {"tenant": 1, "actor": "a", "operation": "change", "key": "k", "fingerprint": "00"}
    | {"answer": "{}", "unchanged": "{}"}
)


class Scene(msgspec.Struct, frozen=True):
    """What the cases need to know of the data."""

    now: datetime
    session: int
    token: str
    held: list[int]  # by that session
    fences: list[int]
    overlapping: list[int]  # executions that are due and whose jobs restrict overlap
    parked_jobs: list[int]  # wait for an earlier run
    live_job: int  # has one execution planned ahead
    minutely_job: int  # has 43,200 recorded runs
    daily_job: int  # has 30
    recorded: int  # an execution
    one_time: int  # that is ready
    one_time_ended: int
    awaiting: list[int]  # in the order of their fences, from 1
    unique_jobs: list[int]  # of the tenant 1, with unique keys,
    unique_keys: list[str]  # which are these
    letters: list[int]


class Step(msgspec.Struct, frozen=True):
    statement: str
    args: list[Any] = []


class Case(msgspec.Struct, frozen=True):
    """A statement, and how little it has to read."""

    statement: str
    args: list[Any]
    rows: int  # of any one table
    buffers: int
    slabs: int = 0  # rows of `leased` beside those
    before: Sequence[Step] = ()  # set the scene, in the same transaction
    rows_15: int | None = None  # where PostgreSQL 15 reads more
    buffers_15: int | None = None


class Reading(msgspec.Struct, frozen=True):
    """What a statement has read."""

    buffers: int
    rows: dict[str, int]  # by table, however they were found
    scanned: dict[str, int]  # by table, rows of sequential scans


CaseOf = Callable[[Scene], Case]
CASES: dict[str, CaseOf] = {}


def case(name: str) -> Callable[[CaseOf], CaseOf]:
    def add(function: CaseOf) -> CaseOf:
        CASES[name] = function
        return function

    return add


PLAN_GUARD_TASK = Step(
    "insert into hourbell.tasks (name, created_at) values ('plan-guard', clock_timestamp())"
)


# Plan.


@case("firing")
def _(s: Scene) -> Case:
    return Case(P["firing"], [s.now + timedelta(seconds=60), 500], rows=20, buffers=20)


@case("retiming, with nothing to do")
def _(s: Scene) -> Case:
    return Case(P["outdated"], ["2026a", 500, s.now], rows=5, buffers=25)


@case("joins left over")
def _(s: Scene) -> Case:
    return Case(P["joining"], [100, s.now], rows=20, buffers=300, before=joiners(s, 5, 3))


@case("joins left over, many of a broken timetable")
def _(s: Scene) -> Case:
    broken = Step("update hourbell.timetables set broken = 'unknown_timezone' where id = $1", [5])
    return Case(
        P["joining"], [100, s.now], rows=20, buffers=300, before=[*joiners(s, 5, 5_000), broken]
    )


@case("fan-out of a herd, first chunk")
def _(s: Scene) -> Case:
    args = [NODE, 1, s.now, 5000, "60 s"]
    return Case(FAN_OUT, args, rows=5_100, buffers=150_000, before=opened_fire(s, 1))


@case("fan-out of a herd, second chunk")
def _(s: Scene) -> Case:
    args = [NODE, 1, s.now, 5000, "60 s"]
    before = [*opened_fire(s, 1), Step(FAN_OUT, [NODE, 1, s.now, 5000, timedelta(seconds=60)])]
    return Case(FAN_OUT, args, rows=5_100, buffers=150_000, before=before)


@case("fan-out of a small fire")
def _(s: Scene) -> Case:
    args = [NODE, 1, s.now, 5000, "60 s"]
    return Case(FAN_OUT, args, rows=200, buffers=1_000, before=opened_fire(s, 500))


@case("join of one to a herd")
def _(s: Scene) -> Case:
    args = [1, s.now, [], s.now, s.now + timedelta(seconds=65), "60 s"]
    return Case(JOIN, args, rows=10, buffers=150, before=joiners(s, 1, 1))


@case("join of 500 to a herd")
def _(s: Scene) -> Case:
    args = [1, s.now, [], s.now, s.now + timedelta(seconds=65), "60 s"]
    return Case(JOIN, args, rows=1_600, buffers=20_000, before=joiners(s, 1, 500))


@case("join of a changed job")
def _(s: Scene) -> Case:
    args = [1, s.now, [], s.now, s.now + timedelta(seconds=65), "60 s"]
    rejoins = Step(
        """
        insert into hourbell.memberships (timetable, priority, job, version, active_since, tenant, queue, misfire,
          catch_up_seconds, catch_up_limit, overlap, at_most_once)
        values (1, 2, $1, 2, $2, 1, 1, 1, 60, 10, 0, false)
        """,
        [s.minutely_job, s.now],
    )
    return Case(JOIN, args, rows=50, buffers=200, before=[rejoins])


@case("memberships that have ended")
def _(s: Scene) -> Case:
    args = [NODE, 1, s.now + timedelta(seconds=2000), 500]
    return Case("select hourbell.end_memberships($1, $2, $3, $4)", args, rows=100, buffers=400)


# Count.


@case("counting a minute")
def _(s: Scene) -> Case:
    # The index of times has a range of 128 pages; the outcomes of a minute are read three times.
    minute = (s.now - timedelta(minutes=10)).replace(second=0, microsecond=0)
    args = [NODE, 1, minute, s.now, True, 5_000]
    return Case(V["count_minute"], args, rows=60_000, buffers=6_000)


# The fleet.


@case("workers that were lost within a day")
def _(s: Scene) -> Case:
    args = [NEWEST, 101, True, s.now - timedelta(days=1)]
    return listing(queries("fleet")["past_workers"], args, rows=1_500, buffers=1_600)


# Change.


@case("pausing a job with an execution planned ahead")
def _(s: Scene) -> Case:
    return changing(s, s.live_job, buffers=2_000, status=1, outdated="paused")


@case("rescheduling a job with a long history")
def _(s: Scene) -> Case:
    return changing(s, s.minutely_job, buffers=500, outdated="updated", membership=MEMBERSHIP)


@case("deleting a job and cancelling its runs")
def _(s: Scene) -> Case:
    return changing(s, s.live_job, buffers=2_000, status=3, outdated="deleted", cancels=True)


@case("updating a one-time job that is ready")
def _(s: Scene) -> Case:
    return changing(s, s.one_time, buffers=200, outcome="underway")


@case("updating a waiting one-time job")
def _(s: Scene) -> Case:
    waits = Step(
        'update hourbell.executions set job = null, spec = \'{"name":"x"}\', version = 1 where id = $1',
        [s.overlapping[0]],
    )
    return changing(s, s.overlapping[0], buffers=2_000, before=[waits])


MEMBERSHIP = {
    "active_since": "2026-01-01T00:00:00Z",
    "misfire": 1,
    "catch_up_seconds": 60,
    "catch_up_limit": 10,
    "overlap": 0,
    "at_most_once": False,
    "notifies": 0,
}


def changing(
    s: Scene,
    job: int,
    buffers: int,
    slabs: int = 0,
    before: Sequence[Step] = (),
    outcome: str = "changed",
    **change: object,
) -> Case:
    """A change of a job that was never changed before, a day ago: what is planned for today is withdrawn."""
    usual = {"seen_version": 1, "seen_status": 0, "status": 0, "cancels": False}
    args = [s.now - timedelta(days=1), job, json.dumps(usual | change), WRITE]
    return Case(CHANGE, [*args, outcome], rows=20, buffers=buffers, slabs=slabs, before=before)


# Admit.


@case("admission of one")
def _(s: Scene) -> Case:
    # A few hundred of them are what earlier cases have left in indexes, by rolling back.
    return Case(ADMIT, [s.now, 1], rows=55, buffers=1_500)


@case("admission of one, and the sweep of each second")
def _(s: Scene) -> Case:
    return Case(ADMIT, [s.now + timedelta(seconds=1), 1], rows=1_050, buffers=20_000)


@case("admission of 500")
def _(s: Scene) -> Case:
    return Case(ADMIT, [s.now, 500], rows=2_000, buffers=60_000)


@case("admission of 5,000")
def _(s: Scene) -> Case:
    return Case(ADMIT, [s.now, 5000], rows=16_000, buffers=420_000)


@case("admission of 80 beside a crowd")
def _(s: Scene) -> Case:
    crowd = Step(
        "insert into hourbell.due (run_at, id, tenant, queue, priority, flags)"
        " select $1, 9000000000000000000 + n, 1, 1, 2, 12 from generate_series(1, 50000) as n",
        [s.now - timedelta(minutes=5)],
    )
    return Case(ADMIT, [s.now, 80], rows=600, buffers=8_000, before=[crowd])


@case("admission of 500 on a date that calendars have")
def _(s: Scene) -> Case:
    """A hundred tenants have twenty dates each; all jobs of the first minutes exclude theirs.

    More would be in the way of the next cases: what is rolled back here stays in the index until it is vacuumed.
    """
    calendars = Step(
        "insert into hourbell.calendars (tenant, name, created_at, updated_at)"
        " select n, 'c', $1, $1 from generate_series(1, 100) as n",
        [s.now],
    )
    dates = Step(
        "insert into hourbell.calendar_dates (tenant, calendar, day)"
        " select c.tenant, 'c', $1::date + d from hourbell.calendars as c, generate_series(0, 19) as d",
        [s.now.date()],
    )
    excluding = Step(
        'update hourbell.jobs set spec = replace(spec, \'"kind"\', \'"exclude":["c"],"kind"\')'
        " where id in (select e.job from hourbell.executions as e"
        " where e.id in (select id from hourbell.due order by run_at limit 2000))"
    )
    return Case(
        ADMIT, [s.now, 500], rows=3_500, buffers=100_000, before=[calendars, dates, excluding]
    )


# Groups.


def _group(s: Scene) -> list[Step]:
    """A closed group of 10,000 executions that have ended, among 1,000 closed groups."""
    return [
        Step(
            "insert into hourbell.execution_groups"
            " (id, tenant, name, created_at, closed_at, look_at, members, url, headers)"
            " select n, 1, 'g', $1, $1, $1::timestamptz + n * interval '1 s', 10000, 'https://a.example/', '{}'"
            " from generate_series(1, 1000) as n",
            [s.now],
        ),
        Step(
            "insert into hourbell.group_members (group_id, execution)"
            " select 1, id from (select id from hourbell.outcomes order by id limit 10000) as o"
        ),
        Step(
            "insert into hourbell.group_members (group_id, execution)"
            " select 2, id from hourbell.ready cross join lateral unnest(ids) as i(id) limit 10000"
        ),
    ]


@case("following groups by 1,000 members")
def _(s: Scene) -> Case:
    args = [NODE, 1, s.now + timedelta(seconds=2), 200, 1_000]
    return Case(
        "select * from hourbell.follow_groups($1, $2, $3, $4, $5)",
        args,
        rows=2_200,
        buffers=25_000,
        before=_group(s),
    )


@case("deleting some members of an old group")
def _(s: Scene) -> Case:
    ended = Step("update hourbell.execution_groups set ended_at = $1 where id = 1", [s.now])
    args = [NODE, 1, s.now + timedelta(seconds=1), 1_000]
    return Case(
        "select hourbell.drop_groups($1, $2, $3, $4)",
        args,
        rows=1_200,
        buffers=6_000,
        before=[*_group(s), ended],
    )


@case("a look at overlaps")
def _(s: Scene) -> Case:
    args = [s.overlapping, s.now]
    return Case("select hourbell.apply_overlap($1, $2)", args, rows=500, buffers=3_000)


@case("virtual time")
def _(s: Scene) -> Case:
    return Case("select hourbell.move_virtual_time($1)", [10**6], rows=50, buffers=80)


@case("unparking")
def _(s: Scene) -> Case:
    news = Step(
        "insert into hourbell.gate_wakeups (at, kind, key) select $1, 5, job from unnest($2::bigint[]) as job",
        [s.now, s.parked_jobs],
    )
    args = [s.now, 2_500, False]
    statement = "select hourbell.unpark($1, $2, $3)"
    return Case(statement, args, rows=1_000, buffers=12_000, before=[news])


# Claim.


@case("claim of one")
def _(s: Scene) -> Case:
    args = [s.session, s.token, 99, False, 1, s.now, "15 s"]
    return Case(TAKE, args, rows=20, buffers=150)


@case("claim of 200")
def _(s: Scene) -> Case:
    args = [s.session, s.token, 99, False, 200, s.now, "15 s"]
    return Case(TAKE, args, rows=450, buffers=10_000)  # several queues are compared first


@case("claim of 1,000")
def _(s: Scene) -> Case:
    args = [s.session, s.token, 99, False, 1000, s.now, "15 s"]
    return Case(TAKE, args, rows=2_050, buffers=50_000)


def other_tasks_first(s: Scene) -> list[Step]:
    """A worker of one task, of which 300 are ready behind all others, which another worker serves."""
    return [
        Step("update hourbell.ready set task = 2"),
        Step(
            "update hourbell.ready set task = 3, tag = tag + 1e9 where ctid = any (array("
            "select ctid from hourbell.ready where queue = 1 and priority = 2 limit 3))"
        ),
        Step("update hourbell.sessions set tasks = '{3}' where id = $1", [s.session]),
        Step(
            "insert into hourbell.queue_workers (queue, uniform, mixed)"
            " select unnest(queues), false, true from hourbell.sessions where id = $1"
            " on conflict (queue) do update set uniform = false, mixed = true",
            [s.session],
        ),
    ]


@case("claim of 200 behind the tasks of others")
def _(s: Scene) -> Case:
    args = [s.session, s.token, 99, False, 200, s.now, "15 s"]
    return Case(TAKE, args, rows=650, buffers=10_000, before=other_tasks_first(s))


@case("claim that finds only the tasks of others")
def _(s: Scene) -> Case:
    args = [s.session, s.token, 99, False, 200, s.now, "15 s"]
    steps = [*other_tasks_first(s), Step("delete from hourbell.ready where task = 3")]
    return Case(TAKE, args, rows=30, buffers=1_000, before=steps)


@case("claim repeated")
def _(s: Scene) -> Case:
    args = [s.session, s.token, 4, True, 1000, s.now, "15 s"]
    return Case(TAKE, args, rows=2 * len(s.held) + 40, buffers=5_000)


# Settle, and what else becomes of a lease.


@case("settling 200 successes")
def _(s: Scene) -> Case:
    return settling(s, 200, 0, buffers=10_000)


@case("settling 200 retries")
def _(s: Scene) -> Case:
    return settling(s, 200, 1, buffers=12_000)


@case("settling 200 dead")
def _(s: Scene) -> Case:
    return settling(s, 200, 2, buffers=12_000)


@case("settling 200 cancelled")
def _(s: Scene) -> Case:
    return settling(s, 200, 3, buffers=10_000)


@case("settling 200 given back")
def _(s: Scene) -> Case:
    return settling(s, 200, 4, buffers=12_000)


@case("settling one")
def _(s: Scene) -> Case:
    return settling(s, 1, 0, buffers=800)


@case("heartbeat")
def _(s: Scene) -> Case:
    args = [s.session, s.token, s.now, "15 s", s.held, 99]
    return Case(HEARTBEAT, args, rows=2 * len(s.held) + 20, buffers=6_000)


@case("heartbeat that has forgotten 100")
def _(s: Scene) -> Case:
    args = [s.session, s.token, s.now, "15 s", s.held[100:], 99]
    return Case(HEARTBEAT, args, rows=3 * len(s.held), buffers=12_000)


@case("closing a session")
def _(s: Scene) -> Case:
    args = [s.session, s.token, s.now]
    return Case(
        "select hourbell.close_session($1, $2, $3)", args, rows=4 * len(s.held), buffers=25_000
    )


@case("closing a session that nobody was told of")
def _(s: Scene) -> Case:
    args = [s.session, s.token, s.now]
    return Case(
        "select hourbell.discard_session($1, $2, $3)",
        args,
        rows=4 * len(s.held) + 5,
        buffers=25_000,
    )


@case("reaping nobody")
def _(s: Scene) -> Case:
    return Case(REAP, [NODE, 1, s.now, 3], rows=60, buffers=20)


@case("reaping a session of 400")
def _(s: Scene) -> Case:
    expired = Step("update hourbell.sessions set expires_at = $1 where id = $2", [s.now, s.session])
    rows = 4 * len(s.held)
    return Case(REAP, [NODE, 1, s.now, 3], rows=rows, buffers=30_000, before=[expired])


@case("deadlines, none of which has come")
def _(s: Scene) -> Case:
    return Case(EXPIRE, [NODE, 1, s.now - timedelta(days=1), 1000], rows=60, buffers=50)


@case("1,000 deadlines")
def _(s: Scene) -> Case:
    return Case(
        EXPIRE, [NODE, 1, s.now + timedelta(seconds=7190), 1000], rows=4_000, buffers=50_000
    )


# Read and change.


@case("a recurring job")
def _(s: Scene) -> Case:
    return Case(J["recurring"], [[s.live_job]], rows=5, buffers=20)


@case("a live one-time job")
def _(s: Scene) -> Case:
    return Case(J["one_time"], [[s.one_time], s.now], rows=80, buffers=60 + SLABS, slabs=SLABS)


@case("running a one-time job that is ready")
def _(s: Scene) -> Case:
    run = "select 1 / (outcome = 'unchanged')::int from hourbell.run_one_time($1, $2, $3, $4, $5)"
    return Case(run, [s.now, s.one_time, 1, None, WRITE], rows=5, buffers=100)


@case("cancelling a waiting execution")
def _(s: Scene) -> Case:
    args = [s.now, s.overlapping[0], s.overlapping[0], False, WRITE]
    return Case(CANCEL, [*args, "changed"], rows=20, buffers=1_000)


@case("cancelling an execution that is ready")
def _(s: Scene) -> Case:
    args = [s.now, s.one_time, s.one_time, False, WRITE]
    return Case(CANCEL, [*args, "unchanged"], rows=5, buffers=100)


@case("a one-time job that has ended")
def _(s: Scene) -> Case:
    return Case(J["one_time"], [[s.one_time_ended], s.now], rows=5, buffers=60 + SLABS, slabs=SLABS)


@case("a live execution")
def _(s: Scene) -> Case:
    return Case(E["execution"], [s.held[0], s.now], rows=80, buffers=200 + SLABS, slabs=SLABS)


@case("a recorded execution")
def _(s: Scene) -> Case:
    return Case(E["execution"], [s.recorded, s.now], rows=10, buffers=200 + SLABS, slabs=SLABS)


@case("live executions of a job")
def _(s: Scene) -> Case:
    args = [s.live_job, FAR, NEWEST, 51, s.now]
    return Case(E["list_of_job"], args, rows=200, buffers=500 + SLABS, slabs=SLABS)


@case("last 50 runs of a minutely job")
def _(s: Scene) -> Case:
    args = [s.minutely_job, FAR, NEWEST, 51, s.now]
    return Case(E["list_of_job"], args, rows=400, buffers=1_500 + SLABS, slabs=SLABS)


@case("50 runs of a minutely job ten days ago")
def _(s: Scene) -> Case:
    args = [s.minutely_job, s.now - timedelta(days=10), NEWEST, 51, s.now]
    return Case(E["list_of_job"], args, rows=400, buffers=1_500 + SLABS, slabs=SLABS)


@case("last 50 runs of a daily job")
def _(s: Scene) -> Case:
    args = [s.daily_job, FAR, NEWEST, 51, s.now]
    return Case(E["list_of_job"], args, rows=400, buffers=1_500 + SLABS, slabs=SLABS)


@case("recurring jobs of the biggest tenant")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, LOOK, 0, None, None, None, 1]
    return listing(J["list_recurring_of_tenant"], args, rows=60, buffers=300)


@case("recurring jobs of a small tenant")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, LOOK, 0, None, None, None, 5000]
    return listing(J["list_recurring_of_tenant"], args, rows=60, buffers=300)


@case("cancelled jobs of a tenant that has none")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, LOOK, 3, None, None, None, 1]
    return listing(J["list_recurring_of_tenant"], args, rows=10, buffers=20)


@case("recurring jobs of everybody")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, LOOK, None, None, None, None]
    return listing(J["list_recurring"], args, rows=60, buffers=500)


@case("recurring jobs of everybody that nobody has")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, None, None, "nobody", "no:body"]
    return listing(J["list_recurring"], args, rows=1_100, buffers=3_000)


@case("recurring jobs of a tenant that it has not")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, None, "nobody", None, 1]
    return listing(J["list_recurring_of_tenant"], args, rows=1_100, buffers=5_000)


@case("a number of recurring jobs by their names")
def _(s: Scene) -> Case:
    return listing(J["count_named"], ["job-1", "job-2", 1_000], rows=1_010, buffers=1_200)


@case("recurring jobs by their names")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, LOOK, None, None, "job-1234", None, None, "job-1235"]
    return listing(J["list_recurring_named"], args, rows=250, buffers=800)


@case("one-time jobs of everybody")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, [0, 1, 4], None, None, None, None, s.now, None]
    return listing(J["list_one_time"], args, rows=2_500, buffers=14_000 + SLABS, slabs=SLABS)


FEW_TENANTS = [
    Step("set local session_replication_role = replica"),
    Step("delete from hourbell.tenants where id > 1000"),
]


@case("paused jobs of everybody, tenant by tenant")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 200, 1, None, None, None]
    return listing(
        J["list_recurring_by_tenants"], args, rows=3_000, buffers=15_000, before=FEW_TENANTS
    )


@case("one-time jobs of everybody, tenant by tenant")
def _(s: Scene) -> Case:
    # Every partition is looked at for every tenant.
    args = [NEWEST, 51, 200, [0, 1, 4], None, None, None, None, s.now, None]
    return listing(
        J["list_one_time_by_tenants"], args, rows=20_000, buffers=200_000, before=FEW_TENANTS
    )


@case("one-time jobs of the biggest tenant")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, LOOK, [0, 1, 4], None, None, None, None, s.now, None, 1]
    return listing(J["list_one_time_of_tenant"], args, rows=300, buffers=2_000 + SLABS, slabs=SLABS)


@case("one-time jobs of a small tenant")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, LOOK, [0, 1, 4], None, None, None, None, s.now, None, 5000]
    return listing(J["list_one_time_of_tenant"], args, rows=300, buffers=2_000 + SLABS, slabs=SLABS)


@case("one-time jobs of everybody that have ended")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, [0, 1], None, None, None, [], s.now, None]
    return listing(J["list_one_time"], args, rows=2_500, buffers=12_000)


@case("one-time jobs of the biggest tenant that have ended")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, [0, 1], None, None, None, [], s.now, None, 1]
    return listing(J["list_one_time_of_tenant"], args, rows=2_500, buffers=12_000)


@case("one-time jobs of a small tenant that have ended")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, LOOK, [0, 1], None, None, None, [], s.now, None, 5000]
    return listing(J["list_one_time_of_tenant"], args, rows=300, buffers=1_500)


@case("executions of everybody that have not ended")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, None, None, None, None, [], s.now, None, True]
    return listing(E["list_all"], args, rows=3_000, buffers=20_000, slabs=SLABS)


@case("executions of a tenant that have not ended")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, 5000, ["QUEUED"], None, None, [], s.now, None, True]
    return listing(E["list_recurring"], args, rows=3_000, buffers=20_000, slabs=SLABS)


@case("one-time executions of a tenant that have not ended")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, LOOK, 0, 1, None, None, None, [], s.now, None, True]
    return listing(E["list_one_time"], args, rows=400, buffers=4_000 + SLABS, slabs=SLABS)


@case("what everybody's executions wait for")
def _(s: Scene) -> Case:
    args = [s.now, 1_000, None, None]
    return listing(queries("backlog")["backlog"], args, rows=5_000, buffers=25_000)


@case("what the executions of a tenant in a queue wait for")
def _(s: Scene) -> Case:
    args = [s.now, 1_000, 1, 3]
    return listing(queries("backlog")["backlog"], args, rows=6_000, buffers=40_000)


@case("what waits for each task and host")
def _(s: Scene) -> Case:
    return listing(queries("tasks")["waiting"], [s.now, 1_000], rows=12_000, buffers=40_000)


@case("how the last attempts of 200 executions failed")
def _(s: Scene) -> Case:
    return listing(queries("tasks")["errors"], [s.held[:200]], rows=500, buffers=3_000)


@case("what runs")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, None, ["RUNNING"], None, None]
    return listing(E["list_running"], args, rows=3_000, buffers=30_000, slabs=SLABS + SINGLES)


@case("executions of everybody that have ended")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, None, None, None, None, None, s.now, None, False]
    return listing(E["list_all"], args, rows=2_500, buffers=8_000)


@case("executions of a tenant that have ended")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, 1, None, None, None, None, s.now, None, False]
    return listing(E["list_recurring"], args, rows=2_500, buffers=8_000)


@case("executions of a small tenant that have ended")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, 5000, None, None, None, [1], s.now, None, False]
    return listing(E["list_recurring"], args, rows=2_500, buffers=8_000)


@case("the latest executions of some jobs")
def _(s: Scene) -> Case:
    args = [[s.daily_job, s.minutely_job, s.live_job], 20, s.now]
    return listing(E["last_outcomes"], args, rows=150, buffers=3_000, slabs=SLABS)


@case("the pauses of some jobs")
def _(s: Scene) -> Case:
    args = [[s.daily_job, s.minutely_job, s.live_job]]
    return listing(queries("pauses")["pauses_of"], args, rows=20, buffers=60)


@case("the tenants of the herds")
def _(s: Scene) -> Case:
    args = [[1, 2, 3], s.now, 1000, 10]
    return listing(F["tenants_of_timetables"], args, rows=3_100, buffers=4_000)


@case("the busiest minute")
def _(s: Scene) -> Case:
    return listing(F["busiest_minute"], [s.now - timedelta(days=1)], rows=1_500, buffers=600)


@case("dead letters of everybody")
def _(s: Scene) -> Case:
    return listing(L["list_letters"], [FAR, NEWEST, 51, LOOK, EARLY, None], rows=60, buffers=800)


@case("dead letters of a tenant")
def _(s: Scene) -> Case:
    args = [FAR, NEWEST, 51, LOOK, EARLY, None, 1]
    return listing(L["list_letters_of_tenant"], args, rows=60, buffers=400)


@case("dead letters of a job")
def _(s: Scene) -> Case:
    args = [FAR, NEWEST, 51, LOOK, EARLY, None, s.daily_job, None]
    return listing(L["list_letters_of_job"], args, rows=60, buffers=400)


@case("the audit trail")
def _(s: Scene) -> Case:
    # Each document may be looked for in every partition of the ledger: about 110 pages.
    return listing(
        A["list_audit"], [NEWEST, 51, NEWEST, LOOK, *[None] * 4], rows=200, buffers=7_000
    )


@case("the audit trail of a tenant")
def _(s: Scene) -> Case:
    return listing(
        A["list_audit_of_tenant"],
        [NEWEST, 51, NEWEST, LOOK, *[None] * 4, 1],
        rows=200,
        buffers=7_000,
    )


@case("the audit trail of an actor")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, NEWEST, 1_000, "nobody", "pause", s.now, None]
    return listing(A["list_audit"], args, rows=1_200, buffers=7_000)


@case("groups of a tenant that has none")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1_000, 20_000, "OPEN"]
    return listing(queries("execution_groups")["list_groups"], args, rows=1_010, buffers=2_000)


@case("what a queue has")
def _(s: Scene) -> Case:
    return listing(O["queue_counts"], [1, 1000, s.now], rows=5_500, buffers=20_000)


@case("what a tenant has in a queue")
def _(s: Scene) -> Case:
    return listing(O["queue_counts_of_tenant"], [1, 1000, s.now, 1], rows=5_500, buffers=20_000)


@case("the queues of a tenant")
def _(s: Scene) -> Case:
    return listing(O["list_queues_of_tenant"], ["", 51, 1, 1000], rows=5_500, buffers=20_000)


@case("what a tenant has")
def _(s: Scene) -> Case:
    return listing(O["tenant_counts"], [1, 1000], rows=5_500, buffers=20_000)


@case("what the executions of a page wait for")
def _(s: Scene) -> Case:
    ids, now = s.parked_jobs[:500], s.now
    return listing(
        queries("limits")["waiting_for"],
        [ids, now, ["default"] * len(ids)],
        rows=2_000,
        buffers=8_000,
    )


@case("what waits of tenants")
def _(s: Scene) -> Case:
    return listing(O["waiting"], [[1, 2, 3], s.now, 1000, 500], rows=8_000, buffers=30_000)


@case("metrics of the cell")
def _(s: Scene) -> Case:
    minute = timedelta(minutes=1)
    args = [s.now, s.now + minute, s.now - minute, 1000]
    return listing(M["cell"], args, rows=1_100, buffers=2_000)


@case("metrics of queues")
def _(s: Scene) -> Case:
    return listing(M["queues"], [1000], rows=250, buffers=150)


@case("metrics of workers")
def _(s: Scene) -> Case:
    return listing(M["serving"], [s.now], rows=250, buffers=150)


@case("metrics of what waits for its time")
def _(s: Scene) -> Case:
    return listing(M["waiting"], [s.now, 100], rows=2_000, buffers=3_000)


@case("metrics of what is ready")
def _(s: Scene) -> Case:
    return listing(M["ready"], [1000, 20, 200], rows=400, buffers=3_000)


@case("metrics of what is elsewhere")
def _(s: Scene) -> Case:
    args = [500, 1000, [1, 2, 3, 4, 5, 6, 7]]
    return listing(M["elsewhere"], args, rows=5_500, buffers=20_000, slabs=SLABS)


@case("metrics of what is parked")
def _(s: Scene) -> Case:
    return listing(M["parked"], [1000, [1, 2, 3, 4, 5, 6, 7]], rows=1_000, buffers=1_200)


@case("metrics of the time of runs")
def _(s: Scene) -> Case:
    return listing(M["run_seconds"], [s.now - timedelta(hours=1), s.now], rows=100, buffers=100)


@case("how many jobs a large herd has")
def _(s: Scene) -> Case:
    return listing(F["sizes"], [[1, 2], s.now, 5000], rows=11_000, buffers=12_000)


@case("limits of a forecast")
def _(s: Scene) -> Case:
    return listing(F["limited"], [200, None], rows=1_500, buffers=3_000)


@case("how long runs of timetables took")
def _(s: Scene) -> Case:
    return listing(F["seconds_of_timetables"], [[1, 2, 3], 5, 2], rows=200, buffers=9_000)


@case("how long runs of queues took")
def _(s: Scene) -> Case:
    return listing(F["seconds_of_queues"], [1000], rows=3_500, buffers=9_000)


@case("timetables of a forecast")
def _(s: Scene) -> Case:
    args = [s.now + timedelta(hours=24), 1000]
    return listing(F["firing_by"], args, rows=1_100, buffers=3_000)


@case("executions of a minute of a forecast")
def _(s: Scene) -> Case:
    args = [s.now, s.now + timedelta(minutes=1), 101, 7, 1000]
    return listing(F["waiting_in"], args, rows=20_000, buffers=60_000)


@case("jobs of a minute of a forecast")
def _(s: Scene) -> Case:
    at = s.now + timedelta(hours=1)
    return listing(F["members_at"], [[1, 2, 3], [at] * 3, 7, 101, 1000], rows=3_500, buffers=9_000)


@case("members of a forecast")
def _(s: Scene) -> Case:
    return listing(
        F["members"], [[1, 2, 3, 500], s.now, 1000, 2000, [1], [7]], rows=2_500, buffers=6_000
    )


@case("members of a tenant's forecast")
def _(s: Scene) -> Case:
    return listing(F["members_of_tenant"], [1, s.now, 1000, [1], [7]], rows=2_500, buffers=20_000)


@case("what waits, in a forecast")
def _(s: Scene) -> Case:
    args = [s.now, s.now + timedelta(hours=24), 1000, 5000, [1], [7]]
    return listing(F["waiting"], args, rows=4_500, buffers=10_000)


@case("an answer that was kept")
def _(s: Scene) -> Case:
    return Case(J["answer"], [1, "key-9999"], rows=2, buffers=20)


@case("settling of 500 that have notifications")
def _(s: Scene) -> Case:
    plain = settling(s, 500, 0, buffers=60_000)
    wish = Step("update hourbell.executions set notifies = 7 where id = any ($1)", [s.held[:500]])
    return msgspec.structs.replace(plain, rows=plain.rows + 500, before=[wish])


@case("failures of 500 that have notifications")
def _(s: Scene) -> Case:
    plain = settling(s, 500, 1, buffers=60_000)
    wish = Step("update hourbell.executions set notifies = 7 where id = any ($1)", [s.held[:500]])
    return msgspec.structs.replace(plain, rows=plain.rows + 1_000, before=[wish])


@case("monitors of a daily job and of one that has run every minute for a month")
def _(s: Scene) -> Case:
    # The newest success is enough, also if there are as many as minutes in a month.
    watch = """
      insert into hourbell.monitors (id, tenant, job, created_at, since, looked_at, expected_at, check_at, grace_seconds, url, headers)
      select n, 1, job, at, at - interval '2 days', at, at - interval '2 days', at - interval '1 day', 60, '', '{}'
      from unnest(array[$1::bigint, $2]) with ordinality as j(job, n), (select $3::timestamptz as at) as now
    """
    later = """
      insert into hourbell.monitors (id, tenant, job, created_at, since, looked_at, check_at, grace_seconds, url, headers)
      select 10 + n, 1, n, at, at, at, at + interval '1 hour', 60, '', '{}'
      from generate_series(1, 2000) as n, (select $1::timestamptz as at) as now
    """
    before = [Step(watch, [s.daily_job, s.minutely_job, s.now]), Step(later, [s.now])]
    return Case(N["watched"], [s.now, 200], rows=50, buffers=600, before=before)


@case("an outbox")
def _(s: Scene) -> Case:
    fill = """
      insert into hourbell.notices (at, scheduled_for, execution, job, tenant, event)
      select $1, $1, n, $2, 1, 1 from generate_series(1, 5000) as n
    """
    before = [Step(fill, [s.now, s.daily_job])]
    return listing(N["outbox"], [500, s.now], rows=1_100, buffers=8_000, before=before)


# Create.


@case("what has to be known before 200 jobs are created")
def _(s: Scene) -> Case:
    tenants = [f"tenant-{1 + n % 10_000}" for n in range(200)]
    keys = [f"key-{n}" if n % 2 else f"new-{n}" for n in range(200)]
    args = [200, ["default", "mail"], tenants, tenants, keys]
    return Case(J["before_create"], args, rows=500, buffers=3_000)


@case("what has to be known of tenants with quotas")
def _(s: Scene) -> Case:
    quota = Step("update hourbell.tenants set max_jobs = 1000 where id in (1, 5000)")
    args = [1, ["default"], ["tenant-1", "tenant-5000"], [], []]
    return Case(J["before_create"], args, rows=100, buffers=500, before=[quota])


@case("creating 200 one-time jobs under 200 keys")
def _(s: Scene) -> Case:
    return Case(J["create_jobs"], creating(s, 200, keys="new"), rows=1_100, buffers=20_000)


@case("creating 200 one-time jobs of a tenant with a quota")
def _(s: Scene) -> Case:
    quota = Step("update hourbell.tenants set max_jobs = 1000 where id = 1")
    return Case(J["create_jobs"], creating(s, 200), rows=1_100, buffers=20_000, before=[quota])


@case("creating 200 one-time jobs under keys that were used")
def _(s: Scene) -> Case:
    return Case(J["create_jobs"], creating(s, 200, keys="key"), rows=1_100, buffers=20_000)


@case("creating 200 jobs with new unique keys")
def _(s: Scene) -> Case:
    args = creating(s, 200, unique=[f"new-{n}" for n in range(200)])
    return Case(J["create_jobs"], args, rows=1_500, buffers=30_000)


@case("creating 200 jobs with unique keys that others have")
def _(s: Scene) -> Case:
    args = creating(s, 200, unique=s.unique_keys)
    return Case(J["create_jobs"], args, rows=1_500, buffers=30_000)


@case("creating 20 jobs that replace others")
def _(s: Scene) -> Case:
    args = creating(s, 20, unique=s.unique_keys[:20], replaces=True)
    return Case(J["create_jobs"], args, rows=500, buffers=20_000)


@case("enqueueing a job, in a user's own transaction")
def _(s: Scene) -> Case:
    statement = "select * from hourbell.try_enqueue($1, $2)"
    args = ['[{"task": "plan-guard", "tenant": "tenant-1"}]', ["{}"]]
    return Case(statement, args, rows=10, buffers=200, before=[PLAN_GUARD_TASK])


@case("enqueueing a job with many options, in a user's own transaction")
def _(s: Scene) -> Case:
    statement = "select * from hourbell.try_enqueue($1, $2)"
    options = '[{"task": "plan-guard", "tenant": "tenant-1", "labels": {"a": "b"}, "deadline_seconds": 9}]'
    return Case(statement, [options, ["{}"]], rows=10, buffers=200, before=[PLAN_GUARD_TASK])


@case("enqueueing a job with a unique key, in a user's own transaction")
def _(s: Scene) -> Case:
    statement = "select * from hourbell.try_enqueue($1, $2, null, null, $3::text[])"
    args = ['[{"task": "plan-guard", "tenant": "tenant-1"}]', ["{}"], ["new"]]
    return Case(statement, args, rows=20, buffers=1_000, before=[PLAN_GUARD_TASK])


@case("enqueueing 200 jobs with unique keys that others have, and keeping those")
def _(s: Scene) -> Case:
    statement = "select * from hourbell.try_enqueue($1, $2, null, null, $3::text[])"
    options = '[{"task": "plan-guard", "tenant": "tenant-1", "on_duplicate": "keep"}]'
    args = [options, ["{}"] * 200, s.unique_keys[:200]]
    return Case(statement, args, rows=1_500, buffers=30_000, before=[PLAN_GUARD_TASK])


@case("cancelling by a unique key, in a user's own transaction")
def _(s: Scene) -> Case:
    statement = "select hourbell.cancel(null, $1, $2)"
    return Case(statement, ["a key of no job", "tenant-1"], rows=10, buffers=1_000)


@case("who has a unique key")
def _(s: Scene) -> Case:
    return Case(J["holder"], ["tenant-1", 0, s.unique_keys[0]], rows=10, buffers=60)


@case("numbers of tenants, known and new")
def _(s: Scene) -> Case:
    names = ["tenant-7", "tenant-77", "tenant-777", "new"]
    return Case(J["ensure_tenants"], [names, s.now, True], rows=20, buffers=100)


@case("numbers of targets, known and new")
def _(s: Scene) -> Case:
    hosts = ["host-7.example", "host-77.example", "host-777.example", "new.example"]
    return Case(J["ensure_targets"], [hosts, s.now], rows=20, buffers=100)


@case("numbers of queues that a tenant has made")
def _(s: Scene) -> Case:
    many = Step(
        "insert into hourbell.queues (id, name, created_at, made_by) overriding system value"
        " select 5000 + n, 'queue-' || n, $1, 1 + n % 100 from generate_series(1, 20000) as n",
        [s.now],
    )
    names = [f"queue-{n}" for n in range(1, 51)] + ["new"]
    args = [names, s.now, ["tenant-1"] * 51, 1000]
    return Case(J["ensure_queues"], args, rows=600, buffers=3_000, before=[many])


@case("numbers of timetables, known and new")
def _(s: Scene) -> Case:
    rules = [f"@every 86400+{n}" for n in range(1, 51)] + ["@every 77"]
    count = len(rules)
    rest = [["UTC"] * count, ["run_after"] * count, ["once"] * count]
    args = [rules, *rest, s.now, [s.now] * count, "2026a"]
    return Case(J["ensure_timetables"], args, rows=300, buffers=1_500)


# Awaiting.


@case("one that waits for its target, by its token")
def _(s: Scene) -> Case:
    args = [s.awaiting[-1], sha256(b"500").digest()]
    return Case(W["by_token"], args, rows=10, buffers=60)


@case("200 that were not completed in time")
def _(s: Scene) -> Case:
    return listing(W["overdue"], [s.now, 200], rows=250, buffers=4_000)


@case("completing one that waits")
def _(s: Scene) -> Case:
    args = [s.awaiting[0], 1, "SUCCEEDED"]
    return Case(W["note_outcome"], args, rows=5, buffers=40)


@case("settling 200 that were completed")
def _(s: Scene) -> Case:
    ids, numbers = s.awaiting[:200], list(range(1, 201))
    plain = settling(s, 200, 0, buffers=12_000)
    args = [0, UUID(int=0), s.now, ids, numbers, *plain.args[5:]]
    # PostgreSQL 15 may read all that waits for its targets, if nobody has told it how much that is.
    return msgspec.structs.replace(plain, args=args, rows_15=10_100)


@case("cancelling one that waits for its target")
def _(s: Scene) -> Case:
    args = [s.now, s.awaiting[0], s.awaiting[0], True, WRITE]
    return Case(CANCEL, [*args, "changed"], rows=10, buffers=1_000)


@case("wishes among those that wait for their targets")
def _(s: Scene) -> Case:
    # It looks at what is wished, never at all that waits.
    return Case(W["cancel_requested"], [NODE, 1, s.now], rows=7_000, buffers=25_000)


# Notices and monitors.


@case("sending 500 notices")
def _(s: Scene) -> Case:
    fill = """
      insert into hourbell.notices (id, at, scheduled_for, execution, job, tenant, event) overriding system value
      select n, $1, $1, n, $2, 1, 1 from generate_series(1, 5000) as n
    """
    ids = list(range(1, 501))
    args = [NODE, 1, s.now, ids, 1, ids, [None] * 500, ["{}"] * 500]
    return Case(
        "select hourbell.send_notices($1, $2, $3, $4, $5, $6, $7, $8)",
        args,
        rows=1_100,
        buffers=15_000,
        before=[Step(fill, [s.now, s.daily_job])],
    )


@case("monitors of everybody")
def _(s: Scene) -> Case:
    return listing(N["list_monitors"], [NEWEST, 51], rows=120, buffers=400)


@case("monitors of a tenant")
def _(s: Scene) -> Case:
    return listing(N["list_monitors_of_tenant"], [NEWEST, 51, 1], rows=120, buffers=400)


@case("monitors of a job that was changed")
def _(s: Scene) -> Case:
    return changing(s, s.daily_job, buffers=500, status=1, outdated="paused")


@case("how many watch a job")
def _(s: Scene) -> Case:
    return Case(N["monitors_of_job"], [s.daily_job], rows=5, buffers=20)


# Keys and secrets.


@case("whose a key is")
def _(s: Scene) -> Case:
    return Case(K["by_digest"], [sha256(b"7").digest()], rows=5, buffers=30)


@case("whose a key is that nobody has")
def _(s: Scene) -> Case:
    return Case(K["by_digest"], [sha256(b"nobody").digest()], rows=5, buffers=30)


@case("keys of everybody")
def _(s: Scene) -> Case:
    return listing(K["list_keys"], [NEWEST, 51], rows=120, buffers=400)


@case("keys of a tenant")
def _(s: Scene) -> Case:
    return listing(K["list_keys_of_tenant"], [NEWEST, 51, 5000], rows=60, buffers=300)


@case("whether there is another administrator")
def _(s: Scene) -> Case:
    return Case(K["lasting_admin"], [7], rows=20, buffers=30)


@case("secrets for a webhook")
def _(s: Scene) -> Case:
    names = [f"secret-{n}" for n in (4999, 14_999, 24_999)]
    return Case(S["sealed"], [["tenant-5000"] * 3, names], rows=20, buffers=40)


@case("secrets for webhooks of many tenants")
def _(s: Scene) -> Case:
    tenants = [f"tenant-{n}" for n in range(1, 251)]
    return Case(S["sealed"], [tenants, ["webhook-signing"] * 250], rows=1_000, buffers=2_500)


@case("secrets of a tenant")
def _(s: Scene) -> Case:
    return Case(S["list_secrets"], ["tenant-5000", "", 51], rows=60, buffers=60)


@case("how many secrets a tenant has")
def _(s: Scene) -> Case:
    return Case(S["count_secrets"], [5000], rows=60, buffers=60)


# Workers over HTTP.


@case("renewal of a session")
def _(s: Scene) -> Case:
    args = [s.session, s.token, s.now, "15 s"]
    return Case("select * from hourbell.renew_session($1, $2, $3, $4)", args, rows=10, buffers=200)


@case("what a session holds of 200")
def _(s: Scene) -> Case:
    args = [s.session, s.token, s.held[:200]]
    return Case("select * from hourbell.claimed_by($1, $2, $3)", args, rows=700, buffers=5_000)


@case("the sessions of a worker that hold 200")
def _(s: Scene) -> Case:
    statement = (
        "select * from hourbell.sessions_of("
        "(select worker from hourbell.sessions where id = $1), $2)"
    )
    return Case(statement, [s.session, s.held[:200]], rows=1_000, buffers=5_000)


@case("the claim that holds an execution")
def _(s: Scene) -> Case:
    return Case(
        "select * from hourbell.current_claim($1)",
        [s.held[0]],
        rows=110,
        buffers=100 + SLABS,
        slabs=SLABS,
    )


@case("progress of one")
def _(s: Scene) -> Case:
    args = [s.session, s.token, s.held[0], s.fences[0], "{}"]
    statement = "select hourbell.note_progress($1, $2, $3, $4, $5)"
    return Case(statement, args, rows=10, buffers=80)


@case("which of 200 outcomes were brought before")
def _(s: Scene) -> Case:
    kinds = [n % 3 for n in range(200)]
    args = [s.session, s.token, s.held[:200], s.fences[:200], kinds]
    statement = "select hourbell.already_settled($1, $2, $3, $4, $5)"
    return Case(statement, args, rows=450, buffers=40_000)


@case("whether an outcome of a past session was brought before")
def _(s: Scene) -> Case:
    over = Step("insert into hourbell.past_sessions values (900, $1, $2)", [UUID(int=9), s.now])
    args = [900, UUID(int=9), [s.recorded], [1], [0]]
    statement = "select hourbell.already_settled($1, $2, $3, $4, $5)"
    return Case(statement, args, rows=10, buffers=600, before=[over])


# Lists by each filter, when nothing is found: they look at so many, and stop.


@case("recurring jobs by a text")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, None, None, None, None, "a text that no job has"]
    return listing(J["list_recurring"], args, rows=1_100, buffers=3_000)


@case("one-time jobs by a text")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, [0, 1], None, None, None, None, s.now, None, "a text that no job has"]
    return listing(J["list_one_time"], args, rows=4_500, buffers=40_000, slabs=SLABS)


@case("recurring jobs of a tenant by queue, name or label")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, 3, "job-x", "team:none", 1]
    return listing(J["list_recurring_of_tenant"], args, rows=1_100, buffers=5_000)


@case("paused one-time jobs of everybody")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, ["PAUSED"], 3, None, None, None]
    return listing(J["list_one_time_paused"], args, rows=2_500, buffers=12_000)


@case("one-time jobs of everybody that are queued")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, [], None, None, None, ["QUEUED"], s.now, s.now]
    return listing(J["list_one_time"], args, rows=4_500, buffers=40_000, slabs=SLABS)


@case("one-time jobs of a tenant that retry")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, [], None, None, None, ["RETRYING"], s.now, None, 1]
    return listing(J["list_one_time_of_tenant"], args, rows=4_500, buffers=40_000, slabs=SLABS)


@case("one-time jobs that run")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, ["RUNNING"], None, None, None, None]
    return listing(
        J["list_one_time_running"], args, rows=3_000, buffers=30_000, slabs=SLABS + SINGLES
    )


@case("one-time jobs of a tenant by queue and label")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, [], 3, "job-x", "team:none", None, s.now, None, 1]
    return listing(J["list_one_time_of_tenant"], args, rows=2_500, buffers=12_000)


@case("cancelled one-time jobs of everybody")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, [2, 3], 3, "job-x", "team:none", [], s.now, None]
    return listing(J["list_one_time"], args, rows=2_500, buffers=12_000)


@case("cancelled one-time jobs of a tenant")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, [2, 3], 3, "job-x", "team:none", [], s.now, None, 1]
    return listing(J["list_one_time_of_tenant"], args, rows=2_500, buffers=12_000)


@case("executions of a day that retry")
def _(s: Scene) -> Case:
    args = [
        NEWEST,
        51,
        1000,
        first_id_at(s.now - timedelta(days=1)),
        None,
        ["RETRYING"],
        None,
        None,
        [],
        s.now,
        None,
        True,
    ]
    return listing(E["list_all"], args, rows=4_500, buffers=40_000)


@case("executions of everybody that are queued")
def _(s: Scene) -> Case:
    args = [NEWEST, 500, 1000, 0, None, ["QUEUED"], None, None, [], s.now, None, True]
    return listing(E["list_all"], args, rows=30_000, buffers=90_000)


@case("one-time executions of a tenant that retry")
def _(s: Scene) -> Case:
    first = first_id_at(s.now - timedelta(days=1))
    args = [NEWEST, 51, 1000, first, 1, ["RETRYING"], None, None, [], s.now, None, True]
    return listing(E["list_one_time"], args, rows=4_500, buffers=40_000)


@case("what runs of a tenant that has nothing running")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, -1, ["RUNNING"], None, None]
    return listing(E["list_running"], args, rows=25_000, buffers=120_000, slabs=SLABS + SINGLES)


@case("what waits for its targets")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, None, ["AWAITING"], None, None]
    return listing(E["list_running"], args, rows=2_500, buffers=30_000, slabs=SLABS + SINGLES)


@case("what waits for its targets of a tenant")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, 5000, ["AWAITING"], None, None]
    return listing(E["list_running"], args, rows=2_500, buffers=30_000, slabs=SLABS + SINGLES)


@case("dead executions of an hour ten days ago")
def _(s: Scene) -> Case:
    first, last = (first_id_at(s.now - timedelta(days=10, hours=h)) for h in (1, 0))
    args = [last, 51, 1000, first, None, None, None, None, [1], s.now, None, False]
    return listing(E["list_all"], args, rows=3_000, buffers=12_000)


@case("dead executions of a tenant and an hour ten days ago")
def _(s: Scene) -> Case:
    first, last = (first_id_at(s.now - timedelta(days=10, hours=h)) for h in (1, 0))
    args = [last, 51, 1000, first, 1, None, None, None, [1], s.now, None, False]
    return listing(E["list_recurring"], args, rows=3_000, buffers=12_000)


@case("live executions of everybody by statuses, queue and a label that none has")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, None, ["QUEUED", "RUNNING"], 1, "team:none", [], s.now, None, True]
    return listing(E["list_all"], args, rows=4_500, buffers=40_000, slabs=SLABS)


@case("live one-time executions of a tenant by queue and a label that none has")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, 1, ["QUEUED", "RUNNING"], 1, "team:none", [], s.now, None, True]
    return listing(E["list_one_time"], args, rows=4_500, buffers=40_000, slabs=SLABS)


@case("what runs by a label that none has")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, None, ["RUNNING", "AWAITING"], 1, "team:none"]
    return listing(E["list_running"], args, rows=25_000, buffers=120_000, slabs=SLABS + SINGLES)


@case("ended executions by statuses, reason, queue and a label that none has")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, None, None, 1, "team:none", [0, 1], s.now, None, False]
    return listing(E["list_all"], args, rows=3_000, buffers=15_000)


@case("ended executions of a tenant by a reason that none has")
def _(s: Scene) -> Case:
    args = [NEWEST, 51, 1000, 0, 1, None, None, None, None, s.now, "crashed", False]
    return listing(E["list_recurring"], args, rows=3_000, buffers=12_000)


@case("dead letters by a reason that none has")
def _(s: Scene) -> Case:
    args = [FAR, NEWEST, 51, 1000, EARLY, "lost"]
    return listing(L["list_letters"], args, rows=1_100, buffers=4_000)


@case("dead letters of a day three days ago")
def _(s: Scene) -> Case:
    first, last = (s.now - timedelta(days=days) for days in (3, 2))
    args = [last, NEWEST, 51, LOOK, first, None]
    return listing(L["list_letters"], args, rows=60, buffers=400)


@case("dead letters of a tenant by a reason that none has")
def _(s: Scene) -> Case:
    args = [FAR, NEWEST, 51, 1000, EARLY, "lost", 1]
    return listing(L["list_letters_of_tenant"], args, rows=1_100, buffers=4_000)


@case("dead letters of a job by reason, tenant and time")
def _(s: Scene) -> Case:
    args = [FAR, NEWEST, 51, 1000, s.now - timedelta(days=1), "lost", 7, 5000]
    return listing(L["list_letters_of_job"], args, rows=60, buffers=400)


@case("a dead letter")
def _(s: Scene) -> Case:
    return Case(L["letter"], [s.letters[0]], rows=5, buffers=30)


@case("5,000 dead letters, to group them by error")
def _(s: Scene) -> Case:
    args = [FAR, NEWEST, 5_001, LOOK, EARLY, None]
    return listing(L["list_letters"], args, rows=LOOK, buffers=60_000)


@case("why some dead letters could not be replayed")
def _(s: Scene) -> Case:
    return Case(L["why_not_replayed"], [s.letters[:20]], rows=60, buffers=600)


@case("how long a job usually runs")
def _(s: Scene) -> Case:
    return Case(E["usual_run"], [s.minutely_job, 20, s.now], rows=60, buffers=600)


@case("replaying 500")
def _(s: Scene) -> Case:
    written = Step(
        """
        update hourbell.dead_letters as d set job = null, execution = to_jsonb(e) || jsonb_build_object('id', d.id)
        from hourbell.live as e where e.id = $1 and d.id = any ($2)
        """,
        [s.awaiting[0], s.letters],
    )
    args = [s.letters, [s.now] * 500, s.now]
    return Case(
        L["replay"], args, rows=4_000, buffers=60_000, before=[written]
    )  # each has a unique key


@case("purging 500")
def _(s: Scene) -> Case:
    return Case(L["purge"], [s.letters], rows=1_100, buffers=5_000)


@case("the audit trail of a job")
def _(s: Scene) -> Case:
    return listing(A["list_audit_of_job"], [NEWEST, 51, s.daily_job], rows=60, buffers=300)


@case("the audit trail from within a batch")
def _(s: Scene) -> Case:
    batch = Step(
        """
        insert into hourbell.audit (at, tenant, job, actor, operation, jobs)
        select $1, 1, min(id), 'anonymous', 'create', array_agg(id)
        from (select id from hourbell.live where job is null order by id limit 10000) as e
        """,
        [s.now],
    )
    return listing(
        A["list_audit"],
        [NEWEST, 51, NEWEST, LOOK, *[None] * 4],
        rows=200,
        buffers=5_000,
        before=[batch],
    )


@case("the audit trail of a job that was created among others")
def _(s: Scene) -> Case:
    batch = Step(
        """
        insert into hourbell.audit (at, tenant, job, actor, operation, jobs)
        select $1, 1, ($2::bigint >> 22) << 22, 'anonymous', 'create', array_agg(n) || $2::bigint
        from generate_series(1, 9999) as n
        """,
        [s.now, s.one_time],
    )
    args = [NEWEST, 51, s.one_time]
    return listing(A["list_audit_of_job"], args, rows=60, buffers=300, before=[batch])


@case("the audit trail of a tenant that has none")
def _(s: Scene) -> Case:
    return listing(
        A["list_audit_of_tenant"],
        [NEWEST, 51, NEWEST, LOOK, *[None] * 4, 20_000],
        rows=60,
        buffers=300,
    )


@case("tenants by name")
def _(s: Scene) -> Case:
    return listing(O["list_tenants"], ["tenant-5", 51], rows=120, buffers=600)


@case("a tenant by its name")
def _(s: Scene) -> Case:
    return Case(O["tenant"], ["tenant-5000"], rows=20, buffers=60)


@case("targets by name")
def _(s: Scene) -> Case:
    return listing(O["list_targets"], ["host-5", 51], rows=120, buffers=600)


@case("a target by its name")
def _(s: Scene) -> Case:
    return Case(O["target"], ["host-5000.example"], rows=20, buffers=60)


@case("housekeeping")
def _(s: Scene) -> Case:
    # Once a minute; it may look at every timetable and lane, never at every execution.
    args = [NODE, 1, s.now, "48 hours", 10_000]
    return Case(
        "select hourbell.delete_expired($1, $2, $3, $4, $5)",
        args,
        rows=90_000,
        buffers=200_000,
        buffers_15=450_000,
    )


@case("retention of a thousand tenants")
def _(s: Scene) -> Case:
    # Once a minute; it looks at the oldest of each tenant, never at all that a tenant has.
    args = [NODE, 1, s.now, 30, 365, 365, 1_000, 10_000]
    return Case(
        "select hourbell.retain($1, $2, $3, $4, $5, $6, $7, $8)", args, rows=40_000, buffers=60_000
    )


def creating(
    s: Scene,
    count: int,
    keys: str | None = None,
    unique: Sequence[str] = (),
    replaces: bool = False,
) -> list[Any]:
    """The arguments of create_jobs for so many requests for a one-time job each."""
    ids = [9_000_000_000_000_000_000 + n for n in range(count)]
    numbers = list(range(1, count + 1))
    tenants = [1 + n % 10_000 for n in range(count)] if keys else [1] * count
    kept = [f"{keys}-{n}" if keys else None for n in range(count)]
    instant = int(s.now.timestamp() * 1_000_000)
    columns = [ids, numbers, None, [instant] * count, tenants, [1] * count]
    one_time = [column and f"{{{','.join(map(str, column))}}}" for column in columns]
    settings = [
        {"k": 1, "queue": 1, "priority": 2, "at_most_once": False, "notifies": 0, "level": 0}
    ]
    wishes = [
        {
            "job": ids[n],
            "request": n + 1,
            "tenant": tenants[n],
            "space": 0,
            "key": key,
            "replaces": replaces,
        }
        for n, key in enumerate(unique)
    ]
    asked = [
        tenants,
        ["somebody"] * count,
        kept,
        [r"\x00"] * count,
        ["{}"] * count,
    ]
    as_json = [json.dumps(settings), None, json.dumps(wishes) if wishes else None]
    return [s.now, 50, 50, [1], *asked, *one_time, b"\n".join([b"{}"] * count), *as_json]


def listing(
    statement: str,
    args: list[Any],
    rows: int,
    buffers: int,
    before: Sequence[Step] = (),
    slabs: int = 0,
) -> Case:
    """A statement of a list, as engine/views/pages.py runs it."""
    pinned = [*before, Step(queries("pages")["pin_plans"])]
    # No text is looked for.
    wanted = max(map(int, re.findall(r"\$(\d+)", statement)))
    args = [*args, *[None] * (wanted - len(args))]
    return Case(statement, args, rows, buffers, slabs, before=pinned)


def opened_fire(s: Scene, timetable: int) -> list[Step]:
    statement = """
      select hourbell.open_fires(null, null, $1, array[id], array[next_fire_at], array[next_fire_at],
        array[next_fire_at + interval '1 day'], array[false], array[false], array[id], array[next_fire_at], 50000)
      from hourbell.timetables where id = $2
    """
    return [Step(statement, [s.now, timetable])]


def joiners(s: Scene, timetable: int, count: int) -> list[Step]:
    statement = """
      insert into hourbell.memberships (timetable, priority, job, version, active_since, tenant, queue, misfire,
        catch_up_seconds, catch_up_limit, overlap, at_most_once)
      select $1, 2, 9000000000000000000 + n, 1, $2, 1, 1, 1, 60, 10, 0, false from generate_series(1, $3::int) as n
    """
    return [Step(statement, [timetable, s.now, count])]


def settling(s: Scene, count: int, kind: int, buffers: int) -> Case:
    ids, fences, milliseconds = s.held[:count], s.fences[:count], [1] * count
    others = list(range(1, count + 1)) if kind else []
    said: list[Any] = [[kind], [5.0], ["x"], ["x"], [None], ["x"]]
    args = [s.session, s.token, s.now, ids, fences, milliseconds, milliseconds]
    args += [others, *([*column] * len(others) for column in said)]
    # PostgreSQL 15 may read all that the session holds, which is no more than its slots.
    return Case(SETTLE, args, rows=max(2 * count, len(s.held)) + 2 * count + 40, buffers=buffers)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("planned_for", ["its arguments", "any arguments"])
async def test_a_hot_statement_reads_no_more_than_it_needs(
    name: str, planned_for: str, big: asyncpg.Connection, scene: Scene
) -> None:
    guarded = CASES[name](scene)
    if big.get_server_version().major == 15:
        guarded = msgspec.structs.replace(
            guarded,
            rows=guarded.rows_15 or guarded.rows,
            # It looks for every id of an array in every partition.
            buffers=guarded.buffers_15 or 2 * guarded.buffers,
        )
    found = await reading(big, guarded, planned_for)
    if problems_of(found, guarded):  # the first time a connection also reads the catalogue
        found = await reading(big, guarded, planned_for)
    assert problems_of(found, guarded) == []


@pytest.mark.parametrize("statistics", ["gathered at night"], indirect=True)
@pytest.mark.parametrize(
    ("name", "removed"),
    [
        ("claim of 200", "drop index hourbell.ready_in_order"),
        ("claim of 200 behind the tasks of others", "drop index hourbell.ready_by_task"),
        ("admission of 500", "drop index hourbell.due_by_tier"),
        ("reaping a session of 400", f"alter function hourbell.reap__{OWN} reset all"),
        ("a look at overlaps", "drop index hourbell.open_runs_requested"),
        ("join of one to a herd", "drop index hourbell.memberships_joining"),
        ("last 50 runs of a minutely job", "drop index hourbell.executions_by_job"),
        (
            "executions of a small tenant that have ended",
            "drop index hourbell.executions_recurring",
        ),
        ("one-time jobs of a small tenant", "drop index hourbell.executions_one_time"),
        ("recurring jobs by their names", "drop index hourbell.jobs_by_name"),
        ("counting a minute", "drop index hourbell.outcomes_by_time"),
        ("keys of a tenant", "drop index hourbell.api_keys_by_tenant"),
        ("monitors of a job that was changed", "drop index hourbell.monitors_by_job"),
        ("200 that were not completed in time", "drop index hourbell.awaiting_in_order"),
        ("numbers of queues that a tenant has made", "drop index hourbell.queues_by_maker"),
    ],
)
async def test_a_guard_notices_that_an_index_or_the_pinning_is_gone(
    name: str, removed: str, big: asyncpg.Connection, scene: Scene
) -> None:
    guarded = CASES[name](scene)
    without = msgspec.structs.replace(guarded, before=[Step(removed), *guarded.before])
    found = await reading(big, without, "its arguments")
    problems = problems_of(found, without)
    assert any(problem.startswith("reads") for problem in problems), (found, problems)


@pytest.mark.parametrize("statement", ["last_outcomes", "list_all", "list_one_time"])
async def test_no_list_hashes_the_index_of_slabs_for_each_of_its_rows(
    statement: str, big: asyncpg.Connection, scene: Scene
) -> None:
    """A memoized look-up would have the arrays of `slab_index`, a megabyte, in its key."""
    if statement == "last_outcomes":
        args: list[Any] = [[scene.daily_job, scene.minutely_job, scene.live_job], 20, scene.now]
    else:
        tenant = None if statement == "list_all" else 1
        args = [NEWEST, 51, LOOK, 0, tenant, None, None, None, None, scene.now, None, True]
    transaction = big.transaction()
    await transaction.start()
    try:
        await big.execute(queries("pages")["pin_plans"])
        rows = await big.fetch("explain " + E[statement], *args)
    finally:
        await transaction.rollback()
    plan = "\n".join(row[0] for row in rows)
    assert "slab_index" in plan
    assert "Memoize" not in plan


@pytest.mark.parametrize("mixed", [False, True])
async def test_a_held_snapshot_makes_claims_no_dearer(database: str, mixed: bool) -> None:
    # What vacuum may not clear away piles up where rows pass through. Every scan of the life begins behind the pile.
    worker = await connect(database, statement_cache_size=0)
    holder = await connect(database)
    now = await worker.fetchval("select hourbell.clock()")
    await worker.execute("select hourbell.make_partitions($1, 1, 1)", now)
    await worker.execute(
        "insert into hourbell.tenants (name, created_at)"
        " select 'tenant-' || n, $1 from generate_series(1, 20) as n",
        now,
    )
    await worker.execute(
        "insert into hourbell.queues (name, created_at) values ('default', $1)", now
    )
    opened = "select * from hourbell.open_session($1, '1 hour', 'worker', '{1}', $2::int[], 1000)"
    session = await worker.fetchrow(opened, now, [2] if mixed else None)
    assert session is not None
    if mixed:
        await worker.fetchrow(opened, now, [3])
    hold = holder.transaction(isolation="repeatable_read")
    await hold.start()
    await holder.fetchval("select count(*) from hourbell.live")

    rounds = [await one_round(worker, session, number) for number in range(1, 51)]

    await hold.rollback()
    for verb in rounds[0]:
        early = sum(r[verb] for r in rounds[1:6]) / 5  # the first has the plans to make
        late = sum(r[verb] for r in rounds[-5:]) / 5
        assert late <= 3 * early, f"{verb}: from {early} to {late} pages in 50 rounds"
    await worker.close()
    await holder.close()


async def one_round(
    worker: asyncpg.Connection, session: asyncpg.Record, number: int
) -> dict[str, int]:
    """Enqueues 200 executions, admits, claims and settles them; the pages that each verb has read."""
    now = await worker.fetchval("select hourbell.clock()")
    await worker.execute(
        """
        with made as (
          insert into hourbell.executions (id, occurrence, run_at, tenant, queue, priority, version, origin, spec, target)
          select hourbell.id_base($1) | (nextval('hourbell.ids') & 4194303), $1, $1, 1 + n % 20, 1, 2, 1, 0, '{}', -2
          from generate_series(1, 200) as n returning *)
        insert into hourbell.due (run_at, id, tenant, queue, priority, target)
        select run_at, id, tenant, queue, priority, target from made
        """,
        now,
    )
    pages = {"admit": await pages_of(worker, ADMIT, [now, 5000])}
    who = [session["id"], session["token"]]
    pages["claim"] = await pages_of(worker, TAKE, [*who, number, False, 200, now, "15 s"])
    held = await worker.fetch("select id, fence from hourbell.leases order by id")
    assert len(held) == 200
    ids, fences = [row["id"] for row in held], [row["fence"] for row in held]
    plain: list[Any] = [[1] * 200, [1] * 200, [], [], [], [], [], [], []]
    pages["settle"] = await pages_of(worker, SETTLE, [*who, now, ids, fences, *plain])
    return pages


# The measuring.


def problems_of(found: Reading, guarded: Case) -> list[str]:
    """What was read beyond the bounds."""
    problems = [
        f"reads all {rows} rows of {table}"
        for table, rows in found.scanned.items()
        if rows > SMALL + (guarded.slabs if table == "leased" else 0)
    ]
    problems += [
        f"reads {rows} rows of {table}, bound {guarded.rows}"
        for table, rows in found.rows.items()
        if rows > guarded.rows + (guarded.slabs if table == "leased" else 0)
    ]
    if found.buffers > guarded.buffers:
        problems.append(f"reads {found.buffers} pages, bound {guarded.buffers}")
    return problems


async def reading(connection: asyncpg.Connection, guarded: Case, planned_for: str) -> Reading:
    """Runs the statement, takes everything back, and says what was read."""
    mode = "force_generic_plan" if planned_for == "any arguments" else "force_custom_plan"
    await connection.execute("discard plans")  # of other cases
    transaction = connection.transaction()
    await transaction.start()
    try:
        await connection.execute(f"set local plan_cache_mode = {mode}")
        for step in guarded.before:
            await connection.execute(step.statement, *step.args)
        rows, scanned = await rows_read(connection)
        buffers = await pages_of(connection, guarded.statement, guarded.args)
        rows_after, scanned_after = await rows_read(connection)
    finally:
        await transaction.rollback()
    return Reading(buffers, difference(rows_after, rows), difference(scanned_after, scanned))


async def pages_of(connection: asyncpg.Connection, statement: str, args: list[Any]) -> int:
    """Runs the statement as a prepared one; the pages that it has read, functions and all."""
    await connection.execute("deallocate all")
    await connection.execute(f"prepare guarded as {statement}")
    values = ", ".join(map(literal, args))
    answer = await connection.fetchval(
        f"explain (analyze, buffers, timing off, format json) execute guarded({values})"
    )
    plan = json.loads(answer)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


async def rows_read(connection: asyncpg.Connection) -> tuple[dict[str, int], dict[str, int]]:
    """What this transaction has read so far, by table; the partitions of a table are one."""
    rows: dict[str, int] = {}
    scanned: dict[str, int] = {}
    for table in await connection.fetch(
        "select case when relname ~ '^(executions|outcomes)_' then split_part(relname, '_', 1) else relname end as name,"
        " seq_tup_read as scanned, coalesce(idx_tup_fetch, 0) + seq_tup_read as rows"
        " from pg_stat_xact_user_tables where schemaname = 'hourbell'"
    ):
        rows[table["name"]] = rows.get(table["name"], 0) + table["rows"]
        scanned[table["name"]] = scanned.get(table["name"], 0) + table["scanned"]
    return rows, scanned


def difference(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {table: count - before.get(table, 0) for table, count in after.items()}


def literal(value: Any) -> str:
    """A value as SQL text: `execute` takes no parameters inside `explain`."""
    if value is None:
        return "null"
    if isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, list):
        parts = ["null" if item is None else json.dumps(str(item)) for item in value]
        return "'{" + ",".join(parts) + "}'"
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    return f"'{value}'"


# The data.


@pytest.fixture(scope="module")
def big18(postgres: str) -> Iterator[str]:
    """A database filled by `tests/data/big.sql`, once for all tests of this file."""
    asyncio.run(fill(postgres))
    yield in_database(postgres, "big")
    asyncio.run(drop(postgres))


@pytest.fixture(scope="module")
def big15(postgres15: str) -> Iterator[str]:
    asyncio.run(fill(postgres15))
    yield in_database(postgres15, "big")
    asyncio.run(drop(postgres15))


@pytest.fixture(
    scope="module",
    params=["never gathered", "gathered at night", "gathered", "gathered at night, PostgreSQL 15"],
)
def statistics(request: pytest.FixtureRequest) -> str:
    """A database in which the planner knows this. In this order: what was gathered is not unlearnt."""
    when, _, server = request.param.partition(", ")
    dsn: str = request.getfixturevalue("big15" if server else "big18")
    asyncio.run(gather(dsn, when))
    return dsn


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def big(statistics: str) -> AsyncIterator[asyncpg.Connection]:
    """One connection for all cases: what the first of them has read of the catalogue, the others know."""
    connection = await connect(statistics, statement_cache_size=0)
    yield connection
    await connection.close()


@pytest.fixture(scope="module")
def scene(statistics: str) -> Scene:
    return asyncio.run(look_at(statistics))


async def look_at(dsn: str) -> Scene:
    connection = await connect(dsn)
    row = await connection.fetchrow(
        """
        select swept_at + interval '500 ms' as now, s.id as session, s.token::text,
          array(select id from hourbell.leases where session = s.id order by id) as held,
          array(select fence from hourbell.leases where session = s.id order by id) as fences,
          array(select id from hourbell.due where flags = 1 and run_at <= swept_at order by id limit 100) as overlapping,
          array(select key from hourbell.parked where kind = 5 order by key limit 200) as parked_jobs,
          (select job from hourbell.big_live where n = 3000) as live_job,
          (select id from hourbell.big_jobs where n = 600000) as minutely_job,
          (select id from hourbell.big_jobs where n = 777) as daily_job,
          (select id from hourbell.big_live where n = 160002) as one_time,
          (select max(id) from hourbell.ledger where job <> id) as recorded,
          (select max(id) from hourbell.ledger where job = id) as one_time_ended,
          array(select id from hourbell.big_awaiting order by n limit 500) as awaiting,
          array(select job from hourbell.unique_keys where tenant = 1 and key like 'unique-%' order by key limit 200) as unique_jobs,
          array(select key from hourbell.unique_keys where tenant = 1 and key like 'unique-%' order by key limit 200) as unique_keys,
          array(select id from hourbell.dead_letters order by id limit 500) as letters
        from hourbell.due_marks, hourbell.sessions as s where s.id = 7 limit 1
        """
    )
    await connection.close()
    assert row is not None
    return Scene(**row)


async def fill(server: str) -> None:
    await drop(server)
    connection = await connect(server)
    await connection.execute("create database big")
    await connection.close()
    await migrate(in_database(server, "big"))
    connection = await connect(in_database(server, "big"))
    now = await connection.fetchval("select hourbell.clock()")
    # Never in the morning: the partition of a day that has just begun is so small that it is read as a whole.
    if now.hour < 12:
        now -= timedelta(hours=12)
    text = (Path(__file__).parent.parent / "data" / "big.sql").read_text()
    async with connection.transaction():
        await connection.execute(text.replace("$now", f"{literal(now)}::timestamptz"))
    await connection.close()


async def drop(server: str) -> None:
    connection = await connect(server)
    await connection.execute("drop database if exists big with (force)")
    await connection.close()


async def gather(dsn: str, when: str) -> None:
    connection = await connect(dsn)
    known = await connection.fetchval("select count(*) from pg_stats where schemaname = 'hourbell'")
    if when == "never gathered":
        assert known == 0
        assert (
            await connection.fetchval(
                "select max(reltuples) from pg_class where relnamespace = 'hourbell'::regnamespace"
                " and relkind = 'r' and relname !~ '^big_'"
            )
            == -1
        )
    else:
        await connection.execute("analyze")
    if when == "gathered at night":
        # As if the tables of live executions had been looked at while they were almost empty.
        await connection.execute(
            "update pg_class set reltuples = 10 where relnamespace = 'hourbell'::regnamespace"
            " and relname in ('executions', 'due', 'ready', 'leased', 'parked', 'cancellations', 'awaiting', 'notices')"
        )
    await connection.close()
