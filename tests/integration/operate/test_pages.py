"""The short pages of docs/operate: an installation from its first command to an upgrade; and that no page has been left out."""

import asyncio
import contextlib
import re
import subprocess
from collections.abc import AsyncIterator

import pytest

import services
from integration.life.support import eventually
from integration.operate.machine import PAGES, Machine, blocks
from integration.test_roles import PATIENCE_SECONDS
from ports import free_port

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
    await signs_in_through_the_proxy(bare, key)


async def signs_in_through_the_proxy(machine: Machine, key: str) -> None:
    """The example for nginx passes what the cookie and the events need."""
    async with proxied(machine) as origin:
        curl = f"curl --silent --insecure --connect-to hourbell.example.com::127.0.0.1: {origin}"
        signed_in = await machine.types(
            f"{curl}/api/v1/session --include --header 'Origin: {origin}' --header 'Sec-Fetch-Site: same-origin'"
            f" --header 'X-Hourbell-Client: dashboard' --json '{{\"api_key\": \"{key}\"}}'"
        )
        assert re.search(r"set-cookie: __Host-hourbell=.*Secure", signed_in, re.IGNORECASE)
        # A stream that never ends: its first event is not buffered.
        events = f"{curl}/api/v1/events?topics=overview --no-buffer --header 'Authorization: Bearer {key}'"
        assert "event: overview" in await machine.types(f"({events} || true) | sed '/^event/q'")


@contextlib.asynccontextmanager
async def proxied(machine: Machine) -> AsyncIterator[str]:
    text = (PAGES / "security.md").read_text()
    (server,) = re.findall(r"^```nginx\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    port, folder = free_port(), machine.folder
    await machine.types(
        "openssl req -x509 -newkey rsa:2048 -nodes -keyout hourbell.key -out hourbell.crt -days 2"
        " -subj /CN=hourbell.example.com"
    )
    server = server.replace("443", str(port)).replace("/etc/ssl", str(folder))
    server = server.replace("8080", str(machine.ports["api"]))
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"pid {folder}/nginx.pid;\ndaemon off;\nevents {{}}\nhttp {{\naccess_log off;\n{temporary}{server}}}\n"
    )
    log = f"{folder}/nginx.log"
    command = [services.nginx(), "-e", log, "-g", f"error_log {log};", "-c", f"{folder}/nginx.conf"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:

        async def listens() -> bool:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                return True
            return False

        await eventually(listens, PATIENCE_SECONDS)
        yield f"https://hourbell.example.com:{port}"
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
