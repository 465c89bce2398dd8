"""GET /queue/listen: messages of a work queue as server-sent events."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from hark.settings import Queue, Settings
from tests.http.api import Json, read, texts
from tests.http.keyval.work import BASE, Work
from tests.http.streaming import WAIT_SECONDS, Events, inside

RETRY = b"retry: 1000\n\n"
PING = b"event: ping\ndata: \n\n"


@contextmanager
def listening(url: str, queue: str, **query: Any) -> Iterator[Events]:
    """A stream, which has been answered."""
    with (
        httpx.Client(base_url=url, timeout=WAIT_SECONDS, trust_env=False) as client,
        client.stream("GET", f"{BASE}/listen", params=texts({"queue": queue} | query)) as response,
    ):
        assert response.status_code == 200, response.read()
        events = Events(response)
        assert events.frame() == RETRY
        yield events


# Frames ----------------------------------------------------------------------------------------------------


def test_a_message_is_an_event_with_an_id_and_one_line_of_data(work: Work, server_url: str, queue: str) -> None:
    id = read(work.post("/enqueue", content=b'{"value": {"task": "send-email"}}'))["id"]
    with listening(server_url, queue) as events:
        headers = events.response.headers
        assert headers["content-type"] == "text/event-stream"
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache, no-store", "no")
        frame = events.frame()
        receipt = frame.split(b'"receipt":"')[1].split(b'"')[0]
        data = b'{"id":"%b","value":{"task": "send-email"},"attempts":1,"receipt":"%b"}' % (id.encode(), receipt)
        assert frame == b"event: message\nid: %b\ndata: %b\n\n" % (id.encode(), data)
        assert read(work.post("/ack", {"id": id, "receipt": receipt.decode()})) == {"ok": True}


def test_an_idle_listener_receives_at_once_that_it_is_connected(server_url: str, queue: str) -> None:
    with listening(server_url, queue) as events:
        assert events.frame() == PING


def test_where_a_client_left_off_does_not_matter(work: Work, server_url: str, queue: str) -> None:
    id = work.enqueue(1)
    with (
        httpx.Client(base_url=server_url, timeout=WAIT_SECONDS, headers={"Last-Event-ID": id}) as client,
        client.stream("GET", f"{BASE}/listen", params={"queue": queue}) as response,
    ):
        events = Events(response)
        assert events.frame() == RETRY
        assert events.message()["id"] == id


# Who gets what ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settle",
    [
        lambda work, message: work.ack(message, receipt=False),
        lambda work, message: work.ack(message),
        lambda work, message: work.nack(message, receipt=False, delay=3_600_000),
    ],
    ids=["ack by id", "ack with receipt", "nack by id"],
)
def test_no_more_is_unsettled_than_prefetch_says(
    work: Work, server_url: str, queue: str, settle: Callable[[Work, Json], Json]
) -> None:
    for number in range(6):
        work.enqueue(number)
    with listening(server_url, queue, prefetch=2) as events:
        leased = [events.message(), events.message()]
        # The rest is for others, so the listener did not take it.
        assert events.next()[0] == "ping"
        assert work.stats() == (4, 2, 0)
        for number in range(2, 6):
            assert settle(work, leased.pop(0)) == {"ok": True}
            leased.append(events.message())
            assert leased[-1]["value"] == number


def test_the_server_says_how_much_a_listener_gets_that_does_not(queue: str) -> None:
    settings = Settings(queue=Queue(prefetch=3))
    with inside(settings) as server, httpx.Client(base_url=server.url, timeout=30) as client:
        work = Work(client, queue)
        for number in range(5):
            work.enqueue(number)
        with listening(server.url, queue) as events:
            assert [events.message()["value"] for _ in range(3)] == [0, 1, 2]
            assert events.next()[0] == "ping"
            assert work.stats() == (2, 3, 0)
