"""Rules 8, 9, 11 and 24: what a pop asks for, which partition it gets, and what it can't get now."""

from __future__ import annotations

import pytest

from hark.clock import SECOND, FakeClock
from hark.engine import hints
from hark.errors import HarkError
from hark.model import GroupMode, PopRequest

from .driver import NEW, Driver, message, payloads
from .workers import TICK, Workers


async def spread(q: Driver, queue: str, partitions: int, each: int = 1) -> None:
    """Push `each` messages to each partition, named p1, p2 ...; the payloads are p1.1, p1.2 ..."""
    for partition in range(1, partitions + 1):
        await q.push(queue, f"p{partition}", *(f"p{partition}.{number}" for number in range(1, each + 1)))


async def test_rule_8_a_pop_takes_one_message_by_default(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    got = await q.pop("orders")
    assert (payloads(got), got.reason, got.partitions) == ([1], "", 1)
    assert got.lease


async def test_rule_8_batch_is_the_total_over_at_most_as_many_partitions_as_requested(q: Driver) -> None:
    await spread(q, "orders", 3, each=2)
    first, second, third = ["p1.1", "p1.2"], ["p2.1", "p2.2"], ["p3.1", "p3.2"]
    for partition, batch, partitions, wanted, rest in (
        (None, 1, 1, ["p1.1"], second + third),
        ("p2", 10, 10, second, first + third),
        (None, 3, 3, [*first, "p2.1"], third),
        (None, 10, 2, first + second, third),
    ):
        group = f"{partition} {batch} {partitions}"
        got = await q.pop("orders", partition, group=group, batch=batch, partitions=partitions)
        assert (payloads(got), got.partitions) == (wanted, (len(wanted) + 1) // 2)
        assert payloads(await q.pop("orders", group=group, batch=10, partitions=3)) == rest


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_rule_8_pops_of_one_call_have_limited_bytes_together(
    q: Driver, mode: GroupMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("p1", "p2", "p3", "p4")
    for name in names:
        await q.push("orders", name, *("x" * 498 for _ in range(9)))
    monkeypatch.setattr(hints, "CALL_BYTES", 6000)
    requests = [PopRequest(queue="orders", partition=name, group=mode, group_mode=mode, batch=9) for name in names]
    got = [one for one in await q.engine.pop(requests) if not isinstance(one, HarkError)]
    numbers = [len(one.messages) for one in got]
    assert len(numbers) == 4
    assert sum(numbers) <= 6000 // 500 + 4  # A pop ends with the message that exceeds its part.
    other = PopRequest(queue="orders", partition="p1", group=f"{mode} alone", group_mode=mode, batch=9)
    (alone,) = await q.engine.pop([other])
    assert not isinstance(alone, HarkError)
    assert len(alone.messages) == 9


async def test_rule_8_messages_that_wait_or_were_removed_take_no_room_in_a_batch(q: Driver) -> None:
    ids = [one.message_id or "" for one in await q.push("orders", "p1", 1, 2, 3, 4)]
    await q.push("orders", "p1", 5, delay_ms=5000)
    await q.push("orders", "p2", 6, 7)
    await q.engine.delete_messages(ids[1:3])
    assert payloads(await q.pop("orders", batch=4, partitions=2)) == [1, 4, 6, 7]


async def test_rule_8_auto_ack_settles_at_delivery_for_its_group_only(q: Driver) -> None:
    await spread(q, "orders", 2, each=2)
    got = await q.pop("orders", group="a", batch=3, partitions=2, auto_ack=True)
    assert (payloads(got), got.lease, got.expires_at) == (["p1.1", "p1.2", "p2.1"], "", None)
    assert [await q.cursor("orders", name, "a") for name in ("p1", "p2")] == [2, 1]
    assert await q.drain("orders", group="a") == ["p2.2"]
    assert len(await q.drain("orders", group="b")) == 4


async def test_rule_8_a_pop_over_a_namespace_a_task_or_both(q: Driver) -> None:
    for name in ("a.x.1", "a.y.2", "b.x.3"):
        await q.push(name, "p1", name)
    assert payloads(await q.pop(namespace="a", group="g1", batch=9, partitions=9)) == ["a.x.1", "a.y.2"]
    assert payloads(await q.pop(task="x", group="g2", batch=9, partitions=9)) == ["a.x.1", "b.x.3"]
    assert payloads(await q.pop(namespace="b", task="x", group="g3", batch=9, partitions=9)) == ["b.x.3"]
    assert await q.pop(namespace="b", task="y", group="g4", batch=9, partitions=9) == []
    await q.configure("b.x.3", namespace="other", task="z")
    assert await q.pop(namespace="b", group="g") == [], "labels follow the configuration"
    [leased] = await q.pop(namespace="other", task="z", group="g")
    assert leased.message.queue == "b.x.3"
    assert await q.pop("b.x.3", group="g") == [], "leased for a pop of the queue too"
    assert (await q.ack(leased)).success


async def test_rule_8_an_unknown_queue_namespace_or_partition_is_empty_not_an_error(q: Driver) -> None:
    for got in (await q.pop("nowhere"), await q.pop(namespace="nowhere"), await q.pop(task="nothing")):
        assert (list(got), got.lease) == ([], "")
        assert got.reason
    assert await q.engine.queue_infos() == []
    await q.push("orders", "p1", 1)
    assert (await q.pop("orders", "p2")).reason == "partition_not_found"


async def test_rule_9_every_ready_partition_is_served_once_before_any_twice(q: Driver) -> None:
    await spread(q, "orders", 5, each=4)
    served = []
    for _ in range(20):
        [leased] = await q.pop("orders")
        served.append(leased.message.partition)
        await q.ack(leased)
    for start in range(0, 20, 5):
        assert sorted(served[start : start + 5]) == ["p1", "p2", "p3", "p4", "p5"]
    assert await q.pop("orders") == []


async def test_rule_9_a_busy_partition_does_not_starve_a_quiet_one(q: Driver) -> None:
    await q.push("orders", "busy", *range(100))
    [leased] = await q.pop("orders")
    await q.ack(leased)
    await q.push("orders", "quiet", "me")
    assert payloads(await q.pop("orders")) == ["me"]


async def test_rule_9_the_one_served_longest_ago_comes_first(q: Driver) -> None:
    await spread(q, "orders", 3, each=9)
    for name in ("p2", "p3", "p1"):
        await q.ack_all(await q.pop("orders", name))
    order = []
    for _ in range(3):
        [leased] = await q.pop("orders")
        order.append(leased.message.partition)
    assert order == ["p2", "p3", "p1"]


async def test_rule_9_a_partition_whose_lease_ends_now_has_its_turn(q: Driver, clock: FakeClock) -> None:
    """Also for a pop with auto-ack, which is the one that notices the end of the lease."""
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2)
    await q.push("orders", "p2", 3)
    got = await q.pop("orders", batch=3, partitions=2)
    await q.retry(got[2])
    clock.advance(10)
    assert payloads(await q.pop("orders", auto_ack=True)) == [1]


async def test_rule_9_being_served_counts_per_group(q: Driver) -> None:
    await spread(q, "orders", 2, each=9)
    await q.ack_all(await q.pop("orders", "p1", group="a"))
    assert [one.message.partition for one in await q.pop("orders", group="b")] == ["p1"]
    assert [one.message.partition for one in await q.pop("orders", group="a")] == ["p2"]


async def test_rule_9_a_multi_partition_pop_serves_each_of_its_partitions(q: Driver) -> None:
    await spread(q, "orders", 4, each=9)
    got = await q.pop("orders", batch=2, partitions=4)
    assert [one.message.partition for one in got] == ["p1", "p1"]
    await q.ack_all(got)
    got = await q.pop("orders", batch=20, partitions=2)
    assert {one.message.partition for one in got} == {"p2", "p3"}
    await q.ack_all(got)
    assert [one.message.partition for one in await q.pop("orders")] == ["p4"]


async def test_rule_9_queue_priority_comes_first_over_several_queues(q: Driver) -> None:
    for name, priority in (("low", 1), ("high", 9), ("middle", 5)):
        await q.configure(name, namespace="ns", priority=priority)
        await q.push(name, "p1", [name, 1], [name, 2], [name, 3])
    order = []
    for _ in range(8):
        [leased] = await q.pop(namespace="ns")
        order.append(leased.payload)
        await q.ack(leased)
        if len(order) == 2:  # A changed priority has effect at once.
            await q.configure("high", namespace="ns", priority=0)
    wanted = [("high", 1), ("high", 2), ("middle", 1), ("middle", 2), ("middle", 3), ("low", 1), ("low", 2), ("low", 3)]
    assert order == [list(one) for one in wanted]
    assert payloads(await q.pop(namespace="ns")) == [["high", 3]]


@pytest.mark.parametrize("group_mode", ["ordered", "shared"])
async def test_rule_27_priorities_of_queues_compete_only_within_a_namespace(q: Driver, group_mode: GroupMode) -> None:
    for name, namespace, priority in (("a1", "a", 0), ("a2", "a", 5), ("b1", "b", 1_000_000)):
        await q.configure(name, namespace=namespace, task="jobs", priority=priority)
        await q.push(name, "p1", *([name] * 4))
    got: list[object] = []
    for _ in range(6):
        leased = await q.pop(task="jobs", group="g", group_mode=group_mode)
        got += payloads(leased)
        await q.ack_all(leased)
    assert sorted(map(str, got)) == ["a2"] * 3 + ["b1"] * 3, "the namespaces take turns"


async def test_rule_2_a_push_that_makes_a_queue_may_say_its_labels(q: Driver) -> None:
    first = message("shop.orders.eu", "p1", 1, labels=("ns", "job"))
    await q.push_messages(first, message("shop.orders.eu", "p2", 2, labels=("other", "")))
    await q.transact(message("shop.orders.us", "p1", 3, labels=("", "")))
    await q.push_messages(message("shop.orders.us", "p2", 4, labels=("ns", "job")))
    infos = await q.engine.queue_infos(["shop.orders.eu", "shop.orders.us"])
    assert sorted((info.name, info.namespace, info.task) for info in infos) == [
        ("shop.orders.eu", "ns", "job"),
        ("shop.orders.us", "", ""),
    ]


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_rule_9_queue_priority_holds_when_a_lease_ends(q: Driver, clock: FakeClock, auto_ack: bool) -> None:
    await q.configure("low", namespace="ns")
    await q.configure("high", namespace="ns", priority=5, lease_time=4)
    await q.push("high", "p1", 1, 2)
    await q.pop(namespace="ns", batch=2)
    await q.push("low", "p1", 3)
    clock.advance(4)
    assert payloads(await q.pop(namespace="ns", auto_ack=auto_ack)) == [1]


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_rule_9_queue_priority_holds_at_the_first_contact_with_a_queue(q: Driver, auto_ack: bool) -> None:
    await q.configure("high", namespace="ns", priority=5)
    await q.configure("low", namespace="ns")
    await q.push("high", "p1", 1)
    assert await q.pop("low", group="g") == []
    await q.push("low", "p1", 2, 3, 4)
    assert payloads(await q.pop(namespace="ns", group="g", auto_ack=auto_ack)) == [1]


async def test_rule_9_queues_of_equal_priority_take_turns(q: Driver) -> None:
    for name in ("ns.a", "ns.b", "ns.c"):
        await q.push(name, "p1", *range(3))
    served = []
    for _ in range(6):
        [leased] = await q.pop(namespace="ns")
        served.append(leased.message.queue)
        await q.ack(leased)
    assert sorted(served[:3]) == sorted(served[3:]) == ["ns.a", "ns.b", "ns.c"]


async def test_rule_9_never_empty_while_something_is_ready(q: Driver, clock: FakeClock) -> None:
    """However a partition became ready again, the next pop finds it."""
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3, 4, 5, 6)
    [leased] = await q.pop("orders")
    await q.ack(leased)
    [leased] = await q.pop("orders")
    await q.fail(leased)
    [leased] = await q.pop("orders")
    await q.retry(leased)
    got = await q.pop("orders")
    await q.engine.release([got.lease])
    assert payloads(await q.pop("orders")) == [2]
    clock.advance(10)
    [leased] = await q.pop("orders")
    await q.kill(leased)
    assert payloads(await q.pop("orders", auto_ack=True)) == [3]
    assert payloads(await q.pop("orders")) == [4]


async def test_rule_9_an_empty_answer_says_when_to_look_again(q: Driver, clock: FakeClock) -> None:
    await q.push_messages(message("orders", "p1", 1, delay_ms=9000), message("orders", "p2", 2, delay_ms=4000))
    got = await q.pop("orders")
    assert got == []
    assert got.look_again_at is not None
    assert clock.now() < got.look_again_at <= clock.now() + 4_000_000


async def test_rule_9_pops_of_one_call_that_want_the_same_partition_get_it_once(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3)
    named = PopRequest(queue="orders", partition="p1", batch=2)
    anywhere = PopRequest(queue="orders", batch=2)
    everything = await q.pop_requests(named, anywhere, named)
    assert sorted(payloads(got) for got in everything) == [[], [], [1, 2]]


async def test_rule_9_pops_of_one_call_that_settle_at_once_share_a_partition(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2, 3, 4, 5)
    request = PopRequest(queue="orders", batch=2, auto_ack=True)
    everything = [payloads(got) for got in await q.pop_requests(request, request)]
    assert everything[0] == [1, 2]
    assert await q.drain("orders") == [3, 4, 5][len(everything[1]) :]


# Rules 11 and 24: what can't be delivered now, the reason that is shown, and the exact moment it ends ----


@pytest.mark.parametrize(
    ("state", "reason"), [("leased", "lease_held"), ("delayed", "waiting"), ("retry not due", "waiting")]
)
async def test_rule_11_leased_delayed_or_waiting_for_a_retry(
    q: Driver, either: Workers, state: str, reason: str
) -> None:
    await q.configure("orders", lease_time=4, retry_delay=4000)
    await q.push("orders", "p1", 1, delay_ms=4000 if state == "delayed" else 0)
    if state != "delayed":
        [leased] = await either.take()
        if state == "retry not due":
            await q.fail(leased)
    empty, due = await either.take(1, "p1"), q.clock.now() + 4 * SECOND
    assert (empty.reason, empty.look_again_at) == (reason, due)
    await either.arrive_at(due)


async def test_rule_11_a_batch_ends_before_the_first_message_that_is_not_due(q: Driver, clock: FakeClock) -> None:
    await q.push_messages(
        message("orders", "p1", 1),
        message("orders", "p1", 2),
        message("orders", "p1", 3, delay_ms=1000),
        message("orders", "p1", 4),
    )
    got = await q.pop("orders", batch=10)
    assert payloads(got) == [1, 2]
    await q.ack_all(got)
    assert await q.pop("orders", batch=10) == []
    clock.advance(1)
    assert payloads(await q.pop("orders", batch=10)) == [3, 4]


async def test_rule_11_delayed_processing_waits_until_messages_are_old_enough(q: Driver, either: Workers) -> None:
    await q.configure("orders", delayed_processing=10)
    start = q.clock.now()
    await q.push("orders", "p1", 1)
    q.clock.advance(4)
    await q.push("orders", "p1", 2)
    empty = await either.take(1, "p1")
    assert (empty.reason, empty.look_again_at) == ("waiting", start + 10 * SECOND)
    got = await either.arrive_at(start + 10 * SECOND, batch=10)
    assert payloads(got) == [1]
    await q.ack_all(got)
    assert payloads(await either.arrive_at(start + 14 * SECOND, batch=10)) == [2]


async def test_rule_11_a_window_buffer_waits_until_pushes_pause(q: Driver, either: Workers) -> None:
    await q.configure("orders", window_buffer=5)
    await q.push("orders", "p1", 1)
    q.clock.advance(4)
    await q.push("orders", "p1", 2)
    empty, due = await either.take(1, "p1"), q.clock.now() + 5 * SECOND
    assert (empty.reason, empty.look_again_at) == ("window_buffer", due)
    assert payloads(await either.arrive_at(due, batch=10)) == [1, 2], "the whole batch"


async def test_rule_11_a_window_buffer_lasts_at_the_longest_ten_times(q: Driver, either: Workers) -> None:
    await q.configure("orders", window_buffer=5)
    start = q.clock.now()
    for number in range(12):
        await q.push("orders", "p1", number)
        assert await either.take() == []
        q.clock.advance(4)
    await q.push("orders", "p1", 12)
    assert q.clock.now() == start + 48 * SECOND
    empty = await either.take(1, "p1")
    assert (empty.reason, empty.look_again_at) == ("window_buffer", start + 50 * SECOND)
    assert payloads(await either.arrive_at(start + 50 * SECOND)) == [0]


async def test_rule_11_the_longest_window_is_after_the_oldest_unsettled_message(q: Driver, either: Workers) -> None:
    await q.configure("orders", window_buffer=5)
    start = q.clock.now()
    for number in range(13):
        await q.push("orders", "p1", number)
        q.clock.advance(4)
    [leased] = await either.take(1, "p1")
    assert (await q.ack(leased)).success
    await q.push("orders", "p1", 13)
    # The oldest unsettled message was pushed at start + 4.
    assert q.clock.now() == start + 52 * SECOND
    assert (await either.take(1, "p1")).reason == "window_buffer"
    assert payloads(await either.arrive_at(start + 54 * SECOND, batch=10)) == [*range(1, 11)]


@pytest.mark.parametrize("how", ["a delay", "a retry", "delayedProcessing"])
async def test_rule_11_the_longest_window_begins_when_a_message_becomes_available(
    q: Driver, either: Workers, how: str
) -> None:
    await q.configure("orders", window_buffer=5, delayed_processing=100 if how == "delayedProcessing" else 0)
    start = q.clock.now()
    await q.push("orders", "p1", 1, delay_ms=100_000 if how == "a delay" else 0)
    if how == "a retry":
        [leased] = await either.arrive_at(start + 5 * SECOND)
        q.clock.advance(5)
        assert (await q.fail(leased, delay_ms=90_000)).success
    empty = await either.take(1, "p1")
    if how != "delayedProcessing":
        assert (empty.reason, empty.look_again_at) == ("waiting", start + 100 * SECOND), "there is nothing to hold back"
    q.clock.advance((start + 100 * SECOND - q.clock.now()) / SECOND)
    for number in range(12):
        await q.push("orders", "p1", number + 2)
        assert await either.take(1, "p1") == []
        q.clock.advance(4)
    await q.push("orders", "p1", 14)
    empty = await either.take(1, "p1")
    assert (empty.reason, empty.look_again_at) == ("window_buffer", start + 150 * SECOND)
    assert payloads(await either.arrive_at(start + 150 * SECOND)) == [1]


async def test_rule_11_a_message_in_flight_does_not_end_the_window_of_the_others(q: Driver, workers: Workers) -> None:
    await q.configure("orders", window_buffer=5)
    start = q.clock.now()
    await q.push("orders", "p1", 0)
    [leased] = await workers.arrive_at(start + 5 * SECOND)
    q.clock.advance(45)
    for number in range(1, 13):
        await q.push("orders", "p1", number)
        assert (await workers.take(1, "p1")).reason == "window_buffer"
        q.clock.advance(4)
    await q.push("orders", "p1", 13)
    assert payloads(await workers.arrive_at(start + 100 * SECOND)) == [1]
    assert (await q.ack(leased)).success


async def test_rule_11_what_has_outlived_its_time_does_not_end_a_window(q: Driver, either: Workers) -> None:
    await q.configure("orders", window_buffer=5)
    start = q.clock.now()
    await q.push("orders", "p1", 0, ttl_ms=3000)
    for number in range(1, 14):
        q.clock.advance(4)
        await q.push("orders", "p1", number)
    assert q.clock.now() == start + 52 * SECOND
    empty = await either.take(1, "p1")
    assert (empty.reason, empty.look_again_at) == ("window_buffer", start + 54 * SECOND)
    assert payloads(await either.arrive_at(start + 54 * SECOND)) == [1]


async def test_rule_11_a_window_buffer_is_per_partition(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", window_buffer=5)
    await q.push("orders", "p1", 1)
    clock.advance(5)
    await q.push("orders", "p2", 2)
    assert payloads(await q.pop("orders", batch=10, partitions=10)) == [1]


@pytest.mark.parametrize("group", [None, "workers"], ids=["the queue", "the group"])
async def test_rule_11_paused(q: Driver, either: Workers, group: str | None) -> None:
    """What is paused delivers nothing; it takes pushes, and what is held can be settled."""
    await q.push("orders", "p1", 1, 2)
    [leased] = await either.take()
    assert await q.engine.pause("orders", group, True)
    assert [one.paused for one in await q.engine.queue_infos(["orders"])] == [group is None]
    assert [one.status for one in await q.push("orders", "p2", 3)] == ["queued"]
    for _ in range(2):
        for partition in ("p1", None):
            empty = await either.take(10, partition, partitions=10)
            assert (list(empty), empty.reason) == ([], "paused")
        assert (await q.ack(leased)).success
    assert await q.engine.pause("orders", group, False)
    assert sorted(map(str, await either.drain())) == ["2", "3"]


async def test_rule_11_nothing_is_ready_where_all_is_settled_whatever_waits_in_another_partition(
    q: Driver, either: Workers
) -> None:
    assert (await either.take(1, "p1")).reason == "partition_not_found"
    await q.push("orders", "p1", 1)
    await either.drain()
    for partition in ("p1", None):
        empty = await either.take(1, partition)
        assert (empty.reason, empty.look_again_at) == ("nothing_ready", None)
    await q.push("orders", "p2", 2, delay_ms=5000)
    assert (await either.take(1, "p1")).reason == "nothing_ready"
    assert (await either.take(1, "p2")).reason == "waiting"


async def test_rule_24_a_delay_is_exact_beside_a_new_group(q: Driver, either: Workers) -> None:
    """A group that began in the microsecond of the push must not move the delay by one."""
    await either.take(subscription=NEW)
    await q.push("orders", "p1", 1, delay_ms=2000)
    await either.arrive_at(q.clock.now() + 2 * SECOND)


async def test_rule_24_a_changed_option_has_effect_on_messages_that_wait(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", delayed_processing=100)
    await q.push("orders", "p1", 1)
    assert await q.pop("orders") == []
    await q.configure("orders", delayed_processing=10)
    clock.advance(10)
    assert payloads(await q.pop("orders")) == [1]


async def test_rule_24_a_lease_is_exact_to_the_microsecond(q: Driver, either: Workers) -> None:
    await q.configure("orders", lease_time=7)
    await q.push("orders", "p1", 1)
    [leased] = await either.take()
    q.clock.advance(7 - TICK)
    assert (await q.ack(leased)).success

    await q.push("orders", "p1", 2)
    [leased] = await either.take()
    q.clock.advance(7)
    assert not (await q.ack(leased)).success

    renewed = await either.take()
    assert (await q.renew(renewed.lease, 20)).expires_at == q.clock.now() + 20 * SECOND
    await either.arrive_at(q.clock.now() + 20 * SECOND)
