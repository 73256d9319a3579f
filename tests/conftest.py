"""Databases for tests, all real.

    postgres      the embedded server of this session, all settings as in production
    postgres15    Debian's PostgreSQL 15
    pgbouncer     PgBouncer in transaction mode before `postgres`
    database      an empty, migrated database of one test, on `postgres`
    engine_dsn    the same on each of the three in turn: for the conformance suite

All yield a DSN. A server starts when the first test asks for it. Where many tests share a database, its connections
stay open from one to the next (`kept.py`), and all tests of a process share one event loop.
"""

import asyncio
import contextlib
import gc
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from urllib.parse import urlsplit

import asyncpg
import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

import services
from hourbell import failpoints
from hourbell.store.embedded import EmbeddedServer
from hourbell.store.migrations import migrate
from known_types import remember_types

# Nothing is admitted to a queue that nobody serves. Most tests drive the gate before there is a worker: somebody who never
# claims anything serves all their queues.
SOMEBODY_SERVES = """
insert into hourbell.sessions (id, token, worker, queues, slots, started_at, renewed_at, expires_at)
select -1, gen_random_uuid(), 'nobody', array(select generate_series(1, 50)), 0, '2000-01-01', '2000-01-01', '9999-01-01'
"""
# Emptying takes less than a new database. A table without pages has no rows; most tests write to a few tables only.
# Not `truncate`: a table with new files makes every connection plan its statements again.
_EMPTY = """
do $$
declare name text;
begin
  for name in select relname from pg_class where relnamespace = 'hourbell'::regnamespace and relkind = 'r'
    and pg_relation_size(oid) > 0 and relname not in ('migrations', 'function_sets')
  loop execute format('delete from hourbell.%I', name); end loop;
  perform setval(pg_get_serial_sequence('hourbell.queues', 'id'), 1, false);  -- SOMEBODY_SERVES the first 50
end $$
"""
TEMPLATE = "hourbell_template"
# Otherwise a connection plans each statement five times, for its arguments, before it keeps a plan: half of the server's
# work in tests of what the statements do. How they are planned is the matter of conformance/test_plans.py.
_PLAN_ONCE = """
do $$ begin
  execute format('alter database %I set plan_cache_mode = force_generic_plan', current_database());
end $$
"""

remember_types()

# By default an example fails that takes more than 200 ms, which says that the machine stalled. `timeout` bounds every test.
settings.register_profile("default", settings.get_profile("default"), deadline=None)

DatabaseMaker = Callable[[str], AbstractAsyncContextManager[str]]

# Tests that measure time, and tests that load the machine on purpose: those of one kind run one after the other.
MEASURE_TIME = (
    "integration/life/test_fair_and_limited.py",
    "integration/life/test_health.py",
    "integration/life/test_leadership.py",
    "integration/life/test_rates.py",
)
LOAD_THE_MACHINE = (
    "chaos/test_rig.py",
    "integration/life/test_http_workers.py",
    "integration/life/test_kills.py",
    "integration/life/test_outage.py",
    "integration/test_hostile.py",
)
# The longest groups, which begin first: what begins last decides how long the whole takes.
FIRST = (
    "load the machine",
    "measure time",
    "ui/test_pages.py",
    "conformance/test_plans.py",
    "PostgreSQL 15",
    "chaos/test_postgres.py",
    "integration/test_up.py",
    "integration/life/test_limits_at_random.py",
    "simulation/test_simulation.py",
    "integration/api/test_group_commit.py",
    "property/engine/test_fairness.py",
    "integration/test_roles.py",
    "integration/actions/test_nasty_targets.py",
    "integration/test_embedded.py",
    "integration/api/test_schemathesis.py",
    "property/engine/test_interleavings.py",
    "integration/api/test_claim_executions.py",
    "property/timing/test_properties.py",
)

# What `make quick` leaves out: kills and outages, weeks of simulated life, a database with 600,000 jobs, other servers; and what takes
# more than a second of processor time, or waits for seconds by the real clock.
SLOW = (
    *MEASURE_TIME,
    *LOAD_THE_MACHINE,
    "chaos/",
    "conformance/",
    "integration/actions/test_nasty_targets.py",
    "integration/api/test_claim_executions.py",
    "integration/api/test_complete_awaiting.py",
    "integration/api/test_create_jobs.py::test_thousands_of_keys_that_others_have",
    "integration/api/test_group_commit.py",
    "integration/api/test_idempotency.py::test_a_repeat_that_would_not_be_accepted",
    "integration/api/test_idempotency.py::test_while_the_first_still_runs",
    "integration/api/test_injection.py::test_every_parameter_takes_any_text",
    "integration/api/test_pool.py::test_more_patches_at_once",
    "integration/api/test_quotas.py",
    "integration/api/test_random_input.py",
    "integration/api/test_schemathesis.py",
    "integration/api/test_wake_ups.py::test_no_wake_up_is_lost_beside",
    "integration/cli/",
    "integration/life/test_bad_results.py::test_a_nul_and_other_odd_results",
    "integration/life/test_claims.py::test_claimers_in_several_processes",
    "integration/life/test_claims.py::test_claims_and_settles_racing",
    "integration/life/test_herds.py",
    "integration/life/test_fairness.py",
    "integration/life/test_fan_out.py::test_a_storm_of_changes",
    "integration/life/test_handlers.py",
    "integration/life/test_leadership.py",
    "integration/life/test_limit_changes.py",
    "integration/life/test_limits.py::test_a_line_that_the_next_limit_would_stop",
    "integration/life/test_limits.py::test_no_more_start_than_rate_and_burst",
    "integration/life/test_limits_at_random.py",
    "integration/life/test_poison.py",
    "integration/life/test_runners.py",
    "integration/life/test_stopped_clients.py",
    "integration/life/test_tasks.py",
    "integration/life/test_unknown_zones.py",
    "integration/life/test_worker.py",
    "integration/library/test_examples.py",
    "integration/library/test_frameworks.py",
    "integration/library/test_running_tasks.py",
    "integration/observe/test_exporting.py::test_a_system",
    "integration/observe/test_traces.py",
    "integration/operate/",
    "integration/test_",
    "integration/testing/test_bell.py::test_a_leap_year",
    "integration/testing/test_bell.py::test_a_payload_that_does_not_fit",
    "integration/testing/test_plugin.py",
    "property/engine/",
    "property/timing/",
    "simulation/",
    "ui/",
    "unit/library/test_killed_workers.py",
    "unit/library/test_typing.py",
)


def group_of(nodeid: str) -> str:
    """Tests of one group run in one process of pytest-xdist, one after the other."""
    file = nodeid.removeprefix("tests/").partition("::")[0]
    if file.startswith("conformance/") and ("PostgreSQL 15" in nodeid or "postgresql-15" in nodeid):
        return "PostgreSQL 15"  # one server for all of them, and one big database
    if file in MEASURE_TIME:
        return "measure time"
    if file in LOAD_THE_MACHINE:
        return "load the machine"
    return file


class Scheduling(LoadScopeScheduling):
    """Groups in the order of collection, which `pytest_collection_modifyitems` decides."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is imported or collected becomes garbage: no search for it now, nor in any test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.removeprefix("tests/").startswith(SLOW):
            item.add_marker("slow")
    ranks = {group: rank for rank, group in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(group_of(item.nodeid), len(FIRST)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    with (
        services.folder_for_databases() as folder,
        EmbeddedServer(folder / "data", owner="tests") as server,
    ):
        yield server.dsn


@pytest.fixture(scope="session")
def postgres15() -> Iterator[str]:
    with services.running_postgres15() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def pgbouncer(postgres: str) -> Iterator[str]:
    with services.running_pgbouncer(postgres) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def new_database() -> DatabaseMaker:
    """Makes databases on the server of a DSN, as copies of one that was migrated once."""
    numbers = itertools.count(1)
    have_template: set[str] = set()

    @contextlib.asynccontextmanager
    async def make(server: str) -> AsyncIterator[str]:
        if server not in have_template:
            await _execute(server, f"create database {TEMPLATE}")
            await migrate(in_database(server, TEMPLATE))
            await _execute(in_database(server, TEMPLATE), SOMEBODY_SERVES)
            have_template.add(server)
        name = f"test_{next(numbers)}"
        # Copied as files: half the work of writing each page to the WAL too.
        await _execute(server, f"create database {name} template {TEMPLATE} strategy file_copy")
        try:
            yield in_database(server, name)
        finally:
            await _execute(server, f"drop database {name} with (force)")

    return make


@pytest.fixture
async def database(postgres: str, new_database: DatabaseMaker) -> AsyncIterator[str]:
    async with new_database(postgres) as dsn:
        yield dsn


@pytest.fixture(params=["embedded", "pgbouncer", "postgresql-15"])
async def engine_dsn(
    request: pytest.FixtureRequest, new_database: DatabaseMaker
) -> AsyncIterator[str]:
    if request.param == "postgresql-15":
        server = request.getfixturevalue("postgres15")
    else:
        server = request.getfixturevalue("postgres")
    async with new_database(server) as dsn:
        yield through_pgbouncer(request, dsn) if request.param == "pgbouncer" else dsn


def through_pgbouncer(request: pytest.FixtureRequest, dsn: str) -> str:
    """The same database of the embedded server, behind the pooler."""
    name = urlsplit(dsn).path.removeprefix("/")
    return in_database(request.getfixturevalue("pgbouncer"), name)


@pytest.fixture
async def _own_tasks() -> AsyncIterator[None]:
    """All tests of a process share its event loop; what a test has started there ends with it."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)


@pytest.fixture(autouse=True)
def _ends_its_tasks(request: pytest.FixtureRequest) -> None:
    # Not for every test: the thousands without a loop need none.
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("_own_tasks")


@pytest.fixture(autouse=True)
def _no_failpoints_left() -> Iterator[None]:
    yield
    failpoints.configure("")


def in_database(dsn: str, name: str) -> str:
    """The same server, another database."""
    return urlsplit(dsn)._replace(path=f"/{name}").geturl()


async def number_in_order(dsn: str) -> None:
    """Ids in the order of their making also if several connections make them: each takes one at a time, not many ahead."""
    await _execute(dsn, "alter sequence hourbell.ids cache 1")


async def plan_once(dsn: str) -> None:
    """Connections that are opened from now on plan each statement once."""
    await _execute(dsn, _PLAN_ONCE)


async def empty(connection: asyncpg.Connection) -> None:
    """Delete the rows of all tables, as if the database had just been made."""
    async with connection.transaction():
        await connection.execute("set local session_replication_role = replica")  # in any order
        await connection.execute(_EMPTY)
        await connection.execute(SOMEBODY_SERVES)


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
