"""What a process for tasks tells its worker, and when."""

import asyncio
import os
import socket
from queue import SimpleQueue

from hourbell.sdk.processes.child import Pipe
from hourbell.sdk.processes.messages import Began, Call, framed

CALL = Call("shop.mail", b"{}", [], 30.0, b"")


class Calls(SimpleQueue[Call]):
    """The queue of the main thread; notes what the worker has received when a call gets there."""

    def __init__(self, worker: socket.socket) -> None:
        self.worker = worker
        self.received: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def put(self, item: Call, block: bool = True, timeout: float | None = None) -> None:
        try:
            self.received.set_result(self.worker.recv(1_000, socket.MSG_DONTWAIT))
        except BlockingIOError:
            self.received.set_result(b"")


async def test_the_worker_knows_of_a_call_before_the_function_can_crash() -> None:
    # A function that kills its process at once must be a crash, not a process that was dead already:
    # such a call would be repeated without an end, and without a record.
    worker, process = socket.socketpair()
    with worker:
        pipe = Pipe(process, os.getpid())
        pipe.calls = calls = Calls(worker)
        running = asyncio.ensure_future(pipe._run())
        worker.sendall(framed(CALL))
        assert await calls.received == framed(Began())
        running.cancel()
        await asyncio.wait([running])
        assert pipe._writer is not None
        pipe._writer.close()
        await pipe._writer.wait_closed()
