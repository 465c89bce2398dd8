"""The line: a loop beside the user's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from hark.client.calling import path
from hark.client.delivery.line import Line
from hark.client.transport.api import Answer, Request
from hark.client.transport.http import HttpTransport
from hark.errors import HarkError


@pytest.fixture
async def line(url: str) -> AsyncIterator[Line]:
    """A line to the shared server."""
    line = Line(HttpTransport(url))
    await line.start()
    yield line
    await line.close()


class _InPlace:
    """A server that lives in the loop of its user."""

    url = "in place"

    def __init__(self) -> None:
        self.closed = False

    async def send(self, _request: Request) -> Answer:
        """Answer with the name of the thread."""
        return Answer(200, threading.current_thread().name.encode())

    def fork(self) -> None:
        """There is no other way to it."""

    async def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


async def test_calls_run_in_a_thread_of_the_line_and_are_answered_here(line: Line) -> None:
    async def ask() -> tuple[int, str]:
        answer = await line.caller.call("GET", path("resources", "queues"))
        return answer.status, threading.current_thread().name

    assert await line.run(ask) == (200, "hark-line")
    assert not line.in_place


async def test_errors_come_across(line: Line) -> None:
    with pytest.raises(HarkError) as refusal:
        await line.run(lambda: line.caller.call("GET", path("no", "such", "route")))
    assert refusal.value.code == "route_not_found"


async def test_the_line_goes_on_while_the_users_loop_is_blocked(line: Line) -> None:
    done = threading.Event()

    async def ask_often() -> None:
        for _ in range(3):
            await line.caller.call("GET", path("resources", "queues"))
        done.set()

    asking = asyncio.create_task(line.run(ask_often))
    await asyncio.sleep(0)  # It is on the line now.
    assert done.wait(20), "this blocks the loop of the test; the calls were made nevertheless"
    await asking


async def test_cancelling_here_cancels_there(line: Line) -> None:
    here = asyncio.get_running_loop()
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def for_ever() -> None:
        here.call_soon_threadsafe(started.set)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            here.call_soon_threadsafe(cancelled.set)
            raise

    task = asyncio.create_task(line.run(for_ever))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(20):
        await cancelled.wait()


async def test_posted_calls_keep_their_order(line: Line) -> None:
    seen: list[tuple[int, str]] = []
    for number in range(100):
        line.post(lambda number=number: seen.append((number, threading.current_thread().name)))  # type: ignore[misc]

    async def nothing() -> None:
        pass

    await line.run(nothing)
    assert seen == [(number, "hark-line") for number in range(100)]


async def test_closing_ends_what_waits_and_says_why(url: str) -> None:
    line = Line(HttpTransport(url))
    await line.start()
    here, started = asyncio.get_running_loop(), asyncio.Event()

    async def for_ever() -> None:
        here.call_soon_threadsafe(started.set)
        await asyncio.Event().wait()

    waiting = asyncio.create_task(line.run(for_ever))
    await started.wait()
    await line.close()
    with pytest.raises(HarkError) as refusal:
        await waiting
    assert refusal.value.code == "line_closed"
    assert "hark-line" not in {thread.name for thread in threading.enumerate()}


async def test_a_line_that_is_not_open_says_so(url: str) -> None:
    line = Line(HttpTransport(url))
    with pytest.raises(HarkError, match="start"):
        await line.run(lambda: line.caller.call("GET", "/health"))
    await line.start()
    with pytest.raises(HarkError, match="already"):
        await line.start()
    await line.close()
    await line.close()
    with pytest.raises(HarkError, match="close"):
        line.post(lambda: None)


async def test_a_server_in_this_loop_is_asked_in_this_loop() -> None:
    transport = _InPlace()
    line = Line(transport)
    await line.start()
    assert line.in_place
    answer = await line.run(lambda: line.caller.call("GET", "/"))
    assert answer.body.decode() == threading.current_thread().name
    posted = asyncio.Event()
    line.post(posted.set)
    await posted.wait()
    await line.close()
    assert not transport.closed, "it is the user's"
