"""Traces, against a real server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from hark.client.administration.traces import Traces
from hark.client.calling import Caller
from hark.errors import InvalidInput, NotFound
from tests.client.deliveries import Wrapper, pop, push


@pytest.fixture
def traces(caller: Caller) -> Traces:
    return Traces(caller)


async def test_events_of_a_message_are_found_with_it(caller: Caller, traces: Traces, queue: str) -> None:
    await push(caller, queue, 1)
    [message] = await pop(caller, queue, "billing")
    first = await traces.add(message, {"step": 1}, event="begin", names=[f"{queue}-a", f"{queue}-b"])
    await traces.add(Wrapper(message), [2], names=f"{queue}-a", group="other")
    begin, second = await traces.of(message)
    assert (begin.id, begin.event_type, begin.data, begin.consumer_group) == (first, "begin", {"step": 1}, "billing")
    assert sorted(begin.trace_names) == [f"{queue}-a", f"{queue}-b"]
    assert (second.event_type, second.decode(list[int]), second.consumer_group) == ("info", [2], "other")
    assert datetime.now(UTC) - begin.created_at < timedelta(minutes=5)
    assert await traces.of(Wrapper(message), limit=1) == (begin,)


async def test_a_message_may_be_given_by_its_ids(caller: Caller, traces: Traces, queue: str) -> None:
    [pushed] = await push(caller, queue, 1)
    await traces.add(data="seen", partition_id=pushed.partition_id, transaction_id=pushed.transaction_id)
    [found] = await traces.of(partition_id=pushed.partition_id, transaction_id=pushed.transaction_id)
    assert found.data == "seen"


async def test_events_of_a_name_are_found_over_all_messages(caller: Caller, traces: Traces, queue: str) -> None:
    await push(caller, queue, {"a": 1}, {"a": 2})
    for message in await pop(caller, queue):
        await traces.add(message, "x", names=queue)
    page = await traces.by_name(queue)
    assert page.total == 2
    assert [one.message_data for one in page.items] == [{"a": 2}, {"a": 1}]
    assert {(one.queue_name, one.partition_name) for one in page.items} == {(queue, "Default")}
    assert [one.message_data for one in (await traces.by_name(queue, limit=1, offset=1)).items] == [{"a": 1}]


async def test_names_are_listed_with_their_counts(caller: Caller, traces: Traces, queue: str) -> None:
    await push(caller, queue, 1)
    [message] = await pop(caller, queue)
    for _ in range(2):
        await traces.add(message, "x", names=queue)
    page = await traces.names(limit=1000)
    [mine] = [one for one in page.items if one.trace_name == queue]
    assert (mine.trace_count, mine.message_count) == (2, 1)
    assert page.total >= 1


async def test_a_message_must_be_there_and_be_named_in_one_way(caller: Caller, traces: Traces, queue: str) -> None:
    [pushed] = await push(caller, queue, 1)
    with pytest.raises(NotFound) as caught:
        await traces.add(data=1, partition_id=pushed.partition_id, transaction_id="nobody")
    assert caught.value.code == "message_not_found"
    with pytest.raises(InvalidInput, match="both partition_id and transaction_id"):
        await traces.of(partition_id=pushed.partition_id)
    with pytest.raises(InvalidInput, match="give either the message, or its"):
        await traces.of(pushed, partition_id=pushed.partition_id)
    with pytest.raises(InvalidInput, match="data: can't be written as JSON"):
        await traces.add(pushed, object())
    with pytest.raises(InvalidInput, match="data is required"):
        await traces.add(pushed)
