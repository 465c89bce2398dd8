"""Hints: whoever waits is told of whatever may have made work ready, of nothing else, and where it is.

What a verb tells has reached the listener when the verb answers, so that something was not told can be seen at once.
"""

from __future__ import annotations

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.engine.hints import MANY, HintBook, forget_oldest
from hark.model import QUEUE_MODE, Hint, Status

from .driver import ANYWHERE, NEVER_GIVEN, Driver, message, payloads, settlement
from .workers import Workers

# Push ------------------------------------------------------------------------------------------------------


async def test_a_push_is_changes_for_all_groups(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    await q.hinted("orders", "any group at all")
    assert q.hints == [Hint("orders", None, ("p1",), "message")]
    q.hints.clear()
    await q.transact(message("orders", "p2", 2))
    assert q.announced("orders") == {"p2"}


async def test_a_group_that_is_known_has_a_hint_of_its_own(q: Driver) -> None:
    assert await q.pop("orders", group="g") == []
    q.hints.clear()
    await q.push("orders", "p1", 1)
    assert q.hints == [
        Hint("orders", None, ("p1",), "message", excluded=("g",)),
        Hint("orders", "g", ("p1",), "message"),
    ]


async def test_a_push_to_several_queues_and_partitions_is_one_hint_for_each_queue(q: Driver) -> None:
    await q.push_messages(*(message(queue, part, 1) for queue in ("orders", "bills") for part in ("p1", "p2", "p1")))
    assert sorted(q.hints, key=lambda hint: hint.queue) == [
        Hint("bills", None, ("p1", "p2"), "message", counts=(2, 1)),
        Hint("orders", None, ("p1", "p2"), "message", counts=(2, 1)),
    ]


async def test_a_push_into_a_leased_partition_does_not_concern_the_group_that_holds_it(q: Driver) -> None:
    await q.push("orders", "p1", 1)
    await q.pop("orders", group="g")
    await q.pop("orders", group="h", auto_ack=True)
    q.hints.clear()
    await q.push_messages(message("orders", "p1", 2), message("orders", "p2", 3))
    assert q.announced("orders", "g") == {"p2"}
    assert q.announced("orders", "h") == {"p1", "p2"}
    assert q.announced("orders", "unknown") == {"p1", "p2"}


async def test_what_was_pushed_into_a_leased_partition_is_notified_when_the_lease_ends(
    q: Driver, engine: Engine
) -> None:
    await q.push("orders", "p1", 1)
    got = await q.pop("orders")
    await q.push("orders", "p1", 2)
    q.hints.clear()
    await q.ack(got[0])
    assert q.announced("orders") == {"p1"}
    got = await q.pop("orders")
    await q.push("orders", "p1", 3)
    q.hints.clear()
    await engine.release([got.lease])
    assert q.announced("orders") == {"p1"}


async def test_a_push_behind_a_message_that_waits_is_no_changes_until_its_time(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, delay_ms=5000)
    assert q.announced("orders") == {"p1"}, "the look finds out when it is due"
    assert (await q.pop("orders")).look_again_at == clock.now() + 5_000_000
    q.hints.clear()
    await q.push("orders", "p1", 2)
    assert q.announced("orders") == set()
    clock.advance(5)
    assert payloads(await q.pop("orders", batch=2)) == [1, 2]


async def test_a_push_after_the_last_message_was_settled_or_purged_is_changes_again(q: Driver, engine: Engine) -> None:
    """What was known of the lease must not outlive it."""
    for number in range(4):
        q.hints.clear()
        await q.push("orders", "p1", number)
        assert q.announced("orders") == {"p1"}
        got = await q.pop("orders")
        q.hints.clear()
        if number == 2:
            await engine.purge("orders")
        else:
            await q.ack_all(got)
        assert q.announced("orders") == set()


async def test_a_refused_or_repeated_push_is_no_changes(q: Driver) -> None:
    await q.configure("orders", max_size=1)
    await q.push("orders", "p1", 1, transaction_id="once")
    q.hints.clear()
    await q.push("orders", "p1", 2)
    await q.push("orders", "p1", 1, transaction_id="once")
    await q.transact(message("orders", "p1", 1, transaction_id="once"))
    assert q.hints == []


# Pop -------------------------------------------------------------------------------------------------------


async def test_a_pop_with_auto_ack_says_that_it_left_more(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    for left in (True, True, False):
        q.hints.clear()
        await q.pop("orders", auto_ack=True)
        assert q.announced("orders") == ({"p1"} if left else set())


async def test_the_first_pop_of_a_group_says_that_there_is_more_than_it_took(q: Driver) -> None:
    await q.push_messages(*(message("orders", part, 1) for part in ("p1", "p2", "p3")))
    q.hints.clear()
    assert len(await q.pop("orders", group="g", batch=9, partitions=2)) == 2
    assert q.announced("orders", "g") & {"p3", ANYWHERE}
    q.hints.clear()
    await q.pop("orders", group="g")
    assert q.announced("orders", "g") == set()


async def test_a_pop_reports_of_what_fell_due_beside_what_it_took(q: Driver, clock: FakeClock) -> None:
    await q.push_messages(*(message("orders", part, 1, delay_ms=1000) for part in ("p1", "p2", "p3")))
    assert await q.pop("orders") == []
    clock.advance(1)
    q.hints.clear()
    [leased] = await q.pop("orders")
    assert q.announced("orders") == {"p1", "p2", "p3"} - {leased.message.partition}


async def test_an_empty_pop_and_one_that_leases_all_there_is_report_nothing(q: Driver, engine: Engine) -> None:
    """Or those who wait would wake each other; also for as long as a queue is paused."""
    await q.pop("orders")
    await q.push("orders", "p1", 1, 2)
    q.hints.clear()
    for partition in (None, None, "p1"):
        await q.pop("orders", partition)
    assert q.hints == []
    await q.push_messages(*(message("orders", part, 1) for part in ("p2", "p3")))
    await engine.pause("orders", None, True)
    await q.pop("orders")
    await q.pop("orders")
    q.hints.clear()
    for _ in range(3):
        assert (await q.pop("orders")).reason == "paused"
    assert q.hints == []


# The end of leases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["completed", "dlq"])
async def test_the_end_of_a_lease_by_settlement_is_changes(q: Driver, status: Status) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=2)
    q.hints.clear()
    await q.ack(got[0])
    assert q.hints == [], "the lease holds another message"
    await q.settle(settlement(got[1], status))
    assert q.hints == [Hint("orders", QUEUE_MODE, ("p1",), "free", ended=(got.lease,))]
    last = await q.pop("orders")
    q.hints.clear()
    await q.settle(settlement(last[0], status))
    assert q.hints == [Hint("orders", QUEUE_MODE, (), "free", ended=(last.lease,))], "nothing to take behind it"


async def test_a_lease_over_several_partitions_is_over_with_the_last_of_them(q: Driver) -> None:
    await q.push_messages(*(message("orders", part, n) for part in ("p1", "p2") for n in range(3)))
    first = await q.pop("orders", batch=1)
    await q.ack(first[0])
    got = await q.pop("orders", batch=5, partitions=2)
    one, other = sorted({leased.message.partition for leased in got})
    q.hints.clear()
    for _ in range(2):
        await q.ack_all(leased for leased in got if leased.message.partition == one)
    assert q.ended == set()
    await q.ack_all(leased for leased in got if leased.message.partition == other)
    assert q.ended == {got.lease}


@pytest.mark.parametrize("required", [False, True], ids=["named by the settlement", "only required"])
async def test_the_end_of_a_lease_inside_a_transaction_is_changes(q: Driver, required: bool) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders")
    q.hints.clear()
    lease, leases = (None, [got.lease]) if required else (got.lease, [])
    await q.transact(settlement(got[0], lease=lease), message("bills", "p1", 1), required_leases=leases)
    assert q.announced("orders") == {"p1"}
    assert q.announced("bills") == {"p1"}
    assert q.ended == {got.lease}


async def test_a_renewal_and_what_is_refused_are_no_changes(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders")
    q.hints.clear()
    await q.renew(got.lease, 600)
    unowned = settlement(got[0], lease=NEVER_GIVEN)
    await q.settle(unowned)
    assert not (await q.transact(settlement(got[0]), message("bills", "p1", 1), unowned)).success
    assert q.hints == []


async def test_a_message_given_back_is_changes_and_is_found_at_its_time(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    for delay_ms in (None, 2000):
        for give_back in (q.fail, q.retry):
            got = await q.pop("orders")
            q.hints.clear()
            await give_back(got[0], delay_ms=delay_ms)
            assert q.announced("orders") == {"p1"}, "the look finds out when it is due"
            assert q.ended == {got.lease}
            if delay_ms:
                assert (await q.pop("orders")).look_again_at == clock.now() + 2 * SECOND
                clock.advance(2)


async def test_a_batch_given_back_by_its_first_message_may_still_be_settled_so_its_lease_is_not_over(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    got = await q.pop("orders", batch=3)
    q.hints.clear()
    await q.retry(got[0], delay_ms=1000)
    assert q.announced("orders") == {"p1"}
    await q.ack(got[1])
    assert q.ended == set()
    await q.ack(got[2])
    assert q.ended == {got.lease}


async def test_a_release_is_changes(q: Driver, engine: Engine) -> None:
    await q.push_messages(*(message("orders", part, 1) for part in ("p1", "p2", "p3")))
    got = await q.pop("orders", batch=2, partitions=2)
    q.hints.clear()
    await engine.release([got.lease, NEVER_GIVEN])
    assert q.announced("orders") == {leased.message.partition for leased in got}
    assert q.ended == {got.lease}


@pytest.mark.parametrize("retry_limit", [1, 0])
async def test_an_expiry_is_changes(q: Driver, engine: Engine, clock: FakeClock, retry_limit: int) -> None:
    """One that uses up the last attempt of the last message ends the lease; there is nothing to take."""
    await q.configure("orders", lease_time=10, retry_limit=retry_limit)
    await q.push("orders", "p1", 1)
    got = await q.pop("orders", group="g")
    q.hints.clear()
    clock.advance(10)
    await engine.expire()
    assert q.ended == {got.lease}
    if retry_limit:
        assert q.announced("orders", "g") == {"p1"}
    else:
        assert await q.pop("orders", group="g") == []


# Administration --------------------------------------------------------------------------------------------


async def test_a_seek_is_changes(q: Driver, either: Workers) -> None:
    await q.push_messages(*(message("orders", part, 1) for part in ("p1", "p1", "p2")))
    await either.drain()
    q.hints.clear()
    await q.seek("orders", "p1", group="workers", offset=1)
    assert q.announced("orders", "workers") == {"p1"}
    if either.mode == "shared":
        assert sum(sum(hint.counts) for hint in q.hints_for("orders", "workers")) >= 2
    assert q.announced("orders", "h") == set()
    q.hints.clear()
    await q.seek("orders", group="workers", offset=1)
    assert q.announced("orders", "workers") in ({"p1", "p2"}, {ANYWHERE})


async def test_a_requeue_is_changes(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1)
    letter = await either.take_and_kill()
    await q.drain("orders", group="h")
    q.hints.clear()
    await q.requeue(letter)
    assert q.announced("orders", "workers") == {"p1"}
    assert all(sum(hint.counts) in (0, 1) for hint in q.hints_for("orders", "workers")), "without counts it is one look"
    assert q.announced("orders", "h") == set()
    assert any(hint.group is None and hint.partitions == ("p1",) for hint in q.hints), "for browsers"


async def test_a_resumed_queue_or_group_is_changes(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    await q.retry((await q.pop("orders", group="g"))[0])
    for group in (None, "g"):
        q.hints.clear()
        await engine.pause("orders", group, True)
        assert q.hints == []
        await engine.pause("orders", group, False)
        assert q.announced("orders", "g") == {ANYWHERE}


async def test_changed_options_are_changes(q: Driver) -> None:
    """A shorter delay may make messages ready that were not."""
    await q.configure("orders", delayed_processing=100)
    await q.push("orders", "p1", 1)
    assert await q.pop("orders") == []
    q.hints.clear()
    await q.configure("orders")
    assert q.announced("orders") == {ANYWHERE}
    assert payloads(await q.pop("orders")) == [1]


@pytest.mark.parametrize("delay_ms", [60_000, 0], ids=["delayed", "leased"])
async def test_a_removed_message_is_changes_of_what_waited_behind_it(q: Driver, engine: Engine, delay_ms: int) -> None:
    first = await q.push_id("orders", "p1", 1, delay_ms=delay_ms)
    await q.push("orders", "p1", 2)
    assert len(await q.pop("orders")) == (0 if delay_ms else 1)
    q.hints.clear()
    await engine.delete_messages([first])
    assert q.announced("orders") == {"p1"}
    assert payloads(await q.pop("orders")) == [2]


async def test_retention_that_removes_the_message_all_wait_for_is_changes(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", max_wait_time_seconds=10)
    await q.push("orders", "p1", 1, delay_ms=60_000)
    clock.advance(6)
    await q.push("orders", "p1", 2)
    assert await q.pop("orders") == []
    clock.advance(5)
    q.hints.clear()
    assert await q.collect() == 1
    assert q.announced("orders") == {"p1"}
    assert payloads(await q.pop("orders")) == [2]


async def test_a_group_that_starts_anew_is_changes(q: Driver, engine: Engine) -> None:
    await q.push("orders", "p1", 1)
    await q.drain("orders", group="g")
    for forget in (False, True):
        q.hints.clear()
        await engine.delete_group("g", "orders", forget)
        assert q.announced("orders", "g") == {ANYWHERE}
        assert payloads(await q.pop("orders", group="g", auto_ack=True)) == [1]
    q.hints.clear()
    await engine.resubscribe("g", 0)
    assert q.announced("orders", "g") == {ANYWHERE}


# What a call has to tell, put together: each queue, group and kind of news once --------------------------


def test_counts_of_one_partition_are_summed_up_and_one_without_a_count_is_one_look() -> None:
    book = HintBook()
    book.add("q", "g", ("a", "b"), "message", {"a": 2, "b": 1})
    book.add("q", "g", ("b",), "message", {"b": 3})
    book.add("without any", "g", ("a", "b"))
    book.add("some", "g", ("a", "b"))
    book.add("some", "g", ("b", "c"), counts={"b": 2, "c": 1})
    book.add("some", "g", ("c",))
    assert book.hints() == [
        Hint("q", "g", ("a", "b"), "message", counts=(2, 4)),
        Hint("without any", "g", ("a", "b")),
        Hint("some", "g", ("a", "b", "c"), counts=(1, 2, 1)),
    ]


def test_anywhere_has_no_counts() -> None:
    book = HintBook()
    book.add("q", "g", ("a",), counts={"a": 2})
    book.add("q", "g", None)
    book.add("q", "g", ("a",), counts={"a": 2})
    book.add("q", "many", map(str, range(MANY + 1)), counts={})
    assert book.hints() == [Hint("q", "g", None), Hint("q", "many", None)]


def test_an_arrival_has_the_counts_of_what_came() -> None:
    book = HintBook()
    book.arrived("q", ("a", "b"), ("g",), {"a": 1, "b": 7})
    book.arrived("alone", ("a", "b"), ("g",), {"a": 1, "b": 1})
    assert book.hints() == [
        Hint("q", None, ("a", "b"), "message", ("g",), counts=(1, 7)),
        Hint("alone", None, ("a", "b"), "message", ("g",)),
    ]


def test_a_table_of_recent_entries_keeps_the_latest_and_stays_bounded() -> None:
    known: dict[int, None] = {}
    for number in range(100):
        known[number] = None
        forget_oldest(known, 10)
        assert len(known) <= 20
        assert list(known)[-10:] == list(range(max(0, number - 9), number + 1))
