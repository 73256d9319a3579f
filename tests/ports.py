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
    return free_ports(1)


def free_ports(number: int) -> int:
    """The first of so many ports in a row, all of them for this process."""
    first_of_clients = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    below = range(max(1024, first_of_clients - PORTS), first_of_clients - number + 1)
    _LOCKS.mkdir(exist_ok=True)
    for port in random.SystemRandom().sample(below, len(below)):
        locks: list[int] = []
        try:
            for each in range(port, port + number):
                locks.append(os.open(_LOCKS / str(each), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC))
                fcntl.flock(locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
                socket.create_server(("127.0.0.1", each)).close()
        except OSError:  # another process has a lock or a port
            for lock in locks:
                os.close(lock)
            continue
        _held.extend(locks)
        return port
    raise RuntimeError(f"none of the ports {below.start} to {below.stop - 1} is free")
