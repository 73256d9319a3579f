"""A client that a process opened before it forked."""

import multiprocessing
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hourbell.client.calls import Answer, Request
from hourbell.client.connections import PooledConnections, endpoint_of

ROUNDS = 5


@contextmanager
def echoing() -> Iterator[str]:
    """A server that answers each request with its path, after a moment; connections stay open."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while line := lines.readline():
                while lines.readline().strip():
                    pass
                path = line.split()[1]
                time.sleep(0.005)  # so that requests of two processes on one connection overlap
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(path), path)
                )

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def answers_of(connections: PooledConnections, name: str) -> list[str]:
    """What this process is answered, of which all must be its own."""
    found = []
    for number in range(ROUNDS):
        answer = connections._send(Request("GET", f"/{name}/{number}", {}, None))
        found.append(answer.body.decode() if isinstance(answer, Answer) else repr(answer))
    return found


def in_process(url: str, results: "multiprocessing.SimpleQueue[tuple[str, list[str]]]") -> None:
    """Open a connection, fork, and use it in both processes at the same time."""
    connections = PooledConnections(endpoint_of(url, None, 0), 1)
    connections._send(Request("GET", "/before", {}, None))
    child = multiprocessing.get_context("fork").Process(
        target=lambda: results.put(("child", answers_of(connections, "child")))
    )
    child.start()
    results.put(("parent", answers_of(connections, "parent")))
    child.join()


@pytest.mark.timeout(60)
def test_a_forked_process_never_gets_the_answers_of_the_other() -> None:
    with echoing() as url:
        spawning = multiprocessing.get_context("spawn")  # this process has threads
        results = spawning.SimpleQueue()
        process = spawning.Process(target=in_process, args=(url, results))
        process.start()
        found = dict(results.get() for _ in range(2))
        process.join()
    assert found == {
        name: [f"/{name}/{number}" for number in range(ROUNDS)] for name in ("parent", "child")
    }
