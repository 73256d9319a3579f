"""Two PostgreSQL servers for the rig, a primary and its standby, and the ways in which they are broken.

Both are the wheel's own programs, run as the embedded server is run, but on a TCP port of 127.0.0.1
where everybody is trusted, and each with its files in the rig's folder:

    <folder>/one/        the cluster of the one, which is the primary at first
    <folder>/one.conf    its settings, written by us whenever its part changes
    <folder>/one.log     what it says
    <folder>/one.clock   by how much its clock is off, if the machine can bend clocks
    <folder>/two/ …      the same for the other, the standby at first

To fill the disk of one of them, mount a small file system at its folder before the start.

**Parts.** A server is a standby if its cluster has the file `standby.signal`, and follows whom its
settings name; they lie outside of the cluster, so that a copy of the cluster does not bring those of
another server along. The standby streams through a replication slot of the primary's. In a
synchronous pair a commit is answered only when the standby has it on disk too. A primary without a
standby would then answer nobody: so a promoted server waits for no standby until one is attached.

**A failover** promotes the standby, on its own port and on a new timeline. What becomes of the old
primary is up to the caller: stopped in good order, killed, or left alive behind proxies that no
longer lead to it. It can `rejoin`, as a standby, by winding back what it alone has written; or
`resurrect_old_primary` lets it make the mistake of coming back as what it was. In a synchronous pair
it then waits for a standby that does not come, in an asynchronous one it takes whatever it is given.

**Dying.** A server ends fast (SIGINT, as `pg_ctl stop -m fast` does), immediately (SIGQUIT) or killed
(SIGKILL of its first process). It counts as gone when none of its processes is left: a new one
refuses to start beside one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Literal, Self

import asyncpg
import psutil

import services
from chaos.processes import bent_clock
from chaos.proxy import Proxy
from hourbell.store.embedded import Account, program_path, server_environment
from ports import free_port

StopMode = Literal["fast", "immediate"]

SLOT = "standby"  # of the primary, for the standby; also the name by which the standby is known
START_SECONDS = 60.0
STOP_SECONDS = 30.0
PARTING_SECONDS = 5.0  # for processes whose first one is gone
PROGRAM_SECONDS = 120.0
SQL_SECONDS = 30.0
POLL_SECONDS = 0.02

SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    # All that is confirmed is on disk; in a synchronous pair, on both.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "wal_level": "replica",
    "wal_log_hints": "on",  # pg_rewind asks for this or for checksums
    "max_wal_size": "256MB",
    # Enough for a standby that was away for a while, and an end to it.
    "wal_keep_size": "256MB",
    "max_slot_wal_keep_size": "1GB",
    # A standby is back soon after its primary is.
    "wal_retrieve_retry_interval": "200ms",
    # As the embedded server has them.
    "jit": "off",
    "autovacuum_naptime": "5s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
    "log_checkpoints": "off",
}


class ServerFailed(Exception):
    """A server or one of PostgreSQL's programs did not do what it was asked to; with its last words."""


def dsn_at(port: int) -> str:
    """The database of the pair, through this port of 127.0.0.1: a server's own, or a proxy's."""
    return f"postgresql://postgres@127.0.0.1:{port}/postgres"


class Pair:
    """A primary and its standby."""

    def __init__(self, folder: Path, *, synchronous: bool, programs: Path | None = None) -> None:
        self.synchronous = synchronous
        one, two = free_port(), free_port()
        self._primary = _Server(folder, "one", one, programs)
        self._standby = _Server(folder, "two", two, programs)  # after a failover: the old primary
        self._link: Proxy | None = None  # through which the standby follows the primary

    @classmethod
    async def start(
        cls,
        folder: Path,
        synchronous: bool,
        programs: Path | None = None,
        link: Proxy | None = None,
    ) -> Self:
        """Make both in an empty folder and start them; they replicate when it returns.

        `programs`: of which PostgreSQL; None: of the wheel. `link`: a proxy through which the standby
        follows the first primary.
        """
        pair = cls(folder, synchronous=synchronous, programs=programs)
        if link is not None:
            link.retarget("127.0.0.1", pair.primary_port)
            pair._link = link
        try:
            await pair._primary.make()
            pair._primary.configure()
            await pair._primary.start()
            await pair._primary.make_slot()
            await pair._copy_and_follow()
            await pair._replicate()
        except BaseException:
            await pair.stop()
            raise
        return pair

    @property
    def primary_port(self) -> int:
        return self._primary.port

    @property
    def standby_port(self) -> int:
        """Of the server that is not the primary: between a failover and `rejoin`, the old primary."""
        return self._standby.port

    @property
    def primary_data(self) -> Path:
        """The data folder of the primary."""
        return self._primary.data

    async def start_what_has_died(self) -> None:
        """After a full disk: whichever of the two gave up is started again."""
        for server in (self._primary, self._standby):
            if not server.is_alive:
                await server.kill()  # of what is left
                await server.start()

    def dsn(self) -> str:
        """The primary, without a proxy."""
        return dsn_at(self.primary_port)

    async def restart(self, mode: StopMode) -> None:
        """Stop the primary and start it again."""
        await self._primary.stop(mode)
        await self._primary.start()

    async def kill(self) -> None:
        """kill -9 of the primary; none of its processes is left when it returns."""
        await self._primary.kill()

    async def start_again(self) -> None:
        """Start the primary after `kill`: it recovers what it had confirmed."""
        await self._primary.start()

    def set_clocks(self, seconds: int) -> None:
        """From now on both servers take the time to be so much later than it is."""
        for server in (self._primary, self._standby):
            server.set_clock(seconds)

    async def terminate_backends(self, application_name_like: str) -> int:
        """End all connections to the primary whose application has such a name; how many there were."""
        number = await self._primary.value(
            """
            select count(*) filter (where pg_terminate_backend(pid))
            from pg_stat_activity
            where application_name like $1 and pid <> pg_backend_pid() and backend_type = 'client backend'
            """,
            application_name_like,
        )
        return int(number)

    async def failover(self, *, kill: bool, leave_old_alive: bool = False) -> float:
        """Make the standby the primary, on the port that it has; it takes writes when it returns.

        Returns when the last transaction was committed that it has of the old one.
        """
        if not leave_old_alive:
            await (self._primary.kill() if kill else self._primary.stop("fast"))
        await self._standby.promote()
        had = await self._standby.value(
            "select extract(epoch from coalesce(pg_last_xact_replay_timestamp(), clock_timestamp()))::float8"
        )
        await self._standby.make_slot()
        self._primary, self._standby = self._standby, self._primary
        self._link = None
        return float(had)

    async def rejoin(self) -> Literal["rewound", "copied"]:
        """After a failover, make the old primary a standby of the new; they replicate when it returns.

        It is copied again if it cannot be rewound to where the two diverged.
        """
        await self._standby.stop("fast")
        try:
            await self._standby.rewind(self._primary.port)
            await self._follow()
        except ServerFailed:
            await self._standby.kill()
            await self._copy_and_follow()
            how: Literal["rewound", "copied"] = "copied"
        else:
            how = "rewound"
        await self._replicate()
        return how

    async def resurrect_old_primary(self) -> None:
        """After a failover, start the old primary as if nothing had happened: now there are two."""
        await self._standby.start()

    async def stop(self) -> None:
        """Stop both; no process is left."""
        await self._primary.stop("fast")
        await self._standby.stop("fast")

    async def _copy_and_follow(self) -> None:
        await self._standby.copy(self._primary.port)
        await self._follow()

    async def _follow(self) -> None:
        self._standby.configure(
            follows=self._primary.port if self._link is None else self._link.port
        )
        self._standby.become_standby()
        await self._standby.start()
        await self._primary.has_standby("streaming")
        # One that it had as a primary would keep its log for nobody.
        await self._standby.drop_slot()

    async def _replicate(self) -> None:
        if self.synchronous:
            self._primary.configure(waits_for=SLOT)
            self._primary.reload()
            await self._primary.has_standby("sync")


class _Server:
    """One of the two."""

    def __init__(self, folder: Path, name: str, port: int, programs: Path | None) -> None:
        self.port = port
        self._programs = programs
        self.data = folder / name
        self._settings = folder / f"{name}.conf"
        self._log = folder / f"{name}.log"
        self._clock = folder / f"{name}.clock"
        self.set_clock(0)
        self._process: subprocess.Popen[bytes] | None = None

    # ---- its files

    async def make(self) -> None:
        self._empty()
        await self._run(
            "initdb",
            f"--pgdata={self.data}",
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            *(["--locale-provider=builtin"] if self._programs is None else []),
            "--locale=C.UTF-8",
            "--no-sync",
        )

    async def copy(self, source_port: int) -> None:
        self._empty()
        await self._run(
            "pg_basebackup",
            f"--pgdata={self.data}",
            f"--dbname={_conninfo(source_port)}",
            "--wal-method=stream",
            f"--slot={SLOT}",
            "--checkpoint=fast",
            "--no-sync",
        )

    async def rewind(self, source_port: int) -> None:
        # Of a server that was just promoted, the control file tells of the new timeline only now.
        await _value(source_port, "checkpoint")
        await self._run(
            "pg_rewind",
            f"--target-pgdata={self.data}",
            f"--source-server={_conninfo(source_port)} dbname=postgres",
            # It recovers the target first if that was killed.
            f"--config-file={self._settings}",
            "--no-sync",
        )

    def configure(self, *, follows: int | None = None, waits_for: str = "") -> None:
        """Write its settings; one that runs reads them at a reload."""
        settings = SETTINGS | {"port": str(self.port), "synchronous_standby_names": waits_for}
        if follows is not None:
            settings["primary_conninfo"] = f"{_conninfo(follows)} application_name={SLOT}"
            settings["primary_slot_name"] = SLOT
        lines = [f"{name} = '{value}'\n" for name, value in settings.items()]
        self._settings.write_text("".join(lines))
        self._settings.chmod(0o644)  # we may be another account than the server

    def become_standby(self) -> None:
        (self.data / "standby.signal").touch(mode=0o644)

    def _empty(self) -> None:
        """Its folder, without contents. The folder itself stays: it may be a mount point."""
        Account.for_cluster(self.data).own_private_folder(self.data)
        for entry in self.data.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    # ---- its processes

    async def start(self) -> None:
        """Start it, and wait until it answers; as a primary or as a standby, as its files say."""
        assert self._process is None, "it runs already"
        with self._log.open("ab") as log:
            # Not in a thread: a caller that is cancelled while it waits for one would lose the process.
            self._process = subprocess.Popen(
                self._command("postgres", "-D", str(self.data), f"--config-file={self._settings}"),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=server_environment(),
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                await self.kill()
                raise ServerFailed(self._log.read_text(errors="replace")[-2000:])
            await asyncio.sleep(POLL_SECONDS)

    async def stop(self, mode: StopMode) -> None:
        """End it in this way, and by force if it does not come to its end; nothing if it does not run."""
        if self._process is None:
            return
        self._process.send_signal(SIGNALS[mode])
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, STOP_SECONDS)
        await self.kill()

    async def kill(self) -> None:
        """kill -9 of its first process; the others notice and end, or are ended. Nothing if it does not run."""
        if self._process is None:
            return
        others: list[psutil.Process] = []
        if self._process.poll() is None:
            # It stands while we count, so that no process of it escapes us.
            self._process.send_signal(signal.SIGSTOP)
            others = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            await asyncio.to_thread(self._process.wait)
        if not await _are_gone(others, PARTING_SECONDS):
            for process in others:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if not await _are_gone(others, PARTING_SECONDS):
                raise ServerFailed(f"processes that cannot be killed: {others}")
        # What the library that bends clocks leaves behind, if its process is killed.
        for left in (f"faketime_shm_{self._process.pid}", f"sem.faketime_sem_{self._process.pid}"):
            (services.MEMORY / left).unlink(missing_ok=True)
        # All have ended, and the kernel may reuse their number: another process must not be taken for a server.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self._process = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def set_clock(self, seconds: int) -> None:
        new = self._clock.with_suffix(".new")
        new.write_text(f"{seconds:+d}s")
        new.chmod(0o644)
        new.replace(self._clock)  # whole, for whom reads it at this moment

    def reload(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def _answers(self) -> bool:
        """Whether it has written that it takes connections, as pg_ctl finds out."""
        assert self._process is not None
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        is_its_own = lines[:1] == [str(self._process.pid)]
        return is_its_own and len(lines) >= 8 and lines[7].strip() in ("ready", "standby")

    def _command(self, program: str, *arguments: str) -> list[str]:
        account = Account.for_cluster(self.data)
        path = program_path(program) if self._programs is None else str(self._programs / program)
        command = [path, *arguments]
        if program == "postgres" and services.faketime() is not None:
            # Not before the change of accounts: the library makes a file that only its first account may open.
            bent = [f"{name}={value}" for name, value in bent_clock(self._clock).items()]
            command = [shutil.which("env") or "env", *bent, *command]
        return account.command(command, reaching=[self.data, Path(path).parent])

    async def _run(self, program: str, *arguments: str) -> None:
        """One of PostgreSQL's programs, to its end."""
        done = await asyncio.to_thread(
            subprocess.run,
            self._command(program, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=server_environment(),
            start_new_session=True,
            timeout=PROGRAM_SECONDS,
        )
        if done.returncode != 0:
            said = done.stdout.decode(errors="replace")
            raise ServerFailed(f"{program} ended with {done.returncode}: {said[-2000:]}")

    # ---- its part

    async def promote(self) -> None:
        """From standby to primary, one that waits for nobody."""
        await self._run("pg_ctl", "promote", f"--pgdata={self.data}", "--wait", "--silent")
        self.configure()
        self.reload()
        await self.value("select pg_current_xact_id()::text")  # takes a write to answer

    async def make_slot(self) -> None:
        await self.value("select pg_create_physical_replication_slot($1, true)::text", SLOT)

    async def drop_slot(self) -> None:
        await self.value(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = $1",
            SLOT,
        )

    async def has_standby(self, state: Literal["streaming", "sync"]) -> None:
        """Wait until one is attached to it, in this state."""
        deadline = time.monotonic() + START_SECONDS
        while not await self.value(
            "select count(*) from pg_stat_replication where application_name = $1 and $2 in (state, sync_state)",
            SLOT,
            state,
        ):
            if time.monotonic() > deadline:
                raise ServerFailed(f"no standby became {state} within {START_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)

    async def value(self, statement: str, *arguments: object) -> Any:
        return await _value(self.port, statement, *arguments)


async def _value(port: int, statement: str, *arguments: object) -> Any:
    connection = await asyncpg.connect(
        dsn_at(port), ssl=False, timeout=SQL_SECONDS, command_timeout=SQL_SECONDS
    )
    try:
        return await connection.fetchval(statement, *arguments)
    finally:
        await connection.close(timeout=SQL_SECONDS)


async def _are_gone(processes: list[psutil.Process], seconds: float) -> bool:
    """Whether all of them end in time. One that nobody has buried is as gone as the others."""
    deadline = time.monotonic() + seconds
    while any(_is_there(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


def _is_there(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _conninfo(port: int) -> str:
    return f"host=127.0.0.1 port={port} user=postgres"
