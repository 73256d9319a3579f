"""The server around the application."""

import asyncio
import signal
import socket

import aiohttp
import pytest

from hourbell import failpoints
from hourbell.api.app import create_app
from hourbell.api.server import ApiServer
from hourbell.dispatch.remote import RemoteWorkers
from hourbell.engine.core import Engine
from hourbell.model.errors import ConfigurationError
from integration.api.client import KEY_RING, one_time
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
