"""The administrator's verbs: pause, purge, delete, flags."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import MessageFilter, Settlement

from .driver import NEVER_GIVEN, NEW, Driver, message, payloads, settlement

# Pause -----------------------------------------------------------------------------------------------------


async def test_a_paused_queue_takes_pushes_and_settlements_but_delivers_nothing(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    [held] = await q.pop("orders")
    assert await engine.pause("orders", None, True)
    assert [one.paused for one in await engine.queue_infos(["orders"])] == [True]
    assert (await q.ack(held)).success
    assert [one.status for one in await q.push("orders", "p2", 3)] == ["queued"]
    assert await q.pop("orders", batch=10, partitions=10) == []
    assert await engine.pause("orders", None, False)
    assert sorted(map(str, await q.drain("orders"))) == ["2", "3"]


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


async def test_pausing_what_does_not_exist_is_false(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    assert not await engine.pause("nowhere", None, True)
    assert not await engine.pause("orders", "unknown", True)
    assert not await engine.pause("nowhere", "unknown", False)


# Purge -----------------------------------------------------------------------------------------------------


async def test_purge_removes_all_messages_leased_ones_too(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    await q.push("orders", "p2", 3)
    await q.push("bills", "p1", 4)
    [held] = await q.pop("orders", "p1")
    assert await engine.purge("orders") == 3
    assert (await q.ack(held)).code == "not_found"
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


async def test_purging_one_group_settles_all_that_it_has_open(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1, 2, 3)
    await q.push("orders", "p2", 4)
    await q.push("orders", "p3", 5, delay_ms=1000)
    got = await q.pop("orders", "p1", group="a", batch=2)
    await q.ack(got[0])
    [failed] = await q.pop("orders", "p2", group="a")
    await q.fail(failed)
    assert await engine.purge("orders", "a") == 4
    clock.advance(400)
    assert await q.pop("orders", group="a") == []
    assert (await q.settle(settlement(got[1], "failed")))[0].success is False
    assert await q.drain("orders", group="b") == [1, 2, 3, 4, 5]
    await q.push("orders", "p1", 6)
    assert await q.drain("orders", group="a") == [6]


async def test_purging_one_group_includes_what_was_requeued_for_it(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    [held] = await q.pop("orders", group="a")
    await q.kill(held)
    [letter] = await q.dead_letters()
    await q.requeue(letter)
    assert await engine.purge("orders", "a") == 2
    assert await q.pop("orders", group="a") == []


async def test_purging_one_group_does_not_count_what_dies_at_that_moment(
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


async def test_purging_what_does_not_exist_removes_nothing(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    assert await engine.purge("nowhere") == 0
    assert await engine.purge("orders", "unknown") == 0
    assert await q.drain("orders") == [1]


# Deleting messages -----------------------------------------------------------------------------------------


async def test_a_deleted_message_is_stepped_over(q: Driver, engine: Engine) -> None:
    ids = [one.message_id or "" for one in await q.push("orders", "p1", 1, 2, 3, 4)]
    assert await engine.delete_messages([ids[0], ids[2], NEVER_GIVEN, "no id", ids[2]]) == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert await q.drain("orders") == [2, 4]
    await q.push("orders", "p1", 5)
    [held] = await q.pop("orders")
    assert (held.payload, held.message.offset) == (5, 5)


async def test_a_leased_message_can_be_deleted(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=2)
    assert await engine.delete_messages([got[0].message.id]) == [True]
    assert (await q.ack(got[0])).code == "not_found"
    assert (await q.ack(got[1])).success
    assert payloads(await q.pop("orders")) == [3]


async def test_deleting_all_that_a_lease_holds_frees_the_partition(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    [held] = await q.pop("orders")
    await engine.delete_messages([held.message.id])
    assert payloads(await q.pop("orders")) == [2]


async def test_a_message_that_waits_for_its_retry_can_be_deleted(q: Driver, engine: Engine) -> None:
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1, 2)
    [held] = await q.pop("orders")
    await q.fail(held)
    await engine.delete_messages([held.message.id])
    assert payloads(await q.pop("orders")) == [2]


async def test_deleting_the_newest_message_does_not_reuse_its_offset(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    last = await q.push_id("orders", "p1", 2)
    await engine.delete_messages([last])
    assert await q.push_id("orders", "p1", 3) > last
    assert await q.drain("orders") == [1, 3]


# Deleting queues -------------------------------------------------------------------------------------------


async def test_a_deleted_queue_is_gone_with_everything_in_it(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.configure("orders", retry_limit=9)
    await q.push("orders", "p1", 1, 2, 3, transaction_id=None)
    await q.push("bills", "p1", 4)
    [held] = await q.pop("orders", group="g")
    await q.kill(held)
    [open_one] = await q.pop("orders", group="g")
    assert await engine.delete_queues(["orders", "nowhere", "orders"]) == [True, False, False]
    assert [one.name for one in await engine.queue_infos()] == ["bills"]
    assert await engine.messages(MessageFilter(queue="orders")) == []
    assert await engine.group_stats(queue="orders") == []
    assert await engine.track_stats(queue="orders") == []
    assert await q.dead_letters("orders") == []
    assert (await q.ack(open_one)).code == "not_found"
    clock.advance(1000)
    assert (await engine.expire()).next_due is None
    assert await q.pop("orders") == []
    assert await q.drain("bills") == [4]


async def test_a_queue_of_the_same_name_is_a_new_queue(q: Driver, engine: Engine, clock: FakeClock) -> None:
    info = await q.configure("orders", retry_limit=9)
    await q.push("orders", "p1", 1, transaction_id="t1")
    old = await q.pop("orders", group="g")
    await engine.delete_queues(["orders"])
    clock.advance(1)
    [outcome] = await q.push("orders", "p1", 2, transaction_id="t1")
    assert outcome.status == "queued"
    [fresh] = await engine.queue_infos(["orders"])
    assert fresh.id != info.id
    assert fresh.options.retry_limit == 3
    assert not (await q.ack(old[0])).success
    [held] = await q.pop("orders", group="g", subscription=NEW) or await q.pop("orders", group="h")
    assert (held.payload, held.message.offset) == (2, 1)
    assert held.message.partition_id != old[0].message.partition_id


async def test_the_groups_of_a_deleted_queue_are_forgotten(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    clock.advance(1)
    assert await q.pop("orders", group="g", subscription=NEW) == []
    await engine.delete_queues(["orders"])
    clock.advance(1)
    await q.push("orders", "p1", 2)
    clock.advance(1)
    assert await q.pop("orders", group="g", subscription=NEW) == [], "a first contact again"


async def test_old_ids_of_a_deleted_queue_find_nothing(q: Driver, engine: Engine) -> None:
    [old] = await q.push("orders", "p1", 1, transaction_id="t1")
    await engine.delete_queues(["orders"])
    await q.push("orders", "p1", 2, transaction_id="t1")
    assert await engine.message(old.partition_id or "", "t1") is None
    assert await engine.delete_messages([old.message_id or ""]) == [False]
    [outcome] = await q.settle(Settlement("t1", old.partition_id or ""))
    assert outcome.code == "not_found"
    assert await q.drain("orders") == [2]


# The server's own notes ------------------------------------------------------------------------------------


async def test_flags_are_remembered(engine: Engine) -> None:
    assert await engine.read_flags() == {}
    await engine.write_flag("maintenance", True)
    await engine.write_flag("pop_maintenance", False)
    await engine.write_flag("maintenance", True)
    assert await engine.read_flags() == {"maintenance": True, "pop_maintenance": False}


async def test_a_started_engine_answers_ping(engine: Engine) -> None:
    await engine.ping()


async def test_a_message_goes_to_the_partition_default_when_none_is_named(q: Driver) -> None:
    await q.push_messages(message("orders", "Default", 1))
    assert payloads(await q.pop("orders", "Default")) == [1]
