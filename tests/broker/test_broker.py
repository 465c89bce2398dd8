"""The broker on a real engine: waiting, leaving, maintenance, sealing, work queues, and the duty that sweeps up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import pytest

from hark.broker import Broker, upkeep, work_queues
from hark.broker.broker import POP_MAINTENANCE, PUSH_MAINTENANCE
from hark.broker.sealing import Sealer
from hark.broker.tallies import Operations
from hark.broker.upkeep import keep_cleaning
from hark.broker.work_queues import NO_ERROR, QueueLookup
from hark.clock import FakeClock, SystemClock
from hark.engine.api import Engine
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure, HarkError, InvalidInput, InvalidSetting, Unavailable
from hark.ids import IdCodec
from hark.model import (
    DeadLetterFilter,
    Expired,
    NewMessage,
    NewTrace,
    PopRequest,
    QueueOptions,
    QueueSpec,
    Settlement,
    Transaction,
)
from hark.settings import Encryption, Queue, Settings

KEY, OTHER_KEY = "ab" * 32, "cd" * 32


async def started(engine: SqliteEngine, settings: Settings | None = None) -> Broker:
    """A broker on an engine."""
    broker = Broker(engine, settings or Settings(), SystemClock())
    await broker.start()
    return broker


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    broker = await started(SqliteEngine(":memory:", clock=SystemClock()), Settings(encryption=Encryption(key=KEY)))
    yield broker
    await broker.close()


async def until_waiting(broker: Broker, number: int) -> None:
    """Let the loop turn until so many pops wait."""
    while len(broker.delivery.intentions) < number:  # noqa: ASYNC110  # the loop itself is what we wait for
        await asyncio.sleep(0)


async def test_a_waiting_pop_ends_empty_at_its_timeout_and_is_answered_when_a_delay_is_over(broker: Broker) -> None:
    assert (await broker.pop(PopRequest(queue="orders"), 0.01)).messages == ()
    assert len(broker.delivery.intentions) == 0
    await broker.push([NewMessage("orders", payload=b"1", delay_ms=30)])
    assert len((await broker.pop(PopRequest(queue="orders"), 60)).messages) == 1


async def test_maintenance_refuses_pushes_and_outlives_a_restart(tmp_path: object) -> None:
    path = f"{tmp_path}/hark.db"
    broker = await started(SqliteEngine(path, clock=SystemClock()))
    await broker.set_maintenance(PUSH_MAINTENANCE, True)
    await broker.close()
    broker = await started(SqliteEngine(path, clock=SystemClock()))
    with pytest.raises(Unavailable) as caught:
        await broker.push([NewMessage("orders")])
    assert (caught.value.code, caught.value.retry_after) == ("maintenance", 5)
    await broker.set_maintenance(PUSH_MAINTENANCE, False)
    assert (await broker.push([NewMessage("orders")]))[0].status == "queued"
    await broker.close()


class SharedEngine(SqliteEngine):
    """A store that other servers change too."""

    shared = True


async def test_what_another_server_was_notified_to_stop_is_stopped_here_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_FLAGS_INTERVAL", 0)
    broker = await started(SharedEngine(":memory:", clock=SystemClock()))
    pop = asyncio.create_task(broker.pop(PopRequest(queue="orders"), 60))
    await until_waiting(broker, 1)
    await broker.engine.write_flag(PUSH_MAINTENANCE, True)
    await broker.engine.write_flag(POP_MAINTENANCE, True)
    assert (await pop).reason == "paused"
    with pytest.raises(Unavailable) as caught:
        await broker.push([NewMessage("orders")])
    assert caught.value.code == "maintenance"
    await broker.close()


async def test_a_switch_is_not_turned_back_by_what_was_read_before_it(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_flags, read, answered = broker.engine.read_flags, asyncio.Event(), asyncio.Event()

    async def read_slowly() -> dict[str, bool]:
        found = await read_flags()
        read.set()
        await answered.wait()
        return found

    monkeypatch.setattr(broker.engine, "read_flags", read_slowly)
    refreshing = asyncio.create_task(broker.refresh_flags())
    await read.wait()
    await broker.set_maintenance(PUSH_MAINTENANCE, True)
    answered.set()
    await refreshing
    assert broker.maintenance(PUSH_MAINTENANCE)


# Sealing ---------------------------------------------------------------------------------------------------


def sealed_queue() -> QueueSpec:
    """A queue whose payloads are encrypted, and whose first failure is the last."""
    return QueueSpec(name="secrets", options=QueueOptions(encryption_enabled=True, retry_limit=0))


async def stored_payload(broker: Broker) -> bytes:
    """The bytes as the store has them."""
    engine = cast(SqliteEngine, broker.engine)
    return await engine._read(lambda connection, _: bytes(connection.execute("select payload from messages").get))


async def test_payloads_and_dead_letters_are_sealed_at_rest_and_plain_for_consumers(broker: Broker) -> None:
    await broker.configure(sealed_queue())
    await broker.push([NewMessage("secrets", payload=b'"card"')])
    assert b"card" not in await stored_payload(broker)
    got = await broker.pop(PopRequest(queue="secrets"))
    message = got.messages[0]
    assert bytes(message.payload) == b'"card"'
    await broker.settle([Settlement(message.transaction_id, message.partition_id, "failed", got.lease_id)])
    at_rest = (await broker.engine.dead_letters(DeadLetterFilter())).items[0]
    assert at_rest.sealed
    assert b"card" not in bytes(at_rest.payload)
    assert bytes((await broker.dead_letters(DeadLetterFilter())).items[0].payload) == b'"card"'
    assert bytes((await broker.dead_letters(DeadLetterFilter(payloads=False))).items[0].payload) == b"null"


def is_in_files(directory: Path, data: bytes) -> bool:
    """Whether a file of a directory has these bytes."""
    return any(data in file.read_bytes() for file in directory.iterdir())


async def test_error_texts_and_traces_are_sealed_at_rest_and_plain_for_those_who_look(
    tmp_path: Path,
) -> None:
    path = tmp_path / "hark.db"
    other = await started(
        SqliteEngine(str(path), clock=SystemClock()), Settings(encryption=Encryption(key=KEY, old_keys=(OTHER_KEY,)))
    )
    await other.configure(QueueSpec(name="secrets", options=QueueOptions(encryption_enabled=True, retry_limit=1)))
    await other.push([NewMessage("secrets", payload=b"1")])
    for text in ("the card 4111 was refused", "again the card 4111"):
        got = await other.pop(PopRequest(queue="secrets"))
        [message] = got.messages
        await other.trace(
            NewTrace(
                partition_id=message.partition_id, transaction_id=message.id, data=b'{"card": "4111"}', names=("n",)
            )
        )
        item = Settlement(message.transaction_id, message.partition_id, "failed", got.lease_id, error=text)
        if text.startswith("the"):
            assert (await other.settle([item]))[0].success
            [explanation] = (await other.explain(message.id)).explanations
            assert "4111" in explanation.text or explanation.reason == "ready"
            view = await other.message(message.partition_id, message.id)
            assert view is not None and view.groups[0].error in (None, text)
        else:
            assert (await other.transact(Transaction([item]))).success
    [letter] = (await other.dead_letters(DeadLetterFilter(payloads=False))).items
    assert letter.error == "again the card 4111"
    assert "4111" in (await other.explain(letter.message_id)).explanations[0].text
    traces, _ = await other.traces(name="n")
    assert [bytes(trace.data) for trace in traces] == [b'{"card": "4111"}'] * 2
    await other.close()
    assert not is_in_files(tmp_path, b"4111")


async def test_encryption_without_a_key_is_refused() -> None:
    broker = await started(SqliteEngine(":memory:", clock=SystemClock()))
    with pytest.raises(InvalidInput) as caught:
        await broker.configure(sealed_queue())
    assert caught.value.code == "encryption_unavailable"
    assert await broker.engine.queue_infos() == []
    await broker.close()


async def test_a_broker_that_missed_a_change_of_encryption_seals_all_the_same(broker: Broker) -> None:
    await broker.engine.configure([sealed_queue()])  # As another server would.
    outcome = (await broker.push([NewMessage("secrets", payload=b'"card"')]))[0]
    assert outcome.status == "queued"
    assert b"card" not in await stored_payload(broker)
    await broker.engine.configure([QueueSpec(name="secrets")])
    outcome = (await broker.push([NewMessage("secrets", "other", b'"plain"')]))[0]
    assert outcome.status == "queued"
    got = await broker.pop(PopRequest(queue="secrets", partitions=2, batch=2))
    assert {bytes(message.payload) for message in got.messages} == {b'"card"', b'"plain"'}


def test_old_keys_open_what_they_sealed_the_first_key_seals_and_changed_bytes_and_moved_payloads_do_not_open() -> None:
    old, both = Sealer([OTHER_KEY]), Sealer([KEY, OTHER_KEY])
    assert both.open("q", old.seal("q", b"1")) == b"1"
    with pytest.raises(EngineFailure, match="which this server does not have"):
        old.open("q", both.seal("q", b"1"))
    sealed = old.seal("q", b'"some payload"')
    for queue, content in (("q", sealed[:-6] + b"AAAA" + sealed[-2:]), ("another queue", sealed)):
        with pytest.raises(HarkError) as caught:
            old.open(queue, content)
        assert caught.value.code == "payload_corrupt"


@pytest.mark.parametrize("key", ["", "12", "zz" * 32, "ab" * 31])
def test_a_wrong_key_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        Sealer([key])
    assert "64 hexadecimal characters" in caught.value.text


# Work queues: how they are made and remembered, and what messages get that do not say ----------------------


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
async def worker(engine: CountingEngine, clock: FakeClock) -> AsyncIterator[Broker]:
    """A broker that is at work."""
    worker = Broker(engine, SETTINGS, clock)
    await worker.start()
    yield worker
    await worker.close()


async def test_a_queue_is_made_before_it_is_first_used_and_remembered(
    worker: Broker, engine: CountingEngine, clock: FakeClock
) -> None:
    work = worker.work_queues
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


async def test_a_queue_that_is_there_stays_as_it_is_and_one_that_was_deleted_is_forgotten(
    worker: Broker, engine: CountingEngine
) -> None:
    options = QueueOptions(retry_limit=7, lease_time=9)
    await worker.configure(QueueSpec(name="q", namespace="mine", options=options))
    await worker.work_queues.enqueue(NewMessage("q"))
    [info] = await engine.queue_infos(["q"])
    assert (info.namespace, info.options) == ("mine", options)
    assert await worker.delete_queues(["q", "other"]) == [True, False]
    await worker.work_queues.enqueue(NewMessage("q"))
    assert engine.made == ["q", "q"]
    [info] = await engine.queue_infos(["q"])
    assert info.options.drop_settled


async def test_messages_get_a_schedule_and_a_lease_by_the_settings_unless_they_have_one(
    worker: Broker, clock: FakeClock
) -> None:
    messages = [NewMessage("q"), NewMessage("r", backoff_ms=()), NewMessage("q", backoff_ms=(7,))]
    await worker.work_queues.admit(messages)
    assert [message.backoff_ms for message in messages] == [(1000, 5000, 10_000), (), (7,)]
    await worker.work_queues.enqueue(NewMessage("q"))
    result = await worker.work_queues.poll("q")
    assert result.expires_at == clock.now() + 5_000_000


async def test_an_encrypted_queue_can_be_worked_on(worker: Broker) -> None:
    await worker.configure(QueueSpec(name="q", options=QueueOptions(encryption_enabled=True)))
    work = worker.work_queues
    id = await work.enqueue(NewMessage("q", payload=b'"secret"', backoff_ms=()))
    result = await work.poll("q")
    assert bytes(result.messages[0].payload) == b'"secret"'
    assert (await work.settle(id, result.lease_id, "failed")).dead_lettered
    [letter] = (await worker.dead_letters(DeadLetterFilter(queue="q"))).items
    assert (bytes(letter.payload), letter.error) == (b'"secret"', NO_ERROR)


# The duty that sweeps up locks and keys: it goes on, step by step, and can be switched off -----------------


ENOUGH = 9


class Sweeping:
    """A store with much to sweep at first, which is away now and then."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.enough = asyncio.Event()
        self._leases, self._keys = [1000, 5, 0], [1000, 1000, 3, 0]

    async def expire(self, limit: int) -> Expired:
        """End so many leases."""
        self._note("expire")
        if not self._leases:
            raise EngineFailure("away")
        return Expired(min(limit, self._leases.pop(0)), None)

    async def sweep_keys(self, limit: int) -> int:
        """Remove so many keys."""
        self._note("sweep")
        return min(limit, self._keys.pop(0))

    def _note(self, what: str) -> None:
        self.done.append(what)
        if len(self.done) >= ENOUGH:
            self.enough.set()


async def test_it_takes_as_many_steps_as_there_is_work_for_and_goes_on_after_a_failure() -> None:
    store, operations = Sweeping(), Operations(SystemClock())
    duty = asyncio.create_task(keep_cleaning(cast(Engine, store), 0, operations))
    await store.enough.wait()
    duty.cancel()
    assert store.done[:ENOUGH] == [
        *("expire", "expire", "sweep", "sweep", "sweep"),
        *("expire", "sweep"),
        *("expire", "expire"),
    ]
    tally = operations.tallies["cleanup"]
    assert tally.count >= 3
    assert tally.errors == tally.count - 2


async def test_no_interval_no_sweep() -> None:
    for interval, running in ((60_000, True), (0, False)):
        settings = Settings(queue=Queue(cleanup_interval=interval))
        broker = Broker(SqliteEngine(":memory:", clock=SystemClock()), settings, SystemClock())
        await broker.start()
        assert ("cleanup" in {task.get_name() for task in asyncio.all_tasks()}) == running
        await broker.close()


# Ids lead to queues ----------------------------------------------------------------------------------------


CODEC = IdCodec(1)


class Store:
    """Knows the queues of partitions, and notes what it is asked."""

    def __init__(self) -> None:
        self.queues = {CODEC.encode(1, 0): "orders", CODEC.encode(2, 0): "mail"}
        self.requests: list[list[str]] = []

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        """The queues of partitions."""
        self.requests.append(sorted(ids))
        return [self.queues.get(id) for id in ids]


async def test_ids_lead_to_their_queue_and_the_store_is_requested_once_for_each_partition_that_is_there() -> None:
    store = Store()
    found = QueueLookup(cast(Engine, store))
    for offset in (1, 2):
        await found.queues_of([CODEC.encode(1, offset), CODEC.encode(1, offset + 10), CODEC.encode(3, 1)])
    assert store.requests == [[CODEC.encode(1, 0), CODEC.encode(3, 0)], [CODEC.encode(3, 0)]]
    store.queues[CODEC.encode(3, 0)] = "new"
    ids = [CODEC.encode(1, 9), CODEC.encode(2, 0), CODEC.encode(3, 1), CODEC.encode(4, 1), "nonsense", ""]
    assert await found.queues_of(ids) == ["orders", "mail", "new", None, None, None]


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queues, "_KEPT", 3)
    store = Store()
    store.queues = {CODEC.encode(number, 0): f"q{number}" for number in range(1, 20)}
    found = QueueLookup(cast(Engine, store))
    for number in range(1, 20):
        assert await found.queues_of([CODEC.encode(number, 1)]) == [f"q{number}"]
    assert len(found._known) <= 3


async def test_a_release_that_fails_is_logged(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_leases: list[str]) -> None:
        raise EngineFailure("the store is away")

    monkeypatch.setattr(broker.engine, "release", fail)
    await asyncio.wait([broker.release("lease")])
    assert "they wait for their lease: the store is away" in caplog.text
