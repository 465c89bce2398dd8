"""The administrator's verbs: pause, purge, delete, flags, configure."""

from __future__ import annotations

import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import MessageFilter, QueueOptions, QueueSpec, Settlement

from .driver import NEVER_GIVEN, NEW, Driver, given, message, payloads
from .workers import Workers

# Pause -----------------------------------------------------------------------------------------------------


async def test_a_paused_group_stops_alone(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    for group in ("a", "b"):
        await q.retry((await q.pop("orders", group=group))[0])
    assert await engine.pause("orders", "a", True)
    assert {one.group: one.paused for one in await engine.group_stats()} == {"a": True, "b": False}
    assert await q.pop("orders", group="a") == []
    assert await q.drain("orders", group="b") == [1]
    assert await engine.pause("orders", "a", False)
    assert await q.drain("orders", group="a") == [1]


async def test_a_pause_is_skipped_by_pops_over_several_queues(q: Driver, engine: Engine) -> None:
    for name in ("ns.a", "ns.b"):
        await q.push(name, "p1", name)
    await engine.pause("ns.a", None, True)
    assert payloads(await q.pop(namespace="ns", batch=10, partitions=10)) == ["ns.b"]


async def test_what_does_not_exist_is_neither_paused_nor_purged(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    for queue, group in (("nowhere", None), ("orders", "unknown"), ("nowhere", "unknown")):
        assert not await engine.pause(queue, group, True)
        assert not await engine.pause(queue, group, False)
        assert await engine.purge(queue, group) == 0
    assert await q.drain("orders") == [1]


# Purge -----------------------------------------------------------------------------------------------------


async def test_purge_removes_all_messages_leased_ones_too(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    await q.push("orders", "p2", 3)
    await q.push("bills", "p1", 4)
    [leased] = await q.pop("orders", "p1")
    assert await engine.purge("orders") == 3
    assert (await q.ack(leased)).code == "not_found"
    assert await q.pop("orders", batch=10, partitions=10) == []
    assert await engine.messages(MessageFilter(queue="orders")) == []
    assert (await q.stats("orders")).counts.total == 0
    assert await q.drain("bills") == [4]


async def test_after_a_purge_offsets_go_on_and_every_group_continues(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, transaction_id=None)
    await q.push("orders", "p1", 3, transaction_id="t3")
    await q.pop("orders", group="a", batch=2)
    assert await engine.purge("orders") == 3
    [outcome] = await q.push("orders", "p1", 4, transaction_id="t3")
    assert outcome.status == "queued"
    for group in ("a", "b"):
        got = await q.pop("orders", group=group, batch=10)
        assert [(one.payload, one.message.offset) for one in got] == [(4, 4)]


@pytest.mark.parametrize("group", ["workers", None])
async def test_a_purge_for_one_group_or_all_concerns_what_is_leased_delayed_or_waits(
    q: Driver, either: Workers, group: str | None
) -> None:
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1, 2, 3)
    await q.push("orders", "p2", 4)
    await q.push("orders", "p3", 5, delay_ms=1000)
    got = await either.take(2, "p1")
    await q.ack(got[0])
    [failed] = await either.take(1, "p2")
    await q.fail(failed)
    assert await q.engine.purge("orders", group) == (4 if group else 5)
    q.clock.advance(400)
    assert await either.take(10, partitions=3) == []
    assert (await either.stats()).lag == 0
    assert not (await q.fail(got[1])).success
    assert await q.drain("orders", group="others") == ([1, 2, 3, 4, 5] if group else [])
    await q.push("orders", "p1", 6)
    assert await either.drain() == [6]
    assert (await either.stats()).lag == 0


async def test_purging_one_group_includes_what_was_requeued_for_it(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    [leased] = await q.pop("orders", group="a")
    await q.kill(leased)
    [letter] = await q.dead_letters()
    await q.requeue(letter)
    assert await engine.purge("orders", "a") == 2
    assert await q.pop("orders", group="a") == []


async def test_purging_a_group_does_not_count_what_dies_at_that_moment(
    q: Driver, engine: Engine, clock: FakeClock
) -> None:
    await q.configure("orders", lease_time=10, retry_limit=0)
    await q.push("orders", "p1", 1, 2)
    await q.pop("orders", group="g")
    clock.advance(10)
    assert await engine.purge("orders", "g") == 1
    assert len(await q.dead_letters("orders")) == 1


async def test_a_key_that_was_purged_names_the_message_that_has_it_now(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, transaction_id="t1")
    [old] = await q.pop("orders")
    await engine.purge("orders")
    await q.push("orders", "p1", 2, transaction_id="t1")
    assert not (await q.ack(old)).success
    assert await q.drain("orders") == [2]


# Deleting messages -----------------------------------------------------------------------------------------


async def test_a_deleted_message_is_stepped_over_and_its_offset_is_not_used_again(q: Driver, engine: Engine) -> None:
    ids = [one.message_id or "" for one in await q.push("orders", "p1", 1, 2, 3, 4)]
    deleted = await engine.delete_messages([ids[1], ids[3], NEVER_GIVEN, "no id", ids[3]])
    assert deleted == [True, True, False, False, False]
    assert await q.push_id("orders", "p1", 5) > ids[3]
    got = await q.pop("orders", batch=10)
    assert [(one.payload, one.message.offset) for one in got] == [(1, 1), (3, 3), (5, 5)]


async def test_a_leased_message_can_be_deleted(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=2)
    assert await engine.delete_messages([got[0].message.id]) == [True]
    assert (await q.ack(got[0])).code == "not_found"
    assert (await q.ack(got[1])).success
    assert payloads(await q.pop("orders")) == [3]


@pytest.mark.parametrize("failed", [False, True], ids=["leased", "waits for its retry"])
async def test_deleting_the_message_that_blocks_a_partition_frees_it(q: Driver, engine: Engine, failed: bool) -> None:
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1, 2)
    [leased] = await q.pop("orders")
    if failed:
        await q.fail(leased)
    await engine.delete_messages([leased.message.id])
    assert payloads(await q.pop("orders")) == [2]


# Deleting queues -------------------------------------------------------------------------------------------


async def test_a_deleted_queue_is_gone_with_everything_in_it(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.configure("orders", retry_limit=9)
    await q.push("orders", "p1", 1, 2, 3, transaction_id=None)
    await q.push("bills", "p1", 4)
    [leased] = await q.pop("orders", group="g")
    await q.kill(leased)
    [open_one] = await q.pop("orders", group="g")
    assert await engine.delete_queues(["orders", "nowhere", "orders"]) == [True, False, False]
    assert [one.name for one in await engine.queue_infos()] == ["bills"]
    assert await engine.messages(MessageFilter(queue="orders")) == []
    assert await engine.group_stats(queue="orders") == []
    assert await engine.position_stats(queue="orders") == []
    assert await q.dead_letters("orders") == []
    assert (await q.ack(open_one)).code == "not_found"
    clock.advance(1000)
    assert (await engine.expire()).next_due is None
    assert await q.pop("orders") == []
    assert await q.drain("bills") == [4]


async def test_a_queue_of_the_same_name_is_a_new_queue(q: Driver, engine: Engine, clock: FakeClock) -> None:
    info = await q.configure("orders", retry_limit=9)
    [pushed] = await q.push("orders", "p1", 1, transaction_id="t1")
    old = await q.pop("orders", group="g")
    await engine.delete_queues(["orders"])
    clock.advance(1)
    [outcome] = await q.push("orders", "p1", 2, transaction_id="t1")
    assert outcome.status == "queued"
    [fresh] = await engine.queue_infos(["orders"])
    assert fresh.id != info.id
    assert fresh.options.retry_limit == 3
    assert not (await q.ack(old[0])).success
    assert await engine.message(pushed.partition_id or "", "t1") is None
    assert await engine.delete_messages([pushed.message_id or ""]) == [False]
    assert [one.code for one in await q.settle(Settlement("t1", pushed.partition_id or ""))] == ["not_found"]
    [leased] = await q.pop("orders", group="g", subscription=NEW) or await q.pop("orders", group="h")
    assert (leased.payload, leased.message.offset) == (2, 1)
    assert leased.message.partition_id != old[0].message.partition_id


async def test_the_groups_of_a_deleted_queue_are_forgotten(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    clock.advance(1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    await engine.delete_queues(["orders"])
    clock.advance(1)
    await q.push("orders", "p1", 2)
    clock.advance(1)
    assert await q.pop("orders", group="g", subscription=NEW) == [], "a first contact again"


# The server's own notes ------------------------------------------------------------------------------------


async def test_flags_are_remembered(engine: Engine) -> None:
    await engine.ping()
    assert await engine.read_flags() == {}
    await engine.write_flag("maintenance", True)
    await engine.write_flag("pop_maintenance", False)
    await engine.write_flag("maintenance", True)
    assert await engine.read_flags() == {"maintenance": True, "pop_maintenance": False}


# Options of a queue: stored, shown, replaced; their effects, where no other file shows them --------------


async def test_configure_makes_the_queue_and_the_partition_default(q: Driver, clock: FakeClock) -> None:
    info = await q.configure("orders", namespace="shop", task="ship", retry_limit=7)
    assert (info.name, info.namespace, info.task) == ("orders", "shop", "ship")
    assert info.options == QueueOptions(retry_limit=7)
    assert (info.created_at, info.paused) == (clock.now(), False)
    [partition] = await q.engine.partition_stats("orders")
    assert (partition.name, partition.id) == ("Default", info.partition_id)


async def test_a_queue_made_by_a_push_has_the_defaults_of_the_rules(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    [info] = await q.engine.queue_infos(["orders"])
    assert info.options == QueueOptions(
        lease_time=300,
        retry_limit=3,
        retry_delay=0,
        retry_multiplier=1,
        retry_max_delay=3_600_000,
        ttl=0,
        max_size=0,
        dead_letter_queue=True,
        dlq_after_max_retries=True,
    )


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
        dead_letter_retention_seconds=23,
        encryption_enabled=True,
    )
    [answer] = await engine.configure([QueueSpec(name="orders", options=options)])
    assert given(answer).options == options
    assert (await q.stats("orders")).info.options == options


async def test_configure_again_replaces_all_options_and_keeps_the_messages_and_the_pause(q: Driver) -> None:
    first = await q.configure("orders", namespace="shop", task="ship", retry_limit=7, priority=3)
    await q.push("orders", "Default", 1)
    await q.engine.pause("orders", None, True)
    second = await q.configure("orders", priority=4)
    assert (second.id, second.partition_id, second.created_at) == (first.id, first.partition_id, first.created_at)
    assert (second.namespace, second.task, second.options) == ("", "", QueueOptions(priority=4))
    assert second.paused
    await q.engine.pause("orders", None, False)
    assert payloads(await q.pop("orders")) == [1]


async def test_configure_takes_a_batch_and_queue_infos_answers_those_that_exist(engine: Engine) -> None:
    answers = await engine.configure([QueueSpec(name=name) for name in ("a", "b", "a", "c")])
    infos = [given(one) for one in answers]
    assert [one.name for one in infos] == ["a", "b", "a", "c"]
    assert infos[0].id == infos[2].id
    for wanted, found in ((None, ["a", "b", "c"]), (["c", "nowhere", "a"], ["a", "c"]), ([], [])):
        assert sorted(one.name for one in await engine.queue_infos(wanted)) == found


async def test_a_changed_lease_time_is_for_the_leases_that_follow(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=5)
    await q.push("orders", "p1", 1)
    [leased] = await q.pop("orders")
    await q.configure("orders", lease_time=1)
    clock.advance(4)
    assert (await q.ack(leased)).success


async def test_sealing_must_agree_with_the_queue_s_encryption(q: Driver) -> None:
    await q.configure("secret", encryption_enabled=True)
    outcome = await q.transact(message("bills", "p1", 1), message("secret", "p1", 2))
    assert (outcome.success, outcome.code, outcome.failed_index) == (False, "sealing_mismatch", 1)
    assert await q.pop("bills") == []
    outcomes = await q.push_messages(
        message("secret", "p1", 1),
        message("secret", "p1", "ciphertext", sealed=True),
        message("plain", "p1", "ciphertext", sealed=True),
        message("plain", "p1", 2),
    )
    assert [one.status for one in outcomes] == ["failed", "queued", "failed", "queued"]
    assert [one.code for one in outcomes] == ["sealing_mismatch", None, "sealing_mismatch", None]
    [leased], [plain] = await q.pop("secret"), await q.pop("plain")
    assert leased.message.sealed and not plain.message.sealed


async def test_rule_26_auto_ack_leaves_what_is_sealed_on_a_lease_until_it_was_read(q: Driver, either: Workers) -> None:
    await q.configure("orders", encryption_enabled=True, lease_time=10)
    await q.push("orders", "p1", "ciphertext", "another", sealed=True)
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", "plain")
    await q.push("orders", "p2", "alone")
    got = await either.take(4, "p1", auto_ack=True)
    assert (payloads(got), bool(got.lease)) == (["ciphertext", "another", "plain"], True)
    q.clock.advance(10)
    for number in range(2):
        [leased] = await either.take(1, "p1", auto_ack=True)
        assert (await q.ack(leased)).success, number
    for partition, payload in (("p1", "plain"), ("p2", "alone")):
        got = await either.take(4, partition, auto_ack=True)
        assert (payloads(got), got.lease) == ([payload], "")
    assert await either.drain() == []
    assert (await either.stats()).lag == 0


async def test_a_dead_letter_of_a_sealed_message_stays_sealed(q: Driver) -> None:
    await q.configure("secret", encryption_enabled=True)
    await q.push("secret", "p1", "ciphertext", sealed=True)
    [leased] = await q.pop("secret")
    await q.kill(leased)
    [letter] = await q.dead_letters("secret")
    assert letter.sealed
    await q.requeue(letter)
    [leased] = await q.pop("secret")
    assert (leased.payload, leased.message.sealed) == ("ciphertext", True)
