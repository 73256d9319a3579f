"""A smoke of the chaos rig: every part of it, for a short time. `make chaos` runs it for long."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

import services
from chaos.builds import MissingBuild, extract
from chaos.faults import KINDS, POINTS, ROLLING_UPGRADE, possible, schedule
from chaos.rig import chaos
from hourbell.failpoints import NAMES

SECONDS = 35.0  # besides an upgrade, a rollback and an upgrade of all processes
SETTLE_SECONDS = 15.0
# The rest of the suite uses the machine too: on one of 2 cores that was ten times as slow as usual, starts came 8 s late.
# `make chaos` has the machine for itself, and allows nothing.
SHARED_SECONDS = 20.0
# What takes longer than a smoke has: these wait for a process to come to a certain point, or restart them all.
LONG = {
    "poison",
    "kill_at_failpoint",
    "stop_at_failpoint",
    "stop_in_statement",
    "rolling_restart",
    "older_tzdata",
    "older_worker",
    "clock_skew",
    "clock_step",
    "clock_back",
}


@pytest.mark.timeout(480)
async def test_whatever_breaks_and_whoever_upgrades_the_promises_are_kept() -> None:
    """One run: to start everything and let it come to rest takes as long as several faults."""
    kinds = [kind for kind in possible() if kind not in LONG]
    with services.private_folder() as folder:
        judged = await chaos(
            folder,
            11,
            SECONDS,
            kinds,
            settle_seconds=SETTLE_SECONDS,
            schedulers=2,
            workers=2,
            shared_seconds=SHARED_SECONDS,
        )
        if judged.violations:
            print(f"recorded in {kept(folder)}")
    assert judged.violations == []
    assert judged.figures.deliveries > 200
    assert judged.figures.faults[ROLLING_UPGRADE] == 1
    assert sum(judged.figures.faults.values()) >= 3


def kept(folder: Path) -> str:
    """A copy of what was recorded: `python -m chaos.rig --judge FOLDER` judges it again."""
    copy = tempfile.mkdtemp(prefix="hourbell-chaos-")
    for file in folder.iterdir():
        if file.is_file():
            shutil.copy(file, copy)
    return copy


def test_a_build_whose_commit_is_missing_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(MissingBuild, match=r"the commit 0{40} is not in this repository"):
        extract("0" * 40, tmp_path)


def test_faults_name_points_that_exist() -> None:
    assert {point for points in POINTS.values() for point in points} <= set(NAMES)


def test_a_seed_is_a_schedule() -> None:
    names = ["receiver", "api-1", "scheduler-1", "worker-1"]
    first, again = (schedule(7, list(KINDS), names) for _ in range(2))
    assert first == again
    assert first != schedule(8, list(KINDS), names)
    assert {planned.kind for planned in first[: len(KINDS)]} == set(KINDS)


def test_in_ci_nothing_is_left_out() -> None:
    if os.environ.get("CI") == "true":
        assert possible() == list(KINDS)
