"""Ports for the servers of tests."""

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

PORTS = 10_000  # as many below those that the kernel gives to clients

_LOCKS = Path(tempfile.gettempdir()) / "hourbell-test-ports"
_held: list[int] = []  # descriptors; the kernel gives the locks back when this process ends


def free_port() -> int:
    """A port of 127.0.0.1 for this process: no other process of the tests gets it, and no client from the kernel."""
    first_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = range(max(1024, first_of_clients - PORTS), first_of_clients)
    _LOCKS.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(below, len(below)):
        lock = os.open(_LOCKS / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:  # another process has the lock or the port
            os.close(lock)
            continue
        _held.append(lock)
        return port
    raise RuntimeError(f"none of the ports {below.start} to {below.stop - 1} is free")
