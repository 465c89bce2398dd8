"""Several engines on one bucket against the reference model, as one, while the bucket fails and snapshots are made.

After each record memory may be compared with what somebody makes of the tables who has never seen them. Engines that
are broken on purpose must not pass. HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, cycle
from typing import Any, cast

import apsw
import pytest
from hypothesis import Phase, settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import invariant, precondition

from hark.broker.tallies import VERBS
from hark.clock import FakeClock
from hark.engine.api import Engine, KeyListener, Listener, ignore_keys
from hark.engine.core.handout import Picker
from hark.engine.core.loader import Loader
from hark.engine.core.ordered import OrderedPosition
from hark.engine.core.position import NOTHING, Position
from hark.engine.core.push import room_left
from hark.engine.core.shared import SharedPosition
from hark.engine.core.state import Group, State
from hark.engine.core.transaction import WriteTransaction
from hark.engine.s3 import log
from hark.engine.s3.bucket import Bucket, Stored
from hark.engine.s3.leases import LeaseRows
from hark.engine.s3.log import LogClient
from hark.engine.s3.objects import BucketRetries
from hark.engine.s3.state import LocalState, Memory
from hark.errors import HarkError
from hark.ids import IdCodec, IdSource
from hark.model import Hint
from tests.engine.comparing import Disagreement
from tests.engine.engines import EngineKind, LocalBucket, Open
from tests.engine.searching import explore, search
from tests.engine.test_hints_machine import LostWakeUp, WaitingMachine
from tests.engine.test_keys_machine import machine_of as key_machine_of
from tests.engine.test_state_machine import machine_of
from tests.s3.stub.faults import Faults


class Many:
    """Several engines on one bucket that behave as one: each verb is asked of the next of them.

    Whatever the rules say of one engine must hold for all of them together. No verb may answer by what its engine
    happens to know.
    """

    shared = True
    follows = True

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = engines
        self._next = cycle(engines)

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Start them all; whatever one of them tells is told."""
        for engine in self.engines:
            await engine.start(listener, key_listener)

    async def close(self) -> None:
        """Close them all."""
        for engine in self.engines:
            await engine.close()

    def on_hints(self, hints: Sequence[Hint]) -> list[Hint]:
        """Nothing that the log does not say."""
        return [hint for engine in self.engines for hint in engine.on_hints(hints)]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        assert name in VERBS
        verb: Callable[..., Any] = getattr(next(self._next), name)
        return verb


@contextmanager
def three(_request: pytest.FixtureRequest, rate: float = 0.05, snapshot_records: int = 1000) -> Iterator[Open]:
    """Three engines on a bucket, of whose requests such a share fails."""
    seeds = count(1)

    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    # Of many starts the self-test would refuse a few: it has tests of its own.
    bucket = LocalBucket(lambda: Faults.by_chance(next(seeds), rate, spare="probe/"), at_once, snapshot_records)
    yield lambda clock: cast("Engine", Many([bucket.open(clock) for _ in range(3)]))


EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "12"))
STEPS = 40
ENOUGH = 500
SHARED = partial(EngineKind, durable=True, exclusive=False, leases_survive=True)
FAULTS = SHARED("three-faults", store=three, servers=3)
SNAPSHOTS = SHARED("three-snapshots", store=partial(three, rate=0.0, snapshot_records=3), servers=3)
EACH = pytest.mark.parametrize("kind", [FAULTS, SNAPSHOTS], ids=lambda kind: kind.name)


def how(kind: EngineKind, examples: int = EXAMPLES) -> settings:
    """Settings of a search."""
    return search(kind, examples=examples, few=examples, steps=STEPS)


@EACH
def test_several_engines_keep_keys_as_a_dict_does(kind: EngineKind, request: pytest.FixtureRequest) -> None:
    explore(key_machine_of(kind, request), how(kind))


@EACH
def test_several_engines_answer_as_the_model_does(kind: EngineKind, request: pytest.FixtureRequest) -> None:
    explore(machine_of(kind, request), how(kind))


# What memory keeps of the tables, however it came to be so: own verbs, undone ones, others' records --------


class Comparison:
    """Memory, and what the tables say; both in words that can be compared."""

    def __init__(self, local: LocalState) -> None:
        self.old = local.state
        self.now = local.head.time
        self.new = State(IdCodec(local._tag))
        rows = LeaseRows(self.new, local._lease_rows._writer, local._lease_rows._margin)
        Memory(local.scratch, self.new, rows).read_all()
        self.connection = local.scratch.writer
        self.loader = Loader(self.connection, self.new)
        self.rows, self.old_rows = rows, local._lease_rows

    def differences(self) -> list[tuple[str, object, object]]:
        """What is not the same, as memory has it and as the tables do."""
        pairs: list[tuple[str, object, object]] = [
            ("queues", _queues(self.old), _queues(self.new)),
            ("leases", _leases(self.old), _leases(self.new)),
            ("latest due", self.old.latest_due, self.new.latest_due),
            ("lease rows", self.old_rows._stored, self.rows._stored),
            ("leases by place", self.old_rows._at, self.rows._at),
            ("next expiry", self.old.next_expiry(), self.new.next_expiry()),
        ]
        pairs += [
            (f"open in {name}", queue.open, _open(self.connection, self.new, self.now, name))
            for name, queue in self.old.queues.items()
            if queue.open is not None and name in self.new.queues
        ]
        for key, group in self.old.groups.items():
            self.loader.groups(key[0])
            pairs += self._group(key, group)
        for number, partition in self.old.partitions.items():
            other = self.loader.partition(number)
            seen = (partition.name, partition.floor, partition.tail, partition.next_tail, partition.coming)
            wanted = other and (other.name, other.floor, other.tail, other.tail, None)
            pairs.append((f"partition {number}", seen, wanted))
        return [pair for pair in pairs if pair[1] != pair[2]]

    def _group(self, key: tuple[str, str], group: Group) -> list[tuple[str, object, object]]:
        other = self.new.groups.get(key)
        if other is None:
            return [(f"group {key}", "is there", "is gone")]
        self.loader.positions(other, list(group.positions))
        pairs: list[tuple[str, object, object]] = [
            (f"in flight of {key}", group.in_flight, other.in_flight),
            (f"in flight of {key}, counted", group.in_flight, sum(map(_in_flight, group.positions.values()))),
            (f"group {key}", _group(group), _group(other)),
        ]
        for number, position in group.positions.items():
            found = other.positions.get(number)
            pairs.append((f"position {key} {number}", _position(position), None if found is None else _position(found)))
        queue = self.new.queues.get(key[0])
        if group.discovered and queue is not None:
            group.wake_due(self.now)
            self.loader.discover(other, queue, self.now)
            other.wake_due(self.now)
            known = {*group.ready, *group.waking}
            unknown = {*other.ready, *other.waking} - known
            pairs.append((f"not known to be ready for {key}", {one for one in unknown if self._has(other, one)}, set()))
            early = {(due, one) for one, (due, _) in group.waking.items()}
            pairs.append((f"on the schedule of {key}", early - {*group.waking_heap}, set()))
        return pairs

    def _has(self, group: Group, partition: int) -> bool:
        """Whether there is, or will be, something to take: who begins believes so of more places than have it."""
        position = self.loader.position(group, partition)
        if isinstance(position, SharedPosition):
            Picker(self.connection, self.now).look(position)
        return position is not None and position.readiness(self.now) != NOTHING


def _queues(state: State) -> dict[str, object]:
    return {
        name: (queue.id, queue.info, queue.created_floor, queue.bounds.limits) for name, queue in state.queues.items()
    }


def _open(connection: apsw.Connection, state: State, now: int, queue: str) -> object:
    """What every group of a queue has yet to settle, counted."""
    room_left(WriteTransaction(connection, state, now, IdSource(FakeClock())), state.queues[queue])
    return state.queues[queue].open


def _leases(state: State) -> dict[str, object]:
    return {
        lease.id: (
            lease.expires_at,
            {
                (position.group.id, position.partition.id): (part.handed, part.open, part.last)
                for position, part in lease.parts.items()
            },
        )
        for lease in state.leases.values()
    }


def _group(group: Group) -> tuple[object, ...]:
    limits = group.bounds.limits
    return group.id, group.mode, group.subscription, group.highest_partition, group.paused, group.created_at, limits


def _in_flight(position: Position) -> int:
    """How many messages are under leases, counted one by one."""
    if isinstance(position, OrderedPosition):
        part = None if position.lease is None else position.lease.parts.get(position)
        return 0 if part is None else part.open
    assert isinstance(position, SharedPosition)
    return len(position.leased)


def _position(position: Position) -> dict[str, object]:
    assert position.draft is None
    if isinstance(position, OrderedPosition):
        position.rise_to(position.partition.floor)
        return {
            "cursor": position.cursor,
            "ranges": position.ranges,
            "retries": {at: (one.attempts, one.due, one.error) for at, one in position.retries.items()},
            "requeued": {at: probe for at, probe in position.requeued.items() if at > position.partition.floor},
            "probed": position.is_probed,
            "lease": position.lease and position.lease.id,
            "held": {name: (leased[0], leased[1].id, leased[2], leased[3]) for name, leased in position.leased.items()},
        }
    assert isinstance(position, SharedPosition)
    return {
        "base": position.base,
        "entries": {
            at: (one.attempts, one.available_at, one.error, one.requeued, one.is_out, one.lease and one.lease.id)
            for at, one in position.entries.items()
            if at > position.partition.floor
        },
        "held": {name: (one.offset, one.schedule) for name, one in position.leased.items()},
        "by lease": {lease.id: {*leased} for lease, leased in position.by_lease.items()},
    }


@pytest.fixture
def differences(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was found to differ after a record; empty: nothing."""
    found: list[object] = []

    def watch(name: str) -> None:
        method = getattr(LocalState, name)

        def watched(self: LocalState, *arguments: Any) -> Any:
            result = method(self, *arguments)
            found.extend((name, *pair) for pair in Comparison(self).differences())
            return result

        monkeypatch.setattr(LocalState, name, watched)

    for name in ("keep", "undo", "apply"):
        watch(name)
    return found


def test_memory_is_what_the_tables_say(request: pytest.FixtureRequest, differences: list[object]) -> None:
    explore(machine_of(FAULTS, request), how(FAULTS))
    assert not differences, differences[:3]


# Engines that are broken on purpose ------------------------------------------------------------------------


Break = Callable[[pytest.MonkeyPatch], None]


def lost_numbers_count_as_won(patch: pytest.MonkeyPatch) -> None:
    """What somebody else put there is taken for our own."""
    append = log.append

    async def broken(bucket: Bucket, retries: BucketRetries, seq: int, body: bytes, nonce: str) -> Stored | None:
        await append(bucket, retries, seq, body, nonce)
        return None

    patch.setattr("hark.engine.s3.log.append", broken)


def lost_replies_count_as_failures(patch: pytest.MonkeyPatch) -> None:
    """A record whose reply was lost is taken for somebody else's, and what it did is done again."""
    patch.setattr("hark.engine.s3.log.nonce_of", lambda *_: "nobody's")


def what_is_known_is_the_last_word(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the log before he answers that there is nothing."""
    read = LogClient.read

    def broken(self: LogClient, seq: int, number: int) -> list[Stored] | None:
        return read(self, seq, number) if seq == 1 else []

    patch.setattr(LogClient, "read", broken)


def memory_stays_as_it_was(patch: pytest.MonkeyPatch) -> None:
    """What others wrote, or what was undone, is in the tables and not in memory."""
    patch.setattr(Memory, "follow", lambda *_: None)


def leases_are_known_to_their_giver_only(patch: pytest.MonkeyPatch) -> None:
    """Nobody else knows who holds what."""
    patch.setattr(LeaseRows, "save", lambda *_: None)


BROKEN: list[Break] = [
    lost_numbers_count_as_won,
    lost_replies_count_as_failures,
    what_is_known_is_the_last_word,
    memory_stays_as_it_was,
    leases_are_known_to_their_giver_only,
]


@pytest.mark.parametrize("spoil", BROKEN, ids=lambda spoil: spoil.__name__)
def test_a_broken_engine_is_found(
    spoil: Break, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch)
    # An answer is wrong, or so wrong that the test's own words can't take it (a queue that is not there), or the
    # next record does not fit the tables and the engine stops; or it is one of these, and not the same a second time.
    with pytest.raises((Disagreement, ValueError, HarkError, FlakyFailure)):
        explore(machine_of(FAULTS, request), settings(how(FAULTS, ENOUGH), phases=[Phase.generate], print_blob=False))


# Who waits at one process is told of all that others make ready: no wake-up is lost on its way through the log


AT_HOME = frozenset({"pop"})


class Apart(Many):
    """The first engine hands out; what the others do it knows from the log alone."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        super().__init__(engines[1:])
        self.home = engines[0]

    async def start(self, listener: Listener, key_listener: KeyListener = ignore_keys) -> None:
        """Start them all; only the first one is heard."""
        await self.home.start(listener, key_listener)
        await super().start(lambda _hints: None)

    async def close(self) -> None:
        """Close them all."""
        await self.home.close()
        await super().close()

    def on_hints(self, hints: Sequence[Hint]) -> list[Hint]:
        """Nothing that the log does not say."""
        return self.home.on_hints(hints)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self.home, name) if name in AT_HOME else super().__getattr__(name)


class AtHome(WaitingMachine):
    """Whoever waits does so where the log has been read."""

    @precondition(lambda self: hasattr(self, "waiting"))
    @invariant()
    def on_hints(self) -> None:
        """What was told since the last step reaches those who wait."""
        self.run(self.q.engine.home.ping())  # type: ignore[attr-defined]
        super().on_hints()


@contextmanager
def _apart(_request: pytest.FixtureRequest) -> Iterator[Open]:
    bucket = LocalBucket()
    yield lambda clock: cast("Engine", Apart([bucket.open(clock) for _ in range(2)]))


APART = SHARED("apart", store=_apart, servers=2)


def waiting_machine(request: pytest.FixtureRequest) -> type[AtHome]:
    """The machine on two engines."""

    class OnTwo(AtHome):
        pass

    OnTwo.kind = APART
    OnTwo.new_store = partial(APART.store, request)
    return OnTwo


def test_who_waits_is_notified_of_all_that_others_make_ready(request: pytest.FixtureRequest) -> None:
    explore(waiting_machine(request), how(APART))


def test_what_the_log_says_and_no_one_reports_is_found(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine that passes an engine which keeps others' records to itself is broken."""
    monkeypatch.setattr("hark.engine.s3.state.hints", lambda *_: [])
    with pytest.raises(LostWakeUp):
        explore(waiting_machine(request), settings(how(APART, ENOUGH), print_blob=False))
