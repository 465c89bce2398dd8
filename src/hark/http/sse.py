"""Messages as server-sent events: GET /api/v1/listen and its variants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol, TypeVar, cast

import msgspec

from hark.api import operations
from hark.api.operations import Reach, Role
from hark.api.types.delivery import Delivered
from hark.broker import Broker
from hark.broker.delivery.browsers import Browser
from hark.broker.delivery.stream import Arrival, Stream
from hark.errors import InvalidInput
from hark.http import pops, responses
from hark.http.admission import check_pop, check_role, identity_of
from hark.http.checks import parse_time, query_params, short
from hark.http.exchange import exchange_of
from hark.http.pops import PARTITION, PRIORITY, QueuePath, named, pop_request, queue_in_path, queue_of, taking_params
from hark.http.responses import Receive, Scope, Send, encode, send_failure
from hark.http.routing import ANOTHER_MODE, EVENTS, NOT_SUPPORTED, BoolParam, Bound, Param, Table, bind, table
from hark.http.wire.asgi import TRANSPORT
from hark.model import BrowseFrom, PopRequest
from hark.settings import Settings

Put = Callable[[bytes], Awaitable[None]]
"""Passes bytes to the server, after its buffer has room. With empty bytes it only waits."""

PING_SECONDS = 15.0


class Gone(Exception):
    """The client has disconnected, or has not read for too long."""


class ClientWriter:
    """Serialises writes to a client and sends pings while it is idle. Each write reaches the socket before the next."""

    def __init__(
        self, put: Put, transport: asyncio.Transport, *, stall_seconds: float, ping: bytes, ping_seconds: float
    ) -> None:
        self._put = put
        self._transport = transport
        self._stall_seconds = stall_seconds
        self._ping = ping
        self._ping_seconds = ping_seconds
        self._left = 0
        """Bytes of a write that the socket has not accepted yet."""
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._written_at = self._loop.time()
        if not transport.is_closing():
            # A limit of zero makes writes wait until the socket has the last byte. (For TLS transports the limit is 1:
            # with 0 they treat an empty buffer as full. They count only their own buffer, not that of the socket's
            # transport.)
            secure = transport.get_extra_info("sslcontext") is not None
            transport.set_write_buffer_limits(high=1 if secure else 0, low=0)

    async def write(self, data: bytes) -> None:
        """Return when the socket has all data; raises `Gone` if the client has disconnected or does not read."""
        async with self._turn:
            self._check()
            try:
                await self._wait_for_room()  # The server itself also writes, for example to answer pings.
                await self._put(data)
                await self._wait_for_room()
            except OSError:
                raise Gone from None
            self._check()
            self._written_at = self._loop.time()

    async def _wait_for_room(self) -> None:
        self._left = self._transport.get_write_buffer_size()
        if not self._left:
            return
        self._watch()
        try:
            await self._put(b"")
        finally:
            self._timer.cancel()

    def _watch(self) -> None:
        self._timer = self._loop.call_later(self._stall_seconds, self._look_at_progress)

    def _look_at_progress(self) -> None:
        left = self._transport.get_write_buffer_size()
        if left < self._left:
            self._left = left
            self._watch()
        else:  # `close` would wait until the client reads the rest.
            self._transport.abort()

    def _check(self) -> None:
        if self._transport.is_closing():
            raise Gone

    async def keep_alive(self, first_seconds: float | None = None) -> None:
        """Send a ping whenever nothing was written for a while, until the client disconnects."""
        pause = self._ping_seconds if first_seconds is None else first_seconds
        try:
            while True:
                wait = self._written_at + pause - self._loop.time()
                if wait > 0:
                    await asyncio.sleep(wait)
                else:
                    await self.write(self._ping)
                    pause = self._ping_seconds
        except Gone:
            return


class Source(Protocol):
    """A source of events. After `close`, a pending wait for the next event returns nothing."""

    def close(self) -> None:
        """Close the source, because the client has disconnected."""


S = TypeVar("S", bound=Source)


class SseOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an event stream."""

    opening: bytes
    """Sent immediately, so that the client sees that it is connected."""
    ping: bytes
    ping_seconds: float
    first_ping_seconds: float | None = None
    """Time until the first ping, if it is shorter than the others."""
    stall_seconds: float
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
    opened: Callable[[], Awaitable[S]],
    write_events: Callable[[S, ClientWriter], Awaitable[None]],
    sse_options: SseOptions,
) -> None:
    """Open a source and respond with events: `write_events` writes those of the source until there are no more.

    A source that cannot be opened is an ordinary error response. The source is closed when the client disconnects, and
    the response ends when the source ends. An exception of `write_events` is sent as an event `error`.
    """
    try:
        source = await opened()
    except Exception as error:
        await send_failure(send, error)
        return
    watch = asyncio.create_task(close_when_left(receive, source))
    headers = [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", sse_options.cache_control),
        (b"x-accel-buffering", b"no"),
        responses.NOSNIFF,
    ]
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await _send_each(scope, send, lambda writer: write_events(source, writer), sse_options)
        await send({"type": "http.response.body", "body": b""})
    except Gone:
        await watch
    finally:
        source.close()
        watch.cancel()


async def _send_each(
    scope: Scope, send: Send, write_events: Callable[[ClientWriter], Awaitable[None]], sse_options: SseOptions
) -> None:
    async def put(data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    writer = ClientWriter(
        put,
        scope[TRANSPORT],
        stall_seconds=sse_options.stall_seconds,
        ping=sse_options.ping,
        ping_seconds=sse_options.ping_seconds,
    )
    await writer.write(sse_options.opening)
    pings = asyncio.create_task(writer.keep_alive(sse_options.first_ping_seconds))
    try:
        await write_events(writer)
    except Gone:
        raise
    except Exception as error:
        await writer.write(event(b"error", encode(responses.error_body(responses.known_error(error)))))
    finally:
        pings.cancel()


async def take(stream: Stream, writer: ClientWriter, render: Callable[[Arrival], bytes]) -> None:
    """Write deliveries of a stream until it is closed. Leases on messages that could not be written are released."""
    while (arrival := await stream.next()) is not None:
        if arrival.error is not None:
            stream.end()
            raise arrival.error
        try:
            await writer.write(render(arrival))
        except BaseException:
            stream.lost(arrival)
            raise
        stream.written()


async def close_when_left(receive: Receive, source: Source) -> None:
    """Close a source when the client has disconnected."""
    await responses.wait_until_left(receive)
    source.close()


# Messages --------------------------------------------------------------------------------------------------

DEFAULT_PREFETCH = 10


class Taking(msgspec.Struct, frozen=True):
    """A request to receive messages."""

    request: PopRequest
    priority: int


class Browsing(msgspec.Struct, frozen=True):
    """A request to browse messages without receiving them."""

    queue: str
    partition: str | None
    start: BrowseFrom


_BROWSE = BoolParam("browse", "Show messages without receiving them. Requires a queue.")
_FROM = Param(
    "from",
    "Where browsing starts: `head` (oldest stored message), `tail` (new messages only), or a time. Allowed only with "
    "`browse=true`. The default is `tail`.",
)


def subscribing(fields: Mapping[str, object], settings: Settings) -> Taking | Browsing:
    """Return the request of a frame, whose fields have the names of the parameters."""
    query = {name: _text(value) for name, value in fields.items() if value is not None}
    return _stream_params(query, queue_of((None, None), query), DEFAULT_PREFETCH, settings)


def _stream_params(query: Mapping[str, str], target: QueuePath, batch: int, settings: Settings) -> Taking | Browsing:
    start = _FROM.text(query)
    if not _BROWSE.of(query):
        if start:
            raise InvalidInput(
                "from: allowed only with browse=true; use subscriptionFrom to choose where a consumer group starts"
            )
        return Taking(pop_request(query, target, batch, settings), PRIORITY.of(query))
    queue, partition = target
    if queue is None:
        raise InvalidInput("queue is required: name the queue to browse")
    return Browsing(queue, partition, _start(start or "tail"))


def _start(text: str) -> BrowseFrom:
    if text in ("head", "tail"):
        return cast(BrowseFrom, text)
    try:
        return parse_time(text, "from")
    except InvalidInput:
        raise InvalidInput(
            f"from: expected head, tail, a time such as 2026-01-02T03:04:05Z, or milliseconds since 1970, "
            f"got {short(text)}"
        ) from None


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_PING = event(b"ping", b"{}")


class EventStreams:
    """The route, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings, ping_seconds: float = PING_SECONDS) -> None:
        self._broker = broker
        self._settings = settings
        self._prefetch = pops.prefetch_param(DEFAULT_PREFETCH, settings.limits.max_batch)
        self._sse_options = SseOptions(
            opening=_PING, ping=_PING, ping_seconds=ping_seconds, stall_seconds=settings.limits.stalled_seconds
        )

    def table(self) -> Table:
        """Return the table of the route, also with the queue or a partition in the path."""
        return table(
            self._listen(operations.LISTEN),
            self._listen(operations.LISTEN_OF_QUEUE),
            self._listen(operations.LISTEN_OF_QUEUE_PARTITION),
        )

    def _listen(self, operation: operations.Operation[str]) -> Bound:
        with_queue = operation.reach is Reach.QUERY
        taking = taking_params(self._settings, DEFAULT_PREFETCH, with_queue=with_queue)
        query = (*taking, *(() if with_queue else (PARTITION,)), self._prefetch, _BROWSE, _FROM)
        return bind(operation, self.listen, query=query, media=EVENTS, errors=(NOT_SUPPORTED, ANOTHER_MODE), raw=True)

    async def listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream messages.

        Sends each message as a server-sent event `message` as soon as it is available, and an event `ping` while there
        is none. Acknowledge the messages with POST /api/v1/ack. With `browse=true` the stream shows messages without
        receiving them and requires only the role read-only; otherwise it requires the role read-write.
        """
        await send_events(scope, receive, send, lambda: self._open(scope), _write_events, self._sse_options)

    async def _open(self, scope: Scope) -> Stream | Browser:
        query = query_params(scope["query_string"])
        queue, partition = queue_of(queue_in_path(scope["path_params"]), query)
        if queue is not None and partition is None:
            partition = PARTITION.of(query)
        prefetch = self._prefetch.of(query)
        params = _stream_params(query, (queue, partition), prefetch, self._settings)
        delivery = self._broker.delivery
        identity = identity_of(scope)
        if isinstance(params, Browsing):
            identity.check_queue(params.queue)
            return await delivery.browsers.open(params.queue, params.partition, params.start)
        check_role(identity, Role.READ_WRITE)
        check_pop(identity, params.request)
        stream = delivery.streams.open(prefetch, mute=True)
        stream.subscribe("", named(params.request, exchange_of(scope)), params.priority)
        return stream


async def _write_events(source: Stream | Browser, writer: ClientWriter) -> None:
    if isinstance(source, Stream):
        await take(source, writer, lambda one: _events(pops.wire_messages(one.consumer.request.group, one.result)))
    else:
        while messages := await source.next():
            await writer.write(_events(pops.browsed_messages(messages)))


def _events(messages: Iterable[Delivered]) -> bytes:
    return b"".join(event(b"message", encode(message), message.id.encode()) for message in messages)
