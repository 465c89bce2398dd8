"""A server with very many queues and partitions."""

from __future__ import annotations

import http.client
from collections.abc import Iterator

import msgspec

from bench.servers import Server

QUEUES = 10_000
PARTITIONS = 10
"""Of each queue; each has one message."""
_ITEMS = 2000


def fill_many(server: Server, queues: int) -> None:
    """Push a message into each partition of each queue."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    items: Iterator[dict[str, object]] = (
        {"queue": f"queue-{queue:05d}", "partition": f"p{partition}", "payload": {"n": queue}}
        for queue in range(queues)
        for partition in range(PARTITIONS)
    )
    batch: list[dict[str, object]] = []
    for item in items:
        batch.append(item)
        if len(batch) == _ITEMS:
            _push(connection, batch)
            batch = []
    if batch:
        _push(connection, batch)
    connection.close()


def _push(connection: http.client.HTTPConnection, items: list[dict[str, object]]) -> None:
    connection.request("POST", "/api/v1/push", msgspec.json.encode({"items": items}))
    answer = connection.getresponse()
    answer.read()
    if answer.status != 201:
        raise RuntimeError(f"a push was answered with {answer.status} while filling the queues")
