"""Notifications of schedules in code: the same as those of jobs over the API."""

from typing import Any

import msgspec
import pytest

from hourbell import App, Retry, WorkerOptions, cron, every
from hourbell.engine.core import Engine
from hourbell.errors import InvalidArguments
from integration.life.support import eventually

FAST = WorkerOptions(lease_seconds=3, drain_seconds=5)
CHAT: Any = {
    "on": ("failure", "dead_letter"),
    "url": "https://chat.example/ops",
    "headers": {"Authorization": "Bearer {{secret:chat}}"},
    "secrets": "lazy",
}


def app_of(database: str, revision: int, **options: Any) -> App:
    app = App("shop", url=database, revision=revision, retry=Retry.never())

    @app.task(name="report", schedule=every(1, **options))
    async def report() -> None:
        raise RuntimeError("no data")

    return app


async def declared(engine: Engine) -> list[Any]:
    spec = await engine.database.value("select spec from hourbell.jobs")
    return msgspec.json.decode(spec or "{}").get("notifications", [])


async def test_a_schedule_declares_its_notifications_and_they_report_its_runs(
    database: str, engine: Engine
) -> None:
    first = app_of(database, 1, notifications=[CHAT])
    async with first, first.worker(FAST):

        async def reported() -> bool:
            found: bool = await engine.database.value(
                "select exists (select from hourbell.executions"
                " where origin = hourbell.origin_notification() and spec like '%chat.example%')"
            )
            return found

        await eventually(reported)
    assert await declared(engine) == [CHAT | {"on": ["failure", "dead_letter"]}]
    second = app_of(database, 2)  # the next version has none
    async with second, second.worker(FAST):

        async def none() -> bool:
            return await declared(engine) == []

        await eventually(none)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({**CHAT, "on": ["dead"]}, r"notifications\[0\].on\[0\] is not an allowed value"),
        ({"url": "https://chat.example"}, r"notifications\[0\].on is required"),
        ({**CHAT, "url": "ftp://chat.example"}, r"notifications\[0\].url must begin with http"),
        ({**CHAT, "header": {}}, "did you mean headers"),
        ({**CHAT, "on": [object()]}, "must be JSON"),
    ],
)
def test_a_wrong_notification_is_refused_where_it_is_written(wrong: Any, why: str) -> None:
    with pytest.raises(InvalidArguments, match=why):
        every(60, notifications=[wrong])
    with pytest.raises(InvalidArguments, match=why):
        cron("@daily", notifications=[wrong])
