"""The fixtures of users, with the server of this test run in place of one of their own."""

from collections.abc import Iterator

import pytest

from hourbell import App
from hourbell.testing.servers import DatabaseServer


@pytest.fixture(scope="session")
def hourbell_server(postgres: str) -> Iterator[DatabaseServer]:
    server = DatabaseServer(postgres)
    server.open()
    yield server
    server.close()


@pytest.fixture
def hourbell_app() -> App:
    return App("shop")
