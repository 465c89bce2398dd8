"""What is wrong is refused on every route: in JSON, with a code and a text that names the field; the server serves on.

The routes, their parameters and the fields of their bodies are those of the table that the server is made of.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from msgspec import inspect

from hark.api.operations import WEBSOCKET
from hark.broker import Broker
from hark.http.app import App
from hark.http.keyval.paths import KeyParam, KeysParam, LimitParam
from hark.http.routing import JSON, BoolParam, ChoiceParam, IntParam, NameParam, Operation, Param, Table, TimeParam
from hark.settings import Settings
from tests.http.api import Api, Json, data, read, refusal
from tests.servers import running_server

TABLE: Table = App(cast(Broker, None), Settings()).table
NAME = re.compile(r"\{(\w+)(:path)?\}")
NONAMES = ["x" * 256, "a\0b"]
WRONG_NUMBERS = ["", "x", "1.5", "9" * 30]
RIGHT_BODIES: dict[str, Json] = {"/api/v1/consumer-groups/{group}/queues/{queue}/seek": {"toEnd": True}}
"""Where the least that the types take is not enough."""
MALFORMED = [
    b"{",
    b"not json",
    b'{"a":1,}',
    b"[1",
    b"{'a':1}",
    b"\xff\xfe",
    b'{"a":"\xff"}',
    b"\x00",
    b"NaN",
    b'{"a":' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    b"[" * 30_000,
]


class Target(NamedTuple):
    """An operation and where it is asked for."""

    method: str
    pattern: str
    operation: Operation

    def path(self, **names: str) -> str:
        """A path of it, with these names in it."""
        return NAME.sub(lambda found: names.get(found[1], "x"), self.pattern)

    def ask(self, http: httpx.Client, path: str | None = None, **sent: Any) -> httpx.Response:
        """Send a request of it, with a right body unless there is another one."""
        if self.operation.body is not None and "json" not in sent and "content" not in sent:
            sent["json"] = RIGHT_BODIES.get(self.pattern) or right(inspect.type_info(self.operation.body))
        request = http.build_request(self.method, path or self.path(), **sent)
        response = http.send(request, stream=True)
        try:
            # A stream that has begun would not end.
            assert not response.is_success or self.operation.media == JSON, f"{request.url} is not refused"
            response.read()
        finally:
            response.close()
        return response


TARGETS = [
    Target(method, pattern, operation)
    for pattern, operations in TABLE.items()
    for method, operation in operations.items()
    if method != WEBSOCKET
]
WITH_BODY = [target for target in TARGETS if target.operation.body is not None]


def walk(targets: list[Target]) -> pytest.MarkDecorator:
    """One test for each of these operations."""
    return pytest.mark.parametrize("target", targets, ids=[f"{one.method} {one.pattern}" for one in targets])


# Parameters and paths --------------------------------------------------------------------------------------


def wrong_values(param: Param) -> list[str]:
    """What a parameter can't be."""
    match param:
        case IntParam():
            return [*WRONG_NUMBERS, str(param.low - 1), str(param.high + 1)]
        case LimitParam():
            return ["", "x", "1.5", "0", "-1"]
        case BoolParam():
            return ["maybe"]
        case NameParam():
            return NONAMES
        case TimeParam():
            return ["yesterday", "-1"]
        case ChoiceParam():
            return ["chaotic"] if param.name != "conflation" else []
        case KeyParam() | KeysParam():
            return ["["]
    assert type(param) is Param, f"what is wrong with a {type(param)}?"
    return ["whenever"] if param.name in {"subscriptionFrom", "from"} else []


@walk([target for target in TARGETS if target.operation.query])
def test_a_wrong_parameter_is_refused_by_name(api: Api, target: Target) -> None:
    api.configure("x")
    for param in target.operation.query:
        # Some are looked at only where another one is not given, or where a browser asks.
        others = {"queue": "x", "keys": "x", "prefix": "x"} | ({"browse": "true"} if param.name == "from" else {})
        others.pop({"prefixes": "prefix", "namespace": "queue", "task": "queue"}.get(param.name, ""), None)
        for value in [] if f"{{{param.name}}}" in target.pattern else wrong_values(param):
            query = others | {param.name: value}
            text = refusal(target.ask(api.client, params=query), 400, "invalid_input")
            assert text.startswith((f"{param.name}: ", f"{param.name} must")), (query, text)


@walk([target for target in TARGETS if "}" in target.pattern])
def test_a_name_that_nothing_can_have_is_refused(http: httpx.Client, target: Target) -> None:
    for name, rest in NAME.findall(target.pattern):
        assert "UTF-8" in refusal(target.ask(http, target.path(**{name: "%FF"})), 400, "invalid_input")
        for value in () if rest else ("x" * 256, "a%00b"):
            text = refusal(target.ask(http, target.path(**{name: value})), 400, "invalid_input")
            assert text.startswith(f"{name}: "), (name, text)


@walk([target for target in TARGETS if target.operation.query])
def test_a_query_that_is_not_utf_8_is_refused(http: httpx.Client, target: Target) -> None:
    text = refusal(target.ask(http, f"{target.path()}?queue=%FF&batch=1"), 400, "invalid_input")
    assert text == "the query string is not valid UTF-8; percent-encode the parameters as UTF-8"


def test_what_this_server_does_not_have_is_refused_not_ignored(api: Api, queue: str) -> None:
    text = refusal(api.try_pop(queue, conflation=True), 501, "not_supported")
    assert text.startswith("conflation: ")


def test_of_a_parameter_given_twice_the_first_counts(api: Api, queue: str) -> None:
    api.kill(queue, 1)
    assert read(api.client.get(f"/api/v1/dlq?queue={queue}&queue=other"))["total"] == 1


@pytest.mark.parametrize(
    ("route", "name", "bounds"),
    [
        ("/pop", "batch", (1, 10_000)),
        ("/pop", "partitions", (1, 10_000)),
        ("/pop", "timeout", (0, 600_000)),
        ("/pop", "leaseTime", (1, 315_360_000)),
        ("/pop", "leaseSeconds", (1, 315_360_000)),
        ("/pop", "consumerPriority", (-1000, 1000)),
        ("/dlq", "limit", (1, 1000)),
        ("/dlq", "offset", (0, 2**53 - 1)),
        ("/messages", "limit", (1, 10_000)),
        ("/resources/queues", "limit", (1, 10_000)),
        ("/resources/namespaces", "limit", (1, 10_000)),
        ("/resources/tasks", "limit", (1, 10_000)),
        ("/consumers", "limit", (1, 1000)),
        ("/status/history", "seconds", (10, 3600)),
    ],
)
def test_the_bounds_of_parameters_are_those_of_the_contract(route: str, name: str, bounds: tuple[int, int]) -> None:
    [param] = [param for param in TABLE[f"/api/v1{route}"]["GET"].query if param.name == name]
    assert isinstance(param, IntParam)
    assert (param.low, param.high) == bounds


# Bodies ----------------------------------------------------------------------------------------------------


@walk(WITH_BODY)
def test_a_body_that_is_no_json_object_is_refused(http: httpx.Client, target: Target) -> None:
    for body in MALFORMED:
        assert len(refusal(target.ask(http, content=body), 400)) < 500
    if not target.operation.body_optional:
        text = refusal(target.ask(http, content=b""), 400, "invalid_input")
        assert text in {"Empty request body", "value: is required; send a JSON value, for example null"}
    if target.operation.body is not msgspec.Raw:
        for body in (b"[]", b"5", b'"x"', b"null", b"true"):
            refusal(target.ask(http, content=body), 400, "invalid_input")


def right(type: inspect.Type) -> Json:
    """The least that a type takes."""
    match type:
        case inspect.Metadata():
            return right(type.type)
        case inspect.StructType():
            tag = {} if type.tag_field is None else {type.tag_field: type.tag}
            return tag | {field.encode_name: right(field.type) for field in type.fields if field.required}
        case inspect.ListType():
            return []
        case inspect.DictType():
            return {}
        case inspect.RawType():
            return None
        case inspect.UnionType():
            return None if any(isinstance(one, inspect.NoneType) for one in type.types) else right(type.types[0])
        case inspect.StrType():
            return "x"
        case inspect.BoolType():
            return False
        case inspect.IntType():
            return 0
    raise AssertionError(f"what is right for a {type}?")


def wrong(type: inspect.Type, within: tuple[object, ...] = ()) -> Iterator[tuple[str, Json]]:
    """Values that are wrong in one place, each with this place. A struct within itself is not looked at again."""
    match type:
        case inspect.Metadata():
            yield from wrong(type.type, within)
        case inspect.StructType() if type.cls not in within:
            for field in type.fields:
                for path, value in wrong(field.type, (*within, type.cls)):
                    yield f".{field.encode_name}{path}", right(type) | {field.encode_name: value}
        case inspect.ListType():
            yield "", {}
            for path, value in wrong(type.item_type, within):
                yield f"[0]{path}", [value]
        case inspect.UnionType():
            parts = [one for one in type.types if not isinstance(one, inspect.NoneType)]
            if len(parts) == 1 or all(isinstance(one, inspect.StructType) for one in parts):
                yield from (case for one in parts for case in wrong(one, within))
            else:
                others = [({}, inspect.DictType), (True, inspect.BoolType), ("5", inspect.StrType)]
                yield from (("", other) for other, kind in others if not any(isinstance(one, kind) for one in parts))
                yield from (case for one in parts for case in wrong(one, within) if case[0])
        case inspect.StrType():
            yield "", 5
        case inspect.IntType():
            yield from (("", value) for value in ("5", 1.5, True))
        case inspect.FloatType():
            yield from (("", value) for value in ("5", True))
        case inspect.BoolType():
            yield from (("", value) for value in (1, "true"))
        case inspect.DictType():
            yield "", []


@walk([target for target in WITH_BODY if target.operation.body is not msgspec.Raw])
def test_a_field_of_the_wrong_type_is_refused_by_its_place(http: httpx.Client, target: Target) -> None:
    cases = list(wrong(inspect.type_info(target.operation.body)))
    assert cases
    for path, body in cases:
        text = refusal(target.ask(http, json=body), 400, "invalid_input")
        assert path.removeprefix(".") in text, (body, text)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A server that takes bodies of up to 1000 bytes."""
    settings = {"HARK_MAX_BODY_BYTES": "1000"}
    with (
        running_server(tmp_path_factory.mktemp("narrow"), settings=settings) as url,
        httpx.Client(base_url=url, timeout=30) as client,
    ):
        yield client


@walk([target for target in WITH_BODY if target.pattern != "/api/v1/session"])  # It has a limit of its own.
def test_a_body_over_the_limit_is_413(narrow: httpx.Client, target: Target) -> None:
    assert "1000" in refusal(target.ask(narrow, content=b"x" * 1001), 413, "body_too_large")
    chunks = (b"x" * 100 for _ in range(11))
    refusal(target.ask(narrow, content=chunks), 413, "body_too_large")
    refusal(target.ask(narrow, content=b"x" * 1000), 400)


def test_ten_megabytes_is_the_limit_by_default(api: Api, queue: str) -> None:
    head, tail = b'{"items":[{"queue":"' + queue.encode() + b'","payload":"', b'"}]}'
    room = 10 * 1024 * 1024 - len(head) - len(tail)
    refusal(api.post("/push", content=head + b"x" * (room + 1) + tail), 413, "body_too_large")
    read(api.post("/push", content=head + b"x" * room + tail), 201)
    assert len(api.pop_one(queue)["data"]) == room


# Routes ----------------------------------------------------------------------------------------------------


def test_an_unknown_route_is_404_in_json(http: httpx.Client) -> None:
    paths = ["/nothing", "/api", "/api/v1", "/api/v1/nothing", "/api/v1/push/x", "/favicon.ico", "/keyval/api"]
    paths += [f"/keyval/api/{below}" for below in ("watch/nothing", "queue", "queue/", "queue/poll/", "queue/dlq/x/y")]
    for path in paths:
        for method in ("GET", "POST", "DELETE"):
            refusal(http.request(method, path), 404, "route_not_found")


@pytest.mark.parametrize("pattern", [pattern for pattern in TABLE if "{" not in pattern or pattern.count("{") == 1])
def test_another_method_is_405_and_says_which_are_allowed(http: httpx.Client, pattern: str) -> None:
    path = NAME.sub("x", pattern)
    fitting = [one for one in TABLE if re.fullmatch(NAME.sub(lambda name: ".+" if name[2] else "[^/]+", one), path)]
    known = {method for one in fitting for method in TABLE[one]}
    if WEBSOCKET in known:
        assert "ws://" in refusal(http.get(path), 400, "invalid_input")
        return
    if any((get := TABLE[one].get("GET")) is not None and not (get.raw or get.hot) for one in fitting):
        known.add("HEAD")
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - known:
        response = http.request(method, path)
        refusal(response, 405, "method_not_allowed")
        assert set(response.headers["allow"].split(", ")) == known


# The server serves on --------------------------------------------------------------------------------------


def test_a_client_that_vanishes_in_the_middle_of_a_body_disturbs_no_one(api: Api, server_url: str, queue: str) -> None:
    address = urlsplit(server_url)
    assert address.hostname is not None
    for path in ("/api/v1/push", "/api/v1/transaction"):
        with socket.create_connection((address.hostname, address.port)) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
            connection.sendall(head.encode() + b'{"items":[')
    api.push(queue, 1)
    assert data(api.pop(queue)) == [1]


def test_many_wrong_requests_at_once_leave_the_right_ones_alone(api: Api, queue: str) -> None:
    def push(number: int) -> int:
        item = {"queue": queue, "payload": number, "partition": f"p{number}"}
        if number % 2:
            item["traceId"] = "poison"
        return api.post("/push", {"items": [item]}).status_code

    with ThreadPoolExecutor(16) as pool:
        statuses = list(pool.map(push, range(100)))
    assert statuses == [400 if number % 2 else 201 for number in range(100)]
    messages = api.pop(queue, batch=1000, partitions=1000)
    assert sorted(data(messages)) == list(range(0, 100, 2))
