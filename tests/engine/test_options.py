"""Options of a queue: stored, shown, replaced; their effects, where no other file shows them."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import QueueInfo, QueueOptions, QueueSpec

from .driver import Driver, given, message, payloads


async def test_configure_makes_the_queue_and_the_partition_default(q: Driver, clock: FakeClock) -> None:
    info = await q.configure("orders", namespace="shop", task="ship", retry_limit=7)
    assert (info.name, info.namespace, info.task) == ("orders", "shop", "ship")
    assert info.options == QueueOptions(retry_limit=7)
    assert (info.created_at, info.paused) == (clock.now(), False)
    [partition] = await q.engine.partition_stats("orders")
    assert (partition.name, partition.id) == ("Default", info.partition_id)


async def test_defaults_are_those_of_the_rules() -> None:
    options = QueueOptions()
    assert (options.lease_time, options.retry_limit, options.retry_delay, options.retry_multiplier) == (
        300,
        3,
        0,
        1,
    )
    assert (options.retry_max_delay, options.ttl, options.max_size) == (3_600_000, 0, 0)
    assert options.dead_letter_queue and options.dlq_after_max_retries


async def test_a_queue_made_by_a_push_has_the_defaults(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    [info] = await q.engine.queue_infos(["orders"])
    assert info.options == QueueOptions()


async def test_every_option_is_stored_and_shown(q: Driver, engine: Engine) -> None:
    options = QueueOptions(
        lease_time=11,
        retry_limit=12,
        retry_delay=13,
        retry_multiplier=1.5,
        retry_max_delay=14,
        delayed_processing=15,
        window_buffer=16,
        priority=17,
        max_size=18,
        ttl=19,
        dead_letter_queue=False,
        dlq_after_max_retries=False,
        retention_enabled=True,
        retention_seconds=20,
        completed_retention_seconds=21,
        max_wait_time_seconds=22,
        encryption_enabled=True,
    )
    [answer] = await engine.configure([QueueSpec(name="orders", options=options)])
    assert given(answer).options == options
    assert (await q.stats("orders")).info.options == options


async def test_configure_again_replaces_all_options_and_keeps_the_messages(q: Driver) -> None:
    first = await q.configure("orders", namespace="shop", task="ship", retry_limit=7, priority=3)
    await q.push("orders", "Default", 1)
    second = await q.configure("orders", priority=4)
    assert (second.id, second.partition_id, second.created_at) == (
        first.id,
        first.partition_id,
        first.created_at,
    )
    assert (second.namespace, second.task, second.options) == ("", "", QueueOptions(priority=4))
    assert payloads(await q.pop("orders")) == [1]


async def test_configure_does_not_resume_a_paused_queue(q: Driver, engine: Engine) -> None:
    await q.configure("orders")
    await engine.pause("orders", None, True)
    assert (await q.configure("orders", priority=1)).paused


async def test_configure_takes_a_batch(engine: Engine) -> None:
    answers = await engine.configure([QueueSpec(name=name) for name in ("a", "b", "a")])
    infos = [given(one) for one in answers]
    assert [one.name for one in infos] == ["a", "b", "a"]
    assert infos[0].id == infos[2].id
    assert len(await engine.queue_infos()) == 2


async def test_lease_time_is_how_long_a_consumer_holds(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=5)
    await q.push("orders", "p1", 1)
    await q.pop("orders")
    assert (await q.track("orders", "p1")).lease_expires_at == clock.now() + 5_000_000


async def test_a_changed_lease_time_is_for_the_leases_that_follow(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=5)
    await q.push("orders", "p1", 1)
    [held] = await q.pop("orders")
    await q.configure("orders", lease_time=1)
    clock.advance(4)
    assert (await q.ack(held)).success


async def test_sealing_must_agree_with_the_queue_s_encryption(q: Driver) -> None:
    await q.configure("secret", encryption_enabled=True)
    outcomes = await q.push_messages(
        message("secret", "p1", 1),
        message("secret", "p1", "ciphertext", sealed=True),
        message("plain", "p1", "ciphertext", sealed=True),
        message("plain", "p1", 2),
    )
    assert [one.status for one in outcomes] == ["failed", "queued", "failed", "queued"]
    assert [one.code for one in outcomes] == ["sealing_mismatch", None, "sealing_mismatch", None]
    [held] = await q.pop("secret")
    assert held.message.sealed
    [plain] = await q.pop("plain")
    assert not plain.message.sealed


async def test_sealing_mismatch_aborts_a_transaction(q: Driver) -> None:
    await q.configure("secret", encryption_enabled=True)
    outcome = await q.transact(message("bills", "p1", 1), message("secret", "p1", 2))
    assert (outcome.success, outcome.code, outcome.failed_index) == (False, "sealing_mismatch", 1)
    assert await q.pop("bills") == []


async def test_a_dead_letter_of_a_sealed_message_stays_sealed(q: Driver) -> None:
    await q.configure("secret", encryption_enabled=True)
    await q.push("secret", "p1", "ciphertext", sealed=True)
    [held] = await q.pop("secret")
    await q.kill(held)
    [letter] = await q.dead_letters("secret")
    assert letter.sealed
    await q.requeue(letter)
    [held] = await q.pop("secret")
    assert (held.payload, held.message.sealed) == ("ciphertext", True)


async def test_queue_infos_answers_those_that_exist(q: Driver, engine: Engine) -> None:
    for name in ("a", "b", "c"):
        await q.configure(name)

    def names(infos: list[QueueInfo]) -> list[str]:
        return sorted(one.name for one in infos)

    assert names(await engine.queue_infos()) == ["a", "b", "c"]
    assert names(await engine.queue_infos(["c", "nowhere", "a"])) == ["a", "c"]
    assert await engine.queue_infos([]) == []
