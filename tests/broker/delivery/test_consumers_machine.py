"""The consumer manager against the naive one, and its fairness, on scripts that nobody thought of.

HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from hark.broker.delivery.consumers import ConsumerManager, Work

from .broken_managers import BROKEN, ServedKeepsItsTurn, UntoldLosesItsTurn
from .consumer_machine import ConsumerMachine

EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "300"))
STEPS = 40
ENOUGH_FOR_A_BROKEN_ONE = 500

LOOKING = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    database=None,
    # The same ones every time, so that a red build is about the change.
    derandomize="HARK_TEST_EXAMPLES" not in os.environ,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
LOOKING_FOR_A_DEFECT = settings(
    LOOKING, max_examples=ENOUGH_FOR_A_BROKEN_ONE, derandomize=True, phases=[Phase.generate], print_blob=False
)


def machine_of(manager: type[ConsumerManager[int]]) -> type[ConsumerMachine]:
    """The state machine for one kind of manager."""

    class Machine(ConsumerMachine):
        manager_of = manager

    return Machine


def test_i9_the_manager_equals_the_naive_one_and_keeps_all_invariants() -> None:
    run_state_machine_as_test(machine_of(ConsumerManager), settings=LOOKING)


@pytest.mark.parametrize("manager", BROKEN, ids=lambda manager: manager.__name__)
def test_a_broken_manager_is_found(manager: type[ConsumerManager[int]]) -> None:
    """The checker that passes a broken manager is broken."""
    with pytest.raises(AssertionError):
        run_state_machine_as_test(machine_of(manager), settings=LOOKING_FOR_A_DEFECT)


class Line:
    """Equal consumers and a pump that serves head first, on hints that may be wrong in both directions."""

    def __init__(self, manager: ConsumerManager[int], consumers: int, lane: str | None) -> None:
        self.manager = manager
        self.lane = lane
        self.ready = 0
        self.believed = 0
        self.got = Counter(dict.fromkeys(range(consumers), 0))
        for name in self.got:
            manager.add(name, partition=lane)
            manager.set_interest(name, True)

    def step(self, kind: str, amount: int) -> None:
        """Something happens to the work, or the pump serves a few."""
        if kind == "burst":
            self.ready, self.believed = self.ready + amount, self.believed + amount
        elif kind == "unheard":
            self.ready += amount
        elif kind == "stale":
            self.believed += amount
        else:
            for _ in range(amount):
                self._serve()
        self._rebalance()

    def _serve(self) -> None:
        name = self.manager.next_notified(self.lane)
        if name is None:
            return
        if self.ready:
            self.ready, self.believed = self.ready - 1, self.believed - 1
            self.got[name] += 1
            self.manager.served(name)
        else:
            assert self.believed > 0, "I3: told without a hint"
            self.believed = 0
        self._rebalance()

    def _rebalance(self) -> None:
        self.manager.rebalance(Work(self.believed, {self.lane: self.believed} if self.lane else {}))

    def unfairness(self) -> int:
        """By how much the luckiest is ahead."""
        return max(self.got.values()) - min(self.got.values())


def look_for_unfairness(manager: type[ConsumerManager[int]], how: settings) -> None:
    """Run many lines with one kind of manager."""
    happenings = st.tuples(st.sampled_from(["burst", "unheard", "stale", "serve", "serve"]), st.integers(0, 9))

    @how
    @given(
        cap=st.sampled_from([1, 2, 5, 100]),
        consumers=st.integers(1, 8),
        lane=st.sampled_from([None, "a"]),
        script=st.lists(happenings, max_size=30),
    )
    def look(cap: int, consumers: int, lane: str | None, script: list[tuple[str, int]]) -> None:
        line = Line(manager(cap), consumers, lane)
        for kind, amount in script:
            line.step(kind, amount)
            assert line.unfairness() <= 1, "I4"

    look()


def test_i4_equal_consumers_get_the_same_within_one_whatever_the_bursts_and_losses() -> None:
    look_for_unfairness(ConsumerManager, LOOKING)


@pytest.mark.parametrize("manager", [UntoldLosesItsTurn, ServedKeepsItsTurn], ids=lambda manager: manager.__name__)
def test_an_unfair_manager_is_found(manager: type[ConsumerManager[int]]) -> None:
    with pytest.raises(AssertionError):
        look_for_unfairness(manager, LOOKING_FOR_A_DEFECT)
