"""A queue as a whole, against a real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

import msgspec
import pytest

from hark.client.administration.queue_admin import QueueAdmin, QueueOptionsGiven
from hark.client.calling import Caller
from hark.errors import InvalidInput, NotFound
from hark.model import Limits, QueueOptions
from tests.client.deliveries import pop, push, settle


@pytest.fixture
def admin(caller: Caller, queue: str) -> QueueAdmin:
    return QueueAdmin(caller, queue)


def test_every_option_of_a_queue_can_be_given() -> None:
    assert set(QueueOptionsGiven.__annotations__) == set(QueueOptions.__struct_fields__)


async def test_configure_sets_what_is_given_and_defaults_for_the_rest(admin: QueueAdmin) -> None:
    await admin.configure(retry_limit=9)
    done = await admin.configure(namespace="shop", task="mail", lease_time=12, retry_multiplier=1.5, drop_settled=True)
    assert (done.queue, done.namespace, done.task) == (admin.name, "shop", "mail")
    assert done.options == QueueOptions(lease_time=12, retry_multiplier=1.5, drop_settled=True)
    stats = await admin.stats()
    assert (stats.namespace, stats.task, stats.options) == ("shop", "mail", done.options)


async def test_an_unknown_option_is_refused_before_anything_is_sent(admin: QueueAdmin) -> None:
    with pytest.raises(InvalidInput, match="lease_tim: no such queue option; there are lease_time"):
        await admin.configure(**cast(QueueOptionsGiven, {"lease_tim": 3}))
    with pytest.raises(NotFound, match="Queue not found"):
        await admin.stats()


async def test_a_wrong_value_is_refused_by_the_server_and_named(admin: QueueAdmin) -> None:
    with pytest.raises(InvalidInput, match=r"options\.leaseTime: expected an integer from 1"):
        await admin.configure(lease_time=0)


async def test_change_keeps_all_other_options_and_the_labels(admin: QueueAdmin) -> None:
    await admin.configure(namespace="shop", task="mail", lease_time=12, max_size=5)
    changed = await admin.change(max_size=6)
    assert changed.options == QueueOptions(lease_time=12, max_size=6)
    assert (changed.namespace, changed.task) == ("shop", "mail")


async def test_limits_are_changed_one_by_one(admin: QueueAdmin) -> None:
    await admin.configure(lease_time=12)
    await admin.set_limits(rate_limit=2.5, rate_burst=10)
    assert await admin.set_limits(max_in_flight=3) == Limits(max_in_flight=3, rate_limit=2.5, rate_burst=10)
    assert await admin.limits() == Limits(max_in_flight=3, rate_limit=2.5, rate_burst=10)
    assert await admin.set_limits(rate_limit=0) == Limits(max_in_flight=3)
    assert (await admin.stats()).options.lease_time == 12


async def test_stats_count_messages_and_know_their_times(caller: Caller, admin: QueueAdmin) -> None:
    await push(caller, admin.name, 1, 2, 3)
    await push(caller, admin.name, 4, partition="other")
    [first] = await pop(caller, admin.name, batch=1)
    await settle(caller, first)
    stats = await admin.stats()
    assert (stats.name, stats.paused, stats.partition_count) == (admin.name, False, 2)
    assert (stats.totals.total, stats.totals.pending, stats.totals.completed) == (4, 3, 1)
    assert abs(stats.created_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert all(
        one.oldest_message and one.oldest_message <= one.newest_message
        for one in stats.partitions
        if one.newest_message
    )


async def test_partitions_are_found_by_a_part_of_their_name(caller: Caller, admin: QueueAdmin) -> None:
    for name in ("customer-1", "customer-2", "shop-1"):
        await push(caller, admin.name, 1, partition=name)
    assert {one.name for one in await admin.partitions(search="customer")} == {"customer-1", "customer-2"}
    assert len(await admin.partitions(limit=2)) == 2
    assert len(await admin.partitions(limit=2, offset=2)) == 1


async def test_depth_is_that_of_the_group_or_of_the_slowest(caller: Caller, admin: QueueAdmin) -> None:
    await push(caller, admin.name, 1, 2, 3)
    await pop(caller, admin.name, "slow", batch=1)
    for one in await pop(caller, admin.name, "fast", batch=2):
        await settle(caller, one)
    fast, slowest = await admin.depth("fast"), await admin.depth()
    assert (fast.group, fast.pending, fast.partitions_pending) == ("fast", 1, 1)
    assert [(one.partition, one.pending) for one in fast.partitions] == [("Default", 1)]
    assert (slowest.group, slowest.pending) == (None, 3)


async def test_a_paused_queue_gives_nothing_until_it_is_resumed(caller: Caller, admin: QueueAdmin) -> None:
    await push(caller, admin.name, 1)
    await admin.pause()
    assert (await admin.stats()).paused
    assert await pop(caller, admin.name) == []
    await admin.resume()
    assert len(await pop(caller, admin.name)) == 1


async def test_purge_removes_all_messages_and_counts_them(caller: Caller, admin: QueueAdmin) -> None:
    await push(caller, admin.name, 1, 2, 3)
    assert await admin.purge() == 3
    assert await pop(caller, admin.name) == []


async def test_delete_says_whether_the_queue_was_there(caller: Caller, admin: QueueAdmin) -> None:
    await push(caller, admin.name, 1)
    assert await admin.delete() is True
    assert await admin.delete() is False


@pytest.mark.parametrize("verb", ["stats", "depth", "pause", "resume", "purge"])
async def test_a_queue_that_is_not_there_is_not_found(admin: QueueAdmin, verb: str) -> None:
    with pytest.raises(NotFound) as caught:
        await getattr(admin, verb)()
    assert caught.value.code == "queue_not_found"


async def test_the_key_value_api_counts_the_same_messages(caller: Caller, admin: QueueAdmin) -> None:
    await caller.call("POST", "/keyval/api/queue/enqueue", query={"queue": admin.name}, body={"value": 1})
    assert msgspec.structs.astuple(await admin.work_stats()) == (1, 0, 0, 1)


async def test_the_lock_duration_is_the_servers_until_it_is_set(admin: QueueAdmin) -> None:
    inherited = await admin.work_settings()
    assert (inherited.queue, inherited.lock_duration, inherited.inherited) == (admin.name, 30_000, True)
    own = await admin.set_lock_duration(5000)
    assert (own.lock_duration, own.inherited) == (5000, False)
    assert await admin.work_settings() == own
    assert await admin.set_lock_duration(0) == inherited


async def test_a_name_with_a_slash_and_a_space_is_one_queue(caller: Caller, queue: str) -> None:
    admin = QueueAdmin(caller, f"{queue}/a b%?#ü")
    await admin.configure(lease_time=7)
    assert (await admin.stats()).name == admin.name


def test_a_queue_needs_a_name(caller: Caller) -> None:
    with pytest.raises(InvalidInput, match="queue: must not be empty"):
        QueueAdmin(caller, "")
