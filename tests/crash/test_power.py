"""Power failures and disks that fail: what was acknowledged is there, what was refused is not, the database opens."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import apsw
import msgspec
import pytest

from hark.clock import SystemClock
from hark.engine.sqlite import SqliteEngine
from hark.engine.sqlite.store import Store
from hark.errors import EngineFailure, HarkError
from hark.model import NewMessage, PopRequest, PopResult, Read, Settlement
from tests.crash.power import Disk, Kind, powered_by, put
from tests.crash.server import ROUNDS, SEED

POINTS = 20 * ROUNDS if "HARK_TEST_CRASH_ROUNDS" in os.environ else 50
"""At how many points the power fails; `scripts/crash` does it 1,000 times."""
QUEUE = "orders"
PARTITIONS = ("a", "b", "c")
CLIENTS = 4
CALLS = 25
"""Of each client in one life of a server."""
POINTS_OF_A_LIFE = 25
STEPS_OF_A_LIFE = 800
"""About so many writes and syncs."""
FAULTS: dict[Kind, float] = {"write": 0.01, "sync": 0.2}
"""The share that fails."""


class Untrue(Exception):
    """The store is not as somebody was told."""


class Answered(msgspec.Struct):
    """What clients know at some moment."""

    pushed: dict[tuple[str, int], int] = {}
    """What was acknowledged, by partition and offset."""
    settled: set[tuple[str, int]] = set()
    refused: set[int] = set()
    """What had no effect, as they were told."""

    def copy(self) -> Answered:
        """The same, as it stands."""
        return Answered(self.pushed.copy(), self.settled.copy(), self.refused.copy())


class Clients:
    """They push, pop and settle, and remember what they were told."""

    def __init__(self, engine: SqliteEngine, chance: random.Random) -> None:
        self._engine = engine
        self._chance = chance
        self.answered = Answered()
        self.sent = 0
        self.unknown = 0

    async def run(self) -> None:
        """One life of a server."""
        await asyncio.gather(*(self._client() for _ in range(CLIENTS)))

    async def _client(self) -> None:
        for _ in range(CALLS):
            await (self._push() if self._chance.random() < 0.7 else self._work())

    async def _push(self) -> None:
        partition, numbers = self._chance.choice(PARTITIONS), []
        for _ in range(self._chance.randint(1, 3)):
            self.sent += 1
            numbers.append(self.sent)
        padding = "x" * self._chance.choice([0, 100, 9000])
        items = [NewMessage(QUEUE, partition, msgspec.json.encode([number, padding])) for number in numbers]
        try:
            [outcomes] = await self._engine.push([items])
        except HarkError as error:
            self._failed(error, numbers)
            return
        assert isinstance(outcomes, list)
        for number, outcome in zip(numbers, outcomes, strict=True):
            assert outcome.message_id is not None
            address = self._engine._codec.decode(outcome.message_id)
            assert address is not None
            self.answered.pushed[partition, address.offset] = number

    def _failed(self, error: HarkError, numbers: list[int]) -> None:
        if error.code == "outcome_unknown":
            self.unknown += 1
        else:
            self.answered.refused.update(numbers)

    async def _work(self) -> None:
        try:
            [popped] = await self._engine.pop([PopRequest(queue=QUEUE, batch=self._chance.randint(1, 9))])
            assert isinstance(popped, PopResult)
            items = [
                Settlement(one.transaction_id, one.partition_id, lease_id=popped.lease_id) for one in popped.messages
            ]
            [settled] = await self._engine.settle([items])
        except HarkError:
            return
        assert isinstance(settled, list)
        for message, outcome in zip(popped.messages, settled, strict=True):
            if outcome.success:
                self.answered.settled.add((message.partition, message.offset))


async def check(directory: Path, answered: Answered, sent: int) -> None:
    """Start a server on what is left; raise `Untrue` unless it is as clients were told."""
    engine = SqliteEngine(str(directory / "hark.db"), clock=SystemClock())
    await engine.start(lambda _hints: None)
    try:
        found: dict[tuple[str, int], int] = {}
        for partition in PARTITIONS:
            [read] = await engine.read([Read(queue=QUEUE, partition=partition, offset=1, limit=10_000)])
            messages = [] if isinstance(read, HarkError) else read.messages
            if [message.offset for message in messages] != [*range(1, len(messages) + 1)]:
                raise Untrue("offsets are not dense")
            found |= {(partition, one.offset): msgspec.json.decode(bytes(one.payload))[0] for one in messages}
        if lost := {address: number for address, number in answered.pushed.items() if found.get(address) != number}:
            raise Untrue(f"lost: {lost}")
        if there := answered.refused & {*found.values()}:
            raise Untrue(f"there, although refused: {there}")
        if max(found.values(), default=0) > sent or len({*found.values()}) != len(found):
            raise Untrue("invented or doubled")
        [popped] = await engine.pop([PopRequest(queue=QUEUE, batch=10_000, partitions=100)])
        if isinstance(popped, PopResult):
            again = answered.settled & {(message.partition, message.offset) for message in popped.messages}
            if again:
                raise Untrue(f"delivered again: {again}")
        if await engine._read_committed(lambda connection: connection.pragma("integrity_check")) != "ok":
            raise Untrue("damaged")
    finally:
        await engine.close()


@pytest.fixture(autouse=True)
def checkpoints_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is moved into the database many times in each life, and begins anew."""
    monkeypatch.setattr("hark.engine.sqlite.store._PAGES", 20)
    monkeypatch.setattr("hark.engine.sqlite.store._BLOCKING_PAGES", 60)


async def a_disk(directory: Path, chance: random.Random) -> Disk:
    """A disk with a new store."""
    engine = SqliteEngine(str(put({}, directory) / "hark.db"), clock=SystemClock())
    await engine.start(lambda _hints: None)
    await engine.close()
    return Disk(directory, chance)


class Life:
    """One server on a disk, and what was left of it at some points."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self._directory = directory
        self._chance = chance
        self.left: list[tuple[dict[str, bytes], Answered]] = []
        """The files after a power failure or kill, and what clients knew before."""
        self.faults = 0
        self.clients: Clients | None = None

    async def run(self, faults: Mapping[Kind, float] = MappingProxyType({})) -> None:
        """Live; take note of what is left at random points. That share of the writes and syncs fails."""
        disk = await a_disk(self._directory / "data", self._chance)
        engine = SqliteEngine(str(disk.directory / "hark.db"), clock=SystemClock())
        clients = self.clients = Clients(engine, self._chance)

        def step(kind: Kind, name: str) -> None:
            if self._chance.random() < POINTS_OF_A_LIFE / STEPS_OF_A_LIFE:
                answered = clients.answered.copy()
                self.left.append((disk.after_power_failure(), answered))
                if faults:
                    self.left.append((disk.after_kill(), answered))
            if self._chance.random() < faults.get(kind, 0.0):
                self.faults += 1
                raise apsw.IOError(f"{kind} of {name} failed on purpose")

        with powered_by(disk):
            await engine.start(lambda _hints: None)
            disk.step = step
            try:
                await clients.run()
            finally:
                disk.heal()
                # It goes on by itself once the disk does.
                await engine.push([[NewMessage(QUEUE, "last", b"1")]])
                await engine.close()
        self.left.append((disk.after_power_failure(), clients.answered))

    async def check(self) -> int:
        """Check all that was left; how many points that were."""
        assert self.clients is not None
        for kept, answered in self.left:
            await check(put(kept, self._directory / "left"), answered, self.clients.sent)
        return len(self.left)


@contextmanager
def without_sync(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store whose commits do not wait for the disk."""
    real = Store.open

    def opened(store: Store) -> None:
        real(store)
        store.writer.pragma("synchronous", "normal")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "open", opened)
        yield


async def test_a_power_failure_at_a_random_point_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    chance, points, acknowledged = random.Random(SEED), 0, 0
    while points < POINTS:
        life = Life(tmp_path, chance)
        await life.run()
        assert life.clients is not None
        points += await life.check()
        acknowledged += len(life.clients.answered.pushed) + len(life.clients.answered.settled)
    print(f"{points} power failures, {acknowledged} acknowledged pushes and settlements: nothing lost")


async def test_a_commit_that_skips_the_sync_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(tmp_path, random.Random(SEED))
    with without_sync(monkeypatch):
        await life.run()
    with pytest.raises(Untrue, match=r"lost|delivered again"):
        await life.check()


async def test_a_disk_that_fails_at_random_points_keeps_what_was_acknowledged_and_nothing_that_was_refused(
    tmp_path: Path,
) -> None:
    chance, points, faults, refused = random.Random(SEED), 0, 0, 0
    while points < POINTS:
        life = Life(tmp_path, chance)
        await life.run(FAULTS)
        assert life.clients is not None
        points += await life.check()
        faults += life.faults
        refused += len(life.clients.answered.refused)
    assert faults and refused
    print(f"{points} points, {faults} failed writes and syncs, {refused} pushes refused: all as clients were told")


@pytest.mark.parametrize(("times", "code"), [(1, "engine_failure"), (1000, "outcome_unknown")], ids=["once", "always"])
async def test_a_push_whose_sync_failed_is_not_there_after_a_kill_unless_its_outcome_is_unknown(
    tmp_path: Path, times: int, code: str
) -> None:
    disk = await a_disk(tmp_path / "data", random.Random(SEED))
    engine = SqliteEngine(str(disk.directory / "hark.db"), clock=SystemClock())
    left = [times]

    def step(kind: Kind, name: str) -> None:
        if kind == "sync" and name.endswith("-wal") and left[0]:
            left[0] -= 1
            raise apsw.IOError("on purpose")

    with powered_by(disk):
        await engine.start(lambda _hints: None)
        await engine.push([[NewMessage(QUEUE, "a", b"[1]")]])
        disk.step = step
        with pytest.raises(EngineFailure) as failure:
            await engine.push([[NewMessage(QUEUE, "a", b"[2]")]])
        assert failure.value.code == code
        refused = {2} if code == "engine_failure" else set()
        await check(put(disk.after_kill(), tmp_path / "left"), Answered({("a", 1): 1}, set(), refused), 2)
        if times > 1:
            # Nothing is done before it is clear that the failed commit is gone.
            with pytest.raises(EngineFailure) as failure:
                await engine.push([[NewMessage(QUEUE, "a", b"[3]")]])
            assert failure.value.code == "engine_failure"
            left[0] = 0
        await engine.push([[NewMessage(QUEUE, "a", b"[4]")]])
        await check(put(disk.after_kill(), tmp_path / "left"), Answered({("a", 1): 1, ("a", 2): 4}, set(), {2, 3}), 4)
        await engine.close()
