"""The files of the dashboard: part of the package, read once and served from memory."""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.api import operations
from hark.api.options import OPTIONS
from hark.errors import NotFound
from hark.http.routes.table import Failure, Table, bind, table

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_INDEX = "index.html"


class Page(msgspec.Struct, frozen=True):
    """A file, plain and compressed. The two have different tags, as strong entity tags must."""

    type: str
    plain: bytes
    packed: bytes
    tag: str
    packed_tag: str


async def show_dashboard(request: Request) -> Response:
    """Get the dashboard. Returns the HTML page of the dashboard."""
    return _serve(request, _INDEX)


async def show_asset(request: Request) -> Response:
    """Get a file of the dashboard. Returns a style sheet, a script or an image of the dashboard."""
    return _serve(request, "/".join(request.path_params["path"]))


def _serve(request: Request, path: str) -> Response:
    page = _pages().get(path)
    if page is None:
        raise NotFound(
            f"no such route: {request.method} {request.url.path}; GET /openapi.json lists the routes",
            code="route_not_found",
        )
    packed = _takes_gzip(request.headers.get("accept-encoding", ""))
    tag = page.packed_tag if packed else page.tag
    # Web browsers revalidate cached files on each use, so that all files are of the same version.
    headers = {"etag": tag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if _knows(request.headers.get("if-none-match", ""), tag):
        return Response(status_code=304, headers=headers)
    if packed:
        headers["content-encoding"] = "gzip"
    return Response(page.packed if packed else page.plain, headers=headers | {"content-type": page.type})


def _takes_gzip(accepted: str) -> bool:
    for part in accepted.split(","):
        name, *parameters = (word.strip().lower() for word in part.split(";"))
        if name in ("gzip", "*"):
            return not any(_is_zero(parameter) for parameter in parameters)
    return False


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name == "q" and value.strip("0.") == ""


def _knows(tags: str, tag: str) -> bool:
    return any(known.strip().removeprefix("W/") in (tag, "*") for known in tags.split(","))


@cache
def _pages() -> dict[str, Page]:
    files = dict(_files(resources.files("hark") / "dashboard"))
    files["lib/queue-options.js"] = b"export const OPTIONS = %b;\n" % msgspec.json.encode(list(OPTIONS.values()))
    return {path: _page(path, content) for path, content in files.items()}


def _files(folder: Traversable, prefix: str = "") -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            found += _files(item, f"{prefix}{item.name}/")
        elif item.name.rpartition(".")[2] in _TYPES:
            found.append((prefix + item.name, item.read_bytes()))
    return found


def _page(path: str, content: bytes) -> Page:
    name = hashlib.sha256(content).hexdigest()[:32]
    # Without a modification time, all servers compress the same content to the same bytes.
    packed = gzip.compress(content, mtime=0)
    return Page(_TYPES[path.rpartition(".")[2]], content, packed, f'"{name}"', f'"{name}-gzip"')


TABLE: Table = table(
    bind(operations.SHOW_DASHBOARD, show_dashboard, answer={200: str, 304: None}, media="text/html"),
    bind(
        operations.SHOW_ASSET,
        show_asset,
        answer={200: str, 304: None},
        media="*/*",
        errors=(Failure(404, "route_not_found"),),
    ),
)
