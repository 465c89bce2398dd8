"""Keys on every engine against a dict: the same writes, the same answers.

HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import ClassVar, TypeVar

import msgspec
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from hark.clock import FakeClock
from hark.errors import Conflict
from hark.model import Key, KeyRange, KeyWrite

from .driver import Driver, given
from .engines import ENGINES, MEMORY, EngineKind, Open
from .key_model import KEYS, MUTATIONS, PREFIXES, RANGES, KeyModel, Ranked, checks, plain, ranked
from .searching import search

EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "80"))
FEW_EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "20"))
STEPS = 30

T = TypeVar("T")


class KeyMachine(RuleBasedStateMachine):
    """Drives an engine and the model."""

    kind: ClassVar[EngineKind]
    new_store: ClassVar[Callable[[], AbstractContextManager[Open]]]
    forgets_checks: ClassVar[bool] = False
    """Asks the engine for something else than the model, to see that it is noticed."""

    @initialize()
    def start(self) -> None:
        """An empty engine."""
        self.clock, self.model = FakeClock(), KeyModel()
        self.runner, self.resources = asyncio.Runner(), ExitStack()
        open_engine = self.resources.enter_context(type(self).new_store())

        async def begin() -> Driver:
            driver = Driver(open_engine, self.clock)
            await driver.start()
            return driver

        self.q = self.run(begin())
        self.highest = 0

    def teardown(self) -> None:
        """Leave nothing behind."""
        if hasattr(self, "q"):
            self.run(self.q.engine.close())
        self.runner.close()
        self.resources.close()

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Let the engine work."""
        return self.runner.run(work)

    @rule(data=st.data(), number=st.integers(1, 3))
    def write(self, data: st.DataObject, number: int) -> None:
        """A few requests in one call."""
        known = self.model.entries(self.clock.now())
        draws = st.builds(KeyWrite, st.lists(checks(known), max_size=2), st.lists(MUTATIONS, max_size=3))
        requests = [data.draw(draws) for _ in range(number)]
        self.q.key_notifications.clear()
        sent = [KeyWrite((), one.mutations) if self.forgets_checks else one for one in requests]
        answers = self.run(self.q.engine.write_keys(sent))
        changed: set[Ranked] = set()
        for request, answer in zip(requests, answers, strict=True):
            failed, misfit = self.model.failed_check(request, self.clock.now()), None
            if failed is None:
                misfit = self.model.misfit(request, self.clock.now())
            if misfit is not None:
                assert isinstance(answer, Conflict) and f"mutations[{misfit}]" in answer.text
                continue
            written = given(answer)
            assert (written.success, written.failed_check) == (failed is None, failed)
            if failed is None:
                assert written.version is not None and written.version > self.highest
                self.highest = written.version
                deleted, keys = self.model.write(request, written.version, self.clock.now())
                assert written.deleted == deleted
                changed |= keys
        changed_keys = {ranked(key) for notification in self.q.key_notifications for key in notification.keys or ()}
        assert changed <= changed_keys

    @rule(wanted=RANGES, prefix=PREFIXES, keys=st.lists(KEYS, max_size=3))
    def look(self, wanted: KeyRange, prefix: Key, keys: list[Key]) -> None:
        """Lists, counts and reads."""
        now = self.clock.now()
        known = self.model.entries(now)
        [page] = self.run(self.q.engine.list_keys([wanted]))
        assert [ranked(one.key) for one in page] == self.model.page(wanted, now)
        below = len(self.model.page(KeyRange(prefix=prefix, limit=1000), now))
        assert self.run(self.q.engine.count_keys(prefix)) == below
        for key, found in zip(keys, self.run(self.q.engine.read_keys(keys)), strict=True):
            expected = known.get(ranked(key))
            assert (found is None) == (expected is None)
            if found is not None:
                value = msgspec.json.decode(bytes(found.value))
                assert (value, found.version, found.expires_at) == expected

    @rule()
    def look_at_all(self) -> None:
        """Every entry."""
        known = self.model.entries(self.clock.now())
        found = self.run(self.q.engine.read_keys([plain(key) for key in known]))
        values = [None if one is None else (bytes(one.value), one.version, one.expires_at) for one in found]
        assert values == [(msgspec.json.encode(one.value), *one[1:]) for one in known.values()]
        if self.kind.servers == 1:  # They may be a little old, so one that did not write need not know.
            assert self.run(self.q.engine.key_stats()).entries == len(known)

    @rule(seconds=st.sampled_from([0.5, 1, 4]))
    def pass_time(self, seconds: float) -> None:
        """Entries expire."""
        self.clock.advance(seconds)

    @rule(limit=st.integers(1, 5))
    def sweep(self, limit: int) -> None:
        """Nobody sees a difference."""
        assert self.run(self.q.engine.sweep_keys(limit)) <= limit

    @precondition(lambda self: self.kind.durable)
    @rule()
    def reopen(self) -> None:
        """Another server on the same store."""
        self.run(self.q.reopen())


def machine_of(kind: EngineKind, request: pytest.FixtureRequest) -> type[KeyMachine]:
    """The machine for one kind of engine."""

    class Machine(KeyMachine):
        pass

    Machine.kind = kind
    Machine.new_store = partial(kind.store, request)
    return Machine


@pytest.mark.parametrize("kind", [*ENGINES, MEMORY], ids=lambda kind: kind.name)
def test_an_engine_keeps_keys_as_a_dict_does(kind: EngineKind, request: pytest.FixtureRequest) -> None:
    run_state_machine_as_test(
        machine_of(kind, request),
        settings=search(kind, examples=EXAMPLES, few=FEW_EXAMPLES, steps=STEPS),
    )


def test_an_engine_that_forgets_checks_is_found(request: pytest.FixtureRequest) -> None:
    """The checker that passes a broken engine is broken."""
    machine = machine_of(MEMORY, request)
    machine.forgets_checks = True
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=200, deadline=None, database=None, derandomize=True, phases=[Phase.generate]
            ),
        )
