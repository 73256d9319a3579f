"""Logs jobs that this process cannot read: each of them once, however often it is claimed."""

from __future__ import annotations

from typing import Any

from hourbell.model.executions import Claimed
from hourbell.model.ids import execution_text, job_text

_MAX_JOBS = 1_000  # that are remembered; then all are logged again


class UnreadableJobs:
    """The jobs that were logged."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._logged: set[int] = set()

    def log(self, claimed: Claimed, error: BaseException) -> None:
        """Log the job of a claimed execution, if it was not logged before."""
        if claimed.job_id in self._logged:
            return
        if len(self._logged) >= _MAX_JOBS:
            self._logged.clear()
        self._logged.add(claimed.job_id)
        self._log.error(
            "job cannot be read",
            execution_id=execution_text(claimed.execution_id),
            job_id=job_text(claimed.job_id),
            error=str(error),
        )
