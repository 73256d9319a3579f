"""Clock drift: the local clock decides nothing, but it stamps the logs, so drift is reported."""

from __future__ import annotations

import structlog

from hourbell.store.clock import DatabaseClock

MAX_DRIFT_SECONDS = 1.0
CHECK_SECONDS = 30.0

log = structlog.get_logger(component="process")


async def check_drift(clock: DatabaseClock) -> bool:
    """Compare the clocks once and warn if they differ. Returns False: nothing more to do."""
    drift = await clock.drift_seconds()
    if drift is not None and abs(drift) > MAX_DRIFT_SECONDS:
        log.warning(
            "clock drift: synchronize this machine with NTP",
            seconds=round(drift, 3),
        )
    return False
