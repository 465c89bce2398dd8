"""What makes no sense to a route: it is refused by name, and nothing happens.

What is wrong on every route (no JSON, no object, a parameter of another type, another method) is in test_errors.py.
"""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

from tests.http.api import Api, Json, read, refusal
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
    ("delay", -1, "expected a number of milliseconds from 0 to"),
    ("delay", 10**15, "expected a number of milliseconds"),
    ("deliverAt", "tomorrow", "expected a time"),
    ("deliverAt", -5, "expected"),
    ("backoffSchedule", [1] * 101, "at most 100 entries, got 101"),
    ("priority", 10, "expected an integer from 0 to 9, got 10"),
    ("priority", -1, "expected an integer from 0 to 9, got -1"),
    ("ttl", 0, "expected a number of milliseconds from 1"),
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
NO_STATUS = "expected completed, failed, retry or dlq, got"
NO_TRANSACTION = "transactionId: Each acknowledgment must have a valid transactionId string"
NO_PARTITION = "partitionId: Each acknowledgment must have a valid partitionId string to ensure message uniqueness"
NO_TIME = "expected a time such as 2026-01-02T03:04:05Z, or milliseconds since 1970, got"
NO_PARENT = (
    "traceparent: expected version-traceid-spanid-flags in lower-case hexadecimal digits (W3C Trace Context), got"
)
NO_TRACE_STATE = "tracestate: expected at most 512 printable ASCII characters"
TOO_MANY = "at most 10000 in one request (setting limits.max_batch), got 10001; send smaller batches"
NO_SECONDS: list[tuple[Any, ...]] = [
    ({"leaseIds": ["LEASE"], "seconds": seconds}, f"seconds: expected an integer from 1 to 315360000, got {seconds}")
    for seconds in (0, 315_360_001)
]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
ITEM = {"queue": "QUEUE", "payload": 1}
ACK = {"transactionId": "ID", "partitionId": "PARTITION", "leaseId": "LEASE"}
PUSH = {"type": "push", "queue": "QUEUE"}
NO_ITEMS: list[tuple[Json, str]] = [
    ({"queue": ""}, "queue: must not be empty"),
    ({"queue": "x" * 256}, "queue: must be at most 255 bytes of UTF-8, got 256"),
    ({"partition": "a\0b"}, "partition: must not contain a NUL character"),
    ({"partition": None}, "partition: Partition must be a string"),
    ({"transactionId": "é" * 128}, "transactionId: must be at most 255 bytes of UTF-8, got 256"),
    ({"priority": 12}, "priority: expected an integer from 0 to 9, got 12"),
    ({"traceparent": "00-nonsense"}, f"{NO_PARENT} '00-nonsense'"),
    ({"traceparent": PARENT.upper()}, f"{NO_PARENT} '{PARENT.upper()}'"),
    ({"tracestate": "vendor=1"}, f"{NO_PARENT} ''"),
    ({"traceparent": PARENT, "tracestate": "x" * 513}, NO_TRACE_STATE),
    ({"traceparent": PARENT, "tracestate": "a\nb"}, NO_TRACE_STATE),
]
NO_OPERATIONS: list[tuple[Json, str]] = [
    ({}, "type: expected push or ack"),
    ({"type": "pull"}, "type: expected push or ack"),
    ({"type": "push"}, "queue: must not be empty"),
    ({"type": "push", "items": [ITEM, ITEM | {"queue": ""}]}, "items[1].queue: must not be empty"),
    (PUSH | {"partition": None}, "partition: Partition must be a string"),
    ({"type": "ack", "partitionId": "p"}, NO_TRANSACTION),
    ({"type": "ack", "transactionId": "t"}, NO_PARTITION),
    ({"type": "ack"} | ACK | {"status": "ok"}, f"status: {NO_STATUS} 'ok'"),
]
NO_MUTATION = "type: expected set, delete, sum, min, max, append, prepend or enqueue, got"
EMPTY_KEY = "Key cannot be empty. Provide at least one key part."
NO_KEYS: list[tuple[Any, ...]] = [
    ({"kv": 5}, "kv: expected an object or an array, got an integer"),
    ({"kv": {}}, "kv.mutations: is required"),
    ({"kv": {"mutations": [{"key": ["a"]}]}}, "kv.mutations[0].type: is required"),
    (
        {"kv": {"mutations": [{"type": "enqueue", "value": 1}]}},
        "kv.mutations[0].type: enqueue is not allowed in a transaction; use an operation of type push",
    ),
    ({"kv": {"mutations": [{"type": "jump", "key": ["a"]}]}}, f"kv.mutations[0].{NO_MUTATION} 'jump'"),
    ({"kv": {"mutations": [SET | {"key": []}]}}, f"kv.mutations[0].key: {EMPTY_KEY}"),
    (
        {"kv": {"mutations": [SET], "checks": [{"key": "a", "versionstamp": None}]}},
        "kv.checks[0].key: Key must be an array of (string | number | boolean).",
    ),
    (
        {"kv": [{"op": "put", "key": "a"}]},
        "kv: this server does not support a list of operations; send an object with checks and mutations",
        501,
        "not_supported",
    ),
    (
        {"timers": [{"op": "schedule"}]},
        "timers: this server does not support timers, and nothing was applied; push with delay or deliverAt instead",
        501,
        "not_supported",
    ),
]
NO_CHOICE = "expected either ids, or a filter with an optional limit"
NO_NAMES = (("x" * 256, "must be at most 255 bytes of UTF-8, got 256"), ("a\0b", "must not contain a NUL character"))
WRONG: dict[str, list[tuple[Any, ...]]] = {
    "POST /api/v1/push": [
        *(({"items": [ITEM, ITEM | fields]}, f"items[1].{text}") for fields, text in NO_ITEMS),
        ({"items": [ITEM] * 10_001}, f"items: {TOO_MANY}", 400, "batch_too_large"),
    ],
    "POST /api/v1/ack": [
        (ACK | {"transactionId": None}, "transactionId is required"),
        (ACK | {"transactionId": ""}, "transactionId is required"),
        ({"transactionId": "t"}, "partitionId is required to ensure message uniqueness"),
        (ACK | {"status": "done"}, f"status: {NO_STATUS} 'done'"),
        (ACK | {"consumerGroup": "x" * 256}, "consumerGroup: must be at most 255 bytes of UTF-8, got 256"),
        (
            ACK | {"status": "completed", "delay": 5},
            "delay: allowed only with status failed or retry, got status completed",
        ),
        (ACK | {"status": "dlq", "delay": 5}, "delay: allowed only with status failed or retry, got status dlq"),
        (ACK | {"status": "failed", "delay": -1}, f"delay: expected an integer from 0 to {2**53 - 1}, got -1"),
    ],
    "POST /api/v1/ack/batch": [
        *((body, "acknowledgments array is required") for body in ({}, {"acknowledgments": None})),
        ({"acknowledgments": {}}, "acknowledgments array is required"),
        ({"acknowledgments": [ACK, {"partitionId": "p"}]}, f"acknowledgments[1].{NO_TRANSACTION}"),
        ({"acknowledgments": [ACK, {"transactionId": "t"}]}, f"acknowledgments[1].{NO_PARTITION}"),
        ({"acknowledgments": [ACK, "t"]}, "acknowledgments[1]: expected an object, got a string"),
        ({"acknowledgments": [ACK, ACK | {"status": "x"}]}, f"acknowledgments[1].status: {NO_STATUS} 'x'"),
        ({"acknowledgments": [ACK] * 10_001}, f"acknowledgments: {TOO_MANY}", 400, "batch_too_large"),
    ],
    "POST /api/v1/lease/LEASE/extend": NO_SECONDS,
    "POST /api/v1/lease/extend": [
        *NO_SECONDS,
        ({}, "leaseIds: is required"),
        ({"leaseIds": ["LEASE", "a\0b"]}, "leaseIds[1]: must not contain a NUL character"),
        ({"leaseIds": ["x" * 256]}, "leaseIds[0]: must be at most 255 bytes of UTF-8, got 256"),
        ({"leaseIds": ["LEASE"] * 10_001}, f"leaseIds: {TOO_MANY}", 400),
    ],
    "POST /api/v1/transaction": [
        *((body, "operations array required") for body in ({}, {"operations": None})),
        ({"operations": {}}, "operations array required"),
        ({"operations": []}, "operations array cannot be empty"),
        ({"operations": [{"type": "push", "items": []}]}, "operations array cannot be empty"),
        *(({"operations": [PUSH, wrong]}, f"operations[1].{text}") for wrong, text in NO_OPERATIONS),
        (
            {"operations": [{"type": "push", "items": [ITEM] * 10_001}]},
            "operations: at most 10000 in one transaction (setting limits.max_batch); split the transaction",
            400,
            "batch_too_large",
        ),
        *(({"operations": [PUSH]} | rider, *error) for rider, *error in NO_KEYS),
    ],
    "POST /api/v1/dlq/requeue": [
        ({}, NO_CHOICE),
        ({"ids": [], "filter": {}}, NO_CHOICE),
        ({"ids": ["a"], "limit": 5}, NO_CHOICE),
        ({"filter": {"queeu": "x"}}, "filter: object contains unknown field `queeu`"),
        ({"filter": {"from": "yesterday"}}, f"from: {NO_TIME} 'yesterday'"),
        *(({"filter": {}, "limit": n}, f"limit: expected an integer from 1 to 1000, got {n}") for n in (0, 1001)),
        (
            {"ids": ["x"] * 1001},
            "ids: at most 1000 in one request, got 1001; send smaller batches",
            400,
            "batch_too_large",
        ),
        ({"ids": ["x" * 256]}, "ids[0]: must be at most 255 bytes of UTF-8, got 256"),
    ],
    "POST /api/v1/dlq/delete": [
        ({}, "ids: is required"),
        (
            {"ids": ["x"] * 1001},
            "ids: at most 1000 in one request, got 1001; send smaller batches",
            400,
            "batch_too_large",
        ),
        ({"filter": {}}, "body: object contains unknown field `filter`"),
    ],
    "POST /api/v1/consumer-groups/g/subscription": [
        *((body, "subscriptionTimestamp is required") for body in ({}, {"subscriptionTimestamp": None})),
        ({"subscriptionTimestamp": "x"}, f"subscriptionTimestamp: {NO_TIME} 'x'"),
    ],
    "POST /api/v1/consumer-groups/__QUEUE_MODE__/queues/QUEUE/seek": [
        *(
            (body, "expected exactly one of toEnd (true), timestamp and offset")
            for body in ({}, {"toEnd": False}, {"toEnd": True, "offset": 1}, {"timestamp": "2020-01-01", "offset": 1})
        ),
        *(({"offset": n}, f"offset: expected an integer from 1 to {2**53 - 1}, got {n}") for n in (0, -1)),
        ({"timestamp": "x"}, f"timestamp: {NO_TIME} 'x'"),
    ],
    "POST /api/v1/traces": [
        (ACK | {"transactionId": None, "data": 1}, "transactionId and partitionId are required"),
        (ACK | {"partitionId": "", "data": 1}, "transactionId and partitionId are required"),
        (ACK | {"data": None}, "data is required"),
        (ACK, "data is required"),
        (ACK | {"data": 1, "eventType": "x" * 256}, "eventType: must be at most 255 bytes of UTF-8, got 256"),
        (ACK | {"data": 1, "traceNames": 5}, "traceNames: expected a string or an array, got an integer"),
        (ACK | {"data": 1, "traceNames": ["ok", ""]}, "traceNames[1]: must not be empty"),
        (ACK | {"data": 1, "traceNames": ["x"] * 101}, "traceNames: at most 100 names, got 101"),
        (ACK | {"data": 1, "transactionId": "unknown"}, "Message not found", 404, "message_not_found"),
    ],
    "POST /api/v1/configure": [
        ({"options": {}}, "queue is required"),
        *(({"queue": nothing}, "queue is required") for nothing in (None, "")),
        *(
            ({"queue": "QUEUE"} | {field: value}, f"{field}: {text}")
            for field in ("queue", "namespace", "task")
            for value, text in NO_NAMES
        ),
    ],
    "POST /queue/enqueue": [
        ({}, "value: is required"),
        ({"options": {}}, "value: is required"),
        (b'{"value": ' + DEEP + b"}", "body: must be nested at most 256 levels deep"),
        ({"value": 1, "options": {"delay": 1, "deliverAt": 1}}, "options.deliverAt: give either"),
        *(({"value": 1, "options": {name: value}}, f"options.{name}: {text}") for name, value, text in NO_OPTIONS),
        (
            {"value": 1, "options": {"backoffSchedule": [1, -1]}},
            "options.backoffSchedule[1]: expected a number of milliseconds",
        ),
    ],
    "POST /queue/ack": NO_IDS + NO_RECEIPTS,
    "POST /queue/cancel": NO_IDS,
    "POST /queue/nack": [
        *NO_IDS,
        *NO_RECEIPTS,
        ({"id": "ID", "delay": -1}, "delay: expected a number of milliseconds"),
        ({"id": "ID", "delay": 1e15}, "delay: expected a number of milliseconds"),
    ],
    "PUT /queue/settings": [
        *((body, "lockDuration: is required") for body in ({}, {"cleanupInterval": 0}, {"lockduration": 5000})),
        *(({"lockDuration": value}, "lockDuration: expected") for value in (-1, "30s", 1.5, True, 10**15)),
    ],
    "PUT /keys/QUEUE/a": [
        (b"  ", "value: is required"),
        (b"1 2", "Invalid JSON", 400, "invalid_json"),
        (DEEP, "body: must be nested at most 256 levels deep"),
        (
            b'"' + b"x" * (10 * 1024 * 1024) + b'"',
            "the request body is over 10485760 bytes (setting max_body_bytes); send smaller batches",
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
            "/[draft]": "the key in the path: a value that begins with [ must be a valid JSON array",
            "/[null]": "the key in the path: Invalid key part at index 0",
        }.items()
    },
    "DELETE /keys/QUEUE": [
        ({"where": {"age": {"$gt": 5}}}, "where: this server does not support filters", 501),
        ({"where": {}}, "where: this server does not support filters", 501),
    ],
    "GET /keys": NO_RANGES,
    "GET /keys/paginate": [
        *NO_RANGES,
        *(
            (f"cursor={text}", "cursor: expected the value of an earlier response")
            for text in ("!", "AAAA", "é", "Ag", "====", "a" * 5000)
        ),
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
        (
            {"mutations": [SET | {"type": "sum", "expiresIn": 5}]},
            "mutations[0].expiresIn: allowed only with type set, got type sum",
        ),
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
        ({"mutations": [SET] * 10_001}, f"mutations: {TOO_MANY}", 400, "batch_too_large"),
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
        ("keys=a&versionstamps=1,2", "versionstamps: expected at most one for each of the 1 keys"),
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
        ("prefix=a&versionstamps=~x:1", "versionstamps: expected the value of an earlier response"),
    ],
}


@pytest.mark.parametrize("route", WRONG)
def test_what_makes_no_sense_is_refused_by_name_and_nothing_happens(http: httpx.Client, queue: str, route: str) -> None:
    api, keys, work = Api(http), Keys(http, queue), Work(http, queue)
    read(work.put("/settings", {"lockDuration": 1_234_567}))
    keys.put("old", value=1)
    work.kill("dead")
    work.enqueue("held")
    leased = work.take()
    work.enqueue("waiting")
    [lease] = read(api.get("/leases", queue=queue))["leases"]

    def state() -> Json:
        groups = [(one["name"], one["totalLag"]) for one in read(api.get("/consumer-groups", queue=queue))]
        listed = [read(api.get(path, queue=queue)) for path in ("/messages", "/leases", "/dlq")]
        traces = read(api.get(f"/traces/{lease['partitionId']}/{leased['id']}"))
        return groups, listed, traces, work.stats(), work.dead(), read(work.get("/settings")), keys.list()

    names = {"QUEUE": queue, "PARTITION": lease["partitionId"], "LEASE": lease["leaseId"], "ID": leased["id"]}

    def named(text: str) -> str:
        return re.sub(r"\b(QUEUE|PARTITION|LEASE|ID)\b", lambda found: str(names[found[1]]), text)

    before = state()
    method, _, path = named(route).partition(" ")
    plain = path.startswith("/api/v1/")
    url = path if plain else f"{BASE}{path}"
    params = {"queue": queue} if path.startswith(("/queue", "/atomic")) else {}
    for wrong, text, *expected in WRONG[route]:
        if isinstance(wrong, str):
            answer = http.request(method, f"{url}?{'&'.join([wrong, *('='.join(one) for one in params.items())])}")
        else:
            body = wrong if isinstance(wrong, bytes) else named(json.dumps(wrong)).encode()
            answer = http.request(method, url, content=body, params=params or None)
        error = refusal(answer, *expected or [400, "invalid_input"])
        assert error == text if plain else error.startswith(text), (str(wrong)[:100], error)
    assert state() == before
    assert work.ack(leased) == {"ok": True}
