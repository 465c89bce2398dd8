"""Messages as server-sent events: GET /api/v1/listen and its forms."""

from __future__ import annotations

import asyncio

from hark.broker import Broker
from hark.broker.delivery.browsers import Browser
from hark.broker.delivery.stream import Stream
from hark.errors import HarkError
from hark.http.pops import wire_messages
from hark.http.responses import (
    Receive,
    Scope,
    Send,
    encode,
    error_body,
    known_error,
    send_failure,
    wait_until_left,
)
from hark.http.stream.line import PING_SECONDS, Gone, Line
from hark.http.stream.transport import transport_of
from hark.http.stream.wishes import Browsing, listening
from hark.model import PopResult
from hark.settings import Settings

_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_PING = b"event: ping\ndata: {}\n\n"


class EventStreams:
    """The route, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings, ping_seconds: float = PING_SECONDS) -> None:
        self._broker = broker
        self._settings = settings
        self._ping_seconds = ping_seconds

    async def listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /api/v1/listen, /api/v1/listen/queue/{queue} and .../partition/{partition}"""
        try:
            source = await self._open(scope)
        except Exception as error:
            await send_failure(send, error)
            return
        # From now on the client's leaving ends the source, and the end of the source ends the answer.
        watch = asyncio.create_task(_close_when_left(receive, source))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await self._feed(source, scope, send)
            await send({"type": "http.response.body", "body": b""})
        except Gone:
            await watch
        finally:
            source.close()
            watch.cancel()

    async def _open(self, scope: Scope) -> Stream | Browser:
        wish = listening(scope["raw_path"], scope["query_string"], self._settings)
        delivery = self._broker.delivery
        if isinstance(wish, Browsing):
            return await delivery.browsers.open(wish.queue, wish.partition, wish.start)
        stream = delivery.open_stream(wish.prefetch)
        stream.subscribe("", wish.request, wish.priority)
        return stream

    async def _feed(self, source: Stream | Browser, scope: Scope, send: Send) -> None:
        async def put(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        line = Line(
            put,
            transport_of(scope),
            patience=self._settings.limits.stalled_seconds,
            ping=_PING,
            ping_seconds=self._ping_seconds,
        )
        pings = asyncio.create_task(line.keep_alive())
        try:
            await line.write(_PING)
            if isinstance(source, Stream):
                await _take(source, line)
            else:
                await self._browse(source, line)
        except Gone:
            raise
        except Exception as error:
            await line.write(_error(known_error(error)))
        finally:
            pings.cancel()

    async def _browse(self, browser: Browser, line: Line) -> None:
        while messages := await browser.next():
            await line.write(_events("", PopResult(messages)))


async def _take(stream: Stream, line: Line) -> None:
    while (arrival := await stream.next()) is not None:
        if arrival.error is not None:
            raise arrival.error
        try:
            await line.write(_events(arrival.consumer.request.group, arrival.result))
        except BaseException:
            stream.lost(arrival)
            raise
        stream.written()


async def _close_when_left(receive: Receive, source: Stream | Browser) -> None:
    await wait_until_left(receive)
    source.close()


def _events(group: str, result: PopResult) -> bytes:
    parts = []
    for message in wire_messages(group, result):
        line = encode(message)
        if b"\n" in line or b"\r" in line:  # Of a payload that was pushed with them: in JSON they are mere space.
            line = line.replace(b"\n", b" ").replace(b"\r", b" ")
        parts.append(b"event: message\nid: %b\ndata: %b\n\n" % (message.id.encode(), line))
    return b"".join(parts)


def _error(error: HarkError) -> bytes:
    return b"event: error\ndata: %b\n\n" % encode(error_body(error))
