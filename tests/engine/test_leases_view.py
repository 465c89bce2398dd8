"""Leases as an administrator sees them: by partition, with holder, start and end; and queues by ids."""

from __future__ import annotations

import msgspec

from hark.clock import SECOND, FakeClock
from hark.model import GroupMode, HeldPart, LeaseFilter

from .driver import NEVER_GIVEN, Driver


async def leases(q: Driver, **where: str) -> list[HeldPart]:
    """All that match."""
    page = await q.engine.leases(LeaseFilter(**where))  # type: ignore[arg-type]
    assert page.total == len(page.items)
    return list(page.items)


async def test_a_lease_is_shown_with_who_holds_what_since_when_and_until_when(
    q: Driver, clock: FakeClock, mode: GroupMode
) -> None:
    await q.configure("orders", lease_time=30)
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", group="g", group_mode=mode, batch=2, consumer="worker 7")
    shown = HeldPart(
        lease_id=got.lease,
        queue="orders",
        partition="p1",
        partition_id=got[0].message.partition_id,
        group="g",
        mode=mode,
        consumer="worker 7",
        since=clock.now(),
        until=clock.now() + 30 * SECOND,
        messages=2,
        first_message_id=got[0].message.id,
    )
    assert await leases(q) == [shown]
    clock.advance(20)
    await q.renew(got.lease, 60)
    assert await leases(q) == [msgspec.structs.replace(shown, until=clock.now() + 60 * SECOND)]
    clock.advance(60)
    assert await leases(q) == [], "an expired one is gone"


async def test_settled_messages_are_not_held_any_more(q: Driver, mode: GroupMode) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    await q.pop("orders", group="g", group_mode=mode, auto_ack=True)
    assert await leases(q) == []
    got = await q.pop("orders", group="g", batch=3)
    await q.ack(got[0])
    [found] = await leases(q)
    assert (found.messages, found.first_message_id) == (2, got[1].message.id)
    await q.ack_all(got[1:])
    assert await leases(q) == []


async def test_a_lease_over_several_partitions_has_an_entry_for_each(q: Driver) -> None:
    for partition in ("p1", "p2"):
        await q.push("orders", partition, 1)
    got = await q.pop("orders", group="g", batch=10, partitions=10)
    found = await leases(q)
    assert {(one.lease_id, one.partition, one.messages) for one in found} == {
        (got.lease, "p1", 1),
        (got.lease, "p2", 1),
    }


async def test_in_a_shared_group_several_hold_messages_of_one_partition(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    for name in ("a", "b"):
        await q.pop("orders", group="g", group_mode="shared", consumer=name)
    assert sorted(one.consumer for one in await leases(q)) == ["a", "b"]


async def test_a_lease_that_gave_its_partition_back_with_a_failure_is_not_shown(q: Driver) -> None:
    await q.configure("orders", retry_delay=5000)
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders", group="g", batch=2)
    await q.fail(got[0])
    assert await leases(q) == []


async def test_leases_are_found_by_queue_partition_and_group(q: Driver) -> None:
    for queue in ("orders", "mails"):
        for partition in ("p1", "p2"):
            await q.push(queue, partition, 1)
            for group in ("g", "h"):
                await q.pop(queue, partition, group=group)
    assert len(await leases(q)) == 8
    assert {(one.partition, one.group) for one in await leases(q, queue="mails")} == {
        (partition, group) for partition in ("p1", "p2") for group in ("g", "h")
    }
    [one] = await leases(q, queue="orders", partition="p2", group="h")
    assert (one.queue, one.partition, one.group) == ("orders", "p2", "h")
    assert await leases(q, queue="nothing") == []


async def test_leases_come_in_pages_oldest_first(q: Driver, clock: FakeClock) -> None:
    given_out = []
    for number in range(5):
        await q.push("orders", f"p{number}", number)
        given_out.append((await q.pop("orders", group="g")).lease)
        clock.advance(1)
    pages = [await q.engine.leases(LeaseFilter(limit=2, offset=offset)) for offset in (0, 2, 4)]
    assert [page.total for page in pages] == [5, 5, 5]
    assert [one.lease_id for page in pages for one in page.items] == given_out


# Queues by ids ---------------------------------------------------------------------------------------------


async def test_queues_of_partitions_and_of_messages(q: Driver) -> None:
    [one] = await q.push("orders", "p1", 1)
    [other] = await q.push("mails", "p1", 1)
    assert one.partition_id and one.message_id and other.partition_id
    ids = [one.partition_id, other.partition_id, one.message_id, "no id", NEVER_GIVEN]
    assert await q.engine.queues_of(ids) == ["orders", "mails", "orders", None, None]
    assert await q.engine.queues_of([]) == []
    await q.engine.delete_queues(["orders"])
    assert await q.engine.queues_of(ids[:2]) == [None, "mails"]


async def test_queues_of_partitions_are_known_after_a_restart(q: Driver) -> None:
    [one] = await q.push("orders", "p1", 1)
    assert one.partition_id is not None
    await q.reopen()
    assert await q.engine.queues_of([one.partition_id]) == ["orders"]
