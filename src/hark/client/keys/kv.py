"""The key-value store: values under ordered keys, with versions, expiry, atomic writes and watches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from urllib.parse import quote

import msgspec

from hark.client.calling import Caller
from hark.client.keys.entries import Entry, KeyPage, WireEntry
from hark.client.keys.watching import KeyWatch, watch_keys, watch_prefix
from hark.client.parameters import KeyParts, key_of, key_text, time_to_live
from hark.client.producing.atomic import Atomic
from hark.client.values import json_value
from hark.errors import InvalidInput, NotFound
from hark.keys import MAX_KEYS
from hark.model import Key

_KEYS = "/keyval/api/keys"


class KeyValue:
    """The key-value store of the server, `client.kv`.

    A key is a tuple of strings, numbers and booleans, such as `("users", 17)`. Values are JSON.

    ```python
    await client.kv.set(("users", 17), {"name": "Ada"}, expires_in=3600)
    entry = await client.kv.get(("users", 17))
    ```
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Entries -----------------------------------------------------------------------------------------------

    async def get(self, key: KeyParts) -> Entry | None:
        """The entry of a key. None if the key does not exist."""
        try:
            found = await self._caller.read(WireEntry, "GET", _path(key_of(key)))
        except NotFound as error:
            if error.code != "key_not_found":
                raise
            return None
        return found.entry()

    async def get_many(self, keys: Sequence[KeyParts]) -> list[Entry | None]:
        """The entries of several keys, in their order. None where a key does not exist."""
        checked = _several(keys)
        found: list[Entry | None] = []
        for start in range(0, len(checked), MAX_KEYS):
            body = {"keys": checked[start : start + MAX_KEYS]}
            page = await self._caller.read(list[WireEntry], "POST", f"{_KEYS}/batch", body=body, safe=True)
            found += [entry.entry() for entry in page]
        return found

    async def set(self, key: KeyParts, value: object, *, expires_in: float | timedelta | None = None) -> str:
        """Set the value of a key. Returns its new versionstamp.

        `expires_in` is a time to live in seconds (or a `timedelta`). The default is no expiry.
        """
        answer = await self._caller.read(
            _Written,
            "PUT",
            _path(key_of(key)),
            query={"expiresIn": time_to_live(expires_in, "expires_in")},
            raw_body=bytes(json_value(value, "value")),
        )
        return answer.versionstamp

    async def delete(self, key: KeyParts, *, exact: bool = True) -> int:
        """Delete a key. Returns the number of deleted entries.

        With `exact=False`, it deletes the key and all keys below it. If the request is repeated after a lost reply, the
        number is that of the second request.
        """
        answer = await self._caller.read(_Deleted, "DELETE", _path(key_of(key)), query={"exact": exact})
        return answer.deleted_count

    async def delete_many(self, keys: Sequence[KeyParts], *, exact: bool = True) -> int:
        """Delete several keys in one commit. Returns the number of deleted entries.

        With `exact=False`, it deletes the keys and all keys below them.
        """
        checked = _several(keys)
        if not checked:
            return 0
        body = {"keys": checked, "exact": exact}
        answer = await self._caller.read(_Deleted, "POST", f"{_KEYS}/delete-batch", body=body, safe=True)
        return answer.deleted_count

    # Ranges ------------------------------------------------------------------------------------------------

    async def list(
        self,
        prefix: KeyParts = (),
        *,
        start: KeyParts | None = None,
        end: KeyParts | None = None,
        limit: int | None = None,
        reverse: bool = False,
        page_size: int = 100,
    ) -> AsyncIterator[Entry]:
        """Iterate over the entries below a prefix, or over all entries, in key order.

        The range is from `start` up to, but not including, `end`. `limit` is the maximum number of entries; the default
        is no limit. `reverse=True` iterates backwards. Entries are read in pages of `page_size`, and each page shows
        the state at the time it is read.
        """
        if limit is not None and limit < 1:
            raise InvalidInput(f"limit: expected at least 1, got {limit}")
        query = {
            "prefix": _text(prefix, "prefix") if len(prefix) else None,
            "start": None if start is None else _text(start, "start"),
            "end": None if end is None else _text(end, "end"),
            "reverse": reverse,
        }
        cursor: str | None = None
        left = limit
        while True:
            size = page_size if left is None else min(page_size, left)
            page = await self._caller.read(
                KeyPage, "GET", f"{_KEYS}/paginate", query=query | {"limit": size, "cursor": cursor}
            )
            for found in page.entries:
                yield found.present()
            left = None if left is None else left - len(page.entries)
            cursor = page.cursor
            if cursor is None or left == 0:
                return

    async def count(self, prefix: KeyParts = ()) -> int:
        """The number of entries below a prefix. The default is the number of all entries."""
        query = {"prefix": _text(prefix, "prefix") if len(prefix) else None}
        return (await self._caller.read(_Count, "GET", f"{_KEYS}/count", query=query)).count

    # Atomic writes and watches -----------------------------------------------------------------------------

    def atomic(self) -> Atomic:
        """A new atomic write: checks and changes of keys that are applied together or not at all.

        Call `commit` on the result to apply it.
        """
        return Atomic(self._caller)

    def watch(self, keys: Sequence[KeyParts], *, initial: bool = True) -> KeyWatch:
        """Watch keys: an endless async iterator over their changes, starting with the current entries.

        With `initial=False`, it starts with the first change. After several quick writes to a key, you may see only the
        last one. The watch continues after an outage of the server. Only the first request raises `ConnectionFailed` if
        no server answers.

        ```python
        async for change in client.kv.watch([("users", 17)]):
            print(change.key, change.value)
        ```
        """
        return watch_keys(self._caller, _several(keys), initial=initial)

    def watch_prefix(self, prefix: KeyParts, *, limit: int = 100, initial: bool = True) -> KeyWatch:
        """Watch the keys below a prefix, as `watch` does. It covers the first `limit` keys, at most 1000."""
        return watch_prefix(self._caller, key_of(prefix, "prefix"), limit, initial=initial)


def _several(keys: Sequence[KeyParts]) -> list[Key]:
    if isinstance(keys, str) or (keys and isinstance(keys[0], (str, int, float))):
        raise InvalidInput("keys: expected a list of keys, such as [('users', 17)], got one key")
    return [key_of(key, f"keys[{index}]") for index, key in enumerate(keys)]


def _path(key: Key) -> str:
    return f"{_KEYS}/{quote(key_text(key), safe='')}"


def _text(key: KeyParts, field: str) -> str:
    return key_text(key_of(key, field))


class _Written(msgspec.Struct):
    versionstamp: str


class _Deleted(msgspec.Struct, rename="camel"):
    deleted_count: int


class _Count(msgspec.Struct):
    count: int
