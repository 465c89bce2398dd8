"""Changes of keys, as server-sent events and as answers to polls that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from hark.broker import Broker
from hark.broker.watching.watcher import Change, Shown, Watcher
from hark.errors import InvalidInput
from hark.http.checks import bool_param, int_param, query_params
from hark.http.keyval.entries import known_of_text, known_text, version_of, versionstamp, wire_changes
from hark.http.keyval.manner import manner_of
from hark.http.keyval.params import limit_param
from hark.http.keyval.paths import key_param, keys_param
from hark.http.responses import NO_STORE, Receive, Scope, Send, encode, send_failure, send_json, wait_until_left
from hark.http.stream.events import event, send_events
from hark.http.stream.line import Line
from hark.keys import encode_key
from hark.model import Key
from hark.settings import Settings


class KeyWatches:
    """The routes, bound to a broker."""

    def __init__(self, broker: Broker, settings: Settings) -> None:
        self._broker = broker
        self._pop = settings.pop
        self._manner = manner_of(settings)

    async def watch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /keyval/api/watch"""
        try:
            query = query_params(scope["query_string"])
            watcher = await self._broker.keyvalue.watchers.watch_keys(
                keys_param(query, "keys"), initial=bool_param(query, "initial", default=True)
            )
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_events(scope, receive, send, watcher, lambda line: _feed(watcher, line), self._manner)

    async def watch_prefix(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /keyval/api/watch/prefix"""
        try:
            query = query_params(scope["query_string"])
            watcher = await self._broker.keyvalue.watchers.watch_prefix(
                _prefix_param(query), limit_param(query), initial=bool_param(query, "initial", default=True)
            )
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_events(scope, receive, send, watcher, lambda line: _feed(watcher, line), self._manner)

    async def poll(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /keyval/api/watch/poll"""
        try:
            query = query_params(scope["query_string"])
            keys = keys_param(query, "keys")
            shown = _known_param(query, keys)
            wait_seconds = self._wait_param(query)
            watcher = await self._broker.keyvalue.watchers.watch_keys(keys, shown)
            changes = await self._first_changes(watcher, wait_seconds, receive)
            known = [watcher.shown.get(encode_key(key)) for key in keys]
            stamps = ["" if one is None else versionstamp(one.version) for one in known]
            answer = encode({"entries": wire_changes(changes), "versionstamps": stamps})
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_json(send, 200, answer, NO_STORE)

    async def poll_prefix(self, scope: Scope, receive: Receive, send: Send) -> None:
        """GET /keyval/api/watch/prefix/poll"""
        try:
            query = query_params(scope["query_string"])
            prefix = _prefix_param(query)
            shown = known_of_text(query.get("versionstamps", ""), prefix, "versionstamps")
            wait_seconds, limit = self._wait_param(query), limit_param(query)
            watcher = await self._broker.keyvalue.watchers.watch_prefix(prefix, limit, shown)
            changes = await self._first_changes(watcher, wait_seconds, receive)
            answer = encode({"entries": wire_changes(changes), "versionstamps": known_text(watcher.shown)})
        except Exception as error:
            await send_failure(send, error)
        else:
            await send_json(send, 200, answer, NO_STORE)

    async def _first_changes(self, watcher: Watcher, wait_seconds: float, receive: Receive) -> Sequence[Change]:
        left = asyncio.create_task(_close_when_left(receive, watcher))
        try:
            return await self._broker.keyvalue.watchers.first_changes(watcher, wait_seconds)
        finally:
            left.cancel()

    def _wait_param(self, query: Mapping[str, str]) -> float:
        timeout = int_param(query, "timeout", self._pop.default_timeout_ms, 0, self._pop.max_timeout_ms)
        return timeout / 1000 if bool_param(query, "wait") else 0


async def _feed(watcher: Watcher, line: Line) -> None:
    while changes := await watcher.next():
        await line.write(event(b"change", encode(wire_changes(changes))))


async def _close_when_left(receive: Receive, watcher: Watcher) -> None:
    await wait_until_left(receive)
    watcher.close()


def _prefix_param(query: Mapping[str, str]) -> Key:
    """The prefix to watch; clients of the original call it `prefixes`."""
    if prefix := key_param(query, "prefix"):
        return prefix
    if not query.get("prefixes"):
        raise InvalidInput("Missing 'prefix' query parameter")
    prefixes = keys_param(query, "prefixes")
    if len(prefixes) > 1:
        raise InvalidInput(f"prefixes: expected one prefix, got {len(prefixes)}; open a watch for each")
    return prefixes[0]


def _known_param(query: Mapping[str, str], keys: Sequence[Key]) -> dict[bytes, Shown]:
    """What the client knows of its keys, by position; an empty place: that there is nothing."""
    text = query.get("versionstamps", "")
    stamps = text.split(",") if text else []
    if len(stamps) > len(keys):
        raise InvalidInput(f"versionstamps: expected one for each of {len(keys)} keys, got {len(stamps)}")
    return {
        encode_key(key): Shown(key, version_of(stamp, f"versionstamps[{index}]"))
        for index, (key, stamp) in enumerate(zip(keys, stamps, strict=False))
        if stamp
    }
