"""All commands, as the app itself says, and for those that ask a server: arguments that do, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from hark.api.types.delivery import Delivered
from hark.api.types.server import LiveSample
from hark.cli import app
from hark.model import QUEUE_MODE
from tests.whole import whole

QUEUED = {"index": 0, "status": "queued", "message_id": "m1", "partition_id": "p1", "transaction_id": "t1"}
STEP = {"path": "0", "task": "resize", "queue": "images", "state": "running", "messageId": "m1", "partitionId": "p1"}
MESSAGE = {
    "id": "m1",
    "transactionId": "t1",
    "partitionId": "p1",
    "partition": "Default",
    "queue": "orders",
    "leaseId": "L1",
    "createdAt": "2026-01-02T03:04:05.678901Z",
    "deliveryAttempt": 2,
    "offset": 9,
    "data": {"n": 1},
}
ENTRY = {"key": ["users", 17], "value": {"n": 1}, "versionstamp": "00000000000000000009"}
QUEUE = {
    "id": "q1",
    "name": "orders",
    "queue": "orders",
    "namespace": "shop",
    "task": "",
    "options": {"leaseTime": 60, "maxInFlight": 5, "rateLimit": 0.0, "rateBurst": 0},
}
EXPLAINED = {
    "messageId": "m1",
    "queue": "orders",
    "partition": "p1",
    "partitionId": "p",
    "offset": 2,
    "transactionId": "t1",
    "createdAt": "2026-01-02T03:04:05.678901Z",
    "explanations": [
        {"consumerGroup": QUEUE_MODE, "reason": "done", "text": "Done: the default group settled it."},
        {"consumerGroup": "billing", "reason": "behind", "text": "Behind message m0.", "aheadMessages": 1},
    ],
}
LIMITS = {"success": True, "limits": {"maxInFlight": 0, "rateLimit": 0.5, "rateBurst": 7}}
SCHEDULE = {
    "name": "nightly",
    "queue": "reports",
    "partition": "Default",
    "cron": "0 2 * * *",
    "timezone": "Europe/Berlin",
    "overlap": "skip",
    "catchUp": "latest",
    "state": "failing",
    "nextRunAt": "2026-01-02T01:00:00.000Z",
    "runs": 3,
    "skipped": 1,
    "payload": {"n": 1},
    "lastRuns": [],
    "lastSkip": {
        "at": "2026-01-01T01:00:00Z",
        "dueAt": "2026-01-01T01:00:00Z",
        "reason": "overlap",
        "text": "m1 is pending",
    },
    "lastError": {"at": "2026-01-02T01:00:00Z", "code": "queue_full", "error": "the queue is full"},
}
PING = "event: ping\ndata: {}"


def event(name: str, data: str) -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {data}"


def events(*parts: str) -> bytes:
    """The body of an event stream."""
    return "".join(f"{part}\n\n" for part in parts).encode()


STREAMS = ("tail", "top", "kv watch")
OTHERS = ("export", "import", "doctor")
"""They ask a server too, but more than once and in ways of their own: they have their own tests."""
REMOTE_COMMANDS: dict[str, tuple[str, Any]] = {
    "push": ("orders 1", [QUEUED]),
    "pop": ("orders", {"messages": [MESSAGE]}),
    "ack": ("m1", [{"index": 0, "transactionId": "t1", "success": True, "error": None, "dlq": False}]),
    "cancel": ("m1", {"success": True, "id": "m1", "cancelled": True}),
    "tail": ("orders --limit 1", events(event("message", json.dumps(whole(MESSAGE, Delivered))))),
    "top": ("--once", events(event("sample", json.dumps(whole({}, LiveSample))))),
    "settings": ("", {"version": "1.2", "engine": "x", "settings": []}),
    "explain": ("m1", EXPLAINED),
    "leases": ("", {"leases": [], "total": 0}),
    "consumers": ("", {"consumers": [], "total": 0}),
    "audit": ("", {"records": []}),
    "queue list": ("", {"queues": []}),
    "queue show": ("orders", QUEUE),
    "queue create": ("orders", {"configured": True, "queue": "orders"}),
    "queue delete": ("orders --yes", {"deleted": True, "queue": "orders", "existed": True}),
    "queue purge": ("orders --yes", {"success": True, "purged": 3}),
    "queue pause": ("orders", {"success": True}),
    "queue resume": ("orders", {"success": True}),
    "queue limits": ("orders", QUEUE),
    "group list": ("", []),
    "group lagging": ("", []),
    "group show": ("g", {"orders": {"partitions": []}}),
    "group seek": ("g orders --to-end", {"success": True, "partitionsUpdated": 4}),
    "group delete": ("g --yes", {"success": True, "deletedPartitions": 3}),
    "group pause": ("g orders", {"success": True}),
    "group resume": ("g orders", {"success": True}),
    "group limits": ("g orders", LIMITS),
    "schedule put": ("nightly reports --every 5m", SCHEDULE),
    "schedule list": ("", {"schedules": [], "total": 0}),
    "schedule show": ("nightly", SCHEDULE),
    "schedule pause": ("nightly", SCHEDULE),
    "schedule resume": ("nightly", SCHEDULE),
    "schedule run": ("nightly", {"messageId": "m1"}),
    "schedule delete": ("nightly --yes", {"deleted": True, "name": "nightly"}),
    "dlq list": ("", {"messages": [], "total": 0}),
    "dlq requeue": ("--all --yes", {"requeued": 5, "remaining": 0, "results": []}),
    "dlq delete": ("d1", {"success": True}),
    "dlq purge": ("orders --yes", {"deleted": 2}),
    "message list": ("", {"messages": []}),
    "message show": ("p1 t1", {"id": "m1", "messageId": "m1", "partitionId": "p", "payload": {"n": 1}}),
    "message delete": ("m1", {"success": True}),
    "flow show": ("images f1", {"id": "f1", "queue": "images", "state": "running", "steps": [STEP]}),
    "flow cancel": ("images f1", {"success": True}),
    "kv get": ("a", ENTRY),
    "kv put": ("a 1", {"ok": True, "versionstamp": "00000000000000000009"}),
    "kv delete": ("a", {"deletedCount": 1}),
    "kv list": ("", [ENTRY]),
    "kv count": ("", {"count": 17}),
    "kv watch": ("a --limit 1", events(event("change", '[{"key": ["a"], "value": 1, "versionstamp": "1"}]'))),
    "trace names": ("", {"trace_names": [], "total": 0}),
    "trace show": ("p t", {"traces": []}),
    "trace by-name": ("n", {"traces": [], "total": 0}),
    "maintenance show": ("", {"maintenanceMode": True, "popMaintenanceMode": False}),
    "maintenance push": ("on", {"maintenanceMode": True}),
    "maintenance pop": ("off", {"popMaintenanceMode": False}),
}


def _walk(command: Any, *path: str) -> Iterator[tuple[str, Any]]:
    if path:
        yield " ".join(path), command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _walk(inner, *path, name)


ALL: dict[str, Any] = dict(_walk(get_command(app)))
"""Every command and every group of commands, as typer knows it."""
LEAVES = {name: command for name, command in ALL.items() if not hasattr(command, "commands")}


def options(name: str) -> set[str]:
    """The long names of the options of a command."""
    return {option for each in LEAVES[name].params for option in each.opts if option.startswith("--")} - {"--help"}


def answer_to(line: str) -> Any:
    """What the server answers to a command line."""
    words = line.split()
    return REMOTE_COMMANDS[" ".join(words[:2]) if " ".join(words[:2]) in REMOTE_COMMANDS else words[0]][1]
