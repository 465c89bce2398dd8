"""Ids lead to queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from hark.broker import places
from hark.broker.places import Places
from hark.engine.api import Engine
from hark.ids import IdCodec

CODEC = IdCodec(1)


class Store:
    """Knows the queues of partitions, and notes what it is asked."""

    def __init__(self) -> None:
        self.queues = {CODEC.encode(1, 0): "orders", CODEC.encode(2, 0): "mail"}
        self.asked: list[list[str]] = []

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        """The queues of partitions."""
        self.asked.append(sorted(ids))
        return [self.queues.get(id) for id in ids]


async def test_messages_and_partitions_lead_to_their_queue_and_nothing_else_does() -> None:
    found = Places(cast(Engine, Store()))
    ids = [CODEC.encode(1, 9), CODEC.encode(2, 0), CODEC.encode(3, 1), "nonsense", ""]
    assert await found.queues_of(ids) == ["orders", "mail", None, None, None]


async def test_the_store_is_asked_once_for_a_partition_and_again_for_what_is_not_there() -> None:
    store = Store()
    found = Places(cast(Engine, store))
    for offset in (1, 2):
        await found.queues_of([CODEC.encode(1, offset), CODEC.encode(1, offset + 10), CODEC.encode(3, 1)])
    assert store.asked == [[CODEC.encode(1, 0), CODEC.encode(3, 0)], [CODEC.encode(3, 0)]]
    store.queues[CODEC.encode(3, 0)] = "new"
    assert await found.queues_of([CODEC.encode(3, 1)]) == ["new"]


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_KEPT", 3)
    store = Store()
    store.queues = {CODEC.encode(number, 0): f"q{number}" for number in range(1, 20)}
    found = Places(cast(Engine, store))
    for number in range(1, 20):
        assert await found.queues_of([CODEC.encode(number, 1)]) == [f"q{number}"]
    assert len(found._known) <= 3
