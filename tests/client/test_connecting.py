"""`connect` finds the way to whatever it is given."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from hark.client.calling import path
from hark.client.transport.api import Transport
from hark.client.transport.failover import FailoverTransport
from hark.client.transport.http import HttpTransport
from hark.client.transport.inprocess import AsgiTransport
from hark.clock import FakeClock, SystemClock
from hark.connecting import connect
from hark.engine.sqlite import SqliteEngine
from hark.errors import InvalidInput, StoreUnusable
from hark.settings import Settings
from tests.client.transports import Script


def way(target: object, **options: object) -> Transport:
    return connect(target, **options).caller.transport  # type: ignore[arg-type]  # Some are wrong on purpose.


def test_a_url_is_one_server_over_http() -> None:
    transport = way("http://127.0.0.1:6632/")
    assert isinstance(transport, HttpTransport)
    assert transport.url == "http://127.0.0.1:6632"


@pytest.mark.parametrize(
    "target",
    ["http://a:1,http://b:2", "http://a:1, http://b:2,", ["http://a:1", "http://b:2"], ("http://a:1", "http://b:2")],
    ids=["text", "text with spaces", "list", "tuple"],
)
def test_several_urls_are_servers_that_stand_in_for_each_other(target: object) -> None:
    transport = way(target)
    assert isinstance(transport, FailoverTransport)
    assert transport.urls == ("http://a:1", "http://b:2")


@pytest.mark.parametrize(
    ("given", "url"), [("ws://a:1", "http://a:1"), ("wss://a:1", "https://a:1")], ids=["ws", "wss"]
)
def test_with_a_url_for_sockets_the_rest_goes_over_http(given: str, url: str) -> None:
    assert way(given).url == url


async def test_with_a_url_for_sockets_messages_come_over_one(url: str, queue: str) -> None:
    async with connect(url.replace("http://", "ws://")) as client:
        await client.queue(queue).push({"id": 1})
        async for message in client.queue(queue).messages():
            answer = await client.caller.call("GET", path("consumers"), query={"queue": queue})
            assert [found["kind"] for found in msgspec.json.decode(answer.body)["consumers"]] == ["stream"]
            async with message:
                assert message.data == {"id": 1}
            break


def test_without_a_target_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HARK_URL", raising=False)
    assert way(None).url == "http://127.0.0.1:6632"
    monkeypatch.setenv("HARK_URL", "http://queue.example:1,http://queue.example:2")
    assert isinstance(way(None), FailoverTransport)


def test_a_transport_is_taken_as_it_is() -> None:
    script = Script()
    assert way(script) is script


async def test_an_engine_gets_a_server_that_starts_and_closes_with_the_client(tmp_path: Path, queue: str) -> None:
    file = str(tmp_path / "hark.db")
    for expected in (201, 200):
        async with connect(SqliteEngine(file, clock=SystemClock())) as client:
            assert isinstance(client.caller.transport, AsgiTransport)
            if expected == 201:
                answer = await client.caller.call("POST", path("push"), body={"items": [{"queue": queue}]})
            else:
                answer = await client.caller.call("GET", path("pop", "queue", queue))
            assert answer.status == expected


async def test_an_engine_lives_by_the_clock_and_the_settings_that_are_given(queue: str) -> None:
    clock = FakeClock()
    engine = SqliteEngine(":memory:", clock=clock)
    async with connect(engine, clock=clock, settings=Settings(max_body_bytes=1000)) as client:
        item = {"queue": queue, "payload": 1, "delay": 60_000}
        await client.caller.call("POST", path("push"), body={"items": [item]})
        assert (await client.caller.call("GET", path("pop", "queue", queue))).status == 204
        clock.advance(61)
        assert (await client.caller.call("GET", path("pop", "queue", queue))).status == 200
        with pytest.raises(InvalidInput, match="1000 bytes"):
            await client.caller.call("POST", path("push"), body={"items": [{"queue": queue, "payload": "x" * 1000}]})


async def test_an_engine_that_can_not_be_opened_is_an_error() -> None:
    client = connect(SqliteEngine("/dev/null/hark.db", clock=SystemClock()))
    with pytest.raises(StoreUnusable):
        await client.caller.call("GET", "/health")
    await client.close()


async def test_a_client_works_without_a_with(url: str) -> None:
    client = connect(url)
    assert (await client.caller.call("GET", "/health")).status == 200
    await client.close()
