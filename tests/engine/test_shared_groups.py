"""Shared groups: each message goes to one of many consumers of its partition.

The mode is fixed at first contact, each group has a place of its own, a seek moves it, hints tell where and how many.
"""

from __future__ import annotations

import asyncio

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.errors import Conflict
from hark.model import QUEUE_MODE, GroupMode, PopRequest, PopResult

from .driver import Driver, message, offsets, payloads, settlement
from .workers import Workers, attempts


async def test_a_message_that_is_leased_is_given_to_no_one_else(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2)
    first, second = await workers.take(), await workers.take(10)
    assert (payloads(first), payloads(second)) == ([1], [2]), "two consumers hold messages of one partition"
    assert first.lease != second.lease
    assert await workers.take(10) == []
    assert await workers.take(10, "p1") == []
    await q.push("orders", "p1", 3)
    got = await workers.take()
    assert (payloads(got), offsets(got)) == ([3], [3]), "what comes later is taken beside what is held"


@pytest.mark.parametrize("partition", [None, "p1"])
async def test_many_pops_of_one_call_get_different_messages_of_one_partition(
    q: Driver, workers: Workers, partition: str | None
) -> None:
    await q.push("orders", "p1", *range(10))
    everything = await workers.take_together(1, 3, 1, 2, 4, 1, partition=partition)
    assert [payloads(got) for got in everything] == [[0], [1, 2, 3], [4], [5, 6], [7, 8, 9], []]
    assert len({got.lease for got in everything[:5]}) == 5


async def test_sixty_four_consumers_share_a_partition_without_a_message_lost_or_given_twice(
    q: Driver, workers: Workers
) -> None:
    await q.push("orders", "p1", *range(256))
    taken: list[object] = []

    async def consume() -> None:
        while got := await workers.take():
            taken.extend(payloads(got))
            await q.ack_all(got)

    await asyncio.gather(*(consume() for _ in range(64)))
    assert sorted(map(str, taken)) == sorted(map(str, range(256)))
    assert (await workers.stats()).lag == 0


async def test_a_batch_is_of_one_partition_unless_more_are_requested(q: Driver, workers: Workers) -> None:
    await q.push_messages(*(message("orders", name, f"{name}{n}") for name in ("p1", "p2") for n in (1, 2)))
    for named, wanted in ((None, ["p11", "p12"]), ("p1", ["p11", "p12"]), ("p2", ["p21", "p22"])):
        got = await workers.take(10, named)
        assert (payloads(got), got.partitions) == (wanted, 1)
        await q.engine.release([got.lease])
    got = await workers.take(10, partitions=2)
    assert sorted(map(str, payloads(got))) == ["p11", "p12", "p21", "p22"]
    assert got.partitions == 2


@pytest.mark.parametrize("priority", [0, 3])
async def test_partitions_of_one_priority_are_served_in_turn(q: Driver, workers: Workers, priority: int) -> None:
    names = ["p1", "p2", "p3"] * 2
    await q.push_messages(*(message("orders", name, name, priority=priority) for name in sorted(names * 2)))
    assert [payloads(await workers.take())[0] for _ in names] == names
    together = await workers.take_together(*[1] * 6)
    assert [one for got in together for one in payloads(got)] == names, "also by pops of one call"


async def test_one_lease_may_be_of_a_shared_and_of_an_ordered_group(q: Driver) -> None:
    """The same name may share one queue and be ordered in the other."""
    for name in ("a", "b"):
        await q.configure(name, namespace="ns", retry_limit=5)
        await q.push(name, "p1", name, name)
    await q.pop("a", "nowhere", group="g", group_mode="shared")
    await q.pop("b", "nowhere", group="g")
    assert {one.queue: one.mode for one in await q.engine.group_stats("g")} == {"a": "shared", "b": "ordered"}
    got = await q.pop(namespace="ns", group="g", batch=10, partitions=2)
    assert sorted(map(str, payloads(got))) == ["a", "a", "b", "b"]
    q.clock.advance(300)
    again = [*await q.pop("a", group="g", batch=10), *await q.pop("b", group="g", batch=10)]
    assert attempts(again) == [("a", 2), ("a", 2), ("b", 1)], "each pays in a shared group, none in an ordered one"
    await q.ack_all(again)


async def test_auto_ack_settles_at_delivery_beside_leases(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    await workers.take()
    got = await workers.take(2, auto_ack=True)
    assert (payloads(got), got.expires_at) == ([2, 3], None)
    q.clock.advance(300)
    got = await workers.take(10)
    assert attempts(got) == [(4, 1), (1, 2)]
    await q.ack_all(got)
    assert (await workers.stats()).lag == 0


async def test_delayed_processing_waits_until_each_message_is_old_enough(q: Driver, workers: Workers) -> None:
    await q.configure("orders", delayed_processing=10)
    start = q.clock.now()
    await q.push("orders", "p1", 1)
    await q.push("orders", "p1", "short", delay_ms=3000)
    await q.push("orders", "p1", "long", delay_ms=20_000)
    q.clock.advance(4)
    await q.push("orders", "p1", 2, priority=9)
    empty = await workers.take(10, "p1")
    assert (empty.reason, empty.look_again_at) == ("waiting", start + 10 * SECOND)
    got = await workers.arrive_at(start + 10 * SECOND)
    assert payloads(got) == [1], "a higher priority does not make a message older"
    assert payloads(await workers.take()) == ["short"], "of the age and a delay the later counts"
    assert payloads(await workers.arrive_at(start + 14 * SECOND)) == [2]
    assert payloads(await workers.arrive_at(start + 20 * SECOND)) == ["long"]


async def test_a_pop_ends_after_16_mib_whatever_its_batch(q: Driver, workers: Workers) -> None:
    big = "x" * (8 * 1024 * 1024)
    for number in range(3):
        await q.push("orders", "p1", [number, big])
    assert [len(await workers.take(10)) for _ in range(2)] == [2, 1]


# Beside others ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", ["workers", QUEUE_MODE])
async def test_the_mode_is_stored_at_first_contact_even_when_nothing_was_there(q: Driver, group: str) -> None:
    assert await q.pop("orders", group=group, group_mode="shared") == []
    [stats] = await q.engine.group_stats(group, "orders")
    assert stats.mode == "shared"
    await q.push("orders", "p1", 1, 2)
    first, second = [await q.pop("orders", group=group) for _ in range(2)]
    assert (payloads(first), payloads(second)) == ([1], [2]), "absent means: as stored"
    await q.ack_all([*first, *second])


@pytest.mark.parametrize(("first", "then"), [("shared", "ordered"), ("ordered", "shared"), (None, "shared")])
async def test_another_mode_is_a_conflict_in_place_and_neighbours_are_served(
    q: Driver, engine: Engine, first: GroupMode | None, then: GroupMode
) -> None:
    await q.push("orders", "p1", 1)
    await q.pop("orders", "nowhere", group="g", group_mode=first)
    answers = await engine.pop(
        [
            PopRequest(queue="orders", group="g", group_mode=then),
            PopRequest(queue="orders", group="h", group_mode=then),
            PopRequest(queue="orders", group="g", group_mode=first),
        ]
    )
    assert isinstance(answers[0], Conflict) and answers[0].code == "group_mode_conflict"
    assert [isinstance(one, PopResult) and len(one.messages) for one in answers[1:]] == [1, 1]


async def test_every_group_sees_every_message_whatever_its_mode(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.ack_all(await workers.take())
    [leased] = await workers.take()
    assert await Workers(q, group="others").drain() == [1, 2, 3], "also what another group holds or has settled"
    assert await q.drain("orders", group="ordered") == [1, 2, 3]
    assert await q.drain("orders") == [1, 2, 3]
    assert await workers.drain() == [3]
    assert (await q.ack(leased)).success


async def test_an_ordered_group_beside_a_shared_one_keeps_its_order(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1)
    await q.push("orders", "p1", 2, priority=9)
    await q.push("orders", "p1", 3)
    leased = [await workers.take() for _ in range(3)]
    assert [payloads(one) for one in leased] == [[2], [1], [3]]
    assert payloads(await q.pop("orders", group="ordered", batch=10)) == [1, 2, 3]


async def test_a_deleted_group_starts_again_and_a_forgotten_one_may_have_another_mode(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2)
    await q.ack(got[0])
    await q.fail(got[1])
    for forget in (False, True):
        await engine.delete_group("workers", "orders", forget)
        assert attempts(await workers.take(10)) == [(1, 1), (2, 1), (3, 1)]
        assert not (await q.ack(got[0])).lease_released
    await engine.delete_group("workers", "orders", True)
    assert payloads(await q.pop("orders", group="workers", group_mode="ordered")) == [1]
    assert await q.pop("orders", group="workers") == []


async def test_the_mode_and_the_place_survive_a_restart(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await workers.take(3)
    await q.ack_all(got)
    await q.reopen()
    assert (await workers.stats()).mode == "shared"
    assert payloads(await q.pop("orders", group="workers", batch=10)) == [4]
    with pytest.raises(Conflict):
        await q.pop("orders", group="workers", group_mode="ordered")


# Seek ------------------------------------------------------------------------------------------------------


async def test_rule_21_attempts_and_waits_are_forgotten(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    for leased in await workers.take(2):
        await q.fail(leased, delay_ms=60_000)
    await q.seek("orders", group="workers", offset=1)
    got = await workers.take(10)
    assert attempts(got) == [(1, 1), (2, 1), (3, 1)]
    await q.fail(got[0], delay_ms=1000)
    await q.seek("orders", group="workers", offset=2)
    q.clock.advance(10)
    assert await workers.drain() == [2, 3], "a retry can be skipped"


async def test_rule_21_delayed_messages_beyond_the_target_come_at_their_time_again(q: Driver, workers: Workers) -> None:
    await q.push_messages(
        message("orders", "p1", "first", delay_ms=1000),
        message("orders", "p1", "second", delay_ms=3000),
        message("orders", "p1", "plain"),
    )
    await workers.take(1, "nowhere")
    await q.seek("orders", group="workers", offset=2)
    q.clock.advance(1)
    assert await workers.drain() == ["plain"], "one before the target is skipped"
    assert ((await workers.stats()).lag, (await workers.stats()).scheduled) == (0, 1)
    await q.seek("orders", group="workers", offset=1)
    assert await workers.drain() == ["plain", "first"]
    q.clock.advance(2)
    assert await workers.drain() == ["second"]
    await q.seek("orders", group="workers", offset=2)
    assert await workers.drain() == ["plain", "second"]
    await q.seek("orders", group="workers", to_end=True)
    assert await workers.drain() == []


async def test_rule_21_every_priority_begins_again(q: Driver, workers: Workers) -> None:
    start = q.clock.now()
    for priority in (0, 9, 4, 0, 9):
        await q.push("orders", "p1", priority, priority=priority)
        q.clock.advance(10)
    await workers.drain()
    await q.seek("orders", group="workers", offset=3)
    assert await workers.drain() == [9, 4, 0]
    await q.seek("orders", group="workers", timestamp=start + 15_000_000)
    assert await workers.drain() == [9, 4, 0], "also behind a time"


# Hints -----------------------------------------------------------------------------------------------------


def counts(q: Driver, group: str = "workers") -> dict[str, int]:
    """How many messages the hints of a group name, by partition; a hint without counts is one look."""
    found: dict[str, int] = {}
    for hint in q.hints_for("orders", group):
        assert hint.partitions is not None, "anywhere"
        for name, number in zip(hint.partitions, hint.counts or [1] * len(hint.partitions), strict=True):
            found[name] = found.get(name, 0) + number
    return found


async def known(q: Driver, workers: Workers) -> None:
    """The group has met its queue, and nothing was told yet."""
    await q.configure("orders")
    assert await workers.take() == []
    q.hints.clear()


async def test_a_push_reports_how_many_also_beside_what_is_leased(q: Driver, workers: Workers) -> None:
    await known(q, workers)
    await q.push_messages(*(message("orders", name, 1) for name in ("p1", "p2", "p1", "p1")))
    assert counts(q) == {"p1": 3, "p2": 1}
    assert len(await workers.take(10, "p1")) == 3
    q.hints.clear()
    await q.push("orders", "p1", 2)
    assert counts(q) == {"p1": 1}


async def test_a_delayed_push_is_changes_if_it_is_the_earliest(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await known(q, workers)
    await q.push("orders", "p1", *range(5), delay_ms=5000)
    assert counts(q) == {"p1": 1}, "one look, to learn the time"
    assert (await workers.take()).look_again_at == clock.now() + 5 * SECOND
    q.hints.clear()
    await q.push("orders", "p1", 6, delay_ms=9000)
    assert counts(q) == {}, "there is an earlier one"
    await q.push("orders", "p1", 7, delay_ms=2000)
    assert counts(q) == {"p1": 1}


async def test_what_is_given_back_is_changes_and_what_is_completed_ends_the_lease_only(
    q: Driver, workers: Workers
) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4, 5)
    got = await workers.take(4)
    q.hints.clear()
    await q.ack(got[0])
    assert (counts(q), q.ended) == ({}, set())
    await q.settle(settlement(got[1], "failed"), settlement(got[2], "retry"))
    assert (counts(q), q.ended) == ({"p1": 2}, set())
    q.hints.clear()
    await q.ack(got[3])
    assert (counts(q), q.ended) == ({}, {got.lease})


async def test_a_retry_that_waits_is_changes_if_it_is_the_earliest(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(3)
    q.hints.clear()
    await q.retry(got[0], delay_ms=5000)
    assert counts(q) == {"p1": 1}
    assert (await workers.take()).look_again_at == clock.now() + 5 * SECOND
    q.hints.clear()
    await q.retry(got[1], delay_ms=9000)
    assert counts(q) == {}
    await q.retry(got[2], delay_ms=1000)
    assert counts(q) == {"p1": 1}


async def test_a_release_and_an_expiry_report_how_many_come_again(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.configure("orders", retry_limit=1)
    await q.push("orders", "p1", 1, 2, 3)
    got = await workers.take(2)
    q.hints.clear()
    await engine.release([got.lease])
    assert (counts(q), q.ended) == ({"p1": 2}, {got.lease})
    for again in ({"p1": 3}, {}):
        got = await workers.take(3)
        q.clock.advance(300)
        q.hints.clear()
        await engine.expire()
        assert (counts(q), q.ended) == (again, {got.lease}), "after the last attempt none comes again"


async def test_the_first_pop_reports_of_what_it_left(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    q.hints.clear()
    await workers.take()
    hints = q.hints_for("orders", "workers")
    assert hints, "nobody of the group had been told"


async def test_a_pop_reports_of_what_fell_due_and_was_left(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3, delay_ms=1000)
    assert await workers.take() == []
    clock.advance(1)
    q.hints.clear()
    await workers.take()
    assert counts(q) == {"p1": 2}


async def test_a_pop_that_took_what_was_notified_reports_nothing(q: Driver, workers: Workers) -> None:
    await known(q, workers)
    await q.push("orders", "p1", 1, 2, 3)
    q.hints.clear()
    for _ in range(4):
        await workers.take()
    assert q.hints == []


async def test_a_cancelled_or_deleted_message_is_no_changes_for_a_shared_group(q: Driver, workers: Workers) -> None:
    ids = [one.message_id or "" for one in await q.push("orders", "p1", 1, 2, delay_ms=1000)]
    await workers.take()
    q.hints.clear()
    assert await q.engine.cancel(ids[:1]) == ["cancelled"]
    assert await q.engine.delete_messages(ids[1:]) == [True]
    assert counts(q) == {}


async def test_a_message_that_is_removed_before_its_retry_is_not_waited_for(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    first, second, third = await workers.take(3)
    await q.ack(first)
    await q.retry(second, delay_ms=5000)
    await q.retry(third, delay_ms=9000)
    assert await q.engine.delete_messages([second.message.id]) == [True]
    left = await workers.take(partition="p1")
    assert (left.reason, left.look_again_at) == ("waiting", third.message.created_at + 9 * SECOND)
    assert await q.engine.delete_messages([third.message.id]) == [True]
    left = await workers.take(partition="p1")
    assert (left.reason, left.look_again_at) == ("nothing_ready", None)


async def test_an_ordered_group_beside_it_has_a_hint_of_its_own(q: Driver, workers: Workers) -> None:
    await known(q, workers)
    await q.pop("orders", group="ordered")
    await q.push("orders", "p1", 1, 2)
    assert q.announced("orders", "ordered") == {"p1"}
    assert counts(q) == {"p1": 2}
    got = await q.pop("orders", group="ordered")
    q.hints.clear()
    await q.push("orders", "p1", 3)
    assert q.announced("orders", "ordered") == set(), "it holds the partition"
    assert counts(q) == {"p1": 1}
    q.hints.clear()
    await q.ack_all(got)
    assert (q.announced("orders", "ordered"), counts(q)) == ({"p1"}, {})
