"""The broker on a real engine: waiting, leaving, sealing, maintenance."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import pytest

from hark.broker import Broker
from hark.broker.sealing import Sealer
from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure, HarkError, InvalidInput, InvalidSetting, Overloaded, Unavailable
from hark.model import DeadLetterFilter, NewMessage, PopRequest, PopResult, QueueOptions, QueueSpec, Settlement
from hark.settings import Encryption, Limits, Settings

KEY, OTHER_KEY = "ab" * 32, "cd" * 32


async def started(engine: SqliteEngine, settings: Settings | None = None) -> Broker:
    """A broker on an engine."""
    broker = Broker(engine, settings or Settings(), SystemClock())
    await broker.start()
    return broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await started(SqliteEngine(":memory:", clock=SystemClock()), Settings(encryption=Encryption(key=KEY)))
    yield broker
    await broker.close()


async def until_waiting(broker: Broker, number: int) -> None:
    """Let the loop turn until so many pops wait."""
    while broker.waiting < number:  # noqa: ASYNC110  # the loop itself is what we wait for
        await asyncio.sleep(0)


async def test_a_waiting_pop_is_woken_by_a_push(broker: Broker) -> None:
    pop = asyncio.create_task(broker.pop(PopRequest(queue="orders"), 60))
    await until_waiting(broker, 1)
    await broker.push([NewMessage("orders", payload=b"1")])
    assert [bytes(message.payload) for message in (await pop).messages] == [b"1"]
    assert broker.waiting == 0


async def test_a_waiting_pop_is_woken_by_a_settlement_that_frees_a_partition(broker: Broker) -> None:
    await broker.push([NewMessage("orders", payload=b"1"), NewMessage("orders", payload=b"2")])
    first = await broker.pop(PopRequest(queue="orders"))
    pop = asyncio.create_task(broker.pop(PopRequest(queue="orders"), 60))
    await until_waiting(broker, 1)
    message = first.messages[0]
    await broker.settle([Settlement(message.transaction_id, message.partition_id, lease_id=first.lease_id)])
    assert [bytes(message.payload) for message in (await pop).messages] == [b"2"]


async def test_a_pop_by_namespace_waits_for_a_queue_that_does_not_exist_yet(broker: Broker) -> None:
    pop = asyncio.create_task(broker.pop(PopRequest(namespace="shop"), 60))
    await until_waiting(broker, 1)
    await broker.push([NewMessage("shop.orders.new", payload=b"1")])
    assert len((await pop).messages) == 1


async def test_a_waiting_pop_is_answered_when_a_delay_is_over(broker: Broker) -> None:
    await broker.push([NewMessage("orders", payload=b"1", delay_ms=30)])
    assert len((await broker.pop(PopRequest(queue="orders"), 60)).messages) == 1


async def test_a_waiting_pop_ends_empty_at_its_timeout(broker: Broker) -> None:
    assert (await broker.pop(PopRequest(queue="orders"), 0.01)).messages == ()
    assert broker.waiting == 0


async def test_what_a_client_that_left_would_have_got_is_free_again_and_uncounted(broker: Broker) -> None:
    pop = asyncio.create_task(broker.pop(PopRequest(queue="orders"), 60))
    await until_waiting(broker, 1)
    await asyncio.gather(broker.push([NewMessage("orders", payload=b"1")]), cancelled(pop))
    got = await broker.pop(PopRequest(queue="orders"), 60)
    assert [(bytes(message.payload), message.attempt) for message in got.messages] == [(b"1", 1)]


async def cancelled(task: asyncio.Task[PopResult]) -> None:
    """Cancel a task and see it end."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_more_waiting_pops_than_allowed_are_refused() -> None:
    broker = await started(SqliteEngine(":memory:", clock=SystemClock()), Settings(limits=Limits(max_waiting=1)))
    pop = asyncio.create_task(broker.pop(PopRequest(queue="orders"), 60))
    await until_waiting(broker, 1)
    with pytest.raises(Overloaded) as caught:
        await broker.pop(PopRequest(queue="orders"), 60)
    assert caught.value.code == "too_many_waiting"
    await cancelled(pop)
    await broker.close()


async def test_closing_answers_waiting_pops_at_once() -> None:
    broker = await started(SqliteEngine(":memory:", clock=SystemClock()))
    pop = asyncio.create_task(broker.pop(PopRequest(queue="orders"), 600))
    await until_waiting(broker, 1)
    broker.stop_waiting()
    assert (await pop).messages == ()
    await broker.close()


async def test_maintenance_refuses_pushes_and_outlives_a_restart(tmp_path: object) -> None:
    path = f"{tmp_path}/hark.db"
    broker = await started(SqliteEngine(path, clock=SystemClock()))
    await broker.set_maintenance("push_maintenance", True)
    await broker.close()
    broker = await started(SqliteEngine(path, clock=SystemClock()))
    with pytest.raises(Unavailable) as caught:
        await broker.push([NewMessage("orders")])
    assert (caught.value.code, caught.value.retry_after) == ("maintenance", 5)
    await broker.set_maintenance("push_maintenance", False)
    assert (await broker.push([NewMessage("orders")]))[0].status == "queued"
    await broker.close()


# Sealing ---------------------------------------------------------------------------------------------------


def sealed_queue() -> QueueSpec:
    """A queue whose payloads are encrypted, and whose first failure is the last."""
    return QueueSpec(name="secrets", options=QueueOptions(encryption_enabled=True, retry_limit=0))


async def stored_payload(broker: Broker) -> bytes:
    """The bytes as the store has them."""
    engine = cast(SqliteEngine, broker.engine)
    return await engine._read(lambda connection, _: bytes(connection.execute("select payload from messages").get))


async def test_sealed_payloads_are_ciphertext_at_rest_and_plain_for_consumers(broker: Broker) -> None:
    await broker.configure(sealed_queue())
    await broker.push([NewMessage("secrets", payload=b'{"card":"4242"}')])
    assert b"4242" not in await stored_payload(broker)
    got = await broker.pop(PopRequest(queue="secrets"))
    assert bytes(got.messages[0].payload) == b'{"card":"4242"}'


async def test_dead_letters_stay_sealed_at_rest_and_are_shown_plain(broker: Broker) -> None:
    await broker.configure(sealed_queue())
    await broker.push([NewMessage("secrets", payload=b'"card"')])
    got = await broker.pop(PopRequest(queue="secrets"))
    message = got.messages[0]
    await broker.settle([Settlement(message.transaction_id, message.partition_id, "failed", got.lease_id)])
    at_rest = (await broker.engine.dead_letters(DeadLetterFilter())).items[0]
    assert at_rest.sealed
    assert b"card" not in bytes(at_rest.payload)
    assert bytes((await broker.dead_letters(DeadLetterFilter())).items[0].payload) == b'"card"'
    assert bytes((await broker.dead_letters(DeadLetterFilter(payloads=False))).items[0].payload) == b"null"


async def test_encryption_without_a_key_is_refused() -> None:
    broker = await started(SqliteEngine(":memory:", clock=SystemClock()))
    with pytest.raises(InvalidInput) as caught:
        await broker.configure(sealed_queue())
    assert caught.value.code == "encryption_unavailable"
    assert await broker.engine.queue_infos() == []
    await broker.close()


async def test_a_broker_that_missed_a_change_of_encryption_seals_all_the_same(broker: Broker) -> None:
    await broker.engine.configure([sealed_queue()])  # As another server would.
    outcome = (await broker.push([NewMessage("secrets", payload=b'"card"')]))[0]
    assert outcome.status == "queued"
    assert b"card" not in await stored_payload(broker)
    await broker.engine.configure([QueueSpec(name="secrets")])
    outcome = (await broker.push([NewMessage("secrets", "other", b'"plain"')]))[0]
    assert outcome.status == "queued"
    got = await broker.pop(PopRequest(queue="secrets", partitions=2, batch=2))
    assert {bytes(message.payload) for message in got.messages} == {b'"card"', b'"plain"'}


def test_old_keys_open_what_they_sealed_and_the_first_key_seals() -> None:
    old, both = Sealer([OTHER_KEY]), Sealer([KEY, OTHER_KEY])
    assert both.open("q", old.seal("q", b"1")) == b"1"
    with pytest.raises(EngineFailure, match="which this server does not have"):
        old.open("q", both.seal("q", b"1"))


@pytest.mark.parametrize("change", [lambda sealed: sealed[:-6] + b"AAAA" + sealed[-2:], lambda sealed: sealed])
def test_changed_bytes_and_moved_payloads_do_not_open(change: object) -> None:
    sealer = Sealer([KEY])
    assert callable(change)
    with pytest.raises(HarkError) as caught:
        sealer.open("another queue", change(sealer.seal("q", b'"some payload"')))
    assert caught.value.code == "payload_corrupt"


@pytest.mark.parametrize("key", ["", "12", "zz" * 32, "ab" * 31])
def test_a_wrong_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Sealer([key])
    assert "64 hexadecimal characters" in caught.value.text
