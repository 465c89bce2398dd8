"""Records of tasks, on every engine: stored with the settlement or not at all, waited for, cancelled, requeued."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hark.api.types.tasks import TaskStatus
from hark.broker import Broker
from hark.clock import FakeClock
from hark.engine import hints
from hark.engine.api import Answers, Engine
from hark.engine.sqlite import SqliteEngine
from hark.engine.sqlite.files import backup, restore
from hark.errors import EngineFailure, HarkError, LeaseLost, NotFound
from hark.model import (
    OWN,
    DeadLetterFilter,
    Delivery,
    Key,
    MessageFilter,
    NewMessage,
    PopRequest,
    QueueOptions,
    QueueSpec,
    Renewal,
    Settlement,
    SettleOutcome,
    Status,
    TaskEnd,
    Transaction,
    TransactionOutcome,
)
from hark.model.messages import TaskEndState
from hark.settings import Encryption, Settings
from hark.testing.server import FakeTimers
from tests.engine.engines import ENGINES, EngineKind, Open

SETTINGS = Settings(encryption=Encryption(key="ab" * 32))
SECONDS = 60.0
"""What never takes that long has failed."""
WAIT = 3600.0
"""Waits of the broker last that long by a clock that stands still: only an event ends them."""


class Failing:
    """An engine whose next transactions fail, before or after they are applied."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.fail_before = False
        self.lose_answer = False

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)

    async def transact(self, transactions: Sequence[Transaction]) -> Answers[TransactionOutcome]:
        """Fail once, if a test says so."""
        if self.fail_before:
            self.fail_before = False
            raise EngineFailure("the store is gone")
        answers = await self.engine.transact(transactions)
        if self.lose_answer:
            self.lose_answer = False
            raise EngineFailure("the answer of the store is lost")
        return answers


class Held:
    """A message that a consumer has."""

    def __init__(self, message: Delivery, lease: str, group: str, first: str | None = None) -> None:
        self.message = message
        self.lease = lease
        self.group = group
        self.first = first or message.transaction_id

    def done(self, result: object = None, state: TaskEndState = "done", status: Status = "completed") -> Settlement:
        """Its settlement with a result."""
        end = TaskEnd(
            transaction_id=self.first,
            state=state,
            result=msgspec.json.encode(result),
            ttl_ms=60_000,
        )
        return Settlement(
            self.message.id, self.message.partition_id, status, self.lease, None, None, self.group, task=end
        )


class World:
    """A broker, with the words of these tests."""

    def __init__(self, broker: Broker, engine: Failing, timers: FakeTimers) -> None:
        self.broker = broker
        self.engine = engine
        self.timers = timers

    async def push(self, transaction_id: str = "t1", queue: str = "q", **options: Any) -> str:
        """Push a task as the client does; the id of its message."""
        payload = {"task": "add", "resultTtl": 60, "transactionId": transaction_id}
        message = NewMessage(queue, "p", msgspec.json.encode(payload), transaction_id=transaction_id, **options)
        [outcome] = await self.broker.push([message])
        assert outcome.message_id is not None and outcome.status == "queued"
        return outcome.message_id

    async def take(self, queue: str = "q", group: str = "g", first: str | None = None) -> Held:
        """The next message."""
        found = await self.broker.pop(PopRequest(queue=queue, group=group, lease_ms=30_000, group_mode="shared"))
        [message] = found.messages
        assert found.lease_id is not None
        return Held(message, found.lease_id, group, first)

    async def settle(self, *items: Settlement) -> list[SettleOutcome]:
        """Settle."""
        return await self.broker.settle(items)

    async def status(self, message_id: str, transaction_id: str = "t1", wait: float = 0, **options: Any) -> TaskStatus:
        """The state of a task."""
        partition_id = await self.partition_of(message_id)
        async with asyncio.timeout(SECONDS):
            return await self.broker.tasks.status(partition_id, transaction_id, wait, message_id=message_id, **options)

    async def partition_of(self, message_id: str) -> str:
        """The partition of a message."""
        from hark.ids import partition_id_of

        return partition_id_of(message_id) or ""

    async def record(self, message_id: str, transaction_id: str = "t1", queue: str = "q") -> bytes | None:
        """What the store has."""
        key: Key = (OWN, "task", queue, (await self.partition_of(message_id))[:13], transaction_id)
        [entry] = await self.engine.engine.read_keys([key])
        return None if entry is None else bytes(entry.value)

    @asynccontextmanager
    async def waiting(self, message_id: str, transaction_id: str = "t1", **options: Any) -> AsyncIterator[Any]:
        """Wait for a task, which a watcher does from here on."""
        watchers = self.broker.keyvalue.watchers
        task = asyncio.create_task(self.status(message_id, transaction_id, WAIT, **options))
        async with asyncio.timeout(SECONDS):
            while not (len(watchers) and self.timers.armed):  # noqa: ASYNC110  # The loop is waited for.
                await asyncio.sleep(0)
        yield task
        await asyncio.wait([task])


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=ENGINES, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> EngineKind:
    found: EngineKind = request.param
    return found


@asynccontextmanager
async def broker_on(open_engine: Open, clock: FakeClock) -> AsyncIterator[World]:
    engine, timers = Failing(open_engine(clock)), FakeTimers(clock)
    broker = Broker(engine, SETTINGS, clock, timers=timers)  # type: ignore[arg-type]
    await broker.start()
    try:
        yield World(broker, engine, timers)
    finally:
        await broker.close()


@pytest.fixture
async def world(request: pytest.FixtureRequest, kind: EngineKind, clock: FakeClock) -> AsyncIterator[World]:
    with kind.store(request) as open_engine:
        async with broker_on(open_engine, clock) as world:
            yield world


# Stored with the settlement, or not at all --------------------------------------------------------------------


async def test_a_result_is_stored_with_the_settlement_and_ends_the_wait(world: World) -> None:
    message_id = await world.push()
    held = await world.take()
    assert (await world.status(message_id)).state == "running"
    async with world.waiting(message_id) as waits:
        [outcome] = await world.settle(held.done({"sum": 3}))
        assert outcome.success
        status = await waits
    assert (status.state, bytes(status.result)) == ("done", b'{"sum":3}')
    again = await world.status(message_id, message_id)
    assert bytes(again.result or b"") == b'{"sum":3}', "the message's own id names the task too"


async def test_a_store_that_fails_has_stored_neither_and_a_repetition_succeeds(world: World) -> None:
    message_id = await world.push()
    held = await world.take()
    world.engine.fail_before = True
    with pytest.raises(HarkError, match="the store is gone"):
        await world.settle(held.done(3))
    assert await world.record(message_id) is None
    assert (await world.status(message_id)).state == "running"
    [outcome] = await world.settle(held.done(3))
    assert outcome.success
    assert (await world.status(message_id)).result == msgspec.Raw(b"3")


async def test_after_a_lost_answer_a_repetition_under_the_same_lease_succeeds(world: World) -> None:
    message_id = await world.push()
    held = await world.take()
    world.engine.lose_answer = True
    with pytest.raises(HarkError, match="lost"):
        await world.settle(held.done(3))
    assert (await world.status(message_id)).result == msgspec.Raw(b"3")
    [outcome] = await world.settle(held.done(3))
    assert outcome.success
    assert (await world.status(message_id)).result == msgspec.Raw(b"3")


async def test_a_lease_that_has_ended_stores_nothing(world: World, clock: FakeClock) -> None:
    message_id = await world.push()
    late = await world.take()
    clock.advance(31)
    [outcome] = await world.settle(late.done("late"))
    assert not outcome.success and outcome.code
    assert await world.record(message_id) is None
    successor = await world.take()
    [outcome] = await world.settle(successor.done("in time"))
    assert outcome.success
    [outcome] = await world.settle(late.done("much too late"))
    assert not outcome.success, "a consumer whose lease has ended must not store beside its successor"
    assert (await world.status(message_id)).result == msgspec.Raw(b'"in time"')


async def test_each_result_of_a_batch_stands_for_itself(world: World) -> None:
    first, second, third = [await world.push(name) for name in ("a", "b", "c")]
    held = [await world.take() for _ in range(3)]
    plain = msgspec.structs.replace(held[2].done(), task=None)
    foreign = msgspec.structs.replace(held[1].done("foreign"), lease_id="01890000-0000-7000-8000-000000000000")
    outcomes = await world.settle(held[0].done(1), foreign, plain)
    assert [one.success for one in outcomes] == [True, False, True]
    assert [await world.record(one, name) is not None for one, name in ((first, "a"), (second, "b"), (third, "c"))] == [
        True,
        False,
        False,
    ]
    assert [(await world.status(one, name)).state for one, name in ((first, "a"), (second, "b"), (third, "c"))] == [
        "done",
        "running",
        "done",
    ]


async def test_a_result_expires(world: World, clock: FakeClock) -> None:
    message_id = await world.push()
    await world.settle((await world.take()).done(1))
    clock.advance(61)
    status = await world.status(message_id)
    assert (status.state, status.result) == ("done", msgspec.UNSET)


async def test_a_result_outlives_a_message_that_is_dropped(world: World) -> None:
    await world.broker.configure(QueueSpec(name="q", options=QueueOptions(drop_settled=True)))
    message_id = await world.push()
    await world.settle((await world.take()).done(1))
    assert (await world.status(message_id)).result == msgspec.Raw(b"1")
    with pytest.raises(NotFound):
        await world.status(message_id, "never pushed")


async def test_the_result_of_an_earlier_task_with_the_same_key_is_not_that_of_a_later_one(world: World) -> None:
    await world.broker.configure(QueueSpec(name="q", options=QueueOptions(drop_settled=True)))
    earlier = await world.push()
    await world.settle((await world.take()).done("earlier"))
    later = await world.push()
    assert (await world.status(earlier)).result == msgspec.Raw(b'"earlier"')
    assert (await world.status(later)).state == "pending"
    async with world.waiting(later) as waits:
        await world.settle((await world.take()).done("later"))
        assert (await waits).result == msgspec.Raw(b'"later"')


# Encryption, deletion -----------------------------------------------------------------------------------------


async def test_an_encrypted_queue_has_encrypted_records(world: World, clock: FakeClock) -> None:
    first = await world.push("open")
    await world.settle((await world.take()).done("words"))
    assert b"words" in (await world.record(first, "open") or b"")
    await world.broker.configure(QueueSpec(name="q", options=QueueOptions(encryption_enabled=True)))
    clock.advance(2)
    second = await world.push("sealed")
    held = await world.take()
    await world.broker.tasks.progress(held.message.partition_id, "sealed", held.lease, 0.5, "halfway")
    assert b"halfway" not in (await world.record(second, "sealed") or b"halfway")
    assert (await world.status(second, "sealed")).note == "halfway"
    await world.settle(held.done("words"))
    assert b"words" not in (await world.record(second, "sealed") or b"words")
    for message_id, name in ((first, "open"), (second, "sealed")):
        assert (await world.status(message_id, name)).result == msgspec.Raw(b'"words"')


async def test_a_deleted_queue_has_no_records(world: World) -> None:
    ids = {name: await world.push(name, queue=queue) for name, queue in (("a", "q"), ("b", "other"))}
    await world.settle((await world.take("q")).done(1), (await world.take("other")).done(2))
    await world.broker.delete_queues(["q"])
    assert await world.record(ids["a"], "a") is None
    assert (await world.status(ids["b"], "b")).result == msgspec.Raw(b"2")
    with pytest.raises(NotFound):
        await world.status(ids["a"], "a")


# Progress ------------------------------------------------------------------------------------------------------


async def test_progress_needs_a_lease_and_never_replaces_an_end(world: World, clock: FakeClock) -> None:
    message_id = await world.push()
    held = await world.take()
    partition_id = held.message.partition_id
    await world.broker.tasks.progress(partition_id, "t1", held.lease, 0.4, "resizing")
    status = await world.status(message_id)
    assert (status.state, status.progress, status.note) == ("running", 0.4, "resizing")
    clock.advance(31)
    with pytest.raises(LeaseLost):
        await world.broker.tasks.progress(partition_id, "t1", held.lease, 0.5, None)
    held = await world.take()
    await world.push("t2")
    reports = [world.broker.tasks.progress(partition_id, "t1", held.lease, 0.9, None) for _ in range(5)]
    await asyncio.gather(world.settle(held.done("done")), *reports, return_exceptions=True)
    status = await world.status(message_id)
    assert (status.state, status.result) == ("done", msgspec.Raw(b'"done"'))


# Failures ------------------------------------------------------------------------------------------------------


async def test_a_dead_letter_ends_the_wait_at_once(world: World) -> None:
    message_id = await world.push()
    held = await world.take()
    async with world.waiting(message_id) as waits:
        failed = msgspec.structs.replace(held.done(state="failed", status="dlq"), error="ValueError: no fuel")
        [outcome] = await world.settle(failed)
        assert outcome.dead_lettered
        status = await waits
    assert (status.state, status.error) == ("failed", "ValueError: no fuel")


async def test_a_dead_letter_of_expired_leases_is_found_by_a_look(world: World) -> None:
    await world.broker.configure(QueueSpec(name="q", options=QueueOptions(retry_limit=0)))
    message_id = await world.push()
    await world.take()
    async with world.waiting(message_id) as waits:
        for _ in range(8):
            world.timers.advance(5)
            async with asyncio.timeout(SECONDS):  # It looks, and waits again.
                while not waits.done() and not world.timers.armed:  # noqa: ASYNC110  # The loop is waited for.
                    await asyncio.sleep(0)
        assert (await waits).state == "failed"


async def test_the_group_of_the_workers_counts(world: World) -> None:
    message_id = await world.push()
    audit, held = await world.take(group="audit"), await world.take()
    await world.settle(msgspec.structs.replace(held.done(state="failed", status="dlq"), error="no fuel"))
    assert (await world.status(message_id, group="g")).state == "failed"
    assert (await world.status(message_id, group="audit")).state == "running"
    assert (await world.status(message_id, group="new")).state == "pending"
    await world.settle(audit.done("seen"))
    assert (await world.status(message_id)).result == msgspec.Raw(b'"seen"')


async def requeued(world: World) -> str:
    """Requeue the only dead letter; its new id."""
    [letter] = (await world.broker.dead_letters(DeadLetterFilter(queue="q"))).items
    [new] = await world.broker.tasks.requeue([letter.id])
    assert isinstance(new, str)
    return new


@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_handle_waits_for_the_run_of_a_requeued_dead_letter(world: World, encrypted: bool) -> None:
    await world.broker.configure(QueueSpec(name="q", options=QueueOptions(encryption_enabled=encrypted)))
    message_id = await world.push()
    for _ in range(2):
        held = await world.take(first="t1")
        await world.settle(held.done(state="failed", status="dlq"))
        assert (await world.status(message_id)).state == "failed"
        new = await requeued(world)
        assert (await world.status(message_id)).state == "pending"
    async with world.waiting(message_id) as waits:
        held = await world.take(first="t1")
        assert held.message.id == new
        assert held.message.transaction_id != "t1", "the dead-lettered message keeps its transaction id"
        await world.broker.tasks.progress(held.message.partition_id, held.message.transaction_id, held.lease, 0.5, None)
        assert (await world.status(message_id)).progress == 0.5
        await world.settle(held.done("in the end"))
        assert (await waits).result == msgspec.Raw(b'"in the end"')


async def test_dead_letters_that_are_too_large_together_are_requeued_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await world.push(f"t{number}")
        await world.settle(msgspec.structs.replace((await world.take()).done(state="failed", status="dlq"), error="no"))
    letters = (await world.broker.dead_letters(DeadLetterFilter(queue="q"))).items
    monkeypatch.setattr(hints, "CALL_BYTES", 1)
    answers = await world.broker.tasks.requeue([letter.id for letter in letters])
    assert [type(one) for one in answers] == [str] * 3


async def test_requeue_of_what_is_no_task_and_of_nothing(world: World) -> None:
    await world.broker.push([NewMessage("q", "p", b"[1]", transaction_id="plain")])
    held = await world.take()
    await world.settle(held.done(status="dlq", state="failed"))
    [letter] = (await world.broker.dead_letters(DeadLetterFilter(queue="q"))).items
    [new, nothing] = await world.broker.tasks.requeue([letter.id, "nothing"])
    assert isinstance(new, str) and isinstance(nothing, NotFound)
    assert await world.broker.tasks.requeue([]) == []
    assert (await world.take()).message.payload == msgspec.Raw(b"[1]")


# Cancellation ---------------------------------------------------------------------------------------------------


async def test_a_pending_task_is_removed_and_its_wait_ends(world: World) -> None:
    message_id = await world.push(delay_ms=3_600_000)
    assert (await world.status(message_id)).state == "scheduled"
    async with world.waiting(message_id) as waits:
        assert await world.broker.tasks.cancel(message_id) == "cancelled"
        assert (await waits).state == "cancelled"
    assert await world.broker.tasks.cancel(message_id) == "not_found"
    assert await world.broker.tasks.cancel("no id") == "not_found"
    later = await world.push()
    assert (await world.status(later)).state == "pending", "the same key, pushed again"


async def test_the_renewals_of_a_running_task_say_that_it_is_cancelled(world: World) -> None:
    message_id = await world.push()
    held = await world.take()
    await world.take(group="other")
    renewal = Renewal(held.lease, 30)
    assert (await world.broker.renew(renewal)).cancelled == ()
    assert await world.broker.tasks.cancel(message_id) == "cancelling"
    for _ in range(2):
        assert (await world.broker.renew(renewal)).cancelled == (message_id,)
    async with world.waiting(message_id) as waits:
        await world.settle(held.done(state="cancelled"))
        assert (await waits).state == "cancelled"
    assert await world.broker.tasks.cancel(message_id) == "settled"


async def test_a_task_that_waits_for_its_retry_is_removed(world: World) -> None:
    message_id = await world.push()
    held = await world.take()
    await world.settle(msgspec.structs.replace(held.done(), status="failed", task=None, delay_ms=60_000))
    async with world.waiting(message_id) as waits:
        assert await world.broker.tasks.cancel(message_id) == "cancelled"
        assert (await waits).state == "cancelled"
    world.timers.advance(61)
    assert not (await world.broker.pop(PopRequest(queue="q", group="g"))).messages


async def test_a_requeued_task_is_cancelled_by_its_new_id(world: World) -> None:
    message_id = await world.push()
    await world.settle((await world.take()).done(state="failed", status="dlq"))
    new = await requeued(world)
    async with world.waiting(message_id) as waits:
        assert await world.broker.tasks.cancel(new) == "cancelled"
        assert (await waits).state == "cancelled"


async def test_a_restored_store_has_the_results_under_its_new_ids(tmp_path: Path, clock: FakeClock) -> None:
    store, copy = tmp_path / "hark.db", tmp_path / "copy.db"

    def quiet(_done: int, _total: int) -> None: ...

    def at(path: Path) -> Open:
        return lambda clock: SqliteEngine(str(path), clock=clock)

    async with broker_on(at(store), clock) as world:
        await world.push()
        await world.settle((await world.take()).done(7))
        backup(store, copy, quiet)
    for number in range(5):  # The tag in the ids of a restored store is greater than before, or less.
        restored = tmp_path / f"restored-{number}.db"
        restore(copy, restored, quiet)
        async with broker_on(at(restored), clock) as world:
            [message] = await world.broker.messages(MessageFilter(queue="q"))
            status = await world.status(message.id)
            assert (status.state, bytes(status.result or b"")) == ("done", b"7")
