"""Frames of a WebSocket: their number per second, and the turns of other clients."""

from __future__ import annotations

import asyncio
from typing import cast
from unittest.mock import Mock

import pytest

from hark.http.exchange import Exchange
from hark.http.wire.server import Server
from hark.http.wire.websocket import FRAMES_AT_ONCE, FRAMES_PER_SECOND, WebSocket
from tests.http.streaming import masked
from tests.http.wire.test_connections import BlockedApp, Loop

PING = b"\x89\x80" + bytes(4)
PONG = b"\x8a\x00"
CHUNK = 8 * 1024 // len(PING) + 1
"""Frames that are parsed at once, at most."""


@pytest.fixture
def transport() -> Mock:
    """The socket."""
    transport = Mock(asyncio.Transport)
    transport.get_write_buffer_size.return_value = 0
    transport.is_closing.side_effect = lambda: transport.close.called or transport.abort.called
    return transport


async def opened(transport: Mock, loop: Loop | None = None) -> WebSocket:
    """A WebSocket after its handshake."""
    server = Server(BlockedApp())
    if loop is not None:
        server.loop = cast(asyncio.AbstractEventLoop, loop)
    websocket = WebSocket(server, transport, Exchange("GET", b"/", b"", {}, None, secure=False))
    websocket._handshake = Mock()
    websocket._handshake.serialize.return_value = b""
    await websocket.receive()  # The connect event.
    await websocket.send({"type": "websocket.accept"})
    return websocket


def answered(transport: Mock) -> int:
    """The number of pongs so far."""
    return sum(call.args[0].count(PONG) for call in transport.write.call_args_list)


async def test_a_connection_sends_a_limited_number_of_frames_per_second(transport: Mock) -> None:
    loop = Loop()
    websocket = await opened(transport, loop)
    loop.timers.clear()  # Pings of the server.
    websocket.data_received(PING * 20_000)
    loop.turn()
    assert FRAMES_AT_ONCE <= answered(transport) <= FRAMES_AT_ONCE + CHUNK
    assert transport.pause_reading.called
    assert not transport.resume_reading.called
    for second in range(1, 5):
        loop.advance(1)
        assert 0 <= answered(transport) - FRAMES_AT_ONCE - second * FRAMES_PER_SECOND <= CHUNK
    loop.advance(20_000 / FRAMES_PER_SECOND)
    assert answered(transport) == 20_000
    assert transport.resume_reading.called
    assert not transport.abort.called


async def test_a_connection_that_was_quiet_sends_many_frames_at_once(transport: Mock) -> None:
    loop = Loop()
    websocket = await opened(transport, loop)
    loop.timers.clear()
    websocket.data_received(PING * FRAMES_AT_ONCE)
    loop.turn()
    loop.advance(60)
    websocket.data_received(PING * FRAMES_AT_ONCE)
    loop.turn()
    assert answered(transport) == 2 * FRAMES_AT_ONCE


async def test_frames_that_came_together_leave_turns_to_other_clients(transport: Mock) -> None:
    websocket = await opened(transport)
    websocket.data_received(masked('{"type":"ping"}') * 160)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    for _ in range(160):
        assert (await websocket.receive())["text"] == '{"type":"ping"}'
    beside.cancel()
    websocket.connection_lost(None)
    assert turns >= 10
