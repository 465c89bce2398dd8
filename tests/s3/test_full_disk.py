"""The local copy of the state fails, as on a full disk: nothing is lost or done twice, and it recovers by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import apsw
import pytest

from hark.clock import FakeClock
from hark.engine.s3.log import places
from hark.engine.s3.replica.fold import Fold
from hark.engine.s3.replica.memory import Memory
from hark.engine.s3.replica.scratch import Scratch
from hark.errors import HarkError
from tests.engine.driver import payloads
from tests.s3.processes import running, until
from tests.s3.sights import lose_sight_once
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
    stub_store: StubStore, clock: FakeClock, fails_once: FailsOnce
) -> None:
    async with running(stub_store, clock) as process:
        await process.push("orders", "p", 1)
        failed = fails_once(Fold, "_commit")
        [outcome] = await process.push("orders", "p", 2)
        assert (failed, outcome.status) == (["_commit"], "queued")
        await process.push("orders", "p", 3)
        assert payloads(await process.pop("orders", batch=10)) == [1, 2, 3]


async def test_a_record_of_another_process_is_taken_over_when_there_is_room_again(
    stub_store: StubStore, clock: FakeClock, fails_once: FailsOnce
) -> None:
    async with running(stub_store, clock) as writer, running(stub_store, clock) as reader:
        await writer.push("orders", "p", 1)
        failed = fails_once(Fold, "_commit")
        with pytest.raises(HarkError) as failure:
            await reader.engine.ping()
        assert (failed, failure.value.code) == (["_commit"], "disk_full")
        await writer.push("orders", "p", 2)
        assert payloads(await reader.pop("orders", batch=10)) == [1, 2]


@pytest.mark.parametrize("method", ["follow", "read_all"])
async def test_memory_that_could_not_follow_is_made_anew(
    method: str, stub_store: StubStore, clock: FakeClock, fails_once: FailsOnce
) -> None:
    async with running(stub_store, clock) as writer, running(stub_store, clock) as reader:
        await writer.push("orders", "p", 1)
        await reader.engine.ping()
        # A second partition changes little, another queue changes everything.
        await writer.push("orders" if method == "follow" else "others", "q", 2)
        reader.hints.clear()
        failed = fails_once(Memory, method)
        with pytest.raises(HarkError):
            await reader.engine.ping()
        assert failed
        await reader.engine.ping()
        assert {"orders"} <= {hint.queue for hint in reader.hints}
        got = [*await reader.pop("orders", "p"), *await reader.pop("orders", "q"), *await reader.pop("others", "q")]
        assert payloads(got) == [1, 2]


async def test_who_can_not_begin_anew_wins_no_number_before_it_could(
    stub_store: StubStore, clock: FakeClock, fails_once: FailsOnce, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        running(stub_store, clock, snapshot_records=1) as other,
        running(stub_store, clock) as sleeper,
    ):
        await other.push("orders", "p", "in time")
        await until(lambda: b'"seq":1' in (stub_store.read(places.POINTER) or b""))
        # It slept for so long that the record has been removed since.
        stub_store.execute(Request(kind="delete", key=places.record(1)))
        lose_sight_once(monkeypatch)
        failed = fails_once(Scratch, "open")
        with pytest.raises(HarkError):
            await sleeper.push("orders", "p", "lost")
        assert failed
        await sleeper.push("orders", "p", "later")
        assert payloads(await other.pop("orders", batch=10)) == ["in time", "later"]
        assert payloads(await sleeper.pop("orders", group="all", batch=10)) == ["in time", "later"]
