"""Whatever is sent, the answer is JSON with a status that says whose fault it is, never a 500."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http.api import Api

KEYS = [
    "queue",
    "partition",
    "payload",
    "transactionId",
    "traceId",
    "priority",
    "delay",
    "deliverAt",
    "backoffSchedule",
    "ttl",
    "keysIfUndelivered",
    "items",
    "operations",
    "type",
    "status",
    "consumerGroup",
    "leaseId",
    "error",
    "acknowledgments",
    "requiredLeases",
    "options",
    "leaseTime",
    "retryLimit",
    "retryMultiplier",
    "maxSize",
    "namespace",
    "task",
    "seconds",
    "toEnd",
    "timestamp",
    "offset",
    "subscriptionTimestamp",
    "data",
    "eventType",
    "traceNames",
    "partitionId",
    "maxInFlight",
    "rateLimit",
    "rateBurst",
    "lockDuration",
    "kv",
    "checks",
    "mutations",
    "key",
    "value",
    "versionstamp",
]
WORDS = ["", "q", "p", "t", "push", "ack", "completed", "failed", "dlq", "now", "2026-01-02T00:00:00Z", "\0", "é" * 200]
POSTS = [
    "/push",
    "/ack",
    "/ack/batch",
    "/transaction",
    "/configure",
    "/traces",
    "/lease/x/extend",
    "/consumer-groups/g/queues/q/seek",
    "/consumer-groups/g/queues/q/partitions/p/seek",
    "/consumer-groups/g/subscription",
]
GETS = ["/pop/queue/q", "/pop", "/dlq", "/resources/queues", "/resources/queues/q", "/messages", "/consumer-groups"]
PARAMETERS = [
    "batch",
    "partitions",
    "timeout",
    "consumerGroup",
    "autoAck",
    "limit",
    "offset",
    "from",
    "to",
    "status",
    "queue",
    "subscriptionFrom",
]

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(WORDS)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
bodies = st.dictionaries(st.sampled_from(KEYS), values, max_size=6) | values


def check(status: int, content: bytes) -> None:
    """The answer is one that the contract knows."""
    assert status in {200, 201, 204, 400, 404, 409, 429, 501}, content
    if status >= 400:
        assert set(json.loads(content)) == {"error", "code"}


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(POSTS), body=bodies)
def test_any_json_body(api: Api, path: str, body: Any) -> None:
    response = api.post(path, content=json.dumps(body).encode())
    check(response.status_code, response.content)


@settings(max_examples=100, deadline=None)
@given(body=bodies)
def test_any_limits(api: Api, body: Any) -> None:
    response = api.put("/consumer-groups/g/queues/q/limits", body)
    check(response.status_code, response.content)


@settings(max_examples=200, deadline=None)
@given(path=st.sampled_from(POSTS), body=st.binary(max_size=40))
def test_any_bytes_as_a_body(api: Api, path: str, body: bytes) -> None:
    response = api.post(path, content=body)
    check(response.status_code, response.content)


@settings(max_examples=200, deadline=None)
@given(
    path=st.sampled_from(GETS),
    query=st.dictionaries(st.sampled_from(PARAMETERS), st.text(max_size=20) | st.integers().map(str), max_size=4),
)
def test_any_parameters(api: Api, path: str, query: dict[str, str]) -> None:
    response = api.get(path, **{name: value.encode("utf-8", "replace").decode() for name, value in query.items()})
    check(response.status_code, response.content)


@settings(max_examples=200, deadline=None)
@given(name=st.text(min_size=1, max_size=100))
def test_any_name_in_a_path(api: Api, name: str) -> None:
    segment = quote(name.encode("utf-8", "replace"), safe="")
    for path in (f"/resources/queues/{segment}", f"/pop/queue/{segment}", f"/consumer-groups/{segment}"):
        response = api.get(path)
        check(response.status_code, response.content)
