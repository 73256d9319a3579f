"""Paths and methods that are not served."""

from integration.api.client import Client


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
