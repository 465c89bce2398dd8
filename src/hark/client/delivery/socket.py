"""Receives messages over a WebSocket, and reconnects when a connection breaks."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar, get_args

import aiohttp
import msgspec

from hark.api import operations
from hark.api.types import frames
from hark.api.types.delivery import AckAnswer, AckBody, Delivered
from hark.api.types.frames import Error, ServerFrame
from hark.client.builder import PopParams
from hark.client.calling import Caller, CallPolicy, ConnectionFailed, not_hark
from hark.client.delivery.prefetcher import PollSource, check_most
from hark.client.delivery.settling import PiggybackedAcks, SettleDecision, Settler
from hark.client.http import FailoverTransport, HttpTransport, connector, unreachable
from hark.errors import HarkError, InvalidInput, error_of

_STATUS_OF_CODE = {
    "invalid_input": 400,
    "invalid_json": 400,
    "batch_too_large": 400,
    "group_mode_conflict": 409,
    "overloaded": 429,
    "not_supported": 501,
    "internal": 500,
}
_CODE_OF_STATUS = {429: "too_many_streams", 503: "stopping", 404: "not_hark", 403: "forbidden", 401: "unauthorized"}
"""Error codes of rejected connections, whose bodies are not available."""
_KNOWN = frozenset(str(one.__struct_config__.tag) for one in get_args(ServerFrame))
_decode = msgspec.json.Decoder(ServerFrame).decode


class _Kind(msgspec.Struct):
    type: str


def decode_frame(text: str) -> ServerFrame | None:
    """Decode a frame of the server. None for an unknown type of a newer server."""
    try:
        try:
            frame: ServerFrame = _decode(text)
            return frame
        except msgspec.ValidationError:
            if msgspec.json.decode(text, type=_Kind).type in _KNOWN:
                raise
            return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise not_hark(f"a WebSocket frame does not come from a Hark server: {error}; check the URL") from error


def error_in(frame: Error) -> HarkError:
    """The error of an error frame. Unknown codes come from the store and are retryable."""
    return error_of(_STATUS_OF_CODE.get(frame.code, 503), frame.code, frame.error)


HEARTBEAT_SECONDS = 20.0
"""Seconds between pings to an idle server. A server that does not answer within half of that is gone."""
ANSWER_SECONDS = 30.0

_SUBSCRIPTION = "messages"
F = TypeVar("F", frames.Settled, frames.Drained)
T = TypeVar("T")


class Connection:
    """A WebSocket connection, open until `ended` is set. `receive` gets messages, and an empty list at the end."""

    def __init__(
        self, url: str, socket: aiohttp.ClientWebSocketResponse, receive: Callable[[list[Delivered]], None]
    ) -> None:
        self.ended = asyncio.Event()
        self.failure: HarkError | None = None
        """Why the server ended the subscription."""
        self._url = url
        self._socket = socket
        self._receive = receive
        self._refs = 0
        self._waiting: dict[bytes, asyncio.Future[frames.Settled | frames.Drained]] = {}
        self._subscribed = asyncio.Event()
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(
        cls, session: aiohttp.ClientSession, url: str, params: PopParams, receive: Callable[[list[Delivered]], None]
    ) -> Connection:
        """Connect and subscribe, without credit. Raises `ConnectionFailed`, or the server's rejection."""
        address = "ws" + url.removeprefix("http") + operations.CONSUME.path
        try:
            socket = await session.ws_connect(
                address, heartbeat=HEARTBEAT_SECONDS, max_msg_size=0, timeout=aiohttp.ClientWSTimeout(ws_close=2.0)
            )
        except aiohttp.WSServerHandshakeError as error:
            text = f"{url} rejected the WebSocket (status {error.status}): {error.message}"
            raise error_of(error.status, _CODE_OF_STATUS.get(error.status, "error"), text) from error
        except (aiohttp.ClientError, OSError) as error:
            raise unreachable(url, error) from error
        connection = cls(url, socket, receive)
        try:
            await connection._subscribe(params)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def drain(self) -> int:
        """Stop deliveries. Returns the number of unsettled messages when everything in flight has arrived."""
        return (await self._ask(frames.Drained, frames.Drain)).unsettled

    async def settle(self, group: str, items: Sequence[AckBody]) -> list[AckAnswer]:
        """Settle messages of any lease of the group."""
        requests: list[tuple[list[int], Awaitable[frames.Settled]]] = []
        for frame, acks in ((frames.Ack, True), (frames.Nack, False)):
            indexes = [index for index, item in enumerate(items) if (item.status is None) is acks]
            if indexes:
                make = partial(frame, [items[index] for index in indexes], consumer_group=group)
                requests.append((indexes, self._ask(frames.Settled, make)))
        answers: dict[int, AckAnswer] = {}
        for (indexes, _), settled in zip(requests, await asyncio.gather(*(ask for _, ask in requests)), strict=True):
            answers.update(zip(indexes, settled.results, strict=True))
        return [answers[index] for index in range(len(items))]

    async def close(self) -> None:
        """Close the connection."""
        await self._socket.close()
        await self._reader

    # Out ---------------------------------------------------------------------------------------------------

    async def _subscribe(self, params: PopParams) -> None:
        frame: dict[str, object] = {"type": "subscribe", "id": _SUBSCRIPTION, "batch": params.batch}
        frame |= params.scope() | params.parameters()
        # Automatic acks are sent by the client, so that messages are lost only after they were received.
        frame.pop("autoAck", None)
        await self.send(frame)
        await self._within(self._subscribed.wait())
        if self.failure is not None:
            raise self.failure
        if self.ended.is_set():
            raise self._broken()

    async def _ask(self, shape: type[F], make: Callable[..., frames.ClientFrame]) -> F:
        """Send a frame and wait for its answer."""
        self._refs += 1
        ref = b"%d" % self._refs
        answer = self._waiting[ref] = asyncio.get_running_loop().create_future()
        try:
            await self.send(make(ref=msgspec.Raw(ref)))
            frame = await self._within(answer)
        finally:
            self._waiting.pop(ref, None)
            answer.cancel()
        if not isinstance(frame, shape):
            raise not_hark(f"{self._url} sent an unexpected answer over the WebSocket; check that it is a Hark server")
        return frame

    async def _within(self, answer: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer
        except TimeoutError:
            raise ConnectionFailed(f"no answer from {self._url} within {ANSWER_SECONDS:g} s", sent=True) from None

    async def send(self, frame: frames.ClientFrame | dict[str, object]) -> None:
        """Send a frame without waiting for an answer."""
        if self.ended.is_set() or self._socket.closed:
            raise self._broken(sent=False)
        try:
            await self._socket.send_str(msgspec.json.encode(frame).decode())
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken() from error

    # In ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Process frames until the connection ends."""
        try:
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    await self._on_frame(decode_frame(message.data))
                    if self.failure is not None:
                        break
        except (aiohttp.ClientError, OSError):
            pass  # Pending requests get their error below.
        except HarkError as error:
            self.failure = error
        finally:
            self.ended.set()
            self._subscribed.set()
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(self._broken())
            self._receive([])
        await self._socket.close()

    async def _on_frame(self, frame: frames.ServerFrame | None) -> None:
        match frame:
            case frames.Messages():
                self._receive(list(frame.messages))
            case frames.Settled() | frames.Drained():
                if (answer := self._request(frame.ref)) is not None:
                    answer.set_result(frame)
            case frames.Error():
                if frame.ref is msgspec.UNSET:
                    self.failure = error_in(frame)
                elif (answer := self._request(frame.ref)) is not None:
                    answer.set_exception(error_in(frame))
            case frames.Subscribed():
                self._subscribed.set()
            case frames.Ping():
                await self.send(frames.Pong())

    def _request(self, ref: msgspec.Raw) -> asyncio.Future[frames.Settled | frames.Drained] | None:
        """The request with this reference, if it still waits for its answer."""
        answer = self._waiting.get(bytes(ref))
        return None if answer is None or answer.done() else answer

    def _broken(self, *, sent: bool = True) -> ConnectionFailed:
        return ConnectionFailed(f"the WebSocket to {self._url} is closed", sent=sent)


LINGER_SECONDS = 1.0
"""Seconds that a message that arrived too late for one `take` is kept for the next, before it is released."""
CONNECT_SECONDS = 10.0
_CLOSE_SECONDS = 5.0
_RECONNECTING = CallPolicy(first_delay=0.05, max_delay=2.0)
_log = logging.getLogger(__name__)


class SocketSource:
    """Receives messages for one consumer over a WebSocket, only as many as `take` requests.

    So no message is leased that has to wait for its turn. `settler` settles over the same socket, and with HTTP
    requests while there is none. Messages that were delivered before a connection broke stay with the consumer until
    their lease expires; the next `take` reconnects. Belongs to one event loop.
    """

    def __init__(
        self,
        caller: Caller,
        params: PopParams,
        *,
        disconnected: Callable[[], None] = lambda: None,
        linger: float = LINGER_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not params.waits:
            raise InvalidInput("wait: cannot be False over a WebSocket; use an http:// URL to pop without waiting")
        transport = caller.transport
        if transport.fork() is None:
            raise InvalidInput(f"{transport.url}: a server in this process has no WebSockets; use it without ws://")
        servers = transport.servers if isinstance(transport, FailoverTransport) else [transport]
        self._urls = [server.url for server in servers]
        self._http = next((server for server in servers if isinstance(server, HttpTransport)), None)
        """Has the headers and the certificates of all servers."""
        self._params = params
        self._disconnected = disconnected
        """Called when a connection has ended: the messages that it delivered need a renewal."""
        self._linger = linger
        self._monotonic = monotonic
        self._sleep = sleep
        self.settler = Settler(caller, road=self)
        self._session: aiohttp.ClientSession | None = None
        self._connection: Connection | None = None
        self._failures = 0
        """Consecutive connections that failed or broke."""
        self._came: deque[Delivered] = deque()
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._taking = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now."""
        return self._connection is not None and not self._connection.ended.is_set()

    async def take(self, most: int, acks: PiggybackedAcks | None = None) -> list[Delivered]:
        """Receive at most `most` messages, as soon as there are any. None when the time is over."""
        check_most(most)
        if acks is not None:
            acks.not_sent()  # The settler sends them over the same socket.
        async with self._turn:
            self._taking = True
            self._stop_timer()
            try:
                taken = await self._wait_for(min(most, self._params.batch))
            finally:
                self._taking = False
                self._start_timer()
        return await self._settled(taken) if self._params.auto_ack else taken

    async def close(self) -> None:
        """Receive nothing more, release messages that were not taken, and close the connection."""
        if self._closed:
            return
        self._closed = True
        self._changed.set()
        self._stop_timer()
        try:
            async with asyncio.timeout(_CLOSE_SECONDS), self._turn:
                if self._connection is not None:
                    await _quietly(self._connection.drain())
                self._give_back_all()
                if self._tasks:
                    await asyncio.wait(self._tasks)
                await self.settler.drain()
        except TimeoutError:
            text = "WebSocket to %s closed without an answer; messages are redelivered when their leases expire"
            _log.warning(text, ", ".join(self._urls))
        finally:
            self._stop_timer()
            for task in self._tasks:
                task.cancel()
            try:
                if self._connection is not None:
                    await self._connection.close()
            finally:
                if self._session is not None:
                    await self._session.close()

    async def settle(self, group: str, items: Sequence[AckBody]) -> list[AckAnswer]:
        """Settle over the socket, for the settler, which falls back to HTTP."""
        connection = self._connection
        if connection is None or connection.ended.is_set():
            raise ConnectionFailed("no WebSocket is connected", sent=False)
        try:
            answers = await connection.settle(group, items)
        except HarkError as error:
            if not error.retryable or isinstance(error, ConnectionFailed):
                raise
            raise ConnectionFailed(error.text, sent=error.code == "outcome_unknown") from error
        self._give_back_behind(items)
        return answers

    # Waiting -----------------------------------------------------------------------------------------------

    async def _wait_for(self, most: int) -> list[Delivered]:
        """Connect as often as necessary, until messages arrive or the time is over."""
        until = self._monotonic() + self._params.seconds
        failure: HarkError | None = None
        while not self._came:
            if self._closed:
                return []
            left = until - self._monotonic()
            if left <= 0:
                if failure is not None:
                    raise failure
                return []
            try:
                await self._listen(await self._connect(), most, left)
                failure = None
            except HarkError as error:
                if not error.retryable:
                    raise
                failure = error
                self._failures += 1
                await self._sleep(min(left, _RECONNECTING.delay(self._failures)))
        return [self._came.popleft() for _ in range(min(most, len(self._came)))]

    async def _listen(self, connection: Connection, most: int, seconds: float) -> None:
        """Receive until messages have arrived, the time is over, or the connection has ended."""
        unsettled = await connection.drain()
        if self._came:
            return
        self._failures = 0
        self._changed.clear()
        if self._closed:
            return
        try:
            await connection.send(frames.Credit(unsettled + most))
            await connection.send(frames.Resume())
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            pass
        finally:
            await _quietly(connection.send(frames.Pause()))  # Messages in flight still arrive.
        if connection.ended.is_set() and not self._came:
            raise connection.failure or ConnectionFailed("the WebSocket was closed", sent=True)

    async def _connect(self) -> Connection:
        if self._connection is not None:
            if not self._connection.ended.is_set():
                return self._connection
            await self._connection.close()
            self._connection = None
        if self._session is None:
            headers, tls = (None, None) if self._http is None else (self._http.headers, self._http.tls)
            jar = aiohttp.DummyCookieJar()
            self._session = aiohttp.ClientSession(headers=headers, cookie_jar=jar, connector=connector(tls))
        url = self._urls[self._failures % len(self._urls)]
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._connection = await Connection.open(self._session, url, self._params, self._receive)
        except TimeoutError:
            raise ConnectionFailed(f"no connection to {url} within {CONNECT_SECONDS:g} s", sent=False) from None
        if self._closed:
            await self._connection.close()
            raise ConnectionFailed("the consumer was closed while it connected", sent=False)
        return self._connection

    def _receive(self, messages: list[Delivered]) -> None:
        """Store messages of a connection. An empty list means that it has ended."""
        self._came.extend(messages)
        self._changed.set()
        if not messages and not self._closed:
            self._disconnected()
        if not self._taking:
            self._start_timer()

    async def _settled(self, messages: list[Delivered]) -> list[Delivered]:
        """Settle messages before they are returned: at most once. Messages that are not settled are redelivered."""
        outcomes = await self.settler.settle_many([SettleDecision(message) for message in messages])
        return [
            msgspec.structs.replace(message, lease_id="")
            for message, outcome in zip(messages, outcomes, strict=True)
            if outcome.success
        ]

    # Messages that arrived and were not taken --------------------------------------------------------------

    def _start_timer(self) -> None:
        if self._came and self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(self._linger, self._give_back_all)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_back_all(self) -> None:
        self._timer = None
        self._spawn_giving_back(list(self._came))

    def _give_back_behind(self, items: Sequence[AckBody]) -> None:
        """Release waiting messages behind a failed one: the server redelivers the rest of the partition."""
        leases = {item.lease_id for item in items if item.status != "completed"}
        self._spawn_giving_back([message for message in self._came if message.lease_id in leases])

    def _spawn_giving_back(self, messages: list[Delivered]) -> None:
        if not messages:
            return
        gone = {id(message) for message in messages}
        self._came = deque(message for message in self._came if id(message) not in gone)
        task = asyncio.get_running_loop().create_task(self.settler.give_back(messages))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def source_of(
    caller: Caller,
    params: PopParams,
    sockets: bool,
    disconnected: Callable[[], None],
    settler: Settler | None = None,
) -> tuple[PollSource | SocketSource, Settler]:
    """The source of a consumer's messages, and what settles them: with WebSockets, both use the same socket."""
    if sockets and params.seconds:
        source = SocketSource(caller, params, disconnected=disconnected)
        return source, source.settler
    settler = settler or Settler(caller)
    return PollSource(caller, params, settler.give_back), settler


async def _quietly(call: Awaitable[object]) -> None:
    """Ignore errors: the connection is gone, and its leases expire."""
    try:
        await call
    except HarkError as error:
        _log.debug("WebSocket request failed: %s", error)
