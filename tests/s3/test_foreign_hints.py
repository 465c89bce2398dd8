"""Who waits at one process is told of all that others make ready: no wake-up is lost on its way through the log.

The machine of waiting consumers runs on several engines on one bucket, and hears but one of them. That one gives all
messages out; everything else is asked of the others. HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis.stateful import invariant, precondition

from hark.engine.api import Engine, KeyListener, Listener, ignore_keys
from hark.model import Hint
from tests.engine.engines import EngineKind, LocalBucket, Open
from tests.engine.searching import search
from tests.engine.test_hints_machine import LostWakeUp, WaitingMachine
from tests.s3.many import Many, explore

EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "12"))
STEPS = 40
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

    def hear(self, hints: Sequence[Hint]) -> list[Hint]:
        """Nothing that the log does not say."""
        return self.home.hear(hints)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return getattr(self.home, name) if name in AT_HOME else super().__getattr__(name)


class Machine(WaitingMachine):
    """Whoever waits does so where the log has been read."""

    @precondition(lambda self: hasattr(self, "waiting"))
    @invariant()
    def hear(self) -> None:
        """What was told since the last step reaches those who wait."""
        self.run(self.q.engine.home.ping())  # type: ignore[attr-defined]
        super().hear()


@contextmanager
def _apart(_request: pytest.FixtureRequest) -> Iterator[Open]:
    bucket = LocalBucket()
    yield lambda clock: cast("Engine", Apart([bucket.open(clock) for _ in range(2)]))


KIND = EngineKind("apart", durable=True, exclusive=False, leases_survive=True, store=_apart, servers=2)


def machine(request: pytest.FixtureRequest) -> type[Machine]:
    """The machine on two engines."""

    class OnTwo(Machine):
        pass

    OnTwo.kind = KIND
    OnTwo.new_store = partial(KIND.store, request)
    return OnTwo


def test_who_waits_is_told_of_all_that_others_make_ready(request: pytest.FixtureRequest) -> None:
    how = search(KIND, examples=EXAMPLES, with_a_server=EXAMPLES, steps=STEPS)
    explore(machine(request), how)


def test_what_the_log_says_and_nobody_tells_is_found(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine that passes an engine which keeps others' records to itself is broken."""
    monkeypatch.setattr("hark.engine.s3.replica.foreign.hints", lambda *_: [])
    how = search(KIND, examples=500, with_a_server=500, steps=STEPS)
    with pytest.raises(LostWakeUp):
        explore(machine(request), settings(how, print_blob=False))
