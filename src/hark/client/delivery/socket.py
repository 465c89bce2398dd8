"""Receives messages over a WebSocket, and reconnects when a connection breaks."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence

import aiohttp
import msgspec

from hark.client.calling import Caller, CallPolicy
from hark.client.delivery.connection import Connection
from hark.client.delivery.settling import AckAnswer, AckItem, PiggybackedAcks, Settler, Verdict
from hark.client.delivery.sources import Delivered, Wish, check_most
from hark.client.transport.api import ConnectionFailed, Transport
from hark.client.transport.failover import FailoverTransport
from hark.client.transport.http import HttpTransport, connector
from hark.errors import HarkError, InvalidInput

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
        wish: Wish,
        *,
        headers: Mapping[str, str] | None = None,
        reconnecting: CallPolicy = _RECONNECTING,
        linger: float = LINGER_SECONDS,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        if not wish.wait:
            raise InvalidInput("wait: cannot be False over a WebSocket; use an http:// URL to pop without waiting")
        self._urls = _urls_of(caller.transport)
        self._tls = _tls_of(caller.transport)
        self._wish = wish
        self._headers = dict(headers or {})
        self._reconnecting = reconnecting
        self._linger = linger
        self._monotonic = monotonic
        self._sleep = sleep
        self.settler = Settler(caller, road=self)
        self._session: aiohttp.ClientSession | None = None
        self._connection: Connection | None = None
        self._failures = 0
        """Consecutive connections that failed or broke."""
        self._came: deque[Delivered] = deque()
        self._news = asyncio.Event()
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
                taken = await self._wait_for(min(most, self._wish.batch))
            finally:
                self._taking = False
                self._start_timer()
        return await self._settled(taken) if self._wish.auto_ack else taken

    async def close(self) -> None:
        """Receive nothing more, release messages that were not taken, and close the connection."""
        if self._closed:
            return
        self._closed = True
        self._news.set()
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
            _log.warning(
                "WebSocket to %s closed without an answer; messages are redelivered when their leases expire",
                ", ".join(self._urls),
            )
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

    async def settle(self, group: str, items: Sequence[AckItem]) -> list[AckAnswer]:
        """Settle over the socket, for the settler, which falls back to HTTP. See `settling.Road`."""
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
        until = self._monotonic() + self._wish.seconds
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
                await self._sleep(min(left, self._pause_after_failure()))
        return [self._came.popleft() for _ in range(min(most, len(self._came)))]

    async def _listen(self, connection: Connection, most: int, seconds: float) -> None:
        """Receive until messages have arrived, the time is over, or the connection has ended."""
        unsettled = await connection.drain()
        if self._came:
            return
        self._failures = 0
        self._news.clear()
        if self._closed:
            return
        try:
            await connection.grant(unsettled + most)
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
        finally:
            await _quietly(connection.pause())
        if connection.ended.is_set() and not self._came:
            raise connection.failure or ConnectionFailed("the WebSocket was closed", sent=True)

    async def _connect(self) -> Connection:
        if self._connection is not None:
            if not self._connection.ended.is_set():
                return self._connection
            await self._connection.close()
            self._connection = None
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                cookie_jar=aiohttp.DummyCookieJar(),
                connector=connector(self._tls),
            )
        url = self._urls[self._failures % len(self._urls)]
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._connection = await Connection.open(self._session, url, self._wish, self._receive)
        except TimeoutError:
            raise ConnectionFailed(f"no connection to {url} within {CONNECT_SECONDS:g} s", sent=False) from None
        if self._closed:
            await self._connection.close()
            raise ConnectionFailed("the consumer was closed while it connected", sent=False)
        return self._connection

    def _pause_after_failure(self) -> float:
        self._failures += 1
        return self._reconnecting.delay(self._failures)

    def _receive(self, messages: list[Delivered]) -> None:
        """Store messages of a connection. An empty list means that it has ended."""
        self._came.extend(messages)
        self._news.set()
        if not self._taking:
            self._start_timer()

    async def _settled(self, messages: list[Delivered]) -> list[Delivered]:
        """Settle messages before they are returned: at most once. Messages that are not settled are redelivered."""
        outcomes = await self.settler.settle_many([Verdict(message) for message in messages])
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

    def _give_back_behind(self, items: Sequence[AckItem]) -> None:
        """Release waiting messages behind a failed one: the server redelivers the rest of the partition."""
        leases = {item.lease_id for item in items if item.status in ("failed", "retry")}
        self._spawn_giving_back([message for message in self._came if message.lease_id in leases])

    def _spawn_giving_back(self, messages: list[Delivered]) -> None:
        if not messages:
            return
        gone = {id(message) for message in messages}
        self._came = deque(message for message in self._came if id(message) not in gone)
        task = asyncio.get_running_loop().create_task(self.settler.give_back(messages))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _urls_of(transport: Transport) -> tuple[str, ...]:
    if isinstance(transport, FailoverTransport):
        return transport.urls
    if transport.fork() is None:
        raise InvalidInput(f"{transport.url}: a server in this process has no WebSockets; use it without ws://")
    return (transport.url,)


def _tls_of(transport: Transport) -> ssl.SSLContext | None:
    return transport.tls if isinstance(transport, HttpTransport | FailoverTransport) else None


async def _quietly(call: Awaitable[object]) -> None:
    """Ignore errors: the connection is gone, and its leases expire."""
    try:
        await call
    except HarkError as error:
        _log.debug("WebSocket request failed: %s", error)
