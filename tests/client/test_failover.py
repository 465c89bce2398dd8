"""Several servers: one is used as long as it works, nothing is lost with it, and nothing is doubled."""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import Mapping

import msgspec
import pytest

from hark.client.calling import Caller, CallPolicy, path
from hark.client.producing.pushing import Pusher, new_message
from hark.client.transport.api import Answer, ConnectionFailed, Request
from hark.client.transport.failover import FailoverTransport
from hark.errors import InvalidInput
from tests.client.transports import Proxy, Script, problem
from tests.crash.server import Server, running

OK = Answer(200, b"{}")
UNSENT = ConnectionFailed("no server", sent=False)
LOST = ConnectionFailed("the reply was lost", sent=True)
ASK = Request("GET", "/health")


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(scripts: Mapping[str, Script], clock: Clock | None = None) -> FailoverTransport:
    return FailoverTransport(list(scripts), pause=5.0, monotonic=clock or Clock(), make=scripts.__getitem__)


def asked(scripts: Mapping[str, Script]) -> list[int]:
    return [len(script.requests) for script in scripts.values()]


async def test_the_first_server_is_used_as_long_as_it_works() -> None:
    scripts = {"a": Script(OK), "b": Script(OK)}
    transport = make(scripts)
    for _ in range(3):
        await transport.send(ASK)
    assert asked(scripts) == [3, 0]


async def test_a_server_that_can_not_be_reached_is_left_for_good() -> None:
    scripts = {"a": Script(UNSENT, OK), "b": Script(OK)}
    clock = Clock()
    transport = make(scripts, clock)
    assert await transport.send(ASK) is OK
    clock.now = 100.0
    await transport.send(ASK)
    assert asked(scripts) == [1, 2]


@pytest.mark.parametrize("code", ["stopping", "engine_failure"])
async def test_a_server_that_did_nothing_is_left_for_the_next(code: str) -> None:
    scripts = {"a": Script(problem(503, code)), "b": Script(OK)}
    transport = make(scripts)
    assert await transport.send(ASK) is OK
    assert await transport.send(ASK) is OK
    assert asked(scripts) == [1, 2]


@pytest.mark.parametrize(
    "answer",
    [problem(503, "maintenance"), problem(429, "overloaded"), problem(400, "invalid_input")],
    ids=["maintenance", "overloaded", "invalid"],
)
async def test_a_refusal_that_others_would_repeat_is_an_answer(answer: Answer) -> None:
    scripts = {"a": Script(answer), "b": Script(OK)}
    transport = make(scripts)
    assert await transport.send(ASK) is answer
    assert await transport.send(ASK) is answer
    assert asked(scripts) == [2, 0]


async def test_a_request_whose_reply_was_lost_is_not_sent_again_but_the_next_one_goes_elsewhere() -> None:
    scripts = {"a": Script(LOST), "b": Script(OK)}
    transport = make(scripts)
    with pytest.raises(ConnectionFailed) as failed:
        await transport.send(ASK)
    assert failed.value.sent
    assert asked(scripts) == [1, 0]
    assert await transport.send(ASK) is OK
    assert asked(scripts) == [1, 1]


@pytest.mark.parametrize(
    "answer", [problem(503, "outcome_unknown"), Answer(502, b"<html>")], ids=["unknown", "gateway"]
)
async def test_an_unknown_outcome_is_an_answer(answer: Answer) -> None:
    scripts = {"a": Script(answer), "b": Script(OK)}
    assert await make(scripts).send(ASK) is answer
    assert asked(scripts) == [1, 0]


async def test_a_server_that_failed_lately_is_the_last_choice() -> None:
    scripts = {"a": Script(UNSENT, OK), "b": Script(OK, UNSENT), "c": Script(OK)}
    clock = Clock()
    transport = make(scripts, clock)
    await transport.send(ASK)
    clock.now = 4.0
    await transport.send(ASK)
    assert asked(scripts) == [1, 2, 1]


async def test_a_server_is_tried_again_after_its_pause() -> None:
    scripts = {"a": Script(UNSENT, OK), "b": Script(OK, UNSENT)}
    clock = Clock()
    transport = make(scripts, clock)
    await transport.send(ASK)
    clock.now = 6.0
    assert await transport.send(ASK) is OK
    assert asked(scripts) == [2, 2]


async def test_if_all_are_away_one_error_names_them_all_and_the_next_request_tries_again() -> None:
    scripts = {"a": Script(ConnectionFailed("no a", sent=False), OK), "b": Script(ConnectionFailed("no b", sent=False))}
    transport = make(scripts)
    with pytest.raises(ConnectionFailed, match="none of 2 servers can be reached: no a; no b") as failed:
        await transport.send(ASK)
    assert not failed.value.sent
    assert await transport.send(ASK) is OK


async def test_if_all_are_stopping_that_is_the_answer() -> None:
    stopping = problem(503, "stopping", retry_after=1)
    assert await make({"a": Script(UNSENT), "b": Script(stopping)}).send(ASK) is stopping


async def test_a_late_answer_of_a_server_that_was_left_does_not_bring_it_back() -> None:
    late: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    class Slow(Script):
        async def send(self, request: Request) -> Answer:
            self.requests.append(request)
            if len(self.requests) == 1:
                return await late
            raise UNSENT

    scripts = {"a": Slow(OK), "b": Script(OK)}
    transport = make(scripts)
    slow = asyncio.create_task(transport.send(ASK))
    await asyncio.sleep(0)
    await transport.send(ASK)
    late.set_result(OK)
    assert await slow is OK
    await transport.send(ASK)
    assert asked(scripts) == [2, 2]


def test_a_fork_knows_the_same_servers() -> None:
    transport = FailoverTransport(["http://a:1", "http://b:2", "http://a:1"])
    assert transport.fork().urls == transport.urls == ("http://a:1", "http://b:2")


def test_no_server_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        FailoverTransport([])


# With servers ----------------------------------------------------------------------------------------------


async def contents(caller: Caller, queue: str) -> list[object]:
    """Everything that a queue has."""
    found: list[object] = []
    query = {"batch": 10_000, "partitions": 1000, "autoAck": True}
    while (answer := await caller.call("GET", path("pop", "queue", queue), query=query)).status != 204:
        found += [message["data"] for message in msgspec.json.decode(answer.body)["messages"]]
    return found


async def test_replies_that_are_lost_on_the_way_double_nothing_at_the_next_address(url: str, queue: str) -> None:
    async with Proxy(url) as proxy:
        transport = FailoverTransport([proxy.url, url])
        caller = Caller(transport, CallPolicy(first_delay=0.0))
        proxy.lose_replies(1)
        pusher = Pusher(caller, max_items=10)
        await pusher.push_many([new_message(queue, i) for i in range(100)])
        assert proxy.lost_replies == 1
        assert transport.url == url
        assert await contents(caller, queue) == list(range(100))
        await transport.close()


async def test_killing_a_server_in_the_middle_of_pushes_loses_and_doubles_nothing(postgres_url: str) -> None:
    queue = f"queue-{uuid.uuid4().hex[:12]}"
    first, second = Server("--engine", postgres_url), Server("--engine", postgres_url)
    async with running(first, second):
        transport = FailoverTransport([first.url, second.url])
        caller = Caller(transport)
        pusher = Pusher(caller, max_items=5)
        half = asyncio.Event()
        pushed: list[int] = []

        async def produce(start: int) -> None:
            for number in range(start, start + 40):
                await pusher.push(new_message(queue, number, partition=f"p{start}"))
                pushed.append(number)
                if len(pushed) == 400:
                    half.set()

        producing = asyncio.gather(*(produce(40 * index) for index in range(20)))
        await half.wait()
        await first.end(signal.SIGKILL)
        await producing
        assert transport.url == second.url
        found = await contents(caller, queue)
        assert sorted(map(str, found)) == sorted(map(str, range(800)))
        await transport.close()
