"""What memory keeps of the tables is what they say, however it came to be so: own verbs, undone ones, others' records.

The machine of the engines drives three engines on one bucket. After each record memory is compared with what somebody
makes of the tables who has never seen them. HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, cast

import apsw
import pytest

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.engine.s3.replica.fold import Fold
from hark.engine.s3.replica.leases import LeaseRows
from hark.engine.s3.replica.memory import Memory
from hark.engine.sqlite.loader import Loader
from hark.engine.sqlite.ordered import Track
from hark.engine.sqlite.push import room_left
from hark.engine.sqlite.shared.claim import Picker
from hark.engine.sqlite.shared.track import SharedTrack
from hark.engine.sqlite.state import Group, State
from hark.engine.sqlite.track import NOTHING, AnyTrack
from hark.engine.sqlite.transaction import WriteTransaction
from hark.ids import IdCodec, IdSource
from tests.engine.engines import EngineKind, LocalBucket, Open
from tests.engine.searching import search
from tests.engine.test_state_machine import machine_of
from tests.s3.many import Many, explore
from tests.s3.stub.faults import Faults

EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "12"))
STEPS = 40


class Comparison:
    """Memory, and what the tables say; both in words that can be compared."""

    def __init__(self, fold: Fold) -> None:
        self.old = fold.state
        self.now = fold.head.time
        self.new = State(IdCodec(fold._tag))
        rows = LeaseRows(self.new, fold._lease_rows._writer, fold._lease_rows._margin)
        Memory(fold.scratch, self.new, rows).read_all()
        self.connection = fold.scratch.writer
        self.loader = Loader(self.connection, self.new)
        self.rows, self.old_rows = rows, fold._lease_rows

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
        self.loader.tracks(other, list(group.tracks))
        pairs: list[tuple[str, object, object]] = [
            (f"in flight of {key}", group.in_flight, other.in_flight),
            (f"in flight of {key}, counted", group.in_flight, sum(one.in_flight for one in group.tracks.values())),
            (f"group {key}", _group(group), _group(other)),
        ]
        for number, track in group.tracks.items():
            found = other.tracks.get(number)
            pairs.append((f"track {key} {number}", _track(track), None if found is None else _track(found)))
        queue = self.new.queues.get(key[0])
        if group.discovered and queue is not None:
            group.wake_due(self.now)
            self.loader.discover(other, queue, self.now)
            other.wake_due(self.now)
            believed = {*group.ready, *group.waking}
            unknown = {*other.ready, *other.waking} - believed
            pairs.append((f"not known to be ready for {key}", {one for one in unknown if self._has(other, one)}, set()))
            early = {(due, one) for one, (due, _) in group.waking.items()}
            pairs.append((f"on the schedule of {key}", early - {*group.waking_heap}, set()))
        return pairs

    def _has(self, group: Group, partition: int) -> bool:
        """Whether there is, or will be, something to take: who begins believes so of more places than have it."""
        track = self.loader.track(group, partition)
        if isinstance(track, SharedTrack):
            Picker(self.connection, self.now).look(track)
        return track is not None and track.outlook(self.now) != NOTHING


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
                (track.group.id, track.partition.id): (part.handed, part.open, part.last)
                for track, part in lease.parts.items()
            },
        )
        for lease in state.leases.values()
    }


def _group(group: Group) -> tuple[object, ...]:
    limits = group.bounds.limits
    return group.id, group.mode, group.subscription, group.highest_partition, group.paused, group.created_at, limits


def _track(track: AnyTrack) -> dict[str, object]:
    assert track.draft is None
    if isinstance(track, Track):
        track.rise_to(track.partition.floor)
        return {
            "cursor": track.cursor,
            "ranges": track.ranges,
            "retries": {at: (one.attempts, one.due, one.error) for at, one in track.retries.items()},
            "front": {at: probe for at, probe in track.front.items() if at > track.partition.floor},
            "probed": track.is_probed,
            "lease": track.lease and track.lease.id,
            "held": {name: (held[0], held[1].id, held[2], held[3]) for name, held in track.held.items()},
        }
    assert isinstance(track, SharedTrack)
    return {
        "base": track.base,
        "entries": {
            at: (one.attempts, one.available_at, one.error, one.front, one.is_out, one.lease and one.lease.id)
            for at, one in track.entries.items()
            if at > track.partition.floor
        },
        "held": {name: (one.offset, one.schedule) for name, one in track.held.items()},
        "by lease": {lease.id: {*held} for lease, held in track.by_lease.items()},
    }


@pytest.fixture
def differences(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was found to differ after a record; empty: nothing."""
    found: list[object] = []

    def watch(name: str) -> None:
        method = getattr(Fold, name)

        def watched(self: Fold, *arguments: Any) -> Any:
            result = method(self, *arguments)
            found.extend((name, *pair) for pair in Comparison(self).differences())
            return result

        monkeypatch.setattr(Fold, name, watched)

    for name in ("keep", "undo", "apply"):
        watch(name)
    return found


@contextmanager
def _three(_request: pytest.FixtureRequest) -> Iterator[Open]:
    seeds = count(1)

    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    # Of many starts the self-test would refuse a few: it has tests of its own.
    bucket = LocalBucket(lambda: Faults.by_chance(next(seeds), 0.02, spare="probe/"), at_once)
    yield lambda clock: cast("Engine", Many([bucket.open(clock) for _ in range(3)]))


KIND = EngineKind("three", durable=True, exclusive=False, leases_survive=True, store=_three, servers=3)


def test_memory_is_what_the_tables_say(request: pytest.FixtureRequest, differences: list[object]) -> None:
    how = search(KIND, examples=EXAMPLES, with_a_server=EXAMPLES, steps=STEPS)
    explore(machine_of(KIND, request), how)
    assert not differences, differences[:3]
