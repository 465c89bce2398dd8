"""A server in a thread of this process: what happens in the user's event loop does not matter to it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from hark.client.client import Client
from hark.client.transport.api import ConnectionFailed, Request
from hark.client.transport.beside import BesideTransport
from hark.clock import SystemClock
from hark.connecting import connect, in_process
from hark.engine.sqlite import SqliteEngine
from hark.errors import HarkError, StoreUnusable
from hark.model import Renewal, RenewOutcome
from hark.worker import Worker
from tests.client.transports import pop_of, push_of, until_waiting
from tests.worker.workers import burst, running

SECONDS = 20.0
"""What never takes that long has failed."""


class Watched(SqliteEngine):
    """An engine that tells what happens to it."""

    def __init__(self, path: str = ":memory:") -> None:
        super().__init__(path, clock=SystemClock())
        self.renewed = threading.Event()
        self.closed = threading.Event()
        self.thread: threading.Thread | None = None

    async def renew(self, requests: Sequence[Renewal]) -> list[RenewOutcome | HarkError]:
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


@pytest.fixture
async def transport(engine: Watched) -> AsyncIterator[BesideTransport]:
    transport = BesideTransport(in_process(engine))
    yield transport
    await transport.close()


async def test_a_message_goes_in_and_comes_out(transport: BesideTransport, queue: str) -> None:
    assert (await transport.send(push_of(queue, {"id": 1}))).status == 201
    answer = await transport.send(pop_of(queue))
    assert msgspec.json.decode(answer.body)["messages"][0]["data"] == {"id": 1}


async def test_another_event_loop_has_a_way_of_its_own(transport: BesideTransport, queue: str) -> None:
    await transport.send(push_of(queue, 1))
    other = transport.fork()

    async def pop() -> int:
        answer = await other.send(pop_of(queue))
        await other.close()
        return answer.status

    assert await asyncio.to_thread(asyncio.run, pop()) == 200
    assert (await transport.send(pop_of(queue))).status == 204, "the server is still there"


async def test_the_last_to_close_closes_the_server(engine: Watched, queue: str) -> None:
    first = BesideTransport(in_process(engine))
    await first.send(push_of(queue, 1))
    second = first.fork()
    await first.close()
    await first.close()
    assert not engine.closed.is_set()
    assert (await second.send(pop_of(queue))).status == 200
    await second.close()
    assert engine.closed.is_set()
    assert not any(thread.name == "hark-server" for thread in threading.enumerate())


async def test_what_was_never_used_has_nothing_to_close(engine: Watched) -> None:
    transport = BesideTransport(in_process(engine))
    await transport.close()
    assert not engine.closed.is_set()


@pytest.mark.parametrize("forked", [False, True], ids=["the way itself", "one that was left over"])
async def test_after_the_end_nothing_is_sent(engine: Watched, forked: bool) -> None:
    transport = BesideTransport(in_process(engine))
    await transport.open()
    await transport.close()
    with pytest.raises(HarkError) as caught:
        await (BesideTransport(transport._thread) if forked else transport).send(Request("GET", "/health"))
    assert caught.value.code == "client_closed"


async def test_who_closes_ends_his_own_waits_and_nobody_elses(transport: BesideTransport, queue: str) -> None:
    leaving = transport.fork()
    mine = asyncio.create_task(leaving.send(pop_of(queue, wait=True)))
    await until_waiting(transport, queue)
    await leaving.close()
    with pytest.raises(ConnectionFailed, match="the client was closed"):
        await mine
    waiting = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await transport.send(push_of(queue, 1))
    assert (await waiting).status == 200


async def test_a_pop_that_is_cancelled_takes_nothing(transport: BesideTransport, queue: str) -> None:
    waiting = asyncio.create_task(transport.send(pop_of(queue, wait=True)))
    await until_waiting(transport, queue)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await transport.send(push_of(queue, 1))
    # The server may hear of it after the push: then it gives the message back, which takes a moment and no attempt.
    assert (await transport.send(pop_of(queue, wait=True))).status == 200


async def test_a_store_that_can_not_be_opened_is_an_error() -> None:
    transport = BesideTransport(in_process(Watched("/dev/null/hark.db")))
    with pytest.raises(StoreUnusable):
        await transport.open()
    await transport.close()
    assert not any(thread.name == "hark-server" for thread in threading.enumerate())


async def test_a_handler_that_blocks_its_loop_keeps_its_task(
    transport: BesideTransport, engine: Watched, queue: str
) -> None:
    worker = Worker(client=Client(transport), queue=queue, lease=1)

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
