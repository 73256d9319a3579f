"""What can be broken, and when: a list of faults drawn from a seed, and how each is done.

A fault takes the rig, breaks one thing, and gives it back whole; from when to when is written down by who calls it. Victims
are drawn with the schedule, so that a seed and a commit replay it; only who leads is found out when it is time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import services
from chaos import evidence
from chaos.builds import PRESENT
from chaos.processes import bent_clock
from chaos.proxy import (
    AnyMode,
    Blackhole,
    CutAfterCommit,
    Delay,
    OneWay,
    Pass,
    Refuse,
    Reset,
    Trickle,
)
from chaos.zones import YOUNG
from hourbell.model.ids import parse_job_id

if TYPE_CHECKING:
    from chaos.processes import Process
    from chaos.rig import Rig

LEADER = "leader"
PAUSES = (0.5, 1.1, 3.0)  # of a lease
GAP_SECONDS = (2.0, 6.0)
CALM_SECONDS = (
    28.0,
    34.0,
)  # after every few of them, so that there is something to see of how it is without
FEW = 8
OUTAGE_SECONDS = (1.0, 5.0)
ROLLING_UPGRADE = "rolling_upgrade"
OLDER_WORKER = "older_worker"
MIXED_SECONDS = (2.0, 4.0)  # half of the processes of one build, half of the other
OLDER_TZDATA_SECONDS = (20.0, 30.0)  # longer than executions are planned ahead
SET_BACK_SECONDS = (2, 30)
OFF_SECONDS = (5.0, 15.0)
UNREADABLE_SECONDS = 6.0
OLDER_WORKER_SECONDS = (5.0, 15.0)
POISON_SECONDS = 60.0  # three leases and three failovers, and patience
# Where a process can be made to die or to stand; each is reached by the role again and again.
POINTS = {
    "scheduler": (
        "plan.before_open",
        "plan.after_open",
        "plan.before_chunk",
        "plan.after_chunk",
        "admit.before_commit",
        "admit.after_commit",
        "renew.before_commit",
        "renew.after_commit",
    ),
    "worker": (
        "claim.before_commit",
        "claim.after_commit",
        "settle.before_commit",
        "settle.after_commit",
        "heartbeat.before_commit",
        "heartbeat.after_commit",
    ),
    "api": ("create.before_commit", "create.after_commit"),
}


class Planned(NamedTuple):
    """A fault of the schedule."""

    gap_seconds: float  # before it
    kind: str
    victim: str
    seed: int  # of what it draws itself


Done = Callable[["Rig", str, random.Random], Awaitable[dict[str, object]]]


def possible() -> list[str]:
    """The kinds that this machine allows; `make test` as root on Debian allows all."""
    missing = set()
    if services.faketime() is None:
        missing |= {"clock_skew", "clock_step", "clock_back"}
    if os.geteuid() != 0:
        missing.add("disk_full")  # it needs a disk of its own
    return [kind for kind in KINDS if kind not in missing]


def schedule(seed: int, kinds: list[str], processes: list[str]) -> list[Planned]:
    """More faults than any run has time for. Every kind comes before one comes again.

    An upgrade comes first: a run that has upgrades begins with the older build, and is to test the present one.
    """
    chosen = random.Random(seed)
    planned: list[Planned] = []
    while kinds and len(planned) < 2_000:
        order = chosen.sample(kinds, len(kinds))
        if not planned:
            order.sort(key=lambda kind: kind != ROLLING_UPGRADE)
        for kind in order:
            victims = KINDS[kind].victims(processes)
            calm = len(planned) % FEW == FEW - 1
            gap = chosen.uniform(*(CALM_SECONDS if calm else GAP_SECONDS))
            planned.append(Planned(gap, kind, chosen.choice(victims), chosen.getrandbits(32)))
    return planned


# Processes.


async def kill(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    async with rig.in_hand(victim) as process:
        await process.kill()
        await asyncio.sleep(chosen.uniform(0, 1))
        process.start()
        await rig.is_ready(process)
    return {"process": process.name}


async def kill_at_failpoint(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """It dies at one of its commits, when it comes there for the Nth time."""
    point = chosen.choice(POINTS[_role(victim)])
    async with rig.in_hand(victim) as process:
        await process.kill()
        process.start(HOURBELL_FAILPOINTS=f"{point}=kill@{chosen.randint(1, 20)}")
        await _let_lead(rig, process)
        await _within(15.0, process.has_ended(15.0))
        reached = process.was_killed
        await process.kill()
        process.start()
        await rig.is_ready(process)
    return {"process": process.name, "point": point, "reached": reached}


async def stop_and_continue(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    seconds = chosen.choice(PAUSES) * rig.lease_seconds
    async with rig.in_hand(victim) as process:
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.signal(signal.SIGCONT)
        await rig.is_ready(process)
    return {"process": process.name, "seconds": seconds}


async def stop_at_failpoint(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """It stands in the middle of a commit, with its transaction open or just behind it, and then goes on."""
    point = chosen.choice(POINTS[_role(victim)])
    seconds = chosen.choice(PAUSES) * rig.lease_seconds
    async with rig.in_hand(victim) as process:
        await process.kill()
        process.start(HOURBELL_FAILPOINTS=f"{point}=stop@{chosen.randint(1, 20)}")
        await _let_lead(rig, process)
        reached = await process.stands(15.0)
        if reached:
            await asyncio.sleep(seconds)
            process.signal(signal.SIGCONT)
        else:  # it must not come there later, when nobody waits for it
            await process.kill()
            process.start()
        await rig.is_ready(process)
    return {"process": process.name, "point": point, "seconds": seconds, "reached": reached}


async def stop_in_statement(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """It stands while the database works for it, or waits for it in the middle of a transaction, and answers are lost."""
    seconds = chosen.choice(PAUSES) * rig.lease_seconds
    link = rig.proxies[f"{victim}→postgres"]
    async with rig.in_hand(victim) as process:
        await link.switch(OneWay(lost="answers"))
        await asyncio.sleep(chosen.uniform(0.05, 0.5))
        process.signal(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        process.signal(signal.SIGCONT)
        await link.switch(Reset())
        await rig.is_ready(process)
    return {"process": process.name, "seconds": seconds}


async def _let_lead(rig: Rig, process: Process) -> None:
    """Most points of a scheduler are reached by the one that leads: leaders resign one after the other, until it is this one."""
    for _ in range(5):
        leader = await rig.leader()
        if (
            _role(process.name) != "scheduler"
            or not process.is_alive
            or leader in (None, process.name)
        ):
            return
        async with rig.in_hand(leader) as other:
            await other.terminate()
            other.start()
            await rig.is_ready(other)


async def rolling_restart(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """Every process in turn, in order, as a deployment does it, and then the database."""
    for name in chosen.sample(rig.roles, len(rig.roles)):
        async with rig.in_hand(name) as process:
            await process.terminate()
            process.start()
            await rig.is_ready(process)
    await rig.pair.restart("fast")
    return {}


async def rolling_upgrade(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """Every process in turn goes over to the other build, in order or by kill -9; both work side by side meanwhile.

    From the older build: an upgrade, a rollback, and an upgrade for good. From the present one: a rollback and an upgrade.
    """
    assert rig.older is not None
    way = [rig.older, PRESENT] if rig.build == PRESENT else [PRESENT, rig.older, PRESENT]
    moments: list[tuple[str, float, float]] = []

    @contextlib.contextmanager
    def noted(whom: str) -> Iterator[None]:
        began_at = time.time()
        yield
        moments.append((whom, began_at, time.time()))

    for build in way:
        if build == PRESENT:
            with noted("postgres"):
                await rig.migrate(build)
        for place, name in enumerate(chosen.sample(rig.built, len(rig.built))):
            if place == len(rig.built) // 2:
                await asyncio.sleep(chosen.uniform(*MIXED_SECONDS))
            async with rig.in_hand(name) as process:
                with noted(name):
                    await (process.kill() if chosen.random() < 0.5 else process.terminate())
                    process.environment["PYTHONPATH"] = build.path
                    process.start()
                    await rig.is_ready(process)
        rig.build = build
    return {"way": [build.name for build in way], "moments": moments}


# Time zones.


async def older_tzdata(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """A node whose time zone data lack a zone that jobs use; a scheduler leads with them. It breaks nothing else."""
    async with rig.in_hand(victim) as process:
        await process.terminate()
        since = time.time()
        process.start(PYTHONPATH=f"{rig.older_tzdata}:{process.environment['PYTHONPATH']}")
        await rig.is_ready(process)
        await _let_lead(rig, process)
        whole_at = time.time()
        await asyncio.sleep(chosen.uniform(*OLDER_TZDATA_SECONDS))
        until = time.time()
        await process.terminate()
        process.start()
        await rig.is_ready(process)
    return {"zone": YOUNG, "since": since, "whole_at": whole_at, "until": until}


# Clocks.


async def clock_skew(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """A process whose clock is half a minute off."""
    seconds = chosen.choice((-30, 30))
    async with rig.in_hand(victim) as process:
        await process.kill()
        process.start(**bent_clock(f"{seconds:+d}s"))
        await rig.is_ready(process)
        await asyncio.sleep(chosen.uniform(3, 8))
        await process.kill()
        process.start()
        await rig.is_ready(process)
    return {"process": process.name, "seconds": seconds}


async def clock_step(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """A process whose clock is set while it runs, there and back."""
    seconds = chosen.choice((-30, 30))
    offset = rig.folder / f"clock-{victim}"
    offset.write_text("+0s")
    async with rig.in_hand(victim) as process:
        await process.kill()
        process.start(**bent_clock(offset))
        await rig.is_ready(process)
        for step in (f"{seconds:+d}s", "+0s"):
            await asyncio.sleep(chosen.uniform(2, 4))
            offset.write_text(step)
        await asyncio.sleep(2)
        await process.kill()
        process.start()
        await rig.is_ready(process)
    return {"process": process.name, "seconds": seconds}


async def clock_back(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """The clock of the database is set back while all runs, and set right some time later."""
    seconds = chosen.randint(*SET_BACK_SECONDS)
    rig.pair.set_clocks(-seconds)
    await asyncio.sleep(chosen.uniform(*OFF_SECONDS))
    rig.pair.set_clocks(0)
    return {"seconds": seconds}


# PostgreSQL.


async def restart_fast(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    await rig.pair.restart("fast")
    return {}


async def restart_immediate(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    await rig.pair.restart("immediate")
    return {}


async def kill_postgres(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    await rig.pair.kill()
    await asyncio.sleep(chosen.uniform(0, 2))
    await rig.pair.start_again()
    return {}


async def terminate_backends(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    whose = chosen.choice(("%-%", "scheduler-%", "worker-%", "api-%"))
    return {"whose": whose, "ended": await rig.pair.terminate_backends(whose)}


async def failover(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """To the standby; the old primary then comes back and follows. Or it lives on, with all who are connected to it: their
    commits wait for a standby that it has no more."""
    how = chosen.choice(("stopped", "killed", "alive"))
    had = await rig.pair.failover(kill=how == "killed", leave_old_alive=how == "alive")
    rig.follow_primary()
    await asyncio.sleep(chosen.uniform(0, 2))
    return {"old": how, "standby_had": had, "back": await rig.pair.rejoin()}


async def old_primary_returns(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """After a failover the old primary is started as if nothing had happened, and one process still finds it."""
    had = await rig.pair.failover(kill=True)
    rig.follow_primary()
    await rig.pair.resurrect_old_primary()
    stray = rig.proxies[f"{victim}→postgres"]
    stray.retarget("127.0.0.1", rig.pair.standby_port)
    await stray.switch(Reset())
    await asyncio.sleep(rig.lease_seconds)
    rig.follow_primary()
    await stray.switch(Reset())
    return {"stray": victim, "standby_had": had, "back": await rig.pair.rejoin()}


async def disk_full(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """Not one byte more fits on the primary's disk, for a while."""
    filler = rig.pair.primary_data / "filler"
    written = await asyncio.to_thread(_fill, filler)
    await asyncio.sleep(chosen.uniform(*OUTAGE_SECONDS))
    filler.unlink()
    await rig.pair.start_what_has_died()
    return {"bytes": written}


def _fill(filler: Path) -> int:
    size = 0
    with filler.open("wb", buffering=0) as file:
        for piece in (1 << 20, 1 << 10, 1):
            try:
                while True:
                    size += file.write(bytes(piece))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return size


async def migrate_under_load(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """All functions are loaded again while they are called."""
    await rig.migrate_again()
    return {}


# The network.


async def _broken(
    rig: Rig, victim: str, chosen: random.Random, mode: AnyMode, seconds: float | None = None
) -> dict[str, object]:
    proxy = rig.proxies[victim]
    await proxy.switch(mode)
    await asyncio.sleep(chosen.uniform(*OUTAGE_SECONDS) if seconds is None else seconds)
    await proxy.switch(Pass())
    return {}


async def refuse(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    return await _broken(rig, victim, chosen, Refuse())


async def blackhole(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    return await _broken(rig, victim, chosen, Blackhole())


async def one_way(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    lost = "answers" if chosen.random() < 0.5 else "requests"
    return {"lost": lost} | await _broken(rig, victim, chosen, OneWay(lost=lost))


async def reset(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    return await _broken(rig, victim, chosen, Reset(), seconds=0)


async def delay(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    return await _broken(rig, victim, chosen, Delay(most_ms=300, seed=chosen.getrandbits(32)))


async def trickle(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    return await _broken(rig, victim, chosen, Trickle(piece_bytes=200, pause_ms=5))


async def cut_after_commit(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """Commits reach the database, their answers nobody."""
    proxy = rig.proxies[victim]
    before = proxy.cuts
    mode = CutAfterCommit(cuts=chosen.randint(1, 5), any_sync=chosen.random() < 0.5)
    await _broken(rig, victim, chosen, mode)
    return {"cuts": proxy.cuts - before}


async def clog(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """Connections go silent one after the other, and come back in another order."""
    names = chosen.sample(sorted(rig.proxies), 4)
    for name in names:
        await rig.proxies[name].switch(Blackhole())
        await asyncio.sleep(chosen.uniform(0, 1))
    for name in chosen.sample(names, len(names)):
        await asyncio.sleep(chosen.uniform(0, 1))
        await rig.proxies[name].switch(Pass())
    return {"links": names}


# Load.


async def herd(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    size = chosen.choice((100, 200, 300))
    await rig.clients.herd(size)
    return {"size": size}


async def poison(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """A job that kills its worker, until the system has found out which one it is and gives it up."""
    job = await rig.clients.poison()
    async with asyncio.timeout(POISON_SECONDS):
        while not await rig.clients.has_died(job):
            await asyncio.sleep(0.2)
    return {"job": job}


async def unreadable(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """A document that no build of the run can read, of a job whose pause ends meanwhile: all others are as ever."""
    job, tenant = await rig.clients.unread(UNREADABLE_SECONDS / 2)
    number, readable, strange = parse_job_id(job), '"type":"WEBHOOK"', '"type":"TELEPATHY"'
    for text, other in ((readable, strange), (strange, readable)):
        changed = await evidence.replace_in_document(rig.pair.dsn(), number, text, other)
        assert changed == 1, f"the document of {job} has no {text}"
        await asyncio.sleep(UNREADABLE_SECONDS if text == readable else 0)
    await rig.clients.delete(job, tenant)
    return {"job": job}


async def older_worker(rig: Rig, victim: str, chosen: random.Random) -> dict[str, object]:
    """A worker of the older build, for a while beside those of the present one."""
    assert rig.older is not None
    await rig.migrate(rig.older)
    async with rig.in_hand(victim) as process:
        present = process.environment["PYTHONPATH"]
        await process.terminate()
        process.environment["PYTHONPATH"] = rig.older.path
        process.start()
        await rig.is_ready(process)
        whole_at = time.time()
        await asyncio.sleep(chosen.uniform(*OLDER_WORKER_SECONDS))
        until = time.time()
        await process.terminate()
        process.environment["PYTHONPATH"] = present
        process.start()
        await rig.is_ready(process)
    return {"whole_at": whole_at, "until": until}


def _role(name: str) -> str:
    return "scheduler" if name == LEADER else name.partition("-")[0]


async def _within(seconds: float, waiting: Awaitable[None]) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        return False
    return True


class Kind(NamedTuple):
    do: Done
    victims: Callable[[list[str]], list[str]]


def _processes(names: list[str]) -> list[str]:
    return [LEADER, *names]


def _durable(names: list[str]) -> list[str]:
    return [name for name in _processes(names) if _role(name) in POINTS]


def _links(names: list[str]) -> list[str]:
    to_postgres = [f"{name}→postgres" for name in _clients_of_postgres(names)]
    to_api = [f"{name}→api-1" for name in names if _role(name) == "http"]
    return [*to_postgres, *to_api, "client→api-1", "workers→receiver"]


def _to_postgres(names: list[str]) -> list[str]:
    return [link for link in _links(names) if link.endswith("→postgres")]


def _clients_of_postgres(names: list[str]) -> list[str]:
    """Not the receiver and the workers over HTTP: their clocks and their logs are the evidence."""
    return [name for name in names if _role(name) not in ("receiver", "http")]


def _with_zones(names: list[str]) -> list[str]:
    """Those that work with time zones."""
    return [name for name in names if _role(name) in ("api", "scheduler")]


def _workers(names: list[str]) -> list[str]:
    return [name for name in names if _role(name) == "worker"]


def _postgres(names: list[str]) -> list[str]:
    return ["postgres"]


def _everything(names: list[str]) -> list[str]:
    return ["everything"]


KINDS = {
    "kill": Kind(kill, _processes),
    "kill_at_failpoint": Kind(kill_at_failpoint, _durable),
    "stop_and_continue": Kind(stop_and_continue, _processes),
    "stop_at_failpoint": Kind(stop_at_failpoint, _durable),
    "stop_in_statement": Kind(stop_in_statement, _clients_of_postgres),
    "rolling_restart": Kind(rolling_restart, _everything),
    "clock_skew": Kind(clock_skew, _clients_of_postgres),
    "clock_step": Kind(clock_step, _clients_of_postgres),
    "clock_back": Kind(clock_back, _postgres),
    ROLLING_UPGRADE: Kind(rolling_upgrade, _everything),
    "older_tzdata": Kind(older_tzdata, _with_zones),
    "disk_full": Kind(disk_full, _postgres),
    "restart_fast": Kind(restart_fast, _postgres),
    "restart_immediate": Kind(restart_immediate, _postgres),
    "kill_postgres": Kind(kill_postgres, _postgres),
    "terminate_backends": Kind(terminate_backends, _postgres),
    "failover": Kind(failover, _postgres),
    "old_primary_returns": Kind(old_primary_returns, _clients_of_postgres),
    "migrate_under_load": Kind(migrate_under_load, _postgres),
    "refuse": Kind(refuse, _links),
    "blackhole": Kind(blackhole, _links),
    "one_way": Kind(one_way, _links),
    "reset": Kind(reset, _links),
    "delay": Kind(delay, _links),
    "trickle": Kind(trickle, _links),
    "cut_after_commit": Kind(cut_after_commit, _to_postgres),
    "clog": Kind(clog, _everything),
    "herd": Kind(herd, _everything),
    "poison": Kind(poison, _everything),
    "unreadable": Kind(unreadable, _everything),
    OLDER_WORKER: Kind(older_worker, _workers),
}
