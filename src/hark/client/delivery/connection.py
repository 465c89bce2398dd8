"""One WebSocket connection to a server, with one subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

import aiohttp

from hark.client.calling import path
from hark.client.delivery import frames
from hark.client.delivery.settling import AckAnswer, AckItem
from hark.client.delivery.sources import Delivered, Wish
from hark.client.transport.api import ConnectionFailed
from hark.client.transport.http import unreachable
from hark.errors import HarkError, error_of

HEARTBEAT_SECONDS = 20.0
"""Seconds between pings to an idle server. A server that does not answer within half of that is gone."""
ANSWER_SECONDS = 30.0

_SUBSCRIPTION = "messages"
F = TypeVar("F", frames.Settled, frames.Drained)


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
        self._waiting: dict[int, asyncio.Future[frames.Settled | frames.Drained]] = {}
        self._subscribed = asyncio.Event()
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(
        cls, session: aiohttp.ClientSession, url: str, wish: Wish, receive: Callable[[list[Delivered]], None]
    ) -> Connection:
        """Connect and subscribe, without credit. Raises `ConnectionFailed`, or the server's rejection."""
        address = "ws" + url.removeprefix("http") + path("consume")
        try:
            socket = await session.ws_connect(
                address, heartbeat=HEARTBEAT_SECONDS, max_msg_size=0, timeout=aiohttp.ClientWSTimeout(ws_close=2.0)
            )
        except aiohttp.WSServerHandshakeError as error:
            text = f"{url} rejected the WebSocket (status {error.status}): {error.message}"
            raise error_of(error.status, _code_of(error.status), text) from error
        except (aiohttp.ClientError, OSError) as error:
            raise unreachable(url, error) from error
        connection = cls(url, socket, receive)
        try:
            await connection._subscribe(wish)
        except BaseException:
            await connection.close()
            raise
        return connection

    async def drain(self) -> int:
        """Stop deliveries. Returns the number of unsettled messages when everything in flight has arrived."""
        return (await self._ask(frames.Drained, frames.Drain)).unsettled

    async def grant(self, credit: int) -> None:
        """Receive messages until this many are unsettled."""
        await self._send(frames.Credit(credit))
        await self._send(frames.Resume())

    async def pause(self) -> None:
        """Pause deliveries. Messages in flight still arrive."""
        await self._send(frames.Pause())

    async def settle(self, group: str, items: Sequence[AckItem]) -> list[AckAnswer]:
        """Settle messages of any lease of the group."""
        done = [index for index, item in enumerate(items) if item.status == "completed"]
        undone = [index for index, item in enumerate(items) if item.status != "completed"]
        answers: dict[int, AckAnswer] = {}
        asked = []
        for frame, indexes in ((frames.Ack, done), (frames.Nack, undone)):
            if indexes:
                part = [items[index] for index in indexes]
                asked.append((indexes, self._ask(frames.Settled, frame, group, part)))
        for (indexes, _), settled in zip(asked, await asyncio.gather(*(ask for _, ask in asked)), strict=True):
            answers.update(zip(indexes, settled.results, strict=True))
        return [answers[index] for index in range(len(items))]

    async def close(self) -> None:
        """Close the connection."""
        await self._socket.close()
        await self._reader

    # Out ---------------------------------------------------------------------------------------------------

    async def _subscribe(self, wish: Wish) -> None:
        place = {"queue": wish.queue, "partition": wish.partition}
        if not wish.queue:
            place = {"namespace": wish.namespace, "task": wish.task}
        frame = {"type": "subscribe", "id": _SUBSCRIPTION, "batch": wish.batch, **place, **wish.parameters()}
        # Automatic acks are sent by the client, so that messages are lost only after they were received.
        frame.pop("autoAck", None)
        await self._write(frames.encode(frame))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._subscribed.wait()
        except TimeoutError:
            raise ConnectionFailed(f"no answer from {self._url} within {ANSWER_SECONDS:g} s", sent=True) from None
        if self.failure is not None:
            raise self.failure
        if self.ended.is_set():
            raise self._broken()

    async def _ask(self, shape: type[F], make: Callable[..., frames.ClientFrame], *fields: object) -> F:
        """Send a frame and wait for its answer."""
        self._refs += 1
        ref = self._refs
        answer = self._waiting[ref] = asyncio.get_running_loop().create_future()
        try:
            await self._send(make(ref, *fields))
            async with asyncio.timeout(ANSWER_SECONDS):
                frame = await answer
        except TimeoutError:
            raise ConnectionFailed(f"no answer from {self._url} within {ANSWER_SECONDS:g} s", sent=True) from None
        finally:
            self._waiting.pop(ref, None)
            answer.cancel()
        if not isinstance(frame, shape):
            text = f"{self._url} sent an unexpected answer over the WebSocket; check that it is a Hark server"
            raise HarkError(text, code="not_hark")
        return frame

    async def _send(self, frame: frames.ClientFrame) -> None:
        await self._write(frames.encode(frame))

    async def _write(self, data: bytes) -> None:
        if self.ended.is_set() or self._socket.closed:
            raise self._broken(sent=False)
        try:
            await self._socket.send_str(data.decode())
        except (aiohttp.ClientError, OSError) as error:
            raise self._broken() from error

    # In ----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Process frames until the connection ends."""
        try:
            async for message in self._socket:
                if message.type is aiohttp.WSMsgType.TEXT:
                    await self._hear(frames.decode_frame(message.data))
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

    async def _hear(self, frame: frames.ServerFrame | None) -> None:
        match frame:
            case frames.Messages():
                self._receive(frame.messages)
            case frames.Settled() | frames.Drained():
                answer = self._waiting.get(frame.ref)
                if answer is not None and not answer.done():
                    answer.set_result(frame)
            case frames.Error():
                self._refused(frame)
            case frames.Subscribed():
                self._subscribed.set()
            case frames.Ping():
                await self._send(frames.Pong())

    def _refused(self, frame: frames.Error) -> None:
        if frame.ref is None:
            self.failure = frames.error_in(frame)
            return
        answer = self._waiting.get(frame.ref)
        if answer is not None and not answer.done():
            answer.set_exception(frames.error_in(frame))

    def _broken(self, *, sent: bool = True) -> ConnectionFailed:
        return ConnectionFailed(f"the WebSocket to {self._url} is closed", sent=sent)


def _code_of(status: int) -> str:
    """The error code for a status before the upgrade, where the body of the error is not available."""
    codes = {429: "too_many_streams", 503: "stopping", 404: "not_hark", 403: "forbidden", 401: "unauthorized"}
    return codes.get(status, "error")
