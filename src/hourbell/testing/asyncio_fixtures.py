"""The fixture `bell` for tests that pytest-asyncio runs; registered if pytest has that plugin."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from hourbell.testing.plugin import bell_options

if TYPE_CHECKING:
    from hourbell.sdk.app import App
    from hourbell.testing.bell import Bell


@pytest_asyncio.fixture
async def hourbell_asyncio_bell(
    request: pytest.FixtureRequest, hourbell_app: App, hourbell_database: str
) -> AsyncIterator[Bell]:
    from hourbell.testing.bell import start

    async with start(hourbell_app, url=hourbell_database, **bell_options(request)) as bell:
        yield bell
