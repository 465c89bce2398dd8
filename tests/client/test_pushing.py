"""Pushes share requests, keep their order, and each has its own outcome; buffered ones return at once."""

from __future__ import annotations

import asyncio
import gc

import msgspec
import pytest

import hark
from hark.client.calling import Caller, CallPolicy
from hark.client.client import Client
from hark.client.pushing import Buffer, FlushFailed, Pushed, Pusher, new_message
from hark.client.transport.api import Answer, ConnectionFailed, Request
from hark.client.transport.http import HttpTransport
from hark.clock import SystemClock
from hark.connecting import in_process
from hark.engine.sqlite import SqliteEngine
from hark.errors import HarkError, InvalidInput, Overloaded
from hark.settings import Settings
from tests.client.deliveries import taken
from tests.client.transports import Proxy, Recorder, Script, path, problem, sizes


async def stored(caller: Caller, queue: str, partition: str | None = None) -> list[object]:
    """The payloads of a queue, in order."""
    route = path("pop", "queue", queue) if partition is None else path("pop", "queue", queue, "partition", partition)
    answer = await caller.call("GET", route, query={"batch": 10_000, "partitions": 1000, "autoAck": True})
    if answer.status == 204:
        return []
    return [message["data"] for message in msgspec.json.decode(answer.body)["messages"]]


async def test_a_push_answers_where_the_message_is(recorder: Recorder, queue: str) -> None:
    pusher = Pusher(Caller(recorder))
    message = new_message(queue, {"id": 1}, key="k-1")
    first = await pusher.push(message)
    assert (first.status, first.transaction_id, first.queue) == ("queued", "k-1", queue)
    assert first.id and first.partition_id and first.id != first.partition_id
    again = await pusher.push(message)
    assert again == Pushed("duplicate", first.id, "k-1", first.partition_id, queue)


async def test_pushes_of_one_partition_arrive_in_the_order_of_the_calls(recorder: Recorder, queue: str) -> None:
    pusher = Pusher(Caller(recorder), max_items=7)
    first = asyncio.gather(*(pusher.push(new_message(queue, i)) for i in range(50)))
    await asyncio.sleep(0)
    await pusher.push_many([new_message(queue, i) for i in range(50, 100)])
    await first
    assert len(recorder.requests) > 2
    assert await stored(Caller(recorder), queue) == list(range(100))


async def test_many_messages_are_split_into_requests_and_keep_their_order(recorder: Recorder, queue: str) -> None:
    pusher = Pusher(Caller(recorder), max_items=4)
    messages = [new_message(queue, i, partition=f"p{i % 3}") for i in range(30)]
    pushed = await pusher.push_many(messages)
    assert [one.transaction_id for one in pushed] == [message.transaction_id for message in messages]
    assert max(sizes(recorder.requests)) == 4
    for partition in range(3):
        assert await stored(Caller(recorder), queue, f"p{partition}") == list(range(partition, 30, 3))
    recorder.requests.clear()
    texts = ["a" * 500, "b" * 500, "c" * 3_000_000, "d" * 500]
    await Pusher(Caller(recorder), max_bytes=2000).push_many([new_message(queue, text) for text in texts])
    assert sizes(recorder.requests) == [2, 1, 1], "a request stays below its bytes, and a larger message goes alone"
    assert await stored(Caller(recorder), queue) == texts


async def test_a_full_queue_is_an_error_only_for_those_who_push_to_it_and_not_waited_out(
    recorder: Recorder, queue: str
) -> None:
    caller = Caller(recorder)
    await caller.call("POST", path("configure"), body={"queue": queue, "options": {"maxSize": 1}})
    pusher = Pusher(caller)
    await pusher.push(new_message(queue, 1))
    recorder.requests.clear()
    outcomes = await asyncio.gather(
        pusher.push(new_message(queue, 2)), pusher.push(new_message(f"{queue}-2", 3)), return_exceptions=True
    )
    assert isinstance(outcomes[0], Overloaded)
    assert outcomes[0].code == "queue_full"
    assert isinstance(outcomes[1], Pushed)
    assert len(recorder.requests) == 1


async def test_more_than_may_wait_are_refused_at_once_unless_they_come_in_one_call(
    recorder: Recorder, queue: str
) -> None:
    pusher = Pusher(Caller(Script(ConnectionFailed("no server", sent=False)), CallPolicy(attempts=1)), max_pending=2)
    outcomes = await asyncio.gather(*(pusher.push(new_message(queue, i)) for i in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ConnectionFailed, ConnectionFailed, Overloaded]
    pusher = Pusher(Caller(recorder), max_items=10, max_pending=20)
    assert len(await pusher.push_many([new_message(queue, i) for i in range(100)])) == 100
    assert (await pusher.push_many([]), len(recorder.requests)) == ([], 10)


async def test_pushes_that_are_made_together_share_a_request_and_drain_waits_for_them(
    recorder: Recorder, queue: str
) -> None:
    pusher = Pusher(Caller(recorder))
    pushes = [asyncio.create_task(pusher.push(new_message(queue, i))) for i in range(100)]
    await asyncio.sleep(0)
    await pusher.drain()
    assert sizes(recorder.requests) == [100]
    assert await stored(Caller(recorder), queue) == list(range(100))
    assert len({one.id for one in await asyncio.gather(*pushes)}) == 100


async def test_one_wrong_message_among_many_harms_no_one_else(recorder: Recorder, queue: str) -> None:
    pusher = Pusher(Caller(recorder))
    messages = [new_message(queue, msgspec.Raw(b"{broken") if i == 37 else i) for i in range(100)]
    outcomes = await asyncio.gather(*(pusher.push(message) for message in messages), return_exceptions=True)
    refused = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, InvalidInput)]
    assert refused == [37]
    assert len(recorder.requests) < 20
    assert await stored(Caller(recorder), queue) == [i for i in range(100) if i != 37]
    messages = [new_message(queue, 1), new_message(queue, msgspec.Raw(b"]")), new_message(queue, 2)]
    with pytest.raises(InvalidInput) as caught:
        await pusher.push_many(messages)
    assert caught.value.__notes__ == ["2 of 3 messages are stored; it is safe to push all again"]
    assert await stored(Caller(recorder), queue) == [1, 2]


async def test_a_server_that_takes_less_gets_smaller_requests(queue: str) -> None:
    settings = Settings(max_body_bytes=2000)
    transport = Recorder(in_process(SqliteEngine(":memory:", clock=SystemClock()), settings))
    try:
        await Pusher(Caller(transport)).push_many([new_message(queue, "x" * 300) for _ in range(20)])
        assert len(await stored(Caller(transport), queue)) == 20
        with pytest.raises(InvalidInput) as refused:
            await Pusher(Caller(transport)).push(new_message(queue, "x" * 3000))
        assert refused.value.code == "body_too_large"
    finally:
        await transport.close()


async def test_a_lost_reply_doubles_nothing(url: str, queue: str) -> None:
    async with Proxy(url) as proxy:
        transport = HttpTransport(proxy.url)
        caller = Caller(transport, CallPolicy(first_delay=0.0))
        pusher = Pusher(caller)
        proxy.lose_replies(3)
        pushed = await asyncio.gather(*(pusher.push(new_message(queue, i)) for i in range(50)))
        assert proxy.lost_replies == 3
        assert {one.status for one in pushed} == {"duplicate"}
        assert await stored(caller, queue) == list(range(50))
        await transport.close()


async def test_the_one_that_is_cancelled_takes_no_one_along(recorder: Recorder, queue: str) -> None:
    pusher = Pusher(Caller(recorder))
    impatient = asyncio.create_task(pusher.push(new_message(queue, 1)))
    patient = asyncio.create_task(pusher.push(new_message(queue, 2)))
    await asyncio.sleep(0)
    impatient.cancel()
    assert (await patient).status == "queued"
    assert impatient.cancelled()


async def test_an_unreachable_server_is_an_error_of_its_own_for_each(queue: str) -> None:
    script = Script(ConnectionFailed("no server", sent=False))
    pusher = Pusher(Caller(script, CallPolicy(attempts=1)))
    outcomes = await asyncio.gather(*(pusher.push(new_message(queue, i)) for i in range(3)), return_exceptions=True)
    assert all(isinstance(outcome, ConnectionFailed) and outcome.text == "no server" for outcome in outcomes)
    assert len({id(outcome) for outcome in outcomes}) == 3
    assert len(script.requests) == 1


@pytest.mark.parametrize("body", [b"[]", b"{}", b"<html>"], ids=["too few", "an object", "a page"])
async def test_an_answer_that_is_not_harks_is_an_error(body: bytes, queue: str) -> None:
    pusher = Pusher(Caller(Script(Answer(201, body))))
    with pytest.raises(HarkError) as refused:
        await pusher.push(new_message(queue, 1))
    assert refused.value.code == "not_hark"


async def test_a_push_of_many_that_is_cancelled_after_failures_is_silent(queue: str) -> None:
    problems: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
    began = asyncio.Event()

    class FailsThenHangs(Script):
        async def send(self, request: Request) -> Answer:
            if self.requests:
                began.set()
                await asyncio.Event().wait()
            return await super().send(request)

    transport = FailsThenHangs(ConnectionFailed("no server", sent=False))
    pusher = Pusher(Caller(transport, CallPolicy(attempts=1)), max_items=1)
    pushing = asyncio.create_task(pusher.push_many([new_message(queue, number) for number in range(20)]))
    await began.wait()
    pushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pushing
    del pushing, pusher
    gc.collect()
    assert problems == []


# Buffered ------------------------------------------------------------------------------------------------------


LONG = 3_600_000
AWAY = ConnectionFailed("no server", sent=False)


def client_of(transport: Recorder) -> Client:
    """A client that asks once."""
    return Client(transport, retry=CallPolicy(attempts=1))


async def test_pushes_return_at_once_and_go_together_when_there_are_enough(recorder: Recorder, queue: str) -> None:
    async with client_of(recorder) as client:
        orders = client.queue(queue).buffer(max_items=10, max_ms=LONG)
        for number in range(9):
            await orders.push(number)
        assert recorder.requests == []
        await orders.push(9)
        await client.buffers.of(queue, 10, LONG)._send()
        assert sizes(recorder.requests) == [10]
        assert await taken(client, queue) == list(range(10))


async def test_flush_close_and_time_send_what_is_there(url: str, queue: str) -> None:
    async with hark.connect(url) as client:
        orders = client.queue(queue).buffer(max_ms=LONG).partition("p")
        await orders.push_many([1, client.queue(queue).partition("p").message(2, key="two")])
        await client.flush()
        assert await taken(client, queue) == [1, 2]
        await orders.push(3)
        await orders.flush()
        waiting = asyncio.ensure_future(client.queue(f"{queue}-2").wait().pop())
        await client.queue(f"{queue}-2").buffer(max_ms=1).push("hello")
        assert [message.data for message in await waiting] == ["hello"]
        await orders.push(4)
    with pytest.raises(HarkError, match="client is closed") as refused:
        await orders.push(5)
    assert refused.value.code == "client_closed"
    async with hark.connect(url) as client:
        messages = await client.queue(queue).batch(9).pop()
        assert [(message.data, message.partition) for message in messages] == [(n, "p") for n in (1, 2, 3, 4)]


async def test_what_the_server_may_take_later_stays_in_order(recorder: Recorder, queue: str) -> None:
    async with client_of(recorder) as client:
        orders = client.queue(queue).buffer(max_items=3, max_ms=LONG)
        await orders.push_many([1, 2])
        recorder.failure = AWAY
        with pytest.raises(FlushFailed) as failed:
            await orders.flush()
        assert (failed.value.retryable, failed.value.kept, failed.value.refused) == (True, 2, ())
        await orders.push(3)
        recorder.failure = None
        await orders.flush()
        assert await taken(client, queue) == [1, 2, 3]


async def test_a_failure_in_the_background_is_raised_by_the_next_push_which_is_not_taken(
    recorder: Recorder, queue: str
) -> None:
    async with client_of(recorder) as client:
        orders = client.queue(queue).buffer(max_items=2, max_ms=LONG)
        recorder.failure = AWAY
        await orders.push_many([1, 2])
        await client.buffers.of(queue, 2, LONG)._send()
        with pytest.raises(FlushFailed, match="no server"):
            await orders.push("not taken")
        recorder.failure = None
        await orders.push(3)
        await orders.flush()
        assert await taken(client, queue) == [1, 2, 3]


async def test_what_the_server_refuses_is_given_up_and_named(recorder: Recorder, queue: str) -> None:
    async with client_of(recorder) as client:
        orders = client.queue(queue).buffer(max_ms=LONG)
        await orders.push(1, key="bad")
        recorder.failure = problem(400, "invalid_input", "partition: too long")
        with pytest.raises(FlushFailed, match="partition: too long") as failed:
            await orders.flush()
        assert [message.transaction_id for message in failed.value.refused] == ["bad"]
        assert not failed.value.retryable
        recorder.failure = None
        await orders.push(2)
        await orders.flush()
        assert await taken(client, queue) == [2]


async def test_closing_raises_what_could_not_be_sent(recorder: Recorder, queue: str) -> None:
    client = client_of(recorder)
    await client.queue(queue).buffer(max_ms=LONG).push(1, key="one")
    recorder.failure = AWAY
    with pytest.raises(FlushFailed) as failed:
        await client.close()
    assert [message.transaction_id for message in failed.value.refused] == ["one"]


@pytest.mark.parametrize("closed", [False, True])
async def test_a_full_buffer_makes_pushes_wait(recorder: Recorder, url: str, queue: str, closed: bool) -> None:
    client = client_of(recorder)
    recorder.open.clear()
    orders = client.queue(queue).buffer(max_items=1, max_ms=LONG)
    await orders.push_many(range(10))
    waiting = asyncio.ensure_future(orders.push(10))
    await recorder.changed.wait()
    assert len(client.buffers.of(queue, 1, LONG)) == 10
    assert not waiting.done()
    if closed:
        closing = asyncio.ensure_future(client.close())
        await asyncio.sleep(0)
        recorder.open.set()
        await closing
        with pytest.raises(HarkError, match="client is closed"):
            await waiting
    else:
        recorder.open.set()
        await waiting
        await orders.flush()
        await client.close()
    async with hark.connect(url) as other:
        assert await taken(other, queue) == list(range(10 if closed else 11))


async def test_what_failed_is_sent_again_by_itself(recorder: Recorder, queue: str) -> None:
    slept: list[float] = []
    retried = asyncio.Event()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        recorder.failure = None
        retried.set()

    buffer = Buffer(Pusher(Caller(recorder, CallPolicy(attempts=1))), max_items=1, max_seconds=LONG, sleep=sleep)
    recorder.failure = problem(503, "stopping", retry_after=7)
    await buffer.add(new_message(queue, 1))
    await retried.wait()
    await buffer.close()
    assert slept == [7]
    assert len(buffer) == 0
