"""The machine of the pages, with an empty database, on a server of its own: the pages stop and replace it."""

import base64
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import services
from integration.operate.machine import Machine, prepare, started


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Machine]:
    """A database that was not migrated, and no processes."""
    with services.running_postgres15() as dsn:
        await prepare(dsn)
        key = base64.b64encode(os.urandom(32)).decode()
        machine = Machine(tmp_path, dsn, HOURBELL_SECRET_KEYS=f"main:{key}")
        try:
            yield machine
        finally:
            machine.kill()


@pytest.fixture
async def machine(bare: Machine) -> Machine:
    return await started(bare)
