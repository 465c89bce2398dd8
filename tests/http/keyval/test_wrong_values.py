"""What makes no sense to a route of the key-value API: it is refused by name, and nothing happens.

What is wrong on every route (no JSON, no object, a parameter of another type, another method) is in test_errors.py.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.http.api import Json, read, refusal
from tests.http.keyval.keys import BASE, Keys
from tests.http.keyval.work import Work

SET = {"type": "set", "key": ["QUEUE", "a"], "value": 1}
DEEP = b"[" * 257 + b"]" * 257
NO_IDS: list[tuple[Any, ...]] = [
    *(({"id": wrong}, "id must be a non-empty string") for wrong in ("", None, 5, ["x"], {"a": 1})),
    ({}, "id must be a non-empty string"),
]
NO_RECEIPTS: list[tuple[Any, ...]] = [
    *(({"id": "ID", "receipt": receipt}, "receipt: ") for receipt in ("", 7, "a\0b")),
    *(
        ({"id": "ID", "receipt": receipt}, "receipt: ", 409)
        for receipt in ("x", "00000000-0000-4000-8000-00000000abcd")
    ),
]
NO_RANGES: list[tuple[Any, ...]] = [
    ("limit=1e2", "limit must be a positive number"),
    ("prefix=[]", "prefix: Key cannot be empty"),
    ("start=[{}]", "start: Invalid key part at index 0"),
    (f"prefix={'x' * 1025}", "Key part too long (max 1024 chars)"),
    (f"end={'/'.join('x' * 21)}", "Key path too deep (max 20 parts)"),
]
NO_BATCHES: list[tuple[Any, ...]] = [
    ({}, "Keys must be an array of key arrays"),
    ({"keys": "a"}, "Keys must be an array of key arrays"),
    ({"keys": []}, "Keys array cannot be empty"),
    ({"keys": [["a"]] * 1001}, "Too many keys: 1001 (max 1000)"),
    ({"keys": [["a"], []]}, "Invalid key at index 1: Key cannot be empty"),
    ({"keys": [["a"], ["b", {}]]}, "Invalid key at index 1: Invalid key part at index 1"),
    ({"keys": [["a"], "b"]}, "Invalid key at index 1: Key must be an array"),
]
NO_OPTIONS: list[tuple[str, Any, str]] = [
    ("delay", -1, "expected milliseconds from 0 to"),
    ("delay", 10**15, "expected milliseconds"),
    ("deliverAt", "tomorrow", "expected a time"),
    ("deliverAt", -5, "expected"),
    ("backoffSchedule", [1] * 101, "at most 100 entries, got 101"),
    ("priority", 10, "expected an integer from 0 to 9, got 10"),
    ("priority", -1, "expected an integer from 0 to 9, got -1"),
    ("ttl", 0, "expected milliseconds from 1"),
    ("keysIfUndelivered", [], "Keys array cannot be empty."),
    ("keysIfUndelivered", "key", "Keys must be an array of key arrays"),
    ("keysIfUndelivered", ["key"], "Invalid key at index 0: Key must be an array"),
    ("keysIfUndelivered", [["a"], []], "Invalid key at index 1: Key cannot be empty."),
    ("keysIfUndelivered", [["a", None]], "Invalid key at index 0: Invalid key part"),
    ("keysIfUndelivered", [["a"] * 21], "Invalid key at index 0: Key too deep: 21 parts (max 20)."),
    ("keysIfUndelivered", [["x" * 1025]], "Invalid key at index 0: Key part at index 0 too long"),
    ("keysIfUndelivered", [["a"]] * 1001, "Too many keys: 1001"),
    ("traceparent", "no", ""),
]
WRONG: dict[str, list[tuple[Any, ...]]] = {
    "POST /queue/enqueue": [
        ({}, "value: is required"),
        ({"options": {}}, "value: is required"),
        (b'{"value": ' + DEEP + b"}", "value: nested too deeply"),
        ({"value": 1, "options": {"delay": 1, "deliverAt": 1}}, "options.deliverAt: give either"),
        *(({"value": 1, "options": {name: value}}, f"options.{name}: {text}") for name, value, text in NO_OPTIONS),
        ({"value": 1, "options": {"backoffSchedule": [1, -1]}}, "options.backoffSchedule[1]: expected milliseconds"),
    ],
    "POST /queue/ack": NO_IDS + NO_RECEIPTS,
    "POST /queue/cancel": NO_IDS,
    "POST /queue/nack": [
        *NO_IDS,
        *NO_RECEIPTS,
        ({"id": "ID", "delay": -1}, "delay: expected milliseconds"),
        ({"id": "ID", "delay": 1e15}, "delay: expected milliseconds"),
    ],
    "PUT /queue/settings": [
        *((body, "lockDuration: is required") for body in ({}, {"cleanupInterval": 0}, {"lockduration": 5000})),
        *(({"lockDuration": value}, "lockDuration: expected") for value in (-1, "30s", 1.5, True, 10**15)),
    ],
    "PUT /keys/QUEUE/a": [
        (b"  ", "value: is required"),
        (b"1 2", "Invalid JSON"),
        (DEEP, "value: nested too deeply"),
        (
            b'"' + b"x" * (10 * 1024 * 1024) + b'"',
            "the request body is over the limit of 10485760 bytes (setting max_body_bytes)",
            413,
        ),
    ],
    **{
        f"{method} /keys{path}": [(b"1" if method == "PUT" else b"", text)]
        for method in ("GET", "PUT", "DELETE")
        for path, text in {
            "/": "Key path cannot be empty",
            "//": "Key path cannot be empty",
            "/" + "/".join("x" * 21): "Key path too deep (max 20 parts)",
            "/" + "x" * 1025: "Key part too long (max 1024 chars)",
            "/" + "💥" * 513: "Key part too long (max 1024 chars)",
            "/" + "/".join(["x" * 1000] * 3): "Key too long",
            "/[draft]": "the key in the path: what begins with [ must be a JSON array",
            "/[null]": "the key in the path: Invalid key part at index 0",
        }.items()
    },
    "DELETE /keys/QUEUE": [
        ({"where": {"age": {"$gt": 5}}}, "where: this server has no filters", 501),
        ({"where": {}}, "where: this server has no filters", 501),
    ],
    "GET /keys": NO_RANGES,
    "GET /keys/paginate": [
        *NO_RANGES,
        *((f"cursor={text}", "cursor: expected a cursor") for text in ("!", "AAAA", "é", "Ag", "====", "a" * 5000)),
    ],
    "POST /keys/list": [
        ({"prefix": []}, "prefix: Key cannot be empty"),
        ({"prefix": "users"}, "prefix"),
        ({"prefix": [None]}, "prefix: Invalid key part at index 0"),
        ({"prefix": ["x" * 1025]}, "prefix: Key part at index 0 too long"),
        ({"start": list("x" * 21)}, "start: Key too deep: 21 parts (max 20)"),
        ({"limit": 0}, "limit"),
        ({"where": {"a": 1}}, "where", 501),
    ],
    "POST /keys/batch": NO_BATCHES,
    "POST /keys/delete-batch": [*NO_BATCHES, ({"keys": [["QUEUE", "old"]], "where": {"x": 1}}, "where", 501)],
    "POST /atomic": [
        ({}, "mutations: is required"),
        ({"checks": []}, "mutations: is required"),
        ({"mutations": None}, "mutations"),
        ({"mutations": {}}, "mutations"),
        ({"mutations": [{}]}, "mutations[0].type: is required"),
        ({"mutations": [SET, {"type": "swap", "key": ["a"]}]}, "mutations[1].type: expected set, delete"),
        ({"mutations": [{"type": "delete_tree", "key": ["a"]}]}, "mutations[0].type"),
        ({"mutations": [{"type": "set", "value": 1}]}, "mutations[0].key: Key must be an array"),
        ({"mutations": [{"type": "set", "key": []}]}, "mutations[0].key: Key cannot be empty"),
        ({"mutations": [{"type": "set", "key": ["a"]}]}, "mutations[0].value: is required"),
        ({"mutations": [SET | {"expiresIn": 0}]}, "mutations[0].expiresIn"),
        ({"mutations": [SET | {"expiresIn": "1s"}]}, "mutations[0].expiresIn"),
        ({"mutations": [SET | {"type": "sum", "expiresIn": 5}]}, "mutations[0].expiresIn: only with set"),
        ({"mutations": [{"type": "sum", "key": ["a"], "value": "x"}]}, "mutations[0].value: expected a number"),
        ({"mutations": [{"type": "sum", "key": ["a"], "value": []}]}, "mutations[0].value"),
        ({"mutations": [{"type": "max", "key": ["a"], "value": 2**60}]}, "mutations[0].value"),
        ({"mutations": [{"type": "append", "key": ["a"], "value": 1}]}, "mutations[0].value: append value must be an"),
        ({"mutations": [{"type": "prepend", "key": ["a"], "value": {}}]}, "mutations[0].value: prepend value must be"),
        ({"mutations": [SET], "checks": [{"key": ["a"]}]}, "checks[0].versionstamp: is required"),
        ({"mutations": [SET], "checks": [{"key": ["a"], "versionstamp": 5}]}, "checks[0].versionstamp"),
        ({"mutations": [SET], "checks": [{"key": ["a"], "versionstamp": "x"}]}, "checks[0].versionstamp"),
        ({"mutations": [SET], "checks": [{"key": ["a"], "versionstamp": "9" * 20}]}, "checks[0].versionstamp"),
        ({"mutations": [SET], "checks": [{"versionstamp": None}]}, "checks[0].key"),
        ({"mutations": [{"type": "enqueue"}]}, "mutations[0].value: is required"),
        ({"mutations": [{"type": "enqueue", "value": 1, "queue": ""}]}, "mutations[0].queue"),
        ({"mutations": [{"type": "enqueue", "value": 1, "options": {"delay": -1}}]}, "mutations[0].options.delay"),
        ({"mutations": [SET] * 10_001}, "mutations: at most 10000"),
    ],
    "GET /watch": [
        ("", "Missing 'keys' query parameter"),
        ("keys=", "Missing 'keys' query parameter"),
        ("keys=a,,b", "Invalid key at index 1: Key cannot be empty"),
        (f"keys=a/{'x' * 1025}", "Key part too long (max 1024 chars)"),
        ("keys=[[1],2]", "Invalid key at index 1"),
        (f"keys={','.join('a' * 1001)}", "Too many keys: 1001 (max 1000)"),
    ],
    "GET /watch/poll": [
        ("", "Missing 'keys' query parameter"),
        ("keys=a&versionstamps=1,2", "versionstamps: expected one for each of 1 keys"),
        ("keys=a&versionstamps=x", "versionstamps[0]: expected a versionstamp"),
    ],
    "GET /watch/prefix": [
        ("", "Missing 'prefix' query parameter"),
        ("prefix=/", "Missing 'prefix' query parameter"),
        ("prefixes=a,b", "prefixes: expected one prefix"),
        ("prefix=[]", "prefix: Key cannot be empty"),
    ],
    "GET /watch/prefix/poll": [
        ("", "Missing 'prefix' query parameter"),
        ("prefix=a&versionstamps=a/b", "versionstamps: expected"),
        ("prefix=a&versionstamps=a/b:x", "versionstamps: expected a versionstamp"),
        ("prefix=a&versionstamps=~x:1", "versionstamps: expected a cursor"),
    ],
}


@pytest.mark.parametrize("asked", WRONG)
def test_what_makes_no_sense_is_refused_by_name_and_nothing_happens(keys: Keys, work: Work, asked: str) -> None:
    read(work.put("/settings", {"lockDuration": 1_234_567}))
    keys.put("old", value=1)
    work.enqueue("held")
    held = work.take()
    work.enqueue("waiting")

    def state() -> Json:
        return work.stats(), work.dead(), read(work.get("/settings")), keys.list()

    before = state()
    method, _, path = asked.replace("QUEUE", keys.root).partition(" ")
    queue = {"queue": keys.root} if path.startswith(("/queue", "/atomic")) else {}
    for wrong, text, *status in WRONG[asked]:
        if isinstance(wrong, str):
            query = "&".join([wrong, *(f"{name}={value}" for name, value in queue.items())])
            answer = keys.client.request(method, f"{BASE}{path}?{query}")
        else:
            body = wrong if isinstance(wrong, bytes) else json.dumps(wrong).encode()
            body = body.replace(b'"QUEUE"', f'"{keys.root}"'.encode()).replace(b'"ID"', f'"{held["id"]}"'.encode())
            answer = keys.client.request(method, f"{BASE}{path}", content=body, params=queue or None)
        said = refusal(answer, *status or [400])
        assert said.startswith(text), (str(wrong)[:100], said)
        assert state() == before, wrong
    assert work.ack(held) == {"ok": True}
