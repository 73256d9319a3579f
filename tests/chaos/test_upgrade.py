"""Two neighbouring builds on one database, under load: upgraded and rolled back process by process."""

from pathlib import Path

import pytest

import services
from chaos.builds import MissingBuild, extract
from chaos.faults import ROLLING_UPGRADE
from chaos.rig import chaos

SECONDS = 10.0  # and until all processes have gone there, back and there again
SETTLE_SECONDS = 15.0


@pytest.mark.timeout(480)
async def test_an_upgrade_and_a_rollback_lose_and_double_nothing() -> None:
    with services.private_folder() as folder:
        judged = await chaos(
            folder,
            21,
            SECONDS,
            [ROLLING_UPGRADE],
            settle_seconds=SETTLE_SECONDS,
            schedulers=2,
            workers=2,
        )
    assert judged.violations == []
    assert judged.figures.faults == {ROLLING_UPGRADE: 1}
    assert judged.figures.deliveries > 200


def test_a_build_whose_commit_is_missing_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(MissingBuild, match=r"the commit 0{40} is not in this repository"):
        extract("0" * 40, tmp_path)
