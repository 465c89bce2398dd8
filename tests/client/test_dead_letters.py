"""Dead letters, against a real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from hark.client.administration.dead_letters import DeadLetters
from hark.client.calling import Caller, path
from hark.client.transport.api import ConnectionFailed
from hark.errors import Conflict, InvalidInput, NotFound
from tests.client.deliveries import Delivery, bury, pop, push, settle
from tests.client.lossy import LossyTransport, first_of, no_sleep


class Order(msgspec.Struct):
    """A payload with a shape."""

    number: int


async def bury_at_once(caller: Caller, queue: str, number: int) -> None:
    """Make dead letters that died at the same moment."""
    await push(caller, queue, *range(number))
    deliveries = await pop(caller, queue, batch=number)
    items = [
        {
            "transactionId": one.transaction_id,
            "partitionId": one.partition_id,
            "leaseId": one.lease_id,
            "status": "dlq",
        }
        for one in deliveries
    ]
    await caller.call("POST", path("ack", "batch"), body={"acknowledgments": items})


async def test_a_dead_letter_tells_what_it_was_and_why_it_died(caller: Caller, queue: str) -> None:
    [message] = await bury(caller, queue, {"number": 17}, group="billing")
    page = await DeadLetters(caller, queue).list()
    [letter] = page.items
    assert page.total == 1
    assert (letter.id, letter.transaction_id, letter.partition_id) == (
        message.id,
        message.transaction_id,
        message.partition_id,
    )
    assert (letter.queue, letter.partition, letter.consumer_group) == (queue, "Default", "billing")
    assert (letter.error, letter.attempts) == ("no good: {'number': 17}", 1)
    assert letter.data == {"number": 17}
    assert letter.decode(Order) == Order(17)
    assert letter.created_at <= letter.failed_at <= datetime.now(UTC) + timedelta(seconds=1)
    with pytest.raises(InvalidInput, match=f"the payload of dead letter {letter.dead_letter_id} is not what"):
        letter.decode(list[int])


async def test_a_page_is_newest_first_and_knows_the_total(caller: Caller, queue: str) -> None:
    await bury(caller, queue, 1, 2, 3)
    letters = DeadLetters(caller, queue)
    page = await letters.list(limit=2)
    assert ([one.data for one in page.items], page.total) == ([3, 2], 3)
    assert [one.data for one in (await letters.list(limit=2, offset=2)).items] == [1]


async def test_filters_of_queue_group_partition_and_time(caller: Caller, queue: str) -> None:
    await bury(caller, queue, "x", group="a")
    [again] = await pop(caller, queue, "b")
    await settle(caller, again, "dlq")
    hour = timedelta(hours=1)
    now = datetime.now(UTC)
    assert (await DeadLetters(caller, queue).list()).total == 2
    assert [one.consumer_group for one in (await DeadLetters(caller, queue, "a").list()).items] == ["a"]
    assert (await DeadLetters(caller, queue).list(partition="other")).total == 0
    assert (await DeadLetters(caller, queue).list(since=now - hour, until=now + hour)).total == 2
    assert (await DeadLetters(caller, queue).list(since=now + hour)).total == 0
    assert queue in {one.queue for one in (await DeadLetters(caller).list()).items}
    with pytest.raises(InvalidInput, match="since: expected a datetime with a time zone"):
        await DeadLetters(caller, queue).list(since=datetime(2026, 1, 1))  # noqa: DTZ001


async def test_iteration_goes_through_all_pages(caller: Caller, queue: str) -> None:
    await bury(caller, queue, *range(25))
    assert [letter.data async for letter in DeadLetters(caller, queue)] == list(reversed(range(25)))
    assert [letter.data async for letter in DeadLetters(caller, queue).all(page_size=4)] == list(reversed(range(25)))


async def test_iteration_finds_each_of_those_that_died_at_the_same_moment_once(caller: Caller, queue: str) -> None:
    await bury_at_once(caller, queue, 23)
    found = [letter.data async for letter in DeadLetters(caller, queue).all(page_size=5)]
    assert sorted(found) == list(range(23))


@pytest.mark.parametrize("moment", ["one", "many"])
async def test_letters_may_be_removed_on_the_way(caller: Caller, queue: str, moment: str) -> None:
    await (bury_at_once(caller, queue, 23) if moment == "one" else bury(caller, queue, *range(23)))
    letters = DeadLetters(caller, queue)
    found = []
    async for letter in letters.all(page_size=5):
        found.append(letter.data)
        if letter.data != 7:
            assert await letters.delete(letter.dead_letter_id)
    assert sorted(found) == list(range(23))
    assert (await letters.list()).total == 1


async def test_get_finds_by_either_id(caller: Caller, queue: str) -> None:
    [message] = await bury(caller, queue, 1)
    letters = DeadLetters(caller, queue)
    letter = await letters.get(message.id)
    assert await letters.get(letter.dead_letter_id) == letter
    with pytest.raises(NotFound) as caught:
        await letters.get(message.partition_id)
    assert caught.value.code == "dead_letter_not_found"


async def test_a_message_that_died_in_two_groups_is_ambiguous_without_a_group(caller: Caller, queue: str) -> None:
    [message] = await bury(caller, queue, 1, group="a")
    [again] = await pop(caller, queue, "b")
    await settle(caller, again, "dlq")
    letters = DeadLetters(caller, queue)
    for verb in (letters.get, letters.requeue, letters.delete):
        with pytest.raises(Conflict) as caught:
            await verb(message.id)
        assert caught.value.code == "ambiguous"
    assert (await letters.get(message.id, group="b")).consumer_group == "b"
    assert (await DeadLetters(caller, queue, "a").get(message.id)).consumer_group == "a"
    assert (await letters.requeue(message.id, group="a")).consumer_group == "a"


async def test_requeue_delivers_it_again_to_its_group(caller: Caller, queue: str) -> None:
    [message] = await bury(caller, queue, "x")
    letters = DeadLetters(caller, queue)
    letter = await letters.get(message.id)
    requeued = await letters.requeue(letter.dead_letter_id)
    assert (requeued.dead_letter_id, requeued.queue, requeued.partition) == (letter.dead_letter_id, queue, "Default")
    [again] = await pop(caller, queue)
    assert (again.id, again.data) == (requeued.message_id, "x")
    with pytest.raises(NotFound):
        await letters.requeue(letter.dead_letter_id)


@pytest.mark.parametrize("moment", ["one", "many"])
async def test_requeue_all_keeps_the_order_in_which_they_failed(caller: Caller, queue: str, moment: str) -> None:
    await (bury_at_once(caller, queue, 5) if moment == "one" else bury(caller, queue, *range(5)))
    letters = DeadLetters(caller, queue)
    assert await letters.requeue_all() == 5
    assert (await letters.list()).total == 0
    again: list[Delivery] = []
    while taken := await pop(caller, queue):
        again += taken
        for one in taken:
            await settle(caller, one)
    assert [one.data for one in again] == list(range(5))


async def test_requeue_all_takes_only_those_that_match(caller: Caller, queue: str) -> None:
    await bury(caller, queue, 1, group="a")
    [again] = await pop(caller, queue, "b")
    await settle(caller, again, "dlq")
    assert await DeadLetters(caller, queue, "a").requeue_all() == 1
    assert [one.consumer_group for one in (await DeadLetters(caller, queue).list()).items] == ["b"]


async def test_letters_are_found_requeued_and_purged_by_what_their_error_says(caller: Caller, queue: str) -> None:
    await bury(caller, queue, "red", "green", "blue")
    letters = DeadLetters(caller, queue)
    assert [one.data for one in (await letters.list(search="NO GOOD: GRE")).items] == ["green"]
    assert await letters.requeue_all(search="green") == 1
    assert await letters.purge(search="blue") == 1
    assert [one.data for one in (await letters.list()).items] == ["red"]


async def test_a_lost_reply_to_a_requeue_is_told_and_not_mistaken_for_absence(caller: Caller, queue: str) -> None:
    [message] = await bury(caller, queue, 1)
    lossy = LossyTransport(caller.transport, lose=first_of(path("dlq", message.id, "requeue")))
    with pytest.raises(ConnectionFailed):
        await DeadLetters(Caller(lossy, sleep=no_sleep), queue).requeue(message.id)
    assert len(await pop(caller, queue)) == 1


async def test_delete_says_whether_it_was_there(caller: Caller, queue: str) -> None:
    [message] = await bury(caller, queue, 1)
    letters = DeadLetters(caller, queue)
    assert await letters.delete(message.id) is True
    assert await letters.delete(message.id) is False


async def test_purge_removes_what_matches_and_counts_it(caller: Caller, queue: str) -> None:
    await bury(caller, queue, 1, 2)
    letters = DeadLetters(caller, queue)
    assert await letters.purge(partition="other") == 0
    assert await letters.purge() == 2
    assert (await letters.list()).total == 0


async def test_a_purge_without_a_queue_is_refused(caller: Caller) -> None:
    with pytest.raises(InvalidInput, match="queue: is required to purge dead letters"):
        await DeadLetters(caller).purge()
