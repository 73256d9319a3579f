"""The pytest plugin: fixtures that cost nothing until a test uses them.

        bell               the app on its own database, with a virtual clock
        hourbell_app       the app, from the setting `hourbell_app`, such as shop.tasks:app
    hourbell_server    one PostgreSQL for the test run, with a migrated template
    hourbell_prepare   override it with a function that adds your own tables to the template
    hourbell_database  the URL of a copy of the template, for one test

pytest imports this module whenever it starts, so it imports only what pytest itself has.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from hourbell.sdk.app import App
    from hourbell.testing.bell import Bell
    from hourbell.testing.servers import DatabaseServer

_MARKER = (
    "hourbell(at=None, mode='manual', concurrency=1, raises=True, schedules=None): how the fixture `bell` of this "
    "test is set up; see hourbell.testing.start"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("hourbell_app", "the app for the fixture `bell`, such as shop.tasks:app")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    if config.pluginmanager.hasplugin("asyncio"):
        config.pluginmanager.import_plugin("hourbell.testing.asyncio_fixtures")


@pytest.fixture(scope="session")
def hourbell_prepare() -> Callable[[str], None] | None:
    """Override it with a function that adds your own tables to the database with this URL."""
    return None


@pytest.fixture(scope="session")
def hourbell_server(
    hourbell_prepare: Callable[[str], None] | None,
) -> Iterator[DatabaseServer]:
    """One PostgreSQL for the test run: an embedded one, or that of HOURBELL_TEST_DATABASE_URL."""
    from hourbell.testing.servers import running_server

    with running_server(hourbell_prepare) as server:
        yield server


@pytest.fixture
def hourbell_database(hourbell_server: DatabaseServer) -> Iterator[str]:
    """The URL of a migrated database for one test."""
    url = hourbell_server.new_database()
    yield url
    hourbell_server.drop(url)


@pytest.fixture
def hourbell_app(pytestconfig: pytest.Config) -> App:
    """The app under test. Override it, or set `hourbell_app` in the pytest settings."""
    from hourbell.sdk.running import load_app

    target = pytestconfig.getini("hourbell_app")
    if not target:
        raise pytest.UsageError(
            'Which app should be tested? Set hourbell_app = "shop.tasks:app" in [tool.pytest.ini_options], '
            "or override the fixture hourbell_app."
        )
    return load_app(target)


@pytest.fixture
def bell(request: pytest.FixtureRequest) -> Bell:
    """The app on its own database, with a clock that only this test moves."""
    if not inspect.iscoroutinefunction(request.function):
        which = "hourbell_sync_bell"
    elif "anyio_backend" in request.fixturenames:
        which = "hourbell_anyio_bell"
    elif request.config.pluginmanager.hasplugin("asyncio"):
        which = "hourbell_asyncio_bell"
    else:
        raise pytest.UsageError("For async tests, the fixture bell needs pytest-asyncio or anyio.")
    made: Bell = request.getfixturevalue(which)
    return made


@pytest.fixture
def hourbell_sync_bell(
    request: pytest.FixtureRequest, hourbell_app: App, hourbell_database: str
) -> Iterator[Bell]:
    """The bell for a test that is a plain function: it runs in the portal's thread."""
    from hourbell.testing.bell import start
    from hourbell.testing.servers import in_portal

    made = start(hourbell_app, url=hourbell_database, **bell_options(request))
    bell = in_portal(made.__aenter__())
    with ExitStack() as stack:
        stack.callback(lambda: in_portal(made.__aexit__(None, None, None)))
        yield bell


@pytest.fixture
async def hourbell_anyio_bell(
    request: pytest.FixtureRequest, hourbell_app: App, hourbell_database: str
) -> AsyncIterator[Bell]:
    """The bell for a test run by anyio."""
    from hourbell.testing.bell import start

    async with start(hourbell_app, url=hourbell_database, **bell_options(request)) as bell:
        yield bell


def bell_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    marker = request.node.get_closest_marker("hourbell")
    return {} if marker is None else dict(marker.kwargs)
