"""Every call of an engine is counted and timed, by queue too; and ready means that the store answers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import cast

import msgspec
import pytest

from hark.broker.engine_calls import VERBS, EngineCalls, instrumented
from hark.broker.tallies import Tallies
from hark.broker.upkeep import LATELY_SECONDS, Readiness
from hark.clock import SECOND, FakeClock, SystemClock
from hark.engine.api import Engine
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure, HarkError, InvalidInput
from hark.model import (
    Delivery,
    KeyWrite,
    KeyWritten,
    NewMessage,
    PopRequest,
    PopResult,
    PushOutcome,
    Settlement,
    SettleOutcome,
    Transaction,
    TransactionOutcome,
)


class Unasked:
    """An engine that has all verbs and is asked for none of them."""

    def __getattr__(self, name: str) -> Callable[[object], None]:
        def verb(_requests: object) -> None:
            raise AssertionError(name)

        return verb


class Broken(Unasked):
    """An engine that is away."""

    def __init__(self, clock: list[float]) -> None:
        self._clock = clock
        self.code = "engine_failure"

    async def ping(self) -> None:
        """Fail after a while."""
        self._clock[0] += 0.02
        raise EngineFailure("away", code=self.code)

    async def push(self, _requests: object) -> None:
        """Fail as no engine should."""
        raise ValueError


def broken() -> tuple[Broken, Engine, EngineCalls]:
    """An engine that is away, with its measured face and the numbers."""
    now = [0.0]
    engine = Broken(now)
    calls = EngineCalls(timer=lambda: now[0])
    return engine, instrumented(cast(Engine, engine), calls, Tallies(FakeClock())), calls


def is_asynchronous(verb: Callable[..., object]) -> bool:
    """Whether the protocol lets a function be awaited."""
    is_awaitable = str(inspect.signature(verb).return_annotation).startswith("Awaitable[")
    return is_awaitable or inspect.iscoroutinefunction(verb)


def test_all_verbs_of_the_protocol_are_wrapped() -> None:
    engine = SqliteEngine(":memory:", clock=SystemClock())
    face = instrumented(engine, EngineCalls(), Tallies(FakeClock()))
    asynchronous = [name for name, verb in inspect.getmembers(Engine, inspect.isfunction) if is_asynchronous(verb)]
    assert sorted(VERBS) == asynchronous
    assert set(VERBS) >= {"push", "ping", "write_keys"}
    assert set(VERBS) <= set(vars(face)), "not merely passed on"


async def test_failures_are_counted_by_verb_and_code_and_raised_as_they_are() -> None:
    _, face, calls = broken()
    for _ in range(2):
        with pytest.raises(EngineFailure, match="away"):
            await face.ping()
    with pytest.raises(ValueError):
        await face.push([])
    assert calls.errors == {("ping", "engine_failure"): 2, ("push", "internal"): 1}
    assert calls.seconds["ping"].count == 2
    assert calls.seconds["ping"].sum == pytest.approx(0.04)
    assert dict(calls.seconds["ping"].cumulative())["0.01"] == 0
    assert dict(calls.seconds["ping"].cumulative())["0.05"] == 2


async def test_codes_without_end_are_summed_up() -> None:
    engine, face, calls = broken()
    for number in range(1000):
        engine.code = f"code-{number}"
        with pytest.raises(EngineFailure):
            await face.ping()
    assert len(calls.errors) == 61
    assert sum(calls.errors.values()) == 1000


async def test_what_is_no_verb_is_the_engines_own() -> None:
    engine = SqliteEngine(":memory:", clock=SystemClock())
    tallies = Tallies(FakeClock())
    face = instrumented(engine, EngineCalls(), tallies)
    assert (face.shared, face.follows, face.on_hints([])) == (engine.shared, engine.follows, [])
    await face.start(lambda _hints: None)
    await face.push([[NewMessage("a"), NewMessage("a")]])
    await face.close()
    assert tallies.queues["a"].pushed == 2


# Tallies: what is counted by queue is bounded, and the total has all of it ---------------------------------


QUEUED = PushOutcome("queued", None)


def push(tallies: Tallies, *queues: str) -> None:
    """A request for each queue, as one batch."""
    tallies.pushed([[NewMessage(queue)] for queue in queues], [[QUEUED] for _ in queues])


@pytest.fixture
def tallies() -> Tallies:
    return Tallies(FakeClock())


def test_queues_that_were_busy_longest_ago_are_forgotten_but_in_the_total_and_named_until_they_are_sampled() -> None:
    tallies = Tallies(FakeClock(), most_queues=3)
    push(tallies, "a", "b", "c", "a", "d", "e")
    assert list(tallies.queues) == ["a", "d", "e"], "a was busy after b and c"
    assert [tally.pushed for tally in tallies.queues.values()] == [2, 1, 1]
    assert tallies.total.pushed == 6
    assert tallies.changed_queues == {"a", "b", "c", "d", "e"}
    tallies.changed_queues = set()  # As the sampler does.
    push(tallies, "b")
    assert tallies.changed_queues == {"b"}


def test_a_million_names_keep_no_more_than_the_bound(tallies: Tallies) -> None:
    for start in range(0, 30_000, 1000):
        push(tallies, *(f"queue-{number}" for number in range(start, start + 1000)))
        tallies.changed_queues = set()
    assert len(tallies.queues) == 10_000
    assert tallies.total.pushed == 30_000


def test_messages_of_a_request_count_for_their_own_queues(tallies: Tallies) -> None:
    messages = [NewMessage(queue) for queue in ("a", "a", "b", "a", "b")]
    duplicate, full = PushOutcome("duplicate", None), PushOutcome("failed", None, code="queue_full")
    # What is sealed again, as its queue's encryption was changed, is not refused.
    again = PushOutcome("failed", None, code="sealing_mismatch")
    tallies.pushed([messages], [[QUEUED, duplicate, full, QUEUED, again]])
    a, b = tallies.queues["a"], tallies.queues["b"]
    assert (a.pushed, a.duplicates, b.pushed, b.refused) == (2, 1, 0, 1)
    assert (tallies.total.pushed, tallies.total.duplicates, tallies.total.refused) == (2, 1, 1)
    # A request that could not be judged leaves the others where they are.
    requests = [[NewMessage("c")], [NewMessage("d"), NewMessage("d")], [NewMessage("e")]]
    tallies.pushed(requests, [[QUEUED], EngineFailure("away"), [QUEUED]])
    assert {name: tally.pushed for name, tally in tallies.queues.items()} == {"a": 2, "b": 0, "c": 1, "e": 1}
    assert (tallies.push_requests, tallies.total.pushed) == (4, 4)


def test_settlements_that_change_nothing_are_not_counted_and_refused_ones_apart(tallies: Tallies) -> None:
    again = SettleOutcome("t", True, queue="a")
    refused = SettleOutcome("t", False, "lease_expired", "too late", "a")
    tallies.settled([[Settlement("t"), Settlement("t")]], [[again, refused]])
    assert (tallies.total.settled, tallies.refused_settlements, tallies.settle_requests) == (0, 1, 1)
    # A dead letter that is not kept counts as failed.
    tallies.settled([[Settlement("t", status="dlq")]], [[SettleOutcome("t", True, queue="a", lease_id="l")]])
    assert (tallies.total.failed, tallies.total.dead_lettered) == (1, 0)


def test_messages_of_transactions_and_with_keys_count_if_they_were_written(tallies: Tallies) -> None:
    write = KeyWrite(messages=[NewMessage("a")])
    tallies.wrote_keys([write, write], [KeyWritten(True, messages=[QUEUED]), KeyWritten(False)])
    tallies.transacted(
        [Transaction([], keys=write)], [TransactionOutcome(True, (), keys=KeyWritten(True, messages=[QUEUED]))]
    )
    assert tallies.total.pushed == 2
    failed = Transaction([NewMessage("a")])
    tallies.transacted([failed, failed], [TransactionOutcome(False, ()), EngineFailure("away")])
    assert (tallies.transactions, tallies.total.pushed) == (3, 2), "what failed counts nothing but itself"


def test_a_message_from_the_future_by_another_clock_was_delivered_at_once() -> None:
    clock = FakeClock()
    tallies = Tallies(clock)
    created_at = clock.now() + 3600 * SECOND
    late = Delivery("id", "id", None, msgspec.Raw(b"1"), False, None, created_at, "a", "p", "id", 1, 0, attempt=1)
    tallies.popped([PopRequest(queue="a")], [PopResult([late])])
    assert (tallies.ages[0], sum(tallies.ages), tallies.age_sum) == (1, 1, 0)


# Ready means: the store answered lately, or does when asked ------------------------------------------------


class _Store(Unasked):
    """An engine that answers, or does not."""

    shared = follows = False

    def __init__(self) -> None:
        self.error: HarkError | None = None
        self.pings = 0
        self.hold = asyncio.Event()
        self.hold.set()

    async def ping(self) -> None:
        """Count, wait if told to, and fail if there is a reason."""
        self.pings += 1
        await self.hold.wait()
        if self.error is not None:
            raise self.error

    async def settle(self, requests: list[object]) -> list[object]:
        """Answer nothing, or fail."""
        if self.error is not None:
            raise self.error
        return [[] for _ in requests]


class _World:
    """A store, its measured engine, and the time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.store = _Store()
        calls = EngineCalls(lambda: self.now)
        self.engine = instrumented(cast(Engine, self.store), calls, Tallies(FakeClock()))
        self.readiness = Readiness(self.engine, calls)


@pytest.fixture
async def world() -> _World:
    """A world in which nothing happened yet."""
    return _World()


async def test_the_store_is_requested_at_first_and_when_it_has_not_answered_for_a_while(world: _World) -> None:
    assert await world.readiness.problem() is None
    assert world.store.pings == 1
    world.now += LATELY_SECONDS
    await world.engine.settle([])
    world.now += LATELY_SECONDS
    assert await world.readiness.problem() is None
    assert world.store.pings == 1
    world.now += 0.1
    assert await world.readiness.problem() is None
    assert world.store.pings == 2
    assert await world.readiness.problem() is None
    assert world.store.pings == 2, "the answer to that counts too"


async def test_a_failure_makes_the_last_answer_worthless_a_refusal_is_an_answer_and_a_server_that_stops_is_not_ready(
    world: _World,
) -> None:
    await world.engine.settle([])
    world.store.error = InvalidInput("no")
    with pytest.raises(InvalidInput):
        await world.engine.settle([])
    assert await world.readiness.problem() is None
    assert world.store.pings == 0
    world.store.error = EngineFailure("the disk is gone")
    with pytest.raises(EngineFailure):
        await world.engine.settle([])
    assert await world.readiness.problem() == "the disk is gone"
    world.store.error = None
    assert await world.readiness.problem() is None
    world.readiness.stopping = True
    assert await world.readiness.problem() == "the server is shutting down"


async def test_many_who_ask_share_one_question(world: _World) -> None:
    world.store.hold.clear()
    checks = [asyncio.ensure_future(world.readiness.reach())]
    checks += [asyncio.ensure_future(world.readiness.problem()) for _ in range(3)]
    checks += [asyncio.ensure_future(world.readiness.reach())]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    checks.pop().cancel()
    world.store.hold.set()
    assert await asyncio.gather(*checks) == [None] * 4
    assert world.store.pings == 1
