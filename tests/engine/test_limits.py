"""Limits of queues and groups, in ordered and in shared groups: enforced in the claim."""

from __future__ import annotations

import pytest

from hark.clock import MILLISECOND, SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import (
    Explain,
    Facts,
    GroupMode,
    Limited,
    Limits,
    PopRequest,
    QueueFilter,
    QueueOptions,
    QueueSpec,
)

from .driver import ANYWHERE, Driver, message, payloads
from .workers import Workers


async def spread(q: Driver, number: int) -> None:
    """Push messages, each to a partition of its own, so that an ordered group can hold any number."""
    await q.push_messages(*(message("orders", f"p{n}", n) for n in range(number)))


# In flight -------------------------------------------------------------------------------------------------


async def test_a_pop_gets_at_most_what_is_left(q: Driver, either: Workers) -> None:
    await q.configure("orders", max_in_flight=3)
    await spread(q, 8)
    first = await either.take(2, partitions=9)
    second = await either.take(5, partitions=9)
    assert (len(first), len(second)) == (2, 1)
    empty = await either.take(5, partitions=9)
    assert (len(empty), empty.reason) == (0, "max_in_flight")
    await q.ack(first[0])
    assert len(await either.take(5, partitions=9)) == 1


async def test_as_many_consumers_are_notified_as_there_is_room_for(q: Driver) -> None:
    await q.configure("orders", max_in_flight=3)
    shared = Workers(q, group="workers", mode="shared")
    await q.push("orders", "p1", *range(8))
    got = await shared.take(3)
    assert (await shared.take(1)).reason == "max_in_flight"
    q.hints.clear()
    await q.ack_all(got)
    assert sum(sum(hint.counts) for hint in q.hints_for("orders", "workers")) == 3


@pytest.mark.parametrize("scope", ["queue", "group"])
async def test_each_settlement_notifies_those_who_wait_also_after_the_room_was_filled_exactly(
    q: Driver, workers: Workers, scope: str
) -> None:
    await q.push("orders", "p1", *range(9))
    await workers.take(1, "nowhere")
    if scope == "queue":
        await q.configure("orders", max_in_flight=1)
    else:
        await q.engine.limit_group("orders", "workers", Limits(max_in_flight=1))
    got = await workers.take()
    assert (await workers.take()).reason == "max_in_flight", "two wait, or more"
    for _ in range(3):
        q.hints.clear()
        await q.ack_all(got)
        assert sum(sum(hint.counts) for hint in q.hints_for("orders", "workers")) == 1
        got = await workers.take()


@pytest.mark.parametrize("priority", [0, 5])
async def test_those_who_wait_are_notified_also_if_others_did_not_fill_the_room(
    q: Driver, workers: Workers, priority: int
) -> None:
    await q.configure("orders", max_in_flight=2)
    await q.push("orders", "p1", 0, 1)
    got = await workers.take(2)
    await q.push("orders", "p1", *range(2, 9), priority=priority)
    assert (await workers.take()).reason == "max_in_flight", "three wait, or more"
    await q.ack_all(got)
    got = await workers.take()
    q.hints.clear()
    await q.ack_all(got)
    assert q.announced("orders", "workers"), "the third has not heard of anything"


async def test_one_partition_gives_no_more_than_the_limit(q: Driver, either: Workers) -> None:
    await q.configure("orders", max_in_flight=3)
    await q.push("orders", "p1", *range(8))
    for wanted in ([0, 1, 2], [3, 4, 5]):
        got = await either.take(10)
        assert payloads(got) == wanted
        await q.ack_all(got)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [(QueueOptions(max_in_flight=3), "max_in_flight"), (QueueOptions(rate_limit=1, rate_burst=3), "rate_limited")],
)
async def test_the_limit_of_the_queue_is_over_all_its_groups(
    q: Driver, mode: GroupMode, limits: QueueOptions, reason: str
) -> None:
    await q.configure_spec(QueueSpec(name="orders", options=limits))
    await spread(q, 5)
    a, b, c = (Workers(q, group=name, mode=mode) for name in ("a", "b", "c"))
    first = await a.take(2, partitions=9)
    assert (len(first), len(await b.take(5, partitions=9))) == (2, 1)
    assert (await c.take(5, partitions=9)).reason == reason
    await q.ack_all(first)
    assert len(await c.take(5, partitions=9)) == (2 if reason == "max_in_flight" else 0)


async def test_auto_ack_holds_nothing_and_is_not_bounded_by_what_others_hold(q: Driver, workers: Workers) -> None:
    await q.configure("orders", max_in_flight=1)
    await q.push("orders", "p1", 1, 2, 3)
    await workers.take()
    assert (await workers.take(1, "p1")).reason == "max_in_flight", "a named partition says so too"
    assert payloads(await workers.take(10, auto_ack=True)) == [2, 3]


async def test_pops_of_one_call_share_what_is_left(q: Driver, mode: GroupMode) -> None:
    await q.configure("orders", max_in_flight=3)
    await spread(q, 8)
    params = PopRequest(queue="orders", group="g", group_mode=mode, batch=2, partitions=2)
    everything = await q.pop_requests(params, params, params, params)
    assert sorted(len(got) for got in everything) == [0, 0, 1, 2]
    assert {got.reason for got in everything if not got} == {"max_in_flight"}


@pytest.mark.parametrize("how", ["ack", "fail", "retry", "kill", "release", "expiry", "delete", "purge", "seek"])
async def test_whatever_ends_a_hold_makes_room_and_reports(
    q: Driver, engine: Engine, clock: FakeClock, either: Workers, how: str
) -> None:
    await q.configure("orders", max_in_flight=1, lease_time=10)
    await spread(q, 2)
    got = await either.take()
    assert (await either.take()).reason == "max_in_flight"
    q.hints.clear()
    match how:
        case "ack" | "fail" | "retry" | "kill":
            assert (await {"ack": q.ack, "fail": q.fail, "retry": q.retry, "kill": q.kill}[how](got[0])).success
        case "release":
            await engine.release([got.lease])
        case "expiry":
            clock.advance(10)
            await engine.expire()
        case "delete":
            await engine.delete_messages([got[0].message.id])
        case "purge":
            await engine.purge("orders", "workers")
            await q.push("orders", "p9", 9)
        case "seek":
            await q.seek("orders", got[0].message.partition, group="workers", to_end=True)
    assert q.announced("orders", "workers"), "whoever waits must hear that there is room"
    assert len(await either.take()) == 1


async def test_room_made_by_one_group_is_notified_to_the_others(q: Driver, workers: Workers) -> None:
    await q.configure("orders", max_in_flight=1)
    await q.push("orders", "p1", 1, 2)
    assert await q.pop("orders", "nowhere", group="ordered") == []
    [leased] = await workers.take()
    assert (await q.pop("orders", group="ordered")).reason == "max_in_flight"
    q.hints.clear()
    await q.ack(leased)
    assert q.announced("orders", "ordered") & {"p1", ANYWHERE}
    assert payloads(await q.pop("orders", group="ordered")) == [1]


async def test_a_changed_limit_counts_at_once_and_is_notified(q: Driver, either: Workers) -> None:
    await q.configure("orders", max_in_flight=1)
    await spread(q, 5)
    first = await either.take()
    assert await either.take() == []
    q.hints.clear()
    await q.configure("orders", max_in_flight=3)
    assert q.announced("orders", "workers") == {ANYWHERE}
    second = await either.take(9, partitions=9)
    assert len(second) == 2
    await q.configure("orders", max_in_flight=2)
    assert (await either.take()).reason == "max_in_flight"
    await q.ack_all([*first, second[0]])
    assert len(await either.take(9, partitions=9)) == 1
    await q.configure("orders")
    assert len(await either.take(9, partitions=9)) == 1, "all that is left"


# Rate ------------------------------------------------------------------------------------------------------


async def test_the_bucket_is_full_at_first_then_fills_at_the_rate(q: Driver, clock: FakeClock, either: Workers) -> None:
    await q.configure("orders", rate_limit=2, rate_burst=4)
    await spread(q, 20)
    assert len(await either.take(10, partitions=10)) == 4
    empty = await either.take(10, partitions=10)
    assert (empty.reason, empty.look_again_at) == ("rate_limited", clock.now() + 500 * MILLISECOND)
    clock.advance(0.5 - 0.000_001)
    assert await either.take(10, partitions=10) == []
    clock.advance(0.000_001)
    assert len(await either.take(10, partitions=10)) == 1
    clock.advance(1)
    assert len(await either.take(10, partitions=10)) == 2
    clock.advance(100)
    assert len(await either.take(10, partitions=10)) == 4, "no more than the burst"


@pytest.mark.parametrize(("rate", "burst"), [(3.0, 3), (2.5, 3), (0.5, 1), (0.1, 1)])
async def test_without_a_burst_it_holds_what_a_second_allows_and_at_least_one(
    q: Driver, workers: Workers, rate: float, burst: int
) -> None:
    await q.configure("orders", rate_limit=rate)
    await q.push("orders", "p1", *range(20))
    assert len(await workers.take(20)) == burst
    assert (await workers.take()).look_again_at == q.clock.now() + round(SECOND / rate)


async def test_each_delivery_uses_a_token_and_nothing_else_does(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.configure("orders", rate_limit=1, rate_burst=3)
    for _ in range(5):
        assert await workers.take() == []
    await q.push("orders", "p1", 1, 2, 3, 4)
    got = await workers.take()
    await engine.release([got.lease])  # It does not give its token back.
    assert payloads(await workers.take(10, auto_ack=True)) == [1, 2]
    for auto_ack in (True, False):
        assert (await workers.take(10, auto_ack=auto_ack)).reason == "rate_limited"


async def test_over_a_namespace_a_limited_queue_does_not_stop_the_others(q: Driver) -> None:
    await q.configure("a", namespace="ns", priority=9, max_in_flight=1)
    await q.configure("b", namespace="ns")
    for name in ("a", "b"):
        await q.push(name, "p1", *[name] * 3)
    got = await q.pop(namespace="ns", group="w", group_mode="shared", batch=10, partitions=5)
    assert sorted(map(str, payloads(got))) == ["a", "b", "b", "b"]


# Of a group ------------------------------------------------------------------------------------------------


async def test_a_group_has_limits_of_its_own(q: Driver, engine: Engine, either: Workers) -> None:
    await spread(q, 6)
    await either.take()
    assert await engine.limit_group("orders", "workers", Limits(max_in_flight=2))
    assert len(await either.take(10, partitions=9)) == 1
    assert (await either.take(10, partitions=9)).reason == "max_in_flight"
    assert len(await Workers(q, group="free", mode=either.mode).take(10, partitions=9)) == 6
    [stats] = await engine.group_stats("workers", "orders")
    assert (stats.limits, stats.in_flight) == (Limits(max_in_flight=2), 2)


async def test_the_narrower_of_both_limits_counts(q: Driver, engine: Engine, either: Workers) -> None:
    await q.configure("orders", max_in_flight=2)
    await spread(q, 6)
    await q.pop("orders", "nowhere", group="workers", group_mode=either.mode)
    await engine.limit_group("orders", "workers", Limits(rate_limit=1, rate_burst=5))
    assert len(await either.take(10, partitions=9)) == 2
    await engine.limit_group("orders", "workers", Limits(max_in_flight=1))
    assert (await either.take(10, partitions=9)).reason == "max_in_flight"


async def test_a_rate_of_a_group(q: Driver, workers: Workers, engine: Engine, clock: FakeClock) -> None:
    await q.push("orders", "p1", *range(10))
    await workers.take(1, "nowhere")
    await engine.limit_group("orders", "workers", Limits(rate_limit=4, rate_burst=2))
    assert len(await workers.take(10)) == 2
    empty = await workers.take(10)
    assert (empty.reason, empty.look_again_at) == ("rate_limited", clock.now() + 250 * MILLISECOND)
    clock.advance(0.25)
    assert len(await workers.take(10)) == 1
    assert len(await Workers(q, group="others").take(10)) == 10


async def test_a_group_gets_its_limits_before_its_queue_exists(q: Driver, engine: Engine, either: Workers) -> None:
    await q.push("other", "p1", 1)
    [leased] = await q.pop("other")
    assert await either.take() == []
    assert await engine.limit_group("orders", "workers", Limits(max_in_flight=2, rate_limit=1, rate_burst=3))
    await spread(q, 6)
    got = await either.take(9, partitions=9)
    assert len(got) == 2
    await q.ack_all(got)
    assert len(await either.take(9, partitions=9)) == 1
    assert (await q.ack(leased)).success, "the leases of others stay"


async def test_a_limit_that_is_lifted_is_notified(q: Driver, workers: Workers, engine: Engine) -> None:
    await q.push("orders", "p1", 1, 2)
    await workers.take()
    for queue, group, known in (("orders", "workers", True), ("orders", "none", False), ("nowhere", "none", False)):
        assert await engine.limit_group(queue, group, Limits(max_in_flight=1)) == known
    assert await workers.take() == []
    q.hints.clear()
    await engine.limit_group("orders", "workers", Limits())
    assert q.announced("orders", "workers")
    assert payloads(await workers.take()) == [2]


async def test_limits_of_groups_and_queues_survive_a_restart(q: Driver, workers: Workers) -> None:
    await q.configure("orders", max_in_flight=3, lease_time=10)
    await q.push("orders", "p1", *range(10))
    await workers.take(1, "nowhere")
    limits = Limits(max_in_flight=2, rate_limit=100, rate_burst=50)
    await q.engine.limit_group("orders", "workers", limits)
    await q.reopen()
    q.clock.advance(10)
    assert (await workers.stats()).limits == limits
    assert len(await workers.take(10)) == 2
    assert len(await q.pop("orders", group="others", batch=10)) == 1


async def test_the_limit_is_the_reason_also_where_something_else_waits(q: Driver, either: Workers) -> None:
    await q.configure("orders", max_in_flight=2)
    await q.push("orders", "p1", 1, 2)
    await q.push("orders", "p2", 3, delay_ms=1000)
    await q.push("orders", "p3", 4)
    assert len(await q.pop("orders", group="first", batch=2)) == 2
    for _ in range(3):
        assert (await Workers(q, group="second", mode=either.mode).take(4, partitions=3)).reason == "max_in_flight"
        assert (await q.pop("orders", group="first")).reason == "max_in_flight"


async def test_rule_9_who_had_its_turn_before_the_limit_was_reached_is_not_the_first_again(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", rate_limit=1, rate_burst=2)
    await q.push("orders", "p1", 1, 2, 3)
    await q.push("orders", "p2", 4)
    first, second = await workers.take_together(2, 1)
    assert (payloads(first), payloads(second)) == ([1, 2], [])
    clock.advance(2)
    assert payloads(await workers.take()) == [4]


# Of each partition -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_group", [False, True], ids=["queue", "group"])
async def test_each_partition_has_its_own_rate(
    q: Driver, engine: Engine, clock: FakeClock, either: Workers, of_group: bool
) -> None:
    limits = Limits(rate_limit_per_partition=2, rate_burst_per_partition=3)
    if of_group:
        await q.push("orders", "p0", 0)
        await q.ack_all(await either.take())
        assert await engine.limit_group("orders", either.group, limits)
    else:
        await q.configure("orders", rate_limit_per_partition=2, rate_burst_per_partition=3)
    await q.push("orders", "p1", *range(10))
    got = await either.take(10)
    assert payloads(got) == [0, 1, 2]
    await q.ack_all(got)
    await q.push("orders", "p2", *range(10, 20))
    assert payloads(await either.take(2)) == [10, 11], "others go on"
    for partition in (None, "p1"):
        empty = await either.take(10, partition)
        if empty:  # What p2 has left, in a shared group.
            assert payloads(empty) == [12]
            empty = await either.take(10, partition)
        assert (len(empty), empty.look_again_at) == (0, clock.now() + 500 * MILLISECOND)
        assert empty.reason in ("rate_limited", "lease_held")
    await either.arrive_at(clock.now() + 500 * MILLISECOND, batch=10)
    clock.advance(100)
    assert len(await either.take(10, "p1")) in (0, 3), "no more than the burst"


async def test_each_partition_has_its_own_number_in_flight(q: Driver, either: Workers) -> None:
    await q.configure("orders", max_in_flight_per_partition=2)
    await q.push("orders", "p1", *range(5))
    await q.push("orders", "p2", *range(10, 15))
    got = await either.take(20, partitions=9)
    assert set(payloads(got)) == {0, 1, 10, 11}
    empty = await either.take(20, partitions=9)
    assert (len(empty), empty.reason) == (0, "max_in_flight" if either.mode == "shared" else empty.reason)
    assert await either.take(20, "p1") == []
    q.hints.clear()
    await q.ack_all([one for one in got if one.message.partition == "p1"])
    assert "p1" in q.announced("orders", "workers") or ANYWHERE in q.announced("orders", "workers")
    assert payloads(await either.take(20, partitions=9)) == [2, 3]


@pytest.mark.parametrize("how", ["ack", "fail", "retry", "kill", "release", "expiry", "delete", "purge", "seek"])
async def test_whatever_ends_a_lease_makes_room_in_its_partition(
    q: Driver, engine: Engine, clock: FakeClock, either: Workers, how: str
) -> None:
    await q.configure("orders", max_in_flight_per_partition=1, lease_time=10)
    await q.push("orders", "p1", 1, 2)
    got = await either.take(2)
    assert len(got) == 1
    assert await either.take() == []
    q.hints.clear()
    match how:
        case "ack" | "fail" | "retry" | "kill":
            assert (await {"ack": q.ack, "fail": q.fail, "retry": q.retry, "kill": q.kill}[how](got[0])).success
        case "release":
            await engine.release([got.lease])
        case "expiry":
            clock.advance(10)
            await engine.expire()
        case "delete":
            await engine.delete_messages([got[0].message.id])
        case "purge":
            await engine.purge("orders", "workers")
            await q.push("orders", "p1", 9, 10)
        case "seek":
            await q.seek("orders", "p1", group="workers", to_end=True)
            await q.push("orders", "p1", 9, 10)
    assert q.announced("orders", "workers"), "waiting consumers must be notified that there is room"
    assert len(await either.take(5)) == 1


async def test_auto_ack_counts_for_the_rate_of_a_partition_and_waits_for_what_is_in_flight(
    q: Driver, workers: Workers
) -> None:
    await q.configure("orders", max_in_flight_per_partition=1, rate_limit_per_partition=1, rate_burst_per_partition=4)
    await q.push("orders", "p1", *range(10))
    [leased] = await workers.take(5)
    for partition in (None, "p1"):
        assert (await workers.take(5, partition, auto_ack=True)).reason == "max_in_flight"
    await q.ack(leased)
    assert payloads(await workers.take(5, auto_ack=True)) == [1, 2, 3]
    for partition in (None, "p1"):
        assert (await workers.take(5, partition, auto_ack=True)).reason == "rate_limited"


async def test_pops_of_one_call_share_what_a_partition_allows(q: Driver, workers: Workers) -> None:
    await q.configure("orders", max_in_flight_per_partition=3, rate_limit_per_partition=1, rate_burst_per_partition=5)
    await q.push("orders", "p1", *range(10))
    everything = await workers.take_together(2, 2, 2, 2)
    assert sorted(len(got) for got in everything) == [0, 0, 1, 2]
    await q.ack_all([one for got in everything for one in got])
    assert sorted(len(got) for got in await workers.take_together(2, 2)) == [0, 2]
    assert (await workers.take()).reason == "rate_limited"


async def test_both_limits_of_a_partition_hold(q: Driver, engine: Engine, workers: Workers, clock: FakeClock) -> None:
    await q.configure("orders", max_in_flight_per_partition=5, rate_limit_per_partition=2, rate_burst_per_partition=9)
    await q.push("orders", "p1", *range(30))
    await q.ack_all(await workers.take())
    await engine.limit_group(
        "orders",
        "workers",
        Limits(max_in_flight_per_partition=7, rate_limit_per_partition=4, rate_burst_per_partition=4),
    )
    await q.ack_all(await workers.take(20))
    assert (await workers.take()).look_again_at == clock.now() + 500 * MILLISECOND
    clock.advance(100)
    assert len(await workers.take(20)) == 4
    others = Workers(q, group="others")
    assert len(await others.take(20)) == 5, "each group for itself"


async def test_messages_that_come_to_a_partition_at_its_limit_notify_nobody_twice(
    q: Driver, workers: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", rate_limit_per_partition=1)
    await q.push("orders", "p1", 1, 2)
    assert payloads(await workers.take(5, auto_ack=True)) == [1]
    assert (await workers.take()).look_again_at == clock.now() + SECOND
    q.hints.clear()
    await q.push("orders", "p1", 3)
    assert "p1" not in q.announced("orders", "workers")
    clock.advance(1)
    assert payloads(await workers.take(5)) == [2]


async def test_a_lifted_limit_of_partitions_is_notified(q: Driver, either: Workers, engine: Engine) -> None:
    await q.configure("orders", rate_limit_per_partition=0.001)
    await q.push("orders", "p1", 1, 2, 3)
    await q.ack_all(await either.take(5))
    assert await either.take(5) == []
    q.hints.clear()
    await q.configure("orders", max_in_flight_per_partition=1)
    assert q.announced("orders", "workers") == {ANYWHERE}
    [leased] = await either.take(5)
    assert await either.take(5) == []
    q.hints.clear()
    await q.configure("orders")
    await engine.limit_group("orders", "workers", Limits())
    assert q.announced("orders", "workers")
    if either.mode == "ordered":
        await q.ack(leased)
    assert payloads(await either.take(5)) == [3]


async def test_the_rate_of_a_partition_survives_a_restart(q: Driver, either: Workers, clock: FakeClock) -> None:
    await q.configure("orders", rate_limit_per_partition=0.01, rate_burst_per_partition=2)
    await q.push("orders", "p1", *range(5))
    await q.ack_all(await either.take(5))
    await q.reopen()
    empty = await either.take(5)
    assert (len(empty), empty.reason) == (0, "rate_limited")
    clock.advance(100)
    assert payloads(await either.take(5)) == [2]
    page = await q.engine.queue_stats(QueueFilter(names=["orders"]))
    assert page.items[0].info.options.rate_burst_per_partition == 2


async def test_explain_names_the_limit_of_the_partition(q: Driver, either: Workers, clock: FakeClock) -> None:
    await q.configure("orders", max_in_flight_per_partition=1)
    [*_, last] = await q.push("orders", "p1", 1, 2)
    [leased] = await either.take(5)

    async def limited() -> Limited | None:
        [facts] = await q.engine.explain([Explain(str(last.message_id), either.group)])
        assert isinstance(facts, Facts)
        return facts.groups[0].limited

    expected = Limited(reason="max_in_flight", scope="partition", limit=1, in_flight=1)
    assert await limited() == expected
    await q.ack(leased)
    assert await limited() is None
    await q.configure("orders", rate_limit_per_partition=0.5)
    await q.push("orders", "p1", 3)
    await q.ack_all(await either.take(1))
    [*_, last] = await q.push("orders", "p1", 4)
    until = clock.now() + 2 * SECOND
    assert await limited() == Limited(reason="rate_limited", scope="partition", limit=0.5, until=until)
    clock.advance(2)
    assert await limited() is None


async def test_a_pop_passes_by_many_partitions_at_their_limit(q: Driver, either: Workers, clock: FakeClock) -> None:
    await q.configure("orders", rate_limit_per_partition=0.5)
    names = [f"p{n}" for n in range(50)]
    await q.push_messages(*(message("orders", name, n) for name in names for n in range(2)))
    got = await either.take(1000, partitions=50)
    assert len(got) == 50
    await q.ack_all(got)
    assert await either.take(1000, partitions=50) == []
    await q.push("orders", "free", "free")
    assert payloads(await either.take(1000, partitions=3)) == ["free"]
    clock.advance(2)
    assert len(await either.take(1000, partitions=100)) == 50


async def test_a_pop_ends_at_partitions_with_limits_whose_messages_are_not_due(
    q: Driver, either: Workers, clock: FakeClock
) -> None:
    await q.configure("orders", max_in_flight_per_partition=2, rate_limit_per_partition=1)
    await q.push_messages(message("orders", "p1", 1, delay_ms=3000), message("orders", "p2", 2, delay_ms=4000))
    empty = await either.take(4, partitions=2)
    assert (len(empty), empty.look_again_at) == (0, clock.now() + 3 * SECOND)
    clock.advance(3)
    assert payloads(await either.take(4, "p1")) == [1]
