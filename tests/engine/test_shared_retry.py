"""Rules 14, 15, 18 and 19 in shared groups: what fails concerns one message; dead once, requeued in front, once."""

from __future__ import annotations

from hark.clock import SECOND
from hark.engine.api import Engine

from .driver import Driver, message, payloads, settlement
from .workers import Workers, attempts


async def test_a_failed_message_comes_again_and_its_neighbours_go_on(q: Driver, workers: Workers) -> None:
    await q.configure("orders", retry_delay=5000)
    await q.push("orders", "p1", 1, 2, 3)
    first, second = await workers.take(), await workers.take()
    await q.fail(first[0])
    assert (await q.ack(second[0])).success
    assert payloads(await workers.take(10)) == [3]
    got = await workers.arrive_at(q.clock.now() + 5 * SECOND)
    assert attempts(got) == [(1, 2)]


async def test_many_retries_come_by_priority_then_in_the_order_they_fall_due(q: Driver, workers: Workers) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=n % 3) for n in range(50)))
    due = [1000 + n * 37 % 25 for n in range(50)]
    got = await workers.take(50)
    await q.settle(*(settlement(held, "retry", delay_ms=due[held.message.offset - 1]) for held in got))
    q.clock.advance(2)
    assert payloads(await workers.take(100)) == sorted(range(50), key=lambda n: (-(n % 3), due[n], n))


# Dead letters ----------------------------------------------------------------------------------------------


async def test_rule_19_a_requeued_message_goes_before_everything(q: Driver, workers: Workers) -> None:
    await q.push("orders", "p1", "dead")
    letter = await workers.take_and_kill()
    await q.push("orders", "p1", "retried")
    [held] = await workers.take()
    await q.retry(held)
    await q.push("orders", "p1", "high", priority=9)
    q.clock.advance(1)
    new_id = await q.requeue(letter)
    got = await workers.take(10)
    assert payloads(got) == ["dead", "high", "retried"]
    assert (got[0].message.id, got[0].message.attempt) == (new_id, 1)
    await q.fail(got[0], delay_ms=1000)
    await q.engine.release([got.lease])
    got = await workers.take(10)
    assert payloads(got) == ["high", "retried"]
    await q.engine.release([got.lease])
    q.clock.advance(1)
    assert attempts(await workers.take(10)) == [("dead", 2), ("high", 1), ("retried", 1)], "in front also after a wait"


async def test_rule_19_several_requeued_ones_by_priority_then_in_the_order_of_their_requeue(
    q: Driver, workers: Workers, engine: Engine
) -> None:
    await q.push_messages(*(message("orders", "p1", n, priority=int(n == 3)) for n in (1, 2, 3, 4)))
    letters = [await workers.take_and_kill() for _ in range(3)]
    await engine.requeue([one.id for one in letters if bytes(one.payload) != b"3"])
    await engine.requeue([one.id for one in letters if bytes(one.payload) == b"3"])
    assert payloads(await workers.take(10)) == [3, 1, 2, 4]


async def test_rule_19_a_requeued_message_can_be_settled_like_any_other(q: Driver, workers: Workers) -> None:
    await q.configure("orders", lease_time=10)
    await q.push("orders", "p1", 1, 2, 3)
    for letter in [await workers.take_and_kill() for _ in range(3)]:
        await q.requeue(letter)
    assert attempts(await workers.take(10)) == [(1, 1), (2, 1), (3, 1)]
    q.clock.advance(10)
    got = await workers.take(10)
    assert attempts(got) == [(1, 2), (2, 2), (3, 2)]
    await q.engine.release([got.lease])
    got = await workers.take(10)
    await q.ack(got[1])
    await q.retry(got[0])
    assert (await q.kill(got[2])).dead_lettered
    assert await workers.drain() == [1]
    assert ((await workers.stats()).lag, len(await q.dead_letters())) == (0, 1)
