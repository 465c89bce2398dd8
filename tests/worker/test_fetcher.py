"""The side of a worker that faces the server, against a server that does what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from hark.client.builder import PopParams
from hark.client.calling import Caller, CallPolicy, ConnectionFailed
from hark.client.delivery.settling import SettleDecision
from hark.errors import HarkError
from hark.model import Status
from hark.polling import Poller, PollingStrategy, pause
from hark.worker.fetcher import Answered, Fetcher
from hark.worker.retrying import Ended, InFlight
from tests.worker.workers import SECONDS, ScriptedServer


class Bench:
    """A feed, and what it hands over."""

    def __init__(self, slots: int = 5, *, burst: bool = False, interval_ms: float = 1) -> None:
        self.server = ScriptedServer()
        self.received: asyncio.Queue[InFlight] = asyncio.Queue()
        self.answered: asyncio.Queue[Sequence[Answered]] = asyncio.Queue()
        self.slept: list[float] = []
        self.rests: asyncio.Queue[float] = asyncio.Queue()
        self.fetcher = Fetcher(
            Caller(self.server, CallPolicy(attempts=1)),
            PopParams(queue="q", group="g", batch=100, wait=False),
            Poller(PollingStrategy.fixed(interval_ms=interval_ms), pause=self._pause),
            slots=slots,
            lease_seconds=30,
            receive=self.received.put_nowait,
            lose=lambda _leased: None,
            cancel=lambda _leased, _ids: None,
            answered=self.answered.put_nowait,
            burst=burst,
            sleep=self._sleep,
        )
        self.pulling = asyncio.create_task(self.fetcher.pull())

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)

    async def _pause(self, event: asyncio.Event, seconds: float) -> None:
        self.rests.put_nowait(seconds)
        await pause(event, seconds)

    async def rest(self) -> float:
        """How long the next rest is meant to be."""
        async with asyncio.timeout(SECONDS):
            return await self.rests.get()

    async def in_flight(self) -> InFlight:
        """The next that came."""
        async with asyncio.timeout(SECONDS):
            return await self.received.get()

    async def end(self) -> None:
        """Stop and close."""
        self.fetcher.stop()
        async with asyncio.timeout(SECONDS):
            await self.pulling
            await self.fetcher.close(5)


def done(in_flight: InFlight) -> list[Ended]:
    """All of it went well."""
    return [Ended(in_flight, message, SettleDecision(message), "done", "t") for message in in_flight.messages]


async def test_each_poll_asks_for_the_free_slots_and_none_is_made_without_any() -> None:
    bench = Bench(slots=3)
    bench.server.answer_pop("a", "b")
    first = await bench.in_flight()
    bench.server.answer_pop("c")
    second = await bench.in_flight()
    await asyncio.sleep(0)
    assert bench.server.batches == [3, 1]  # Full: nobody asks.
    assert not bench.fetcher.free
    bench.fetcher.finished(done(first), 2)
    async with asyncio.timeout(SECONDS):
        for _ in range(3):
            await bench.server.polled.acquire()
    assert bench.server.batches == [3, 1, 2]
    bench.fetcher.finished(done(second), 1)
    await bench.end()
    assert [[item["transactionId"] for item in batch] for batch in bench.server.acks] == [["a", "b"], ["c"]]


async def test_what_the_last_poll_brings_goes_back_at_once() -> None:
    bench = Bench()
    await bench.server.polled.acquire()
    bench.fetcher.stop()
    bench.server.answer_pop("a")
    await bench.end()
    assert bench.received.empty()
    assert [[(item["transactionId"], item["status"]) for item in batch] for batch in bench.server.acks] == [
        [("a", "retry")]
    ]


async def test_a_poll_that_gets_no_answer_is_given_up_when_the_worker_stops() -> None:
    bench = Bench()
    await bench.server.polled.acquire()
    await bench.end()
    assert bench.server.acks == []


async def test_settlements_are_sent_until_the_server_answers() -> None:
    bench = Bench()
    bench.server.answer_pop("a", "b")
    in_flight = await bench.in_flight()
    bench.server.failures = [ConnectionFailed("no server", sent=False), ConnectionFailed("no server", sent=False)]
    bench.fetcher.finished(done(in_flight), 2)
    async with asyncio.timeout(SECONDS):
        answered = await bench.answered.get()
    assert [settled is not None and settled.success for _, settled in answered] == [True, True]
    assert len(bench.slept) == 2
    await bench.end()


async def test_nothing_is_stated_of_what_was_lost() -> None:
    bench = Bench()
    bench.server.answer_pop("a")
    in_flight = await bench.in_flight()
    bench.fetcher.lost(in_flight)
    bench.fetcher.finished(done(in_flight), 1)
    async with asyncio.timeout(SECONDS):
        ((_, settled),) = await bench.answered.get()
    assert settled is None
    await bench.end()
    assert bench.server.acks == []


@pytest.mark.parametrize("status", [500, 503])
async def test_a_poll_that_fails_on_the_servers_side_is_made_again(status: int) -> None:
    bench = Bench()
    error = HarkError("a defect", code="internal")
    error.status = status
    bench.server.fail_pop(error)
    await bench.server.polled.acquire()
    bench.server.answer_pop("a")
    in_flight = await bench.in_flight()
    assert bench.fetcher.problem is None
    bench.fetcher.finished(done(in_flight), 1)
    await bench.end()


async def test_a_burst_ends_when_a_quiet_worker_finds_nothing() -> None:
    bench = Bench(burst=True)
    bench.server.answer_pop("a")
    in_flight = await bench.in_flight()
    bench.server.answer_pop()  # Something runs: it may bring more.
    bench.fetcher.finished(done(in_flight), 1)
    bench.server.answer_pop()
    bench.server.answer_pop()
    async with asyncio.timeout(SECONDS):
        await bench.pulling
    await bench.end()


async def test_a_source_that_does_not_close_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    monkeypatch.setattr(bench.fetcher._source, "close", asyncio.Event().wait)
    bench.fetcher.stop()
    async with asyncio.timeout(SECONDS):
        await bench.pulling
        await bench.fetcher.close(0.1)


AN_HOUR = 3_600_000


@pytest.mark.parametrize("status", ["failed", "retry"])
async def test_a_retry_that_the_worker_requested_is_not_slept_past(status: Status) -> None:
    bench = Bench(interval_ms=AN_HOUR)
    bench.server.answer_pop("a", "b")
    in_flight = await bench.in_flight()
    late, soon = (
        Ended(in_flight, message, SettleDecision(message, status, None, delay), "retried", "t")
        for message, delay in zip(in_flight.messages, (60_000, 2_000), strict=True)
    )
    bench.fetcher.finished([late, soon], 2)
    async with asyncio.timeout(SECONDS):
        await bench.answered.get()
    bench.server.answer_pop()
    assert 1.0 < await bench.rest() <= 2.0
    await bench.end()


async def test_what_was_handed_back_without_a_delay_is_polled_for_soon() -> None:
    bench = Bench(interval_ms=AN_HOUR)
    bench.server.answer_pop("a")
    in_flight = await bench.in_flight()
    bench.server.answer_pop()
    assert await bench.rest() > 3000
    bench.fetcher.finished(
        [Ended(in_flight, in_flight.messages[0], SettleDecision(in_flight.messages[0], "retry"), "retried", "t")], 1
    )
    bench.server.answer_pop("a")
    await bench.in_flight()
    await bench.end()


async def test_a_push_that_the_worker_is_notified_of_shortens_or_ends_its_rest() -> None:
    bench = Bench(interval_ms=AN_HOUR)
    bench.server.answer_pop()
    assert await bench.rest() > 3000
    bench.fetcher.expect(30.0)
    bench.server.answer_pop()
    assert 20 < await bench.rest() <= 30
    bench.fetcher.expect(0.0)
    bench.server.answer_pop("a")
    await bench.in_flight()
    await bench.end()
