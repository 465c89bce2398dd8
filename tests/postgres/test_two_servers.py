"""Two servers on one database: what is done on one holds at once on the other, whatever that one remembers."""

from __future__ import annotations

import pytest

from hark.clock import FakeClock
from hark.model import GroupMode
from tests.engine.driver import NEW, Driver, Got, message, offsets, payloads, settlement
from tests.engine.workers import Workers

# Leases ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_lease_id", [True, False])
async def test_a_lease_taken_on_one_is_settled_through_the_other(
    here: Driver, there: Driver, with_lease_id: bool
) -> None:
    await here.push("orders", "p1", 1, 2, 3)
    got = await here.pop("orders", batch=2)
    given = [settlement(leased) if with_lease_id else settlement(leased, lease=None) for leased in got]
    outcomes = await there.settle(*given)
    assert [(one.success, one.lease_released) for one in outcomes] == [(True, False), (True, True)]
    assert payloads(await here.pop("orders", batch=10)) == [3]


async def test_a_lease_taken_on_one_is_renewed_and_released_through_the_other(
    here: Driver, there: Driver, clock: FakeClock
) -> None:
    await here.push("orders", "p1", 1)
    [leased] = await here.pop("orders")
    clock.advance(299)
    assert (await there.renew(leased.lease, 300)).success
    clock.advance(299)
    assert (await here.pop("orders", "p1")).reason == "lease_held"
    assert (await there.pop("orders", "p1")).reason == "lease_held"
    await there.engine.release([leased.lease])
    [again] = await here.pop("orders")
    assert again.message.attempt == 1
    assert not (await there.ack(leased)).success
    assert (await there.ack(again)).success


@pytest.mark.parametrize("mode", ["ordered", "shared"])
@pytest.mark.parametrize("how", ["seek", "deleted group"])
async def test_rule_12_a_lease_has_completed_nothing_any_more_after_the_other_moved_its_group(
    here: Driver, there: Driver, clock: FakeClock, mode: GroupMode, how: str
) -> None:
    await here.push("orders", "p1", 1)
    workers, others = Workers(here, mode=mode), Workers(there, mode=mode)
    [late] = await workers.take()
    assert (await here.ack(late)).success
    assert (await here.transact(settlement(late))).success, "a repeat"
    clock.advance(1)
    if how == "seek":
        await there.seek("orders", group="workers", offset=1)
    else:
        await there.engine.delete_group("workers", None, False)
    [successor] = await others.take()
    assert (await there.transact(settlement(successor), message("bills", "p1", "successor"))).success
    outcome = await here.transact(message("bills", "p1", "late"), settlement(late))
    assert (outcome.success, outcome.code) == (False, "lease_invalid")
    assert await here.drain("bills") == ["successor"]


async def test_the_end_of_a_lease_is_noticed_by_the_other(here: Driver, there: Driver, clock: FakeClock) -> None:
    await here.push("orders", "p1", 1)
    [leased] = await here.pop("orders")
    assert (await there.pop("orders", "p1")).look_again_at == clock.now() + 300_000_000
    clock.advance(300)
    assert (await there.engine.expire()).leases == 1
    [again] = await there.pop("orders")
    assert again.message.attempt == 2
    assert (await here.ack(leased)).code == "lease_expired"


async def test_what_is_given_back_on_one_is_delivered_by_the_other_with_its_attempts(
    here: Driver, there: Driver
) -> None:
    await here.push("orders", "p1", 1, 2)
    for attempt in (1, 2, 3):
        giver, taker = (here, there) if attempt % 2 else (there, here)
        got = await giver.pop("orders", batch=2)
        assert [leased.message.attempt for leased in got] == [attempt, 1]
        await taker.fail(got[0])
    [first, _] = await here.pop("orders", batch=2)
    assert (await there.fail(first)).dead_lettered
    assert [letter.attempts for letter in await here.dead_letters()] == [4]


# Finding work ----------------------------------------------------------------------------------------------


Where = tuple[str | None, str | None, str | None]
"""Queue, namespace and task of a pop."""


@pytest.mark.parametrize("where", [("shop.orders.eu", None, None), (None, "shop", None), (None, None, "orders")])
async def test_a_push_on_one_is_found_at_once_by_the_other(here: Driver, there: Driver, where: Where) -> None:
    queue, namespace, task = where

    async def pop() -> Got:
        return await there.pop(queue, namespace=namespace, task=task)

    assert await pop() == []
    # A new queue; then a new partition; then one that was drained: each time the other has just found nothing.
    for number, partition in enumerate(["p1", "p2", "p1", "p2"]):
        await here.push("shop.orders.eu", partition, number)
        got = await pop()
        assert payloads(got) == [number]
        await there.ack_all(got)
        assert await pop() == []


async def test_a_settlement_on_one_lets_the_other_go_on_at_once(here: Driver, there: Driver) -> None:
    await here.push("orders", "p1", 1, 2, 3)
    for number in (1, 2, 3):
        [leased] = await here.pop("orders")
        assert leased.payload == number
        assert await there.pop("orders") == []
        here, there = there, here
        await here.ack(leased)


async def test_what_becomes_ready_on_one_is_found_at_once_by_the_other(
    here: Driver, there: Driver, clock: FakeClock
) -> None:
    await here.push("orders", "p1", 1)
    [leased] = await here.pop("orders")
    for give_back in (here.retry, here.fail):
        assert await there.pop("orders") == []
        await give_back(leased)
        [leased] = await there.pop("orders")
    await there.kill(leased)
    assert await there.pop("orders") == []
    [letter] = await here.dead_letters()
    await here.requeue(letter)
    got = await there.pop("orders")
    assert payloads(got) == [1]
    await there.ack_all(got)
    await here.push("orders", "p1", 2, delay_ms=5000)
    assert (await there.pop("orders")).look_again_at == clock.now() + 5_000_000
    clock.advance(5)
    assert payloads(await there.pop("orders")) == [2]
    await here.push("bills", "p1", 1, 2)
    assert await there.drain("bills", group="g") == [1, 2]
    await here.seek("bills", group="g", offset=2)
    assert payloads(await there.pop("bills", group="g", batch=10)) == [2]


async def test_a_pause_on_one_stops_the_other(here: Driver, there: Driver) -> None:
    await here.push("orders", "p1", 1)
    assert (await there.pop("orders", "nowhere", group="g")) == []
    for group in (None, "g"):
        await here.engine.pause("orders", group, True)
        assert (await there.pop("orders", group="g")).reason == "paused"
        await here.engine.pause("orders", group, False)
    assert payloads(await there.pop("orders", group="g")) == [1]


async def test_a_purge_and_a_deletion_on_one_are_stepped_over_on_the_other(here: Driver, there: Driver) -> None:
    await here.push("orders", "p1", 1)
    await there.pop("orders")
    await here.engine.purge("orders")
    gone = await here.push_id("orders", "p1", 2)
    await here.push("orders", "p1", 3)
    await here.engine.delete_messages([gone])
    got = await there.pop("orders", batch=10)
    assert (payloads(got), offsets(got)) == ([3], [3])


# Queues ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("remade", ["by the push", "by configure", "by the other"])
async def test_a_queue_deleted_on_one_begins_anew_when_the_other_pushes(
    here: Driver, there: Driver, remade: str
) -> None:
    await there.push("orders", "p1", 1, 2)
    await there.pop("orders")
    await here.engine.delete_queues(["orders"])
    if remade == "by configure":
        await here.configure("orders")
    elif remade == "by the other":
        await here.push("orders", "p1", 3)
    outcomes = await there.push_messages(message("orders", "p1", 4), message("bills", "p1", 5))
    assert [one.status for one in outcomes] == ["queued", "queued"]
    expected = [3, 4] if remade == "by the other" else [4]
    got = await here.pop("orders", batch=10)
    assert (payloads(got), offsets(got)) == (expected, list(range(1, len(expected) + 1)))
    assert await here.drain("bills") == [5]


@pytest.mark.parametrize("partition", [None, "p1"], ids=["any partition", "named partition"])
@pytest.mark.parametrize("leased", [True, False])
async def test_a_queue_deleted_and_made_anew_on_one_is_found_by_the_other(
    here: Driver, there: Driver, partition: str | None, leased: bool
) -> None:
    await here.push("orders", "p1", 1)
    got = await there.pop("orders", partition)
    if not leased:
        await there.ack_all(got)
    await here.engine.delete_queues(["orders"])
    await here.push("orders", "p1", 2)
    assert payloads(await there.pop("orders", partition)) == [2]


async def test_a_transaction_pushes_into_a_queue_that_the_other_deleted(here: Driver, there: Driver) -> None:
    await there.push("orders", "p1", 1)
    await there.push("bills", "p1", 2)
    [leased] = await there.pop("bills")
    await here.engine.delete_queues(["orders"])
    assert (await there.transact(settlement(leased), message("orders", "p1", 3))).success
    assert (await here.drain("orders"), await here.drain("bills")) == ([3], [])


async def test_what_was_leased_from_a_queue_that_the_other_deleted_can_not_be_settled(
    here: Driver, there: Driver
) -> None:
    await there.push("orders", "p1", 1)
    [leased] = await there.pop("orders")
    await here.engine.delete_queues(["orders"])
    await here.push("orders", "p1", 2)
    assert (await there.ack(leased)).code == "not_found"
    assert not (await there.renew(leased.lease)).success
    assert await there.drain("orders") == [2]


async def test_a_transaction_id_is_free_again_when_the_other_deleted_its_queue(here: Driver, there: Driver) -> None:
    await there.push("orders", "p1", 1, transaction_id="t")
    assert [one.status for one in await here.push("orders", "p1", 2, transaction_id="t")] == ["duplicate"]
    await here.engine.delete_queues(["orders"])
    assert [one.status for one in await there.push("orders", "p1", 3, transaction_id="t")] == ["queued"]


async def test_options_changed_on_one_have_effect_on_the_other(here: Driver, there: Driver, clock: FakeClock) -> None:
    await there.push("orders", "p1", 1, 2, 3)
    await there.pop("orders", "nowhere")
    await here.configure("orders", lease_time=10, retry_limit=0, max_size=3, delayed_processing=5)
    [refused] = await there.push("orders", "p1", 4)
    assert (refused.status, refused.code) == ("failed", "queue_full")
    assert await there.pop("orders") == []
    clock.advance(5)
    [leased, *_] = await there.pop("orders", batch=3)
    assert (await there.fail(leased)).dead_lettered
    assert payloads(await there.pop("orders", batch=3)) == [2, 3]
    clock.advance(10)
    assert payloads(await there.pop("orders", batch=3)) == [2], "the lease is over, so they come one at a time"
    await here.configure("orders", encryption_enabled=True)
    [refused] = await there.push("orders", "p1", 5)
    assert (refused.status, refused.code) == ("failed", "sealing_mismatch")
    [info] = await there.engine.queue_infos(["orders"])
    assert info.options.encryption_enabled


async def test_labels_priorities_and_flags_changed_on_one_have_effect_on_the_other(here: Driver, there: Driver) -> None:
    await there.push_messages(message("a", "p1", "a"), message("b", "p1", "b"))
    assert await there.pop(namespace="shop") == []
    await here.configure("a", namespace="shop")
    await here.configure("b", namespace="shop", priority=5)
    assert payloads(await there.pop(namespace="shop")) == ["b"]
    await here.configure("a", namespace="elsewhere")
    assert await there.pop(namespace="shop") == []
    assert payloads(await there.pop(namespace="elsewhere")) == ["a"]
    await here.engine.write_flag("push_maintenance", True)
    assert await there.engine.read_flags() == {"push_maintenance": True}


# Groups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("forget", [True, False])
async def test_a_group_deleted_on_one_begins_anew_on_the_other(here: Driver, there: Driver, forget: bool) -> None:
    await here.push("orders", "p1", 1)
    assert await there.pop("orders", group="g", subscription=NEW) == []
    await here.push("orders", "p1", 2)
    [leased] = await there.pop("orders", group="g")
    await here.engine.delete_group("g", "orders", forget)
    assert not (await there.ack(leased)).success
    assert not (await there.renew(leased.lease)).success
    assert payloads(await there.pop("orders", group="g", batch=10)) == ([1, 2] if forget else [2])


async def test_a_start_fixed_or_changed_on_one_holds_on_the_other_in_the_same_instant(
    here: Driver, there: Driver, clock: FakeClock
) -> None:
    await there.push("orders", "p1", 1)
    assert await here.pop("orders", group="g", subscription=NEW) == []
    await there.push("orders", "p1", 2)
    await there.push("orders", "p2", 3)
    got = await there.pop("orders", group="g", batch=10, partitions=10)
    assert sorted(str(payload) for payload in payloads(got)) == ["2", "3"]
    clock.advance(1)
    assert await there.pop("orders", "p3", group="changed") == []
    since = clock.now()
    clock.advance(1)
    await there.push("orders", "p1", 4)
    assert await here.engine.resubscribe("changed", since) == 1
    assert payloads(await there.pop("orders", group="changed", batch=10)) == [4]
