"""Why a message was not delivered, or not settled: each reason, on every engine."""

from __future__ import annotations

import pytest

from hark.broker.explain import Circumstances, moment
from hark.clock import MILLISECOND, SECOND, FakeClock
from hark.errors import NotFound
from hark.model import Explain, Facts, GroupMode, Limits, MessageFilter, QueueOptions, QueueSpec

from .driver import NEVER_GIVEN, NEW, Driver, message, payloads
from .explained import message_of, why, why_all


def at(clock: FakeClock, seconds: float) -> str:
    """A time from now, as explanations write it."""
    return moment(clock.now() + round(seconds * SECOND))


# Nothing is in its way -------------------------------------------------------------------------------------


async def test_ready_means_that_the_next_pop_gets_it(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    await q.pop("orders", group="g", group_mode=mode)
    one = await q.push_id("orders", "p1", 1)
    last_polled = clock.now()
    clock.advance(60)
    found = await why(q, one, here=Circumstances(last_polled=last_polled))
    assert (found.reason, found.data["askedAt"]) == ("not_asked", moment(last_polled)), (
        "no consumer waits or asked lately"
    )
    assert (await why(q, one)).reason == "ready"
    assert [leased.message.id for leased in await q.pop("orders", group="g")] == [one]


async def test_ready_says_how_many_are_before_it_also_in_a_long_partition(q: Driver) -> None:
    await q.pop("orders", group="g")
    for _ in range(3):
        await q.push("orders", "p1", *range(1000))
    last = await q.push_id("orders", "p1", "last")
    found = await why(q, last)
    assert (found.reason, found.data["aheadMessages"]) == ("ready", 3000)
    [leased] = await q.pop("orders", group="g")
    await q.ack(leased)
    assert (await why(q, last)).data["aheadMessages"] == 2999


# Leased ----------------------------------------------------------------------------------------------------


async def test_leased_names_who_since_when_and_until_when(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    await q.configure("orders", lease_time=30, retry_delay=5000)
    one = await q.push_id("orders", "p1", 1)
    await q.pop("orders", group="g", group_mode=mode, consumer="worker 7")
    since, until = at(clock, 0), at(clock, 30)
    clock.advance(10)
    found = await why(q, one)
    assert found.reason == "leased"
    assert found.data == {"consumer": "worker 7", "since": since, "until": until, "attempt": 1}
    assert found.text == f'Leased to "worker 7" since {since} until {until} (in 20 s).'
    clock.advance(20)
    found = await why(q, one)
    assert (found.reason, found.data["attempts"]) == ("ready", 1), "a lease that is over is not seen"
    assert "Lease expired" in str(found.data["error"])


# Behind ----------------------------------------------------------------------------------------------------


async def test_behind_a_message_that_is_leased_or_waits_for_its_retry(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", lease_time=30, retry_delay=4000)
    first = await q.push_id("orders", "p1", 1)
    second = await q.push_id("orders", "p1", 2)
    [leased] = await q.pop("orders", group="g", consumer="worker 7")
    found = await why(q, second)
    assert (found.reason, found.data["aheadMessages"]) == ("behind", 1)
    ahead: dict[str, object] = {"messageId": first, "offset": 1}
    lease = {"reason": "leased", "consumer": "worker 7", "since": at(clock, 0), "until": at(clock, 30)}
    assert found.data["ahead"] == ahead | lease
    assert found.text == (
        f"Waits for the earlier message {first} of its partition, "
        f'which is leased to "worker 7" until {at(clock, 30)} (in 30 s).'
    )
    await q.fail(leased, "no disk")
    found = await why(q, second)
    retry = {"reason": "retry", "attempts": 1, "due": at(clock, 4), "error": "no disk"}
    assert (found.reason, found.data["ahead"]) == ("behind", ahead | retry)
    assert found.text.endswith(f'which is retried at {at(clock, 4)} (in 4 s) after the error "no disk".')


async def test_behind_only_what_is_not_settled(q: Driver) -> None:
    """Beyond the cursor there are gaps: 2 failed, 1 and 3 are done."""
    await q.configure("orders", retry_delay=4000)
    await q.push("orders", "p1", 1, 2, 3)
    last = await q.push_id("orders", "p1", 4)
    leased = await q.pop("orders", group="g", batch=3)
    await q.ack(leased[0])
    found = await why(q, last)
    assert found.data["ahead"]["messageId"] == leased[1].message.id  # type: ignore[index]
    assert found.data["aheadMessages"] == 2
    await q.ack(leased[2])
    await q.fail(leased[1])
    assert [(await why(q, one.message.id)).reason for one in leased] == ["done", "retry", "done"]


async def test_behind_a_delayed_message_though_others_before_that_are_ready(q: Driver, clock: FakeClock) -> None:
    await q.pop("orders", group="g")
    await q.push("orders", "p1", 1, 2)
    late = await q.push_id("orders", "p1", 3, delay_ms=9000)
    last = await q.push_id("orders", "p1", 4)
    found = await why(q, last)
    assert (found.reason, found.data["aheadMessages"]) == ("behind", 3)
    assert found.data["ahead"] == {"messageId": late, "offset": 3, "reason": "delayed", "deliverAt": at(clock, 9)}
    assert (await why(q, (await q.pop("orders", "p1", group="other"))[0].message.id)).reason == "ready"


async def test_a_delay_that_outlasts_what_is_ahead_is_the_reason(q: Driver) -> None:
    await q.configure("orders", lease_time=30)
    await q.push("orders", "p1", 1)
    late = await q.push_id("orders", "p1", 2, delay_ms=60_000)
    soon = await q.push_id("orders", "p1", 3, delay_ms=1000)
    await q.pop("orders", group="g")
    assert (await why(q, late)).reason == "delayed"
    assert (await why(q, soon)).reason == "behind"


async def test_one_whose_time_is_over_is_in_no_ones_way(q: Driver, clock: FakeClock) -> None:
    await q.pop("orders", group="g")
    await q.push("orders", "p1", 1, delay_ms=60_000, ttl_ms=1000)
    second = await q.push_id("orders", "p1", 2)
    assert (await why(q, second)).reason == "behind"
    clock.advance(1)
    assert (await why(q, second)).reason == "ready"
    assert payloads(await q.pop("orders", group="g")) == [2]


async def test_in_a_shared_group_no_one_is_behind(q: Driver) -> None:
    await q.pop("orders", group="g", group_mode="shared")
    await q.push("orders", "p1", 1)
    await q.push("orders", "p1", 2, delay_ms=60_000)
    third = await q.push_id("orders", "p1", 3)
    await q.pop("orders", group="g")
    assert (await why(q, third)).reason == "ready"
    assert payloads(await q.pop("orders", group="g")) == [3]


# Time has to pass ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "options", "delay_ms", "seconds", "until"),
    [
        ("delayed", QueueOptions(), 12_000, 12, "deliverAt"),
        ("delayed_processing", QueueOptions(delayed_processing=10), 0, 10, "deliverAt"),
        ("window_buffer", QueueOptions(window_buffer=5), 0, 5, "until"),
    ],
)
async def test_delayed_until_the_very_moment_at_which_it_is_delivered(
    q: Driver,
    clock: FakeClock,
    mode: GroupMode,
    reason: str,
    options: QueueOptions,
    delay_ms: int,
    seconds: int,
    until: str,
) -> None:
    await q.configure_spec(QueueSpec(name="orders", options=options))
    await q.pop("orders", group="g", group_mode=mode)
    one = await q.push_id("orders", "p1", 1, delay_ms=delay_ms)
    if reason == "window_buffer":  # It begins again with each message.
        clock.advance(2)
        await q.push("orders", "p1", 2)
    found = await why(q, one)
    named = {"delayed_processing": {"delayedProcessing": 10}, "window_buffer": {"windowBuffer": 5}}.get(reason, {})
    assert (found.reason, found.data) == (reason, {until: at(clock, seconds), **named})
    if reason == "delayed":
        assert found.text == f"Delayed until {at(clock, 12)} (in 12 s)."
    clock.advance(seconds - 0.000_001)
    assert (await why(q, one)).reason == reason
    assert await q.pop("orders", group="g") == []
    clock.advance(0.000_001)
    assert (await why(q, one)).reason == "ready"
    assert payloads(await q.pop("orders", group="g")) == [1]


async def test_retry_says_which_of_how_many_and_why(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    await q.configure("orders", retry_limit=4, retry_delay=2000)
    one = await q.push_id("orders", "p1", 1)
    for error in ("no disk", "no net"):
        [leased] = await q.pop("orders", group="g", group_mode=mode)
        await q.fail(leased, error)
        found = await why(q, one)
        due = at(clock, 2)
        clock.advance(2)
    assert found.reason == "retry"
    assert found.data == {"attempts": 2, "due": due, "error": "no net", "retriesAllowed": 4}
    assert found.text == f'Retry 2 of 4 is due at {due} (in 2 s) after the error "no net".'
    after = await why(q, one)
    assert (after.reason, after.data["attempts"], after.data["error"]) == ("ready", 2, "no net")


async def test_retry_of_what_was_given_back_then_by_its_schedule(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    one = await q.push_id("orders", "p1", 1, backoff_ms=(1000, 2000))
    [leased] = await q.pop("orders", group="g", group_mode=mode)
    await q.retry(leased, delay_ms=3000)
    found = await why(q, one)
    assert (found.reason, found.data["attempts"], found.data["due"]) == ("retry", 0, at(clock, 3))
    clock.advance(3)
    [leased] = await q.pop("orders", group="g")
    await q.fail(leased)
    assert (await why(q, one)).text == f'Retry 1 of 2 is due at {at(clock, 1)} (in 1 s) after the error "boom".'


# Stopped or bounded ----------------------------------------------------------------------------------------


async def test_paused_queue_group_and_server(q: Driver, mode: GroupMode) -> None:
    await q.pop("orders", group="g", group_mode=mode)
    one = await q.push_id("orders", "p1", 1)
    await q.engine.pause("orders", "g", True)
    assert (await why(q, one)).reason == "group_paused"
    await q.engine.pause("orders", None, True)
    assert (await why(q, one)).reason == "queue_paused"
    assert (await why(q, one, here=Circumstances(pop_maintenance=True))).reason == "pop_maintenance"
    await q.engine.pause("orders", None, False)
    await q.engine.pause("orders", "g", False)
    assert (await why(q, one)).reason == "ready"


async def test_max_in_flight_of_the_queue(q: Driver, mode: GroupMode) -> None:
    await q.configure("orders", max_in_flight=2)
    await q.push("orders", "p1", 1, 2)
    leased = await q.pop("orders", group="g", group_mode=mode, batch=2)
    other = await q.push_id("orders", "p2", 3)
    found = await why(q, other)
    assert (found.reason, found.data) == ("max_in_flight", {"scope": "queue", "limit": 2, "inFlight": 2})
    await q.ack(leased[0])
    assert (await why(q, other)).reason == "ready"


async def test_max_in_flight_of_a_group(q: Driver, mode: GroupMode) -> None:
    await q.push("orders", "p1", 1)
    other = await q.push_id("orders", "p2", 2)
    for group in ("g", "h"):
        await q.pop("orders", "p1", group=group, group_mode=mode)
    await q.engine.limit_group("orders", "g", Limits(max_in_flight=1))
    found = await why(q, other)
    assert (found.reason, found.data) == ("max_in_flight", {"scope": "group", "limit": 1, "inFlight": 1})
    assert (await why(q, other, group="h")).reason == "ready"


async def test_rate_limited_until_the_next_one_may_be_delivered(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    await q.configure("orders", rate_limit=0.5, rate_burst=1)
    await q.push("orders", "p1", 1)
    second = await q.push_id("orders", "p2", 2)
    await q.pop("orders", "p1", group="g", group_mode=mode)
    found = await why(q, second)
    assert (found.reason, found.data) == ("rate_limited", {"scope": "queue", "limit": 0.5, "until": at(clock, 2)})
    clock.advance(2)
    assert (await why(q, second)).reason == "ready"


# Done, one way or another ----------------------------------------------------------------------------------


async def test_done_by_a_settlement_at_delivery_or_by_a_seek(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    one = await q.push_id("orders", "p1", 1)
    [leased] = await q.pop("orders", group="g", group_mode=mode)
    clock.advance(3)
    await q.ack(leased)
    found = await why(q, one)
    assert (found.reason, found.data) == ("done", {"settledAtLatest": at(clock, 0), "certain": True})
    two = await q.push_id("orders", "p1", 2)
    await q.pop("orders", group="g", auto_ack=True)
    assert (await why(q, two)).reason == "done"
    three = await q.push_id("orders", "p2", 3)
    await q.seek("orders", group="g", to_end=True)
    found = await why(q, three)
    assert (found.reason, found.data) == ("done", {"moved": True})


async def test_dead_lettered_with_its_error(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    await q.configure("orders", retry_limit=1)
    one = await q.push_id("orders", "p1", 1, transaction_id="key")
    before = await message_of(q, one)
    for _ in range(2):
        [leased] = await q.pop("orders", group="g", group_mode=mode)
        await q.fail(leased, "no disk")
    [letter] = await q.dead_letters("orders")
    expected = {"attempts": 2, "error": "no disk", "failedAt": at(clock, 0), "deadLetterId": letter.id}
    for gone in (False, True):
        found = await why(q, one)
        assert (found.reason, found.data) == ("dead_lettered", expected)
        assert found.text == f'Dead-lettered at {at(clock, 0)} after 2 attempts: "no disk".'
        after = await message_of(q, one)
        assert (after.stored, after.transaction_id, after.created_at) == (not gone, "key", before.created_at)
        await q.engine.delete_messages([one])
    await q.pop("orders", group="other")
    assert await why_all(q, one) == {"g": "dead_lettered", "other": "removed"}


async def test_discarded_where_the_queue_keeps_no_dead_letters(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    await q.configure("orders", retry_limit=0, dead_letter_queue=False)
    one = await q.push_id("orders", "p1", 1)
    [leased] = await q.pop("orders", group="g", group_mode=mode)
    await q.fail(leased, "no disk")
    found = await why(q, one)
    assert (found.reason, found.data) == (
        "discarded",
        {"attempts": 1, "error": "no disk", "failedAt": at(clock, 0)},
    )


async def test_expired_however_late_a_consumer_stepped_over_it(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    await q.pop("orders", group="g", group_mode=mode)
    one = await q.push_id("orders", "p1", 1, ttl_ms=5000)
    second = await q.push_id("orders", "p1", 2)
    alone = await q.push_id("orders", "p2", 3, ttl_ms=5000)
    clock.advance(5)
    expected = ("expired", {"expiredAt": at(clock, 0)})
    found = await why(q, one)
    assert (found.reason, found.data) == expected
    clock.advance(15)
    [leased] = await q.pop("orders", "p1", group="g")
    assert leased.message.id == second
    await q.ack(leased)
    assert not await q.pop("orders", "p2", group="g")
    for each in (one, alone):
        found = await why(q, each)
        assert (found.reason, found.data) == expected
    assert (await why(q, second)).reason == "done"


async def test_expired_by_the_queues_time_to_live(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    await q.configure("orders", ttl=5)
    await q.pop("orders", group="g", group_mode=mode)
    one = await q.push_id("orders", "p1", 1)
    assert (await message_of(q, one)).expires_at == clock.now() + 5 * SECOND
    clock.advance(5)
    assert (await why(q, one)).reason == "expired"


async def test_removed_when_it_is_not_stored_any_more(q: Driver, mode: GroupMode) -> None:
    await q.pop("orders", group="g", group_mode=mode)
    one = await q.push_id("orders", "p1", 1)
    await q.engine.delete_messages([one])
    assert (await why(q, one)).reason == "removed"
    second = await q.push_id("orders", "p1", 2)
    await q.engine.purge("orders")
    assert (await why(q, second)).reason == "removed"


# Not for it ------------------------------------------------------------------------------------------------


async def test_before_start_of_a_group_that_wants_new_messages(q: Driver, clock: FakeClock, mode: GroupMode) -> None:
    old = await q.push_id("orders", "p1", 1)
    clock.advance(1)
    await q.pop("orders", group="g", group_mode=mode, subscription=NEW)
    clock.advance(1)
    new = await q.push_id("orders", "p1", 2)
    assert (await why(q, old)).reason == "before_start"
    assert (await why(q, new)).reason == "ready"


async def test_other_group_for_all_but_the_one_it_was_requeued_for(q: Driver, mode: GroupMode) -> None:
    await q.push("orders", "p1", 1)
    for group in ("g", "h"):
        [leased] = await q.pop("orders", group=group, group_mode=mode)
    await q.kill(leased)
    [letter] = await q.dead_letters("orders", "h")
    again = await q.requeue(letter)
    assert await why_all(q, again) == {"g": "other_group", "h": "ready"}
    found = await why(q, again)
    assert (found.data, found.text) == (
        {"owner": "h"},
        'Requeued from the dead letters of group "h", for that group only.',
    )


async def test_among_requeued_messages_only_the_earlier_ones_are_ahead(q: Driver) -> None:
    await q.push("orders", "p1", 1, 2)
    for leased in await q.pop("orders", group="g", batch=2):
        await q.kill(leased)
    first, second = await q.dead_letters("orders", "g")
    one = await q.requeue(first)
    await q.push("orders", "p1", 3)
    two = await q.requeue(second)
    assert [(await why(q, each)).data["aheadMessages"] for each in (one, two)] == [0, 1]


async def test_every_group_has_a_reason_of_its_own_and_no_group_where_none_requested(q: Driver) -> None:
    one = await q.push_id("orders", "p1", 1)
    assert await why_all(q, one) == {None: "no_group"}
    assert (await why(q, one, group="g")).reason == "no_group"
    await q.pop("orders", group="holds")
    await q.pop("orders", group="done", auto_ack=True)
    await q.pop("orders", "nowhere", group="asked")
    assert await why_all(q, one) == {"asked": "ready", "done": "done", "holds": "leased"}
    assert (await why(q, one, group="g")).reason == "no_group"


# What it answers -------------------------------------------------------------------------------------------


async def test_a_message_is_described(q: Driver, clock: FakeClock) -> None:
    await q.configure("orders", namespace="shop", task="pay")
    [outcome] = await q.push("orders", "p1", 1, transaction_id="key", priority=3, delay_ms=500, ttl_ms=1500)
    assert outcome.message_id is not None
    found = await message_of(q, outcome.message_id)
    assert (found.id, found.queue, found.partition) == (outcome.message_id, "orders", "p1")
    assert (found.partition_id, found.offset, found.transaction_id) == (outcome.partition_id, 1, "key")
    assert (found.namespace, found.task, found.priority, found.stored) == ("shop", "pay", 3, True)
    assert (found.created_at, found.owner, found.retries_allowed) == (clock.now(), None, 3)
    assert found.deliver_at == clock.now() + 500 * MILLISECOND
    assert found.expires_at == clock.now() + 1500 * MILLISECOND


async def test_what_never_was_is_not_found_and_does_not_disturb_the_others(q: Driver) -> None:
    [outcome] = await q.push("orders", "p1", 1)
    gone = await q.push_id("gone", "p1", 1)
    await q.engine.delete_queues(["gone"])
    one = outcome.message_id or ""
    unknown = [Explain(name) for name in ("no id", NEVER_GIVEN, outcome.partition_id or "", gone)]
    first, *refused, last = await q.engine.explain([Explain(one), *unknown, Explain(one, "g")])
    assert isinstance(first, Facts) and isinstance(last, Facts)
    assert [isinstance(answer, NotFound) and answer.code for answer in refused] == ["message_not_found"] * 4


async def test_a_look_changes_nothing(q: Driver, mode: GroupMode) -> None:
    await q.pop("orders", group="g", group_mode=mode)
    await q.push_messages(*(message("orders", "p1", number, delay_ms=number * 1000) for number in range(3)))
    ids = [one.id for one in await q.engine.messages(MessageFilter(queue="orders"))]
    before = await q.stats("orders")
    for one in ids:
        await why(q, one)
    assert await q.stats("orders") == before
    q.clock.advance(3)
    for one in ids:
        await why(q, one)
    assert await q.drain("orders", group="g") == [0, 1, 2]
