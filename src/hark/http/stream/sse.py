"""Messages as server-sent events: GET /api/v1/listen and its variants."""

from __future__ import annotations

from hark.access.identity import Role
from hark.broker import Broker
from hark.broker.delivery.browsers import Browser
from hark.broker.delivery.stream import Arrival, Stream
from hark.http.callers import named
from hark.http.edge.identities import check_role, identity_of
from hark.http.edge.reaching import check_wish
from hark.http.exchange import exchange_of
from hark.http.pops import place_in_path, wire_messages
from hark.http.responses import Receive, Scope, Send, encode, send_failure
from hark.http.routes.requests import ANOTHER_MODE, NOT_SUPPORTED
from hark.http.routes.table import EVENTS, Operation, Reach, Table, read
from hark.http.stream.events import Manner, event, send_events, take
from hark.http.stream.line import PING_SECONDS, Line
from hark.http.stream.wishes import Browsing, listening, listening_params
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

    def table(self) -> Table:
        """Return the table of the route, also with the queue or a partition in the path."""
        return {
            "/api/v1/listen": {"GET": self._listen(Reach.QUERY)},
            "/api/v1/listen/queue/{queue}": {"GET": self._listen(Reach.PATH)},
            "/api/v1/listen/queue/{queue}/partition/{partition}": {"GET": self._listen(Reach.PATH)},
        }

    def _listen(self, reach: Reach) -> Operation:
        query = listening_params(self._settings, place=reach is Reach.QUERY)
        errors = (NOT_SUPPORTED, ANOTHER_MODE)
        return read(self.listen, reach, query=query, answer=str, media=EVENTS, errors=errors, raw=True)

    async def listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream messages.

        Sends each message as a server-sent event `message` as soon as it is available, and an event `ping` while there
        is none. Acknowledge the messages with POST /api/v1/ack. With `browse=true` the stream shows messages without
        receiving them and requires only the role read-only; otherwise it requires the role read-write.
        """
        try:
            source = await self._open(scope)
        except Exception as error:
            await send_failure(send, error)
            return
        await send_events(scope, receive, send, source, lambda line: _feed(source, line), self._manner)

    async def _open(self, scope: Scope) -> Stream | Browser:
        wish = listening(place_in_path(scope["path_params"]), scope["query_string"], self._settings)
        delivery = self._broker.delivery
        identity = identity_of(scope)
        if isinstance(wish, Browsing):
            identity.check_queue(wish.queue)
            return await delivery.browsers.open(wish.queue, wish.partition, wish.start)
        check_role(identity, Role.READ_WRITE)
        check_wish(identity, wish.request)
        stream = delivery.open_stream(wish.prefetch)
        stream.subscribe("", named(wish.request, exchange_of(scope)), wish.priority)
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
