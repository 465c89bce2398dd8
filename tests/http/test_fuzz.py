"""Whatever is sent, the answer is JSON with a status that says whose fault it is: no 500, no hang, no leak.

Requests are nearly right: paths of the table of routes, and bodies shaped as its types say, but not quite.
`scripts/fuzz` runs the same with as many examples as one likes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from hark.http.routing import EVENTS, BoolParam, ChoiceParam, IntParam, Param
from tests.http.api import Api, Json
from tests.http.test_errors import NAME, TARGETS, WITH_BODY, Target
from tests.servers import running_server

SERVER_SETTINGS = {"HARK_POP_DEFAULT_TIMEOUT_MS": "20", "HARK_POP_MAX_TIMEOUT_MS": "20"}
"""Of a server that is asked so much: nobody waits long for what does not come."""
FIXED = "HARK_TEST_FUZZ_BODIES" not in os.environ
"""Whether the same is sent each time: so a red build is about the change. `scripts/fuzz` sends what was never sent."""

WORDS = [
    "",
    "q",
    "p",
    "g",
    "push",
    "ack",
    "enqueue",
    "set",
    "sum",
    "append",
    "completed",
    "failed",
    "dlq",
    "now",
    "2026-01-02T00:00:00Z",
    "00000000000000000001",
    "0",
    "\0",
    "é" * 200,
    "x" * 300,
    "\ud800",
]
"""Texts that mean something somewhere, and texts that mean nothing anywhere."""
_NUMBERS = st.sampled_from([0, 1, -1, 255, 256, 10_000, 10_001, 2**31, 2**53, 2**63, 2**64, -(2**63), 0.5, -0.0, 1e308])
_RIGHT_PARTS = 15

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    _NUMBERS,
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(WORDS),
    st.text(max_size=20),
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def paths(draw: st.DrawFn, pattern: str) -> str:
    """A path of a pattern, with names in it."""
    return NAME.sub(lambda _: draw(st.sampled_from(["q", "g", "p", "x", "%00", "%F0%9F%98%80", "x" * 300])), pattern)


# Bodies ----------------------------------------------------------------------------------------------------


def bodies(type: Any) -> st.SearchStrategy[Json]:
    """JSON as a type says, where any part may be something else, be missing or be too much."""
    return _shaped(inspect.type_info(type))


_OBJECTS: dict[Any, st.SearchStrategy[Json]] = {}


def _shaped(type: inspect.Type) -> st.SearchStrategy[Json]:
    # Most parts are right: so most bodies are wrong in one place or two, and some in none.
    return st.one_of(*[_right(type)] * _RIGHT_PARTS, anything)


def _right(type: inspect.Type) -> st.SearchStrategy[Json]:
    match type:
        case inspect.Metadata():
            return _right(type.type)
        case inspect.StructType():
            if type.cls not in _OBJECTS:  # It can contain itself.
                _OBJECTS[type.cls] = st.deferred(lambda: _object(type))
            return _OBJECTS[type.cls]
        case inspect.ListType() | inspect.VarTupleType() | inspect.CollectionType():
            return st.lists(_shaped(type.item_type), max_size=3)
        case inspect.DictType():
            return st.dictionaries(st.sampled_from(WORDS), _shaped(type.value_type), max_size=3)
        case inspect.UnionType():
            return st.one_of([_right(one) for one in type.types])
        case inspect.StrType():
            return st.sampled_from(WORDS) | st.text(max_size=20)
        case inspect.IntType() | inspect.FloatType():
            return _NUMBERS | st.integers(0, 100)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.LiteralType():
            return st.sampled_from(sorted(type.values, key=str))
        case _:
            return anything


def _object(type: inspect.StructType) -> st.SearchStrategy[Json]:
    fields = {field.encode_name: _shaped(field.type) for field in type.fields}
    required = {field.encode_name for field in type.fields if field.required}
    tag = {} if type.tag_field is None else {type.tag_field: st.just(type.tag) | scalars}
    right = st.fixed_dictionaries(
        {name: shape for name, shape in fields.items() if name in required} | tag,
        optional={name: shape for name, shape in fields.items() if name not in required},
    )
    near = st.fixed_dictionaries({}, optional=fields | tag | {"unknown": anything})
    return right | right | near


def encoded(body: Json) -> bytes:
    """A body as bytes; what has no UTF-8 goes out as an escape."""
    return json.dumps(body).encode()


# Parameters ------------------------------------------------------------------------------------------------


@st.composite
def queries(draw: st.DrawFn, params: tuple[Param, ...]) -> dict[str, str]:
    """Some parameters of an operation, with values that they may have, or nearly."""
    query = {}
    for param in params:
        if draw(st.booleans()):
            text = draw(_values(param))
            query[param.name] = text.encode("utf-8", "replace").decode()
    return query


def _values(param: Param) -> st.SearchStrategy[str]:
    strange = st.sampled_from(WORDS) | st.text(max_size=20) | _NUMBERS.map(str)
    if isinstance(param, IntParam):
        near = st.sampled_from([param.low - 1, param.low, param.default, param.high, param.high + 1]).map(str)
    elif isinstance(param, ChoiceParam):
        near = st.sampled_from(param.choices)
    elif isinstance(param, BoolParam):
        near = st.sampled_from(["true", "false", "1", "0", ""])
    else:
        return strange
    return near | near | strange


# Requests ----------------------------------------------------------------------------------------------------

BODIES = int(os.environ.get("HARK_TEST_FUZZ_BODIES", "1000"))
SECONDS = 20.0
MARKER = "what-is-in-the-other-queue"

# But not those that answer without an end.
READING = [target for target in TARGETS if target.method == "GET" and target.operation.media != EVENTS]

NEAR_MISSES = st.one_of(
    [
        st.tuples(st.just(target), paths(target.pattern), bodies(target.operation.body).map(encoded))
        for target in WITH_BODY
    ]
)
QUERIES = st.one_of(
    [st.tuples(st.just(target), paths(target.pattern), queries(target.operation.query)) for target in READING]
)

usual = settings(deadline=None, derandomize=FIXED, suppress_health_check=[HealthCheck.too_slow])
many = settings(usual, max_examples=max(1, BODIES // 2))
few = settings(usual, max_examples=max(1, BODIES // 6))


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server that answers soon, with a message, a lease, a dead letter and a key that are nobody's business."""
    with (
        running_server(tmp_path_factory.mktemp("fuzzed"), settings=SERVER_SETTINGS) as url,
        httpx.Client(base_url=url, timeout=SECONDS) as client,
    ):
        api = Api(client)
        api.push("other", {MARKER: MARKER}, MARKER)
        api.pop_one("other", consumerGroup="another")
        api.kill("other", {MARKER: MARKER})
        client.put("/keyval/api/keys/other", json=MARKER).raise_for_status()
        yield api


def check(api: Api, target: Target, response: httpx.Response) -> None:
    """The answer is one that the contract knows, and tells nothing of what was not asked for."""
    assert response.status_code in {200, 201, 204, 304, 400, 404, 409, 413, 429, 501}, response.text
    if response.status_code >= 400:
        assert set(response.json()) == {"error", "code"}
        assert MARKER not in response.text
    elif target.operation.body is not None and not target.pattern.startswith("/keyval/api/keys"):
        assert MARKER not in response.text
    if "/maintenance" in target.pattern:  # Whatever stops everybody else must not last.
        for path in ("/system/maintenance", "/system/maintenance/pop"):
            api.post(path, {"enabled": False}).raise_for_status()


@many
@given(request=NEAR_MISSES)
def test_bodies_that_are_nearly_right(fuzzed: Api, request: tuple[Target, str, bytes]) -> None:
    target, path, body = request
    check(fuzzed, target, fuzzed.client.request(target.method, path, content=body))


@few
@given(target=st.sampled_from(WITH_BODY), body=anything)
def test_any_json_body(fuzzed: Api, target: Target, body: Any) -> None:
    check(fuzzed, target, fuzzed.client.request(target.method, target.path(), content=encoded(body)))


@few
@given(target=st.sampled_from(WITH_BODY), body=st.binary(max_size=40))
def test_any_bytes_as_a_body(fuzzed: Api, target: Target, body: bytes) -> None:
    check(fuzzed, target, fuzzed.client.request(target.method, target.path(), content=body))


@few
@given(request=NEAR_MISSES, start=st.floats(0, 1), length=st.floats(0, 1), patch=st.binary(max_size=4))
def test_bodies_that_are_torn(
    fuzzed: Api, request: tuple[Target, str, bytes], start: float, length: float, patch: bytes
) -> None:
    target, path, body = request
    cut = int(start * len(body))
    torn = body[:cut] + patch + body[cut + int(length * (len(body) - cut)) :]
    check(fuzzed, target, fuzzed.client.request(target.method, path, content=torn))


@few
@given(request=QUERIES)
def test_any_parameters(fuzzed: Api, request: tuple[Target, str, dict[str, str]]) -> None:
    target, path, query = request
    response = fuzzed.client.request(target.method, path, params=query)
    # Pages and what is exported are no JSON; everything else is.
    check(fuzzed, target, response)
    if response.content and response.headers["content-type"].startswith("application/json"):
        json.loads(response.content)


@few
@given(name=st.text(min_size=1, max_size=100).filter(lambda name: name not in {".", ".."}))  # httpx resolves those
def test_any_name_in_a_path(fuzzed: Api, name: str) -> None:
    segment = quote(name.encode("utf-8", "replace"), safe="")
    letter = f"/keyval/api/queue/dlq/{segment}"
    for method, path in (
        *(("GET", f"/api/v1/{above}/{segment}") for above in ("resources/queues", "pop/queue", "consumer-groups")),
        *(("GET", letter), ("DELETE", letter), ("POST", f"{letter}/requeue")),
    ):
        response = fuzzed.client.request(method, path)
        assert response.status_code in {200, 204, 400, 404}, response.text
