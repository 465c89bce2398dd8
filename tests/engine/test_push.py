"""Rules 1-7: push."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable

import pytest

from hark.clock import MILLISECOND, SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import MessageFilter, NewMessage, PushOutcome, Transaction, TransactionOutcome

from .driver import NEW, Driver, given, message, offsets, payloads
from .workers import Workers


def statuses(outcomes: Iterable[PushOutcome]) -> list[str]:
    """What became of each item."""
    return [one.status for one in outcomes]


async def test_rule_2_queue_and_partition_are_made_on_first_push(q: Driver) -> None:
    assert await q.engine.queue_infos() == []
    await q.push("orders", "p1", 1)
    [info] = await q.engine.queue_infos()
    assert (info.name, info.paused) == ("orders", False)
    assert [one.name for one in await q.engine.partition_stats("orders")] == ["p1"]


async def test_rule_2_a_dotted_name_gives_namespace_and_task_to_a_queue_that_is_new(q: Driver) -> None:
    before = await q.configure("d.e.f", namespace="other", task="thing", retry_limit=7)
    for name in ("a.b.c", "a.b", "orders", "x.y.z.w", "d.e.f"):
        await q.push(name, "p1", 1)
    infos = {one.name: one for one in await q.engine.queue_infos()}
    labels = {"a.b.c": ("a", "b"), "a.b": ("a", "b"), "orders": ("orders", ""), "x.y.z.w": ("x", "y")}
    labels["d.e.f"] = "other", "thing"
    assert {name: (one.namespace, one.task) for name, one in infos.items()} == labels
    assert (infos["d.e.f"].id, infos["d.e.f"].options) == (before.id, before.options)


async def test_rule_3_offsets_are_dense_from_1_in_each_partition(q: Driver) -> None:
    await q.push_messages(message("orders", "p1", 1), message("orders", "p2", 2), message("orders", "p1", 3))
    await q.push("orders", "p1", 4)
    first, second = [await q.pop("orders", name, batch=10) for name in ("p1", "p2")]
    assert (offsets(first), payloads(first)) == ([1, 2, 3], [1, 3, 4])
    assert (offsets(second), payloads(second)) == ([1], [2])


async def test_rule_3_duplicates_and_refused_items_leave_no_gap(q: Driver) -> None:
    await q.configure("orders", max_size=3)
    await q.push("orders", "p1", 1, transaction_id="t1")
    await q.push("orders", "p1", 1, transaction_id="t1")
    await q.push("orders", "p1", 2, 3)
    assert statuses(await q.push("orders", "p1", 4)) == ["failed"]
    await q.configure("orders")
    await q.push("orders", "p1", 5)
    assert offsets(await q.pop("orders", "p1", batch=10)) == [1, 2, 3, 4]


async def test_rule_3_created_at_never_decreases_when_the_clock_goes_back(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1)
    clock.advance(-3600)
    await q.push("orders", "p1", 2)
    clock.advance(7200)
    await q.push("orders", "p1", 3)
    times = [one.message.created_at for one in await q.pop("orders", "p1", batch=10)]
    assert times == sorted(times)
    assert times[2] == clock.now()


async def test_rule_3_nothing_is_passed_over_under_concurrent_pushes(q: Driver) -> None:
    """Whatever the consumer took, what commits later comes later."""
    seen: list[object] = []

    async def produce(start: int) -> None:
        for number in range(start, start + 20):
            await q.push("orders", "p1", number)

    async def consume() -> None:
        while len(seen) < 80:
            got = await q.pop("orders", "p1", batch=7)
            await q.ack_all(got)
            seen.extend(offsets(got))
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        await asyncio.gather(consume(), *(produce(start) for start in range(0, 80, 20)))
    assert seen == list(range(1, 81))


async def test_rule_4_a_second_push_of_a_transaction_id_is_a_duplicate_of_the_first(q: Driver, engine: Engine) -> None:
    """In another request of the same call, and in a later call."""
    answers = await engine.push([[message("orders", "p1", n, transaction_id="t1")] for n in (1, 2)])
    outcomes = [one for answer in answers for one in given(answer)]
    outcomes += await q.push("orders", "p1", 3, transaction_id="t1")
    assert statuses(outcomes) == ["queued", "duplicate", "duplicate"]
    assert len({one.message_id for one in outcomes}) == 1
    assert {one.transaction_id for one in outcomes} == {"t1"}
    assert payloads(await q.pop("orders", "p1", batch=10)) == [1]


async def test_rule_4_duplicates_within_one_request_and_partition(q: Driver) -> None:
    partitions = [("orders", "p1"), ("orders", "p1"), ("orders", "p2"), ("bills", "p1"), ("orders", "p1")]
    outcomes = await q.push_messages(
        *(message(*partition, n, transaction_id="t1") for n, partition in enumerate(partitions))
    )
    assert statuses(outcomes) == ["queued", "duplicate", "queued", "queued", "duplicate"]
    assert outcomes[0].message_id == outcomes[1].message_id == outcomes[4].message_id
    assert len({one.message_id for one in outcomes}) == 3


async def test_rule_4_of_racing_producers_exactly_one_wins(q: Driver) -> None:
    pushes = [q.push("orders", "p1", number, transaction_id="t1") for number in range(20)]
    outcomes = [one for [one] in await asyncio.gather(*pushes)]
    assert sorted(one.status for one in outcomes) == ["duplicate"] * 19 + ["queued"]
    assert len({one.message_id for one in outcomes}) == 1


async def test_rule_4_a_duplicate_inside_a_transaction_is_a_success(q: Driver) -> None:
    [first] = await q.push("orders", "p1", 1, transaction_id="t1")
    outcome = await q.transact(
        message("orders", "p1", 2, transaction_id="t1"),
        message("orders", "p1", 3, transaction_id="t2"),
        message("orders", "p1", 4, transaction_id="t2"),
    )
    assert outcome.success
    assert [getattr(one, "status", None) for one in outcome.results] == ["duplicate", "queued", "duplicate"]
    assert getattr(outcome.results[0], "message_id", None) == first.message_id
    assert payloads(await q.pop("orders", "p1", batch=10)) == [1, 3]


async def test_rule_4_without_a_transaction_id_it_is_the_message_id_which_guards_its_partition_too(q: Driver) -> None:
    [pushed] = await q.push("orders", "p1", 1)
    plain = pushed.message_id
    keyed = await q.push_id("orders", "p1", 2, transaction_id="t2")
    assert pushed.transaction_id == plain
    got = await q.pop("orders", "p1", batch=10, group="look")
    assert [(one.message.id, one.message.transaction_id) for one in got] == [(plain, plain), (keyed, "t2")]
    for known in (plain, keyed):
        [outcome] = await q.push("orders", "p1", 9, transaction_id=known)
        assert (outcome.status, outcome.message_id) == ("duplicate", known)
    assert statuses(await q.push("orders", "p2", 3, transaction_id=plain)) == ["queued"]
    assert await q.drain("orders") == [1, 2, 3]


async def test_rule_4_a_transaction_id_that_is_the_id_of_a_later_message_is_refused(q: Driver, engine: Engine) -> None:
    first, second = [one.message_id for one in await q.push("orders", "p1", 1, 2)]
    assert first is not None and second is not None
    step = int(second.replace("-", ""), 16) - int(first.replace("-", ""), 16)

    def later(offset: int) -> str:
        return str(uuid.UUID(int=int(first.replace("-", ""), 16) + (offset - 1) * step))

    assert later(2) == second
    for offset in (3, 9):
        [outcome] = await q.push("orders", "p1", "refused", transaction_id=later(offset))
        assert (outcome.status, outcome.code, outcome.message_id) == ("failed", "transaction_id_reserved", None)
        operations = [NewMessage("orders", "p1", b"4"), NewMessage("orders", "p1", b"5", transaction_id=later(offset))]
        [transacted] = await engine.transact([Transaction(operations=operations)])
        assert isinstance(transacted, TransactionOutcome)
        assert (transacted.success, transacted.code) == (False, "transaction_id_reserved")
        assert transacted.failed_index == 1
    # Beside the message that gets this id.
    [outcomes] = await engine.push([[NewMessage("orders", "p1", b"3"), NewMessage("orders", "p1", b"4", later(3))]])
    assert isinstance(outcomes, list)
    assert [(one.status, one.code) for one in outcomes] == [("queued", None), ("failed", "transaction_id_reserved")]
    # It is there now.
    [outcome] = await q.push("orders", "p1", "again", transaction_id=later(3))
    assert (outcome.status, outcome.message_id) == ("duplicate", outcomes[0].message_id)
    assert statuses(await q.push("orders", "p2", 4, transaction_id=later(9))) == ["queued"]
    assert await q.drain("orders") == [1, 2, 3, 4]


async def test_rule_4_a_transaction_id_that_is_the_id_of_a_message_of_the_next_partition_is_refused(
    q: Driver, engine: Engine
) -> None:
    async def guess(number: int, offset: int) -> str:
        """The id of an offset of the partition that is made next."""
        names = [f"known-{number}-{n}" for n in range(2)]
        one, two = [int((await q.push_id("orders", name, 0)).replace("-", ""), 16) for name in names]
        second = int((await q.push_id("orders", names[1], 0)).replace("-", ""), 16)
        return str(uuid.UUID(int=two + (two - one) + (offset - 1) * (second - two)))

    for offset in (1, 2):
        operations = [NewMessage("new", "p1", b"1", transaction_id=await guess(offset, offset))]
        [transacted] = await engine.transact([Transaction(operations=operations)])
        assert isinstance(transacted, TransactionOutcome)
        assert (transacted.success, transacted.code) == (False, "transaction_id_reserved")
        guessed = await guess(offset + 2, offset)
        [outcome] = await q.push("orders", f"new-{offset}", "refused", transaction_id=guessed)
        assert (outcome.status, outcome.code, outcome.message_id) == ("failed", "transaction_id_reserved", None)
        assert [await q.push_id("orders", f"new-{offset}", n) for n in range(2)][offset - 1] == guessed


async def test_rule_4_a_settled_message_guards_its_transaction_id_until_removed(q: Driver, engine: Engine) -> None:
    first = await q.push_id("orders", "p1", 1, transaction_id="t1")
    plain = await q.push_id("orders", "p1", 2)
    assert await q.drain("orders") == [1, 2]
    for wanted in ("duplicate", "queued"):
        assert statuses(await q.push("orders", "p1", 3, transaction_id="t1")) == [wanted]
        assert statuses(await q.push("orders", "p1", 4, transaction_id=plain)) == [wanted]
        await engine.delete_messages([first, plain])
    assert await q.drain("orders") == [3, 4]


async def test_rule_5_ids_are_unique_uuids_that_sort_in_offset_order(q: Driver) -> None:
    ids = [one.message_id or "" for one in await q.push("orders", "p1", *range(300))]
    assert ids == sorted(set(ids))
    assert [str(uuid.UUID(one)) for one in ids] == ids
    others = [one.message_id or "" for one in await q.push("orders", "p2", *range(300))]
    assert not set(ids) & set(others)


async def test_rule_5_an_id_alone_finds_its_message(q: Driver, engine: Engine) -> None:
    [outcome] = await q.push("orders", "p1", {"n": 1}, transaction_id="t1")
    assert outcome.partition_id is not None and outcome.message_id is not None
    by_id = await engine.message(outcome.partition_id, outcome.message_id)
    by_transaction = await engine.message(outcome.partition_id, "t1")
    assert by_id is not None and by_id == by_transaction
    assert (by_id.id, by_id.transaction_id, by_id.offset) == (outcome.message_id, "t1", 1)
    [leased] = await q.pop("orders")
    assert (leased.message.id, leased.message.partition_id) == (outcome.message_id, outcome.partition_id)
    assert (leased.message.queue, leased.message.partition) == ("orders", "p1")
    assert await engine.delete_messages([outcome.message_id]) == [True]


async def test_rule_6_payload_and_labels_come_back_byte_for_byte(q: Driver) -> None:
    raw = b'{"b" :1,  "a":[1.0, 1e2,"\xc3\xa4"]}'
    new = message("orders", "p1", None, trace_id="trace-7", producer="me", priority=9)
    new.payload = raw
    await q.push_messages(new)
    [leased] = await q.pop("orders")
    assert bytes(leased.message.payload) == raw
    assert (leased.message.trace_id, leased.message.producer, leased.message.priority) == ("trace-7", "me", 9)
    assert leased.message.attempt == 1


async def test_rule_6_a_delayed_message_comes_at_its_time(q: Driver, either: Workers) -> None:
    due = q.clock.now() + 2500 * MILLISECOND
    await q.push("orders", "p1", 1, delay_ms=2500)
    empty = await either.take(1, "p1")
    assert (empty.reason, empty.look_again_at) == ("waiting", due)
    assert (await either.take()).look_again_at == due
    got = await either.arrive_at(due)
    assert payloads(got) == [1]
    await q.ack_all(got)
    due = q.clock.now() + 1_234_567
    await q.push("orders", "p1", 2, deliver_at=due)
    assert payloads(await either.arrive_at(due)) == [2]


async def test_rule_6_a_delivery_time_that_is_not_later_is_no_delay(q: Driver, either: Workers) -> None:
    """Else a time in the past would jump the queue."""
    q.clock.advance(10)
    await q.push("orders", "p1", 1, 2)
    for early in (0, 1, SECOND):
        await q.push("orders", "p1", early, deliver_at=q.clock.now() - early)
    assert payloads(await either.take(10)) == [1, 2, 0, 1, SECOND]
    assert {one.deliver_at for one in await q.engine.messages(MessageFilter(queue="orders"))} == {None}


async def test_rule_6_unusual_names_are_just_names(q: Driver) -> None:
    for name in ("ä ö/ü", "%", "'; drop table x --", "x" * 255):
        await q.push(name, name, name)
        [leased] = await q.pop(name, name, group=name)
        assert (leased.payload, leased.message.queue, leased.message.partition) == (name, name, name)


async def test_rule_7_max_size_refuses_what_is_beyond_it_item_by_item(q: Driver) -> None:
    await q.configure("orders", max_size=2)
    outcomes = await q.push_messages(
        message("orders", "p1", 1),
        message("orders", "p2", 2),
        message("orders", "p1", 3),
        message("bills", "p1", 4),
    )
    assert statuses(outcomes) == ["queued", "queued", "failed", "queued"]
    assert (outcomes[2].code, outcomes[2].message_id) == ("queue_full", None)
    assert outcomes[2].error


async def test_rule_7_the_slowest_group_decides(q: Driver) -> None:
    await q.configure("orders", max_size=2)
    await q.push("orders", "p1", 1, 2)
    await q.pop("orders", group="slow")
    assert len(await q.drain("orders", group="fast")) == 2
    assert [one.code for one in await q.push("orders", "p1", 3)] == ["queue_full"]
    q.clock.advance(300)
    [leased] = await q.pop("orders", group="slow")
    await q.ack(leased)
    assert statuses(await q.push("orders", "p1", 3, 4)) == ["queued", "failed"]


@pytest.mark.parametrize("others", [[], ["first"]])
async def test_rule_7_a_group_that_starts_at_the_end_is_not_slow(q: Driver, others: list[str]) -> None:
    await q.configure("orders", max_size=2)
    await q.push("orders", "p1", 1, 2)
    await q.pop("orders", group="late", subscription=NEW)
    for group in others:
        await q.drain("orders", group=group)
    assert statuses(await q.push("orders", "p1", 3, 4, 5)) == ["queued", "queued", "failed"]


async def test_rule_7_what_is_settled_out_of_order_dead_or_removed_makes_room(q: Driver, either: Workers) -> None:
    await q.configure("orders", max_size=3)
    await q.push("orders", "p1", 1, 2, 3)
    got = await either.take(3)
    assert [one.code for one in await q.push("orders", "p1", 4)] == ["queue_full"], "held is not settled"
    await q.ack(got[2])
    await q.kill(got[1])
    assert statuses(await q.push("orders", "p1", 4, 5, 6)) == ["queued", "queued", "failed"]
    await q.engine.delete_messages([got[0].message.id])
    assert statuses(await q.push("orders", "p1", 7, 8)) == ["queued", "failed"]
    await q.engine.purge("orders")
    assert statuses(await q.push("orders", "p1", 9, 10, 11, 12)) == ["queued", "queued", "queued", "failed"]


async def test_rule_7_a_retry_into_a_full_queue_is_a_duplicate_not_a_failure(q: Driver) -> None:
    await q.configure("orders", max_size=1)
    new = message("orders", "p1", 1, transaction_id="t1")
    assert statuses(await q.push_messages(new)) == ["queued"]
    assert statuses(await q.push_messages(new)) == ["duplicate"]
    assert (await q.transact(new)).success
    assert (await q.transact(new, new)).success
    assert await q.drain("orders") == [1]


async def test_rule_7_a_full_queue_aborts_a_transaction(q: Driver) -> None:
    await q.configure("orders", max_size=1)
    outcome = await q.transact(message("orders", "p1", 1), message("orders", "p1", 2))
    assert (outcome.success, outcome.code, outcome.failed_index) == (False, "queue_full", 1)
    assert await q.pop("orders") == []


# One commit, many requests ---------------------------------------------------------------------------------


async def test_answers_come_by_position_and_neighbours_are_untouched(q: Driver, engine: Engine) -> None:
    await q.configure("full", max_size=1)
    await q.push("full", "p1", 0)
    requests = [[message("orders", "p1", 1)], [], [message("full", "p1", 2)], [message("orders", "p1", 3)]]
    answers = [given(answer) for answer in await engine.push(requests)]
    assert [[one.status for one in answer] for answer in answers] == [["queued"], [], ["failed"], ["queued"]]
    assert payloads(await q.pop("orders", batch=10)) == [1, 3]
    assert await engine.push([]) == []


# Who pushed ------------------------------------------------------------------------------------------------


async def test_a_delivery_says_who_pushed_the_message_with_options_or_without(q: Driver) -> None:
    await q.push_messages(
        message("orders", "p1", 1, producer="ada"),
        message("orders", "p1", 2),
        message("orders", "p1", 3, producer="bob", priority=3),
        message("orders", "p1", 4, producer="ada", transaction_id="t"),
    )
    got = await q.pop("orders", "p1", batch=10)
    assert [leased.message.producer for leased in got] == ["ada", None, "bob", "ada"]
