"""What a command loads: nobody waits for a web server to see a list of keys."""

import subprocess
import sys

import pytest

SERVE_OR_SEND = ("litestar", "uvicorn", "aiohttp")


@pytest.mark.parametrize("command", ["keys", "migrate", "next", "secrets"])
def test_a_command_that_serves_nothing_loads_no_web_server(command: str) -> None:
    script = f"import hourbell.cli.{command}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    loaded = done.stdout.decode().split()
    assert f"hourbell.cli.{command}" in loaded
    assert not set(SERVE_OR_SEND) & set(loaded)
