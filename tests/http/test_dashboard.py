"""How the files of the dashboard are served. What they do is tested in a browser, in tests/dashboard."""

from __future__ import annotations

import gzip
import re
from importlib import resources

import httpx
import pytest

PACKED = {"accept-encoding": "gzip"}
PLAIN = {"accept-encoding": "identity"}
INDEX = (resources.files("hark") / "dashboard" / "index.html").read_text()


def test_files_have_their_types(http: httpx.Client) -> None:
    for path, kind in {
        "/": "text/html; charset=utf-8",
        "/assets/style.css": "text/css; charset=utf-8",
        "/assets/app.js": "text/javascript; charset=utf-8",
        "/assets/lib/dom.js": "text/javascript; charset=utf-8",
        "/assets/icon.svg": "image/svg+xml",
    }.items():
        response = http.get(path)
        assert (response.status_code, response.headers["content-type"]) == (200, kind)


def test_who_takes_gzip_gets_the_same_packed_and_with_another_tag(http: httpx.Client) -> None:
    plain, packed = (http.get("/assets/style.css", headers=headers) for headers in (PLAIN, PACKED))
    assert plain.content == packed.content
    assert packed.headers["content-encoding"] == "gzip"
    assert plain.headers["etag"] != packed.headers["etag"]
    assert {plain.headers["vary"], packed.headers["vary"]} == {"accept-encoding"}
    for accepted in ("identity", "gzip;q=0", "br", "", "gzip; q=0.0, identity"):
        assert "content-encoding" not in http.get("/assets/style.css", headers={"accept-encoding": accepted}).headers


@pytest.mark.parametrize("headers", [PACKED, PLAIN], ids=["packed", "plain"])
def test_who_has_a_file_already_does_not_get_it_again(http: httpx.Client, headers: dict[str, str]) -> None:
    first = http.get("/assets/app.js", headers=headers)
    again = http.get("/assets/app.js", headers={**headers, "if-none-match": f'"other", {first.headers["etag"]}'})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == first.headers["etag"]
    assert http.get("/assets/app.js", headers={**headers, "if-none-match": '"other"'}).status_code == 200


def test_the_page_is_the_file_and_head_is_get_without_the_body(http: httpx.Client) -> None:
    get, head = http.get("/", headers=PLAIN), http.head("/", headers=PLAIN)
    assert get.text == INDEX
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == get.headers["content-length"]


@pytest.mark.parametrize("path", ["nothing.js", "", "lib", "..%2f..%2f_version.py", "../_version.py", "index.html/"])
def test_there_are_no_other_files(http: httpx.Client, path: str) -> None:
    response = http.get(f"/assets/{path}")
    assert (response.status_code, response.json()["code"]) == (404, "route_not_found")


def test_the_page_has_no_inline_script_or_style() -> None:
    assert re.findall(r"<script(?![^>]*\bsrc=)", INDEX) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", INDEX) == []


def test_what_the_page_preloads_is_there(http: httpx.Client) -> None:
    named = re.findall(r'(?:href|src)="(assets/[^"]+)"', INDEX)
    assert len(named) > 10
    assert {http.get(f"/{path}").status_code for path in named} == {200}


def test_the_dashboard_is_small() -> None:
    """All of it, also the pages that are loaded only when somebody goes there."""
    folder = resources.files("hark") / "dashboard"
    files = [
        path.read_bytes()
        for subfolder in ("", "lib", "pages", "pages/parts")
        for path in (folder / subfolder).iterdir()
        if path.is_file()
    ]
    assert len(files) > 20
    assert sum(map(len, files)) < 210_000
    assert sum(len(gzip.compress(content)) for content in files) < 100_000
