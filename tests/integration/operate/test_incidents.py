"""docs/operate/incidents.md: each incident, made on purpose, is what the commands of the page say it is."""

import asyncio
import contextlib
import errno
import os
import subprocess
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

import services
from integration.life.support import eventually
from integration.operate.machine import Machine, blocks, started
from integration.test_roles import PATIENCE_SECONDS
from ports import free_port

DISK_BYTES = 160 << 20


async def creates(machine: Machine, name: str, **fields: object) -> str:
    made = await machine.ask(
        "/api/v1/jobs",
        {
            "name": name,
            "type": "ONE_TIME",
            "schedule": {"delay_seconds": 0},
            "action": {
                "type": "WEBHOOK",
                "method": "GET",
                "url": f"http://127.0.0.1:{machine.ports['api']}/livez",
            },
        }
        | fields,
    )
    return str(made["job_id"])


async def succeeded(machine: Machine, job: str) -> bool:
    (run,) = (await machine.ask(f"/api/v1/jobs/{job}/executions"))["items"]
    return bool(run["status"] == "SUCCEEDED")


async def says(machine: Machine, block: str, *words: str) -> None:
    """Whether what a command prints becomes this."""

    async def does() -> str:
        told = await machine.types(block)
        return told if all(word in told for word in words) else ""

    await eventually(does, PATIENCE_SECONDS)


@pytest.mark.timeout(240)
async def test_nothing_runs(bare: Machine) -> None:
    bare.env["HOURBELL_WORKER_QUEUES"] = "default"
    machine = await started(bare)
    doctor, start, look, explain, stop = blocks("incidents.md", "Nothing runs")
    doctor = doctor.rstrip() + " || true"
    await machine.types(doctor)
    job = await creates(machine, "nightly-report", queue="mail")
    # A queue without a worker.
    await says(machine, doctor, "in queue mail, 1 execution waits for a live worker")
    await says(machine, look, "mail", job.replace("job_", "exe_"))
    await says(machine, explain, "mail", "worker")
    # Neither a scheduler nor a worker; started as the page says.
    await machine.systemctl("stop", ["scheduler", "worker"])
    await says(machine, doctor, "no scheduler leads", "there is no live worker")
    machine.env["HOURBELL_WORKER_QUEUES"] = "default,mail"
    await machine.types(start)
    await eventually(lambda: succeeded(machine, job), PATIENCE_SECONDS)
    await machine.types(stop)
    # The database is away.
    machine.env["HOURBELL_DATABASE_URL"] = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    assert "the connection was refused" in await machine.types(doctor)


@pytest.mark.timeout(240)
async def test_one_tenant_is_late(machine: Machine) -> None:
    look, more = blocks("incidents.md", "One tenant is late")
    release = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await release.wait()
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    target = await asyncio.start_server(hear, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{target.sockets[0].getsockname()[1]}/"
    await creates(machine, "other")  # its tenant, default, is not late
    await machine.types("hourbell tenants set shop --max-concurrency 1")
    action = {"type": "WEBHOOK", "method": "GET", "url": url}
    slow = await creates(machine, "slow", tenant_id="shop", action=action)

    async def runs() -> bool:
        (run,) = (await machine.ask(f"/api/v1/jobs/{slow}/executions"))["items"]
        return bool(run["status"] == "RUNNING")

    await eventually(runs, PATIENCE_SECONDS)
    job = await creates(machine, "shop-report", tenant_id="shop")
    await says(machine, look, "limit", "shop-report", job.replace("job_", "exe_"))
    await machine.types(more)
    await eventually(lambda: succeeded(machine, job), PATIENCE_SECONDS)
    release.set()
    await eventually(lambda: succeeded(machine, slow), PATIENCE_SECONDS)
    target.close()


@contextlib.contextmanager
def on_small_disk(machine: Machine) -> Iterator[None]:
    """Move the data of the server, which does not run, to a file system of its own; only root may mount one."""
    moved = machine.data.with_name("moved")
    machine.data.rename(moved)
    machine.data.mkdir(mode=0o700)
    size = f"size={DISK_BYTES},mode=700,uid={moved.stat().st_uid}"
    mount = ["mount", "-t", "tmpfs", "-o", size, "hourbell-operate", str(machine.data)]
    subprocess.run(mount, check=True)
    subprocess.run(["cp", "--archive", f"{moved}/.", str(machine.data)], check=True)
    try:
        yield
    finally:
        stop = [
            str(services.POSTGRES15_PROGRAMS / "pg_ctl"),
            "stop",
            "--silent",
            f"--pgdata={machine.data}",
        ]
        with contextlib.suppress(subprocess.CalledProcessError):
            services.run_as_owner(machine.data, [*stop, "--mode=immediate"])
        subprocess.run(["umount", "--lazy", str(machine.data)], check=True)
        machine.data.rmdir()
        moved.rename(machine.data)  # as it was before; the fixture stops it
        services.run_as_owner(
            machine.data,
            [
                *stop[:1],
                "start",
                "--silent",
                f"--pgdata={machine.data}",
                f"--log={machine.data}/log",
            ],
        )


def fill(filler: Path) -> None:
    """Until not one byte more fits."""
    with filler.open("wb", buffering=0) as file:
        for piece in (1 << 20, 1 << 10, 1):
            try:
                while True:
                    file.write(bytes(piece))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


@pytest.mark.timeout(240)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
async def test_the_disk_is_full(bare: Machine) -> None:
    look, start, doctor, sizes, shorter = blocks("incidents.md", "The disk is full")
    await bare.types("pg_ctl stop --silent --mode=fast", as_postgres=True)
    with on_small_disk(bare):
        await bare.types(start, as_postgres=True)
        machine = await started(bare)
        made = [await creates(machine, "before")]
        filler = machine.data / "filler"
        await asyncio.to_thread(fill, filler)

        async def is_refused() -> bool:
            try:
                made.append(await creates(machine, "x" * 100, schedule={"delay_seconds": 1}))
            except urllib.error.HTTPError as error:
                error.close()
                return error.code == 503
            return False

        await eventually(is_refused, PATIENCE_SECONDS)
        assert "100%" in await machine.types(look, as_postgres=True)
        filler.unlink()
        await machine.types(start, as_postgres=True)
        await machine.ready()
        await machine.types(doctor)
        for job in made:
            await eventually(lambda job=job: succeeded(machine, job), PATIENCE_SECONDS)
        assert "executions" in await machine.types(sizes)
        await machine.types(shorter)
        for process in ("api", "scheduler", "worker"):
            await machine.systemctl("stop", [process])
