"""Words for the tests of the key-value half: set, read and list on any engine."""

from __future__ import annotations

from typing import Literal

import msgspec

from hark.engine.api import Engine
from hark.model import Key, KeyCheck, KeyEntry, KeyMutation, KeyNotification, KeyRange, KeyWrite, KeyWritten

from .driver import given


def set_to(key: Key, value: object, ttl_ms: int | None = None) -> KeyMutation:
    """A value under a key."""
    return KeyMutation(kind="set", key=key, value=msgspec.json.encode(value), ttl_ms=ttl_ms)


def change(kind: Literal["sum", "min", "max", "append", "prepend"], key: Key, value: object) -> KeyMutation:
    """A value that is combined with what is there; bytes are taken as JSON text."""
    return KeyMutation(kind=kind, key=key, value=value if isinstance(value, bytes) else msgspec.json.encode(value))


def delete(key: Key) -> KeyMutation:
    """One entry less."""
    return KeyMutation(kind="delete", key=key)


def delete_tree(key: Key) -> KeyMutation:
    """An entry less, and all that are below it."""
    return KeyMutation(kind="delete_tree", key=key)


async def write(engine: Engine, *mutations: KeyMutation, checks: tuple[KeyCheck, ...] = ()) -> KeyWritten:
    """One request."""
    [answer] = await engine.write_keys([KeyWrite(checks, mutations)])
    return given(answer)


async def put(engine: Engine, *keys: Key) -> int:
    """Set keys, each to itself, in one request; the version."""
    written = await write(engine, *(set_to(key, list(key)) for key in keys))
    assert written.success and written.version is not None
    return written.version


async def entry(engine: Engine, key: Key) -> KeyEntry | None:
    """What is under a key."""
    [found] = await engine.read_keys([key])
    return found


async def text(engine: Engine, key: Key) -> bytes | None:
    """The JSON text under a key."""
    found = await entry(engine, key)
    return None if found is None else bytes(found.value)


async def value(engine: Engine, key: Key) -> object:
    """The value under a key, which must be there."""
    found = await text(engine, key)
    assert found is not None
    return msgspec.json.decode(found)


async def listed(engine: Engine, wanted: KeyRange) -> list[Key]:
    """The keys of a range."""
    [found] = await engine.list_keys([wanted])
    return [one.key for one in found]


def changed_keys(notifications: list[KeyNotification]) -> set[Key] | None:
    """The keys that news name; None when any may have changed."""
    return (
        None
        if any(one.keys is None for one in notifications)
        else {key for one in notifications for key in one.keys or ()}
    )
