"""Engines on one bucket that are broken on purpose: the machine that passes one of them is broken itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import cast

import pytest
from hypothesis import Phase, settings
from hypothesis.errors import FlakyFailure

from hark.engine.api import Engine
from hark.engine.s3.bucket.api import Stored
from hark.engine.s3.log.append import Appender
from hark.engine.s3.replica.chain import Chain
from hark.engine.s3.replica.leases import LeaseRows
from hark.engine.s3.replica.memory import Memory
from hark.errors import EngineFailure
from tests.engine.comparing import Disagreement
from tests.engine.engines import EngineKind, LocalBucket, Open
from tests.engine.searching import search
from tests.engine.test_state_machine import machine_of
from tests.s3.many import Many, explore
from tests.s3.stub.faults import Faults

ENOUGH = 500
Break = Callable[[pytest.MonkeyPatch], None]


def lost_numbers_count_as_won(patch: pytest.MonkeyPatch) -> None:
    """What somebody else put there is taken for our own."""
    append = Appender.append

    async def broken(self: Appender, seq: int, body: bytes, nonce: str) -> Stored | None:
        await append(self, seq, body, nonce)
        return None

    patch.setattr(Appender, "append", broken)


def lost_replies_count_as_failures(patch: pytest.MonkeyPatch) -> None:
    """A record whose reply was lost is taken for somebody else's, and what it did is done again."""
    patch.setattr("hark.engine.s3.log.append.nonce_of", lambda *_: "nobody's")


def what_is_known_is_the_last_word(patch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the log before he answers that there is nothing."""
    read = Chain.read

    def broken(self: Chain, seq: int, number: int) -> list[Stored] | None:
        return read(self, seq, number) if seq == 1 else []

    patch.setattr(Chain, "read", broken)


def memory_stays_as_it_was(patch: pytest.MonkeyPatch) -> None:
    """What others wrote, or what was undone, is in the tables and not in memory."""
    patch.setattr(Memory, "follow", lambda *_: None)


def leases_are_known_to_their_giver_only(patch: pytest.MonkeyPatch) -> None:
    """Nobody else knows who holds what."""
    patch.setattr(LeaseRows, "save", lambda *_: None)


@contextmanager
def _three(_request: pytest.FixtureRequest) -> Iterator[Open]:
    seeds = count(1)

    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    bucket = LocalBucket(lambda: Faults.by_chance(next(seeds), 0.05, spare="probe/"), at_once)
    yield lambda clock: cast("Engine", Many([bucket.open(clock) for _ in range(3)]))


KIND = EngineKind("three", durable=True, exclusive=False, leases_survive=True, store=_three, servers=3)
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
    how = settings(
        search(KIND, examples=ENOUGH, with_a_server=ENOUGH, steps=40), phases=[Phase.generate], print_blob=False
    )
    # An answer is wrong, or so wrong that the test's own words can't take it (a queue that is not there), or the
    # next record does not fit the tables and the engine stops; or it is one of these, and not the same a second time.
    with pytest.raises((Disagreement, ValueError, EngineFailure, FlakyFailure)):
        explore(machine_of(KIND, request), how)
