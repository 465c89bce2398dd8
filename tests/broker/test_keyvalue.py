"""The key-value store of the broker on a real engine: shared calls, sealed values, maintenance, and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from hark.broker import Broker
from hark.broker.broker import PUSH_MAINTENANCE
from hark.clock import FakeClock, SystemClock
from hark.engine.api import Answers
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure, Unavailable
from hark.model import (
    Key,
    KeyCheck,
    KeyMutation,
    KeyRange,
    KeyWrite,
    KeyWritten,
    NewMessage,
    PopRequest,
    QueueOptions,
    QueueSpec,
    Settlement,
)
from hark.settings import Encryption, Settings
from hark.testing.server import FakeTimers

SEALED = Settings(encryption=Encryption(key="ab" * 32))
A: Key = ("a",)


@asynccontextmanager
async def running(broker: Broker) -> AsyncIterator[Broker]:
    """A broker for a while."""
    await broker.start()
    try:
        yield broker
    finally:
        await broker.close()


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with running(Broker(SqliteEngine(":memory:", clock=SystemClock()), SEALED, SystemClock())) as broker:
        yield broker


def put(key: Key, value: bytes = b"1", ttl_ms: int | None = None) -> KeyWrite:
    """A write of one key."""
    return KeyWrite(mutations=[KeyMutation(kind="set", key=key, value=value, ttl_ms=ttl_ms)])


async def test_reads_and_writes_of_the_same_moment_share_a_call_and_equal_searching_keys_are_distinguished(
    broker: Broker,
) -> None:
    keys: list[Key] = [("k", number) for number in range(50)]
    written = await asyncio.gather(*(broker.keyvalue.write_keys(put(key)) for key in keys))
    assert len({one.version for one in written}) == 50
    entries = await asyncio.gather(*(broker.keyvalue.read_keys([key, ("none",)]) for key in keys))
    assert [(found and found.key, none) for found, none in entries] == [(key, None) for key in keys]
    sizes = broker.batchers.sizes()
    assert (sizes["write_keys"].calls, sizes["read_keys"].calls) == (1, 1)
    await broker.keyvalue.write_keys(put((1,), b'"number"'))
    await broker.keyvalue.write_keys(put((True,), b'"boolean"'))
    reads = [broker.keyvalue.read_keys([key]) for key in ((True,), (1,), (1.0,), (False,))]
    found = [entry and bytes(entry.value) for [entry] in await asyncio.gather(*reads)]
    assert found == [b'"boolean"', b'"number"', b'"number"', None], "keys that Python takes for equal are told apart"


async def test_a_sealed_value_is_readable_in_every_way(broker: Broker) -> None:
    await broker.configure(QueueSpec(name="q", options=QueueOptions(encryption_enabled=True)))
    watcher = await broker.keyvalue.watchers.watch_keys([A])
    await broker.push([NewMessage("q", payload=b'"secret"', undelivered_keys=(A,))])
    popped = await broker.pop(PopRequest(queue="q"))
    [message] = popped.messages
    await broker.settle([Settlement(message.transaction_id, message.partition_id, "dlq", popped.lease_id)])
    [stored] = await broker.engine.read_keys([A])
    assert stored is not None
    assert (stored.sealed_by, b"secret" in bytes(stored.value)) == ("q", False)
    [entry] = await broker.keyvalue.read_keys([A])
    [listed] = await broker.keyvalue.list_keys(KeyRange())
    [change] = await asyncio.wait_for(watcher.next(), 5)
    for one in (entry, listed, change.entry):
        assert one is not None
        assert (bytes(one.value), one.sealed_by) == (b'"secret"', None)


async def test_messages_of_a_write_are_sealed_and_refused_in_maintenance(broker: Broker) -> None:
    await broker.configure(QueueSpec(name="q", options=QueueOptions(encryption_enabled=True)))
    write = KeyWrite(messages=[NewMessage("q", payload=b'"secret"')])
    assert (await broker.keyvalue.write_keys(write)).success
    [message] = (await broker.pop(PopRequest(queue="q"))).messages
    assert bytes(message.payload) == b'"secret"'
    await broker.set_maintenance(PUSH_MAINTENANCE, True)
    with pytest.raises(Unavailable, match="maintenance"):
        await broker.keyvalue.write_keys(write)
    assert (await broker.keyvalue.write_keys(put(A))).success
    written = await broker.keyvalue.write_keys(KeyWrite([KeyCheck(A, 17)], put(A).mutations))
    assert (written.success, written.failed_check) == (False, 0), "a check that fails is an answer"


async def test_messages_are_sealed_anew_when_the_encryption_of_their_queue_was_changed(broker: Broker) -> None:
    # As another server would do it: this broker does not hear of it.
    await broker.engine.configure([QueueSpec(name="q", options=QueueOptions(encryption_enabled=True))])
    write = KeyWrite(mutations=put(A).mutations, messages=[NewMessage("q", payload=b'"secret"')])
    assert (await broker.keyvalue.write_keys(write)).success
    [message] = (await broker.pop(PopRequest(queue="q"))).messages
    assert bytes(message.payload) == b'"secret"'


class FailingEngine(SqliteEngine):
    """A store whose writes fail."""

    async def write_keys(self, requests: Sequence[KeyWrite]) -> Answers[KeyWritten]:
        """Fail."""
        raise EngineFailure(f"{len(requests)} writes failed")


async def test_a_failure_of_the_store_is_notified_to_each_who_wrote() -> None:
    async with running(Broker(FailingEngine(":memory:", clock=SystemClock()), Settings(), SystemClock())) as broker:
        outcomes = await asyncio.gather(*(broker.keyvalue.write_keys(put(A)) for _ in range(3)), return_exceptions=True)
        assert [str(outcome) for outcome in outcomes] == ["3 writes failed"] * 3


async def test_a_watched_entry_is_gone_at_its_time_and_not_before() -> None:
    clock = FakeClock()
    timers = FakeTimers(clock)
    async with running(Broker(SqliteEngine(":memory:", clock=clock), Settings(), clock, timers=timers)) as broker:
        await broker.keyvalue.write_keys(put(A, ttl_ms=60_000))
        watcher = await broker.keyvalue.watchers.watch_keys([A], initial=False)
        gone = asyncio.create_task(watcher.next())
        timers.advance(59.999)
        [entry] = await broker.keyvalue.read_keys([A])
        assert entry is not None
        assert not gone.done()
        timers.advance(0.001)
        [change] = await asyncio.wait_for(gone, 5)
        assert (change.key, change.entry) == (A, None)
