"""The dashboard as it is served: which requests get the page, and with which headers."""

import gzip
from pathlib import Path
from types import SimpleNamespace

import pytest

from hourbell.api.dashboard import Dashboard
from integration.api.client import Client

BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
PAGES = [
    "/",
    "/jobs",
    "/jobs/new",
    "/jobs/job_0ahr000000000",
    "/dead-letters?view=list",
    "/nothing",
]


@pytest.fixture
def built(tmp_path: Path, api: Client, shared_app: object) -> Dashboard:
    """The dashboard of the server, with files of this test."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>Hourbell</title>")
    (tmp_path / "assets" / "index-1a2b.js").write_text("export {}")
    (tmp_path / "assets" / "index-1a2b.js.gz").write_bytes(gzip.compress(b"export {}"))
    served: Dashboard = shared_app._app.dependencies["dashboard"].dependency()  # type: ignore[attr-defined]
    before = served.__dict__
    served.__dict__ = Dashboard(tmp_path).__dict__
    yield served
    served.__dict__ = before


async def get(api: Client, path: str, **headers: str) -> SimpleNamespace:
    async with api.http.get(path, headers=headers, auto_decompress=False) as response:
        return SimpleNamespace(
            status=response.status, headers=response.headers, body=await response.read()
        )


@pytest.mark.parametrize("path", PAGES)
async def test_a_browser_gets_the_page_at_every_address(built: Dashboard, api: Client, path: str):
    answer = await get(api, path, **BROWSER)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert b"<title>Hourbell</title>" in answer.body


@pytest.mark.parametrize("accept", ["*/*", "application/json", "text/*", ""])
async def test_a_program_gets_json_at_the_same_addresses(
    built: Dashboard, api: Client, accept: str
):
    index = await get(api, "/", Accept=accept)
    assert (index.status, index.headers["Content-Type"]) == (200, "application/json")
    unknown = await get(api, "/jobs", Accept=accept)
    assert (unknown.status, unknown.headers["Content-Type"]) == (404, "application/problem+json")


@pytest.mark.parametrize(
    "path", ["/api/v1/nothing", "/api", "/schema/x", "/internal/v1/x", "/assets/x.js", "/metrics/x"]
)
async def test_addresses_of_programs_never_get_the_page(built: Dashboard, api: Client, path: str):
    answer = await get(api, path, **BROWSER)
    assert (answer.status, answer.headers["Content-Type"]) == (404, "application/problem+json")


async def test_the_page_forbids_what_it_does_not_need(built: Dashboard, api: Client):
    answer = await get(api, "/jobs", **BROWSER)
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'; trusted-types 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"


async def test_the_page_is_asked_for_again_and_sent_only_if_it_has_changed(
    built: Dashboard, api: Client
):
    first = await get(api, "/", **BROWSER)
    assert first.headers["Cache-Control"] == "no-cache"
    again = await get(api, "/jobs", **BROWSER, **{"If-None-Match": first.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")


async def test_assets_are_compressed_and_never_asked_for_again(built: Dashboard, api: Client):
    plain = await get(api, "/assets/index-1a2b.js", **{"Accept-Encoding": "identity"})
    assert (plain.status, plain.body) == (200, b"export {}")
    assert plain.headers["Cache-Control"] == "public, max-age=31536000, immutable"
    assert plain.headers["Content-Type"] == "text/javascript; charset=utf-8"
    zipped = await get(api, "/assets/index-1a2b.js", **{"Accept-Encoding": "gzip, br"})
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(zipped.body) == b"export {}"
    assert "Accept-Encoding" in zipped.headers["Vary"]


async def test_without_the_built_files_the_page_says_how_to_build_them(
    built: Dashboard, api: Client, tmp_path: Path
):
    built.__dict__ = Dashboard(tmp_path / "missing").__dict__
    answer = await get(api, "/", **BROWSER)
    assert answer.status == 404
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert b"The dashboard has not been built" in answer.body
    assert b"make up" in answer.body
    assert (await api.get("/api/v1/jobs")).status == 200
