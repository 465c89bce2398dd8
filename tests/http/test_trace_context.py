"""W3C trace context over HTTP: from items and headers into messages, and out with them by every way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import SimpleQueue

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from hark.errors import InvalidSetting
from hark.serving.tracing import start_tracing
from hark.settings import Otel, Settings
from tests.http.api import Api, Json, read
from tests.http.streaming import Socket, listening
from tests.servers import server_process

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-1bf7651916cd43dd8448eb211c80319c-c7ad6b7169203331-00"
TRACE_ID, SPAN_ID = PARENT.split("-")[1:3]


def carried(message: Json) -> tuple[str | None, str | None]:
    """What a delivered message has of a trace."""
    return message.get("traceparent"), message.get("tracestate")


def test_an_item_carries_its_context_to_its_consumer_and_without_one_says_nothing(api: Api, queue: str) -> None:
    api.push(queue, 1)
    api.push(queue, 2, traceparent=None, tracestate=None)
    api.push(queue, 3, traceparent=PARENT, tracestate="vendor=1")
    *without, last = api.pop(queue, batch=3)
    assert carried(last) == (PARENT, "vendor=1")
    for message in without:
        assert not {"traceparent", "tracestate"} & message.keys()


def test_the_headers_of_a_push_count_for_items_that_have_none_and_are_ignored_if_malformed(
    http: httpx.Client, api: Api, queue: str
) -> None:
    items = [{"queue": queue, "payload": 1}, {"queue": queue, "payload": 2, "traceparent": OTHER}]
    for parent, state, expected in (
        (PARENT, "vendor=1", (PARENT, "vendor=1")),
        (PARENT, "x" * 513, (PARENT, None)),
        ("00-nonsense", "vendor=1", (None, None)),
        ("ff" + PARENT[2:], "", (None, None)),
        (PARENT.replace(TRACE_ID, "0" * 32), "", (None, None)),
    ):
        headers = {"traceparent": parent, "tracestate": state}
        read(http.post("/api/v1/push", json={"items": items}, headers=headers), 201)
        first, second = api.pop(queue, batch=2, autoAck=True)
        assert (carried(first), carried(second)) == (expected, (OTHER, None))


def test_transactions_and_work_queues_carry_it(http: httpx.Client, api: Api, queue: str) -> None:
    headers = {"traceparent": PARENT}
    items = [{"queue": queue, "payload": 1, "traceparent": OTHER}, {"queue": queue, "payload": 2}]
    body: Json = {"operations": [{"type": "push", "items": items}]}
    read(http.post("/api/v1/transaction", json=body, headers=headers))
    assert [carried(message)[0] for message in api.pop(queue, batch=2, consumerGroup="g")] == [OTHER, PARENT]
    queue_params = {"queue": f"{queue}-work"}
    body = {"value": 1, "options": {"traceparent": OTHER}}
    read(http.post("/keyval/api/queue/enqueue", params=queue_params, json=body, headers=headers))
    read(http.post("/keyval/api/queue/enqueue", params=queue_params, json={"value": 2}, headers=headers))
    write = {"mutations": [{"type": "enqueue", "value": 3}]}
    read(http.post("/keyval/api/atomic", params=queue_params, json=write, headers=headers))
    found = [read(http.get("/keyval/api/queue/poll", params=queue_params))["message"] for _ in range(3)]
    assert [(one["value"], one["traceparent"]) for one in found] == [(1, OTHER), (2, PARENT), (3, PARENT)]


def test_streams_deliver_it(api: Api, server_url: str, socket: Socket, queue: str) -> None:
    api.push(queue, 1, traceparent=PARENT)
    with listening(server_url, f"/queue/{queue}", consumerGroup="a") as events:
        assert carried(events.message()) == (PARENT, None)
    socket.send("credit", n=1)
    socket.subscribe("s", queue, consumerGroup="b")
    [message] = socket.messages()
    assert carried(message) == (PARENT, None)


# A server with spans -------------------------------------------------------------------------------------------


@contextmanager
def collector() -> Iterator[tuple[str, SimpleQueue[ExportTraceServiceRequest]]]:
    """Somebody who takes spans: the address, and what came."""
    came: SimpleQueue[ExportTraceServiceRequest] = SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            came.put(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", came
        finally:
            server.shutdown()
            thread.join()


def test_a_server_sends_the_spans_of_requests_where_the_variables_say(tmp_path: Path, queue: str) -> None:
    with collector() as (address, came):
        settings = {
            "HARK_OTEL_ENABLED": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": address,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        }
        with server_process(tmp_path, settings=settings) as url:
            body = {"items": [{"queue": queue, "payload": 1}]}
            read(httpx.post(f"{url}/api/v1/push", json=body, headers={"traceparent": PARENT}), 201)
        spans = []  # All of them have come: the server sent the last ones before it ended.
        while not came.empty():
            for resource in came.get().resource_spans:
                names = {one.key: one.value.string_value for one in resource.resource.attributes}
                assert names["service.name"] == "hark"
                spans += [span for scope in resource.scope_spans for span in scope.spans]
    [push] = [span for span in spans if span.name == "POST /api/v1/push"]
    assert (push.trace_id.hex(), push.parent_span_id.hex()) == (TRACE_ID, SPAN_ID)
    [store] = [span for span in spans if span.name == "store push"]
    assert store.parent_span_id == push.span_id
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in store.links] == [(TRACE_ID, SPAN_ID)]


def test_spans_without_opentelemetry_are_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_tracing(Settings()) is None
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(InvalidSetting, match=r"pip install 'hark-mq\[otel\]'"):
        start_tracing(Settings(otel=Otel(enabled=True)))
