import structlog
from structlog.testing import capture_logs

from hourbell.observe.drift import check_drift
from hourbell.store.clock import DatabaseClock
from hourbell.store.database import Database
from integration.life.support import eventually

_FAST_CLOCK = """
create or replace function hourbell.clock() returns timestamptz language sql volatile
return clock_timestamp() + interval '5 seconds'
"""


async def test_a_node_whose_clock_differs_by_more_than_a_second_is_alarmed(database: str) -> None:
    opened = await Database.open(database, 1)
    try:
        clock = DatabaseClock(opened)
        with capture_logs() as logs:
            await check_drift(clock)
        assert logs == []
        await opened.value(_FAST_CLOCK)
        structlog.reset_defaults()
        with capture_logs() as logs:

            async def is_told() -> bool:  # a round trip that takes long says nothing about clocks
                await check_drift(clock)
                return bool(logs)

            await eventually(is_told)
        assert [entry["log_level"] for entry in logs] == ["warning"]
        assert -5.5 < logs[0]["seconds"] < -4.5
    finally:
        await opened.close()
