"""Messages that can't be delivered leave their payload under the keys that they name, in one commit (rule 18)."""

from __future__ import annotations

import msgspec
import pytest

from hark.engine.api import Engine
from hark.model import Key, KeyRange, QueueOptions, QueueSpec

from .driver import Driver, LeasedMessage, settlement
from .key_words import changed_keys, entry, listed, set_to, text, value, write
from .workers import Workers

KEYS: tuple[Key, ...] = (("failed", "orders", 1), ("audit", True, 0.5), ("with\0nul",))


async def pushed(group: Workers, payload: object = "hello", keys: tuple[Key, ...] = KEYS) -> LeasedMessage:
    """A message with keys, in the hands of a consumer."""
    await group.q.push("orders", "p1", payload, undelivered_keys=keys)
    [leased] = await group.take()
    return leased


async def test_rule_18_the_payload_is_under_every_key_when_a_message_is_dead(
    q: Driver, either: Workers, engine: Engine
) -> None:
    leased = await pushed(either, {"b": 1, "a": "é"})
    q.key_notifications.clear()
    assert (await q.kill(leased)).dead_lettered
    for key in KEYS:
        found = await entry(engine, key)
        assert found is not None and (found.expires_at, found.sealed_by) == (None, None)
        assert await text(engine, key) == '{"b":1,"a":"é"}'.encode()
    assert changed_keys(q.key_notifications) == set(KEYS)
    assert len(await q.dead_letters("orders")) == 1


async def test_nothing_is_written_while_attempts_are_left_or_when_it_is_completed(
    q: Driver, either: Workers, engine: Engine
) -> None:
    await q.configure("orders", retry_limit=1)
    await q.ack(await pushed(either))
    await q.fail(await pushed(either))
    assert await listed(engine, KeyRange()) == []
    [leased] = await either.take()
    assert (await q.fail(leased)).dead_lettered
    assert await listed(engine, KeyRange(prefix=("failed",))) == [KEYS[0]]


@pytest.mark.parametrize("option", ["dead_letter_queue", "dlq_after_max_retries"])
async def test_rule_18_a_discarded_message_leaves_its_payload_too(
    q: Driver, either: Workers, engine: Engine, option: str
) -> None:
    options = msgspec.structs.replace(QueueOptions(retry_limit=0), **{option: False})
    await q.configure_spec(QueueSpec(name="orders", options=options))
    leased = await pushed(either)
    assert not (await q.fail(leased)).dead_lettered
    assert await q.dead_letters("orders") == []
    assert await value(engine, KEYS[0]) == "hello"


@pytest.mark.parametrize("applied_by", ["expire", "pop", "settle"])
async def test_rule_16_the_expiry_of_the_last_attempt_writes_the_keys(
    q: Driver, either: Workers, applied_by: str
) -> None:
    await q.configure("orders", retry_limit=0, lease_time=10)
    leased = await pushed(either)
    q.key_notifications.clear()
    q.clock.advance(10)
    if applied_by == "expire":
        await q.engine.expire()
    elif applied_by == "pop":
        assert await either.take() == []
    else:
        assert not (await q.ack(leased)).success
    assert await value(q.engine, KEYS[1]) == "hello"
    assert changed_keys(q.key_notifications) == set(KEYS)
    assert len(await q.dead_letters("orders")) == 1


async def test_an_entry_that_was_there_is_replaced_and_lives_for_ever(
    q: Driver, either: Workers, engine: Engine
) -> None:
    before = await write(engine, set_to(KEYS[0], "old", ttl_ms=1000))
    await q.kill(await pushed(either))
    q.clock.advance(1)
    found = await entry(engine, KEYS[0])
    assert found is not None and before.version is not None and found.version > before.version


async def test_rule_18_with_encryption_the_entry_says_whose_key_opens_it(q: Driver, engine: Engine) -> None:
    await q.configure("orders", encryption_enabled=True)
    await q.push("orders", "p1", "ciphertext", sealed=True, undelivered_keys=KEYS)
    [leased] = await q.pop("orders")
    await q.kill(leased)
    found = await entry(engine, KEYS[0])
    assert found is not None and (bytes(found.value), found.sealed_by) == (b'"ciphertext"', "orders")
    await write(engine, set_to(KEYS[0], "plain"))
    found = await entry(engine, KEYS[0])
    assert found is not None and found.sealed_by is None


async def test_rule_19_a_requeued_message_keeps_its_keys(q: Driver, either: Workers, engine: Engine) -> None:
    await q.kill(await pushed(either))
    await write(engine, *(set_to(key, "seen") for key in KEYS))
    [letter] = await q.dead_letters("orders")
    await q.requeue(letter)
    [leased] = await either.take()
    assert await value(engine, KEYS[0]) == "seen"
    await q.kill(leased)
    assert await value(engine, KEYS[0]) == "hello"


async def test_keys_survive_a_restart_with_their_message(q: Driver) -> None:
    await q.push("orders", "p1", "hello", undelivered_keys=KEYS)
    await q.reopen()
    [leased] = await q.pop("orders")
    await q.kill(leased)
    assert await value(q.engine, KEYS[2]) == "hello"


async def test_messages_that_die_together_are_notified_of_together(q: Driver, either: Workers, engine: Engine) -> None:
    for number in range(3):
        await q.push("orders", "p1", number, undelivered_keys=(("failed", number), ("last",)))
    got = await either.take(3)
    q.key_notifications.clear()
    await q.settle(*(settlement(leased, "dlq") for leased in got))
    assert changed_keys(q.key_notifications) == {("last",), *(("failed", number) for number in range(3))}
    assert await value(engine, ("last",)) == 2
    assert len(await q.dead_letters("orders", "workers")) == 3


async def test_in_a_transaction_a_dead_letter_writes_its_keys_or_nothing_happens(
    q: Driver, either: Workers, engine: Engine
) -> None:
    leased = await pushed(either)
    await q.push("other", "p1", 1)
    [other] = await q.pop("other")
    assert not (await q.transact(settlement(leased, "dlq"), settlement(other, lease=leased.lease))).success
    assert await listed(engine, KeyRange()) == []
    assert (await q.transact(settlement(leased, "dlq"), settlement(other))).success
    assert await value(engine, KEYS[0]) == "hello"


async def test_a_shared_lease_that_expires_writes_the_keys_of_each_message_that_dies(
    q: Driver, workers: Workers
) -> None:
    await q.configure("orders", retry_limit=0, lease_time=10)
    for number in range(3):
        await q.push("orders", "p1", number, undelivered_keys=(("failed", number),))
    await workers.take(2)
    q.key_notifications.clear()
    q.clock.advance(10)
    await q.engine.expire()
    assert changed_keys(q.key_notifications) == {("failed", 0), ("failed", 1)}
    assert await listed(q.engine, KeyRange()) == [("failed", 0), ("failed", 1)]
    assert len(await q.dead_letters("orders", "workers")) == 2
