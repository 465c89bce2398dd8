"""The trace context of a message: kept with it wherever it goes, and absent where it had none."""

from __future__ import annotations

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.model import Read

from .driver import Driver, given, message
from .workers import Workers

CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 vendor=1"


async def test_a_pop_delivers_the_context_of_each_message(q: Driver) -> None:
    await q.push_messages(
        message("orders", "p1", 1, trace_context=CONTEXT),
        message("orders", "p1", 2),
        message("orders", "p1", 3, trace_context=CONTEXT[:55], priority=1),
    )
    found = await q.pop("orders", batch=10)
    assert {one.payload: one.message.trace_context for one in found} == {1: CONTEXT, 2: None, 3: CONTEXT[:55]}


async def test_a_reader_sees_it(q: Driver, engine: Engine) -> None:
    await q.push_messages(message("orders", "p1", 1, trace_context=CONTEXT), message("orders", "p1", 2))
    [answer] = await engine.read([Read(queue="orders", partition="p1", offset=1)])
    assert [one.trace_context for one in given(answer).messages] == [CONTEXT, None]


async def test_a_transaction_pushes_it(q: Driver) -> None:
    await q.transact(message("orders", "p1", 1, trace_context=CONTEXT))
    [held] = await q.pop("orders")
    assert held.message.trace_context == CONTEXT


async def test_retries_and_a_requeued_dead_letter_keep_it(q: Driver, clock: FakeClock) -> None:
    await q.push("orders", "p1", 1, trace_context=CONTEXT, backoff_ms=(1000,))
    for _ in range(2):
        [held] = await q.pop("orders")
        assert held.message.trace_context == CONTEXT
        await q.fail(held)
        clock.advance(1)
    [letter] = await q.dead_letters()
    await q.requeue(letter)
    [held] = await q.pop("orders")
    assert held.message.trace_context == CONTEXT


async def test_shared_groups_get_it_too_also_from_a_requeued_dead_letter(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", 1, trace_context=CONTEXT)
    [held] = await workers.take()
    assert held.message.trace_context == CONTEXT
    await q.kill(held)
    [letter] = await q.dead_letters()
    await q.requeue(letter)
    [held] = await workers.take()
    assert held.message.trace_context == CONTEXT


async def test_it_outlives_a_restart(durable: Driver) -> None:
    await durable.push("orders", "p1", 1, trace_context=CONTEXT)
    await durable.reopen()
    [held] = await durable.pop("orders")
    assert held.message.trace_context == CONTEXT
