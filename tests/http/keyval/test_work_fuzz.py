"""Whatever is sent to a work queue, the answer is JSON with a status that says whose fault it is, never a 500."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import httpx
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http.keyval.work import BASE

FIELDS = [
    "value",
    "options",
    "delay",
    "deliverAt",
    "backoffSchedule",
    "keysIfUndelivered",
    "priority",
    "ttl",
    "id",
    "receipt",
    "error",
    "lockDuration",
]
WORDS = ["", "x", "\0", "é" * 200, "2026-01-02T00:00:00Z", "00000000-0010-8000-8000-000040000001", "true", "5", "-1"]
POSTS = ["/enqueue", "/ack", "/nack", "/cancel", "/dlq/x/requeue"]
GETS = ["/poll", "/stats", "/settings", "/dlq", "/dlq/x"]
PARAMETERS = ["queue", "limit", "offset", "wait", "prefetch"]

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(WORDS)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from(FIELDS), values, max_size=6)


def check(answer: httpx.Response) -> None:
    """The answer is one that the contract knows."""
    assert answer.status_code in {200, 400, 404, 409}, answer.content
    if answer.status_code >= 400:
        assert set(json.loads(answer.content)) == {"error", "code"}


@settings(max_examples=300, deadline=None)
@given(path=st.sampled_from(POSTS), body=objects | values)
def test_any_json_body(http: httpx.Client, path: str, body: Any) -> None:
    check(http.post(f"{BASE}{path}", content=json.dumps(body).encode()))


@settings(max_examples=100, deadline=None)
@given(body=objects | values)
def test_any_settings(http: httpx.Client, body: Any) -> None:
    check(http.put(f"{BASE}/settings", content=json.dumps(body).encode()))


@settings(max_examples=100, deadline=None)
@given(path=st.sampled_from(POSTS), body=st.binary(max_size=40))
def test_any_bytes_as_a_body(http: httpx.Client, path: str, body: bytes) -> None:
    check(http.post(f"{BASE}{path}", content=body))


@settings(max_examples=200, deadline=None)
@given(path=st.sampled_from(GETS), query=st.dictionaries(st.sampled_from(PARAMETERS), st.sampled_from(WORDS)))
def test_any_parameters(http: httpx.Client, path: str, query: dict[str, str]) -> None:
    check(http.get(f"{BASE}{path}", params=query | {"timeout": "1"}))


@settings(max_examples=100, deadline=None)
# Clients take these two for directions, and send another path.
@given(id=st.text(min_size=1, max_size=20).filter(lambda id: id not in (".", "..")))
def test_any_id_in_a_path(http: httpx.Client, id: str) -> None:
    path = f"{BASE}/dlq/{quote(id, safe='', errors='surrogatepass')}"
    for answer in (http.get(path), http.delete(path), http.post(f"{path}/requeue")):
        check(answer)
