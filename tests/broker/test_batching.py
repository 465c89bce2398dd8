"""Group commit: what shares a call, and what never disturbs what."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar

import pytest

from hark.batching import Batcher
from hark.errors import HarkError, InvalidInput, Overloaded


class Engine:
    """Calls that end when the test says so."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self._called = asyncio.Event()
        self._gates: list[asyncio.Future[None]] = []

    async def call(self, requests: Sequence[int]) -> list[int | HarkError]:
        """Doubles each number; refuses negative ones."""
        self.calls.append(list(requests))
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._gates.append(gate)
        self._called.set()
        await gate
        return [InvalidInput(f"negative: {number}") if number < 0 else number * 2 for number in requests]

    async def wait_for_calls(self, number: int) -> None:
        """Wait until so many calls have begun."""
        while len(self.calls) < number:
            self._called.clear()
            await self._called.wait()

    def finish(self, call: int, error: Exception | None = None) -> None:
        """Let a call end."""
        if error is None:
            self._gates[call].set_result(None)
        else:
            self._gates[call].set_exception(error)


def batcher_of(engine: Engine, **options: float) -> Batcher[int, int]:
    """A batcher with limits that no test meets by chance."""
    return Batcher(
        "push",
        engine.call,
        max_items=int(options.get("max_items", 1000)),
        max_wait=options.get("max_wait", 60),
        max_pending=int(options.get("max_pending", 10_000)),
        max_calls=int(options["max_calls"]) if "max_calls" in options else None,
    )


async def test_an_idle_batcher_sends_at_once_and_requests_of_one_turn_together() -> None:
    engine = Engine()
    batcher = batcher_of(engine)
    answers = [batcher.submit(1), batcher.submit(2)]
    await engine.wait_for_calls(1)
    engine.finish(0)
    assert await asyncio.gather(*answers) == [2, 4]
    assert engine.calls == [[1, 2]]


async def test_requests_during_a_call_are_collected_and_sent_when_it_returns() -> None:
    engine = Engine()
    batcher = batcher_of(engine)
    first = batcher.submit(1)
    await engine.wait_for_calls(1)
    others = [batcher.submit(number) for number in (2, 3)]
    assert engine.calls == [[1]]
    engine.finish(0)
    await first
    await engine.wait_for_calls(2)
    engine.finish(1)
    assert await asyncio.gather(*others) == [4, 6]
    assert engine.calls == [[1], [2, 3]]


async def test_a_full_batch_does_not_wait_for_the_call_in_flight() -> None:
    engine = Engine()
    batcher = batcher_of(engine, max_items=10)
    batcher.submit(1)
    await engine.wait_for_calls(1)
    batcher.submit(2, 4)
    batcher.submit(3, 6)
    await engine.wait_for_calls(2)
    assert engine.calls == [[1], [2, 3]]
    engine.finish(0)
    engine.finish(1)
    await batcher.drain()


async def test_a_batch_goes_out_after_max_wait_beside_the_call_in_flight() -> None:
    engine = Engine()
    batcher = batcher_of(engine, max_wait=0.001)
    batcher.submit(1)
    await engine.wait_for_calls(1)
    batcher.submit(2)
    await engine.wait_for_calls(2)
    assert engine.calls == [[1], [2]]
    engine.finish(0)
    engine.finish(1)
    await batcher.drain()


async def test_one_refused_item_is_raised_to_its_client_only() -> None:
    engine = Engine()
    batcher = batcher_of(engine)
    good, bad = batcher.submit(1), batcher.submit(-1)
    await engine.wait_for_calls(1)
    engine.finish(0)
    with pytest.raises(InvalidInput, match="negative: -1"):
        await bad
    assert await good == 2


async def test_a_cancelled_client_disturbs_nobody_and_its_answer_is_handed_back() -> None:
    engine = Engine()
    orphans: list[int] = []
    batcher: Batcher[int, int] = Batcher(
        "pop", engine.call, max_items=10, max_wait=60, max_pending=100, orphaned=orphans.append
    )
    gone, stays = batcher.submit(1), batcher.submit(2)
    await engine.wait_for_calls(1)
    gone.cancel()
    engine.finish(0)
    assert await stays == 4
    assert orphans == [2]


async def test_a_call_that_fails_fails_all_that_shared_it_and_the_next_goes_on() -> None:
    engine = Engine()
    batcher = batcher_of(engine)
    failed = [batcher.submit(1), batcher.submit(2)]
    await engine.wait_for_calls(1)
    later = batcher.submit(3)
    engine.finish(0, OSError("on purpose"))
    for answer in failed:
        with pytest.raises(OSError, match="on purpose"):
            await answer
    await engine.wait_for_calls(2)
    engine.finish(1)
    assert await later == 6


async def test_beyond_max_pending_requests_are_refused_with_retry_after_and_nothing_accepted_is_lost() -> None:
    engine = Engine()
    batcher = batcher_of(engine, max_pending=10)
    accepted = batcher.submit(1, 8)
    with pytest.raises(Overloaded) as caught:
        batcher.submit(2, 3)
    assert caught.value.status == 429
    assert caught.value.retry_after
    await engine.wait_for_calls(1)
    engine.finish(0)
    assert await accepted == 2
    assert engine.calls == [[1]]
    again = batcher.submit(2, 3)
    await engine.wait_for_calls(2)
    engine.finish(1)
    assert await again == 4


async def test_a_single_request_larger_than_max_pending_is_served_when_nothing_waits() -> None:
    engine = Engine()
    batcher = batcher_of(engine, max_pending=10)
    answer = batcher.submit(1, 50)
    await engine.wait_for_calls(1)
    engine.finish(0)
    assert await answer == 2


async def test_with_a_bound_on_calls_everything_that_waits_goes_with_the_next_one() -> None:
    engine = Engine()
    batcher = batcher_of(engine, max_items=2, max_calls=1)
    first = batcher.submit(1)
    await engine.wait_for_calls(1)
    waiting = [batcher.submit(number) for number in (2, 3, 4)]
    assert engine.calls == [[1]], "beyond max_items, but a call is in flight"
    engine.finish(0)
    assert await first == 2
    await engine.wait_for_calls(2)
    engine.finish(1)
    assert await asyncio.gather(*waiting) == [4, 6, 8]
    assert engine.calls == [[1], [2, 3, 4]]


async def test_a_call_belongs_to_the_context_of_the_first_of_its_requests_not_of_those_before() -> None:
    said: ContextVar[str] = ContextVar("said", default="")
    heard: list[str] = []
    engine = Engine()

    async def call(requests: Sequence[int]) -> list[int | HarkError]:
        heard.append(said.get())
        return await engine.call(requests)

    batcher: Batcher[int, int] = Batcher("push", call, max_items=1000, max_wait=60, max_pending=10_000)

    async def submit(number: int) -> int:
        said.set(f"request {number}")
        return await batcher.submit(number)

    first = asyncio.create_task(submit(1))
    await engine.wait_for_calls(1)
    later = [asyncio.create_task(submit(number)) for number in (2, 3)]
    await asyncio.sleep(0)
    engine.finish(0)
    await engine.wait_for_calls(2)
    engine.finish(1)
    assert [await task for task in (first, *later)] == [2, 4, 6]
    assert (engine.calls, heard) == ([[1], [2, 3]], ["request 1", "request 2"])
