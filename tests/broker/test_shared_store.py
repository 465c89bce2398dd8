"""The broker on a store that other servers share: hints are missed, switches change, and the store goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from hark.broker import Broker
from hark.broker.broker import PUSH_MAINTENANCE
from hark.clock import SystemClock
from hark.engine.api import Answers, KeyListener, Listener, ignore_keys
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure, Unavailable
from hark.model import Hint, NewMessage, PopRequest, PopResult
from hark.settings import Fallback, Settings

OFTEN = Settings(fallback=Fallback(initial_ms=1, max_ms=5))
SELDOM = Settings(fallback=Fallback(initial_ms=3_600_000, max_ms=3_600_000))
ORDERS = PopRequest(queue="orders")


class DeafEngine(SqliteEngine):
    """A store that tells nobody what happened, as if another server had done it; and that fails when told to."""

    shared = True

    def __init__(self) -> None:
        super().__init__(":memory:", clock=SystemClock())
        self.failure: EngineFailure | None = None
        self.looks: list[int] = []
        """How many pops came with each call."""
        self._looked = asyncio.Event()
        self.tell: Listener = lambda _hints: None

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Open the store and keep the listener for the test."""
        self.tell = listener
        await super().start(lambda _hints: None, key_listener)

    async def pop(self, requests: Sequence[PopRequest]) -> Answers[PopResult]:
        """Count the call when it ends."""
        try:
            if self.failure is not None:
                raise self.failure
            return await super().pop(requests)
        finally:
            self.looks.append(len(requests))
            self._looked.set()

    async def until_looks(self, calls: int) -> None:
        """Wait until so many calls have ended."""
        while len(self.looks) < calls:
            self._looked.clear()
            await self._looked.wait()


@pytest.fixture
def engine() -> DeafEngine:
    """A store that its broker opens and closes."""
    return DeafEngine()


async def broker_on(engine: SqliteEngine, settings: Settings = OFTEN) -> Broker:
    """A broker that is at work."""
    broker = Broker(engine, settings, SystemClock())
    await broker.start()
    return broker


async def waiting(broker: Broker, request: PopRequest = ORDERS) -> asyncio.Task[PopResult]:
    """A pop that has looked once and found nothing; or not at all, if another one waits for the same."""
    task = asyncio.create_task(broker.pop(request, 60))
    intentions = broker.delivery.intentions
    number = len(intentions) + 1
    while len(intentions) < number or not all(one.parked for one in intentions):  # noqa: ASYNC110  # as in test_broker
        await asyncio.sleep(0)
    return task


async def push(broker: Broker, *partitions: str) -> None:
    """A message into each partition."""
    await broker.push([NewMessage("orders", partition) for partition in partitions])


# Missed hints ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_", [ORDERS, PopRequest(queue="orders", partition="p"), PopRequest(namespace="orders")]
)
async def test_a_waiting_pop_finds_what_no_hint_told_of(engine: DeafEngine, request_: PopRequest) -> None:
    broker = await broker_on(engine)
    pop = await waiting(broker, request_)
    await push(broker, "p")
    assert len((await pop).messages) == 1
    await broker.close()


async def test_pops_that_wait_for_the_same_take_turns_to_look(engine: DeafEngine) -> None:
    broker = await broker_on(engine)
    pops = [asyncio.create_task(broker.pop(ORDERS, 60)) for _ in range(50)]
    await engine.until_looks(6)
    assert engine.looks[:1] == [50]
    assert set(engine.looks[1:]) == {1}
    await push(broker, *map(str, range(50)))
    assert all([len((await pop).messages) == 1 for pop in pops])
    await broker.close()


async def test_when_a_look_finds_something_the_next_in_line_looks_at_once(engine: DeafEngine) -> None:
    settings = Settings(fallback=Fallback(initial_ms=50, threshold=1, multiplier=1000, max_ms=3_600_000))
    broker = await broker_on(engine, settings)
    pops = [await waiting(broker) for _ in range(3)]
    await push(broker, "a", "b", "c")
    # Only the first look comes soon; the two others would come in an hour.
    assert all([len((await pop).messages) == 1 for pop in pops])
    await broker.close()


async def test_one_who_leaves_passes_the_turn_on(engine: DeafEngine) -> None:
    broker = await broker_on(engine)
    first, second = [await waiting(broker) for _ in range(2)]
    first.cancel()
    await push(broker, "p")
    assert len((await second).messages) == 1
    await broker.close()


async def test_a_store_of_our_own_is_not_looked_at_again_and_again() -> None:
    engine = DeafEngine()
    engine.shared = False
    broker = await broker_on(engine)
    pop = await waiting(broker)
    others = [await waiting(broker, PopRequest(queue=f"other-{number}")) for number in range(3)]
    broker.stop_waiting()
    await asyncio.gather(pop, *others)
    assert engine.looks == [1, 1, 1, 1]
    await broker.close()


# A store that is away --------------------------------------------------------------------------------------


async def test_a_waiting_pop_outlives_an_outage(engine: DeafEngine) -> None:
    broker = await broker_on(engine)
    await push(broker, "p")
    engine.failure = EngineFailure("the store is away")
    pop = await waiting(broker)
    await engine.until_looks(5)
    engine.failure = None
    assert len((await pop).messages) == 1
    await broker.close()


async def test_a_hint_ends_the_wait_of_a_pop_whose_look_failed(engine: DeafEngine) -> None:
    broker = await broker_on(engine, SELDOM)
    await push(broker, "p")
    engine.failure = EngineFailure("the store is away")
    pop = await waiting(broker)
    engine.failure = None
    engine.tell([Hint("orders")])
    assert len((await pop).messages) == 1
    await broker.close()


async def test_a_store_of_our_own_that_was_away_is_looked_at_until_it_is_back() -> None:
    engine = DeafEngine()
    engine.shared = False
    broker = await broker_on(engine)
    await push(broker, "p")
    engine.failure = EngineFailure("the store is away")
    pop = await waiting(broker)
    engine.failure = None
    assert len((await pop).messages) == 1
    await broker.close()


async def test_a_waiting_pop_whose_last_look_failed_says_so_when_its_time_is_up(engine: DeafEngine) -> None:
    broker = await broker_on(engine)
    engine.failure = EngineFailure("the store is away")
    with pytest.raises(EngineFailure, match="the store is away"):
        await broker.pop(ORDERS, 0.02)
    assert broker.waiting == 0
    await broker.close()


async def test_a_waiting_pop_is_answered_with_the_failure_when_the_server_stops(engine: DeafEngine) -> None:
    broker = await broker_on(engine, SELDOM)
    engine.failure = EngineFailure("the store is away")
    pop = await waiting(broker)
    broker.stop_waiting()
    with pytest.raises(EngineFailure, match="the store is away"):
        await pop
    await broker.close()


async def test_a_pop_that_does_not_wait_fails_at_once(engine: DeafEngine) -> None:
    broker = await broker_on(engine)
    engine.failure = EngineFailure("the store is away")
    with pytest.raises(EngineFailure, match="the store is away"):
        await broker.pop(ORDERS)
    assert engine.looks == [1]
    await broker.close()


async def test_a_lease_that_may_have_been_given_is_waited_for_but_messages_that_may_have_been_settled_are_told_of(
    engine: DeafEngine,
) -> None:
    broker = await broker_on(engine)
    engine.failure = EngineFailure("the connection was lost", code="outcome_unknown")
    leasing = await waiting(broker)
    with pytest.raises(EngineFailure, match="the connection was lost"):
        await broker.pop(PopRequest(queue="orders", group="another", auto_ack=True), 60)
    engine.failure = None
    await push(broker, "p")
    assert len((await leasing).messages) == 1
    await broker.close()


# Switches --------------------------------------------------------------------------------------------------


async def test_what_another_server_was_told_to_stop_is_stopped_here_too(engine: DeafEngine) -> None:
    broker = await broker_on(engine)
    pop = await waiting(broker)
    await engine.write_flag("push_maintenance", True)
    await engine.write_flag("pop_maintenance", True)
    assert (await pop).reason == "paused"
    with pytest.raises(Unavailable) as caught:
        await push(broker, "p")
    assert caught.value.code == "maintenance"
    await broker.close()


async def test_a_switch_is_not_turned_back_by_what_was_read_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = DeafEngine()
    broker = await broker_on(engine)
    read, answered = asyncio.Event(), asyncio.Event()

    async def read_slowly() -> dict[str, bool]:
        flags = await SqliteEngine.read_flags(engine)
        read.set()
        await answered.wait()
        return flags

    monkeypatch.setattr(engine, "read_flags", read_slowly)
    refreshing = asyncio.create_task(broker.refresh_flags())
    await read.wait()
    await broker.set_maintenance(PUSH_MAINTENANCE, True)
    answered.set()
    await refreshing
    assert broker.maintenance(PUSH_MAINTENANCE)
    await broker.close()
