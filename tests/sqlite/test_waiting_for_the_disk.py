"""Who waits for the disk and who does not; and what a failed commit leaves behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import apsw
import pytest

from hark.clock import FakeClock
from hark.engine.sqlite import SqliteEngine
from hark.errors import EngineFailure, HarkError
from hark.model import (
    GroupMode,
    Hint,
    MessageFilter,
    NewMessage,
    PopRequest,
    PopResult,
    PushOutcome,
    QueueOptions,
    QueueSpec,
    Renewal,
    Settlement,
)


class SlowDisk:
    """A disk whose next commits do not end before they are told to."""

    def __init__(self, engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commits = 0
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self._commit = engine._store.commit
        monkeypatch.setattr(engine._store, "commit", self._slowly)

    def _slowly(self) -> None:
        self.commits += 1
        self.begun.set()
        assert self.go_on.wait(5)
        self._commit()

    async def wait_until_busy(self) -> None:
        """Wait until a commit is under way."""
        assert await asyncio.to_thread(self.begun.wait, 20)


def pop_of(answers: Sequence[PopResult | HarkError]) -> PopResult:
    """The answer to the only pop."""
    assert isinstance(answers[0], PopResult)
    return answers[0]


async def contact(engine: SqliteEngine) -> None:
    """Let the default group meet the queue."""
    await engine.push([[NewMessage("orders", "a", b"1"), NewMessage("orders", "b", b"2")]])
    first = pop_of(await engine.pop([PopRequest(queue="orders", partition="a")]))
    await engine.release([first.lease_id])


async def test_a_pop_that_only_leases_a_renewal_and_a_look_do_not_wait_for_a_commit(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await contact(engine)
    disk = SlowDisk(engine, monkeypatch)
    push = asyncio.ensure_future(engine.push([[NewMessage("orders", "a", b"3")]]))
    await disk.wait_until_busy()
    got = pop_of(await engine.pop([PopRequest(queue="orders", batch=10, partitions=10)]))
    assert sorted(bytes(message.payload) for message in got.messages) == [b"1", b"2"]
    assert (await engine.renew([Renewal(got.lease_id, 900)]))[0]
    assert len(await engine.messages(MessageFilter())) == 2
    assert not push.done()
    disk.go_on.set()
    await push


async def test_a_pop_with_auto_ack_waits_for_its_commit(engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    await contact(engine)
    disk = SlowDisk(engine, monkeypatch)
    pop = asyncio.ensure_future(engine.pop([PopRequest(queue="orders", auto_ack=True)]))
    await disk.wait_until_busy()
    assert not pop.done()
    disk.go_on.set()
    assert len(pop_of(await pop).messages) == 1


async def test_verbs_that_wait_during_a_commit_share_the_next_one(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await contact(engine)
    leased = pop_of(await engine.pop([PopRequest(queue="orders", partition="b")]))
    disk = SlowDisk(engine, monkeypatch)
    first = asyncio.ensure_future(engine.push([[NewMessage("orders", "a", b"3")]]))
    await disk.wait_until_busy()
    message = leased.messages[0]
    waiting = [
        *(asyncio.ensure_future(engine.push([[NewMessage("orders", "c", b"4")]])) for _ in range(20)),
        asyncio.ensure_future(
            engine.settle([[Settlement(message.transaction_id, message.partition_id, lease_id=leased.lease_id)]])
        ),
    ]
    await engine.renew([Renewal(leased.lease_id)])  # All of them have arrived when this has.
    disk.go_on.set()
    await asyncio.gather(first, *waiting)
    assert disk.commits == 2


async def test_nothing_is_handed_out_of_a_partition_whose_settlement_is_not_on_disk_yet(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.push([[NewMessage("orders", "a", b"1"), NewMessage("orders", "a", b"2")]])
    leased = pop_of(await engine.pop([PopRequest(queue="orders")]))
    disk = SlowDisk(engine, monkeypatch)
    message = leased.messages[0]
    settle = asyncio.ensure_future(
        engine.settle([[Settlement(message.transaction_id, message.partition_id, lease_id=leased.lease_id)]])
    )
    await disk.wait_until_busy()
    pop = asyncio.ensure_future(engine.pop([PopRequest(queue="orders")]))
    await engine.renew([Renewal("unknown")])
    if pop.done():
        assert pop_of(await pop).messages == ()
    disk.go_on.set()
    await settle
    await pop


async def push(engine: SqliteEngine, queue: str, payload: bytes, ttl_ms: int | None = None) -> str:
    """Push one message; the status."""
    [answer] = await engine.push([[NewMessage(queue, "a", payload, ttl_ms=ttl_ms)]])
    assert isinstance(answer, list)
    return answer[0].status


@pytest.mark.parametrize("mode", ["ordered", "shared"])
async def test_a_message_that_expired_makes_room_in_a_full_queue(
    engine: SqliteEngine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, mode: GroupMode
) -> None:
    """A pop steps over it in memory. The push comes into the commit that stores this."""
    request = PopRequest(queue="orders", group="g", group_mode=mode)
    await engine.configure([QueueSpec(name="orders", options=QueueOptions(max_size=1))])
    await engine.pop([request])
    assert await push(engine, "orders", b"1", ttl_ms=1000) == "queued"
    clock.advance(1)
    disk = SlowDisk(engine, monkeypatch)
    busy = asyncio.ensure_future(push(engine, "others", b"2"))
    await disk.wait_until_busy()
    assert not pop_of(await engine.pop([request])).messages
    early = asyncio.ensure_future(push(engine, "orders", b"3"))
    await engine.renew([Renewal("unknown")])  # It has arrived when this has.
    disk.go_on.set()
    await asyncio.gather(busy, early)
    assert (early.result(), await push(engine, "orders", b"4")) == ("failed", "queued")
    assert await push(engine, "orders", b"5") == "failed"


def failing(error: type[apsw.Error], times: int) -> Callable[[], None]:
    """A commit that fails so many times, as a full disk makes it."""
    left = [times]

    def commit() -> None:
        if left[0]:
            left[0] -= 1
            raise error("on purpose")

    return commit


async def test_a_failed_commit_keeps_nothing_and_the_engine_goes_on(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.push([[NewMessage("orders", "a", b"1")]])
    real = engine._store.commit
    monkeypatch.setattr(engine._store, "commit", failing(apsw.FullError, 1))
    with pytest.raises(EngineFailure) as caught:
        await engine.push([[NewMessage("orders", "a", b"2")]])
    assert caught.value.code == "disk_full"
    monkeypatch.setattr(engine._store, "commit", real)
    (answer,) = await engine.push([[NewMessage("orders", "a", b"3")]])
    assert isinstance(answer, list)
    assert isinstance(answer[0], PushOutcome)
    got = pop_of(await engine.pop([PopRequest(queue="orders", batch=10)]))
    assert [(message.offset, bytes(message.payload)) for message in got.messages] == [(1, b"1"), (2, b"3")]


async def test_when_a_shared_commit_fails_only_the_call_that_can_not_be_done_fails(
    engine: SqliteEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await contact(engine)
    disk = SlowDisk(engine, monkeypatch)
    first = asyncio.ensure_future(engine.push([[NewMessage("orders", "a", b"3")]]))
    await disk.wait_until_busy()
    poison = NewMessage("orders", "a", object())  # type: ignore[arg-type]  # SQLite can't store it
    calls = [
        asyncio.ensure_future(engine.push([[NewMessage("orders", "c", b"4")]])),
        asyncio.ensure_future(engine.push([[poison]])),
        asyncio.ensure_future(engine.push([[NewMessage("orders", "c", b"5")]])),
    ]
    await engine.renew([Renewal("unknown")])
    disk.go_on.set()
    await first
    good, bad, also_good = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(bad, EngineFailure)
    assert isinstance(good, list)
    assert isinstance(also_good, list)
    got = pop_of(await engine.pop([PopRequest(queue="orders", partition="c", batch=10)]))
    assert [bytes(message.payload) for message in got.messages] == [b"4", b"5"]


# Hints -----------------------------------------------------------------------------------------------------


async def pop(engine: SqliteEngine) -> PopResult:
    """A pop of the queue."""
    return pop_of(await engine.pop([PopRequest(queue="orders")]))


async def test_a_pop_that_found_nothing_during_a_commit_is_answered_before_its_hint(
    engine: SqliteEngine, hints: list[Hint], monkeypatch: pytest.MonkeyPatch
) -> None:
    await pop(engine)
    disk = SlowDisk(engine, monkeypatch)
    push = asyncio.ensure_future(engine.push([[NewMessage("orders", "p", b"1")]]))
    await disk.wait_until_busy()
    hints.clear()
    assert not (await pop(engine)).messages
    assert hints == [], "nobody is told of what can't be popped yet"
    disk.go_on.set()
    await push
    assert [hint.partitions for hint in hints] == [("p",), ("p",)]
    assert len((await pop(engine)).messages) == 1


async def test_when_memory_is_lost_everyone_is_notified_and_all_leases_are_over(
    engine: SqliteEngine, hints: list[Hint], monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.push([[NewMessage("orders", "p", b"1")]])
    leased = await pop(engine)
    hints.clear()
    monkeypatch.setattr(engine._store, "commit", failing(apsw.IOError, 1))
    with pytest.raises(EngineFailure):
        await engine.push([[NewMessage("bills", "p", b"2")]])
    monkeypatch.undo()
    assert Hint("orders") in hints, "what was leased is ready again, and more may be"
    assert {lease for hint in hints for lease in hint.ended} == {leased.lease_id}
    assert len((await pop(engine)).messages) == 1
