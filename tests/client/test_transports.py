"""Ways to one server: over HTTP, in this event loop, and in a thread of this process. They behave alike."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from hark.client.calling import ConnectionFailed, Query, Request
from hark.client.client import Client
from hark.client.http import HttpTransport
from hark.client.inprocess import AsgiTransport, BesideTransport, Receive, Scope, Send
from hark.clock import SystemClock
from hark.connecting import connect, in_process
from hark.engine.sqlite import SqliteEngine
from hark.errors import HarkError, StoreUnusable
from hark.model import Renewal, RenewOutcome
from hark.worker import Worker
from tests.client.transports import Proxy, pop_of, push_of, until_waiting
from tests.worker.workers import burst, running

SECONDS = 20.0
"""What never takes that long has failed."""

HEALTH = Request("GET", "/health")
Way = HttpTransport | AsgiTransport | BesideTransport


class Watched(SqliteEngine):
    """An engine that tells what happens to it."""

    def __init__(self, path: str = ":memory:") -> None:
        super().__init__(path, clock=SystemClock())
        self.renewed = threading.Event()
        self.closed = threading.Event()
        self.thread: threading.Thread | None = None

    async def renew(self, requests: Sequence[Renewal]) -> Sequence[RenewOutcome | HarkError]:
        """See `Engine.renew`."""
        self.thread = threading.current_thread()
        self.renewed.set()
        return await super().renew(requests)

    async def close(self) -> None:
        """See `Engine.close`."""
        await super().close()
        self.closed.set()


@pytest.fixture
def engine() -> Watched:
    return Watched()


@pytest.fixture(params=["http", "in place", "beside"])
async def transport(request: pytest.FixtureRequest, url: str, engine: Watched) -> AsyncIterator[Way]:
    """A way of each kind."""
    made: dict[str, Way] = {"http": HttpTransport(url), "in place": in_process(engine)}
    transport = made.get(request.param) or BesideTransport(in_process(engine))
    yield transport
    await transport.close()


# All of them ---------------------------------------------------------------------------------------------------


async def test_a_message_goes_in_and_comes_out_and_any_status_is_an_answer(transport: Way, queue: str) -> None:
    assert (await transport.send(push_of(queue, {"id": 1}))).status == 201
    answer = await transport.send(pop_of(queue))
    assert msgspec.json.decode(answer.body)["messages"][0]["data"] == {"id": 1}
    assert (await transport.send(HEALTH)).status == 200
    assert (await transport.send(Request("GET", "/no/such/route"))).status == 404


async def test_names_and_queries_are_encoded_and_absent_ones_left_out(transport: Way, queue: str) -> None:
    assert (await transport.send(push_of(f"{queue}/ü", 1))).status == 201
    assert (await transport.send(pop_of(f"{queue}%2F%C3%BC", consumerGroup="a&b=ü"))).status == 200
    query: Query = {"queue": queue, "wait": False, "batch": 2, "consumerGroup": "a&b=ü", "partition": None}
    assert (await transport.send(Request("GET", "/api/v1/pop", query))).status == 204
    answer = await transport.send(pop_of(queue, batch="two&wait=true"))
    assert answer.status == 400
    assert "two&wait=true" in msgspec.json.decode(answer.body)["error"]


async def test_a_waiting_pop_gets_what_is_pushed_meanwhile_and_takes_nothing_if_it_is_cancelled(
    transport: Way, queue: str
) -> None:
    cancelled = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await until_waiting(transport, queue)
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await transport.send(push_of(queue, 1))
    # The server may hear of it after the push: then it gives the message back, which takes a moment and no attempt.
    assert (await transport.send(pop_of(queue, wait=True, autoAck=True))).status == 200
    waiting = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await until_waiting(transport, queue)
    await transport.send(push_of(queue, 2))
    assert (await waiting).status == 200


async def test_closing_ends_those_who_wait_and_after_it_nothing_is_sent(transport: Way, queue: str) -> None:
    waiting = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await until_waiting(transport, queue)
    await transport.close()
    with pytest.raises(ConnectionFailed):
        await waiting
    with pytest.raises(HarkError, match="create a new one") as refused:
        await transport.send(HEALTH)
    assert refused.value.code == "client_closed"
    await transport.close()


@pytest.mark.parametrize("beside", [False, True])
async def test_a_store_that_can_not_be_opened_is_the_error_of_every_request(beside: bool) -> None:
    inner = in_process(Watched("/dev/null/hark.db"))
    transport = BesideTransport(inner) if beside else inner
    for _ in range(1 if beside else 2):
        with pytest.raises(StoreUnusable):
            await transport.send(HEALTH)
    await transport.close()
    assert not any(thread.name == "hark-server" for thread in threading.enumerate())


# HTTP: whether a request may have had its effect ---------------------------------------------------------------


async def test_no_server_at_the_address_means_that_nothing_was_sent() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    transport = HttpTransport(f"http://127.0.0.1:{port}")
    with pytest.raises(ConnectionFailed, match="server is running") as failed:
        await transport.send(HEALTH)
    assert not failed.value.sent
    await transport.close()


async def test_no_answer_in_time_means_that_it_may_have_been_sent(url: str, engine: Watched, queue: str) -> None:
    async with Proxy(url) as proxy:
        proxy.fall_silent()
        for transport in (HttpTransport(proxy.url), in_process(engine)):
            with pytest.raises(ConnectionFailed, match="no response") as failed:
                await transport.send(pop_of(queue, timeout=0.05, wait=True))
            assert failed.value.sent
            await transport.close()


async def test_a_request_whose_reply_is_lost_is_sent_once_also_over_a_connection_that_was_used_before(
    url: str, queue: str
) -> None:
    async with Proxy(url) as proxy:
        transport = HttpTransport(proxy.url)
        proxy.lose_replies(1)
        with pytest.raises(ConnectionFailed, match="broke") as failed:
            await transport.send(push_of(queue, 1, 2))
        assert failed.value.sent
        assert (await transport.send(HEALTH)).status == 200
        proxy.lose_replies(1)
        with pytest.raises(ConnectionFailed):
            await transport.send(pop_of(queue, autoAck=True))
        answer = await transport.send(pop_of(queue, autoAck=True))
        assert [message["data"] for message in msgspec.json.decode(answer.body)["messages"]] == [2]
        await transport.close()


async def test_a_fork_is_another_connection_to_the_same_place(url: str, engine: Watched) -> None:
    transport = HttpTransport(url)
    fork = transport.fork()
    assert fork.url == transport.url
    assert (await fork.send(HEALTH)).status == 200
    await fork.close()
    assert (await transport.send(HEALTH)).status == 200
    await transport.close()
    assert in_process(engine).fork() is None  # type: ignore[func-returns-value]  # None is what it says.


# In this event loop --------------------------------------------------------------------------------------------


async def test_a_refusal_says_when_to_come_back(engine: Watched, queue: str) -> None:
    transport = in_process(engine)
    maintenance = Request("POST", "/api/v1/system/maintenance", None, b'{"enabled": true}')
    assert (await transport.send(maintenance)).status == 200
    refused = await transport.send(push_of(queue, 1))
    assert (refused.status, refused.retry_after) == (503, 5.0)
    await transport.close()


async def test_a_pop_that_is_cancelled_while_it_is_served_gives_its_messages_back(engine: Watched, queue: str) -> None:
    transport = in_process(engine)
    await transport.send(push_of(queue, 1))
    hasty = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await asyncio.sleep(0)  # It has been asked, and there is no answer yet.
    hasty.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hasty
    assert (await transport.send(pop_of(queue, wait=True))).status == 200
    await transport.close()


async def test_the_server_starts_once_and_closes_with_the_transport_if_it_was_used() -> None:
    events: list[str] = []

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        events.append("asked")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        await send({"type": "http.response.body", "body": b"c"})

    async def note(event: str) -> None:
        await asyncio.sleep(0)
        events.append(event)

    await AsgiTransport(app, on_open=lambda: note("open"), on_close=lambda: note("close")).close()
    assert events == []
    transport = AsgiTransport(app, on_open=lambda: note("open"), on_close=lambda: note("close"))
    answers = await asyncio.gather(*(transport.send(Request("GET", "/")) for _ in range(2)))
    assert [answer.body for answer in answers] == [b"abc", b"abc"]
    await transport.close()
    await transport.close()
    assert events == ["open", "asked", "asked", "close"]


@pytest.mark.parametrize(("fails", "text"), [(True, "oops"), (False, "did not send a response")])
async def test_an_application_that_fails_or_does_not_answer_is_an_error(fails: bool, text: str) -> None:
    async def app(_scope: Scope, _receive: Receive, _send: Send) -> None:
        if fails:
            raise ZeroDivisionError("oops")

    transport = AsgiTransport(app)
    with pytest.raises(HarkError, match=text) as failed:
        await transport.send(Request("GET", "/"))
    assert isinstance(failed.value.__cause__, ZeroDivisionError) is fails
    await transport.close()


# In a thread: what happens in the user's event loop does not matter to it --------------------------------------


async def test_the_last_to_close_closes_the_server(engine: Watched, queue: str) -> None:
    await BesideTransport(in_process(engine)).close()
    assert not engine.closed.is_set(), "what was never used has nothing to close"
    first = BesideTransport(in_process(engine))
    await first.send(push_of(queue, 1))
    second = first.fork()

    async def pop() -> int:
        answer = await second.send(pop_of(queue))
        await second.close()
        return answer.status

    third = first.fork()
    await first.close()
    await first.close()
    assert await asyncio.to_thread(asyncio.run, pop()) == 200, "another event loop has a way of its own"
    assert not engine.closed.is_set()
    assert (await third.send(pop_of(queue))).status == 204, "the server is still there"
    await third.close()
    assert engine.closed.is_set()
    assert not any(thread.name == "hark-server" for thread in threading.enumerate())
    with pytest.raises(HarkError) as caught:
        await BesideTransport(third._thread).send(HEALTH)
    assert caught.value.code == "client_closed"


async def test_closing_one_way_ends_its_own_waits_and_no_others(engine: Watched, queue: str) -> None:
    transport = BesideTransport(in_process(engine))
    waiting = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await until_waiting(transport, queue)
    leaving = transport.fork()
    mine = asyncio.create_task(leaving.send(pop_of(queue, wait=True)))
    await until_waiting(transport, queue, 2)
    await leaving.close()
    with pytest.raises(ConnectionFailed, match="the client was closed"):
        await mine
    await transport.send(push_of(queue, 1))
    assert (await waiting).status == 200
    await transport.close()


async def test_a_handler_that_blocks_its_loop_keeps_its_task(engine: Watched, queue: str) -> None:
    client = Client(BesideTransport(in_process(engine)))
    worker = Worker(client=client, queue=queue, lease=1)

    @worker.task
    async def work() -> None:
        engine.renewed.wait(SECONDS)  # Blocks the loop of the worker, on purpose, until its lease was renewed.

    await work.push()
    async with running(worker) as found:
        (ended,) = await found.ended(1)
    assert engine.renewed.is_set()
    assert engine.thread is not None
    assert engine.thread.name == "hark-server"
    assert (ended.ending, ended.error) == ("done", None)
    await client.close()


async def test_a_worker_may_run_again_and_again(engine: Watched, queue: str) -> None:
    async with connect(BesideTransport(in_process(engine))) as client:
        worker = Worker(client=client, queue=queue)

        @worker.task
        async def work() -> None: ...

        for _ in range(2):
            await work.push()
            assert (await burst(worker)).totals.done == 1
        assert not engine.closed.is_set()
    assert engine.closed.is_set()
