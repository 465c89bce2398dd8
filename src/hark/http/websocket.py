"""Consumers over WebSocket: GET /api/v1/consume."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import UNSET, UnsetType

from hark.access.tokens import Identity
from hark.api import operations
from hark.api.operations import Role
from hark.api.types import frames
from hark.api.types.delivery import AckBody
from hark.api.types.frames import ClientFrame, Error, Ping, ServerFrame
from hark.broker import Broker
from hark.broker.delivery.browsers import Browser
from hark.broker.delivery.stream import Arrival, Stream
from hark.errors import Conflict, HarkError, InvalidInput, NotFound
from hark.http.admission import check_pop, check_role, identity_of, settle
from hark.http.checks import check_int, check_name, decode_json, query_params, short
from hark.http.exchange import exchange_of
from hark.http.items import ack_answers, renew_all, settlement_of, too_many
from hark.http.pops import browsed_messages, caller, wire_messages
from hark.http.responses import Receive, Scope, Send, encode, error_response, known_error, refuse_websocket
from hark.http.routing import IntParam, Table, bind, table
from hark.http.sse import PING_SECONDS, Browsing, ClientWriter, Gone, subscribing
from hark.http.wire.asgi import TRANSPORT
from hark.model import QUEUE_MODE, Settlement
from hark.settings import Settings

_MAX_LABEL_BYTES = 4096
"""Maximum size of a `ref` or `id` that an answer repeats: to repeat one of 10 MB takes the event loop 100 ms."""
_TEXTS = {
    "type": "type: expected subscribe, unsubscribe, credit, ack, nack, renew, pause, resume, drain, ping or pong",
}


def decode_frame(text: str) -> ClientFrame:
    """Decode a frame of a client. Errors name the invalid field."""
    # (A union is no type to mypy, though it is one to msgspec.)
    frame: ClientFrame = decode_json(text.encode(), ClientFrame, "frame", _TEXTS)  # type: ignore[arg-type]
    if _is_long(getattr(frame, "ref", UNSET)):
        raise InvalidInput(f"ref: must be at most {_MAX_LABEL_BYTES} bytes")
    return frame


def _is_long(label: msgspec.Raw | UnsetType) -> bool:
    return label is not UNSET and memoryview(label).nbytes > _MAX_LABEL_BYTES


def refused(text: str | None, error: HarkError) -> Error:
    """Return the error frame for a rejected frame, with its `ref` and `id` if they are short and can be read."""
    try:
        labels = msgspec.json.decode(text or "", type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        labels = {}
    ref, id = (UNSET if _is_long(label) else label for label in (labels.get("ref", UNSET), labels.get("id", UNSET)))
    return Error(ref=ref, id=id, error=error.text, code=error.code)


MAX_SUBSCRIPTIONS = 1000
_NACKS = ("failed", "retry", "dlq")
_SLACK = 64


class Connection:
    """One client with its stream and its queue browsers."""

    def __init__(
        self, broker: Broker, settings: Settings, stream: Stream, writer: ClientWriter, identity: Identity, caller: str
    ) -> None:
        self._broker = broker
        self._identity = identity
        self._caller = caller
        self._settings = settings
        self._stream = stream
        self._writer = writer
        self._browsers: dict[str, Browser] = {}
        self._groups: dict[str, str] = {}
        """Groups of the leases that were delivered on this connection. Expired leases are removed from time to time."""
        self._most_groups = _SLACK
        self._drained = asyncio.Event()
        self._resumed = asyncio.Event()

    def close(self) -> None:
        """Close the queue browsers."""
        for browser in self._browsers.values():
            browser.close()
        self._browsers.clear()

    # Out ---------------------------------------------------------------------------------------------------

    async def deliver(self) -> None:
        """Write deliveries to the client until the stream is closed."""
        stream = self._stream
        while not stream.closed:
            arrival = await stream.next()
            if arrival is None:
                self._drained.set()
                await self._resumed.wait()
                continue
            try:
                await self._hand_over(arrival)
            except BaseException:
                stream.lost(arrival)
                raise
            stream.written()

    async def _hand_over(self, arrival: Arrival) -> None:
        consumer, result, error = arrival
        if error is not None:
            await self._write(_ended(consumer.name, error))
        elif self._stream.consumers.get(consumer.name) is not consumer:
            self._stream.lost(arrival)  # The client unsubscribed before the delivery was written.
        else:
            group = consumer.request.group
            self._remember(result.lease_id, group)
            await self._write(frames.Messages(consumer.name, result.lease_id, wire_messages(group, result)))

    async def _browse(self, name: str, browser: Browser) -> None:
        try:
            while (messages := await browser.next()) and not browser.closed:
                await self._write(frames.Messages(name, "", browsed_messages(messages)))
        except HarkError as error:
            await self._write(_ended(name, error))
        finally:
            self._leave(name, browser)

    def _leave(self, name: str, browser: Browser) -> None:
        browser.close()
        if self._browsers.get(name) is browser:
            del self._browsers[name]

    async def _write(self, frame: ServerFrame) -> None:
        await self._writer.write(encode(frame))

    def _remember(self, lease_id: str, group: str) -> None:
        if not lease_id or group == QUEUE_MODE:
            return
        if len(self._groups) >= self._most_groups:
            leased = frozenset(self._stream.leases())
            self._groups = {lease: name for lease, name in self._groups.items() if lease in leased}
            self._most_groups = 2 * len(self._groups) + _SLACK
        self._groups[lease_id] = group

    # In ----------------------------------------------------------------------------------------------------

    async def obey(self, receive: Receive, tasks: asyncio.TaskGroup) -> None:
        """Handle the frames of the client, one after the other, until it disconnects."""
        while (event := await receive())["type"] != "websocket.disconnect":
            self._stream.spoke()
            text = event.get("text")
            try:
                if text is None:
                    raise InvalidInput("frame: expected a text frame with a JSON object, got a binary frame")
                answer = await self._do(decode_frame(text), tasks)
            except Exception as error:
                answer = refused(text, known_error(error))
            if answer is not None:
                await self._write(answer)

    async def _do(self, frame: ClientFrame, tasks: asyncio.TaskGroup) -> ServerFrame | None:
        match frame:
            case frames.Ack() | frames.Nack():
                check_role(self._identity, Role.READ_WRITE)
                items = self._settlements(frame)
                outcomes = await settle(self._identity, self._broker, items) if items else []
                return frames.Settled(frame.ref, ack_answers(outcomes))
            case frames.Credit():
                self._stream.grant(check_int(frame.n, "n", 0, self._settings.limits.max_batch))
            case frames.Subscribe():
                return await self._subscribe(frame, tasks)
            case frames.Unsubscribe():
                return self._unsubscribe(frame.id)
            case frames.Renew():
                check_role(self._identity, Role.READ_WRITE)
                most = self._settings.limits.max_batch
                return frames.Renewed(frame.ref, await renew_all(self._broker, frame.lease_ids, frame.seconds, most))
            case frames.Pause():
                self._stream.pause()
            case frames.Resume():
                self._drained.clear()
                self._stream.resume()
                self._resumed.set()
            case frames.Drain():
                self._resumed.clear()
                self._stream.drain()
                await self._drained.wait()
                return frames.Drained(frame.ref, self._stream.unsettled)
            case frames.Ping():
                return frames.Pong()
            case frames.Pong():
                pass
        return None

    async def _subscribe(self, frame: frames.Subscribe, tasks: asyncio.TaskGroup) -> ServerFrame:
        name = check_name(frame.id, "id")
        params = subscribing(msgspec.to_builtins(frame), self._settings)
        if name in self._browsers or name in self._stream.consumers:
            raise Conflict(
                f"id: the subscription {short(name)} exists already; choose another id", code="subscription_exists"
            )
        if len(self._browsers) + len(self._stream.consumers) >= MAX_SUBSCRIPTIONS:
            raise InvalidInput(f"a connection has at most {MAX_SUBSCRIPTIONS} subscriptions; open another connection")
        if isinstance(params, Browsing):
            self._identity.check_queue(params.queue)
            browser = await self._broker.delivery.browsers.open(params.queue, params.partition, params.start)
            self._browsers[name] = browser
            tasks.create_task(self._browse(name, browser))
        else:
            check_role(self._identity, Role.READ_WRITE)
            check_pop(self._identity, params.request)
            request = msgspec.structs.replace(params.request, consumer=params.request.consumer or self._caller)
            self._stream.subscribe(name, request, params.priority)
        return frames.Subscribed(name)

    def _unsubscribe(self, name: str) -> ServerFrame:
        browser = self._browsers.get(name)
        if browser is not None:
            self._leave(name, browser)
        elif not self._stream.unsubscribe(name):
            raise NotFound(
                f"id: the subscription {short(name)} does not exist on this connection", code="subscription_not_found"
            )
        return frames.Unsubscribed(name)

    def _settlements(self, frame: frames.Ack | frames.Nack) -> list[Settlement]:
        items, most = frame.items, self._settings.limits.max_batch
        if len(items) > most:
            raise too_many("items", most, len(items), "frame")
        settlements = []
        for index, item in enumerate(items):
            where = f"items[{index}]."
            if isinstance(frame, frames.Nack):
                item.status = item.status or "failed"
                if item.status not in _NACKS:
                    raise InvalidInput(f"{where}status: expected failed, retry or dlq, got {short(item.status)}")
            elif item.status not in (None, "completed"):
                raise InvalidInput(
                    f"{where}status: expected completed in an ack frame, got {short(item.status)}; send a nack frame"
                )
            settlements.append(settlement_of(item, self._group_of(item, frame.consumer_group, where), where))
        return settlements

    def _group_of(self, item: AckBody, group: str | None, where: str) -> str:
        if item.consumer_group:
            return check_name(item.consumer_group, f"{where}consumerGroup")
        if group:
            return check_name(group, "consumerGroup")
        return self._groups.get(item.lease_id or "", QUEUE_MODE)


def _ended(name: str, error: HarkError) -> frames.Error:
    return frames.Error(id=msgspec.Raw(encode(name)), error=error.text, code=error.code)


class WebSockets:
    """The route, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings, ping_seconds: float = PING_SECONDS) -> None:
        self._broker = broker
        self._settings = settings
        self._ping_seconds = ping_seconds
        self._credit = IntParam(
            "credit",
            "Initial credit: maximum number of unacknowledged messages that the client holds. A frame `credit` "
            "changes it.",
            0,
            0,
            settings.limits.max_batch,
        )

    def table(self) -> Table:
        """Return the table of this route."""
        return table(bind(operations.CONSUME, self.consume, query=(self._credit,), answer={101: None}, raw=True))

    async def consume(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Consume over WebSocket.

        Opens a WebSocket connection. The client sends frames to subscribe, to grant credit, and to acknowledge, reject
        and renew messages. Frames are JSON objects with a field `type`. Subscriptions that receive messages, and frames
        that settle or renew them, require the role read-write.
        """
        try:
            credit = self._credit.of(query_params(scope["query_string"]))
            stream = self._broker.delivery.streams.open(credit)
        except Exception as error:
            await refuse_websocket(receive, send, error_response(error))
            return
        await receive()  # The connect event.
        try:
            await send({"type": "websocket.accept"})
            await self._talk(stream, scope, receive, send)
        except OSError:
            return  # The client disconnected during the handshake.
        finally:
            stream.close()

    async def _talk(self, stream: Stream, scope: Scope, receive: Receive, send: Send) -> None:
        async def put(data: bytes) -> None:
            # Without data this writes nothing and waits like any other, which `ClientWriter` relies on.
            await send({"type": "websocket.send", "text": data.decode() if data else None})

        limits = self._settings.limits
        writer = ClientWriter(
            put,
            scope[TRANSPORT],
            stall_seconds=limits.stalled_seconds,
            ping=encode(Ping()),
            ping_seconds=self._ping_seconds,
        )
        connection = Connection(
            self._broker, self._settings, stream, writer, identity_of(scope), caller(exchange_of(scope))
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(writer.keep_alive())
                tasks.create_task(connection.deliver())
                await connection.obey(receive, tasks)
                raise Gone  # Ends the other tasks of this client.
        except* Gone:
            pass
        finally:
            connection.close()
