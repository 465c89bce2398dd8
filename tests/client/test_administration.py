"""What an administrator does and sees, against a real server: the server itself, queues, messages, groups, dead letters
and traces. That each verb sends its parameters is in test_api.py; what it refuses to send is in test_wrong_values.py.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import cast

import aiohttp
import msgspec
import pytest

import hark
from hark import __version__
from hark.api.options import QueueOptionsGiven
from hark.api.types.groups import WaitingBrowser, WaitingPop, WaitingStream
from hark.client.admin import Admin
from hark.client.calling import Answer, Caller, CallPolicy
from hark.client.client import Client
from hark.client.queue import DeadLetters, QueueAdmin
from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import Conflict, InvalidInput, NotFound, Unavailable
from hark.model import Limits, QueueOptions
from tests.client.deliveries import Delivery, Wrapper, dead_letter, pop, push, settle
from tests.client.transports import Script, path, until_waiting

HOUR = timedelta(hours=1)


@pytest.fixture
def admin(client: Client) -> Admin:
    return client.admin


@pytest.fixture
def orders(client: Client, queue: str) -> QueueAdmin:
    return client.queue(queue).admin


@pytest.fixture
def letters(client: Client, queue: str) -> DeadLetters:
    return client.dlq(queue)


def just_now(moment: datetime) -> bool:
    return abs(moment - datetime.now(UTC)) < timedelta(minutes=5)


# The server itself ---------------------------------------------------------------------------------------------


async def test_the_server_is_healthy_counted_and_timed(caller: Caller, admin: Admin, queue: str) -> None:
    health = await admin.health()
    assert (health.healthy, health.status, health.version) == (True, "healthy", __version__)
    await push(caller, queue, 1)
    await pop(caller, queue)
    await push(caller, queue, 2)
    seen, numbers = await admin.overview(), await admin.metrics()
    assert min(seen.queues, seen.messages.total, seen.lag.offset.max) >= 1
    assert just_now(seen.timestamp)
    assert numbers.batching["push"].requests >= 1
    assert numbers.store
    assert ("waiting" in numbers.delivery, "watchers" in numbers.watching) == (True, True)


async def test_an_unhealthy_server_is_an_answer_and_requested_once() -> None:
    body = b'{"status": "unhealthy", "error": "the store did not answer", "code": "unhealthy"}'
    script = Script(Answer(503, body))
    health = await Admin(Caller(script)).health()
    assert (health.healthy, health.error, len(script.requests)) == (False, "the store did not answer", 1)


async def test_numbers_of_the_key_value_api_come_as_json_and_as_text(
    caller: Caller, admin: Admin, orders: QueueAdmin, queue: str
) -> None:
    await caller.call("POST", "/keyval/api/queue/enqueue", query={"queue": queue}, body={"value": 1})
    numbers = await admin.key_metrics(queue)
    assert (numbers.queue.pending, numbers.storage.entries >= 0) == (1, True)
    assert numbers.operations.operations["queue_enqueue"].count >= 1
    assert numbers.operations.totals["operations"] >= 1
    assert "keyval_queue_pending 1.0" in (await admin.prometheus(queue)).splitlines()
    assert msgspec.structs.astuple(await orders.work_stats()) == (1, 0, 0, 1)
    inherited = await orders.work_settings()
    assert (inherited.queue, inherited.lock_duration, inherited.inherited) == (queue, 30_000, True)
    own = await orders.set_lock_duration(5000)
    assert (own.lock_duration, own.inherited) == (5000, False)
    assert await orders.work_settings() == own
    assert await orders.set_lock_duration(0) == inherited


async def test_maintenance_is_seen_and_its_refusal_has_a_code(queue: str) -> None:
    engine = SqliteEngine(":memory:", clock=SystemClock())
    async with hark.connect(engine, retry=CallPolicy(attempts=1)) as client:
        await client.admin.set_push_maintenance(True)
        seen = await client.admin.maintenance()
        assert (seen.push, seen.pop) == (True, False)
        with pytest.raises(Unavailable) as caught:
            await client.queue(queue).push(2)
        assert caught.value.code == "maintenance"
        await client.admin.set_push_maintenance(False)
        await client.admin.set_pop_maintenance(True)
        seen = await client.admin.maintenance()
        assert (seen.push, seen.pop) == (False, True)


# Those who wait, and those who hold ----------------------------------------------------------------------------


async def test_those_who_wait_are_listed_each_with_its_kind(caller: Caller, admin: Admin, url: str, queue: str) -> None:
    route = f"{path('pop', 'queue', queue)}?wait=true&timeout=60000&consumerGroup=g&batch=7&consumer=me"
    waiting = asyncio.create_task(caller.call("GET", route, seconds=70))
    await until_waiting(caller.transport, queue)
    page = await admin.consumers(queue=queue)
    [one] = page.items
    assert page.total == 1
    assert isinstance(one, WaitingPop)
    assert (one.queue, one.consumer_group, one.batch, one.consumer) == (queue, "g", 7, "me")
    assert one.deadline - one.waiting_since == timedelta(seconds=60)
    await push(caller, queue, 1)
    assert (await waiting).status == 200
    listen = f"{url}{path('listen', 'queue', queue)}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(listen, params={"consumerGroup": "g", "prefetch": "5"}) as streaming,
        session.get(listen, params={"browse": "true", "from": "head"}) as browsing,
    ):
        assert (streaming.status, browsing.status) == (200, 200)
        stream, browser = (await admin.consumers(queue=queue)).items
    assert isinstance(stream, WaitingStream)
    assert isinstance(browser, WaitingBrowser)
    assert (stream.credit, stream.unsettled, stream.subscriptions[0].consumer_group) == (5, 0, "g")
    assert (browser.queue, browser.start) == (queue, "head")


async def test_leases_say_who_holds_what_and_a_message_is_explained(caller: Caller, admin: Admin, queue: str) -> None:
    await push(caller, queue, 1, 2, 3)
    leased, _ = await pop(caller, queue, batch=2, group="g", consumer="me")
    page = await admin.leases(queue=queue, partition="Default", group="g")
    [lease] = page.items
    assert page.total == 1
    assert (lease.lease_id, lease.consumer, lease.messages, lease.mode) == (leased.lease_id, "me", 2, "ordered")
    assert (lease.partition_id, lease.first_message_id) == (leased.partition_id, leased.id)
    assert lease.since is not None
    assert lease.until - lease.since == timedelta(seconds=300)
    explained = await admin.explain(leased.id)
    [reason] = explained.reasons
    assert (explained.message_id, explained.queue, explained.offset) == (leased.id, queue, 1)
    assert (reason.consumer_group, reason.reason, reason.consumer, reason.until) == ("g", "leased", "me", lease.until)
    assert reason.text.startswith('Leased to "me" since ')
    [summary] = [one for one in await admin.messages(queue=queue) if one.offset == 3]
    [behind] = (await admin.explain(summary.id, group="g")).reasons
    assert behind.ahead is not None
    assert (behind.reason, behind.ahead.message_id, behind.ahead.until) == ("behind", leased.id, reason.until)
    with pytest.raises(NotFound) as refused:
        await admin.explain("01890000-0000-7000-8000-000000000000")
    assert refused.value.code == "message_not_found"


# Queues --------------------------------------------------------------------------------------------------------


async def test_queues_are_listed_and_counted_by_their_labels(
    caller: Caller, admin: Admin, orders: QueueAdmin, queue: str
) -> None:
    await orders.configure(namespace=f"ns-{queue}", task=f"task-{queue}")
    await push(caller, queue, 1, 2)
    await pop(caller, queue, batch=1)
    [found] = await admin.queues(search=queue)
    assert (found.name, found.namespace, found.task) == (queue, f"ns-{queue}", f"task-{queue}")
    assert (found.paused, found.partitions) == (False, 1)
    assert (found.messages.total, found.messages.pending, found.messages.processing) == (2, 1, 1)
    assert await admin.queues(namespace=f"ns-{queue}") == await admin.queues(task=f"task-{queue}") == (found,)
    await QueueAdmin(caller, f"{queue}-2").configure(namespace=f"ns-{queue}", task=f"task-{queue}")
    [space] = [one for one in await admin.namespaces() if one.namespace == f"ns-{queue}"]
    [task] = [one for one in await admin.tasks() if one.task == f"task-{queue}"]
    assert (space.queues, space.messages.total) == (task.queues, task.messages.total) == (2, 2)


async def test_configure_replaces_all_options_and_change_keeps_the_others(orders: QueueAdmin) -> None:
    await orders.configure(retry_limit=9)
    done = await orders.configure(namespace="shop", task="mail", lease_time=12, max_size=5, retry_delay=0)
    assert (done.queue, done.namespace, done.task) == (orders.name, "shop", "mail")
    assert done.options == QueueOptions(lease_time=12, max_size=5)
    changed = await orders.change(max_size=6, retry_multiplier=1.5)
    assert changed.options == QueueOptions(lease_time=12, max_size=6, retry_multiplier=1.5)
    stats = await orders.stats()
    assert (stats.namespace, stats.task, stats.options) == ("shop", "mail", changed.options)
    await orders.set_limits(rate_limit=2.5, rate_burst=10)
    assert await orders.set_limits(max_in_flight=3) == Limits(max_in_flight=3, rate_limit=2.5, rate_burst=10)
    assert await orders.limits() == Limits(max_in_flight=3, rate_limit=2.5, rate_burst=10)
    assert await orders.set_limits(rate_limit=0) == Limits(max_in_flight=3)
    assert (await orders.stats()).options.lease_time == 12
    with pytest.raises(InvalidInput, match=r"options\.leaseTime: expected an integer from 1"):
        await orders.configure(lease_time=0)


async def test_a_configured_queue_has_growing_delays_unless_it_names_the_first(orders: QueueAdmin) -> None:
    growing = QueueOptions(retry_delay=1000, retry_multiplier=2)
    for named in ({"retry_limit": 9}, {"retry_multiplier": 3}, {"retry_max_delay": 5}):
        expected = msgspec.structs.replace(growing, **named)
        assert (await orders.configure(**cast(QueueOptionsGiven, named))).options == expected
    for named in ({"retry_delay": 7}, {"retry_delay": 0}):
        expected = msgspec.structs.replace(QueueOptions(), **named)
        assert (await orders.configure(**cast(QueueOptionsGiven, named))).options == expected
    assert (await orders.change(lease_time=9)).options == QueueOptions(lease_time=9, retry_delay=0)


async def test_stats_and_depth_count_messages_and_partitions(caller: Caller, orders: QueueAdmin) -> None:
    await push(caller, orders.name, 1, 2, 3)
    await pop(caller, orders.name, "slow", batch=1)
    for one in await pop(caller, orders.name, "fast", batch=2):
        await settle(caller, one)
    fast, slowest = await orders.depth("fast"), await orders.depth()
    assert (fast.group, fast.pending, fast.partitions_pending) == ("fast", 1, 1)
    assert [(one.partition, one.pending) for one in fast.partitions] == [("Default", 1)]
    assert (slowest.group, slowest.pending) == (None, 2)
    other = QueueAdmin(caller, f"{orders.name}-2")
    await push(caller, other.name, 1, 2, 3)
    await push(caller, other.name, 4, partition="other")
    [first] = await pop(caller, other.name, batch=1)
    await settle(caller, first)
    stats = await other.stats()
    assert (stats.name, stats.paused, stats.partition_count) == (other.name, False, 2)
    assert (stats.totals.total, stats.totals.pending, stats.totals.completed) == (4, 3, 1)
    assert just_now(stats.created_at)
    for part in stats.partitions:
        assert part.oldest_message is not None and part.newest_message is not None
        assert part.oldest_message <= part.newest_message
    assert [part.name for part in await other.partitions(search="oth")] == ["other"]
    assert len(await other.partitions(limit=1)) == len(await other.partitions(limit=2, offset=1)) == 1


async def test_a_queue_is_paused_resumed_purged_and_deleted(caller: Caller, orders: QueueAdmin) -> None:
    await push(caller, orders.name, 1, 2, 3)
    await orders.pause()
    assert (await orders.stats()).paused
    assert await pop(caller, orders.name) == []
    await orders.resume()
    assert len(await pop(caller, orders.name, batch=1)) == 1
    assert await orders.purge() == 3
    assert (await orders.delete(), await orders.delete()) == (True, False)
    for verb in (orders.stats, orders.depth, orders.pause, orders.resume, orders.purge):
        with pytest.raises(NotFound) as caught:
            await verb()
        assert caught.value.code == "queue_not_found"


# Messages ------------------------------------------------------------------------------------------------------


async def test_messages_are_listed_newest_first_and_shown_with_their_payload_and_groups(
    caller: Caller, admin: Admin, queue: str
) -> None:
    pushed = (await push(caller, queue, {"order": 17}, 2, 3))[0]
    first, _ = await pop(caller, queue, batch=2)
    await settle(caller, first)
    found = await admin.messages(queue=queue)
    assert [(one.offset, one.status) for one in found] == [(3, "pending"), (2, "processing"), (1, "completed")]
    assert found[1].lease_expires_at is not None
    assert [one.offset for one in await admin.messages(queue=queue, status="processing")] == [2]
    assert await admin.messages(queue=queue, since=datetime.now(UTC) + HOUR) == ()
    assert await admin.messages(queue=queue, until=datetime.now(UTC) - HOUR) == ()
    [message] = await pop(caller, queue, "billing", batch=1)
    await settle(caller, message, "failed", "card refused")
    shown = await admin.message(pushed.partition_id, pushed.transaction_id)
    assert (shown.id, shown.queue, shown.data, shown.is_encrypted) == (pushed.id, queue, {"order": 17}, False)
    assert shown.decode(dict[str, int]) == {"order": 17}
    [group] = [one for one in shown.groups if one.name == "billing"]
    assert (group.consumed, group.attempts, group.error) == (False, 1, "card refused")
    assert await admin.message(pushed.partition_id, pushed.id) == shown
    with pytest.raises(NotFound) as caught:
        await admin.message(pushed.partition_id, "nobody")
    assert caught.value.code == "message_not_found"


async def test_messages_are_deleted_and_cancelled_until_they_are_leased_or_done(
    caller: Caller, admin: Admin, queue: str
) -> None:
    pushed, other, third = await push(caller, queue, 1, 2, 3)
    assert [await admin.delete_message(pushed.id) for _ in range(2)] == [True, False]
    again = [await admin.delete_message(other.transaction_id, other.partition_id) for _ in range(2)]
    assert again == [True, False]
    await admin.cancel(third.id)
    assert await pop(caller, queue) == []
    with pytest.raises(NotFound) as gone:
        await admin.cancel(third.id)
    await push(caller, queue, 4)
    [message] = await pop(caller, queue)
    with pytest.raises(Conflict) as leased:
        await admin.cancel(message.id)
    await settle(caller, message)
    with pytest.raises(Conflict) as settled:
        await admin.cancel(message.id)
    codes = (gone.value.code, leased.value.code, settled.value.code)
    assert codes == ("message_not_found", "message_leased", "message_settled")


# Groups --------------------------------------------------------------------------------------------------------


async def test_a_group_shows_how_far_it_got_and_where_it_lags(caller: Caller, client: Client, queue: str) -> None:
    groups, group = client.groups, f"group-of-{queue}"
    assert await groups.get(group) == {}
    await push(caller, queue, 1, 2)
    [first] = await pop(caller, queue, group, batch=1)
    await settle(caller, first)
    [position] = (await groups.get(group))[queue]
    assert (position.partition, position.total_consumed, position.offset_lag, position.lease_active) == (
        "Default",
        1,
        1,
        False,
    )
    assert position.last_consumed_at is not None
    [behind] = [one for one in await groups.lagging(min_lag_seconds=0) if one.consumer_group == group]
    assert (behind.queue_name, behind.offset_lag, behind.worker_id) == (queue, 1, None)
    assert behind.oldest_unconsumed_at is not None
    assert [one for one in await groups.lagging() if one.consumer_group == group] == []
    await pop(caller, queue, group)
    await pop(caller, queue, "other", batch=1)
    assert {one.name for one in await groups.list(queue)} == {group, "other"}
    [mine] = [one for one in await groups.list() if one.name == group]
    assert (mine.queue, mine.group_mode, mine.state, mine.paused) == (queue, "ordered", "Stable", False)
    assert (mine.total_lag, mine.in_flight, mine.members, mine.limits) == (0, 1, 1, Limits())
    assert just_now(mine.subscription_created_at)


async def test_a_group_is_moved_and_deleted_in_one_queue_or_in_all(caller: Caller, client: Client, queue: str) -> None:
    groups, group = client.groups, f"group-of-{queue}"
    with pytest.raises(NotFound) as caught:
        await groups.seek(group, queue, to_end=True)
    assert caught.value.code == "queue_not_found"
    await push(caller, queue, "a", "b", "c")
    assert (await groups.seek(group, queue, timestamp=datetime.now(UTC) - HOUR)).partitions == 1
    assert [one.data for one in await pop(caller, queue, group)] == ["a", "b", "c"]
    assert (await groups.seek(group, queue, to_end=True)).partitions == 1
    assert await pop(caller, queue, group) == []
    in_one = await groups.seek(group, queue, offset=2, partition="Default")
    assert (in_one.partitions, in_one.next_offset) == (1, 2)
    assert [one.data for one in await pop(caller, queue, group)] == ["b", "c"]
    with pytest.raises(NotFound) as caught:
        await groups.seek(group, queue, to_end=True, partition="nowhere")
    assert caught.value.code == "partition_not_found"
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    moved = await groups.set_subscription(group, start)
    assert (moved.new_timestamp, moved.rows_updated) == (start, 1)
    [mine] = [one for one in await groups.list(queue) if one.name == group]
    assert mine.subscription_timestamp == start
    deleted = await groups.delete(group, queue)
    assert (deleted.deleted_partitions, deleted.metadata_deleted) == (1, True)
    await push(caller, f"{queue}-2", "a", "b", "c")
    for name in (queue, f"{queue}-2"):
        again = await pop(caller, name, group)
        assert [one.data for one in again] == ["a", "b", "c"]
        await settle(caller, again[0])
    everywhere = await groups.delete(group, delete_metadata=False)
    assert (everywhere.deleted_partitions, everywhere.metadata_deleted) == (2, False)


async def test_a_group_is_paused_limited_and_purged_alone(caller: Caller, client: Client, queue: str) -> None:
    groups = client.groups
    for verb in (groups.pause, groups.resume, groups.purge, groups.limits, groups.set_limits):
        with pytest.raises(NotFound) as caught:
            await verb("g", queue)
        assert caught.value.code == "group_not_found"
    await push(caller, queue, "a", "b")
    await groups.seek("g", queue, offset=1)
    await groups.pause("g", queue)
    assert await pop(caller, queue, "g") == []
    assert len(await pop(caller, queue, "other", batch=1)) == 1
    await groups.resume("g", queue)
    assert len(await pop(caller, queue, "g", batch=1)) == 1
    assert await groups.purge("g", queue) == 2
    assert await pop(caller, queue, "g") == []
    assert len(await pop(caller, queue, "third")) == 2
    assert await groups.limits("g", queue) == Limits()
    await groups.set_limits("g", queue, rate_limit=0.5, rate_burst=5)
    assert await groups.set_limits("g", queue, max_in_flight=1) == Limits(max_in_flight=1)
    assert await groups.limits("g", queue) == Limits(max_in_flight=1)


# Dead letters --------------------------------------------------------------------------------------------------


class Order(msgspec.Struct):
    """A payload with a shape."""

    number: int


async def dead_letter_at_once(caller: Caller, queue: str, number: int) -> None:
    """Make dead letters that died at the same moment."""
    await push(caller, queue, *range(number))
    items = [
        {"transactionId": one.transaction_id, "partitionId": one.partition_id, "leaseId": one.lease_id, "status": "dlq"}
        for one in await pop(caller, queue, batch=number)
    ]
    await caller.call("POST", path("ack", "batch"), body={"acknowledgments": items})


async def dead_letter_twice(caller: Caller, queue: str, data: object) -> Delivery:
    """Make a dead letter in the group `a` and in the group `b`."""
    [message] = await dead_letter(caller, queue, data, group="a")
    [again] = await pop(caller, queue, "b")
    await settle(caller, again, "dlq")
    return message


async def test_a_dead_letter_shows_what_it_was_and_why_it_died(
    caller: Caller, letters: DeadLetters, queue: str
) -> None:
    [message] = await dead_letter(caller, queue, {"number": 17}, group="billing")
    page = await letters.list()
    [letter] = page.items
    assert page.total == 1
    ids = (message.id, message.transaction_id, message.partition_id)
    assert (letter.id, letter.transaction_id, letter.partition_id) == ids
    assert (letter.queue, letter.partition, letter.consumer_group) == (queue, "Default", "billing")
    assert (letter.error, letter.attempts) == ("no good: {'number': 17}", 1)
    assert letter.data == {"number": 17}
    assert letter.decode(Order) == Order(17)
    assert letter.created_at <= letter.failed_at <= datetime.now(UTC) + timedelta(seconds=1)
    with pytest.raises(InvalidInput, match=f"the payload of dead letter {letter.dead_letter_id} does not have"):
        letter.decode(list[int])
    assert await letters.get(message.id) == await letters.get(letter.dead_letter_id) == letter
    with pytest.raises(NotFound) as caught:
        await letters.get(message.partition_id)
    assert caught.value.code == "dead_letter_not_found"


async def test_a_page_is_newest_first_and_has_what_matches(caller: Caller, letters: DeadLetters, queue: str) -> None:
    await dead_letter(caller, queue, "red", "green", "blue")
    page = await letters.list(limit=2)
    assert ([one.data for one in page.items], page.total) == (["blue", "green"], 3)
    assert [one.data for one in (await letters.list(limit=2, offset=2)).items] == ["red"]
    now = datetime.now(UTC)
    assert (await letters.list(since=now - HOUR, until=now + HOUR)).total == 3
    assert (await letters.list(since=now + HOUR)).total == (await letters.list(partition="other")).total == 0
    assert queue in {one.queue for one in (await DeadLetters(caller).list()).items}
    assert [one.data for one in (await letters.list(search="NO GOOD: GRE")).items] == ["green"]
    assert await letters.requeue_all(search="green") == 1
    assert await letters.purge(search="blue") == 1
    assert await letters.purge(partition="other") == 0
    assert [one.data for one in (await letters.list()).items] == ["red"]
    assert await letters.purge() == 1


@pytest.mark.parametrize("moment", ["one", "many"])
async def test_iteration_finds_each_once_also_when_letters_are_removed_on_the_way(
    caller: Caller, letters: DeadLetters, queue: str, moment: str
) -> None:
    await (dead_letter_at_once(caller, queue, 23) if moment == "one" else dead_letter(caller, queue, *range(23)))
    whole = [letter.data async for letter in letters.all(page_size=5)]
    assert sorted(whole) == list(range(23))
    if moment == "many":
        assert whole == list(reversed(range(23)))
    found = []
    async for letter in letters.all(page_size=5):
        found.append(letter.data)
        if letter.data != 7:
            assert await letters.delete(letter.dead_letter_id)
    assert sorted(found) == list(range(23))
    assert (await letters.list()).total == 1


async def test_a_message_that_died_in_two_groups_is_ambiguous_without_a_group(
    caller: Caller, letters: DeadLetters, queue: str
) -> None:
    message = await dead_letter_twice(caller, queue, 1)
    for verb in (letters.get, letters.requeue, letters.delete):
        with pytest.raises(Conflict) as caught:
            await verb(message.id)
        assert caught.value.code == "ambiguous"
    assert (await letters.get(message.id, group="b")).consumer_group == "b"
    assert (await DeadLetters(caller, queue, "a").get(message.id)).consumer_group == "a"
    assert await DeadLetters(caller, queue, "a").requeue_all() == 1
    assert [one.consumer_group for one in (await letters.list()).items] == ["b"]
    letter = await letters.get(message.id)
    requeued = await letters.requeue(message.id, group="b")
    assert (requeued.dead_letter_id, requeued.queue, requeued.partition) == (letter.dead_letter_id, queue, "Default")
    [again] = await pop(caller, queue, "b")
    assert (requeued.consumer_group, again.id, again.data) == ("b", requeued.message_id, 1)
    with pytest.raises(NotFound):
        await letters.requeue(letter.dead_letter_id)
    await settle(caller, again, "dlq")
    assert [await letters.delete(again.id) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("moment", ["one", "many"])
async def test_requeue_all_keeps_the_order_in_which_they_failed(
    caller: Caller, letters: DeadLetters, queue: str, moment: str
) -> None:
    await (dead_letter_at_once(caller, queue, 5) if moment == "one" else dead_letter(caller, queue, *range(5)))
    assert await letters.requeue_all() == 5
    assert (await letters.list()).total == 0
    again: list[Delivery] = []
    while taken := await pop(caller, queue):
        again += taken
        for one in taken:
            await settle(caller, one)
    assert [one.data for one in again] == list(range(5))


# Traces --------------------------------------------------------------------------------------------------------


async def test_events_are_found_with_their_message_and_by_their_names(
    caller: Caller, client: Client, queue: str
) -> None:
    traces = client.traces
    await push(caller, queue, {"a": 1}, {"a": 2})
    message, other = await pop(caller, queue, "billing")
    first = await traces.add(message, {"step": 1}, event="begin", names=[queue, f"{queue}-b"])
    await traces.add(Wrapper(message), [2], names=queue, group="other")
    begin, second = await traces.of(partition_id=message.partition_id, transaction_id=message.transaction_id)
    assert (begin.id, begin.event_type, begin.data, begin.consumer_group) == (first, "begin", {"step": 1}, "billing")
    assert sorted(begin.trace_names) == [queue, f"{queue}-b"]
    assert (second.event_type, second.decode(list[int]), second.consumer_group) == ("info", [2], "other")
    assert just_now(begin.created_at)
    assert await traces.of(Wrapper(message), limit=1) == await traces.of(message, limit=1) == (begin,)
    await traces.add(other, "x", names=queue)
    page = await traces.by_name(queue)
    assert page.total == 3
    assert [one.message_data for one in page.items] == [{"a": 2}, {"a": 1}, {"a": 1}]
    assert {(one.queue_name, one.partition_name) for one in page.items} == {(queue, "Default")}
    names = await traces.names(limit=1000)
    [mine] = [one for one in names.items if one.trace_name == queue]
    assert (mine.trace_count, mine.message_count, names.total >= 1) == (3, 2, True)
    with pytest.raises(NotFound) as caught:
        await traces.add(data=1, partition_id=message.partition_id, transaction_id="nobody")
    assert caught.value.code == "message_not_found"
