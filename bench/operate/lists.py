"""A server with 10 large queues: what its lists take."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator

import msgspec

from bench.servers import Server

QUEUES = 10
PARTITIONS = 10_000
MESSAGES = 10
"""Of each partition of each queue."""
TIMES = 11
"""How often each list is read."""
_ITEMS = 5000
_CLAIMS = 100
_POPS = 50
_HELD = 1000
LISTS = {
    "overview": "/api/v1/resources/overview",
    "status": "/api/v1/status",
    "queues": "/api/v1/resources/queues",
    "groups": "/api/v1/consumer-groups",
    "messages": "/api/v1/messages?queue={queue}",
    "pending": "/api/v1/messages?queue={queue}&status=pending",
    "completed": "/api/v1/messages?queue={queue}&status=completed",
    "processing": "/api/v1/messages?queue={queue}&status=processing",
    "dead letters": "/api/v1/messages?queue={queue}&status=dead_letter",
    "consumers": "/api/v1/consumers",
    "leases": "/api/v1/leases",
    "dlq": "/api/v1/dlq",
}


class _Client:
    """Requests one after the other on one connection."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)

    def call(self, method: str, path: str, body: object = None) -> bytes:
        """The body of a successful answer; empty without one."""
        self._connection.request(method, path, None if body is None else msgspec.json.encode(body))
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path} was answered with {answer.status}: {text[:200]!r}")
        return text


def fill_large(server: Server) -> None:
    """Push a million messages; consume half of the partitions, lease some messages and dead-letter some."""
    client = _Client(server)
    for queue in map(_name, range(QUEUES)):
        for start in range(0, PARTITIONS * MESSAGES, _ITEMS):
            items = [
                {"queue": queue, "partition": f"p{number % PARTITIONS}", "payload": {"n": number}}
                for number in range(start, start + _ITEMS)
            ]
            client.call("POST", "/api/v1/push", {"items": items})
        pop = f"/api/v1/pop/queue/{queue}?partitions={_CLAIMS}"
        for _ in range(_POPS):
            client.call("GET", f"{pop}&batch={_CLAIMS * MESSAGES}&autoAck=true")
        client.call("GET", f"{pop}&batch={_HELD}&leaseSeconds=3600")
        failed = msgspec.json.decode(client.call("GET", f"{pop}&batch={_HELD}"))["messages"]
        fields = ("transactionId", "partitionId", "leaseId")
        letters = [{field: one[field] for field in fields} | {"status": "dlq", "error": "no"} for one in failed]
        client.call("POST", "/api/v1/ack/batch", {"acknowledgments": letters})


def time_lists(server: Server) -> Iterator[tuple[str, list[float]]]:
    """The milliseconds of each list, read on one connection after each other."""
    client = _Client(server)
    for name, path in LISTS.items():
        taken = []
        for number in range(TIMES):
            began = time.perf_counter()
            client.call("GET", path.format(queue=_name(number % QUEUES)))
            taken.append(1e3 * (time.perf_counter() - began))
        yield name, taken


def _name(number: int) -> str:
    return f"large-{number}"
