"""The short pages of docs/operate: an installation from its first command to an upgrade; and that no page has been left out."""

import subprocess

import pytest

import services
from integration.life.support import eventually
from integration.operate.machine import PAGES, Machine, blocks
from integration.test_roles import PATIENCE_SECONDS

TESTED = {"backup.md", "incidents.md"}  # by test_backup.py and test_incidents.py
SHORT = {"install.md", "monitoring.md", "connections.md", "upgrade.md", "security.md"}


def test_each_page_has_a_test() -> None:
    pages = {page.name for page in PAGES.glob("*.md")}
    assert pages == TESTED | SHORT | {"README.md", "sizing.md"}
    assert blocks("README.md") == blocks("sizing.md") == []


@pytest.mark.timeout(240)
async def test_an_installation_is_made_watched_upgraded_and_given_keys(bare: Machine) -> None:
    rights, start, doctor = blocks("install.md")
    await bare.types(rights)
    await bare.types(start)
    await bare.ready()

    async def is_healthy() -> bool:
        return "a scheduler leads" in await bare.types(doctor)

    await eventually(is_healthy, PATIENCE_SECONDS)

    look, again = blocks("monitoring.md")
    assert '"ready"' in await bare.types(look)
    metrics = (bare.folder / "metrics.txt").read_bytes()
    subprocess.run([services.promtool(), "check", "metrics"], input=metrics, check=True)
    await bare.types(again)

    (connections,) = blocks("connections.md")
    told = await bare.types(connections)
    assert all(f"hourbell {role}" in told for role in ("api", "scheduler", "worker"))

    migrate, restart, check = blocks("upgrade.md")
    await bare.types(migrate)
    await bare.types(restart)
    await bare.ready()
    await bare.types(check)

    first, others, sealing = blocks("security.md")
    key = (await bare.types(first)).split()[-1]
    listed = await bare.types(others)
    assert ("shop" in listed, "prometheus" in listed) == (True, True)
    assert ":" in await bare.types(sealing)
    assert len((await bare.ask("/api/v1/keys", key=key))["items"]) == 3
