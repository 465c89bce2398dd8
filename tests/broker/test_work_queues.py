"""Work queues: how they are made and remembered, and what messages get that do not say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest

from hark.broker import Broker
from hark.broker.work_queues import NO_ERROR
from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.model import DeadLetterFilter, NewMessage, QueueOptions, QueueSpec
from hark.settings import Encryption, Queue, Settings

SETTINGS = Settings(queue=Queue(lock_duration=5000), encryption=Encryption(key="ab" * 32))


class CountingEngine(SqliteEngine):
    """A store that counts how often queues are made."""

    made: list[str]

    async def make_queues(self, specs: Sequence[QueueSpec]) -> None:
        """Note the names."""
        self.made += [spec.name for spec in specs]
        await super().make_queues(specs)


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


@pytest.fixture
def engine(clock: FakeClock) -> CountingEngine:
    """The store of the broker."""
    engine = CountingEngine(":memory:", clock=clock)
    engine.made = []
    return engine


@pytest.fixture
async def broker(engine: CountingEngine, clock: FakeClock) -> AsyncIterator[Broker]:
    """A broker that is at work."""
    broker = Broker(engine, SETTINGS, clock)
    await broker.start()
    yield broker
    await broker.close()


async def test_a_queue_is_made_before_it_is_first_used_and_remembered(
    broker: Broker, engine: CountingEngine, clock: FakeClock
) -> None:
    work = broker.work_queues
    await work.poll("a.b.c")
    await work.enqueue(NewMessage("a.b.c"))
    await work.poll("a.b.c")
    assert engine.made == ["a.b.c"]
    [info] = await engine.queue_infos(["a.b.c"])
    assert (info.namespace, info.task, info.options) == ("a", "b", QueueOptions(drop_settled=True))
    # Somebody else may have deleted it meanwhile.
    clock.advance(1.1)
    await work.enqueue(NewMessage("a.b.c"))
    assert engine.made == ["a.b.c"] * 2


async def test_a_queue_that_is_there_stays_as_it_is(broker: Broker, engine: CountingEngine) -> None:
    options = QueueOptions(retry_limit=7, lease_time=9)
    await broker.configure(QueueSpec(name="q", namespace="mine", options=options))
    await broker.work_queues.enqueue(NewMessage("q"))
    [info] = await engine.queue_infos(["q"])
    assert (info.namespace, info.options) == ("mine", options)


async def test_a_queue_that_was_deleted_is_forgotten(broker: Broker, engine: CountingEngine) -> None:
    await broker.work_queues.enqueue(NewMessage("q"))
    assert await broker.delete_queues(["q", "other"]) == [True, False]
    await broker.work_queues.enqueue(NewMessage("q"))
    assert engine.made == ["q", "q"]
    [info] = await engine.queue_infos(["q"])
    assert info.options.drop_settled


async def test_messages_get_a_schedule_unless_they_have_one(broker: Broker) -> None:
    messages = [NewMessage("q"), NewMessage("r", backoff_ms=()), NewMessage("q", backoff_ms=(7,))]
    await broker.work_queues.admit(messages)
    assert [message.backoff_ms for message in messages] == [(1000, 5000, 10_000), (), (7,)]


async def test_a_message_is_held_as_long_as_the_settings_say(broker: Broker, clock: FakeClock) -> None:
    await broker.work_queues.enqueue(NewMessage("q"))
    result = await broker.work_queues.poll("q")
    assert result.expires_at == clock.now() + 5_000_000


async def test_an_encrypted_queue_can_be_worked_on(broker: Broker) -> None:
    await broker.configure(QueueSpec(name="q", options=QueueOptions(encryption_enabled=True)))
    work = broker.work_queues
    id = await work.enqueue(NewMessage("q", payload=b'"secret"', backoff_ms=()))
    result = await work.poll("q")
    assert bytes(result.messages[0].payload) == b'"secret"'
    assert (await work.settle(id, result.lease_id, "failed")).dead_lettered
    [letter] = (await broker.dead_letters(DeadLetterFilter(queue="q"))).items
    assert (bytes(letter.payload), letter.error) == (b'"secret"', NO_ERROR)
