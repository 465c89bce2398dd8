"""A body that comes slowly: how slowly it may, with the clock in the hands of the test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest
from uvicorn.server import ServerState

from hark.http.edge.connections import MIN_BODY_BYTES_PER_SECOND, GuardedProtocol
from hark.serving.server import uvicorn_config
from hark.settings import Limits

LIMITS = Limits(header_timeout_seconds=10, body_timeout_seconds=30)
ENOUGH = 30 * MIN_BODY_BYTES_PER_SECOND
HEAD = b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"


async def _application(_scope: object, _receive: object, _send: object) -> None:
    """Never called."""


class Timer:
    """What will be called, unless it is cancelled first."""

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.seconds = seconds
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """It won't."""
        self.cancelled = True


class Loop:
    """An event loop without time and without tasks."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Note what is to be called."""
        self.timers.append(Timer(seconds, callback))
        return self.timers[-1]

    def create_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        """Do nothing of it."""
        work.close()
        return cast("asyncio.Future[None]", _Idle())

    def waiting(self) -> list[float]:
        """The seconds of the timers that run."""
        return [timer.seconds for timer in self.timers if not timer.cancelled]

    def fire(self) -> None:
        """The one timer that runs is over."""
        [timer] = [timer for timer in self.timers if not timer.cancelled]
        timer.cancelled = True
        timer.callback()


class _Idle:
    """A task that nobody runs."""

    def add_done_callback(self, _callback: object) -> None:
        """It is never done."""


class Transport:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.closed = False

    def write(self, data: bytes) -> None:
        """Keep it."""
        self.written += data

    def close(self) -> None:
        """No more."""
        self.closed = True

    def is_closing(self) -> bool:
        """Whether it is closed."""
        return self.closed

    def get_extra_info(self, _name: str) -> None:
        """There is no socket."""

    def pause_reading(self) -> None:
        """Nothing to pause."""

    def resume_reading(self) -> None:
        """Nothing to resume."""


@pytest.fixture
def loop() -> Loop:
    """The time of the test."""
    return Loop()


@pytest.fixture
def transport() -> Transport:
    """The other side."""
    return Transport()


@pytest.fixture
def connection(loop: Loop, transport: Transport) -> GuardedProtocol:
    """A connection that was just made."""
    config = uvicorn_config(_application, "127.0.0.1", 0)
    guarded = GuardedProtocol(config, ServerState(), {}, _loop=loop, limits=LIMITS)
    guarded.connection_made(cast(asyncio.Transport, transport))
    return guarded


def test_the_head_has_its_time_and_then_the_body_has_its_own(connection: GuardedProtocol, loop: Loop) -> None:
    assert loop.waiting() == [10]
    connection.data_received(HEAD[:20])
    assert loop.waiting() == [10]
    connection.data_received(HEAD[20:])
    assert loop.waiting() == [30]
    connection.data_received(b"x" * 1_000_000)
    assert loop.waiting() == []


def test_a_body_that_brings_enough_in_its_time_gets_as_much_again(
    connection: GuardedProtocol, loop: Loop, transport: Transport
) -> None:
    connection.data_received(HEAD)
    for _ in range(3):
        connection.data_received(b"x" * ENOUGH)
        connection.cycle.body.clear()  # The application has read it.
        loop.fire()
        assert loop.waiting() == [30]
    connection.data_received(b"x" * (ENOUGH - 1))
    loop.fire()
    assert transport.written.startswith(b"HTTP/1.1 408 ")
    assert transport.closed
    assert loop.waiting() == []


def test_one_that_the_server_does_not_read_is_not_the_clients_fault(
    connection: GuardedProtocol, loop: Loop, transport: Transport
) -> None:
    connection.data_received(HEAD + b"x" * 200_000)  # More than is kept unread.
    loop.fire()
    loop.fire()
    assert (transport.closed, loop.waiting()) == (False, [30])
