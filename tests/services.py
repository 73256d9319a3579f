"""What tests need besides the embedded PostgreSQL: Debian's PostgreSQL 15, PgBouncer, nginx, Chromium, promtool,
systemd-analyze, a clock that can be bent.

`python tests/services.py` (a part of `make test`) installs what is missing, if this is a Debian
machine and we are root. What then still is missing is skipped aloud on a developer's machine and
fails where `CI=true`: there nobody reads what was skipped.

Each server runs in a private folder, on a unix socket, for one test session.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest

POSTGRES15_PROGRAMS = Path("/usr/lib/postgresql/15/bin")
FAKETIME = "faketime/libfaketimeMT.so.1"  # below the folder of the machine's libraries
START_SECONDS = 30.0
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 * 1024**3  # more than one server of the tests fills: 3 GiB


def provide() -> None:
    """Install what is missing, or say what will not be tested and how to change that."""
    missing = _missing_packages()
    if not missing:
        return
    if os.geteuid() == 0 and shutil.which("apt-get"):
        _say(f"installing {' and '.join(missing)} for the tests")
        with _without_starting_services():
            _install(missing)
    for package in _missing_packages():
        _say(f"{package} is missing: {_consequence()}. As root: apt-get install {package}")


def _missing_packages() -> list[str]:
    missing = []
    if not (POSTGRES15_PROGRAMS / "postgres").exists():
        missing.append("postgresql-15")
    if _pgbouncer_program() is None:
        missing.append("pgbouncer")
    if faketime() is None:
        missing.append("libfaketime")
    if shutil.which("promtool") is None:
        missing.append("prometheus")
    if shutil.which("systemd-analyze") is None:
        missing.append("systemd")
    if chromium() is None:
        missing.append("chromium")
    if _nginx_program() is None:
        missing.append("nginx-light")
    return missing


def chromium() -> str | None:
    """The browser that shows the dashboard to its tests, if it is installed."""
    return shutil.which("chromium")


def faketime() -> Path | None:
    """The library that bends the clock of a process, if it is installed."""
    return next(Path("/usr/lib").glob(f"*/{FAKETIME}"), None)


def promtool() -> str:
    """The program of Prometheus that checks metrics and rules; skips the test if there is none."""
    program = shutil.which("promtool")
    if program is None:
        unavailable("promtool")
        raise AssertionError
    return program


def systemd_analyze() -> str:
    """The program of systemd that checks units; skips the test if there is none."""
    program = shutil.which("systemd-analyze")
    if program is None:
        unavailable("systemd-analyze")
        raise AssertionError
    return program


def nginx() -> str:
    """The proxy of docs/operate/security.md; skips the test if there is none."""
    program = _nginx_program()
    if program is None:
        unavailable("nginx")
        raise AssertionError
    return program


def _nginx_program() -> str | None:
    return shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _pgbouncer_program() -> str | None:
    # Debian keeps it where the PATH of ordinary users does not lead.
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


def _install(packages: list[str]) -> None:
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    install = ["install", "--yes", "--no-install-recommends", "--no-upgrade", *packages]
    for arguments in (["update"], install):
        done = subprocess.run(
            ["apt-get", "--quiet", *arguments],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive", "UCF_FORCE_CONFFOLD": "1"},
            **quiet,
        )
        if done.returncode != 0:
            _say(done.stdout.decode(errors="replace")[-2000:])
            return


@contextlib.contextmanager
def _without_starting_services() -> Iterator[None]:
    """Keep Debian's packages from making a cluster and from starting anything on common ports."""
    clusters = Path("/etc/postgresql-common/createcluster.conf")
    if not clusters.exists():
        clusters.parent.mkdir(exist_ok=True)
        clusters.write_text("create_main_cluster = false\n")
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink()


def unavailable(what: str) -> None:
    """Skip the test, or fail it in CI."""
    reason = f"{what} is not installed; make test installs it on Debian, as root"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def _consequence() -> str:
    return "its tests will FAIL" if os.environ.get("CI") == "true" else "its tests are SKIPPED"


def _say(line: str) -> None:
    sys.stderr.write(f"hourbell: {line}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def private_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder that goes away with all its contents; others may pass through, not look in."""
    with tempfile.TemporaryDirectory(prefix="hourbell-test-", dir=parent) as folder:
        os.chmod(folder, 0o711)
        yield Path(folder)


def folder_for_databases() -> AbstractContextManager[Path]:
    """A private folder in memory if there is room: the hundreds of databases of a session need no disk to be real."""
    roomy = (
        MEMORY.is_dir()
        and shutil.disk_usage(MEMORY).free > MEMORY_BYTES
        and psutil.virtual_memory().available > 1.5 * MEMORY_BYTES
    )
    return private_folder(MEMORY if roomy else None)


@contextlib.contextmanager
def running_postgres15() -> Iterator[str]:
    """Debian's PostgreSQL 15 with its own defaults, all durable; yields its DSN."""
    if not (POSTGRES15_PROGRAMS / "postgres").exists():
        unavailable("PostgreSQL 15")
    with folder_for_databases() as folder:
        cluster = _owned_folder(folder / "cluster", _unprivileged_uid())
        sockets = _owned_folder(folder / "sockets", _unprivileged_uid())
        log = cluster / "log"
        pg_ctl = [str(POSTGRES15_PROGRAMS / "pg_ctl"), f"--pgdata={cluster}", "--wait", "--silent"]
        run_as_owner(
            cluster, [*pg_ctl, "initdb", "-o", "-U postgres -A trust -E UTF8 --locale=C.UTF-8"]
        )
        settings = f"listen_addresses = ''\nunix_socket_directories = '{sockets}'\n"
        with (cluster / "postgresql.conf").open("a") as file:  # also for a start by another program
            file.write(settings)
        run_as_owner(cluster, [*pg_ctl, "start", f"--log={log}"])
        try:
            yield f"postgresql://postgres@/postgres?host={sockets}"
        finally:
            run_as_owner(cluster, [*pg_ctl, "stop", "--mode=fast"])


@contextlib.contextmanager
def running_pgbouncer(server: str) -> Iterator[str]:
    """PgBouncer in transaction mode before the server of this DSN; yields the DSN through it.

    As Debian ships it: version 1.18 knows no prepared statements in transaction mode.
    """
    program = _pgbouncer_program()
    if program is None:
        unavailable("PgBouncer")
        raise AssertionError
    server_sockets = Path(server.partition("?host=")[2])
    with private_folder() as folder:
        sockets = _owned_folder(folder / "sockets", server_sockets.stat().st_uid)
        users = folder / "users"
        users.write_text('"postgres" ""\n')
        config = folder / "pgbouncer.ini"
        config.write_text(
            f"""
            [databases]
            * = host={server_sockets}
            [pgbouncer]
            pool_mode = transaction
            max_client_conn = 1000
            listen_addr =
            listen_port = 6432
            unix_socket_dir = {sockets}
            auth_type = trust
            auth_file = {users}
            logfile = {sockets}/log
            """
        )
        process = subprocess.Popen(
            as_owner(sockets, [program, "--quiet", str(config)]),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            _wait_for(sockets / ".s.PGSQL.6432", process)
            yield f"postgresql://postgres@/postgres?host={sockets}&port=6432"
        finally:
            process.terminate()
            process.wait(START_SECONDS)


def _wait_for(path: Path, process: "subprocess.Popen[bytes]") -> None:
    """Until the server accepts connections: its socket is there a moment before."""
    deadline = time.monotonic() + START_SECONDS
    while not _is_listening(path):
        if process.poll() is not None or time.monotonic() > deadline:
            log = path.parent / "log"
            raise RuntimeError(log.read_text() if log.exists() else "it did not start")
        time.sleep(0.01)


def _is_listening(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _unprivileged_uid() -> int:
    """Servers refuse to run as root; 65534 is nobody."""
    return os.geteuid() or 65534


def _owned_folder(folder: Path, uid: int) -> Path:
    folder.mkdir(mode=0o700)
    os.chown(folder, uid, -1)
    return folder


def as_owner(folder: Path, command: list[str]) -> list[str]:
    """The command, as the user of a server that runs in this folder."""
    uid = folder.stat().st_uid
    if uid == os.geteuid():
        return command
    return ["setpriv", f"--reuid={uid}", "--regid=65534", "--clear-groups", *command]


def run_as_owner(folder: Path, command: list[str]) -> None:
    # Not through pipes: a server that pg_ctl leaves running would hold them open.
    subprocess.run(
        as_owner(folder, command), check=True, cwd="/", stdin=subprocess.DEVNULL, timeout=60
    )


if __name__ == "__main__":
    provide()
