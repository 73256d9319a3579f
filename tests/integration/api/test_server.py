"""The server around the application."""

import asyncio
import gzip
import re
import signal
import socket

import aiohttp
import msgspec
import pytest

from hourbell import failpoints
from hourbell.api.app import create_app
from hourbell.api.server import ApiServer
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import Engine
from hourbell.model.errors import ConfigurationError
from integration.api.client import KEY_RING, Client, one_time
from integration.api.conftest import KnownHealth


async def test_a_port_that_is_taken_is_told_with_what_to_do(
    server: ApiServer, engine: Engine, remote: RemoteWorkers
):
    second = ApiServer(
        create_app(engine, KnownHealth(), KEY_RING, remote, local=True), "127.0.0.1", server.port
    )
    with pytest.raises(ConfigurationError, match=rf"{server.port}.*HOURBELL_PORT"):
        await second.start()
    await second.stop()


async def test_an_address_that_is_not_ours_is_told_with_what_to_do(
    engine: Engine, remote: RemoteWorkers
):
    for host in ("192.0.2.1", "no-such-host.invalid"):
        server = ApiServer(create_app(engine, KnownHealth(), KEY_RING, remote, local=True), host, 0)
        with pytest.raises(ConfigurationError, match="HOURBELL_HOST"):
            await server.start()


async def test_a_name_with_several_addresses_is_served_on_all_of_them(
    engine: Engine, remote: RemoteWorkers
):
    server = ApiServer(
        create_app(engine, KnownHealth(), KEY_RING, remote, local=True), "localhost", 0
    )
    await server.start()
    for found in socket.getaddrinfo("localhost", server.port, type=socket.SOCK_STREAM):
        _, writer = await asyncio.open_connection(found[4][0], server.port)
        writer.close()
        await writer.wait_closed()
    await server.stop()


async def test_signals_stay_with_whoever_owns_the_process(engine: Engine, remote: RemoteWorkers):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = ApiServer(
        create_app(engine, KnownHealth(), KEY_RING, remote, local=True), "127.0.0.1", 0
    )
    await server.start()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    await server.stop()


async def test_stopping_lets_an_open_request_finish_and_takes_no_more(
    engine: Engine, remote: RemoteWorkers
):
    server = ApiServer(
        create_app(engine, KnownHealth(), KEY_RING, remote, local=True), "127.0.0.1", 0
    )
    await server.start()
    port = server.port
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as http:
        with failpoints.barrier("create.before_commit") as held:
            headers = {"Idempotency-Key": "mine"}
            sending = asyncio.create_task(
                http.post("/api/v1/jobs", json=one_time(), headers=headers)
            )
            await held.reached()
            stopping = asyncio.create_task(server.stop())
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except ConnectionError:
                    break
                writer.close()
                await asyncio.sleep(0.01)
            assert not stopping.done()
            held.release()
            assert (await sending).status == 201
            await stopping


async def test_a_request_that_hangs_is_cut_after_the_bound(
    engine: Engine, remote: RemoteWorkers, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hourbell.api.server.DRAIN_SECONDS", 0.2)
    server = ApiServer(
        create_app(engine, KnownHealth(), KEY_RING, remote, local=True), "127.0.0.1", 0
    )
    await server.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as http:
        with failpoints.barrier("create.before_commit") as held:
            headers = {"Idempotency-Key": "mine"}
            sending = asyncio.create_task(
                http.post("/api/v1/jobs", json=one_time(), headers=headers)
            )
            await held.reached()
            async with asyncio.timeout(20):
                await server.stop()
            with pytest.raises(aiohttp.ClientError):
                (await sending).raise_for_status()


async def test_a_client_that_leaves_in_the_middle_of_its_body_does_no_harm(server: ApiServer):
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\n"
        b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    )
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    async with (
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as http,
        http.get("/livez") as response,
    ):
        assert response.status == 200


async def raw(server: ApiServer, head: str) -> tuple[bytes, bytes]:
    """The head and the body of the answer to these lines."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head.replace("\n", "\r\n").encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    answered, _, body = answer.partition(b"\r\n\r\n")
    return answered, body


@pytest.mark.parametrize(
    ("version", "status"), [("HTTP/1.1", b"400 Bad Request"), ("HTTP/1.0", b"200 OK")]
)
async def test_a_request_without_a_host_is_refused_where_one_is_required(
    server: ApiServer, version: str, status: bytes
):
    head, body = await raw(server, f"GET / {version}\nConnection: close\n\n")
    assert head.splitlines()[0].endswith(status)
    if version == "HTTP/1.1":
        assert msgspec.json.decode(body)["code"] == "malformed_request"


ASKED = "GET {} HTTP/1.1\nHost: localhost\nConnection: close\nAccept-Encoding: {}\n\n"


@pytest.mark.parametrize("accepted", ["gzip", "br, gzip;q=0.5", "GZIP", "gzip;q=0", "identity"])
async def test_a_large_answer_is_compressed_for_a_client_that_accepts_it(
    server: ApiServer, accepted: str
):
    _, plain = await raw(server, ASKED.format("/schema/openapi.json", "identity"))
    head, body = await raw(server, ASKED.format("/schema/openapi.json", accepted))
    lines = {line.lower() for line in head.splitlines()}
    if accepted in ("gzip;q=0", "identity"):
        assert body == plain
        assert not any(line.startswith(b"content-encoding") for line in lines)
        return
    assert {b"content-encoding: gzip", b"vary: accept-encoding"} <= lines
    assert f"content-length: {len(body)}".encode() in lines
    assert len(body) < len(plain) / 5
    assert gzip.decompress(body) == plain


async def test_small_answers_and_streams_are_not_compressed_and_an_etag_stays(
    server: ApiServer, api: Client
):
    head, _ = await raw(server, ASKED.format("/livez", "gzip"))
    assert b"content-encoding" not in head.lower()
    job = await api.created(one_time(action={"type": "TASK", "name": "t", "payload": "x" * 5000}))
    small, _ = await raw(server, ASKED.format(job["path"], "identity"))
    zipped, _ = await raw(server, ASKED.format(job["path"], "gzip"))
    assert b"content-encoding: gzip" in zipped.lower()
    etags = [re.search(rb"(?i)^etag: (.+)\r?$", each, re.MULTILINE) for each in (small, zipped)]
    assert etags[0] is not None
    assert etags[1] is not None
    assert etags[0][1] == etags[1][1]
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    path = "/api/v1/events?topics=overview"
    writer.write(ASKED.format(path, "gzip").replace("\n", "\r\n").encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"text/event-stream" in head
    assert b"content-encoding" not in head.lower()
    assert (await reader.readline()) != b""
    writer.close()
    await writer.wait_closed()
