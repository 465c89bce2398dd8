"""Groups, against a real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hark.client.administration.groups import Groups
from hark.client.calling import Caller
from hark.errors import InvalidInput, NotFound
from hark.model import Limits
from tests.client.deliveries import pop, push, settle


@pytest.fixture
def groups(caller: Caller) -> Groups:
    return Groups(caller)


@pytest.fixture
def group(queue: str) -> str:
    return f"group-of-{queue}"


async def test_list_has_one_entry_per_group_of_a_queue(caller: Caller, groups: Groups, queue: str, group: str) -> None:
    await push(caller, queue, 1, 2)
    await pop(caller, queue, group, batch=1)
    await pop(caller, queue, "other", batch=1)
    assert {one.name for one in await groups.list(queue)} == {group, "other"}
    [mine] = [one for one in await groups.list() if one.name == group]
    assert (mine.queue, mine.group_mode, mine.state, mine.paused) == (queue, "ordered", "Stable", False)
    assert (mine.total_lag, mine.in_flight, mine.members, mine.limits) == (2, 1, 1, Limits())
    assert datetime.now(UTC) - mine.subscription_created_at < timedelta(minutes=5)


async def test_get_says_how_far_a_group_got_in_each_partition(
    caller: Caller, groups: Groups, queue: str, group: str
) -> None:
    await push(caller, queue, 1, 2)
    [first] = await pop(caller, queue, group, batch=1)
    await settle(caller, first)
    [place] = (await groups.get(group))[queue]
    assert (place.partition, place.total_consumed, place.offset_lag, place.lease_active) == ("Default", 1, 1, False)
    assert place.last_consumed_at is not None


async def test_a_group_that_never_came_has_no_places(groups: Groups, group: str) -> None:
    assert await groups.get(group) == {}


async def test_lagging_names_the_places_where_messages_wait(
    caller: Caller, groups: Groups, queue: str, group: str
) -> None:
    await push(caller, queue, 1)
    [held] = await pop(caller, queue, group)
    [place] = [one for one in await groups.lagging(min_lag_seconds=0) if one.consumer_group == group]
    assert (place.queue_name, place.offset_lag, place.worker_id) == (queue, 1, held.lease_id)
    assert place.oldest_unconsumed_at is not None
    assert [one for one in await groups.lagging() if one.consumer_group == group] == []


async def test_seek_to_an_offset_delivers_it_again(caller: Caller, groups: Groups, queue: str, group: str) -> None:
    await push(caller, queue, "a", "b", "c")
    for one in await pop(caller, queue, group):
        await settle(caller, one)
    assert (await groups.seek(group, queue, offset=2)).partitions == 1
    assert [one.data for one in await pop(caller, queue, group)] == ["b", "c"]


async def test_seek_to_the_end_passes_everything(caller: Caller, groups: Groups, queue: str, group: str) -> None:
    await push(caller, queue, "a", "b")
    moved = await groups.seek(group, queue, to_end=True, partition="Default")
    assert (moved.partitions, moved.next_offset) == (1, 3)
    assert await pop(caller, queue, group) == []


async def test_seek_to_a_time_goes_on_after_it(caller: Caller, groups: Groups, queue: str, group: str) -> None:
    await push(caller, queue, "a")
    for one in await pop(caller, queue, group):
        await settle(caller, one)
    await groups.seek(group, queue, timestamp=datetime.now(UTC) - timedelta(hours=1))
    assert [one.data for one in await pop(caller, queue, group)] == ["a"]


async def test_seek_needs_exactly_one_place(groups: Groups, queue: str, group: str) -> None:
    for wish in ({}, {"to_end": True, "offset": 1}):
        with pytest.raises(InvalidInput, match="exactly one of to_end, timestamp, offset"):
            await groups.seek(group, queue, **wish)  # type: ignore[arg-type]  # Wrong on purpose.
    with pytest.raises(InvalidInput, match="timestamp: expected a datetime with a time zone"):
        await groups.seek(group, queue, timestamp=datetime(2026, 1, 1))  # noqa: DTZ001


async def test_seek_in_a_queue_or_partition_that_is_not_there_is_not_found(
    caller: Caller, groups: Groups, queue: str, group: str
) -> None:
    with pytest.raises(NotFound) as caught:
        await groups.seek(group, queue, to_end=True)
    assert caught.value.code == "queue_not_found"
    await push(caller, queue, 1)
    with pytest.raises(NotFound) as caught:
        await groups.seek(group, queue, to_end=True, partition="nowhere")
    assert caught.value.code == "partition_not_found"


async def test_set_subscription_notes_the_new_start(caller: Caller, groups: Groups, queue: str, group: str) -> None:
    await pop(caller, queue, group)
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    moved = await groups.set_subscription(group, start)
    assert (moved.new_timestamp, moved.rows_updated) == (start, 1)
    [mine] = [one for one in await groups.list(queue) if one.name == group]
    assert mine.subscription_timestamp == start


async def test_a_deleted_group_starts_anew(caller: Caller, groups: Groups, queue: str, group: str) -> None:
    await push(caller, queue, "a")
    for one in await pop(caller, queue, group):
        await settle(caller, one)
    deleted = await groups.delete(group, queue)
    assert (deleted.deleted_partitions, deleted.metadata_deleted) == (1, True)
    assert [one.data for one in await pop(caller, queue, group)] == ["a"]


async def test_a_group_may_be_deleted_in_all_queues_and_keep_its_start(
    caller: Caller, groups: Groups, queue: str, group: str
) -> None:
    for name in (queue, f"{queue}-2"):
        await push(caller, name, "a")
        for one in await pop(caller, name, group):
            await settle(caller, one)
    deleted = await groups.delete(group, delete_metadata=False)
    assert (deleted.deleted_partitions, deleted.metadata_deleted) == (2, False)


async def test_a_paused_group_waits_alone(caller: Caller, groups: Groups, queue: str, group: str) -> None:
    await push(caller, queue, "a")
    await groups.seek(group, queue, offset=1)
    await groups.pause(group, queue)
    assert await pop(caller, queue, group) == []
    assert len(await pop(caller, queue, "other")) == 1
    await groups.resume(group, queue)
    assert len(await pop(caller, queue, group)) == 1


async def test_purge_settles_what_the_group_has_open(caller: Caller, groups: Groups, queue: str, group: str) -> None:
    await push(caller, queue, "a", "b")
    await pop(caller, queue, group, batch=1)
    assert await groups.purge(group, queue) == 2
    assert await pop(caller, queue, group) == []
    assert len(await pop(caller, queue, "other")) == 2


async def test_limits_are_replaced_as_a_whole(caller: Caller, groups: Groups, queue: str, group: str) -> None:
    await push(caller, queue, "a", "b")
    await pop(caller, queue, group, batch=1)
    assert await groups.limits(group, queue) == Limits()
    await groups.set_limits(group, queue, rate_limit=0.5, rate_burst=5)
    assert await groups.set_limits(group, queue, max_in_flight=1) == Limits(max_in_flight=1)
    assert await groups.limits(group, queue) == Limits(max_in_flight=1)


@pytest.mark.parametrize("verb", ["pause", "resume", "purge", "limits", "set_limits"])
async def test_a_group_that_is_not_there_is_not_found(groups: Groups, queue: str, group: str, verb: str) -> None:
    with pytest.raises(NotFound) as caught:
        await getattr(groups, verb)(group, queue)
    assert caught.value.code == "group_not_found"
