"""No wake-up is lost: whatever happens, who waits is told of all that it could take.

The state machine of the engines runs with consumers that look only when a hint or a named time tells them to. One that
believes that there is nothing must be right. HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from hark.model import Hint, HintKind
from tests.replaying import Recordings, replay

from .engines import ENGINES, MEMORY, EngineKind
from .machine import FIRST_OPTIONS, QueueMachine
from .model_nouns import PopParams
from .searching import explore, search
from .steps import MODES, PARTITIONS, QUEUES, pick
from .waiting import Waiting

EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "80"))
FEW_EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "20"))
STEPS = 40
RECORDED = Recordings(Path(__file__).with_name("recorded_lost_wakeups.json"))


class LostWakeUp(AssertionError):
    """Something could be taken, and nobody had told so."""


class WaitingMachine(QueueMachine):
    """The machine of the engines, with consumers that wait."""

    unheard: ClassVar[HintKind | None] = None
    """HintKind that never reaches them."""
    uncounted: ClassVar[bool] = False
    """They hear where, but not how many."""

    @initialize(options=FIRST_OPTIONS, data=st.data())
    def start(self, options: tuple[str, ...], data: st.DataObject, number: int = 0) -> None:
        """An empty engine, and everybody waits."""
        super().start(options, data, number)
        self.q.hints.clear()  # There is nothing to take yet: so nobody has to look first.
        self.waiting = [
            Waiting(queues, group, mode, name)
            for group, mode in MODES.items()
            for queues, names in (((QUEUES[0],), (None, *PARTITIONS[:2])), (QUEUES, (None,)))
            for name in names
        ]

    @precondition(lambda self: hasattr(self, "waiting"))
    @invariant()
    def on_hints(self) -> None:
        """What was told since the last step reaches those who wait."""
        received: list[Hint] = [hint for hint in self.q.hints if hint.kind != self.unheard]
        if self.uncounted:
            received = [msgspec.structs.replace(hint, counts=()) for hint in received]
        for one in self.waiting:
            one.on_hints(received)
            one.note_time(self.clock.now())
        self.q.hints.clear()

    @rule(data=st.data(), batch=st.integers(1, 3), partitions=st.integers(1, 2), auto_ack=st.booleans())
    def look_once(self, data: st.DataObject, batch: int, partitions: int, auto_ack: bool) -> None:
        """Somebody who was told of something looks for it."""
        if woken := [one for one in self.waiting if not one.is_idle]:
            self.look_for(pick(data, woken, "who"), batch, partitions, auto_ack)

    @rule(auto_ack=st.booleans())
    def look_until_idle(self, auto_ack: bool) -> None:
        """One after the other looks until it believes in nothing, and has to be right about it."""
        for one in self.waiting:
            while not one.is_idle:
                self.look_for(one, 1, 1, auto_ack)
                self.on_hints()
            self.check(one)
        self.check_idle()

    @rule()
    def check_idle(self) -> None:
        """Those who were told of nothing look nevertheless."""
        for one in self.waiting:
            if one.is_idle:
                self.check(one)

    def look_for(self, one: Waiting, batch: int, partitions: int, auto_ack: bool) -> None:
        """One look; what is told during it is not answered by it."""
        anywhere, before = one.anywhere, one.partitions
        one.anywhere, one.partitions = False, Counter()
        params = PopParams(list(one.queues), one.partition, one.group, "all", batch, partitions, auto_ack, one.mode)
        got = self.pop_once(params)
        one.looked(
            before, Counter((leased.message.queue, leased.message.partition) for leased in got), got.look_again_at
        )
        one.anywhere = anywhere and bool(got)

    def check(self, one: Waiting) -> None:
        """Insist that there is nothing to take."""
        got = self.pop_once(PopParams(list(one.queues), one.partition, one.group, "all", 1, 1, False, one.mode))
        if got:
            raise LostWakeUp(f"{one!r} was not told of {got[0].message.queue} {got[0].message.partition}")
        one.look_again_at = got.look_again_at

    def pass_time(self, seconds: float) -> None:
        """Time passes, and the server's timer ends leases."""
        super().pass_time(seconds)
        self.run(self.q.engine.expire())

    def reopen(self) -> None:
        """Another server: everybody comes anew."""
        super().reopen()
        for one in self.waiting:
            one.anywhere = True


def machine_of(kind: EngineKind, request: pytest.FixtureRequest) -> type[WaitingMachine]:
    """The machine for one kind of engine."""

    class Machine(WaitingMachine):
        pass

    Machine.kind = kind
    Machine.new_store = partial(kind.store, request)
    return Machine


@pytest.mark.parametrize("kind", [*ENGINES, MEMORY], ids=lambda kind: kind.name)
def test_who_waits_is_notified_of_all_that_it_could_take(kind: EngineKind, request: pytest.FixtureRequest) -> None:
    machine, how = machine_of(kind, request), search(kind, examples=EXAMPLES, few=FEW_EXAMPLES, steps=STEPS)
    if kind.leases_survive:  # What other servers could do is noticed in the background.
        explore(machine, how)
    else:
        run_state_machine_as_test(machine, settings=how)


@pytest.mark.parametrize("lost", ["message", "free", "counts"])
def test_a_wake_up_that_gets_lost_is_found(lost: HintKind | Literal["counts"], request: pytest.FixtureRequest) -> None:
    """The checker that passes an engine which keeps things to itself is broken."""
    machine = machine_of(MEMORY, request)
    if lost == "counts":
        machine.uncounted = True
    else:
        machine.unheard = lost
    RECORDED.show(machine, lost, LostWakeUp, examples=500, steps=STEPS)


@pytest.mark.parametrize("lost", ["message", "free", "counts"])
def test_without_a_loss_the_same_steps_find_nothing(lost: str, request: pytest.FixtureRequest) -> None:
    replay(machine_of(MEMORY, request), RECORDED.steps(lost))
