"""A database for each module, emptied before each test, as for the life of an execution.

An app and its worker open several pools of connections; these too stay open from test to test.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from integration.life.conftest import cleaner as cleaner
from integration.life.conftest import database as database
from integration.life.conftest import engine as engine
from integration.life.conftest import still as still
from kept import keeping_all_open


@pytest.fixture(autouse=True)
async def _keeps_connections_open() -> AsyncIterator[None]:
    with keeping_all_open(asyncio.get_running_loop()):
        yield
