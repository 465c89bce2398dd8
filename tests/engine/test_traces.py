"""Traces: what consumers record about messages, and the trace context that a message carries."""

from __future__ import annotations

import pytest

from hark.clock import FakeClock
from hark.engine import hints
from hark.engine.api import Engine
from hark.errors import InvalidInput, NotFound
from hark.model import QUEUE_MODE, NewTrace, Read

from .driver import NEVER_GIVEN, Driver, given, message
from .workers import Workers


async def push_one(q: Driver, payload: object, transaction_id: str) -> str:
    """Push a message; the id of its partition."""
    [outcome] = await q.push("orders", "p1", payload, transaction_id=transaction_id)
    assert outcome.partition_id is not None
    return outcome.partition_id


async def test_events_of_a_message_oldest_first_and_in_pages(q: Driver, engine: Engine, clock: FakeClock) -> None:
    partition = await push_one(q, {"n": 1}, "t1")
    start = clock.now()
    for number in range(3):
        new = NewTrace(partition_id=partition, transaction_id="t1", data=b'{"step":%d}' % number, event="step")
        [answer] = await engine.trace([new])
        assert given(answer)
        clock.advance(1)
    events, total = await engine.traces(partition, "t1")
    assert total == 3
    assert [bytes(one.data) for one in events] == [b'{"step":0}', b'{"step":1}', b'{"step":2}']
    assert [one.created_at for one in events] == [start, start + 1_000_000, start + 2_000_000]
    assert {(one.event, one.group, one.transaction_id, one.partition_id) for one in events} == {
        ("step", QUEUE_MODE, "t1", partition)
    }
    assert {(one.queue, one.partition) for one in events} == {("orders", "p1")}
    await engine.trace([NewTrace(partition_id=partition, transaction_id="t1", data=b"%d" % n) for n in range(3, 5)])
    events, total = await engine.traces(partition, "t1", limit=2, offset=2)
    assert ([bytes(one.data) for one in events], total) == ([b'{"step":2}', b"3"], 5)


async def test_events_that_are_too_large_together_are_not_read(
    q: Driver, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = await push_one(q, "x" * 1000, "t1")
    new = NewTrace(partition_id=partition, transaction_id="t1", data=b"1" * 100, names=("a",))
    await engine.trace([new, new, new])
    monkeypatch.setattr(hints, "CALL_BYTES", 2 * 1102)
    assert len((await engine.traces(name="a", limit=2))[0]) == 2
    too_large = "the values of this page have 3306 bytes, over the limit of 2204;"
    with pytest.raises(InvalidInput, match=too_large):
        await engine.traces(name="a")
    with pytest.raises(InvalidInput, match=too_large):
        await engine.traces(partition, "t1")


async def test_events_of_a_name_newest_first_with_the_payload_and_names_with_counts(q: Driver, engine: Engine) -> None:
    partition = await push_one(q, {"n": 1}, "t1")
    await push_one(q, {"n": 2}, "t2")
    for key, names in (("t1", ("a",)), ("t1", ("a", "b")), ("t2", ("a",)), ("t1", ())):
        new = NewTrace(partition_id=partition, transaction_id=key, data=b"{}", names=names, group="g", event="seen")
        await engine.trace([new])
        q.clock.advance(1)
    events, total = await engine.traces(name="a")
    assert total == 3
    assert [(one.transaction_id, one.payload and bytes(one.payload)) for one in events] == [
        ("t2", b'{"n":2}'),
        ("t1", b'{"n":1}'),
        ("t1", b'{"n":1}'),
    ]
    assert [sorted(one.names) for one in events] == [["a"], ["a", "b"], ["a"]]
    assert await engine.traces(name="unknown") == ([], 0)
    counts, total = await engine.trace_names()
    assert total == 2
    assert {(one.name, one.traces, one.messages) for one in counts} == {("a", 3, 2), ("b", 1, 1)}
    assert max(one.last_seen for one in counts) == q.clock.now() - 2_000_000
    page, total = await engine.trace_names(limit=1)
    assert (len(page), total) == (1, 2)


async def test_an_unknown_message_is_not_found_in_place(q: Driver, engine: Engine) -> None:
    partition = await push_one(q, 1, "t1")
    answers = await engine.trace(
        [
            NewTrace(partition_id=partition, transaction_id="unknown", data=b"{}"),
            NewTrace(partition_id=NEVER_GIVEN, transaction_id="t1", data=b"{}"),
            NewTrace(partition_id=partition, transaction_id="t1", data=b"{}"),
        ]
    )
    assert [type(one) for one in answers] == [NotFound, NotFound, str]
    assert (await engine.traces(partition, "t1"))[1] == 1


async def test_a_message_may_be_named_by_its_id(q: Driver, engine: Engine) -> None:
    [outcome] = await q.push("orders", "p1", 1)
    assert outcome.partition_id and outcome.message_id
    await engine.trace([NewTrace(partition_id=outcome.partition_id, transaction_id=outcome.message_id, data=b"7")])
    events, _ = await engine.traces(outcome.partition_id, outcome.message_id)
    assert [bytes(one.data) for one in events] == [b"7"]


async def test_traces_leave_with_their_message(q: Driver, engine: Engine) -> None:
    partition = await push_one(q, 1, "t1")
    await engine.trace([NewTrace(partition_id=partition, transaction_id="t1", data=b"{}", names=("a",))])
    view = await engine.message(partition, "t1")
    assert view is not None
    await engine.delete_messages([view.id])
    await q.collect()
    assert await engine.traces(name="a") == ([], 0)
    assert await engine.trace_names() == ([], 0)


# The trace context of a message: kept with it wherever it goes, and absent where it had none ---------------


CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=1"


async def test_pops_and_readers_see_the_context_of_each_message(q: Driver, engine: Engine) -> None:
    await q.push_messages(message("orders", "p1", 1, trace_context=CONTEXT), message("orders", "p1", 2))
    await q.transact(message("orders", "p1", 3, trace_context=CONTEXT[:55], priority=1))
    [answer] = await engine.read([Read(queue="orders", partition="p1", offset=1)])
    assert [one.trace_context for one in given(answer).messages] == [CONTEXT, None, CONTEXT[:55]]
    assert [one.message.trace_context for one in await q.pop("orders", batch=10)] == [CONTEXT, None, CONTEXT[:55]]


async def test_retries_and_a_requeued_dead_letter_keep_it(q: Driver, either: Workers) -> None:
    await q.push("orders", "p1", 1, trace_context=CONTEXT, backoff_ms=(1000,))
    for _ in range(2):
        [leased] = await either.take()
        assert leased.message.trace_context == CONTEXT
        await q.fail(leased)
        q.clock.advance(1)
    [letter] = await q.dead_letters()
    await q.requeue(letter)
    [leased] = await either.take()
    assert leased.message.trace_context == CONTEXT


async def test_it_outlives_a_restart(q: Driver) -> None:
    await q.push("orders", "p1", 1, trace_context=CONTEXT)
    await q.reopen()
    [leased] = await q.pop("orders")
    assert leased.message.trace_context == CONTEXT
