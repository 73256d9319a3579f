"""The dashboard: the built files of `ui/`, and the single page served for all its addresses.

The page is the same for every address and contains no data: its script reads everything through the API. It is
served only for `Accept: text/html`, so programs still get JSON from the same addresses. Files below /assets/ have a
digest in their names and never change. Everything is read once, when the server starts, and kept in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec
from litestar import Response
from litestar.handlers import HTTPRouteHandler

from hourbell.api.errors import UnknownRoute
from hourbell.api.requests import AnyRequest
from hourbell.api.routes import PathParam

FILES = Path(__file__).parents[1] / "ui_files"
INDEX = "index.html"

# Addresses reserved for programs, even if a browser asks for them.
RESERVED = ("/api", "/internal", "/schema", "/metrics", "/livez", "/readyz", "/assets")

# `require-trusted-types-for` with no policy allowed: no script can turn text into HTML or code.
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "font-src 'self'; connect-src 'self'; manifest-src 'self'; base-uri 'none'; "
        "form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}

# Litestar adds the charset for text types.
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
_NOT_BUILT = """\
The dashboard has not been built, so there is no page here. The API works without it: see /schema/openapi.json.

In a checkout, build it with `make up` or `python3 scripts/ui`, then restart the server. The build needs Node.js 22.12 or newer, \
or an internet connection to download it. An installed wheel includes the dashboard.
"""


class File(msgspec.Struct, frozen=True):
    """A file as it is sent."""

    content: bytes
    zipped: bytes | None  # compressed with gzip
    media_type: str
    etag: str
    immutable: bool


class Dashboard:
    """The files of the dashboard, by their paths."""

    def __init__(self, folder: Path = FILES) -> None:
        self._files = dict(_read(folder))

    @property
    def paths(self) -> Iterable[str]:
        return self._files

    def wants_page(self, request: AnyRequest) -> bool:
        """Whether a browser is asking for an address of the dashboard."""
        path = request.scope["path"]
        reserved = any(path == each or path.startswith(f"{each}/") for each in RESERVED)
        return request.method == "GET" and accepts_html(request) and not reserved

    def page(self, request: AnyRequest) -> Response[bytes]:
        """The page, whatever the address."""
        found = self._files.get(f"/{INDEX}")
        if found is None:
            return Response(
                _NOT_BUILT.encode(), status_code=404, headers=HEADERS, media_type="text/plain"
            )
        return _send(found, request)

    def file(self, path: str, request: AnyRequest) -> Response[bytes]:
        """A file of the page."""
        found = self._files.get(path)
        if found is None:
            raise UnknownRoute
        return _send(found, request)

    def handlers(self) -> list[HTTPRouteHandler]:
        """The routes of the files. They are not part of the API or its description."""

        async def asset(request: AnyRequest, name: PathParam) -> Response[bytes]:
            return self.file(f"/assets/{name}", request)

        async def other(request: AnyRequest) -> Response[bytes]:
            return self.file(request.scope["path"], request)

        others = [path for path in self._files if path.count("/") == 1 and path != f"/{INDEX}"]
        made = [HTTPRouteHandler("/assets/{name:str}", http_method=["GET"], status_code=200)(asset)]
        if others:
            made.append(HTTPRouteHandler(others, http_method=["GET"], status_code=200)(other))
        return made


def accepts_html(request: AnyRequest) -> bool:
    """Whether the caller explicitly accepts HTML; `*/*` comes from a program."""
    accepted = request.headers.get("Accept", "")
    return any(
        each.partition(";")[0].strip().lower() == "text/html" for each in accepted.split(",")
    )


def _send(file: File, request: AnyRequest) -> Response[bytes]:
    headers = HEADERS | {
        "Cache-Control": "public, max-age=31536000, immutable" if file.immutable else "no-cache",
        "ETag": file.etag,
        "Vary": "Accept, Accept-Encoding",
    }
    if file.etag in request.headers.get("If-None-Match", ""):
        return Response(b"", status_code=304, headers=headers)
    content = file.content
    if file.zipped is not None and "gzip" in request.headers.get("Accept-Encoding", ""):
        content = file.zipped
        headers["Content-Encoding"] = "gzip"
    return Response(content, headers=headers, media_type=file.media_type)


def _read(folder: Path) -> Iterable[tuple[str, File]]:
    """Every file in the folder that a browser may ask for; none if the dashboard is not built."""
    for path in sorted(folder.rglob("*")):
        media_type = _TYPES.get(path.suffix)
        if media_type is None or path.name == "built.json" or not path.is_file():
            continue
        content = path.read_bytes()
        zipped = path.with_name(path.name + ".gz")
        name = "/" + path.relative_to(folder).as_posix()
        yield (
            name,
            File(
                content=content,
                zipped=zipped.read_bytes() if zipped.exists() else None,
                media_type=media_type,
                etag=f'"{hashlib.sha256(content).hexdigest()[:24]}"',
                immutable=name.startswith("/assets/"),
            ),
        )
