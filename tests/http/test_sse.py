"""GET /listen: messages as server-sent events."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from hark.settings import Limits, Settings
from tests.conftest import running_server
from tests.http.api import WAIT, Api, data, read, refusal
from tests.http.streaming import deaf, inside, listening

# The stream ------------------------------------------------------------------------------------------------


def test_a_message_comes_as_an_event_with_the_shape_of_a_pop(api: Api, server_url: str, queue: str) -> None:
    with listening(server_url, f"/queue/{queue}", consumerGroup="g") as events:
        headers = events.response.headers
        assert headers["content-type"] == "text/event-stream"
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")
        [pushed] = api.push(queue, {"n": 1}, partition="p", transactionId="t")
        message = events.message()
        other = api.pop_one(queue, consumerGroup="other")
        assert set(message) == set(other)
        assert (message["id"], message["data"], message["queue"]) == (pushed["message_id"], {"n": 1}, queue)
        assert (message["consumerGroup"], message["deliveryAttempt"]) == ("g", 1)
        assert message["leaseId"]
        assert api.ack(message)["success"]


def test_what_was_there_before_comes_first(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, 1, 2)
    with listening(server_url, f"/queue/{queue}") as events:
        assert data([events.message(), events.message()]) == [1, 2]


def test_a_payload_with_line_breaks_is_one_line(api: Api, server_url: str, queue: str) -> None:
    payload = '{\r\n  "a":\n 1, "b": "x\\ny"}'
    read(api.post("/push", content=f'{{"items": [{{"queue": "{queue}", "payload": {payload}}}]}}'.encode()), 201)
    with listening(server_url, f"/queue/{queue}") as events:
        assert events.message()["data"] == {"a": 1, "b": "x\ny"}


def test_only_the_partition_that_was_named_comes(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, "other", partition="q")
    for path, query in ((f"/queue/{queue}/partition/p", {}), (f"/queue/{queue}", {"partition": "p"})):
        with listening(server_url, path, consumerGroup=path, **query) as events:
            api.push(queue, path, partition="p")
            while (message := events.message())["data"] != path:
                assert message["partition"] == "p"
                api.ack(message)


def test_a_namespace_brings_the_messages_of_all_its_queues(api: Api, server_url: str, queue: str) -> None:
    with listening(server_url, "", namespace=queue) as events:
        api.push(f"{queue}.a", 1)
        api.push(f"{queue}.b", 2)
        assert sorted(data([events.message(), events.message()])) == [1, 2]


def test_no_more_is_unsettled_than_prefetch_says(api: Api, server_url: str, queue: str) -> None:
    for partition in range(5):
        api.push(queue, partition, partition=str(partition))
    with listening(server_url, f"/queue/{queue}", prefetch=2, batch=1) as events:
        held = [events.message(), events.message()]
        # The rest is for others, so the stream did not take it.
        others = [api.pop_one(queue) for _ in range(3)]
        assert api.pop(queue) == []
        api.ack(others[0], "retry")
        api.ack(held[0])
        assert events.message()["data"] == others[0]["data"]


def test_auto_ack_settles_at_delivery(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, 1, 2, 3)
    with listening(server_url, f"/queue/{queue}", autoAck=True, prefetch=1) as events:
        messages = [events.message() for _ in range(3)]
        assert data(messages) == [1, 2, 3]
        assert {message["leaseId"] for message in messages} == {""}
    assert api.pop(queue) == []


# Refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"prefetch": 0}, "prefetch"),
        ({"prefetch": 10_001}, "prefetch"),
        ({"batch": "x"}, "batch"),
        ({"autoAck": "maybe"}, "autoAck"),
        ({"browse": "maybe"}, "browse"),
        ({"from": "head"}, "from"),
        ({"browse": True, "from": "yesterday"}, "from"),
        ({"subscriptionMode": "some"}, "subscriptionMode"),
        ({"consumerPriority": 1001}, "consumerPriority"),
        ({"groupMode": "both"}, "groupMode"),
        ({"leaseTime": 0}, "leaseTime"),
    ],
)
def test_a_bad_parameter_is_a_400_that_names_it(api: Api, queue: str, query: dict[str, object], field: str) -> None:
    assert refusal(api.get(f"/listen/queue/{queue}", **query), 400).startswith(f"{field}:")


def test_what_to_listen_to_is_required(api: Api) -> None:
    assert "queue" in refusal(api.get("/listen"), 400)
    assert "queue" in refusal(api.get("/listen", namespace="n", browse=True), 400)
    refusal(api.get("/listen/somewhere"), 404, "route_not_found")
    assert api.client.post("/api/v1/listen").status_code == 405


def test_too_many_streams_are_a_429(tmp_path: Path, queue: str) -> None:
    with (
        running_server(tmp_path, settings={"HARK_LIMITS_MAX_STREAMS": "1"}) as url,
        httpx.Client(base_url=url) as client,
        listening(url, f"/queue/{queue}"),
        listening(url, f"/queue/{queue}", browse=True),
    ):
        for query in ({}, {"browse": True}):
            answer = Api(client).get(f"/listen/queue/{queue}", **query)
            refusal(answer, 429, "too_many_streams")
            assert answer.headers["retry-after"] == "1"


# Leaving ---------------------------------------------------------------------------------------------------


def test_what_was_written_stays_with_its_lease_when_the_client_leaves(api: Api, server_url: str, queue: str) -> None:
    api.push(queue, 1)
    with listening(server_url, f"/queue/{queue}") as events:
        message = events.message()
    assert api.pop(queue) == []
    assert api.ack(message)["success"]


def test_what_comes_after_the_client_left_is_for_others(api: Api, server_url: str, queue: str) -> None:
    for _ in range(20):
        with listening(server_url, f"/queue/{queue}"):
            pass
        api.push(queue, 1)
        message = api.pop_one(queue, **WAIT)
        assert message["deliveryAttempt"] == 1
        api.ack(message)


def test_a_client_that_does_not_read_holds_a_bounded_part_and_is_cut_off(queue: str) -> None:
    settings = Settings(limits=Limits(stalled_seconds=1))
    with inside(settings) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        api = Api(client)
        payload = "x" * 100_000
        request = f"GET /api/v1/listen/queue/{queue}?prefetch=1000&batch=10 HTTP/1.1\nHost: localhost\n\n"
        with deaf(server.url, request) as lazy:
            [stream] = server.call(lambda: list(server.broker.delivery.streams))
            for partition in range(100):
                api.push(queue, *[payload] * 10, partition=str(partition))
            got = 0
            while not stream.closed:
                got += len(api.pop(queue, batch=10, wait=True, timeout=1000))
            # The socket's buffers took some; of the rest the stream had one batch, and that came back.
            assert stream.unsettled < 200
            while messages := api.pop(queue, batch=10):
                got += len(messages)
            assert got + stream.unsettled == 1000
            while lazy.recv(1 << 20):  # Its end comes after what the socket had.
                pass


def test_a_client_that_leaves_in_the_middle_of_a_write_gives_it_back(queue: str) -> None:
    with inside() as server, httpx.Client(base_url=server.url, timeout=30) as client:
        api = Api(client)
        request = f"GET /api/v1/listen/queue/{queue}?prefetch=200&batch=200 HTTP/1.1\nHost: localhost\n\n"
        for _ in range(4):
            api.push(queue, *["x" * 100_000] * 50)
        with deaf(server.url, request) as lazy:
            [stream] = server.call(lambda: list(server.broker.delivery.streams))
            begun = b""
            while b"event: message" not in begun:
                begun += lazy.recv(1024)
        messages = api.pop(queue, batch=200, **WAIT)
        assert {message["deliveryAttempt"] for message in messages} == {1}
        assert stream.closed


# Signs of life ---------------------------------------------------------------------------------------------


def test_pings_come_while_there_is_nothing_else(queue: str) -> None:
    with inside(ping_seconds=0.02) as server, listening(server.url, f"/queue/{queue}") as events:
        assert [events.next() for _ in range(3)] == [("ping", None, {})] * 3


def test_a_server_that_stops_ends_the_stream(queue: str) -> None:
    with (
        inside() as server,
        listening(server.url, f"/queue/{queue}") as events,
        listening(server.url, f"/queue/{queue}", browse=True) as browser,
    ):
        server.call(server.broker.stop_waiting)
        for stream in (events, browser):
            with pytest.raises(StopIteration):
                stream.next()


# Sharing ---------------------------------------------------------------------------------------------------


def test_ten_clients_share_fairly(api: Api, server_url: str, queue: str) -> None:
    """Everybody is idle when each of a hundred messages comes: each gets ten."""
    streams = [listening(server_url, f"/queue/{queue}", autoAck=True, batch=1) for _ in range(10)]
    events = [stream.__enter__() for stream in streams]
    try:
        api.push(queue, *range(100))
        with ThreadPoolExecutor(10) as pool:
            counts = list(pool.map(lambda each: [each.message() for _ in range(10)], events))
        assert sorted(message["data"] for taken in counts for message in taken) == list(range(100))
    finally:
        for stream in streams:
            stream.__exit__(None, None, None)
