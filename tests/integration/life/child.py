"""What the children of the tests do. `children.py` starts `python -m integration.life.child serve`, which forks them.

Each role is the product's own code, wired together as in production but for its times, which are
those of an impatient test. HOURBELL_FAILPOINTS counts here as it does there.
"""

import asyncio
import contextlib
import gc
import hashlib
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
from msgspec.structs import replace

from hourbell import failpoints
from hourbell.actions import Run
from hourbell.engine.core import Engine, Times
from hourbell.engine.operations.bulk_operations import create_operation
from hourbell.engine.operations.change import delete_job, pause_job, resume_job, update_job
from hourbell.engine.operations.completions import complete
from hourbell.engine.operations.dead_letters import purge_dead_letter, retry_execution
from hourbell.engine.operations.idempotency import Write
from hourbell.engine.operations.limits import set_tenant
from hourbell.engine.operations.monitors import create_monitor
from hourbell.engine.operations.runs import cancel_execution, run_now
from hourbell.engine.views.executions import get_execution
from hourbell.model.errors import SessionLost
from hourbell.model.executions import Accepted, Claimed, ExecutionStatus, Outcome, Succeeded
from hourbell.model.ids import execution_text, job_text
from hourbell.model.jobs import Job, WebhookAction
from hourbell.model.limits import TenantSettings
from hourbell.model.manifests import Manifest
from hourbell.observe.logs import configure_logs
from hourbell.security.sealing import KeyRing
from hourbell.store.database import Database
from integration.life.support import (
    Hand,
    create,
    eventually,
    every,
    one_time,
    open_engine,
    recurring,
    scheduling,
    working,
)
from known_types import remember_types

IMPATIENT = Times(horizon_seconds=2, lease_seconds=1.0, leader_lease_seconds=0.6)


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def claimer(engine: Engine, limit: str) -> None:
    """Claims once, and then tries to settle and to renew."""
    hand = await Hand.opened(engine)
    say("session", hand.session.id)
    claimed = await hand.claim(int(limit))
    say("claimed", len(claimed))
    say("refused", len(await hand.succeed(claimed)))
    try:
        await hand.beat([])
    except SessionLost:
        say("lost")


async def greedy(engine: Engine, limit: str) -> None:
    """Claims until nothing is left, and says what it got."""
    hand = await Hand.opened(engine)
    say("session", hand.session.id)
    while claimed := await hand.claim(int(limit)):
        say("got", *(one.execution_id for one in claimed))
        await hand.succeed(claimed[::2])
    say("done")


async def creator(engine: Engine, every_seconds: str) -> None:
    """Creates one recurring job."""
    job = await create(engine, every(int(every_seconds), name="of the child"))
    say("created", job.job_id)


class Telling(Database):
    """A database that tells which statements were refused because their epoch is over."""

    async def row(self, statement: str, *args: object) -> asyncpg.Record:
        with self._telling(statement):
            return await super().row(statement, *args)

    async def value(self, statement: str, *args: object) -> Any:
        with self._telling(statement):
            return await super().value(statement, *args)

    @contextlib.contextmanager
    def _telling(self, statement: str) -> Iterator[None]:
        try:
            yield
        except asyncpg.PostgresError as error:
            if error.sqlstate == "HB100":
                say("refused", statement)
            raise


async def scheduler(engine: Engine, lease_seconds: str, horizon_seconds: str) -> None:
    """Campaigns until it is killed, and reports when it leads and when it no longer does."""
    engine.times = replace(
        engine.times,
        leader_lease_seconds=float(lease_seconds),
        horizon_seconds=float(horizon_seconds),
    )
    engine.database = await Telling.open(engine.database.dsn)
    async with scheduling(engine) as running:
        led = None
        while True:
            term = running.leadership.term
            if term != led:
                say("leads" if term else "leads-no-more", term.epoch if term else "")
                led = term
            await asyncio.sleep(0.01)


async def worker(engine: Engine, log: str, slots: str) -> None:
    """Works until it is killed. Starts of handlers go to a file, one line each."""
    async with working(engine, handlers(log), slots=int(slots)) as running:
        assert running.session is not None
        say("session", running.session.id)
        await asyncio.Event().wait()


def handlers(log: str) -> dict[str, Callable[..., Awaitable[object]]]:
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def started(claimed: Claimed) -> None:
        os.write(file, f"{execution_text(claimed.execution_id)} {claimed.attempt}\n".encode())

    async def note(payload: object, claimed: Claimed) -> None:
        started(claimed)
        await asyncio.sleep(0.005)

    async def poison(payload: object, claimed: Claimed) -> None:
        started(claimed)
        os.kill(os.getpid(), signal.SIGKILL)

    async def flaky(payload: object, claimed: Claimed) -> None:
        started(claimed)
        if claimed.attempt == 1:
            raise ValueError("the first attempt fails")

    async def mortal(payload: object, claimed: Claimed) -> None:
        # However often it was begun: an attempt that died with its worker is one too.
        started(claimed)
        if not _cure(log).exists():
            raise ValueError("it dies, and has to be replayed")

    async def doomed(payload: object, claimed: Claimed) -> None:
        started(claimed)
        raise ValueError("it dies each time")

    async def hang(payload: object, claimed: Claimed) -> None:
        started(claimed)
        await asyncio.Event().wait()

    return {each.__name__: each for each in (note, poison, flaky, mortal, doomed, hang)}


def _cure(log: str) -> Path:
    """A file: from when it is there, what is `mortal` lives."""
    return Path(f"{log}.cure")


LATER, TOKEN = "https://later.example/", "the token of what is accepted"
COUNTED, COUNT = "https://counted.example/", 5


async def counting(engine: Engine, log: str, hangs_at: str) -> None:
    """Works until it is killed: what counts continues from its checkpoint, and hangs at this number."""
    async with working(engine, {}, NotedWebhooks(log, int(hangs_at))) as running:
        assert running.session is not None
        say("session", running.session.id)
        await asyncio.Event().wait()


class NotedWebhooks:
    """Sends nothing; starts go to a file, as those of handlers do. One target accepts what it gets, to complete it later."""

    def __init__(self, log: str, hangs_at: int = 0) -> None:
        self._file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._hangs_at = hangs_at

    async def run(self, action: WebhookAction, run: Run) -> Outcome:
        claimed = run.claimed
        line = f"{execution_text(claimed.execution_id)} {claimed.attempt}\n"
        os.write(self._file, line.encode())
        if action.url == LATER:
            return Accepted(hashlib.sha256(TOKEN.encode()).digest(), run.timeout_seconds)
        if action.url == COUNTED:
            return await self._count(run)
        return Succeeded()

    async def _count(self, run: Run) -> Outcome:
        """Counts from the last checkpoint on; the result says where it began."""
        checkpoint = bytes(run.spec.checkpoint)
        began = msgspec.json.decode(checkpoint)["counted"] if checkpoint else 0
        for number in range(began + 1, COUNT + 1):
            assert await run.worker.set_checkpoint(run.claimed, f'{{"counted": {number}}}')
            say("counted", number)
            if number == self._hangs_at:
                await asyncio.Event().wait()
        return Succeeded({"began": began})


YEARLY = {key: value for key, value in recurring("0 0 1 1 *", "note").items() if key != "name"}
DECLARED = Manifest(app="life", schedules={"yearly": YEARLY})


async def life(engine: Engine, log: str, points: str) -> None:
    """Everything in one process, and a client of it that does everything there is to do.

    Each of its writes has a key, so a life that is begun again goes on where the last one died.
    The failpoints are armed when work is going on, unless they are those of a creation, or of what a life before this one may
    have left over.
    """
    early = points.startswith(("create", "declare", "join", "notify", "watch"))
    failpoints.configure(points if early else "")
    queues = ("default", "notifications")
    everything = working(
        engine, handlers(log), NotedWebhooks(log), slots=5, queues=queues, manifest=DECLARED
    )
    async with scheduling(engine), everything:
        async for number, step in _a_life(engine, _cure(log)):
            if number == 4 and not early:
                failpoints.configure(points)
            say("ok", step)
        say("done")
        await asyncio.Event().wait()


async def _a_life(engine: Engine, cure: Path) -> AsyncIterator[tuple[int, str]]:
    steps = iter(range(100))

    def write(name: str) -> Write:
        return Write(name, name.encode(), "the client")

    async def made(name: str, document: dict[str, object]) -> Job:
        return await create(engine, document | {"name": name}, key=name)

    told = [{"on": ["success"], "url": "https://hooks.example/"}]
    steady = await made("steady", every(1, "note", notifications=told))
    yield next(steps), f"create {steady.job_id}"
    changing = await made("changing", every(1, "note"))
    yield next(steps), f"create {changing.job_id}"
    once = await made("once", one_time("note", notifications=told))
    yield next(steps), f"create {once.job_id}"
    retried = await made(
        "retried",
        one_time("flaky", retry_policy={"backoff": "FIXED", "initial_delay_seconds": 0}),
    )
    yield next(steps), f"create {retried.job_id}"
    later = await made("later", one_time(schedule={"delay_seconds": 3600}))
    yield next(steps), f"create {later.job_id}"
    webhook = {"type": "WEBHOOK", "url": LATER}
    accepted = await made("accepted", one_time(action=webhook))
    yield next(steps), f"create {accepted.job_id}"
    counted = await made("counted", one_time(action={"type": "WEBHOOK", "url": COUNTED}))
    yield next(steps), f"create {counted.job_id}"
    once_only = {"max_retries": 0}
    replayed = await made("replayed", one_time("mortal", retry_policy=once_only))
    purged = await made("purged", one_time("doomed", retry_policy=once_only))
    yield next(steps), f"create {replayed.job_id}"
    yield next(steps), f"create {purged.job_id}"
    watching = {
        "job_id": job_text(steady.job_id),
        "grace_seconds": 1,
        "url": "https://pager.example/",
    }
    await create_monitor(engine, watching, write("monitor"))
    yield next(steps), "monitor"
    await update_job(engine, changing.job_id, {"priority": "HIGH"}, write("update"))
    yield next(steps), "update"
    await pause_job(engine, changing.job_id, write("pause"))
    yield next(steps), "pause"
    await resume_job(engine, changing.job_id, write("resume"))
    yield next(steps), "resume"
    ran = await run_now(engine, steady.job_id, write("run"))
    yield next(steps), f"run {ran.execution_ids[0]}"
    await cancel_execution(engine, later.job_id, write("cancel"))
    yield next(steps), "cancel"
    await set_tenant(engine, "default", TenantSettings(max_concurrency=50), write("configure"))
    yield next(steps), "configure"
    nothing = {"act": "pause", "filter": {"name_prefix": "nobody"}}
    await create_operation(engine, nothing, write("operate"))
    yield next(steps), "operate"

    async def is_at(job: Job, *statuses: ExecutionStatus) -> bool:
        return (await get_execution(engine, job.job_id)).status in statuses

    await eventually(lambda: is_at(accepted, ExecutionStatus.AWAITING, ExecutionStatus.SUCCEEDED))
    await complete(engine, KeyRing({}), accepted.job_id, TOKEN, Succeeded())
    yield next(steps), "complete"
    # In another life it may have been done already.
    both = (ExecutionStatus.DEAD, ExecutionStatus.SUCCEEDED)
    await eventually(lambda: is_at(replayed, *both))
    cure.touch()
    await retry_execution(engine, replayed.job_id, write("replay"))
    yield next(steps), "replay"
    await eventually(lambda: is_at(purged, ExecutionStatus.DEAD))
    await purge_dead_letter(engine, purged.job_id, write("purge"))
    yield next(steps), "purge"
    # Long enough for every loop to come round, whatever was armed.
    enough = steady.created_at + timedelta(seconds=1.5)

    async def past() -> bool:
        return await engine.clock.now() > enough

    await eventually(past)
    for job in (steady, changing):
        await delete_job(engine, job.job_id, write(f"delete {job.job_id}"))
        yield next(steps), f"delete {job.job_id}"


ROLES = {
    role.__name__: role for role in (claimer, greedy, creator, scheduler, worker, counting, life)
}


async def main(role: str, dsn: str, *arguments: str) -> None:
    remember_types()
    configure_logs("error")
    times = IMPATIENT
    if role != "life":
        failpoints.configure(os.environ["HOURBELL_FAILPOINTS"])
    # Each connection compiles and plans what it calls: more of them would take most of what a child lives.
    async with open_engine(dsn, times, connections=4) as engine:
        await ROLES[role](engine, *arguments)


def serve(requests: socket.socket) -> None:
    """Fork a child for each request, until the process that sends them has ended.

    A request is a role with its arguments, and an environment; with it come the child's output, and a socket that is told
    the number of its process, and how it ended.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes that wait
    gc.freeze()
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, 1 << 17, 2)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _watch(json.loads(request), *descriptors)
            os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)


def _watch(request: dict[str, Any], output: int, fate: int) -> None:
    """Fork the child, and wait for its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.dup2(output, 1)
        os.close(output)
        os.close(fate)
        os.environ.clear()
        os.environ.update(request["environment"])
        status = 1
        try:
            with contextlib.suppress(KeyboardInterrupt):
                asyncio.run(main(*request["arguments"]))
            status = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(output)
    os.write(fate, f"{pid}\n".encode())
    _, ended = os.waitpid(pid, 0)
    os.write(fate, f"{os.waitstatus_to_exitcode(ended)}\n".encode())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt), socket.socket(fileno=int(sys.argv[2])) as requests:
        serve(requests)
