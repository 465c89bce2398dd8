"""Looking: messages, counts, groups, positions and leases as an administrator sees them; and queues by ids."""

from __future__ import annotations

import msgspec

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import (
    QUEUE_MODE,
    GroupMode,
    LeaseFilter,
    LeasePart,
    MessageFilter,
    MessageState,
    MessageView,
    Status,
)

from .driver import NEVER_GIVEN, Driver, message, settlement
from .workers import Workers

# Messages --------------------------------------------------------------------------------------------------


def keys(views: list[MessageView]) -> list[str]:
    """The transaction ids, in order."""
    return [one.transaction_id for one in views]


async def test_messages_are_listed_newest_first_without_payloads(q: Driver, engine: Engine, clock: FakeClock) -> None:
    await q.configure("shop.ship", namespace="shop", task="ship", priority=4)
    start = clock.now()
    for number in range(3):
        await q.push("shop.ship", "p1", number, transaction_id=f"t{number}", trace_id="x", producer="me", priority=2)
        clock.advance(10)
    views = await engine.messages(MessageFilter(queue="shop.ship"))
    assert keys(views) == ["t2", "t1", "t0"]
    newest = views[0]
    assert (newest.queue, newest.partition, newest.namespace, newest.task) == ("shop.ship", "p1", "shop", "ship")
    assert (newest.offset, newest.created_at, newest.state) == (3, start + 20 * SECOND, "pending")
    assert (newest.trace_id, newest.producer, newest.priority, newest.queue_priority) == ("x", "me", 2, 4)
    assert newest.payload is None


async def test_messages_are_filtered_and_paged(q: Driver, engine: Engine, clock: FakeClock) -> None:
    start = clock.now()
    for queue, partition, key in (
        ("a.x.1", "p1", "1"),
        ("a.y.2", "p1", "2"),
        ("b.x.3", "p2", "3"),
        ("a.x.1", "p2", "4"),
    ):
        await q.push(queue, partition, key, transaction_id=key)
        clock.advance(10)
    for where, wanted in (
        (MessageFilter(), ["4", "3", "2", "1"]),
        (MessageFilter(queue="a.x.1"), ["4", "1"]),
        (MessageFilter(queue="a.x.1", partition="p1"), ["1"]),
        (MessageFilter(namespace="a"), ["4", "2", "1"]),
        (MessageFilter(task="x"), ["4", "3", "1"]),
        (MessageFilter(namespace="b", task="x"), ["3"]),
        (MessageFilter(since=start + 5 * SECOND, until=start + 25 * SECOND), ["3", "2"]),
        (MessageFilter(limit=2), ["4", "3"]),
        (MessageFilter(limit=2, offset=1), ["3", "2"]),
        (MessageFilter(queue="nowhere"), []),
    ):
        assert keys(await engine.messages(where)) == wanted, where


async def test_messages_by_state(q: Driver, engine: Engine, mode: GroupMode) -> None:
    for number in range(1, 7):
        await q.push("orders", "p1", number, transaction_id=f"t{number}", delay_ms=60_000 if number == 6 else 0)
    workers = Workers(q, mode=mode)
    await q.kill((await workers.take())[0])
    got = await workers.take(3)
    await q.ack(got[1])
    expected: dict[MessageState, list[str]] = {
        "completed": ["t3"],
        "dead_letter": ["t1"],
        "processing": ["t4", "t2"],
        "pending": ["t5"],
        "scheduled": ["t6"],
    }
    for state, wanted in expected.items():
        views = await engine.messages(MessageFilter(queue="orders", state=state))
        assert keys(views) == wanted, state
        assert {one.state for one in views} == {state}


async def test_a_message_with_its_payload_and_what_each_group_did(q: Driver, engine: Engine, mode: GroupMode) -> None:
    [outcome] = await q.push("orders", "p1", {"n": 1}, transaction_id="t1", priority=5)
    statuses: dict[str, Status] = {"done": "completed", "failed": "failed", "dead": "dlq"}
    for name in ("done", "failed", "dead", "working"):
        [leased] = await Workers(q, group=name, mode=mode).take()
        if name in statuses:
            await q.settle(settlement(leased, statuses[name], "boom"))
    await Workers(q, group="fresh", mode=mode).take(1, "nowhere")
    view = await engine.message(outcome.partition_id or "", "t1")
    assert view is not None and view.payload is not None
    assert (bytes(view.payload), view.priority) == (b'{"n":1}', 5)
    groups = {one.group: one for one in view.groups}
    assert {name: one.state for name, one in groups.items()} == {
        "done": "completed",
        "failed": "pending",
        "dead": "dead_letter",
        "working": "processing",
        "fresh": "pending",
    }
    assert (groups["failed"].attempts, groups["failed"].error) == (1, "boom")
    assert groups["working"].lease_expires_at == q.clock.now() + 300 * SECOND
    assert groups["done"].lease_expires_at is None


async def test_a_message_shows_when_it_is_due_until_it_is_deleted(q: Driver, engine: Engine) -> None:
    [outcome] = await q.push("orders", "p1", 1, transaction_id="t1", delay_ms=5000)
    assert outcome.partition_id and outcome.message_id
    view = await engine.message(outcome.partition_id, "t1")
    assert view is not None
    assert (view.deliver_at, view.state, view.reason) == (q.clock.now() + 5 * SECOND, "scheduled", "delayed")
    for partition_id, key in ((outcome.partition_id, "t2"), (NEVER_GIVEN, "t1"), ("no id", "t1")):
        assert await engine.message(partition_id, key) is None
    await engine.delete_messages([outcome.message_id])
    assert await engine.message(outcome.partition_id, "t1") is None


# Counts ----------------------------------------------------------------------------------------------------


async def test_counts_of_a_queue_by_state(q: Driver, engine: Engine, mode: GroupMode) -> None:
    await q.push("orders", "p1", *range(7))
    await q.push("orders", "p2", 7)
    workers = Workers(q, mode=mode)
    await q.kill((await workers.take(1, "p1"))[0])
    got = await workers.take(3, "p1")
    await q.ack(got[1])
    stats = await q.stats("orders")
    assert (stats.partitions, stats.counts.total) == (2, 8)
    [p1] = await engine.partition_stats("orders", search="p1")
    for counts, pending in ((stats.counts, 4), (p1.counts, 3)):
        assert (counts.pending, counts.processing) == (pending, 2)
        assert (counts.completed, counts.dead_letter) == (1, 1)


async def test_counts_are_those_of_the_group_that_is_furthest_behind(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.drain("orders", group="fast")
    await q.pop("orders", group="slow", auto_ack=True)
    counts = (await q.stats("orders")).counts
    assert (counts.total, counts.pending, counts.completed) == (3, 2, 1)


async def test_partition_stats_by_name_with_counts_and_times(q: Driver, engine: Engine, clock: FakeClock) -> None:
    start = clock.now()
    for name in ("b", "a", "ab"):
        await q.push("orders", name, 1)
        clock.advance(10)
        await q.push("orders", name, 2)
    partitions = await engine.partition_stats("orders")
    assert [one.name for one in partitions] == ["a", "ab", "b"]
    b = partitions[2]
    assert (b.created_at, b.oldest, b.newest, b.counts.total) == (start, start, start + 10 * SECOND, 2)
    assert [one.name for one in await engine.partition_stats("orders", search="a")] == ["a", "ab"]
    assert [one.name for one in await engine.partition_stats("orders", limit=1, offset=1)] == ["ab"]
    assert await engine.partition_stats("nowhere") == []


# Groups and positions -----------------------------------------------------------------------------------------


async def test_group_stats_show_where_a_group_is(q: Driver, engine: Engine, clock: FakeClock) -> None:
    start = clock.now()
    for name in ("p1", "p2", "untouched"):
        await q.push("orders", name, 1)
        clock.advance(10)
        await q.push("orders", name, 2)
    await q.pop("orders", "p1", group="g", auto_ack=True)
    got = await q.pop("orders", "p2", group="g", batch=2)
    [group] = await engine.group_stats("g")
    assert (group.group, group.queue, group.mode, group.paused) == ("g", "orders", "ordered", False)
    assert (group.lag, group.partitions_with_lag, group.leases, group.in_flight) == (3, 2, 1, 2)
    assert group.oldest_waiting == start + 10 * SECOND
    assert (group.created_at, group.last_seen) == (clock.now(), clock.now())
    assert group.subscription.mode == "all"
    await q.ack(got[0])
    assert [one.in_flight for one in await engine.group_stats("g")] == [1]


async def test_lag_is_what_waits(q: Driver, workers: Workers, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    clock.advance(10)
    since = clock.now()
    await q.push("orders", "p1", 4)
    await q.push("orders", "p2", 5, delay_ms=60_000)
    got = await workers.take(3, "p1")
    await q.ack(got[0])
    await q.kill(got[1])
    stats = await workers.stats()
    assert (stats.mode, stats.lag, stats.scheduled, stats.partitions_with_lag) == ("shared", 1, 1, 1)
    assert stats.oldest_waiting == since
    assert (await workers.position("p1")).lag == 1


async def test_in_flight_counts_messages_and_leases_count_pops(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", *range(10))
    first, second = await workers.take(3), await workers.take(2)
    stats = await workers.stats()
    assert (stats.in_flight, stats.leases) == (5, 2)
    await q.ack(first[0])
    await q.fail(first[1])
    await engine.release([second.lease])
    stats = await workers.stats()
    assert (stats.in_flight, stats.leases) == (1, 1)
    q.clock.advance(300)
    assert (await workers.stats()).in_flight == 0


async def test_group_stats_one_entry_per_group_and_queue(q: Driver, engine: Engine) -> None:
    for queue in ("a", "b"):
        for group in ("g", "h"):
            await q.pop(queue, group=group)
    assert len(await engine.group_stats()) == 4
    assert {one.queue for one in await engine.group_stats("g")} == {"a", "b"}
    assert {one.group for one in await engine.group_stats(queue="a")} == {"g", "h"}
    assert await engine.group_stats("unknown") == []
    await q.pop("b", group="only b")
    assert (await engine.group_names(), await engine.group_names("a")) == (["g", "h", "only b"], ["g", "h"])


async def test_position_stats_show_a_place_in_a_partition(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    await q.push_messages(message("bills", "p1", 4))
    got = await q.pop("orders", batch=2)
    clock.advance(1)
    await q.ack(got[0])
    position = await q.position("orders", "p1")
    assert (position.group, position.queue, position.partition) == (QUEUE_MODE, "orders", "p1")
    assert (position.cursor, position.lag, position.last_settled) == (1, 1, clock.now())
    assert position.oldest_waiting == clock.now() - SECOND
    assert (position.lease_id, position.lease_expires_at) == (got.lease, clock.now() + 299 * SECOND)


async def test_position_stats_of_those_that_lag(q: Driver, engine: Engine, mode: GroupMode) -> None:
    workers = Workers(q, mode=mode)
    for name in ("p1", "p2", "p3"):
        await q.push("orders", name, 1, 2)
        await workers.take(2 if name == "p2" else 1, name, auto_ack=name == "p1")
    q.clock.advance(60)
    lagging = await engine.position_stats(group="workers", min_lag_seconds=60)
    assert [(one.partition, one.lag) for one in lagging] == [("p1", 1), ("p3", 1)]
    assert await engine.position_stats(group="workers", min_lag_seconds=61) == []


async def test_position_stats_of_named_partitions(q: Driver, engine: Engine) -> None:
    for name in ("p1", "p2", "p3"):
        await q.push("orders", name, 1)
        await q.push("bills", name, 1)
    for group in ("g", "h"):
        await q.pop("orders", group=group)
    positions = await engine.position_stats(queue="orders", partitions=["p3", "p1", "no such", "\0"])
    assert [(one.partition, one.group) for one in positions] == [("p1", "g"), ("p1", "h"), ("p3", "g"), ("p3", "h")]
    assert await engine.position_stats(queue="orders", partitions=[]) == []


# Scheduled -------------------------------------------------------------------------------------------------


async def test_rule_28_scheduled_is_not_late(q: Driver, engine: Engine, clock: FakeClock, mode: GroupMode) -> None:
    """Rule 28: delayed messages and retries are counted apart, and are no lag, wherever there is a group or none."""
    await q.configure("orders", retry_delay=60_000)
    await q.push("orders", "p1", 1, transaction_id="retried")
    await q.push("orders", "p2", 2, transaction_id="delayed", delay_ms=3_600_000, priority=3)
    counts = (await q.stats("orders")).counts
    assert (counts.total, counts.pending, counts.scheduled) == (2, 1, 1)
    [p2] = await engine.partition_stats("orders", search="p2")
    assert (p2.counts.pending, p2.counts.scheduled) == (0, 1)
    [depth] = (await engine.survey()).depths
    assert (depth.messages, depth.scheduled, depth.oldest) == (2, 1, clock.now())
    workers = Workers(q, mode=mode)
    [leased] = await workers.take()
    await q.fail(leased)
    failed_at = clock.now()
    clock.advance(10)
    counts = (await q.stats("orders")).counts
    assert (counts.pending, counts.scheduled, counts.processing, counts.failed) == (0, 2, 0, 1)
    group = await workers.stats()
    assert (group.lag, group.scheduled, group.partitions_with_lag, group.oldest_waiting) == (0, 2, 0, None)
    position = await workers.position("p2")
    assert (position.lag, position.scheduled, position.oldest_waiting) == (0, 1, None)
    assert position.oldest_unsettled == failed_at
    assert await engine.position_stats(group="workers", min_lag_seconds=0) == []
    assert [(one.messages, one.scheduled, one.oldest) for one in (await engine.survey()).depths if one.group] == [
        (0, 2, None)
    ]
    views = await engine.messages(MessageFilter(state="scheduled"))
    assert [(one.transaction_id, one.state, one.reason) for one in views] == [
        ("delayed", "scheduled", "delayed"),
        ("retried", "scheduled", "retry"),
    ]
    assert [one.due_at for one in views] == [failed_at + 3600 * SECOND, failed_at + 60 * SECOND]
    assert await engine.messages(MessageFilter(state="pending")) == []


async def test_rule_28_a_message_in_flight_does_not_wait(q: Driver, engine: Engine, mode: GroupMode) -> None:
    """Rule 28: backlog, lag and the oldest waiting message are of what could be delivered now."""
    workers, start = Workers(q, mode=mode), q.clock.now()
    await q.push_messages(message("orders", "p1", 1), message("orders", "p1", 2), message("orders", "p2", 3))
    q.clock.advance(10)
    await q.push("orders", "p1", 4, priority=3)
    await q.push("orders", "p1", 5, delay_ms=1000)
    q.clock.advance(10)
    # The group reads more than the first lane; its outstanding messages are stored with the first settlement.
    [settled] = await workers.take(1, "p2")
    await q.ack(settled)
    held = await workers.take(1, "p1")
    for lag, oldest in ((3, start), (0, None)):
        group, position = await workers.stats(), await workers.position()
        assert (group.lag, group.partitions_with_lag, group.oldest_waiting) == (lag, int(lag > 0), oldest)
        assert (position.lag, position.oldest_waiting) == (lag, oldest)
        assert position.oldest_unsettled == start
        [depth] = [one for one in (await engine.survey()).depths if one.group]
        assert (depth.messages, depth.lagging, depth.oldest) == (lag, int(lag > 0), oldest)
        if mode == "ordered" and lag:
            await engine.release([held.lease])
            held = await workers.take(4, "p1")
        elif lag:
            await workers.take(4, "p1")
    assert await engine.position_stats(group="workers", min_lag_seconds=0) == []
    q.clock.advance(300)
    assert ((await workers.stats()).lag, (await workers.stats()).oldest_waiting) == (4, start)


async def test_a_requeued_message_behind_the_cursor_waits(q: Driver, mode: GroupMode) -> None:
    workers = Workers(q, mode=mode)
    await q.push("orders", "p1", 1)
    await q.requeue(await workers.take_and_kill())
    since = q.clock.now()
    q.clock.advance(1)
    await q.push("orders", "p1", 2)
    requeued, later = await workers.take(2)
    await q.ack(later)
    await q.settle(settlement(requeued, "retry"))
    stats = await workers.stats()
    assert (stats.lag, stats.oldest_waiting) == (1, since)


async def test_counts_are_of_the_group_with_the_most_that_waits(q: Driver, engine: Engine, mode: GroupMode) -> None:
    """Rule 28: a group that holds all messages is not behind."""
    await q.push("orders", "p1", 1, 2, 3)
    await Workers(q, group="late", mode=mode).take(1, auto_ack=True)
    await Workers(q, group="busy", mode=mode).take(3)
    [partition] = await engine.partition_stats("orders")
    for counts in ((await q.stats("orders")).counts, partition.counts):
        assert (counts.pending, counts.processing, counts.completed) == (2, 0, 1)


async def test_rule_28_a_delayed_message_waits_since_it_is_due(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    created = clock.now()
    workers = Workers(q, mode=mode)
    await workers.take(1, "p1")
    await q.push("orders", "p1", 1, delay_ms=60_000)
    clock.advance(70)
    group = await workers.stats()
    assert (group.lag, group.scheduled, group.oldest_waiting) == (1, 0, created + 60 * SECOND)
    assert (await workers.position()).oldest_waiting == created + 60 * SECOND
    [leased] = await workers.take()
    await q.settle(settlement(leased, "retry"))
    assert (await workers.stats()).oldest_waiting == created + 60 * SECOND, "also after an attempt"


async def test_rule_28_what_is_behind_a_scheduled_message_waits(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    workers = Workers(q, mode=mode)
    await workers.take(1, "p1")
    await q.push("orders", "p1", 1, delay_ms=60_000)
    clock.advance(1)
    await q.push("orders", "p1", 2)
    since = clock.now()
    for _ in range(2):
        group = await workers.stats()
        assert (group.lag + group.scheduled, group.oldest_waiting) == (2, since)
        clock.advance(60)


# Leases ----------------------------------------------------------------------------------------------------


async def leases(q: Driver, **where: str) -> list[LeasePart]:
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
    shown = LeasePart(
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


async def test_settled_messages_are_not_leased_any_more(q: Driver, mode: GroupMode) -> None:
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
