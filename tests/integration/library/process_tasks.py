"""Tasks in processes of their own, which a process has to be able to import."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hourbell import App, Context, Retry, Snooze, SyncContext, current

app = App("shop", retry=Retry.delays(0, 0, 0, 0), state=["state"])


@app.task(process=True)
def pid_of_call() -> int:
    return os.getpid()


@app.task(process=True, max_calls=2)
def pid_of_one_of_two_calls() -> int:
    return os.getpid()


if "NEWER_CODE" in os.environ:

    @app.task(process=True)
    def deployed(cart_id: int, lang: str) -> str:
        return f"{cart_id} {lang}"

else:

    @app.task(process=True, retry=Retry.never())
    def deployed(cart_id: int) -> int:  # type: ignore[misc]
        return cart_id


@app.task(process=True)
def look(ctx: SyncContext, value: list[int]) -> list[Any]:
    if ctx.restore(str) is None:
        ctx.checkpoint("half")
        ctx.progress({"done": 1})
        ctx.progress("never shown, because it ends")
        raise Snooze(0)
    assert current() is ctx
    return [sum(value), ctx.restore(str), ctx.get(str), ctx.attempt, ctx.task, ctx.stopping]


@app.task(process=True, no_retry=[KeyError])
def fail(kind: str) -> None:
    if kind == "key":
        raise KeyError("gone")
    if kind == "interrupt":
        raise KeyboardInterrupt("mine")
    sys.exit("leaving")


@app.task(process=True)
def return_an_object() -> object:
    return object()


@app.task(process=True, retry=Retry.fixed(0, every=0))
def die(ctx: SyncContext, how: str, times: int) -> int:
    """Die in the first attempts."""
    if ctx.attempt <= times and how == "exit":
        os._exit(0)
    if ctx.attempt <= times:
        os.kill(os.getpid(), getattr(signal, how))
    return ctx.attempt


@app.task(process=True, timeout=5, retry=Retry.never())
def hang(folder: str) -> None:
    """Note which process runs it and a child of it, well before its timeout, and never end."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    write(Path(folder) / "pids", f"{os.getpid()} {child.pid}")
    while True:
        with contextlib.suppress(BaseException):  # neither a signal nor an exception ends it
            time.sleep(1000)


@app.task(process=True, timeout=60)
def clean_up(ctx: SyncContext, folder: str) -> None:
    """Wait until it is interrupted."""
    write(Path(folder) / "pids", str(os.getpid()))
    try:
        time.sleep(1000)
    finally:
        write(Path(folder) / "cleaned", str(ctx.cancelled))


@app.task
async def in_the_worker() -> int:
    return os.getpid()


@app.task(timeout=1, retry=Retry.never())
async def outlast() -> None:
    """Exceed the shortest timeout: what began to run earlier, with the same timeout, has exceeded it too."""
    await asyncio.Event().wait()


# Each begins, and waits to be told to end.

began: set[str] = set()
may_end = asyncio.Event()
thread_may_end = threading.Event()


@app.task
async def beside_in_a_coroutine(ctx: Context) -> list[int]:
    began.add("coroutine")
    await may_end.wait()
    return [ctx.attempt, os.getpid()]


@app.task
def beside_in_a_thread(ctx: SyncContext) -> list[int]:
    began.add("thread")
    thread_may_end.wait(60)
    return [ctx.attempt, os.getpid()]


@app.task(process=True)
def beside_in_a_process(ctx: SyncContext, folder: str) -> list[int]:
    write(Path(folder) / "pids", str(os.getpid()))
    (Path(folder) / "may_end").read_text()  # a pipe: until a writer has opened and closed it
    return [ctx.attempt, os.getpid()]


def write(path: Path, text: str) -> None:
    """Never seen half written."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


@app.task(process=True)
def wait_in_a_process(ctx: SyncContext) -> list[Any]:
    done = ctx.wait_for_completion(timeout=3600)
    return [done.result, ctx.completion_token().startswith(ctx.execution_id)]


@app.task
def wait_in_a_thread(ctx: SyncContext) -> list[Any]:
    done = ctx.wait_for_completion(timeout=3600)
    return [done.result, ctx.completion_token().startswith(ctx.execution_id)]


@app.task(process=True)
def report_twice(ctx: SyncContext) -> None:
    ctx.progress("first")
    ctx.progress("newest")
    while not ctx.stopping:
        time.sleep(0.01)
