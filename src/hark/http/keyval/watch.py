"""Changes of keys, as server-sent events and by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from hark.broker import Broker
from hark.broker.watching.watcher import Change, Shown, Watcher
from hark.errors import InvalidInput
from hark.http.answers.keyval import PolledKeys, PolledPrefix
from hark.http.checks import query_params
from hark.http.keyval.entries import known_of_text, known_text, version_of, versionstamp, wire_changes
from hark.http.keyval.manner import manner_of
from hark.http.keyval.params import BASE, LIMIT
from hark.http.keyval.paths import KEYS, PREFIX, KeysParam
from hark.http.params import BoolParam, Param
from hark.http.pops import timeout_param
from hark.http.responses import (
    UNCACHED_JSON,
    Receive,
    Scope,
    Send,
    encode,
    send_failure,
    send_response,
    wait_until_left,
)
from hark.http.routes.table import EVENTS, Reach, Table, read
from hark.http.stream.events import event, send_events
from hark.http.stream.line import Line
from hark.keys import encode_key
from hark.model import Key
from hark.settings import Settings

_PREFIXES = KeysParam("prefixes", "Alias of `prefix`, for compatibility. One prefix only.")
_INITIAL = BoolParam("initial", "Send the current entries first.", True)
_VERSIONSTAMPS = Param(
    "versionstamps", "The `versionstamps` of the previous response. The response has only entries that changed since."
)
_WAIT = BoolParam("wait", "Wait until an entry changes, for at most `timeout` milliseconds.")


class KeyWatches:
    """The routes that watch keys, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._timeout = timeout_param(settings)
        self._manner = manner_of(settings)

    def table(self) -> Table:
        """Return the table of these routes."""
        return {
            f"{BASE}/watch": {
                "GET": read(self.watch_keys, Reach.SERVER, query=(KEYS, _INITIAL), answer=str, media=EVENTS, raw=True)
            },
            f"{BASE}/watch/poll": {
                "GET": read(
                    self.poll_keys,
                    Reach.SERVER,
                    query=(KEYS, _VERSIONSTAMPS, _WAIT, self._timeout),
                    answer=PolledKeys,
                    raw=True,
                )
            },
            f"{BASE}/watch/prefix": {
                "GET": read(
                    self.watch_prefix,
                    Reach.SERVER,
                    query=(PREFIX, _PREFIXES, LIMIT, _INITIAL),
                    answer=str,
                    media=EVENTS,
                    raw=True,
                )
            },
            f"{BASE}/watch/prefix/poll": {
                "GET": read(
                    self.poll_prefix,
                    Reach.SERVER,
                    query=(PREFIX, _PREFIXES, LIMIT, _VERSIONSTAMPS, _WAIT, self._timeout),
                    answer=PolledPrefix,
                    raw=True,
                )
            },
        }

    async def watch_keys(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch keys.

        Sends a server-sent event `change` with the changed entries whenever one of the keys changes. A deleted key has
        null as its value and versionstamp.
        """
        try:
            query = query_params(scope["query_string"])
            watcher = await self._broker.keyvalue.watchers.watch_keys(KEYS.of(query), initial=_INITIAL.of(query))
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_events(scope, receive, send, watcher, lambda line: _feed(watcher, line), self._manner)

    async def watch_prefix(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Watch a prefix.

        Sends a server-sent event `change` with the changed entries whenever a key below the prefix changes. A deleted
        key has null as its value and versionstamp.
        """
        try:
            query = query_params(scope["query_string"])
            watcher = await self._broker.keyvalue.watchers.watch_prefix(
                _prefix_param(query), LIMIT.of(query), initial=_INITIAL.of(query)
            )
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_events(scope, receive, send, watcher, lambda line: _feed(watcher, line), self._manner)

    async def poll_keys(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Poll keys for changes.

        Returns the entries that changed since the versionstamps of the previous response. With `wait=true` the request
        waits until an entry changes.
        """
        try:
            query = query_params(scope["query_string"])
            keys = KEYS.of(query)
            shown = _known_param(query, keys)
            wait_seconds = self._wait_param(query)
            watcher = await self._broker.keyvalue.watchers.watch_keys(keys, shown)
            changes = await self._first_changes(watcher, wait_seconds, receive)
            known = [watcher.shown.get(encode_key(key)) for key in keys]
            stamps = ["" if one is None else versionstamp(one.version) for one in known]
            polled: PolledKeys = {"entries": wire_changes(changes), "versionstamps": stamps}
            answer = encode(polled)
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_response(send, (200, UNCACHED_JSON, answer))

    async def poll_prefix(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Poll a prefix for changes.

        Returns the entries below the prefix that changed since the versionstamps of the previous response. With
        `wait=true` the request waits until an entry changes.
        """
        try:
            query = query_params(scope["query_string"])
            prefix = _prefix_param(query)
            shown = known_of_text(_VERSIONSTAMPS.text(query) or "", prefix, _VERSIONSTAMPS.name)
            wait_seconds, limit = self._wait_param(query), LIMIT.of(query)
            watcher = await self._broker.keyvalue.watchers.watch_prefix(prefix, limit, shown)
            changes = await self._first_changes(watcher, wait_seconds, receive)
            polled: PolledPrefix = {"entries": wire_changes(changes), "versionstamps": known_text(watcher.shown)}
            answer = encode(polled)
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_response(send, (200, UNCACHED_JSON, answer))

    async def _first_changes(self, watcher: Watcher, wait_seconds: float, receive: Receive) -> Sequence[Change]:
        left = asyncio.create_task(_close_when_left(receive, watcher))
        try:
            return await self._broker.keyvalue.watchers.first_changes(watcher, wait_seconds)
        finally:
            left.cancel()

    def _wait_param(self, query: Mapping[str, str]) -> float:
        timeout = self._timeout.of(query)
        return timeout / 1000 if _WAIT.of(query) else 0


async def _feed(watcher: Watcher, line: Line) -> None:
    while changes := await watcher.next():
        await line.write(event(b"change", encode(wire_changes(changes))))


async def _close_when_left(receive: Receive, watcher: Watcher) -> None:
    await wait_until_left(receive)
    watcher.close()


def _prefix_param(query: Mapping[str, str]) -> Key:
    """Return the prefix to watch; some clients send it as `prefixes`."""
    if prefix := PREFIX.of(query):
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
        encode_key(key): Shown(key, version_of(stamp, f"versionstamps[{index}]"))
        for index, (key, stamp) in enumerate(zip(keys, stamps, strict=False))
        if stamp
    }
