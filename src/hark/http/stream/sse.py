"""Messages as server-sent events: GET /api/v1/listen and its forms."""

from __future__ import annotations

from hark.broker import Broker
from hark.broker.delivery.browsers import Browser
from hark.broker.delivery.stream import Arrival, Stream
from hark.http.pops import wire_messages
from hark.http.responses import Receive, Scope, Send, encode, send_failure
from hark.http.stream.events import Manner, event, send_events, take
from hark.http.stream.line import PING_SECONDS, Line
from hark.http.stream.wishes import Browsing, listening
from hark.model import PopResult
from hark.settings import Settings

_PING = event(b"ping", b"{}")


class EventStreams:
    """The route, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings, ping_seconds: float = PING_SECONDS) -> None:
        self._broker = broker
        self._settings = settings
        self._manner = Manner(
            opening=_PING, ping=_PING, ping_seconds=ping_seconds, patience=settings.limits.stalled_seconds
        )

    async def listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /api/v1/listen, /api/v1/listen/queue/{queue} and .../partition/{partition}"""
        try:
            source = await self._open(scope)
        except Exception as error:
            await send_failure(send, error)
            return
        await send_events(scope, receive, send, source, lambda line: _feed(source, line), self._manner)

    async def _open(self, scope: Scope) -> Stream | Browser:
        wish = listening(scope["raw_path"], scope["query_string"], self._settings)
        delivery = self._broker.delivery
        if isinstance(wish, Browsing):
            return await delivery.browsers.open(wish.queue, wish.partition, wish.start)
        stream = delivery.open_stream(wish.prefetch)
        stream.subscribe("", wish.request, wish.priority)
        return stream


async def _feed(source: Stream | Browser, line: Line) -> None:
    if isinstance(source, Stream):
        await take(source, line, _arrived)
    else:
        while messages := await source.next():
            await line.write(_events("", PopResult(messages)))


def _arrived(arrival: Arrival) -> bytes:
    return _events(arrival.consumer.request.group, arrival.result)


def _events(group: str, result: PopResult) -> bytes:
    return b"".join(event(b"message", encode(message), message.id.encode()) for message in wire_messages(group, result))
