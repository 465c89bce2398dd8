"""A bucket, a disk or a process that fails: nothing is lost, done twice or left behind, and it recovers by itself."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from hark.broker import Broker
from hark.clock import FakeClock
from hark.engine.s3 import S3Engine, objects
from hark.engine.s3.log import LogFreshness, Tail
from hark.engine.s3.state import PREFIX, LocalState, Memory, Scratch, ScratchFolder
from hark.errors import EngineFailure, HarkError
from hark.model import DeadLetterFilter, NewMessage, NewTrace, PopRequest
from hark.polling import PollingStrategy
from hark.settings import Settings
from tests.engine.driver import payloads
from tests.s3.processes import Process, running, until
from tests.s3.stub.faults import Fault
from tests.s3.stub.store import Request, StubStore

FailsOnce = Callable[[type, str], list[str]]


@pytest.fixture
def fails_once(monkeypatch: pytest.MonkeyPatch) -> FailsOnce:
    """Makes a method fail the next time that it is called; the answer gets its name when it did."""

    def spoil(owner: type, name: str) -> list[str]:
        failed: list[str] = []
        method = getattr(owner, name)

        def spoiled(*arguments: Any) -> Any:
            if failed:
                return method(*arguments)
            failed.append(name)
            raise apsw.FullError("database or disk is full")

        monkeypatch.setattr(owner, name, spoiled)
        return failed

    return spoil


async def test_a_push_that_is_in_the_log_is_acknowledged_and_kept_later(
    process: Process, fails_once: FailsOnce
) -> None:
    await process.push("orders", "p", 1)
    failed = fails_once(LocalState, "_commit")
    [outcome] = await process.push("orders", "p", 2)
    assert (failed, outcome.status) == (["_commit"], "queued")
    await process.push("orders", "p", 3)
    assert payloads(await process.pop("orders", batch=10)) == [1, 2, 3]


async def test_a_record_of_another_process_is_taken_over_when_there_is_room_again(
    process: Process, other: Process, fails_once: FailsOnce
) -> None:
    await other.push("orders", "p", 1)
    failed = fails_once(LocalState, "_commit")
    with pytest.raises(HarkError) as failure:
        await process.engine.ping()
    assert (failed, failure.value.code) == (["_commit"], "disk_full")
    await other.push("orders", "p", 2)
    assert payloads(await process.pop("orders", batch=10)) == [1, 2]


@pytest.mark.parametrize("method", ["follow", "read_all"])
async def test_memory_that_could_not_follow_is_made_anew(
    method: str, process: Process, other: Process, fails_once: FailsOnce
) -> None:
    await other.push("orders", "p", 1)
    await process.engine.ping()
    # A second partition changes little, another queue changes everything.
    await other.push("orders" if method == "follow" else "others", "q", 2)
    process.hints.clear()
    failed = fails_once(Memory, method)
    with pytest.raises(HarkError):
        await process.engine.ping()
    assert failed
    await process.engine.ping()
    assert {"orders"} <= {hint.queue for hint in process.hints}
    got = [*await process.pop("orders", "p"), *await process.pop("orders", "q"), *await process.pop("others", "q")]
    assert payloads(got) == [1, 2]


# Processes that slept ---------------------------------------------------------------------------------------


def lose_freshness_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who next asks how old its sight is has none."""
    is_stale, looks = LogFreshness.is_stale.fget, [1]  # type: ignore[attr-defined]

    def ask(freshness: LogFreshness) -> bool:
        if looks:
            looks.pop()
            freshness.lose()
        return bool(is_stale(freshness))

    monkeypatch.setattr(LogFreshness, "is_stale", property(ask))


async def until_snapshot(store: StubStore) -> None:
    """Wait until there is a snapshot of the first record."""
    await until(lambda: b'"seq":1' in (store.read(objects.POINTER) or b""))


def remove(store: StubStore, *keys: str) -> None:
    """Remove objects behind everybody's back."""
    for key in keys:
        store.execute(Request(kind="delete", key=key))


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_rule_26_a_payload_that_the_bucket_lost_is_a_dead_letter_and_the_batch_comes_without_it(
    stub_store: StubStore, clock: FakeClock, auto_ack: bool
) -> None:
    process = Process(stub_store, clock, cache_bytes=0)
    broker = Broker(process._make(clock), Settings(), clock)
    await broker.start()
    for text in ("a" * 100, "b" * 100, "c" * 100):
        await broker.push([NewMessage("orders", "p", msgspec.json.encode(text))])
    remove(stub_store, objects.record(2))
    got = await broker.pop(PopRequest(queue="orders", batch=3, auto_ack=auto_ack))
    assert [bytes(one.payload)[1:2] for one in got.messages] == [b"a", b"c"]
    [letter] = (await broker.dead_letters(DeadLetterFilter())).items
    assert (letter.error.split(":")[0], bytes(letter.payload)) == ("payload_missing", b"null")
    assert (letter.unreadable or "").startswith("payload_missing: ")
    assert broker.readable.damaged == 1
    await broker.close()


async def test_rule_26_who_looks_sees_the_other_messages_and_that_the_bucket_lost_one(
    stub_store: StubStore, clock: FakeClock
) -> None:
    process = Process(stub_store, clock, cache_bytes=0)
    broker = Broker(process._make(clock), Settings(), clock)
    await broker.start()
    pushed = [
        (await broker.push([NewMessage("orders", "p", msgspec.json.encode(text * 100))]))[0] for text in ("a", "b", "c")
    ]
    key = pushed[1].partition_id or "", pushed[1].message_id or ""
    await broker.trace(NewTrace(partition_id=key[0], transaction_id=key[1], data=b"{}", names=("n",)))
    remove(stub_store, objects.record(2))
    browser = await broker.delivery.browsers.open("orders", None, "head")
    assert [bytes(one.payload)[1:2] for one in await browser.next()] == [b"a", b"u", b"c"]
    browser.close()
    view, [trace] = await broker.message(*key), (await broker.traces(name="n"))[0]
    assert view is not None
    assert (view.unreadable or "").startswith("payload_missing: ") and view.unreadable == trace.unreadable
    text = b"".join([part async for part in broker.export_queue("orders")])
    assert msgspec.json.decode(text.splitlines()[-1]) == {"type": "end", "messages": 2, "unreadable": 1}
    assert await broker.engine.delete_messages([key[1]]) == [True]
    await broker.close()


async def test_who_can_not_begin_anew_wins_no_number_before_it_could(
    stub_store: StubStore, clock: FakeClock, fails_once: FailsOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running(stub_store, clock, snapshot_records=1) as other,
        running(stub_store, clock) as sleeper,
    ):
        await other.push("orders", "p", "in time")
        await until_snapshot(stub_store)
        # It slept for so long that the record has been removed since.
        remove(stub_store, objects.record(1))
        lose_freshness_once(monkeypatch)
        failed = fails_once(Scratch, "open")
        with pytest.raises(HarkError):
            await sleeper.push("orders", "p", "lost")
        assert failed
        await sleeper.push("orders", "p", "later")
        assert payloads(await other.pop("orders", batch=10)) == ["in time", "later"]
        assert payloads(await sleeper.pop("orders", group="all", batch=10)) == ["in time", "later"]


async def test_who_finds_another_store_in_its_place_stops(
    process: Process, stub_store: StubStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await process.push("orders", "p", number)
    remove(stub_store, *stub_store.keys())
    async with running(stub_store, clock, snapshot_records=1) as new:
        await new.push("orders", "p", "new")
        # Its snapshots are no further than what the old process knows: by their numbers alone all is well.
        await until_snapshot(stub_store)
        lose_freshness_once(monkeypatch)
        for _ in range(2):
            with pytest.raises(HarkError, match="created again") as failure:
                await process.push("orders", "p", "for the old one")
            assert failure.value.code == "store_unusable"
        assert stub_store.read(objects.record(4)) is None


def sleep_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next answer is too late to be trusted."""
    is_void, late = LogFreshness.is_void, [True]
    monkeypatch.setattr(LogFreshness, "is_void", lambda self, since: bool(late and late.pop()) or is_void(self, since))


@pytest.mark.parametrize("answered", [0, 1], ids=["never", "once"])
async def test_who_wakes_up_to_a_silent_bucket_goes_on_when_it_answers(
    stub_store: StubStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, answered: int
) -> None:
    """`answered`: how often the pointer can be read before the bucket falls silent."""
    async with (
        running(stub_store, clock, snapshot_records=1) as other,
        running(stub_store, clock, retry_timeout_ms=100) as sleeper,
    ):
        leased = sleeper.faults.stop("before", kind="put", key="log/")
        pushing = asyncio.ensure_future(sleeper.push("orders", "p", "late"))
        request = await leased.reached()
        await other.push("orders", "p", "in time")
        await until_snapshot(stub_store)
        remove(stub_store, request.key)
        sleep_once(monkeypatch)
        sleeper.faults.next(Fault.ERROR, kind="get", key=objects.POINTER, skip=answered, times=float("inf"))
        leased.go()
        with pytest.raises(HarkError) as failure:
            await pushing
        # It was created, and nobody will ever read it there: who sent it must not take it for refused.
        assert failure.value.code == "outcome_unknown"
        sleeper.faults.heal()
        remove(stub_store, request.key)
        await sleeper.push("orders", "p", "later")
        assert payloads(await other.pop("orders", batch=10)) == ["in time", "later"]
        assert payloads(await sleeper.pop("orders", group="all", batch=10)) == ["in time", "later"]


async def test_who_was_suspended_while_its_clock_stood_still_acknowledges_nothing_that_no_one_reads(
    stub_store: StubStore, clock: FakeClock
) -> None:
    still = FakeClock(clock.now())
    async with (
        running(stub_store, clock, snapshot_records=1) as other,
        running(stub_store, still) as sleeper,
    ):
        leased = sleeper.faults.stop("before", kind="put", key="log/")
        pushing = asyncio.ensure_future(sleeper.push("orders", "p", "late"))
        request = await leased.reached()
        await other.push("orders", "p", "in time")
        await until_snapshot(stub_store)
        remove(stub_store, request.key)
        clock.advance(2 * 3600)
        leased.go()
        with pytest.raises(HarkError) as failure:
            await pushing
        assert failure.value.code == "outcome_unknown"
        remove(stub_store, request.key)
        await sleeper.push("orders", "p", "later")
        assert payloads(await other.pop("orders", batch=10)) == ["in time", "later"]


# A bucket that does not answer -----------------------------------------------------------------------------


def push(process: Process, value: int) -> asyncio.Task[object]:
    """Push one message, beside what else goes on."""
    message = NewMessage(queue="orders", partition="p", payload=str(value).encode())
    return asyncio.ensure_future(process.engine.push([[message]]))


async def requests(process: Process) -> float:
    """How many were sent."""
    metrics = await process.engine.store_metrics()
    return metrics["s3_requests_get"] + metrics["s3_requests_put"]


async def test_who_waits_behind_a_commit_that_fails_fails_with_it(stub_store: StubStore, clock: FakeClock) -> None:
    async with running(stub_store, clock, retry_timeout_ms=100) as process:
        await push(process, 1)
        stop = process.faults.stop("before", kind="put", key="log/")
        process.faults.next(Fault.DROP, times=float("inf"))
        first = push(process, 2)
        await stop.reached()
        others = [push(process, value) for value in (3, 4)]
        reading = asyncio.create_task(process.engine.queue_infos())
        await asyncio.sleep(0)
        stop.go()
        with pytest.raises(EngineFailure) as failure:
            await first
        assert failure.value.code == "outcome_unknown"
        before_retry = await requests(process)
        for waiting in (*others, reading):
            with pytest.raises(EngineFailure, match="the request had no effect") as refusal:
                await waiting
            assert (refusal.value.code, bool(refusal.value.retry_after)) == ("store_unavailable", True)
        assert await requests(process) == before_retry, (
            "they were tried one after the other, for as long as the first each"
        )
        process.faults.heal()
        await push(process, 5)
        assert [one.name for one in await process.engine.queue_infos()] == ["orders"]


async def test_rule_29_calls_are_refused_at_once_while_the_bucket_is_away_and_go_on_when_it_is_back(
    stub_store: StubStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "AWAY_AFTER_SECONDS", 0.0)
    async with running(stub_store, clock) as process:
        await push(process, 1)
        stop = process.faults.stop("before", kind="put", key="log/")
        process.faults.next(Fault.DROP, times=float("inf"))
        first = push(process, 2)
        await stop.reached()
        behind = push(process, 3)
        await asyncio.sleep(0)
        stop.go()
        for refused in (behind, push(process, 4), process.pop("orders"), process.engine.ping()):
            with pytest.raises(EngineFailure, match="the request had no effect") as failure:
                await refused
            assert (failure.value.code, failure.value.retry_after) == ("store_unavailable", 1)
        assert not first.done(), "nobody knows yet whether it is in the log"
        process.hints.clear()
        process.faults.heal()
        await first
        async with asyncio.timeout(20):
            await until(lambda: any(hint.partitions is None for hint in process.hints))  # Those who wait look again.
        await push(process, 5)
        assert payloads(await process.pop("orders", batch=10)) == [1, 2, 5]


async def test_rule_29_a_bucket_that_asks_for_less_is_not_away(
    stub_store: StubStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "AWAY_AFTER_SECONDS", 0.0)
    async with running(stub_store, clock) as process:
        process.faults.next(Fault.SLOW_DOWN, kind="put", key="log/")
        first = push(process, 1)
        await until(lambda: process.faults.happened)
        await push(process, 2)
        await first
        assert payloads(await process.pop("orders", batch=10)) == [1, 2]


async def test_who_could_not_take_over_a_record_looks_for_it_again(stub_store: StubStore, clock: FakeClock) -> None:
    async with running(stub_store, clock) as writer, running(stub_store, clock, retry_timeout_ms=100) as reader:
        reader.faults.next(Fault.LOST_ERROR, kind="put", key="log/", times=float("inf"))
        reader.faults.next(Fault.ERROR, kind="get", key="log/", times=float("inf"))
        with pytest.raises(HarkError) as failure:
            await reader.push("orders", "p", "perhaps")
        assert failure.value.code == "outcome_unknown"
        reader.faults.heal()
        # The tail finds the record; whoever takes it over has to read the log first, and can't.
        reader.faults.next(Fault.ERROR, kind="get", key="log/", skip=1, times=float("inf"))
        assert isinstance(reader.engine, S3Engine)
        reader.engine.poll_as(PollingStrategy.fixed(interval_ms=10))
        await until(lambda: len(reader.faults.happened) > 10)
        reader.faults.heal()
        await writer.push("orders", "p", "surely")
        async with asyncio.timeout(20):
            await until(lambda: reader.hints)
        assert payloads(await reader.pop("orders", batch=10)) == ["perhaps", "surely"]


async def test_who_has_just_written_looks_when_it_is_notified_of_changes(process: Process, other: Process) -> None:
    await process.push("orders", "p", 1)
    process.hints.clear()
    await other.push("orders", "p", 2)
    process.engine.on_hints(other.hints)
    async with asyncio.timeout(20):
        await until(lambda: process.hints)


async def test_a_tail_that_meets_what_no_one_thought_of_goes_on(
    process: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Tail._look
    failed: list[bool] = []

    async def fail_once(self: Tail) -> bool:
        if failed:
            return await look(self)
        failed.append(True)
        raise KeyError("a defect")

    monkeypatch.setattr(Tail, "_look", fail_once)
    await other.push("orders", "p", 1)
    assert isinstance(process.engine, S3Engine)
    process.engine.poll_as(PollingStrategy.fixed(interval_ms=10))
    async with asyncio.timeout(20):
        await until(lambda: process.hints)
    assert failed


# What is left behind: no thread, no files ------------------------------------------------------------------


def left_in(folder: Path) -> list[str]:
    """What S3 engines have left: threads, and files in a folder."""
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("hark-s3")]
    return [*threads, *(file.name for file in folder.iterdir())]


@pytest.mark.parametrize("key", ["probe/", objects.META, objects.POINTER, "log/"])
async def test_a_start_that_is_cancelled_leaves_nothing_behind(
    key: str, stub_store: StubStore, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`key`: what it asks for at the moment."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    process = Process(stub_store, clock)
    leased = process.faults.stop("before", key=key)
    starting = asyncio.ensure_future(process.engine.start(lambda _: None))
    await leased.reached()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert left_in(tmp_path) == []
    leased.go()
    # And it may be started again.
    await process.start()
    await process.push("orders", "p", 1)
    await process.engine.close()
    assert left_in(tmp_path) == []


DIES = """
import os, sys
from pathlib import Path
from hark.engine.s3.state import ScratchFolder
folder = ScratchFolder(Path(sys.argv[1]))
(folder.path / "state").write_text("large")
print(folder.path, flush=True)
os.kill(os.getpid(), 9)
"""


def test_who_comes_next_removes_the_folder_of_one_that_was_killed(tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], stdout=subprocess.PIPE, text=True, check=False)
    assert killed.returncode == -9
    left = Path(killed.stdout.strip())
    assert (left / "state").exists()
    folder = ScratchFolder(tmp_path)
    assert list(tmp_path.iterdir()) == [folder.path]
    folder.close()


def test_folders_are_removed_at_the_end_and_those_in_use_and_of_other_programs_stay(tmp_path: Path) -> None:
    unrelated = tmp_path / f"{PREFIX}of-somebody-else"
    unrelated.mkdir()
    first = ScratchFolder(tmp_path)
    second = ScratchFolder(tmp_path)
    assert first.path.name.startswith(PREFIX)
    (first.path / "state").write_text("something")
    assert {*tmp_path.iterdir()} == {unrelated, first.path, second.path}
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == [unrelated]
