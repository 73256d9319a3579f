"""Paths and methods that are not served."""

import asyncio

import pytest

from hourbell.api.server import ApiServer
from integration.api.client import Client, made


async def test_an_unknown_path_is_a_404(api: Client):
    for path in (
        "/nothing",
        "/api",
        "/api/v1",
        "/api/v2/jobs",
        "/api/v1/jobs/job_0ahr000000000/nothing",
        "/api/v1/nothing",
        "/schema",
        "/%00",
        "/..%2f..%2fetc%2fpasswd",
        "/" + "x" * 10_000,
    ):
        answer = await api.get(path)
        assert answer.is_problem(404, "unknown_route"), path


async def test_a_method_that_is_not_served_is_a_405_with_those_that_are(api: Client):
    for method, path, allowed in (
        ("PUT", "/api/v1/jobs", {"GET", "POST"}),
        ("DELETE", "/api/v1/jobs", {"GET", "POST"}),
        ("POST", "/api/v1/jobs/job_0ahr000000000", {"GET", "PATCH", "DELETE"}),
        ("GET", "/api/v1/jobs/job_0ahr000000000/run", {"POST"}),
        ("POST", "/livez", {"GET"}),
        ("TRACE", "/", {"GET"}),
    ):
        answer = await api.send(method, path)
        assert answer.is_problem(405, "method_not_allowed")
        assert set(answer.headers["Allow"].split(", ")) == allowed | {"OPTIONS"}


async def test_options_tells_the_methods(api: Client):
    async with api.http.options("/api/v1/jobs") as response:
        assert response.status == 204
        assert set(response.headers["Allow"].split(", ")) == {"GET", "OPTIONS", "POST"}


@pytest.mark.parametrize("with_key", [False, True])
@pytest.mark.parametrize("path", ["/api/v1/jobs", "/livez"])
async def test_two_host_headers_are_a_400(
    api: Client, server: ApiServer, path: str, with_key: bool
):
    authorization = f"Authorization: Bearer {await made(api, 'admin')}\r\n" if with_key else ""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nHost: other.example.com\r\n"
        f"{authorization}Connection: close\r\n\r\n".encode()
    )
    answer = await asyncio.wait_for(reader.read(), 60)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"malformed_request" in answer
    assert b"more than one Host header" in answer
