"""A thin hand on the work queues of the key-value API, for tests."""

from __future__ import annotations

from typing import Any

import httpx

from tests.http.api import Json, read, texts

BASE = "/keyval/api/queue"
WAIT: dict[str, Any] = {"wait": True, "timeout": 20_000}
"""The parameters of a poll that waits until there is something."""
POISON = [
    b'{"$now": true, "$offset": 5}',
    b'{"__proto__": {"polluted": true}, "constructor": {"prototype": 1}}',
    b'{"__type": "bigint", "value": "123456789012345678901234567890"}',
    b"123456789012345678901234567890.123456789",
    b"1e400",
    b"-0.0",
    b'{"b": 1, "a": 2, "a": 3}',
    b'"\\u0000 \\u2028 \\ud83d\\ude00"',
    '"é \U0001f600"'.encode(),
    b"[" * 253 + b"]" * 253,
    b'"\\u0000 \\ud83d\\ude00 \xc3\xa9 \\/"',
    b'{"a" :  1,\n "a":2}',
    b"null",
    b'""',
    b'"' + b"x" * (8 * 2**20) + b'"',
    b'{ "spaced" :\t[ 1 , 2 ] }',
]
"""Values that must come back byte for byte."""


class Work:
    """One queue of one server; without a name, the one that requests mean that name none."""

    def __init__(self, client: httpx.Client, queue: str | None = None) -> None:
        self.client = client
        self._queue = {} if queue is None else {"queue": queue}

    def get(self, path: str, **query: Any) -> httpx.Response:
        """GET below /keyval/api/queue."""
        return self.client.get(f"{BASE}{path}", params=texts(self._queue | query))

    def post(self, path: str, body: Json = None, *, content: bytes | None = None, **query: Any) -> httpx.Response:
        """POST below it, with a JSON body or any bytes."""
        params = texts(self._queue | query)
        if content is not None:
            return self.client.post(f"{BASE}{path}", content=content, params=params)
        return self.client.post(f"{BASE}{path}", json=body, params=params)

    def put(self, path: str, body: Json) -> httpx.Response:
        """PUT below it."""
        return self.client.put(f"{BASE}{path}", json=body, params=texts(self._queue))

    def delete(self, path: str, **query: Any) -> httpx.Response:
        """DELETE below it."""
        return self.client.delete(f"{BASE}{path}", params=texts(self._queue | query))

    def enqueue(self, value: Json, **options: Any) -> str:
        """Enqueue with these options; the id."""
        answer = read(self.post("/enqueue", {"value": value, "options": options}))
        assert (set(answer), answer["ok"]) == ({"ok", "id"}, True)
        return str(answer["id"])

    def poll(self, **query: Any) -> Json:
        """The next message, or None."""
        answer = read(self.get("/poll", **query))
        assert set(answer) == {"message"}
        return answer["message"]

    def take(self, **query: Any) -> Json:
        """The next message, which must be there."""
        message = self.poll(**query)
        assert message is not None
        return message

    def ack(self, message: Json, *, receipt: bool = True) -> Json:
        """Say that a message is done, with or without its receipt."""
        return read(self.post("/ack", _naming(message, receipt)))

    def nack(self, message: Json, *, receipt: bool = True, **fields: Any) -> Json:
        """Say that a message failed, with or without its receipt."""
        return read(self.post("/nack", _naming(message, receipt) | fields))

    def stats(self) -> tuple[int, int, int]:
        """How many are pending, processing and dead."""
        stats = read(self.get("/stats"))
        assert set(stats) == {"pending", "processing", "dlq", "total"}
        assert stats["total"] == stats["pending"] + stats["processing"] + stats["dlq"]
        return stats["pending"], stats["processing"], stats["dlq"]

    def dead(self, **query: Any) -> list[Json]:
        """The dead letters."""
        letters: list[Json] = read(self.get("/dlq", **query))
        return letters

    def kill(self, value: Json, **options: Any) -> Json:
        """Enqueue a message and make it a dead letter; the dead letter."""
        id = self.enqueue(value, **options | {"backoffSchedule": []})
        message = self.take()
        assert message["id"] == id
        assert self.nack(message) == {"ok": True}
        return self.dead()[0]


def _naming(message: Json, receipt: bool) -> Json:
    return {"id": message["id"]} | ({"receipt": message["receipt"]} if receipt else {})
