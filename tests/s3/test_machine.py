"""Several engines on one bucket against the reference model, as one, with and without faults of the bucket.

HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import cast

import pytest

from hark.engine.api import Engine
from tests.engine.engines import EngineKind, LocalBucket, Open
from tests.engine.searching import search
from tests.engine.test_keys_machine import machine_of as key_machine_of
from tests.engine.test_state_machine import machine_of
from tests.s3.many import Many, explore
from tests.s3.stub.faults import Faults

EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "12"))
STEPS = 40


@contextmanager
def _three(_request: pytest.FixtureRequest) -> Iterator[Open]:
    bucket = LocalBucket()
    yield lambda clock: cast("Engine", Many([bucket.open(clock) for _ in range(3)]))


@contextmanager
def _three_that_snapshot(_request: pytest.FixtureRequest) -> Iterator[Open]:
    bucket = LocalBucket(snapshot_records=3)
    yield lambda clock: cast("Engine", Many([bucket.open(clock) for _ in range(3)]))


@contextmanager
def _three_with_faults(_request: pytest.FixtureRequest) -> Iterator[Open]:
    seeds = count(1)

    async def at_once(_seconds: float) -> None:
        await asyncio.sleep(0)

    # Of many starts the self-test would refuse a few: it has tests of its own.
    bucket = LocalBucket(lambda: Faults.by_chance(next(seeds), 0.05, spare="probe/"), at_once)
    yield lambda clock: cast("Engine", Many([bucket.open(clock) for _ in range(3)]))


KINDS = [
    EngineKind("three", durable=True, exclusive=False, leases_survive=True, store=_three, servers=3),
    EngineKind(
        "three-snapshots", durable=True, exclusive=False, leases_survive=True, store=_three_that_snapshot, servers=3
    ),
    EngineKind("three-faults", durable=True, exclusive=False, leases_survive=True, store=_three_with_faults, servers=3),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_several_engines_keep_keys_as_a_dict_does(kind: EngineKind, request: pytest.FixtureRequest) -> None:
    how = search(kind, examples=EXAMPLES, with_a_server=EXAMPLES, steps=STEPS)
    explore(key_machine_of(kind, request), how)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_several_engines_answer_as_the_model_does(kind: EngineKind, request: pytest.FixtureRequest) -> None:
    how = search(kind, examples=EXAMPLES, with_a_server=EXAMPLES, steps=STEPS)
    explore(machine_of(kind, request), how)
