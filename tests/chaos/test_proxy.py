"""Each mode of the proxy, as the two ends of a connection see it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
import struct
import time
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, urlsplit

import asyncpg
import msgspec
import pytest

from chaos.proxy import (
    AnyMode,
    Blackhole,
    CutAfterCommit,
    Delay,
    Direction,
    OneWay,
    Pass,
    Proxy,
    Refuse,
    Reset,
    Trickle,
)
from integration.life.support import PATIENCE_SECONDS, eventually

# What the end of a connection may be, for a client of PostgreSQL.
BROKEN = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
)

# Messages of PostgreSQL's protocol.
STARTUP = b"\0\0\0\x08\0\3\0\0"
READY_AND_IDLE = b"Z\0\0\0\5I"
EXECUTE = b"E\0\0\0\x09\0\0\0\0\0"
SYNC = b"S\0\0\0\4"


class End:
    """One end of a connection, in the hands of a test."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._loop.sock_sendall(self._socket, data)

    async def receive(self, size: int = 1 << 16) -> bytes:
        """What comes next; nothing at the end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self._loop.sock_recv(self._socket, size)

    async def receive_all(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self.receive(size - len(data))
            assert piece, "the connection ended early"
            data += piece
        return data

    async def is_reset(self) -> bool:
        """Whether the next thing that comes is a reset, and not one byte before it."""
        with contextlib.suppress(ConnectionResetError):
            came = await self.receive()
            raise AssertionError(f"not a reset but {came!r}")
        return True

    def say_no_more(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def close(self) -> None:
        self._socket.close()


class Target:
    """A server that hands its connections to the test."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(
            contextlib.closing(socket.create_server(("127.0.0.1", 0)))
        )
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]

    async def accept(self) -> End:
        async with asyncio.timeout(PATIENCE_SECONDS):
            connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        return self._stack.enter_context(contextlib.closing(End(connection)))

    def stop(self) -> None:
        self._listener.close()


class Net:
    """A target, a proxy before it, and clients."""

    def __init__(self, stack: contextlib.ExitStack, target: Target, proxy: Proxy) -> None:
        self._stack = stack
        self.target = target
        self.proxy = proxy

    async def connect(self) -> End:
        connection = socket.socket()
        connection.setblocking(False)
        client = self._stack.enter_context(contextlib.closing(End(connection)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.get_running_loop().sock_connect(
                connection, ("127.0.0.1", self.proxy.port)
            )
        return client

    async def link(self) -> tuple[End, End]:
        """A client and the end that the target has of the same connection; they have talked."""
        client = await self.connect()
        server = await self.target.accept()
        await talk(client, server)
        return client, server

    async def has_holes(self, number: int) -> None:
        async def holes() -> bool:
            return self.proxy.holes == number

        await eventually(holes)

    def new_target(self) -> Target:
        return Target(self._stack)


@pytest.fixture
async def net() -> AsyncIterator[Net]:
    with contextlib.ExitStack() as stack:
        target = Target(stack)
        proxy = await Proxy.open("client→target", "127.0.0.1", target.port)
        try:
            yield Net(stack, target, proxy)
        finally:
            await proxy.close()
            assert proxy.links == 0


async def talk(client: End, server: End) -> None:
    """Both ends hear each other."""
    await client.send(b"question")
    assert await server.receive() == b"question"
    await server.send(b"answer")
    assert await client.receive() == b"answer"


async def test_pass_carries_large_data_both_ways_at_once(net: Net) -> None:
    client, server = await net.link()
    there, back = (random.Random(seed).randbytes(8 << 20) for seed in (1, 2))
    received: dict[str, bytes] = {}

    async def hear(end: End, name: str, size: int) -> None:
        received[name] = await end.receive_all(size)

    async with asyncio.TaskGroup() as all_at_once:
        all_at_once.create_task(client.send(there))
        all_at_once.create_task(server.send(back))
        all_at_once.create_task(hear(server, "there", len(there)))
        all_at_once.create_task(hear(client, "back", len(back)))
    assert hashlib.sha256(received["there"]).digest() == hashlib.sha256(there).digest()
    assert hashlib.sha256(received["back"]).digest() == hashlib.sha256(back).digest()


async def test_a_writer_whose_reader_does_not_read_has_to_wait(net: Net) -> None:
    client, server = await net.link()
    much = bytes(64 << 20)  # more than the kernel keeps for the two connections
    sending = asyncio.create_task(client.send(much))
    assert len(await server.receive_all(1 << 20)) == 1 << 20
    assert not sending.done()
    sending.cancel()


async def test_the_end_of_one_direction_leaves_the_other_open(net: Net) -> None:
    client, server = await net.link()
    await client.send(b"last words")
    client.say_no_more()
    assert await server.receive_all(10) == b"last words"
    assert await server.receive() == b""
    await server.send(b"an answer to all that")
    assert await client.receive_all(21) == b"an answer to all that"
    server.say_no_more()
    assert await client.receive() == b""
    await eventually(lambda: no_links(net.proxy))


async def test_a_server_that_has_ended_still_hears_its_client(net: Net) -> None:
    client, server = await net.link()
    server.say_no_more()
    assert await client.receive() == b""
    await client.send(b"wait")
    assert await server.receive() == b"wait"
    assert net.proxy.links == 1


async def test_a_reset_of_one_end_is_a_reset_of_the_other(net: Net) -> None:
    client, server = await net.link()
    server.reset()
    assert await client.is_reset()
    client, server = await net.link()
    client.reset()
    assert await server.is_reset()
    await eventually(lambda: no_links(net.proxy))


async def test_a_target_that_is_down_resets_its_clients(net: Net) -> None:
    net.target.stop()
    client = await net.connect()
    assert await client.is_reset()


async def test_after_a_retarget_new_connections_go_to_the_new_target(net: Net) -> None:
    client, server = await net.link()
    other = net.new_target()
    net.proxy.retarget("127.0.0.1", other.port)
    await talk(await net.connect(), await other.accept())
    await talk(client, server)


async def test_refuse_resets_the_old_and_refuses_the_new_until_it_is_over(net: Net) -> None:
    client, server = await net.link()
    await net.proxy.switch(Refuse())
    assert await client.is_reset()
    assert await server.is_reset()
    with pytest.raises(ConnectionRefusedError):
        await net.connect()
    await net.proxy.switch(Pass())
    await net.link()


async def test_reset_breaks_all_connections_once(net: Net) -> None:
    links = [await net.link() for _ in range(3)]
    await net.proxy.switch(Reset())
    for client, server in links:
        assert await client.is_reset()
        assert await server.is_reset()
    assert net.proxy.mode == Pass()
    await net.link()


async def test_a_blackhole_swallows_both_directions_and_what_lost_bytes_is_reset_when_it_heals(
    net: Net,
) -> None:
    asking, unheard = await net.link()
    deaf, answering = await net.link()
    await net.proxy.switch(Blackhole())
    await asking.send(b"is anybody there?")
    await answering.send(b"here I am")
    await net.has_holes(2)
    await net.proxy.switch(Pass())
    # Nothing came before the reset, at either end.
    for end in (asking, unheard, deaf, answering):
        assert await end.is_reset()


async def test_a_connection_that_was_idle_in_a_blackhole_goes_on(net: Net) -> None:
    client, server = await net.link()
    await net.proxy.switch(Blackhole())
    await net.proxy.switch(Pass())
    await talk(client, server)


async def test_a_blackhole_takes_new_connections_and_never_answers(net: Net) -> None:
    await net.proxy.switch(Blackhole())
    client = await net.connect()
    await client.send(b"is anybody there?")
    await net.has_holes(1)
    await net.proxy.switch(Pass())
    assert await client.is_reset()
    # The first that reaches the target is one that came after.
    await net.link()


@pytest.mark.parametrize("gone", ["ends", "resets"])
async def test_who_goes_away_in_a_blackhole_is_missed_only_when_it_heals(
    net: Net, gone: str
) -> None:
    client, server = await net.link()
    await net.proxy.switch(Blackhole())
    client.reset() if gone == "resets" else client.close()
    await net.has_holes(1)
    await server.send(b"are you still there?")
    assert net.proxy.links == 1
    await net.proxy.switch(Pass())
    assert await server.is_reset()


@pytest.mark.parametrize("lost", ["answers", "requests"])
async def test_one_way_swallows_one_direction_and_carries_the_other(
    net: Net, lost: Direction
) -> None:
    client, server = await net.link()
    unheard, deaf = (server, client) if lost == "answers" else (client, server)
    await net.proxy.switch(OneWay(lost=lost))
    await unheard.send(b"not this")
    await net.has_holes(1)
    await deaf.send(b"but this")
    assert await unheard.receive() == b"but this"
    await net.proxy.switch(Pass())
    assert await deaf.is_reset()
    assert await unheard.is_reset()


async def test_the_reset_of_a_server_is_lost_where_its_answers_are(net: Net) -> None:
    client, server = await net.link()
    await net.proxy.switch(OneWay(lost="answers"))
    server.reset()
    await net.has_holes(1)
    await client.send(b"into the void")
    await client.send(b"once more")
    assert net.proxy.links == 1
    await net.proxy.switch(Pass())
    assert await client.is_reset()


async def test_a_delay_keeps_every_chunk_for_its_time_and_the_order(net: Net) -> None:
    client, server = await net.link()
    await net.proxy.switch(Delay(most_ms=100, seed=7))
    drawn = random.Random(7)
    least = sum(drawn.uniform(0, 0.1) for _ in range(4))
    began = time.monotonic()
    await talk(client, server)
    await talk(client, server)
    assert time.monotonic() - began >= least
    numbers = b"".join(number.to_bytes(4) for number in range(50_000))
    async with asyncio.TaskGroup() as both:
        both.create_task(client.send(numbers))
        arrived = await server.receive_all(len(numbers))
    assert arrived == numbers


async def test_who_is_delayed_is_released_when_the_mode_changes(net: Net) -> None:
    client, server = await net.link()
    await net.proxy.switch(Delay(most_ms=3_600_000, seed=1))
    await client.send(b"at last")
    await net.proxy.switch(Pass())
    assert await server.receive() == b"at last"


async def test_a_trickle_carries_a_few_bytes_at_a_time(net: Net) -> None:
    client, server = await net.link()
    await net.proxy.switch(Trickle(piece_bytes=3, pause_ms=5))
    began = time.monotonic()
    await client.send(b"abcdefghijklmnopqrstuvwxyz")
    assert await server.receive() == b"abc"
    assert await server.receive_all(23) == b"defghijklmnopqrstuvwxyz"
    assert time.monotonic() - began >= 9 * 0.005
    await net.proxy.switch(Pass())
    await talk(client, server)


async def test_a_reset_meets_also_those_who_have_just_come(net: Net) -> None:
    clients = []
    for _ in range(5):
        clients.append(await net.connect())
        await net.proxy.switch(Reset())
    await net.proxy.close()
    for client in clients:
        assert await client.is_reset()


@pytest.mark.parametrize(
    "mode",
    [Pass(), OneWay(lost="requests"), Delay(most_ms=5, seed=3), CutAfterCommit(any_sync=True)],
)
def test_a_mode_can_be_written_down_and_read_again(mode: AnyMode) -> None:
    assert msgspec.json.decode(msgspec.json.encode(mode), type=AnyMode) == mode


async def test_a_cut_keeps_back_every_byte_of_the_answer_and_none_of_the_request(net: Net) -> None:
    client, server = await net.connect(), await net.target.accept()
    await client.send(STARTUP)
    assert await server.receive_all(len(STARTUP)) == STARTUP
    await server.send(READY_AND_IDLE)
    assert await client.receive_all(len(READY_AND_IDLE)) == READY_AND_IDLE
    await net.proxy.switch(CutAfterCommit(any_sync=True))
    await client.send(EXECUTE)
    assert await server.receive_all(len(EXECUTE)) == EXECUTE
    await server.send(b"an early row")
    await client.send(SYNC + EXECUTE)
    assert await client.is_reset()
    # The server sees an ordinary end after the Sync, and may take its time with the answer.
    assert await server.receive_all(len(SYNC)) == SYNC
    assert await server.receive() == b""
    await server.send(b"the answer")
    server.say_no_more()
    await eventually(lambda: no_links(net.proxy))
    assert net.proxy.cuts == 1


async def test_a_commit_that_never_became_whole_is_no_cut(net: Net) -> None:
    client, server = await net.connect(), await net.target.accept()
    await net.proxy.switch(CutAfterCommit(any_sync=True))
    await client.send(STARTUP + EXECUTE)
    assert await server.receive()
    client.reset()
    await eventually(lambda: no_links(net.proxy))
    assert net.proxy.cuts == 0
    # It is still owed to the next.
    client, server = await net.connect(), await net.target.accept()
    await client.send(STARTUP + EXECUTE + SYNC)
    assert await client.is_reset()
    assert net.proxy.cuts == 1


async def no_links(proxy: Proxy) -> bool:
    return proxy.links == 0


# ---- before a real PostgreSQL


@pytest.fixture
async def postgres_proxy(database: str) -> AsyncIterator[Proxy]:
    folder = parse_qs(urlsplit(database).query)["host"][0]
    proxy = await Proxy.open("client→postgres", folder, 5432)
    try:
        async with direct(database) as connection:
            await connection.execute("create table written (what text)")
            await connection.execute(
                "create procedure write_and_tell(text, out told text) language sql"
                " as 'insert into written values ($1) returning what'"
            )
        yield proxy
    finally:
        await proxy.close()


@contextlib.asynccontextmanager
async def direct(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def through(proxy: Proxy, dsn: str) -> AsyncIterator[asyncpg.Connection]:
    name = urlsplit(dsn).path.removeprefix("/")
    connection = await asyncpg.connect(
        host="127.0.0.1", port=proxy.port, user="postgres", database=name, timeout=PATIENCE_SECONDS
    )
    try:
        yield connection
    finally:
        connection.terminate()


async def is_written(dsn: str, what: str) -> None:
    """Wait until it is: a client that was cut off may look before the server is done."""
    async with direct(dsn) as connection:

        async def found() -> bool:
            count = await connection.fetchval("select count(*) from written where what = $1", what)
            return bool(count == 1)

        await eventually(found)


async def test_a_commit_that_is_cut_off_has_happened(database: str, postgres_proxy: Proxy) -> None:
    async with through(postgres_proxy, database) as client:
        await postgres_proxy.switch(CutAfterCommit())
        transaction = client.transaction()
        await transaction.start()
        await client.execute("insert into written values ($1)", "in a transaction")
        with pytest.raises(BROKEN):
            await transaction.commit()
        assert client.is_closed()
    await is_written(database, "in a transaction")
    assert postgres_proxy.cuts == 1
    assert postgres_proxy.mode == Pass()
    await eventually(lambda: no_links(postgres_proxy))


async def test_what_commits_by_itself_is_cut_only_if_told(
    database: str, postgres_proxy: Proxy
) -> None:
    async with through(postgres_proxy, database) as client:
        await postgres_proxy.switch(CutAfterCommit())
        await client.execute("insert into written values ($1)", "answered")
        await client.execute("insert into written values ('answered too')")
        assert postgres_proxy.cuts == 0


@pytest.mark.parametrize(
    ("statement", "arguments"),
    [
        ("insert into written values ($1) returning what", ["it"]),
        ("insert into written values ('it')", []),
        ("call write_and_tell($1, null)", ["it"]),
        # An answer that begins long before the statement has ended.
        (
            "insert into written select $1 union all select repeat('x', 99) from generate_series(1, 9999) returning what",
            ["it"],
        ),
    ],
)
async def test_a_statement_that_commits_by_itself_and_is_cut_off_has_happened(
    database: str, postgres_proxy: Proxy, statement: str, arguments: list[str]
) -> None:
    async with through(postgres_proxy, database) as client:
        # Once before, so that it is prepared; its types are asked for by statements of asyncpg's own.
        async with client.transaction():
            await client.fetch(statement, *arguments)
            await client.execute("delete from written")
        await postgres_proxy.switch(CutAfterCommit(any_sync=True))
        with pytest.raises(BROKEN):
            await (client.fetch(statement, *arguments) if arguments else client.execute(statement))
    await is_written(database, "it")
    assert postgres_proxy.cuts == 1


async def test_statements_inside_of_a_transaction_are_not_cut(
    database: str, postgres_proxy: Proxy
) -> None:
    async with through(postgres_proxy, database) as client:
        await postgres_proxy.switch(CutAfterCommit(any_sync=True))
        transaction = client.transaction()
        await transaction.start()
        await client.execute("insert into written values ($1)", "one")
        await client.execute("insert into written values ('two')")
        assert postgres_proxy.cuts == 0
        with pytest.raises(BROKEN):
            await transaction.commit()
    await is_written(database, "one")
    assert postgres_proxy.cuts == 1


async def test_as_many_commits_are_cut_as_were_asked_for(
    database: str, postgres_proxy: Proxy
) -> None:
    await postgres_proxy.switch(CutAfterCommit(cuts=3))

    async def write(number: int) -> bool:
        async with through(postgres_proxy, database) as client:
            try:
                async with client.transaction():
                    await client.execute("insert into written values ($1)", str(number))
            except BROKEN:
                return False
            return True

    answered = await asyncio.gather(*(write(number) for number in range(8)))
    assert answered.count(False) == 3
    assert postgres_proxy.cuts == 3
    for number in range(8):
        await is_written(database, str(number))


async def test_large_rows_pass_both_ways(database: str, postgres_proxy: Proxy) -> None:
    large = random.Random(5).randbytes(6 << 20)
    async with through(postgres_proxy, database) as client:
        assert await client.fetchval("select $1::bytea", large) == large
        rows = await client.fetch("select n from generate_series(1, 50000) as n")
        assert [row["n"] for row in rows] == list(range(1, 50_001))
