"""A machine that is operated by the pages of docs/operate: a PostgreSQL 15 of its own, and a process for each role.

The shell blocks of the pages run as they are printed, with these exceptions:

- Ports, and blocks that only export the names of the reader's own hosts and folders: the machine has others (`env`).
- `systemctl start|stop|restart hourbell@ROLE…` starts and ends real processes, with the unit's command and signal. The
  unit itself is started by a real systemd in `make deploy-test`.
- Blocks for programs that cannot run here (NOT_HERE). The files that they name exist.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg

import services
from integration.life.support import eventually
from integration.test_roles import PATIENCE_SECONDS, ask, is_ready
from ports import free_port

ROOT = Path(__file__).parents[3]
PAGES = ROOT / "docs" / "operate"
NOT_HERE = ("docker ", "kubectl ", "helm ")
ROLES = ("api", "scheduler", "worker")
_UNITS = re.compile(r"^systemctl (start|stop|restart)((?: hourbell@\w+)+)$")
_FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, heading: str = "") -> list[str]:
    """The shell blocks of a page, or of one of its sections, that run here."""
    text = (PAGES / page).read_text("utf-8")
    if heading:
        _, found, text = text.partition(f"\n## {heading}\n")
        assert found, heading
        text = text.partition("\n## ")[0]
    return [each for each in _FENCE.findall(text) if not is_elsewhere(each) and not exports(each)]


def is_elsewhere(block: str) -> bool:
    return all(line.startswith((*NOT_HERE, " ")) for line in block.splitlines())


def exports(block: str) -> list[str]:
    """The variables of a block that does nothing but export them."""
    found = [re.fullmatch(r"export (\w+)=.*", line) for line in block.splitlines()]
    return [each[1] for each in found if each] if all(found) else []


class Machine:
    """Runs what the pages print."""

    def __init__(self, folder: Path, dsn: str, **settings: str) -> None:
        self.folder = folder
        sockets = Path(dsn.partition("?host=")[2])
        self.data = sockets.parent / "cluster"
        self.dsn = dsn.replace("postgres@/postgres?", "hourbell@/hourbell?")
        self.ports = {role: free_port() for role in ROLES}
        self.env = {
            "HOME": str(folder),
            "PATH": f"{Path(sys.executable).parent}:{services.POSTGRES15_PROGRAMS}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "HOURBELL_DATABASE_URL": self.dsn,
            "BEFORE_URL": self.dsn.replace("/hourbell?", "/hourbell_before?"),
            "HOURBELL_EGRESS_ALLOW": "127.0.0.0/8",
            "HOURBELL_LEASE_SECONDS": "3",
            "HOURBELL_LEADER_LEASE_SECONDS": "3",
            "PGHOST": str(sockets),
            "PGUSER": "postgres",
            "PGDATA": str(self.data),
            "BACKUPS": str(sockets.parent / "backups"),
        } | settings
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    async def types(self, block: str, *, as_postgres: bool = False, code: int = 0) -> str:
        """Run a block; what it printed. `as_postgres`: by the user that PostgreSQL's files belong to."""
        told = ""
        for systemctl, lines in _parts(block):
            if systemctl:
                verb, units = systemctl
                await self.systemctl(verb, units)
                continue
            script = "set -eu\n" + lines.replace(":8080", f":{self.ports['api']}")
            shell = ["bash", "-c", script]
            process = await asyncio.create_subprocess_exec(
                *(services.as_owner(self.data, shell) if as_postgres else shell),
                env=self.env,
                cwd="/" if as_postgres else self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            # Not until its end of output: a server that a block has started keeps it open.
            out = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
            told += out[0].decode()
            assert process.returncode == code, f"{block}\n{told}"
        return told

    async def systemctl(self, verb: str, roles: Sequence[str]) -> None:
        for role in roles if verb != "start" else ():
            self._processes[role].send_signal(signal.SIGTERM)
        for role in roles if verb != "start" else ():
            process = self._processes.pop(role)
            assert await asyncio.to_thread(process.wait, PATIENCE_SECONDS) == 0, self.log(role)
        for role in roles if verb != "stop" else ():
            with (self.folder / f"{role}.log").open("ab") as log:
                self._processes[role] = subprocess.Popen(
                    ["hourbell", role],
                    env=self.env | {"HOURBELL_PORT": str(self.ports[role])},
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )

    def log(self, role: str) -> str:
        return (self.folder / f"{role}.log").read_text(errors="replace")

    async def ready(self, *roles: str) -> None:
        for role in roles or tuple(self._processes):
            await eventually(lambda role=role: is_ready(self.ports[role]), PATIENCE_SECONDS)

    async def ask(self, path: str, body: object = None, key: str | None = None) -> Any:
        return await asyncio.to_thread(ask, self.ports["api"], path, body, key, str(uuid.uuid4()))

    def kill(self) -> None:
        """End what a test has left."""
        for process in self._processes.values():
            process.kill()
            process.wait()


async def prepare(dsn: str) -> None:
    """What the pages expect of the server: a role and its database, and a folder for backups that `postgres` may write."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("create role hourbell login")
    await connection.execute("create database hourbell owner hourbell")
    await connection.close()
    folder = Path(dsn.partition("?host=")[2]).parent
    uid = (folder / "cluster").stat().st_uid
    (folder / "backups").mkdir()
    for each in (folder, folder / "backups"):
        os.chown(each, uid, -1)


async def started(machine: Machine) -> Machine:
    """The same machine, with all roles running."""
    await machine.types("hourbell migrate")
    await machine.systemctl("start", ROLES)
    await machine.ready()
    return machine


def _parts(block: str) -> Iterator[tuple[tuple[str, list[str]] | None, str]]:
    """The lines of a block, with those of `systemctl` for our units apart."""
    lines: list[str] = []
    for line in block.splitlines():
        found = _UNITS.match(line)
        if not found:
            lines.append(line)
            continue
        if lines:
            yield None, "\n".join(lines)
            lines = []
        yield (found[1], re.findall(r"@(\w+)", found[2])), ""
    if lines:
        yield None, "\n".join(lines)
