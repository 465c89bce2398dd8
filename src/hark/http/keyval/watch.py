"""Event streams of the key-value API: changes of keys, and messages of a work queue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from hark.api import operations, types
from hark.broker import Broker
from hark.broker.delivery.stream import Arrival, Stream
from hark.broker.keyvalue import Change, Shown, Watcher
from hark.errors import InvalidInput
from hark.http.admission import identity_of, permitted_labels
from hark.http.checks import query_params
from hark.http.exchange import exchange_of
from hark.http.keyval import paths
from hark.http.keyval.paths import answered
from hark.http.keyval.queue import wire_messages
from hark.http.pops import CONSUMER, named, prefetch_param, timeout_param, wait_seconds
from hark.http.responses import UNCACHED_JSON, Receive, Scope, Send, encode
from hark.http.routing import ANOTHER_MODE, EVENTS, BoolParam, Param, Query, Table, bind, table
from hark.http.sse import ClientWriter, SseOptions, close_when_left, event, send_events, take
from hark.keys import encode_key
from hark.model import Key
from hark.settings import Settings

_OPENING = b"retry: 1000\n\n"
"""Milliseconds after which a client reconnects when the connection is lost."""
_IDLE_SECONDS = 0.1
"""Time after which an idle client receives the first ping."""


MAX_PREFETCH = 10_000

_PREFIXES = paths.KeysParam("prefixes", "Alias of `prefix`, for compatibility. One prefix only.")
_INITIAL = BoolParam("initial", "Send the current entries first.", True)
_VERSIONSTAMPS = Param(
    "versionstamps", "The `versionstamps` of the previous response. The response has only entries that changed since."
)
_WAIT = BoolParam("wait", "Wait until an entry changes, for at most `timeout` milliseconds.")


class KeyvalStreams:
    """The routes that watch keys or listen to a work queue, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self.broker = broker
        self._timeout = timeout_param(settings)
        self._prefetch = prefetch_param(settings.queue.prefetch, MAX_PREFETCH)
        self._sse_options = SseOptions(
            opening=_OPENING,
            ping=event(b"ping", b""),
            ping_seconds=settings.queue.ping_interval_ms / 1000,
            first_ping_seconds=_IDLE_SECONDS,
            stall_seconds=settings.limits.stalled_seconds,
            cache_control=b"no-cache, no-store",
        )

    def table(self) -> Table:
        """Return the table of these routes."""
        prefix = (paths.PREFIX, _PREFIXES, paths.LIMIT)
        wait = (_VERSIONSTAMPS, _WAIT, self._timeout)
        listen = (paths.QUEUE, self._prefetch, CONSUMER)
        modes = (ANOTHER_MODE,)
        return table(
            bind(operations.KEYVAL_LISTEN, self.listen, query=listen, media=EVENTS, errors=modes, raw=True),
            bind(operations.KEYVAL_WATCH_KEYS, self.watch_keys, query=(paths.KEYS, _INITIAL), media=EVENTS, raw=True),
            bind(operations.KEYVAL_POLL_KEYS, self.poll_keys, query=(paths.KEYS, *wait), raw=True),
            bind(operations.KEYVAL_WATCH_PREFIX, self.watch_prefix, query=(*prefix, _INITIAL), media=EVENTS, raw=True),
            bind(operations.KEYVAL_POLL_PREFIX, self.poll_prefix, query=(*prefix, *wait), raw=True),
        )

    # Keys --------------------------------------------------------------------------------------------------

    async def watch_keys(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch keys.

        Sends a server-sent event `change` with the changed entries whenever one of the keys changes. A deleted key has
        null as its value and versionstamp.
        """

        def opened(query: Query) -> Awaitable[Watcher]:
            return self.broker.keyvalue.watchers.watch_keys(paths.KEYS.of(query), initial=_INITIAL.of(query))

        await self._watch(scope, receive, send, opened)

    async def watch_prefix(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch a prefix.

        Sends a server-sent event `change` with the changed entries whenever a key below the prefix changes. A deleted
        key has null as its value and versionstamp.
        """

        def opened(query: Query) -> Awaitable[Watcher]:
            prefix, limit = _prefix_param(query), paths.LIMIT.of(query)
            return self.broker.keyvalue.watchers.watch_prefix(prefix, limit, initial=_INITIAL.of(query))

        await self._watch(scope, receive, send, opened)

    async def _watch(
        self, scope: Scope, receive: Receive, send: Send, opened: Callable[[Query], Awaitable[Watcher]]
    ) -> None:
        query = scope["query_string"]
        await send_events(scope, receive, send, lambda: opened(query_params(query)), _write_changes, self._sse_options)

    @answered(None, UNCACHED_JSON)
    async def poll_keys(self, scope: Scope, receive: Receive) -> types.keys.PolledEntries[tuple[str, ...]]:
        """Poll keys for changes.

        Returns the entries that changed since the versionstamps of the previous response. With `wait=true` the request
        waits until an entry changes.
        """
        query = query_params(scope["query_string"])
        keys = paths.KEYS.of(query)
        shown, seconds = _known_param(query, keys), wait_seconds(query, _WAIT, self._timeout)
        watcher = await self.broker.keyvalue.watchers.watch_keys(keys, shown)
        changes = await self._first_changes(watcher, seconds, receive)
        known = [watcher.shown.get(encode_key(key)) for key in keys]
        stamps = tuple("" if one is None else paths.versionstamp(one.version) for one in known)
        return types.keys.PolledKeys(paths.wire_changes(changes), stamps)

    @answered(None, UNCACHED_JSON)
    async def poll_prefix(self, scope: Scope, receive: Receive) -> types.keys.PolledEntries[str]:
        """Poll a prefix for changes.

        Returns the entries below the prefix that changed since the versionstamps of the previous response. With
        `wait=true` the request waits until an entry changes.
        """
        query = query_params(scope["query_string"])
        prefix = _prefix_param(query)
        shown = paths.known_of_text(_VERSIONSTAMPS.text(query) or "", prefix, _VERSIONSTAMPS.name)
        seconds, limit = wait_seconds(query, _WAIT, self._timeout), paths.LIMIT.of(query)
        watcher = await self.broker.keyvalue.watchers.watch_prefix(prefix, limit, shown)
        changes = await self._first_changes(watcher, seconds, receive)
        return types.keys.PolledPrefix(paths.wire_changes(changes), paths.known_text(watcher.shown))

    async def _first_changes(self, watcher: Watcher, seconds: float, receive: Receive) -> Sequence[Change]:
        left = asyncio.create_task(close_when_left(receive, watcher))
        try:
            return await self.broker.keyvalue.watchers.first_changes(watcher, seconds)
        finally:
            left.cancel()

    # Work queues -------------------------------------------------------------------------------------------

    async def listen(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream messages of a work queue.

        Sends each message as a server-sent event `message` as soon as it is available, and an event `ping` while there
        is none. Acknowledge each message with POST /keyval/api/queue/ack and its receipt.
        """
        await send_events(scope, receive, send, lambda: self._open(scope), self._write_messages, self._sse_options)

    async def _open(self, scope: Scope) -> Stream:
        query = query_params(scope["query_string"])
        queue = paths.queue_param(query)
        prefetch = self._prefetch.of(query)
        work = self.broker.work_queues
        await work.prepare({queue: permitted_labels(identity_of(scope), queue)})
        stream = self.broker.delivery.streams.open(prefetch, mute=True)
        # One message at a time, so that several listeners share the messages evenly.
        stream.subscribe("", named(work.pop_request(queue, CONSUMER.of(query) or ""), exchange_of(scope)))
        return stream

    async def _write_messages(self, stream: Stream, writer: ClientWriter) -> None:
        await take(stream, writer, self._events)

    def _events(self, arrival: Arrival) -> bytes:
        with self.broker.operations.measure("queue_dequeue"):
            messages = wire_messages(arrival.result)
            return b"".join(event(b"message", encode(message), message.id.encode()) for message in messages)


async def _write_changes(watcher: Watcher, writer: ClientWriter) -> None:
    while changes := await watcher.next():
        await writer.write(event(b"change", encode(paths.wire_changes(changes))))


def _prefix_param(query: Mapping[str, str]) -> Key:
    """Return the prefix to watch; some clients send it as `prefixes`."""
    if prefix := paths.PREFIX.of(query):
        return prefix
    if not query.get(_PREFIXES.name):
        raise InvalidInput("Missing 'prefix' query parameter")
    prefixes = _PREFIXES.of(query)
    if len(prefixes) > 1:
        raise InvalidInput(f"prefixes: expected one prefix, got {len(prefixes)}; open a separate watch for each prefix")
    return prefixes[0]


def _known_param(query: Mapping[str, str], keys: Sequence[Key]) -> dict[bytes, Shown]:
    """Return the versions that the client knows, in the order of its keys. Empty: the key did not exist."""
    text = _VERSIONSTAMPS.text(query)
    stamps = text.split(",") if text else []
    if len(stamps) > len(keys):
        raise InvalidInput(f"versionstamps: expected at most one for each of the {len(keys)} keys, got {len(stamps)}")
    return {
        encode_key(key): Shown(key, paths.version_of(stamp, f"versionstamps[{index}]"))
        for index, (key, stamp) in enumerate(zip(keys, stamps, strict=False))
        if stamp
    }
