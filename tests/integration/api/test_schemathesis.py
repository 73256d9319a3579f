"""The running API against its own document, by schemathesis: every check, and sequences of calls."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from hourbell.api import auth
from hourbell.api.server import ApiServer
from integration.api.client import Client

HERE = Path(__file__).parent
EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "6"))


@pytest.mark.timeout(600)
async def test_nothing_is_answered_that_the_document_does_not_say(
    server: ApiServer, api: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # It tries every operation with keys of its own making, and wishes to be told each time that they are unknown.
    monkeypatch.setattr(auth, "MAX_FAILURES", 1_000_000)
    made = await api.post("/api/v1/keys", {"name": "schemathesis", "role": "admin"})
    ours = {
        "SCHEMATHESIS_HOOKS": "schemathesis_hooks",
        "HOURBELL_TEST_KEY": made.body["key"],
        "PYTHONPATH": str(HERE),
    }
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-m",
            "schemathesis.cli",
            "--config-file",
            str(HERE / "schemathesis.toml"),
        ),
        *("run", f"http://127.0.0.1:{server.port}/schema/openapi.json"),
        # A deleted job stays readable: its history is what people look for afterwards.
        *("--checks", "all", "--exclude-checks", "use_after_free"),
        # A stream, which does not end; and a sign-in, which no made-up key passes.
        *("--exclude-operation-id", "stream_events", "--exclude-operation-id", "create_session"),
        *("--phases", "examples,coverage,fuzzing,stateful"),
        *("--max-examples", str(EXAMPLES), "--seed", "1", "--no-color"),
        cwd=tmp_path,
        env=os.environ | ours,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()[-20_000:]
