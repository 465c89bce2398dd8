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
    """The verbs about keys. A key is a tuple of texts, numbers and switches: `("users", 17)`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    # Entries -----------------------------------------------------------------------------------------------

    async def get(self, key: KeyParts) -> Entry | None:
        """The entry of a key; None: there is none."""
        try:
            found = await self._caller.read(WireEntry, "GET", _path(key_of(key)))
        except NotFound as error:
            if error.code != "key_not_found":
                raise
            return None
        return found.entry()

    async def get_many(self, keys: Sequence[KeyParts]) -> list[Entry | None]:
        """The entries of keys, in their order; None where there is none."""
        checked = _several(keys)
        found: list[Entry | None] = []
        for start in range(0, len(checked), MAX_KEYS):
            body = {"keys": checked[start : start + MAX_KEYS]}
            page = await self._caller.read(list[WireEntry], "POST", f"{_KEYS}/batch", body=body, safe=True)
            found += [entry.entry() for entry in page]
        return found

    async def set(self, key: KeyParts, value: object, *, expires_in: float | timedelta | None = None) -> str:
        """Set the value of a key, for so many seconds or for good; its new versionstamp."""
        answer = await self._caller.read(
            _Written,
            "PUT",
            _path(key_of(key)),
            query={"expiresIn": time_to_live(expires_in, "expires_in")},
            raw_body=bytes(json_value(value, "value")),
        )
        return answer.versionstamp

    async def delete(self, key: KeyParts, *, exact: bool = True) -> int:
        """Remove a key, or with `exact=False` a key and all below it; how many entries that were.

        Sent again after a lost reply it counts what the second one removed.
        """
        answer = await self._caller.read(_Deleted, "DELETE", _path(key_of(key)), query={"exact": exact})
        return answer.deleted_count

    async def delete_many(self, keys: Sequence[KeyParts], *, exact: bool = True) -> int:
        """Remove keys, or keys and all below them, in one commit; how many entries that were."""
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
        """What is below a prefix, or all, in the order of keys: from `start`, up to and without `end`, `limit` at most.

        It is read page by page, and each page shows what is there when it is read.
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
        """How many entries are below a prefix, or in all."""
        query = {"prefix": _text(prefix, "prefix") if len(prefix) else None}
        return (await self._caller.read(_Count, "GET", f"{_KEYS}/count", query=query)).count

    # Together, and as they change --------------------------------------------------------------------------

    def atomic(self) -> Atomic:
        """A write of many keys, with checks, that happens whole or not at all."""
        return Atomic(self._caller)

    def watch(self, keys: Sequence[KeyParts], *, initial: bool = True) -> KeyWatch:
        """Changes of keys as they come, what is there first unless `initial=False`.

        It follows what is, not what was: of several quick writes to a key only the last one is certain to be seen. It
        goes on when the server was away. The first answer has to come, though: no server at all is an error.
        """
        return watch_keys(self._caller, _several(keys), initial=initial)

    def watch_prefix(self, prefix: KeyParts, *, limit: int = 100, initial: bool = True) -> KeyWatch:
        """Changes below a prefix as they come, as `watch`; the first `limit` keys, 1000 at most."""
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
