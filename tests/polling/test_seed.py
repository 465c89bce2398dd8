"""The five tests that seed 002 asks for."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from hark.polling import Poller, PollingStrategy
from tests.polling.pauses import Pauses, middle

ADAPTIVE = PollingStrategy.adaptive(min_interval_ms=100, max_interval_ms=5000, backoff_multiplier=2.0)
FIXED = PollingStrategy.fixed(interval_ms=500)


@pytest.mark.parametrize(
    ("strategy", "current", "found", "wanted"),
    [
        pytest.param(FIXED, 0.5, True, 0.5, id="fixed-found"),
        pytest.param(FIXED, 0.5, False, 0.5, id="fixed-empty"),
        pytest.param(ADAPTIVE, 0.1, False, 0.2, id="adaptive-grows"),
        pytest.param(ADAPTIVE, 3.2, False, 5.0, id="adaptive-up-to-the-longest"),
        pytest.param(ADAPTIVE, 5.0, False, 5.0, id="adaptive-stays-at-the-longest"),
        pytest.param(ADAPTIVE, 5.0, True, 0.1, id="adaptive-found"),
    ],
)
def test_1_next_interval(strategy: PollingStrategy, current: float, found: bool, wanted: float) -> None:
    assert strategy.next_interval(current, found) == wanted


async def test_2_a_worker_picks_a_task_up_within_the_shortest_interval(server_url: str, queue: str) -> None:
    """A loop of plain polls at a real server: what is pushed in a rest is there when the rest is over."""
    pauses = Pauses()
    poller = Poller(ADAPTIVE, monotonic=pauses.monotonic, random=middle, pause=pauses.pause)
    async with httpx.AsyncClient(base_url=server_url, trust_env=False) as http:

        async def push(number: int) -> None:
            body = {"items": [{"queue": queue, "payload": number}]}
            assert (await http.post("/api/v1/push", json=body)).status_code == 201

        async def poll() -> bool:
            poller.begin()
            answer = await http.get(f"/api/v1/pop/queue/{queue}?autoAck=true")
            poller.saw(answer.status_code == 200)
            return answer.status_code == 200

        await push(1)
        assert await poll()
        pushed_at = pauses.now
        await push(2)
        await poller.rest()
        assert await poll()
        assert pauses.now - pushed_at <= ADAPTIVE.initial_interval(), "busy: the next poll has it"

        assert not await poll()
        pushed_at = pauses.now
        await push(3)
        await poller.rest()
        assert await poll()
        # The k-th idle rest is min x mult^k, so what comes right after the last work waits for one multiplier at most.
        assert pauses.now - pushed_at <= ADAPTIVE.initial_interval() * ADAPTIVE.backoff_multiplier


async def test_2_a_task_that_the_worker_is_told_of_is_picked_up_at_once(server_url: str, queue: str) -> None:
    """At a real server and by the real clock: an hour's rest ends with the hint."""
    poller = Poller(PollingStrategy.fixed(interval_ms=3_600_000))
    first_was_empty = asyncio.Event()
    async with httpx.AsyncClient(base_url=server_url, trust_env=False) as http:

        async def work() -> int:
            while True:
                poller.begin()
                answer = await http.get(f"/api/v1/pop/queue/{queue}?autoAck=true")
                poller.saw(answer.status_code == 200)
                if answer.status_code == 200:
                    [message] = answer.json()["messages"]
                    return int(message["data"])
                first_was_empty.set()
                await poller.rest()

        async with asyncio.timeout(20):
            working = asyncio.create_task(work())
            await first_was_empty.wait()
            body = {"items": [{"queue": queue, "payload": 7}]}
            assert (await http.post("/api/v1/push", json=body)).status_code == 201
            poller.wake()
            assert await working == 7


async def test_3_the_interval_grows_while_there_is_nothing() -> None:
    pauses = Pauses()
    poller = Poller(ADAPTIVE, monotonic=pauses.monotonic, random=middle, pause=pauses.pause)
    for _ in range(8):
        poller.begin()
        poller.saw(False)
        await poller.rest()
    assert pauses.taken == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0])


async def test_4_the_interval_is_the_shortest_again_as_soon_as_there_is_a_task() -> None:
    pauses = Pauses()
    poller = Poller(ADAPTIVE, monotonic=pauses.monotonic, random=middle, pause=pauses.pause)
    for found in (False, False, False, True):
        poller.saw(found)
    assert poller.interval == 0.1
    await poller.rest()
    assert pauses.taken == [], "a busy worker polls back to back"
    poller.saw(False)
    await poller.rest()
    assert pauses.taken == pytest.approx([0.2])


def test_5_jitter_stays_within_a_tenth_and_uses_all_of_it() -> None:
    assert ADAPTIVE.apply_jitter(10, lambda: 0.0) == pytest.approx(9.0)
    assert ADAPTIVE.apply_jitter(10, lambda: 1.0) == pytest.approx(11.0)
    drawn = [ADAPTIVE.apply_jitter(10) for _ in range(1000)]
    assert all(9.0 <= seconds <= 11.0 for seconds in drawn)
    assert min(drawn) < 9.5
    assert max(drawn) > 10.5
