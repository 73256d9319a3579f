"""Drift: nothing is decided by this machine's clock, but people read its logs, so a wrong one is alarmed (R63)."""

from __future__ import annotations

import structlog

from hourbell.store.clock import DatabaseClock

MOST_DRIFT_SECONDS = 1.0
CHECK_SECONDS = 30.0

log = structlog.get_logger()


async def alarm_drift(clock: DatabaseClock) -> bool:
    """Compare the clocks once and complain; never more to do."""
    drift = await clock.drift_seconds()
    if drift is not None and abs(drift) > MOST_DRIFT_SECONDS:
        log.warning(
            "this machine's clock differs from the database's; set it by NTP",
            seconds=round(drift, 3),
        )
    return False
