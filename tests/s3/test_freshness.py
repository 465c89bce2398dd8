"""When a process may trust what it knows of the log's end, and begin the next record; and what holds if it sleeps."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection
from types import SimpleNamespace

import msgspec
import pytest

from hark.clock import SECOND, FakeClock
from hark.engine.s3 import housekeeping, objects
from hark.engine.s3.flush import OTHERS_SECONDS, TURNS, WritePacing
from hark.engine.s3.log import LogFreshness, append, boot_seconds
from hark.engine.s3.objects import BucketRetries, Record, encode, load_newest, nonce_of, publish, read_pointer
from hark.errors import EngineFailure
from tests.s3.rests import Rests
from tests.s3.stub.faults import Faults
from tests.s3.stub.inprocess import StubBucket
from tests.s3.stub.store import Request, StubStore

GRACE = 3600.0


@pytest.fixture(params=["boot", "store"])
def clock(request: pytest.FixtureRequest) -> SimpleNamespace:
    """The clock of the machine or that of the store, as a test says; the other one stands still."""
    return SimpleNamespace(now=50_000.0, which=request.param)


@pytest.fixture
def freshness(clock: SimpleNamespace) -> LogFreshness:
    """The sight of a process that has just seen the end of the log."""
    clocks = {"boot": lambda: 7.0, "store": lambda: 7.0} | {clock.which: lambda: clock.now}
    freshness = LogFreshness(GRACE, clocks["store"], clocks["boot"])
    assert (freshness.is_stale, freshness.is_void(freshness.at)) == (True, True), "before the first sight"
    freshness.seen(freshness.now())
    return freshness


def test_a_look_is_stale_after_half_the_grace(freshness: LogFreshness, clock: SimpleNamespace) -> None:
    clock.now += GRACE / 2
    assert not freshness.is_stale
    clock.now += 1
    assert freshness.is_stale
    freshness.seen(freshness.now())
    assert not freshness.is_stale
    freshness.lose()
    assert freshness.is_stale, "a state that begins anew has seen nothing"


def test_an_answer_is_void_before_the_grace_is_over(freshness: LogFreshness, clock: SimpleNamespace) -> None:
    since = freshness.at
    clock.now += GRACE * 0.9
    assert not freshness.is_void(since)
    clock.now += 1
    assert freshness.is_void(since)


def test_a_process_that_was_stopped_between_request_and_answer_finds_the_answer_void(
    freshness: LogFreshness, clock: SimpleNamespace
) -> None:
    since = freshness.at
    sent = freshness.now()
    clock.now += 2 * GRACE
    assert freshness.is_void(since)
    # Even a sight that somebody notes meanwhile does not heal the answer.
    freshness.seen(freshness.now())
    assert freshness.is_void(since)
    assert not freshness.is_void(freshness.at)
    assert sent == since


def test_a_look_counts_from_when_its_request_was_sent_and_an_older_one_does_not_turn_it_back(
    freshness: LogFreshness, clock: SimpleNamespace
) -> None:
    before = freshness.now()
    clock.now += 1
    sent = freshness.now()
    clock.now += GRACE * 0.6
    freshness.seen(sent)
    assert freshness.at == sent
    assert freshness.is_stale
    assert not freshness.is_void(freshness.at)
    freshness.seen(before)
    assert freshness.at == sent


def test_a_clock_that_was_set_back_does_not_make_a_look_younger() -> None:
    now = SimpleNamespace(boot=50_000.0, store=80_000.0)
    freshness = LogFreshness(GRACE, lambda: now.store, lambda: now.boot)
    since = freshness.now()
    freshness.seen(since)
    now.boot += GRACE
    now.store -= 10 * GRACE
    assert freshness.is_stale
    assert freshness.is_void(since)
    freshness.seen(freshness.now())
    assert not freshness.is_stale


def test_the_boot_clock_counts_suspended_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[int] = []

    def clock_gettime(clock: int) -> float:
        clocks.append(clock)
        return 1.5

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    assert boot_seconds() == 1.5
    assert clocks == [getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)]


# Pace ------------------------------------------------------------------------------------------------------


TRIP = 0.03


def write(pacing: WritePacing, now: float, calls: int = 1) -> float:
    """A record is written, in one round trip; when it is in the log."""
    pacing.begin(now)
    pacing.wrote(now + TRIP, calls)
    return now + TRIP


@pytest.fixture
def pacing() -> WritePacing:
    """A pace without chance."""
    return WritePacing(0.05, random=lambda: 0.5)


def test_under_load_records_are_further_and_further_apart_up_to_the_longest_until_it_is_over(
    pacing: WritePacing,
) -> None:
    assert pacing.pause(0.0) == 0
    now, apart = write(pacing, 0.0), []
    assert pacing.pause(now) == 0, "who is alone does not wait"
    for _ in range(6):
        now = write(pacing, now, calls=10)
        apart.append(pacing.apart)
    assert apart == pytest.approx([0.004, 0.008, 0.016, 0.032, 0.05, 0.05])
    # From begin to begin: the round trip counts.
    assert pacing.pause(now) == pytest.approx(0.05 - TRIP)
    for _ in range(5):
        now = write(pacing, now + 1)
    assert (pacing.apart, pacing.pause(now)) == (0, 0)


def test_who_wants_no_linger_has_none() -> None:
    pacing = WritePacing(0.0)
    now = 0.0
    for _ in range(5):
        now = write(pacing, now, calls=10)
    assert pacing.pause(now) == 0


def test_who_has_written_makes_room_for_others_until_it_is_overtaken_or_they_are_gone(pacing: WritePacing) -> None:
    pacing.saw_other(0.0)
    now = write(pacing, 0.1)
    assert pacing.pause(now) == pytest.approx(3 * TRIP)
    pacing.saw_other(now)
    assert pacing.pause(now) == 0
    now = write(pacing, now + OTHERS_SECONDS)
    assert not pacing.has_company(now)
    assert pacing.pause(now) == 0


def test_those_who_lose_together_do_not_try_together() -> None:
    draws = iter([0.0, 1.0])
    pacing = WritePacing(0.05, random=lambda: next(draws))
    pacing.saw_other(0.0)
    now = write(pacing, 0.1)
    first, second = pacing.pause(now), pacing.pause(now)
    assert second > first > 0


def test_who_writes_record_after_record_rests_now_and_then_for_those_who_are_not_known(pacing: WritePacing) -> None:
    now, pauses = 0.0, []
    for _ in range(2 * TURNS):
        now = write(pacing, now)
        pauses.append(pacing.pause(now))
        now += pauses[-1]
    rests = [index for index, pause in enumerate(pauses) if pause > 0]
    assert rests == [TURNS - 1, 2 * TURNS - 1]
    for _ in range(2 * TURNS):
        now = write(pacing, now + 1)
        assert pacing.pause(now) == 0, "who writes now and then never rests"


@pytest.mark.parametrize(("every", "fresh", "old"), [(0.05, TRIP, 2 * TRIP), (2.0, 0.5, 1.5)], ids=["often", "seldom"])
def test_where_others_write_an_old_look_is_likely_wrong(
    pacing: WritePacing, every: float, fresh: float, old: float
) -> None:
    now = write(pacing, 0.0)
    assert not pacing.is_likely_behind(100.0, seconds_since_seen=100.0), "who is alone need not look before it writes"
    for _ in range(30):
        now += every
        pacing.saw_other(now)
    assert pacing.is_likely_behind(now, seconds_since_seen=old)
    assert not pacing.is_likely_behind(now, seconds_since_seen=fresh)


def test_who_slept_over_an_append_does_not_rest_for_as_long(pacing: WritePacing) -> None:
    pacing.saw_other(3599.0)
    pacing.begin(0.0)
    pacing.wrote(3600.0, calls=1)
    assert pacing.pause(3600.0) <= 3 * 0.5


# Processes that fall asleep at any request, while others remove the log behind them -------------------------


GRACE_SECONDS = 100.0
EPOCH = "epoch"


class Untrue(Exception):
    """Somebody has applied, or acknowledged, what is not in the log."""


class World:
    """The bucket, the time, and what truly happened.

    `stands_still`: the clock of a process that sleeps stands still, as in a virtual machine that is suspended.
    """

    def __init__(self, seed: int, *, stands_still: bool) -> None:
        self.random = random.Random(seed)
        self.stands_still = stands_still
        self.clock = FakeClock()
        self.store = StubStore(self.clock)
        self.truth: dict[int, str] = {}
        """Who first had each number."""
        self.sleeping: set[Process] = set()
        self.processes = [Process(self, f"p{number}") for number in range(4)]
        self.dead_lettered = 0
        """How often somebody won a number that had been removed."""
        self.acknowledged = 0

    async def turn(self) -> None:
        """Somebody who is awake does something."""
        seconds = self.random.uniform(0, 10)
        self.clock.advance(seconds)
        awake = [process for process in self.processes if process not in self.sleeping]
        for process in awake if self.stands_still else self.processes:
            process.clock.advance(seconds)
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
            self.dead_lettered += 1


class Process:
    """As small as one can be that keeps the rules of `log.py`; its state is the list of the nonces that it applied."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.nonces: list[str] = []
        self.clock = FakeClock(world.clock.now())
        faults = Faults()
        # Written down at the instant at which it happens, before anybody can fall asleep.
        faults.hook("after", world.note_created, kind="put", key="log/")
        faults.hook("before", lambda _: world.may_sleep(self))
        faults.hook("after", lambda _: world.may_sleep(self))
        self.bucket = StubBucket(world.store, self.clock, faults=faults)
        self.freshness = LogFreshness(
            GRACE_SECONDS, lambda: self.bucket.time.now() / SECOND, lambda: self.clock.now() / SECOND
        )
        rests = Rests()
        self.retries = BucketRetries(seconds=1.0, pause=rests.pause, monotonic=rests.monotonic)

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
        while self.freshness.is_stale:
            sent = self.freshness.now()
            read = await read_pointer(self.bucket)
            if read is not None and read[0].seq > self.applied:
                found = await load_newest(self.bucket)
                assert found is not None
                self.nonces = msgspec.json.decode(found[1], type=list[str])
            self.freshness.seen(sent)

    async def read(self) -> None:
        """Apply what is new."""
        while True:
            await self.look_again()
            since, sent = self.freshness.at, self.freshness.now()
            found = await self.bucket.get(objects.record(self.applied + 1))
            if self.freshness.is_void(since):
                self.freshness.lose()
            elif found is None:
                self.freshness.seen(sent)
                return
            else:
                self.apply(nonce_of(found.body, self.applied + 1))

    async def append(self) -> None:
        """Commit something, at the first number that is free."""
        while True:
            await self.look_again()
            seq, since, sent = self.applied + 1, self.freshness.at, self.freshness.now()
            nonce = f"{self.name}-{self.world.random.random()}"
            body = encode(Record(seq, EPOCH, 0, nonce, 1, self.name, "", b"", b""))
            try:
                found = await append(self.bucket, self.retries, seq, body, nonce)
            except EngineFailure:
                # The number was taken, and removed before it could be read.
                self.freshness.lose()
                return
            if self.freshness.is_void(since):
                self.freshness.lose()
                return
            self.apply(nonce if found is None else nonce_of(found.body, seq))
            if found is None:
                self.freshness.seen(sent)
                self.world.acknowledged += 1
                return

    async def tidy_up(self) -> None:
        """Make a snapshot, and remove what may go."""
        now, state = self.bucket.time.now, msgspec.json.encode(self.nonces)
        if self.applied:
            await publish(self.bucket, EPOCH, self.applied, state, now)
        grace = round(GRACE_SECONDS * SECOND)
        await housekeeping.collect(self.bucket, EPOCH, applied=self.applied, grace=grace, now=now, segments=no_segments)


def no_segments(_after: int, _up_to: int) -> Collection[int]:
    """No record here has payloads."""
    return ()


async def live(world: World) -> None:
    """Let a lot happen, then let everybody read to the end; all must know the same, and the truth."""
    for _ in range(120):
        await world.turn()
    for process in world.processes:
        await process.read()
        assert process.nonces == [world.truth[seq] for seq in range(1, len(world.truth) + 1)]


@pytest.mark.parametrize("stands_still", [False, True], ids=["clocks go on", "clocks stand still"])
async def test_no_one_expects_to_have_won_a_number_that_was_removed_nor_reads_one(stands_still: bool) -> None:
    worlds = [World(seed, stands_still=stands_still) for seed in range(10)]
    for world in worlds:
        await live(world)
    # It was put to the test: numbers that had been removed were won, and the log was not just kept.
    assert sum(world.dead_lettered for world in worlds) > 5
    assert sum(len(world.truth) - len(world.store.keys("log/")) for world in worlds) > 500
    assert sum(world.acknowledged for world in worlds) > 500


def no_answer_is_void(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogFreshness, "is_void", lambda *_: False)


def there_is_no_grace(patch: pytest.MonkeyPatch) -> None:
    promised = housekeeping.promised
    patch.setattr(housekeeping, "promised", lambda pointer, now, _grace, applied: promised(pointer, now, 0, applied))


def only_the_clock_of_the_machine_counts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LogFreshness, "seconds_since", lambda self, moment: self.now().boot - moment.boot)


@pytest.mark.parametrize(
    ("spoil", "stands_still"),
    [(no_answer_is_void, False), (there_is_no_grace, False), (only_the_clock_of_the_machine_counts, True)],
    ids=lambda value: getattr(value, "__name__", ""),
)
async def test_without_the_rules_it_does_not_hold(
    spoil: Callable[[pytest.MonkeyPatch], None], stands_still: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)
    with pytest.raises(Untrue):
        for seed in range(10):
            await live(World(seed, stands_still=stands_still))
