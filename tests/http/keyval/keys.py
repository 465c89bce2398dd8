"""A thin hand on the keys of the key-value API, for tests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx

from tests.http.api import Json, read, texts
from tests.http.streaming import WAIT_SECONDS, Events

BASE = "/keyval/api"


class Keys:
    """The keys of one server below a part that no other test uses."""

    def __init__(self, client: httpx.Client, root: str) -> None:
        self.client = client
        self.root = root

    def key(self, *parts: Json) -> Json:
        """A key of this test, as JSON."""
        return [self.root, *parts]

    def url(self, *parts: str) -> str:
        """The path of such a key; each part is one segment."""
        return "/".join((f"{BASE}/keys", self.root, *(quote(part, safe="") for part in parts)))

    def put(self, *parts: str, value: Json, **query: Any) -> str:
        """Set a key by its path; its versionstamp."""
        answer = read(self.client.put(self.url(*parts), content=json.dumps(value), params=texts(query)))
        assert answer["ok"] is True
        return str(answer["versionstamp"])

    def put_exactly(self, *parts: Json, value: Json = None, **fields: Any) -> str:
        """Set a key whose parts have just these types."""
        answer = self.atomic({"type": "set", "key": self.key(*parts), "value": value} | fields)
        return str(answer["versionstamp"])

    def get(self, *parts: str, **query: Any) -> Json:
        """The entry of a key; None: there is none."""
        response = self.client.get(self.url(*parts), params=texts(query))
        if response.status_code == 404:
            assert response.json() == {"error": "Key not found", "code": "key_not_found"}
            return None
        return read(response)

    def value(self, *parts: str) -> Json:
        """The value of a key, which must be there."""
        entry = self.get(*parts)
        assert entry is not None
        return entry["value"]

    def delete(self, *parts: str, body: Json = None, **query: Any) -> int:
        """Delete; how many entries that were."""
        content = b"" if body is None else json.dumps(body).encode()
        response = self.client.request("DELETE", self.url(*parts), content=content, params=texts(query))
        return int(read(response)["deletedCount"])

    def atomic(self, *mutations: Json, checks: list[Json] | None = None, **query: Any) -> Json:
        """Commit."""
        return read(self.try_atomic({"checks": checks, "mutations": list(mutations)}, **query))

    def try_atomic(self, body: Json, **query: Any) -> httpx.Response:
        """Commit, and answer whatever came."""
        return self.client.post(f"{BASE}/atomic", json=body, params=texts(query))

    def list(self, prefix: str = "", **query: Any) -> Json:
        """The entries below a prefix of this test."""
        return read(self.client.get(f"{BASE}/keys", params=texts({"prefix": f"{self.root}/{prefix}"} | query)))

    def listed(self, prefix: str = "", **query: Any) -> Json:
        """The keys below a prefix of this test, without its own part."""
        return [entry["key"][1:] for entry in self.list(prefix, **query)]

    def poll(self, path: str = "/watch/poll", **query: Any) -> Json:
        """Ask what changed."""
        return read(self.client.get(f"{BASE}{path}", params=texts(query)))


class Watch(Events):
    """A stream of changes."""

    def changes(self) -> list[Json]:
        """The entries of the next change."""
        while (frame := self.frame()).startswith((b"event: ping\n", b"retry: ")):
            pass
        assert frame.startswith(b"event: change\ndata: "), frame
        changes: list[Json] = json.loads(frame.removeprefix(b"event: change\ndata: "))
        return changes

    def change(self) -> tuple[Json, Json]:
        """The key and the value of the next change, which must be of one key."""
        [entry] = self.changes()
        assert set(entry) - {"expiresAt"} == {"key", "value", "versionstamp"}
        assert entry["versionstamp"] is not None or entry["value"] is None
        return entry["key"], ... if entry["versionstamp"] is None else entry["value"]


@contextmanager
def watching(url: str, path: str = "/watch", **query: Any) -> Iterator[Watch]:
    """A watch that has begun."""
    with (
        httpx.Client(base_url=url, timeout=WAIT_SECONDS, trust_env=False) as client,
        client.stream("GET", f"{BASE}{path}", params=texts(query)) as response,
    ):
        assert response.status_code == 200, response.read()
        watch = Watch(response)
        assert watch.frame().startswith(b"retry: ")
        yield watch
