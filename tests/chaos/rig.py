"""The chaos rig: real processes, really broken, and an independent judge of what they did meanwhile.

    python -m chaos.rig --seed 7 --minutes 10 [--faults kill,failover] [--standby asynchronous] [--folder DIR]

It starts PostgreSQL with a standby, one API, three schedulers, four workers, two workers over HTTP and a webhook receiver,
each with a TCP proxy between it and what it talks to. Clients use the API all the while. Faults come one after the other, by the schedule of the
seed. When the time is over everything is healed, the clients stop, the database is dumped once, and the checker judges.
What was recorded stays in the folder, one file for each witness; `--judge DIR` judges it again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.error
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import asyncpg
import msgspec
import psutil
import uvloop

from answers import opened
from chaos import evidence, http_worker
from chaos.builds import OLDER, PRESENT, Build, extract
from chaos.checker import Figures, Promise, Violation, check, figures
from chaos.clients import Clients
from chaos.faults import KINDS, LEADER, OLDER_WORKER, ROLLING_UPGRADE, Planned, possible, schedule
from chaos.postgres import Pair, dsn_at
from chaos.processes import START_SECONDS, Process, supervise
from chaos.proxy import Proxy
from chaos.zones import write_older_tzdata
from ports import free_port
from verify.history import (
    Backends,
    Call,
    Delivery,
    Dump,
    Fault,
    History,
    Log,
    Phase,
    Sample,
    Stray,
    read_log,
)

LEASE_SECONDS = 3
HORIZON_SECONDS = 10  # short, so that a leader that does not plan is felt soon
SLOTS = 20
WORKERS = 4
HTTP_WORKERS = 2
SCHEDULERS = 3
SAMPLE_SECONDS = 1.0
DISK_BYTES = 1 << 30
STANDBY_LAG_SECONDS = 1.0  # of an asynchronous one, at most
_HTTP = tuple(f"http-{number}" for number in range(1, HTTP_WORKERS + 1))
_FILES = ("client", "receiver", *_HTTP, "rig")


class Rig:
    """Everything of one run that can be broken, and what is recorded."""

    lease_seconds = float(LEASE_SECONDS)

    def __init__(
        self, folder: Path, pair: Pair, seed: int, older: Build | None, build: Build
    ) -> None:
        self.folder = folder
        self.pair = pair
        self.seed = seed
        self.older = older  # None: there is only the present build
        self.build = build  # of all processes, between faults
        self.proxies: dict[str, Proxy] = {}
        self.processes: dict[str, Process] = {}
        self.log = Log(folder / "rig.jsonl")
        self.clients: Clients
        self.older_tzdata = write_older_tzdata(folder / "tzdata-older")
        self._health: dict[str, int] = {}  # ports

    @property
    def roles(self) -> list[str]:
        """All processes but the receiver."""
        return [name for name in self.processes if name != "receiver"]

    @property
    def built(self) -> list[str]:
        """Processes of the product."""
        return [name for name in self.roles if not name.startswith("http-")]

    @classmethod
    @contextlib.asynccontextmanager
    async def started(
        cls,
        folder: Path,
        seed: int,
        *,
        synchronous: bool,
        older: Build | None = None,
        build: Build = PRESENT,
        schedulers: int = SCHEDULERS,
        workers: int = WORKERS,
    ) -> AsyncIterator[Rig]:
        """Everything up and ready, from this build; at the end, nothing is left running."""
        async with contextlib.AsyncExitStack() as stack:
            (folder / "postgres").mkdir()
            for server in ("one", "two"):
                stack.enter_context(small_disk(folder / "postgres" / server))
            pair = await Pair.start(folder / "postgres", synchronous)
            stack.push_async_callback(pair.stop)
            rig = cls(folder, pair, seed, older, build)
            stack.callback(rig.log.close)
            await rig._migrate(rig.build)
            await evidence.install(pair.dsn())
            stack.push_async_callback(rig._end_processes)
            await rig._start_receiver()
            for name in (
                "api-1",
                *(f"scheduler-{number}" for number in range(1, schedulers + 1)),
                *(f"worker-{number}" for number in range(1, workers + 1)),
            ):
                await rig._start_role(name)
            for name in _HTTP:
                await rig._start_http_worker(name)
            for proxy in rig.proxies.values():
                stack.push_async_callback(proxy.close)
            for process in rig.processes.values():
                await rig.is_ready(process)
            supervising = asyncio.create_task(supervise(list(rig.processes.values())))
            stack.callback(supervising.cancel)
            yield rig

    async def _start_receiver(self) -> None:
        port = free_port()
        command = (sys.executable, "-m", "chaos.receiver", "--port", str(port))
        options = ("--log", str(self.folder / "receiver.jsonl"), "--seed", str(self.seed))
        self._add("receiver", (*command, *options), {})
        self._health["receiver"] = port
        self.proxies["workers→receiver"] = await Proxy.open("workers→receiver", "127.0.0.1", port)

    async def _start_role(self, name: str) -> None:
        role, port = name.partition("-")[0], free_port()
        link = f"{name}→postgres"
        proxy = await Proxy.open(link, "127.0.0.1", self.pair.primary_port)
        self.proxies[link] = proxy
        command = ("-m", "chaos.worker") if role == "worker" else ("-m", "hourbell", role)
        environment = {
            "HOURBELL_DATABASE_URL": f"{dsn_at(proxy.port)}?application_name={name}",
            "HOURBELL_HOST": "127.0.0.1",
            "HOURBELL_PORT": str(port),
            "HOURBELL_HORIZON_SECONDS": str(HORIZON_SECONDS),
            "HOURBELL_LEASE_SECONDS": str(LEASE_SECONDS),
            "HOURBELL_LEADER_LEASE_SECONDS": str(LEASE_SECONDS),
            "HOURBELL_WORKER_SLOTS": str(SLOTS),
            "HOURBELL_EGRESS_ALLOW": "127.0.0.0/8",  # where the receiver is
        }
        self._add(name, (sys.executable, *command), environment)
        self._health[name] = port
        if role == "api":
            self.proxies[f"client→{name}"] = await Proxy.open(f"client→{name}", "127.0.0.1", port)

    async def _start_http_worker(self, name: str) -> None:
        port, link = free_port(), f"{name}→api-1"
        self.proxies[link] = await Proxy.open(link, "127.0.0.1", self._health["api-1"])
        api = f"http://127.0.0.1:{self.proxies[link].port}"
        command = (sys.executable, "-m", "chaos.http_worker", "--name", name, "--api", api)
        options = ("--port", str(port), "--log", str(self.folder / f"{name}.jsonl"))
        self._add(name, (*command, *options), {})
        self._health[name] = port

    def _add(self, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        usual = {"PYTHONPATH": self.build.path, "HOURBELL_LOG_LEVEL": "info"}
        process = Process(name, command, usual | environment, self.folder / f"{name}.log")
        self.processes[name] = process
        process.start()

    async def _end_processes(self) -> None:
        for process in self.processes.values():
            process.supervised = False
        for process in self.processes.values():
            await process.kill()

    # What faults need.

    @contextlib.asynccontextmanager
    async def in_hand(self, victim: str) -> AsyncIterator[Process]:
        """A process that nobody else starts or ends meanwhile; `leader` is who leads now."""
        name = victim
        if victim == LEADER:
            name = await self.leader() or "scheduler-1"
        process = self.processes[name]
        process.supervised = False
        try:
            yield process
        finally:
            process.supervised = True

    async def leader(self) -> str | None:
        try:
            return await evidence.leader(self.pair.dsn())
        except evidence.AWAY:
            return None

    async def is_ready(self, process: Process) -> None:
        """Wait until it says that it does its work; one that gives up is started again."""
        until = time.monotonic() + START_SECONDS
        while not await asyncio.to_thread(_says_ready, process.name, self._health[process.name]):
            if time.monotonic() > until:
                raise AssertionError(f"{process.name} is not ready after {START_SECONDS:g} s")
            if not process.is_alive:
                process.start()
            await asyncio.sleep(0.1)

    def follow_primary(self) -> None:
        """As a name does that always leads to the primary."""
        for name, proxy in self.proxies.items():
            if name.endswith("→postgres"):
                proxy.retarget("127.0.0.1", self.pair.primary_port)

    async def migrate_again(self) -> None:
        connection = await asyncpg.connect(self.pair.dsn())
        try:
            await connection.execute(
                "delete from hourbell.function_sets"
            )  # so that they are loaded again
        finally:
            await connection.close()
        for build in (self.older, PRESENT):
            if build is not None:
                await self.migrate(build)

    async def migrate(self, build: Build) -> None:
        """`hourbell migrate` of a build, beside all that runs."""
        await self._migrate(build)
        await evidence.install(self.pair.dsn(), again=True)

    async def _migrate(self, build: Build) -> None:
        migrating = Process(
            "migrate",
            (sys.executable, "-m", "hourbell", "migrate"),
            {"PYTHONPATH": build.path, "HOURBELL_DATABASE_URL": self.pair.dsn()},
            self.folder / "migrate.log",
        )
        migrating.start()
        await migrating.has_ended(START_SECONDS)
        assert migrating.has_succeeded, f"the {build.name} build did not migrate; see migrate.log"

    # The run.

    async def run(self, seconds: float, faults: Sequence[Planned], settle_seconds: float) -> None:
        """Clients and faults for so long, besides upgrades; then everything heals and comes to rest."""
        receiver = self.proxies["workers→receiver"].port
        self.clients = Clients(
            self.proxies["client→api-1"].port,
            receiver,
            Log(self.folder / "client.jsonl"),
            self.seed,
        )
        watching = asyncio.create_task(self._watch())
        await self.clients.start()
        self._phase("loaded")
        until = time.monotonic() + seconds
        for planned in faults:
            if time.monotonic() + planned.gap_seconds > until:
                break
            await asyncio.sleep(planned.gap_seconds)
            began = time.monotonic()
            await self._break(planned)
            if planned.kind == ROLLING_UPGRADE:  # takes as long as all processes take to start
                until += time.monotonic() - began
        await asyncio.sleep(max(until - time.monotonic(), 0))
        self._phase("healed")
        healed = time.monotonic()
        await asyncio.sleep(settle_seconds / 4)
        await self.clients.stop()
        self._phase("quiet")
        await asyncio.sleep(max(settle_seconds - (time.monotonic() - healed), 0))
        await self.clients.count()
        await self.clients.close()
        self._phase("ended")
        assert not watching.done(), watching.exception()  # it never ends by itself
        watching.cancel()
        found = await evidence.dump(self.pair.dsn())
        (self.folder / "dump.json").write_bytes(msgspec.json.encode(found))

    async def _break(self, planned: Planned) -> None:
        began_at = time.time()
        chosen = random.Random(planned.seed)
        detail = await KINDS[planned.kind].do(self, planned.victim, chosen)
        victim = str(detail.get("process", planned.victim))
        ended_at = time.time()
        self.log.add(
            Fault(
                kind=planned.kind,
                victim=victim,
                began_at=began_at,
                ended_at=ended_at,
                detail=detail,
            )
        )
        print(f"{planned.kind} of {victim}: {ended_at - began_at:.1f} s {detail}", flush=True)

    async def _watch(self) -> None:
        """What the operating system and PostgreSQL say, once a second."""
        while True:
            for process in self.processes.values():
                with contextlib.suppress(psutil.Error):
                    seen = psutil.Process(process.pid)
                    if seen.status() == psutil.STATUS_ZOMBIE:
                        continue  # it has ended, and uses nothing
                    self.log.add(
                        Sample(
                            at=time.time(),
                            process=process.name,
                            pid=process.pid,
                            rss_kb=seen.memory_info().rss // 1024,
                            descriptors=seen.num_fds(),
                        )
                    )
            with contextlib.suppress(*evidence.AWAY):
                self.log.add(await evidence.look_at_backends(self.pair.dsn()))
            await asyncio.sleep(SAMPLE_SECONDS)

    def _phase(self, name: str) -> None:
        self.log.add(Phase(at=time.time(), name=name))


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of its own for a server, so that it can be filled; only root may have one."""
    if os.geteuid() != 0:
        yield
        return
    folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "hourbell-chaos", str(folder)],
        check=True,
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _says_ready(name: str, port: int) -> bool:
    path = "" if name == "receiver" else "readyz"
    try:
        with opened(f"http://127.0.0.1:{port}/{path}", timeout=2):
            return True
    except urllib.error.HTTPError as answer:
        return name == "receiver" and answer.code == 404
    except OSError:
        return False


def recorded(folder: Path, seed: int) -> History:
    """What the witnesses of a run have written."""
    events = [event for file in _FILES for event in read_log(folder / f"{file}.jsonl")]
    return History(
        seed=seed,
        calls=[one for one in events if isinstance(one, Call)],
        deliveries=[one for one in events if isinstance(one, Delivery)],
        faults=[one for one in events if isinstance(one, Fault)],
        samples=[one for one in events if isinstance(one, Sample)],
        backends=[one for one in events if isinstance(one, Backends)],
        phases=[one for one in events if isinstance(one, Phase)],
        dump=msgspec.json.decode((folder / "dump.json").read_bytes(), type=Dump),
        strays=[one for one in events if isinstance(one, Stray)],
    )


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    seed: int
    violations: list[Violation]
    figures: Figures


def judge(
    folder: Path,
    seed: int,
    settle_seconds: float,
    *,
    synchronous: bool,
    shared_seconds: float = 0.0,
) -> Judged:
    promise = Promise(
        lease_seconds=LEASE_SECONDS,
        leader_lease_seconds=LEASE_SECONDS,
        horizon_seconds=HORIZON_SECONDS,
        workers=WORKERS,
        slots=SLOTS,
        http_workers=HTTP_WORKERS,
        http_slots=http_worker.SLOTS,
        stuck_seconds=settle_seconds,
        shared_seconds=shared_seconds,
        standby_lag_seconds=0.0 if synchronous else STANDBY_LAG_SECONDS,
    )
    history = recorded(folder, seed)
    return Judged(seed=seed, violations=check(history, promise), figures=figures(history, promise))


async def chaos(
    folder: Path,
    seed: int,
    seconds: float,
    kinds: list[str],
    *,
    settle_seconds: float,
    synchronous: bool = True,
    schedulers: int = SCHEDULERS,
    workers: int = WORKERS,
    shared_seconds: float = 0.0,
) -> Judged:
    """One run, and what the checker says of it. With upgrades among its faults it begins with the older build."""
    upgrades = ROLLING_UPGRADE in kinds
    older = extract(OLDER, folder / "older") if upgrades or OLDER_WORKER in kinds else None
    async with Rig.started(
        folder,
        seed,
        synchronous=synchronous,
        older=older,
        build=older if upgrades and older is not None else PRESENT,
        schedulers=schedulers,
        workers=workers,
    ) as rig:
        planned = schedule(seed, kinds, list(rig.processes))
        await rig.run(seconds, planned, settle_seconds)
    return judge(
        folder, seed, settle_seconds, synchronous=synchronous, shared_seconds=shared_seconds
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--settle", type=float, default=60.0, help="seconds from healing to the end"
    )
    parser.add_argument(
        "--faults", default=",".join(possible()), help="kinds of faults, with commas; or: none"
    )
    parser.add_argument(
        "--standby",
        choices=("synchronous", "asynchronous"),
        default="synchronous",
        help="asynchronous: it may lag behind, and what it has not got when the primary dies is lost",
    )
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--judge", type=Path, help="judge what was recorded in this folder")
    asked = parser.parse_args()
    synchronous = asked.standby == "synchronous"
    if asked.judge:
        judged = judge(asked.judge, asked.seed, asked.settle, synchronous=synchronous)
    else:
        folder = asked.folder or Path(tempfile.mkdtemp(prefix="hourbell-chaos-"))
        print(f"seed {asked.seed}, recorded in {folder}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        judged = uvloop.run(
            chaos(
                folder,
                asked.seed,
                asked.minutes * 60,
                [] if asked.faults == "none" else asked.faults.split(","),
                settle_seconds=asked.settle,
                synchronous=synchronous,
            )
        )
    for violation in judged.violations[:50]:
        print(f"{violation.invariant}: {violation.sentence}")
    print(msgspec.json.encode(judged.figures).decode())
    print(f"seed {judged.seed}: {len(judged.violations)} violations")
    sys.exit(bool(judged.violations))


if __name__ == "__main__":
    main()
