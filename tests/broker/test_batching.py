"""Group commit: what shares a call, and what never disturbs what."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar

import pytest

from hark.batching import Batcher
from hark.errors import HarkError, InvalidInput, Overloaded

Doubler = Batcher[int, int]


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


def batcher_of(engine: Engine, **options: float) -> Doubler:
    """A batcher with limits that no test meets by chance."""
    return Batcher(
        "push",
        engine.call,
        max_items=int(options.get("max_items", 1000)),
        max_wait=options.get("max_wait", 60),
        max_pending=int(options.get("max_pending", 10_000)),
        max_calls=int(options["max_calls"]) if "max_calls" in options else None,
    )


@pytest.fixture
async def engine() -> Engine:
    return Engine()


@pytest.fixture
async def batcher(engine: Engine) -> Doubler:
    return batcher_of(engine)


@pytest.mark.parametrize("options", [{}, {"max_calls": 1}], ids=["unbounded", "one call at a time"])
async def test_an_idle_batcher_sends_at_once_and_what_comes_during_a_call_is_collected_until_it_returns(
    engine: Engine, options: dict[str, float]
) -> None:
    batcher = batcher_of(engine, **options)
    first = [batcher.submit(1), batcher.submit(2)]
    await engine.wait_for_calls(1)
    others = [batcher.submit(number) for number in (3, 4, 5)]
    assert engine.calls == [[1, 2]]
    engine.finish(0)
    assert await asyncio.gather(*first) == [2, 4]
    await engine.wait_for_calls(2)
    engine.finish(1)
    assert await asyncio.gather(*others) == [6, 8, 10]
    assert engine.calls == [[1, 2], [3, 4, 5]]


@pytest.mark.parametrize("max_calls", [1, 2])
async def test_no_call_has_more_than_max_items_unless_a_single_request_has(engine: Engine, max_calls: int) -> None:
    batcher = batcher_of(engine, max_items=10, max_calls=max_calls)
    sizes = {1: 4, 2: 4, 3: 4, 4: 25, 5: 6, 6: 4, 7: 1}
    answers = [batcher.submit(number, size) for number, size in sizes.items()]
    for call in range(5):
        await engine.wait_for_calls(call + 1)
        engine.finish(call)
    assert await asyncio.gather(*answers) == [2, 4, 6, 8, 10, 12, 14]
    assert engine.calls == [[1, 2], [3], [4], [5, 6], [7]]


async def test_max_wait_bounds_the_wait_for_others_and_an_idle_batcher_does_not_wait_at_all(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    loop = asyncio.get_running_loop()
    call_later = loop.call_later

    def noted(delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        waits.append(delay)
        return call_later(delay, callback)

    monkeypatch.setattr(loop, "call_later", noted)
    batcher = batcher_of(engine, max_calls=2, max_wait=0.001)
    batcher.submit(1)
    await engine.wait_for_calls(1)
    assert waits == [], "an idle batcher has nobody to wait for"
    batcher.submit(2)
    await engine.wait_for_calls(2)
    assert (engine.calls, waits) == ([[1], [2]], [0.001]), "beside the first call, which has not returned"
    engine.finish(0)
    engine.finish(1)
    await batcher.drain()


@pytest.mark.parametrize(
    ("options", "sizes"), [({"max_items": 10}, {2: 4, 3: 6}), ({"max_wait": 0.001}, {2: 1})], ids=["full", "max_wait"]
)
async def test_a_batch_that_is_full_or_has_waited_goes_out_beside_the_call_in_flight(
    engine: Engine, options: dict[str, float], sizes: dict[int, int]
) -> None:
    batcher = batcher_of(engine, **options)
    batcher.submit(1)
    await engine.wait_for_calls(1)
    for number, size in sizes.items():
        batcher.submit(number, size)
    await engine.wait_for_calls(2)
    assert engine.calls == [[1], list(sizes)]
    engine.finish(0)
    engine.finish(1)
    await batcher.drain()


async def test_draining_waits_for_what_was_submitted_before_it_and_for_nothing_after_it(engine: Engine) -> None:
    batcher = batcher_of(engine, max_calls=1)
    batcher.submit(1)
    await engine.wait_for_calls(1)
    before = batcher.submit(2)
    draining = asyncio.ensure_future(batcher.drain())
    engine.finish(0)
    await engine.wait_for_calls(2)
    after = batcher.submit(3)
    assert not draining.done()
    engine.finish(1)
    await engine.wait_for_calls(3)
    await draining
    assert (before.result(), after.done()) == (4, False)
    engine.finish(2)
    await batcher.drain()


async def test_one_refused_or_cancelled_disturbs_no_other_and_the_answer_of_one_that_left_is_handed_back(
    engine: Engine,
) -> None:
    orphans: list[int] = []
    batcher: Doubler = Batcher("pop", engine.call, max_items=10, max_wait=60, max_pending=100, orphaned=orphans.append)
    gone, stays, bad = batcher.submit(1), batcher.submit(2), batcher.submit(-1)
    await engine.wait_for_calls(1)
    gone.cancel()
    engine.finish(0)
    with pytest.raises(InvalidInput, match="negative: -1"):
        await bad
    assert await stays == 4
    assert orphans == [2]


async def test_a_call_that_fails_fails_all_that_shared_it_and_the_next_goes_on(
    engine: Engine, batcher: Doubler
) -> None:
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


async def test_beyond_max_pending_requests_are_refused_with_retry_after_and_nothing_accepted_is_lost(
    engine: Engine,
) -> None:
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
    again = batcher.submit(2, 50)  # Larger than max_pending, but nothing waits.
    await engine.wait_for_calls(2)
    engine.finish(1)
    assert await again == 4


async def test_a_call_belongs_to_the_context_of_the_first_of_its_requests_not_of_those_before(engine: Engine) -> None:
    label: ContextVar[str] = ContextVar("said", default="")
    received: list[str] = []

    async def call(requests: Sequence[int]) -> list[int | HarkError]:
        received.append(label.get())
        return await engine.call(requests)

    batcher: Doubler = Batcher("push", call, max_items=1000, max_wait=60, max_pending=10_000)

    async def submit(number: int) -> int:
        label.set(f"request {number}")
        return await batcher.submit(number)

    first = asyncio.create_task(submit(1))
    await engine.wait_for_calls(1)
    later = [asyncio.create_task(submit(number)) for number in (2, 3)]
    await asyncio.sleep(0)
    engine.finish(0)
    await engine.wait_for_calls(2)
    engine.finish(1)
    assert [await task for task in (first, *later)] == [2, 4, 6]
    assert (engine.calls, received) == ([[1], [2, 3]], ["request 1", "request 2"])
