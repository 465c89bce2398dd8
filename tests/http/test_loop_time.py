"""No request of at most 10 MiB holds the event loop for long, whatever it contains.

Times are measured only with HARK_TEST_LOOP_TIME set, on a quiet machine. Otherwise these tests check that each shape is
refused, or accepted, as its limits say.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import httpx
import pytest

from hark.http.checks import MAX_WITH_PAYLOADS, separators
from tests.http.streaming import WAIT_SECONDS, Inside, inside, websocket

MIB = 2**20
MOST = 10 * MIB - 1000
LONGEST = 0.1 if "HARK_TEST_LOOP_TIME" in os.environ else math.inf
"""How long a request may hold the event loop, in seconds of processor time."""


class Shape(NamedTuple):
    """A body that repeats one part as often as it has room."""

    path: str
    start: bytes
    part: bytes
    end: bytes
    status: int
    method: str = "POST"
    values: bool = False

    @property
    def body(self) -> bytes:
        """The whole body. Where it is accepted, it has as many values as a body can have, and then text."""
        room = MOST - len(self.start) - len(self.end)
        number = room // len(self.part)
        if self.values and (values := separators(self.part)):
            number = min(number, MAX_WITH_PAYLOADS // values - 1000)
        start = self.start + self.part * number
        return start + b" " * (MOST - len(start) - len(self.end)) + self.end


PUSH, ATOMIC = "/api/v1/push", "/keyval/api/atomic"
ITEM = b'{"items":[{"queue":"q","payload":'
DEEP = b"[" * 260 + b"]" * 260 + b","
OPERATIONS = b'{"operations":[{"type":"push","queue":"q","payload":['
FLOWS, SCHEDULE, ACKS = "/api/v1/flows", "/api/v1/schedules/s", "/api/v1/ack/batch"
STEP = b'{"queue":"q","payload":{"task":"t"}}'
ACK = b'{"transactionId":"t","partitionId":"p","task":{"transactionId":"t","state":"done","resultTtl":9}}'
ACK_STEP = ACK[:-2] + b',"flow":{"queue":"q","id":"f","path":"0"}}}'
SHAPES = {
    "options": Shape("/api/v1/configure", b'{"queue":"q","options":{"a":1', b',"%d":1', b"}}", 413),
    "escaped quotes and brackets": Shape(PUSH, ITEM + b'"', b'\\"[', b'"}]}', 201, values=True),
    "escaped backslashes and quotes": Shape(PUSH, ITEM + b'["', b'\\\\","[\\"', b'"]}]}', 201, values=True),
    "strings with brackets": Shape(PUSH, ITEM + b"[", b'["["],', b"0]}]}", 201, values=True),
    "empty strings": Shape(PUSH, ITEM + b"[" * 200 + b"[", b'"",', b"0]" + b"]" * 200 + b"}]}", 201, values=True),
    "numbers": Shape(PUSH, ITEM + b"[", b"1,", b"1]}]}", 201, values=True),
    "objects": Shape(PUSH, ITEM + b"[", b'{"":1},', b"1]}]}", 201, values=True),
    "arrays": Shape(PUSH, ITEM + b"[", b"[],", b"1]}]}", 400),
    "deep": Shape(PUSH, ITEM + b"[", DEEP, b"1]}]}", 400, values=True),
    "not quite as deep": Shape(PUSH, ITEM + b"[", DEEP[70:-71] + b",", b"1]}]}", 201, values=True),
    "deep at the end": Shape(PUSH, ITEM + b"[", b"[1,2,3],", b"[" * 300 + b"]" * 300 + b"]}]}", 400, values=True),
    "items": Shape(PUSH, b'{"items":[{"queue":"q"}', b',{"queue":"q"}', b"]}", 400),
    "empty items": Shape(PUSH, b'{"items":[{}', b",{}", b"]}", 400),
    "the same key": Shape(PUSH, b'{"items":[{"queue":"q"', b',"queue":"q"', b"}]}", 400),
    "unknown keys": Shape(PUSH, b'{"items":[{"queue":"q"', b',"":1', b"}]}", 400),
    "backoff": Shape(PUSH, b'{"items":[{"queue":"q","backoffSchedule":[1', b",1", b"]}]}", 400),
    "keys of a message": Shape(PUSH, b'{"items":[{"queue":"q","keysIfUndelivered":[[]', b",[]", b"]}]}", 400),
    "a long number": Shape(PUSH, b'{"items":[{"queue":"q","delay":1.', b"1", b"}]}", 400),
    "a long name": Shape(PUSH, b'{"items":[{"queue":"', "ü".encode(), b'"}]}', 400),
    "many values, then an error": Shape(PUSH, ITEM + b"[", b"1,", b'1]},{"queue":1}]}', 400, values=True),
    "acknowledgements": Shape("/api/v1/ack/batch", b'{"acknowledgments":[{}', b",{}", b"]}", 400),
    "settlements before a pop": Shape("/api/v1/next?queue=q", b'{"acknowledgments":[{}', b",{}", b"]}", 400),
    "an acknowledgement": Shape("/api/v1/ack", b'{"error":"', b"x", b'"}', 413),
    "leases": Shape("/api/v1/lease/extend", b'{"leaseIds":[""', b',""', b"]}", 413),
    "keys": Shape("/keyval/api/keys/batch", b'{"keys":[[]', b",[]", b"]}", 400),
    "deep keys": Shape("/keyval/api/keys/batch", b'{"keys":[', DEEP, b"1]}", 400),
    "checks": Shape(ATOMIC, b'{"mutations":[],"checks":[{}', b",{}", b"]}", 400),
    "mutations": Shape(ATOMIC, b'{"mutations":[{"type":""}', b',{"type":""}', b"]}", 400),
    "a value of a key": Shape(
        ATOMIC, b'{"mutations":[{"type":"set","key":["k"],"value":[', b"1,", b"1]}]}", 200, values=True
    ),
    "a put value": Shape("/keyval/api/keys/k", b"[", b"1,", b"1]", 200, "PUT", values=True),
    "operations": Shape("/api/v1/transaction", b'{"operations":[{"type":"ack"}', b',{"type":"ack"}', b"]}", 400),
    "items of operations": Shape(
        "/api/v1/transaction",
        b'{"operations":[{"type":"push","items":[]}',
        b',{"type":"push","items":[{"queue":"q"},{"queue":"q"},{"queue":"q"}]}',
        b"]}",
        400,
    ),
    "a payload of a transaction": Shape("/api/v1/transaction", OPERATIONS, b"1,", b"1]}]}", 200, values=True),
    "keys of a transaction": Shape(
        "/api/v1/transaction", b'{"operations":[],"kv":{"mutations":[],"checks":[{}', b",{}", b"]}}", 400
    ),
    "an enqueued value": Shape("/keyval/api/queue/enqueue", b'{"value":[', b"1,", b"1]}", 200, values=True),
    "names of a trace": Shape("/api/v1/traces", b'{"data":1,"traceNames":[""', b',""', b"]}", 400),
    "dead letters": Shape("/api/v1/dlq/requeue", b'{"ids":[""', b',""', b"]}", 413),
    "escapes": Shape(PUSH, ITEM + b"[" * 200 + b'["' + b"[" * 300, b"\\\\", b'"]' + b"]" * 200 + b"}]}", 201),
    "an escaped name": Shape(PUSH, b'{"items":[{"queue":"', b"\\n", b'"}]}', 400),
    "digits": Shape(PUSH, b'{"items":[{"queue":"q","delay":', b"1", b"}]}", 400),
    "long integers": Shape(PUSH, b'{"items":[{"queue":"q"', b',"delay":' + b"1" * 4000, b"}]}", 400),
    "long integers in a key": Shape("/keyval/api/keys/batch", b'{"keys":[[1', b"," + b"1" * 4000, b"]]}", 400),
    "digits of a payload": Shape(PUSH, ITEM, b"1", b"}]}", 201),
    "exponents of a payload": Shape(PUSH, ITEM + b"[", b"1.797e300,", b"1]}]}", 201),
    "exponents in a key": Shape("/keyval/api/keys/batch", b'{"keys":[[1', b",1.797e300" + b" " * 50, b"]]}", 400),
    "exponents of an option": Shape(
        "/keyval/api/queue/enqueue", b'{"value":1,"options":{"delay":1', b',"delay":1.797e300' + b" " * 50, b"}}", 400
    ),
    "exponents of a schedule": Shape(
        "/keyval/api/queue/enqueue",
        b'{"value":1,"options":{"backoffSchedule":[1',
        b",1.797e300" + b" " * 50,
        b"]}}",
        400,
    ),
    "a long time": Shape(PUSH, b'{"items":[{"queue":"q","deliverAt":"', b"11T", b'"}]}', 400),
    "items with keys": Shape(
        PUSH,
        b'{"items":[{"queue":"q"}',
        b',{"queue":"q","keysIfUndelivered":[%b]}' % b",".join([b'["a",1.797e300]'] * 3) + b" " * 1000,
        b"]}",
        201,
    ),
    "mutations with long keys": Shape(
        ATOMIC,
        b'{"mutations":[{"type":"delete","key":[1]}',
        b',{"type":"delete","key":[1%b]}' % (b',"a"' * 15) + b" " * 5000,
        b"]}",
        200,
    ),
    "checks of long keys": Shape(
        ATOMIC,
        b'{"mutations":[],"checks":[{"key":[1],"versionstamp":null}',
        b',{"key":[1%b],"versionstamp":null}' % (b',"a"' * 15) + b" " * 5000,
        b"]}",
        200,
    ),
    "unique keys": Shape(PUSH, b'{"items":[{"queue":"q"}', b',{"queue":"q","uniqueKey":"a"}' + b" " * 1020, b"]}", 201),
    "a long unique key": Shape(PUSH, b'{"items":[{"queue":"q","uniqueKey":"', "ü".encode(), b'"}]}', 400),
    "steps of a flow": Shape(FLOWS, b'{"steps":[' + STEP, b"," + STEP + b" " * 1020, b"]}", 201),
    "too many steps of a flow": Shape(FLOWS, b'{"steps":[' + STEP, b"," + STEP + b" " * 180, b"]}", 400),
    "empty steps": Shape(FLOWS, b'{"steps":[' + STEP, b",{}" + b" " * 110, b"]}", 400),
    "members": Shape(FLOWS, b'{"steps":[{"group":[[' + STEP + b"]", b",[" + STEP + b"]" + b" " * 1020, b"]}]}", 201),
    "too many members": Shape(
        FLOWS, b'{"steps":[{"group":[[' + STEP + b"]", b",[" + STEP + b"]" + b" " * 250, b"]}]}", 400
    ),
    "deep members": Shape(
        FLOWS, b'{"steps":[' + b'{"group":[[' * 80 + STEP, b"," + STEP + b" " * 180, b"]]}" * 80 + b"]}", 400
    ),
    "deep groups": Shape(
        FLOWS, b'{"steps":[' + STEP, b"," + b'{"group":[[' * 80 + STEP + b"]]}" * 80 + b" " * 14_000, b"]}", 400
    ),
    "fewer deep groups": Shape(
        FLOWS, b'{"steps":[' + STEP, b"," + b'{"group":[[' * 80 + STEP + b"]]}" * 80 + b" " * 85_000, b"]}", 201
    ),
    "fields of a step": Shape(
        FLOWS, b'{"steps":[{"queue":"q","payload":{"task":"t"', b',"a":1' + b" " * 60, b"}}]}", 201
    ),
    "unknown fields of a step": Shape(FLOWS, b'{"steps":[{"queue":"q"', b',"a":1' + b" " * 60, b"}]}", 400),
    "backoffs of steps": Shape(
        FLOWS,
        b'{"steps":[' + STEP,
        b"," + STEP[:-1] + b',"backoffSchedule":[%b]}' % b",".join([b"1"] * 100) + b" " * 6000,
        b"]}",
        201,
    ),
    "a payload of a step": Shape(
        FLOWS, b'{"steps":[{"queue":"q","payload":{"task":"t","a":[', b"1," + b" " * 60, b"1]}}]}", 201
    ),
    "a text in a step": Shape(FLOWS, b'{"steps":[{"queue":"q","payload":{"task":"t","a":"', b"\\n", b'"}}]}', 201),
    "a payload of a schedule": Shape(
        SCHEDULE, b'{"queue":"q","every":60,"payload":[', b"1,", b"1]}", 201, "PUT", values=True
    ),
    "cron": Shape(SCHEDULE, b'{"queue":"q","cron":"0 0 * * 1', b",1", b'"}', 400, "PUT"),
    "every": Shape(SCHEDULE, b'{"queue":"q","every":"', b"1s", b'"}', 400, "PUT"),
    "every as a number": Shape(SCHEDULE, b'{"queue":"q","every":1', b"1", b"}", 400, "PUT"),
    "a time zone": Shape(SCHEDULE, b'{"queue":"q","cron":"* * * * *","timezone":"', b"a/", b'"}', 400, "PUT"),
    "a note": Shape("/api/v1/messages/p/t/progress", b'{"leaseId":"l","note":"', b"\\n", b'"}', 413),
    "results": Shape(ACKS, b'{"acknowledgments":[' + ACK, b"," + ACK + b" " * 960, b"]}", 200),
    "too many results": Shape(ACKS, b'{"acknowledgments":[' + ACK, b"," + ACK, b"]}", 400),
    "results before a pop": Shape(
        "/api/v1/next?queue=empty", b'{"acknowledgments":[' + ACK, b"," + ACK + b" " * 960, b"]}", 200
    ),
    "a result": Shape(ACKS, b'{"acknowledgments":[' + ACK[:-2] + b',"result":[', b"1,", b"1]}}]}", 200, values=True),
    "a result before a pop": Shape(
        "/api/v1/next?queue=empty",
        b'{"acknowledgments":[' + ACK[:-2] + b',"result":[',
        b"1,",
        b"1]}}]}",
        400,
        values=True,
    ),
    "unknown fields of a result": Shape(ACKS, b'{"acknowledgments":[' + ACK[:-2], b',"a":1' + b" " * 60, b"}}]}", 200),
    "flow refs": Shape(ACKS, b'{"acknowledgments":[' + ACK_STEP, b"," + ACK_STEP + b" " * 920, b"]}", 200),
    "not JSON": Shape(PUSH, b"", b"{", b"", 400),
    "no item": Shape("/keyval/api/queue/ack", b'{"id":"', b"\\u0000", b'"}', 413),
}


@pytest.fixture(scope="module")
def server() -> Iterator[Inside]:
    """A server whose event loop can be asked for its processor time."""
    with inside() as server:
        with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False) as client:
            client.post(PUSH, content=b'{"items":[{"queue":"q","payload":[' + b"1," * 300_000 + b"1]}]}")  # Warms up.
        yield server


@contextmanager
def watched(server: Inside) -> Iterator[list[float]]:
    """Note the longest turn of the event loop, in seconds of processor time (other processes do not count)."""
    holds = [0.0]
    watching = True
    before = 0.0

    async def watch() -> None:
        nonlocal before
        before = time.thread_time()
        asyncio.get_running_loop().call_soon(turn)

    def turn() -> None:
        nonlocal before
        now = time.thread_time()
        holds[0] = max(holds[0], now - before)
        before = now
        if watching:  # At intervals: a loop that never rests keeps the threads of the store from running.
            asyncio.get_running_loop().call_later(0.001, turn)

    server.call(watch)
    try:
        yield holds
    finally:
        watching = False
        server.look(time.thread_time)  # After the last turn.


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_no_request_holds_the_event_loop(server: Inside, shape: Shape) -> None:
    with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False) as client, watched(server) as holds:
        assert client.request(shape.method, shape.path, content=shape.body).status_code == shape.status
    assert max(holds) < LONGEST


def large(*steps: bytes) -> bytes:
    """A flow with the id `large`."""
    return b'{"id":"large","steps":[%b]}' % b",".join(steps)


LARGE_STEP = b'{"queue":"Q","payload":{"task":"%b"}}' % (b"x" * 950)
LARGE_FLOWS = {
    "a chain": large(*[LARGE_STEP] * 10_000),
    "members": large(LARGE_STEP, LARGE_STEP, b'{"group":[%b]}' % b",".join([b"[%b]" % LARGE_STEP] * 9997)),
    "deep groups": large(*[b'{"group":[[' * 80 + b'{"queue":"Q","payload":{"task":"t"}}' + b"]]}" * 80] * 120),
}


@pytest.mark.parametrize("kind", LARGE_FLOWS)
def test_no_request_for_a_large_flow_holds_the_event_loop(server: Inside, kind: str) -> None:
    queue = kind.replace(" ", "-")
    path = f"/api/v1/flows/{queue}/large"
    with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False) as client:
        client.post(FLOWS, content=LARGE_FLOWS[kind].replace(b'"Q"', b'"%b"' % queue.encode())).raise_for_status()
        [message] = client.get(f"/api/v1/pop/queue/{queue}").json()["messages"]
        task = {"transactionId": message["transactionId"], "flow": message["data"]["flow"]}
        ack = {"transactionId": message["id"], "leaseId": message["leaseId"], "task": task}
        with watched(server) as holds:
            assert client.post("/api/v1/ack", json=ack).json()[0]["success"]
            assert "done" in {step["state"] for step in client.get(path).json()["steps"]}
            assert client.post(f"{path}/cancel").json() == {"success": True}
    assert max(holds) < LONGEST


def test_a_missing_schedule_is_not_compared_with_long_names(server: Inside) -> None:
    with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False) as client:
        for number in range(40):
            client.put(f"/api/v1/schedules/{f'{number:06}' * 33}", json={"queue": "q", "every": 3600})
        with watched(server) as holds:
            assert client.get(f"/api/v1/schedules/{'000012' * 32}").status_code == 404
    assert max(holds) < LONGEST


FRAMES = {
    "acknowledgements": ('{"type":"ack","items":[{}', ",{}", "]}"),
    "fewer acknowledgements": ('{"type":"ack","items":[{}', ",{}" + " " * 100, "]}"),
    "leases": ('{"type":"renew","leaseIds":[""', ',""' + " " * 100, "]}"),
    "a long id": ('{"type":"subscribe","id":"', "x", '"}'),
    "an escaped id": ('{"type":"subscribe","id":"', "\\u00e4", '"}'),
    "a long ref": ('{"type":"ping","ref":"', "x", '"}'),
    "an unknown field": ('{"type":"jump","x":[1', ",1", "]}"),
}


@pytest.mark.parametrize(("start", "part", "end"), FRAMES.values(), ids=FRAMES)
def test_no_frame_holds_the_event_loop(server: Inside, start: str, part: str, end: str) -> None:
    text = start + part * ((MOST - len(start) - len(end)) // len(part)) + end
    with websocket(server.url) as client, watched(server) as holds:
        client.send_text(text)
        answer = client.receive()
        assert len(str(answer)) < 10_000
    assert max(holds) < LONGEST


def test_a_body_is_as_large_as_its_operation_needs(server: Inside) -> None:
    with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False) as client:
        refused = client.post("/api/v1/configure", content=b" " * (MIB + 1))
        assert (refused.status_code, refused.json()["code"]) == (413, "body_too_large")
        assert refused.json()["error"] == f"the request body is over {MIB} bytes, the limit of this operation"
        accepted = client.post("/api/v1/configure", content=b'{"queue":"q"' + b" " * (MIB - 20) + b"}")
        assert accepted.status_code == 200


def test_many_unknown_options_are_refused_and_few_are_logged(server: Inside, caplog: pytest.LogCaptureFixture) -> None:
    with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False) as client:
        options = {f"wrong-{number}": 1 for number in range(1001)}
        refused = client.post("/api/v1/configure", json={"queue": "q", "options": options})
        assert (refused.status_code, refused.json()["error"]) == (400, "options: at most 1000, got 1001")
        del options["wrong-0"]
        answer = client.post("/api/v1/configure", json={"queue": "q", "options": options})
    assert len(answer.json()["ignoredOptions"]) == 1000
    assert len(caplog.text) < 1000


@pytest.mark.parametrize("number", [1000, 1001])
def test_a_query_has_a_limited_number_of_parameters(server: Inside, number: int) -> None:
    with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False) as client:
        answer = client.get(f"/api/v1/resources/queues?{'&'.join(['a=b'] * number)}")
    assert answer.status_code == (200 if number <= 1000 else 400)


@pytest.mark.parametrize("text", ["a/b", "[1,2]"], ids=["paths", "parts"])
def test_many_keys_in_a_query_are_refused(server: Inside, text: str) -> None:
    keys = ",".join([text] * 1001) if text == "a/b" else f"[{','.join([text] * 1001)}]"
    with httpx.Client(base_url=server.url, timeout=WAIT_SECONDS, trust_env=False) as client:
        answer = client.get("/keyval/api/watch", params={"keys": keys})
    assert (answer.status_code, answer.json()["error"]) == (400, "Too many keys: 1001 (max 1000).")
