"""Server-sent events: the code that all event streams share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from hark.broker.delivery.stream import Arrival, Stream
from hark.http.responses import NOSNIFF, Receive, Scope, Send, encode, error_body, known_error, wait_until_left
from hark.http.stream.line import Gone, Line
from hark.http.wire.asgi import TRANSPORT


class Source(Protocol):
    """A source of events. After `close`, a pending wait for the next event returns nothing."""

    def close(self) -> None:
        """Close the source, because the client has disconnected."""


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an event stream."""

    opening: bytes
    """Sent immediately, so that the client sees that it is connected."""
    ping: bytes
    ping_seconds: float
    first_ping_seconds: float | None = None
    """Time until the first ping, if it is shorter than the others."""
    patience: float
    """Seconds after which a client that reads nothing is disconnected."""
    cache_control: bytes = b"no-store"


def event(name: bytes, data: bytes, id: bytes = b"") -> bytes:
    """Return an event as bytes. Line breaks in JSON become spaces."""
    if b"\n" in data or b"\r" in data:
        data = data.replace(b"\n", b" ").replace(b"\r", b" ")
    if id:
        return b"event: %b\nid: %b\ndata: %b\n\n" % (name, id, data)
    return b"event: %b\ndata: %b\n\n" % (name, data)


async def send_events(
    scope: Scope,
    receive: Receive,
    send: Send,
    source: Source,
    feed: Callable[[Line], Awaitable[None]],
    manner: Manner,
) -> None:
    """Respond with events: `feed` writes the events of the source to the line until there are no more.

    The source is closed when the client disconnects, and the response ends when the source ends. An exception of `feed`
    is sent as an event `error`.
    """
    watch = asyncio.create_task(_close_when_left(receive, source))
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", manner.cache_control),
        (b"x-accel-buffering", b"no"),
        NOSNIFF,
    ]
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _feed(scope, send, feed, manner)
        await send({"type": "http.response.body", "body": b""})
    except Gone:
        await watch
    finally:
        source.close()
        watch.cancel()


async def _feed(scope: Scope, send: Send, feed: Callable[[Line], Awaitable[None]], manner: Manner) -> None:
    async def put(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    line = Line(
        put,
        scope[TRANSPORT],
        patience=manner.patience,
        ping=manner.ping,
        ping_seconds=manner.ping_seconds,
    )
    await line.write(manner.opening)
    pings = asyncio.create_task(line.keep_alive(manner.first_ping_seconds))
    try:
        await feed(line)
    except Gone:
        raise
    except Exception as error:
        await line.write(event(b"error", encode(error_body(known_error(error)))))
    finally:
        pings.cancel()


async def take(stream: Stream, line: Line, render: Callable[[Arrival], bytes]) -> None:
    """Write deliveries of a stream until it is closed. Leases on messages that could not be written are released."""
    while (arrival := await stream.next()) is not None:
        if arrival.error is not None:
            raise arrival.error
        try:
            await line.write(render(arrival))
        except BaseException:
            stream.lost(arrival)
            raise
        stream.written()


async def _close_when_left(receive: Receive, source: Source) -> None:
    await wait_until_left(receive)
    source.close()
