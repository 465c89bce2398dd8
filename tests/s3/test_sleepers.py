"""Processes that fall asleep at any request, while others remove the log behind them: the rules of `sight` hold.

Each process is as small as one can be that keeps the rules; its state is the list of the nonces that it has applied.
"""

from __future__ import annotations

import random
from collections.abc import Collection

import msgspec
import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.s3.log import places
from hark.engine.s3.log.append import Appender
from hark.engine.s3.log.pointer import read_pointer
from hark.engine.s3.log.record import Record, encode, nonce_of
from hark.engine.s3.log.sight import Sight
from hark.engine.s3.log.snapshot import load_newest, publish
from hark.engine.s3.replica import garbage
from hark.errors import EngineFailure
from tests.s3.rests import Rests
from tests.s3.stub.faults import Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

GRACE_SECONDS = 100.0
EPOCH = "epoch"


class Untrue(Exception):
    """Somebody has applied, or acknowledged, what is not in the log."""


class World:
    """The bucket, the time, and what truly happened."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.store = StubStore(self.clock)
        self.truth: dict[int, str] = {}
        """Who first had each number."""
        self.sleeping: set[Process] = set()
        self.processes = [Process(self, f"p{number}") for number in range(4)]
        self.buried = 0
        """How often somebody won a number that had been removed."""
        self.acknowledged = 0

    def boot_seconds(self) -> float:
        """The clock of the machine."""
        return self.clock.now() / SECOND

    async def turn(self) -> None:
        """Somebody who is awake does something."""
        self.clock.advance(self.random.uniform(0, 10))
        awake = [process for process in self.processes if process not in self.sleeping]
        process = self.random.choice(awake)
        await self.random.choice([process.append, process.append, process.append, process.read, process.tidy_up])()

    async def may_sleep(self, process: Process) -> None:
        """Before and after any request: the others go on for a while."""
        if len(self.sleeping) >= 2 or process in self.sleeping or self.random.random() > 0.008:
            return
        self.sleeping.add(process)
        for _ in range(self.random.randrange(60)):
            await self.turn()
        self.sleeping.discard(process)

    def note_created(self, request: Request) -> None:
        """Write down who has a number first."""
        seq = int(request.key.removeprefix("log/"))
        body = self.store.read(request.key)
        if body is not None and self.truth.setdefault(seq, nonce_of(body, seq)) != nonce_of(body, seq):
            self.buried += 1


class Process:
    """One that folds and appends."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.nonces: list[str] = []
        self.sight = Sight(GRACE_SECONDS, world.boot_seconds)
        faults = Faults()
        # Written down at the instant at which it happens, before anybody can fall asleep.
        faults.hook("after", world.note_created, kind="put", key="log/")
        faults.hook("before", lambda _: world.may_sleep(self))
        faults.hook("after", lambda _: world.may_sleep(self))
        self.bucket = StubBucket(world.store, world.clock, faults=faults)
        rests = Rests()
        self.appender = Appender(self.bucket, 1.0, pause=rests.pause, monotonic=rests.monotonic)

    @property
    def applied(self) -> int:
        """The last record in the state."""
        return len(self.nonces)

    def apply(self, nonce: str) -> None:
        """Fold a record; it must be the one that truly has this number."""
        if nonce != self.world.truth[self.applied + 1]:
            raise Untrue
        self.nonces.append(nonce)

    async def look_again(self) -> None:
        """Whatever is needed before a record is trusted or appended."""
        while self.sight.is_stale:
            sent = self.sight.now()
            read = await read_pointer(self.bucket)
            if read is not None and read[0].seq > self.applied:
                found = await load_newest(self.bucket)
                assert found is not None
                self.nonces = msgspec.json.decode(found[1], type=list[str])
            self.sight.seen(sent)

    async def read(self) -> None:
        """Apply what is new."""
        while True:
            await self.look_again()
            since, sent = self.sight.at, self.sight.now()
            found = await self.bucket.get(places.record(self.applied + 1))
            if self.sight.is_void(since):
                self.sight.lose()
            elif found is None:
                self.sight.seen(sent)
                return
            else:
                self.apply(nonce_of(found.body, self.applied + 1))

    async def append(self) -> None:
        """Commit something, at the first number that is free."""
        while True:
            await self.look_again()
            seq, since, sent = self.applied + 1, self.sight.at, self.sight.now()
            nonce = f"{self.name}-{self.world.random.random()}"
            body = encode(Record(seq, EPOCH, 0, self.name, nonce, "", 1, b"", b""))
            try:
                found = await self.appender.append(seq, body, nonce)
            except EngineFailure:
                # The number was taken, and removed before it could be read.
                self.sight.lose()
                return
            if self.sight.is_void(since):
                self.sight.lose()
                return
            self.apply(nonce if found is None else nonce_of(found.body, seq))
            if found is None:
                self.sight.seen(sent)
                self.world.acknowledged += 1
                return

    async def tidy_up(self) -> None:
        """Make a snapshot, and remove what may go."""
        clock, state = self.world.clock, msgspec.json.encode(self.nonces)
        if self.applied:
            await publish(self.bucket, EPOCH, self.applied, state, clock.now)
        grace = round(GRACE_SECONDS * SECOND)
        await garbage.collect(
            self.bucket, EPOCH, applied=self.applied, grace=grace, now=clock.now, segments=no_segments
        )


async def no_segments(_after: int, _up_to: int) -> Collection[int]:
    """No record here has payloads."""
    return ()


async def live(world: World) -> None:
    """Let a lot happen, then let everybody read to the end; all must know the same, and the truth."""
    for _ in range(120):
        await world.turn()
    for process in world.processes:
        await process.read()
        assert process.nonces == [world.truth[seq] for seq in range(1, len(world.truth) + 1)]


async def test_nobody_believes_to_have_won_a_number_that_was_removed_nor_reads_one() -> None:
    worlds = [World(seed) for seed in range(10)]
    for world in worlds:
        await live(world)
    # It was put to the test: numbers that had been removed were won, and the log was not just kept.
    assert sum(world.buried for world in worlds) > 5
    assert sum(len(world.truth) - len(world.store.keys("log/")) for world in worlds) > 500
    assert sum(world.acknowledged for world in worlds) > 500


async def test_without_the_rule_of_void_answers_it_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sight, "is_void", lambda *_: False)
    with pytest.raises(Untrue):
        for seed in range(10):
            await live(World(seed))


async def test_without_the_grace_it_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    promise = garbage.promise
    monkeypatch.setattr(garbage, "promise", lambda epoch, now, _grace, applied: promise(epoch, now, 0, applied))
    with pytest.raises(Untrue):
        for seed in range(10):
            await live(World(seed))
