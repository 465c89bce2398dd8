"""How far a flow is, and what stops it, on every engine and through several servers of one store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack

import msgspec
import pytest

from hark.api.types.tasks import FlowStep
from hark.broker import Broker
from hark.broker.flow_plans import FlowMap, Plan, PlanNode, Step, reached
from hark.broker.keyvalue import Change
from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import NotFound, Unavailable
from hark.model import (
    QUEUE_MODE,
    CancelOutcome,
    DeadLetterFilter,
    Delivery,
    MessageView,
    NewMessage,
    PopRequest,
    QueueOptions,
    QueueSpec,
    Renewal,
    RenewOutcome,
    Settlement,
    StepRef,
    TaskEnd,
)
from hark.settings import Settings
from hark.testing.server import FakeTimers
from tests.engine.engines import ENGINES, EngineKind

LONG = 25


@pytest.fixture(params=ENGINES, ids=lambda kind: kind.name)
async def brokers(request: pytest.FixtureRequest) -> AsyncIterator[Sequence[Broker]]:
    """Two brokers on one store; twice the same one, if the store is for one server."""
    kind: EngineKind = request.param
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        open_engine = stack.enter_context(kind.store(request))
        made = []
        for _ in range(1 if kind.exclusive else 2):
            broker = Broker(open_engine(clock), Settings(), clock, timers=FakeTimers(clock))
            await broker.start()
            stack.push_async_callback(broker.close)
            made.append(broker)
        yield made if len(made) == 2 else made * 2


def step(name: str, queue: str = "q", argument: str = "") -> PlanNode:
    """A step of a plan."""
    return PlanNode(NewMessage(queue, payload=msgspec.json.encode({"task": name, "resultTtl": 60, "args": [argument]})))


async def take(broker: Broker, group: str = QUEUE_MODE) -> tuple[Delivery, Settlement]:
    """The next message, and its settlement with a result."""
    [taken] = await take_some(broker, 1, group)
    return taken


async def take_some(
    broker: Broker, most: int, group: str = QUEUE_MODE, queue: str = "q"
) -> list[tuple[Delivery, Settlement]]:
    """The next messages, with their settlements."""
    popped = await broker.pop(PopRequest(queue=queue, group=group, batch=most, lease_ms=30_000, group_mode="shared"))
    taken: list[tuple[Delivery, Settlement]] = []
    for one in popped.messages:
        ref = StepRef(**msgspec.json.decode(one.payload)["flow"])
        assert one.transaction_id is not None
        end = TaskEnd(transaction_id=one.transaction_id, state="done", result=b"1", ttl_ms=60_000, flow=ref)
        settlement = Settlement(one.id, one.partition_id, "completed", popped.lease_id, group=group, task=end)
        taken.append((one, settlement))
    return taken


def path_of(message: Delivery) -> str:
    """The path of the step of a message."""
    return StepRef(**msgspec.json.decode(message.payload)["flow"]).path


async def states(broker: Broker, id: str) -> str:
    """The first letters of the states of all steps."""
    return "".join(one.state[0] for one in (await broker.tasks.flows.status("q", id)).steps)


@pytest.mark.parametrize("forgets", [False, True], ids=["keeps", "drops"])
async def test_each_server_knows_how_far_a_long_chain_is(brokers: Sequence[Broker], forgets: bool) -> None:
    """Not the end of each step is stored; messages may be removed as soon as they are settled."""
    one, other = brokers
    await one.configure(QueueSpec(name="q", options=QueueOptions(drop_settled=forgets)))
    flow = await one.tasks.flows.push(Plan([step(f"t{number}") for number in range(LONG)], 60_000))
    settled: list[Settlement] = []
    for number in range(LONG):
        for broker in brokers:
            assert await states(broker, flow.id) == "d" * number + "p" + "w" * (LONG - number - 1)
        _, settlement = await take(one)
        assert await states(other, flow.id) == "d" * number + "r" + "w" * (LONG - number - 1)
        settled.append(settlement)
        for broker, repeated in ((one, settlement), (other, settlement), (one, settled[max(0, number - 1)])):
            [outcome] = await broker.settle([repeated])  # The answer before may be lost.
            assert outcome.success
    assert (await other.tasks.flows.status("q", flow.id)).state == "done"
    assert not (await one.pop(PopRequest(queue="q", group_mode="shared"))).messages


async def test_a_step_whose_message_was_removed_ends_nothing_before_it(brokers: Sequence[Broker]) -> None:
    one, other = brokers
    flow = await one.tasks.flows.push(Plan([step(f"t{number}") for number in range(5)], 60_000))
    for _ in range(2):
        _, settlement = await take(one)
        await one.settle([settlement])
    message, _ = await take(one)
    await one.engine.delete_messages([message.id])
    assert await states(other, flow.id) == "dcwww"  # That the second one was done is known no more.
    assert (await other.tasks.flows.status("q", flow.id)).state == "cancelled"


async def test_a_flow_that_another_server_cancelled_pushes_nothing(brokers: Sequence[Broker]) -> None:
    one, other = brokers
    flow = await one.tasks.flows.push(Plan([step(f"t{number}") for number in range(4)], 60_000))
    _, first = await take(one)
    await one.settle([first])
    _, second = await take(one)
    assert await other.tasks.flows.cancel("q", flow.id)
    [outcome] = await one.settle([second])
    assert outcome.success
    assert not (await one.pop(PopRequest(queue="q", group_mode="shared"))).messages
    assert await states(one, flow.id) == "dccc"
    assert not await one.tasks.flows.cancel("q", flow.id)


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
@pytest.mark.parametrize("size", [1, 30_000], ids=["cached", "not cached"])
async def test_no_step_is_pushed_after_a_cancellation(brokers: Sequence[Broker], size: int, together: bool) -> None:
    """Also by a server that has read the plan after it, and for the second step that was running."""
    one, other = brokers
    group = PlanNode(group=[[step("a"), step("b")], [step("c"), step("d")]])
    plans = {"chain": [step("a", argument="x" * size), step("b")], "group": [group, step("e", argument="x" * size)]}
    for id, nodes in plans.items():
        await one.tasks.flows.push(Plan(nodes, 60_000), id)
    running = [settlement for _, settlement in await take_some(one, 3)]
    for id in plans:
        assert await other.tasks.flows.cancel("q", id)
    for some in [running] if together else [[settlement] for settlement in running]:
        assert all(outcome.success for outcome in await one.settle(some))
    assert not (await one.pop(PopRequest(queue="q", group_mode="shared"))).messages
    for id, shown in (("chain", "cc"), ("group", "ccccc")):
        assert await states(one, id) == shown
        assert (await other.tasks.flows.status("q", id)).state == "cancelled"


async def test_a_flow_stays_cancelled_as_long_as_its_steps_can_be_requeued(brokers: Sequence[Broker]) -> None:
    one, other = brokers
    await one.tasks.flows.push(Plan([step("a"), step("b")], 60_000), "f")
    _, settlement = await take(one)
    dead = msgspec.structs.replace(settlement, status="dlq", task=None)
    assert all(outcome.success for outcome in await one.settle([dead]))
    assert await other.tasks.flows.cancel("q", "f")
    timers = one.keyvalue.watchers.timers
    assert isinstance(timers, FakeTimers)
    timers.advance(2 * 3600)
    [letter] = (await one.engine.dead_letters(DeadLetterFilter(queue="q"))).items
    await one.engine.requeue([letter.id])
    assert all(outcome.success for outcome in await one.settle([(await take(one))[1]]))
    assert not (await one.pop(PopRequest(queue="q", group_mode="shared"))).messages
    assert (await other.tasks.flows.status("q", "f")).state == "cancelled"


async def test_a_flow_in_a_queue_that_was_made_again_is_shown_as_it_is(brokers: Sequence[Broker]) -> None:
    one, other = brokers
    plan = Plan([step("a"), step("b")], 60_000)
    for _ in range(2):
        flow = await one.tasks.flows.push(plan)
        for broker in (one, other, one, other):
            assert await states(broker, flow.id) == "pw"
        await one.delete_queues(["q"])


async def test_flows_with_one_id_and_different_first_queues_do_not_meet(brokers: Sequence[Broker]) -> None:
    one, other = brokers
    firsts = ("images", "bills")
    for queue in firsts:
        plan = Plan([step("first", queue), step("shared")], 60_000)
        assert (await one.tasks.flows.push(plan, "order-17")).status == "queued"
    for queue in firsts:
        [(_, settlement)] = await take_some(one, 1, queue=queue)
        assert all(outcome.success for outcome in await other.settle([settlement]))
    assert await other.tasks.flows.cancel("images", "order-17")
    [(_, settlement)] = await take_some(one, 2)
    assert all(outcome.success for outcome in await one.settle([settlement]))
    assert [(await one.tasks.flows.status(queue, "order-17")).state for queue in firsts] == ["cancelled", "done"]


async def test_a_cancelled_group_is_removed_in_few_calls_and_those_who_run_a_member_are_notified(
    brokers: Sequence[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = brokers
    flow = await one.tasks.flows.push(Plan([PlanNode(group=[[step(f"t{number}")] for number in range(9)])], 60_000))
    message, settlement = await take(one)
    asked: list[int] = []
    cancel = other.engine.cancel

    async def counted(message_ids: Sequence[str]) -> list[CancelOutcome]:
        asked.append(len(message_ids))
        return await cancel(message_ids)

    monkeypatch.setattr(other.engine, "cancel", counted)
    assert await other.tasks.flows.cancel("q", flow.id)
    assert asked == [9, 1]
    assert not (await one.pop(PopRequest(queue="q", group_mode="shared"))).messages
    assert settlement.lease_id is not None
    [renewed] = await one.tasks.renew([Renewal(settlement.lease_id)])
    assert isinstance(renewed, RenewOutcome)
    assert renewed.cancelled == (message.id,)


@pytest.mark.parametrize("speed", [0, 0.2, 0.5, 1, 1.5, 3])
async def test_a_flow_that_goes_on_while_it_is_looked_at_is_not_seen_behind_where_it_was(speed: float) -> None:
    map = FlowMap("q", "f", Plan([step(f"t{number}") for number in range(9)], 60_000))
    at = begin = 2.0

    async def is_stored(one: Step) -> bool:
        nonlocal at
        at = min(8, at + speed)
        return int(one.path) == int(at)  # Those before are removed.

    progress = [progress for _, progress in await reached(map, {}, is_stored)]
    assert begin <= progress.index("pushed") <= at
    assert progress.count("pushed") == 1


async def test_an_id_whose_messages_are_retained_is_a_duplicate_after_the_end_has_expired(
    brokers: Sequence[Broker],
) -> None:
    """Its messages would be duplicates, so the flow would never end."""
    first, second = brokers
    plan = Plan([step("a"), step("b")], ttl_ms=60_000)
    assert (await first.tasks.flows.push(plan, "f")).status == "queued"
    for _ in range(2):
        _, settlement = await take(first)
        assert all(outcome.success for outcome in await second.settle([settlement]))
    clock = first.keyvalue.watchers.timers
    assert isinstance(clock, FakeTimers)
    clock.advance(3600)
    assert (await second.tasks.flows.push(plan, "f")).status == "duplicate"
    with pytest.raises(NotFound):
        await first.tasks.flows.status("q", "f")


async def test_a_step_that_two_consumer_groups_settle_is_handed_over_once(brokers: Sequence[Broker]) -> None:
    first, second = brokers
    plan = Plan([step("a"), step("b"), PlanNode(group=[[step("m"), step("n")], [step("m"), step("n")]])], ttl_ms=60_000)
    await first.tasks.flows.push(plan, "f")
    for path in ("0", "1"):
        for group, broker in (("one", first), ("two", second)):
            message, settlement = await take(broker, group)
            assert path_of(message) == path
            [outcome] = await broker.settle([settlement])
            assert outcome.success
    ones = [await take(first, "one") for _ in range(2)]
    twos = [await take(second, "two") for _ in range(2)]
    for broker, some in ((first, ones), (second, twos)):
        assert all(outcome.success for outcome in await broker.settle([settlement for _, settlement in some]))
    for group, broker in (("one", first), ("two", second)):
        last = [await take(broker, group) for _ in range(2)]
        assert sorted(path_of(message) for message, _ in last) == ["2.0.1", "2.1.1"]
        assert all(outcome.success for outcome in await broker.settle([settlement for _, settlement in last]))
    status = await second.tasks.flows.status("q", "f")
    assert status.state == "done" and status.result == msgspec.Raw(b"[1,1]")


async def test_the_slower_a_look_at_a_flow_is_the_longer_are_the_pauses_of_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    broker = Broker(SqliteEngine(":memory:", clock=clock), Settings(), clock, timers=FakeTimers(clock))
    pauses: list[float] = []
    seconds_of_a_look = 1

    async def slow(partition_id: str, transaction_id: str) -> MessageView | None:
        clock.advance(seconds_of_a_look)
        return await message(partition_id, transaction_id)

    async def pause(_: object, seconds: float) -> Sequence[Change]:
        pauses.append(seconds)
        clock.advance(seconds)
        return ()

    message = broker.message
    await broker.start()
    try:
        flow = await broker.tasks.flows.push(Plan([step("a")], 60_000))
        monkeypatch.setattr(broker, "message", slow)
        monkeypatch.setattr(broker.keyvalue.watchers, "first_changes", pause)
        await broker.tasks.flows.status("q", flow.id, 30)
    finally:
        await broker.close()
    assert pauses
    assert pauses[0] >= 9 * seconds_of_a_look


@pytest.mark.parametrize("forgets", [False, True], ids=["keeps", "drops"])
async def test_steps_that_two_servers_settle_at_once_and_again_are_pushed_and_counted_once(
    brokers: Sequence[Broker], forgets: bool
) -> None:
    chance = random.Random(21)
    await brokers[0].configure(QueueSpec(name="q", options=QueueOptions(drop_settled=forgets)))
    inner = PlanNode(group=[[step("a"), step("b")], [step("c")]])
    nodes = [
        step("first"),
        PlanNode(group=[[step(f"m{number}")] for number in range(6)] + [[inner, step("d")], [inner]]),
    ]
    flow = await brokers[0].tasks.flows.push(Plan([*nodes, step("join"), step("last")], 60_000))
    earlier: list[Settlement] = []
    steps: list[str | None] = []
    while (await brokers[0].tasks.flows.status("q", flow.id)).state != "done":
        taken = [one for broker in brokers for one in await take_some(broker, chance.randint(1, 3))]
        steps += [message.transaction_id for message, _ in taken]
        settlements = [settlement for _, settlement in taken]
        both = [(broker, settlements) for broker in brokers] + [(chance.choice(brokers), earlier[-8:])]
        chance.shuffle(both)
        for outcomes in await asyncio.gather(*(broker.settle(some) for broker, some in both)):
            assert all(outcome.success for outcome in outcomes)
        earlier += settlements
    assert len(steps) == len(set(steps)) == 6 + 4 + 3 + 3
    result = (await brokers[1].tasks.flows.status("q", flow.id)).result
    assert result == msgspec.Raw(b"1")
    await brokers[1].push([NewMessage("q", payload=b"1")])
    [last] = (await brokers[1].pop(PopRequest(queue="q", group_mode="shared"))).messages
    assert last.offset == len(steps) + 1, "a duplicate takes no offset"


async def test_a_step_whose_lease_has_expired_is_handed_over_by_its_next_consumer(brokers: Sequence[Broker]) -> None:
    one, other = brokers
    await one.tasks.flows.push(Plan([step("a"), PlanNode(group=[[step("m")], [step("n")]])], 60_000), "f")
    await one.settle([(await take(one))[1]])
    timers = one.keyvalue.watchers.timers
    assert isinstance(timers, FakeTimers)
    late = [await take(one), await take(one)]
    timers.advance(32)
    again = [await take(other), await take(other)]
    assert {message.id for message, _ in late} == {message.id for message, _ in again}
    for broker, some, success in ((one, late, False), (other, again, True)):
        for outcome in await broker.settle([settlement for _, settlement in some]):
            assert outcome.success == success
    assert (await one.tasks.flows.status("q", "f")).state == "done"


async def test_a_message_that_claims_to_be_a_member_of_a_group_to_come_is_an_ordinary_one(
    brokers: Sequence[Broker],
) -> None:
    one, other = brokers
    flow = await one.tasks.flows.push(Plan([step("a"), PlanNode(group=[[step("m")], [step("n")]])], 60_000), "f")
    await take(one)
    payload = msgspec.json.encode({"task": "m", "flow": {"queue": "q", "id": "f", "path": "1.0"}})
    await one.push([NewMessage("q", payload=payload, transaction_id="mine")])
    for settlement in [(await take(one))[1]] * 2:
        [outcome] = await other.settle([settlement])
        assert outcome.success
    assert await states(one, flow.id) == "rww"


async def test_a_cancellation_that_ended_in_the_middle_is_completed_by_the_next_one(
    brokers: Sequence[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = brokers
    await one.tasks.flows.push(Plan([PlanNode(group=[[step("m")], [step("n")]])], 60_000), "f")

    async def fail(*_map: object, **_stopped: bool) -> list[FlowStep]:
        raise Unavailable("the server is killed here", code="store_unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(one.tasks.flows, "_steps", fail)
        with pytest.raises(Unavailable):
            await one.tasks.flows.cancel("q", "f")
    assert await other.tasks.flows.cancel("q", "f")
    assert not (await one.pop(PopRequest(queue="q", group_mode="shared"))).messages
    assert not await one.tasks.flows.cancel("q", "f")
