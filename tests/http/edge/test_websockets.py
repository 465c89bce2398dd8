"""WebSockets: refused before they are one, and kept to what their token may."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.http.api import Json
from tests.http.edge.asking import Tokens
from tests.http.streaming import Inside, Socket, inside


@pytest.fixture(scope="module")
def server() -> Iterator[Inside]:
    """A server that knows the tokens."""
    with inside(authenticator=Tokens()) as one:
        yield one


@contextmanager
def socket(server: Inside, **headers: str) -> Iterator[Socket]:
    """A connection with these headers."""
    address = f"{server.url.replace('http', 'ws')}/api/v1/consume?credit=10"
    with connect(address, proxy=None, additional_headers=headers) as connection:
        yield Socket(connection)


def push(server: Inside, queue: str) -> Json:
    """Push a message."""
    items = {"items": [{"queue": queue, "payload": queue}]}
    answer = httpx.post(f"{server.url}/api/v1/push", json=items, headers={"Authorization": "Bearer writer"})
    assert answer.status_code == 201
    return answer.json()[0]


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "unauthorized"),
        ({"Authorization": "Bearer nobody"}, 401, "unauthorized"),
        ({"Cookie": "hark_session=nobody"}, 401, "unauthorized"),
        ({"Authorization": "Bearer writer", "Origin": "https://evil.example"}, 403, "cross_origin"),
        ({"Cookie": "hark_session=writer", "Origin": "https://evil.example"}, 403, "cross_origin"),
    ],
    ids=str,
)
def test_who_may_not_connect_is_refused_before_the_upgrade(
    server: Inside, headers: dict[str, str], status: int, code: str
) -> None:
    with pytest.raises(InvalidStatus) as refused, socket(server, **headers):
        pass
    response = refused.value.response
    assert (response.status_code, json.loads(response.body)["code"]) == (status, code)
    assert response.headers["x-request-id"]


def test_a_token_or_the_cookie_of_a_page_lets_in(server: Inside) -> None:
    by_token = {"Authorization": "Bearer writer"}
    by_cookie = {"Cookie": "hark_session=writer", "Origin": server.url}
    for queue, headers in (("by-token", by_token), ("by-cookie", by_cookie)):
        push(server, queue)
        with socket(server, **headers) as consumer:
            consumer.subscribe("s", queue)
            assert consumer.messages()[0]["data"] == queue


def test_who_only_reads_may_browse_and_nothing_else(server: Inside) -> None:
    message = push(server, "seen")
    with socket(server, Authorization="Bearer reader") as consumer:
        assert consumer.ask("subscribe", id="s", queue="seen")["code"] == "forbidden"
        item = {"transactionId": message["message_id"], "partitionId": message["partition_id"]}
        assert consumer.ask("ack", items=[item])["code"] == "forbidden"
        assert consumer.ask("nack", items=[item])["code"] == "forbidden"
        assert consumer.ask("renew", leaseIds=["x"])["code"] == "forbidden"
        consumer.send("subscribe", id="b", queue="seen", browse=True, from_="head")
        assert consumer.expect("subscribed")["id"] == "b"
        assert consumer.messages()[0]["data"] == "seen"


def test_other_queues_can_not_be_subscribed_to_nor_settled(server: Inside) -> None:
    theirs = push(server, "theirs")
    push(server, "mine")
    with socket(server, Authorization="Bearer mine-writer") as consumer:
        for wish in ({"queue": "theirs"}, {"namespace": "theirs"}, {"task": "x"}, {"queue": "theirs", "browse": True}):
            assert consumer.ask("subscribe", id="s", **wish)["code"] == "queue_not_allowed", wish
        item = {"transactionId": theirs["message_id"], "partitionId": theirs["partition_id"], "leaseId": "x"}
        unknown = {"transactionId": theirs["message_id"], "partitionId": "nowhere", "leaseId": "x"}
        answers = [consumer.ask("ack", items=[one])["results"] for one in (item, unknown)]
        assert answers[0] == answers[1]
        assert not answers[0][0]["success"]
        consumer.subscribe("m", "mine")
        assert consumer.messages()[0]["data"] == "mine"
