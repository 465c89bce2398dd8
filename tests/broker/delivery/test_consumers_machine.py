"""The consumer manager against the naive one, and its fairness, on scripts that nobody thought of.

Managers broken on purpose each break one promise: a checker that passes one of them is broken itself.
HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from hark.broker.delivery.consumers import ConsumerManager, State, Work, _Member, _Ring
from tests.replaying import Recordings, replay

from .consumer_machine import ConsumerMachine


class UntoldLosesItsTurn(ConsumerManager[int]):
    """Whoever is told in vain goes to the end."""

    def _move(self, member: _Member[int], target: State, *, to_head: bool = False) -> None:  # noqa: ARG002
        super()._move(member, target)


class ServedKeepsItsTurn(ConsumerManager[int]):
    """Whoever got something is the next to get something."""

    def served(self, consumer: int) -> None:
        """Put it at the head."""
        if self.state_of(consumer) in {State.INTERESTED, State.NOTIFIED}:
            self._move(self._members[consumer], State.INTERESTED, to_head=True)


class LowestFirst(ConsumerManager[int]):
    """Tells those of low priority although higher ones want the work."""

    def rebalance(self, work: Work) -> list[int]:
        """Go from the lowest to the highest."""
        self._levels.reverse()
        notified = super().rebalance(work)
        self._levels.reverse()
        return notified


class ClaimsOnlyWhatItNotifies(ConsumerManager[int]):
    """Leaves to lower priorities what the cap keeps the higher ones from being told of."""

    def rebalance(self, work: Work) -> list[int]:
        """Forget those beyond the cap while the others are looked at."""
        beyond = [(ring, one) for ring in self._rings() for one in [*ring.notified, *ring.interested][self._cap :]]
        for ring, one in beyond:
            ring.interested.pop(one, None)
        notified = super().rebalance(work)
        for ring, one in beyond:
            ring.interested[one] = None
        return notified


class NeverTakesBack(ConsumerManager[int]):
    """Leaves told whoever was told, when the work is gone or a higher one wants it."""

    def _reserve(self, ring: _Ring[int], claim: int) -> list[int]:
        return super()._reserve(ring, max(claim, len(ring.notified)))


class LooksOnlyAtWork(ConsumerManager[int]):
    """Loses a wake-up: with the same work as before it sees no reason to tell anybody."""

    last: Work | None = None

    def rebalance(self, work: Work) -> list[int]:
        """Skip what seems to be no news."""
        if work == self.last:
            return []
        self.last = work
        return super().rebalance(work)


class NotifiesBrowsers(ConsumerManager[int]):
    """Counts a browser among those who take."""

    def add(self, consumer: int, *, priority: int = 0, partition: str | None = None, browser: bool = False) -> None:  # noqa: ARG002
        """Forget that it only looks."""
        super().add(consumer, priority=priority, partition=partition, browser=False)


class AnyBeforeTheNamed(ConsumerManager[int]):
    """Tells consumers without a filter first, who take what another can take alone."""

    def rebalance(self, work: Work) -> list[int]:
        """See first without the partitions, then with them."""
        without = sum(len(level.rings[None]) for level in self._levels if None in level.rings)
        elsewhere = max(0, work.total - without)
        return super().rebalance(Work(work.total, {name: min(n, elsewhere) for name, n in work.at.items()}))


BROKEN: list[type[ConsumerManager[int]]] = [
    UntoldLosesItsTurn,
    ServedKeepsItsTurn,
    LowestFirst,
    ClaimsOnlyWhatItNotifies,
    NeverTakesBack,
    LooksOnlyAtWork,
    NotifiesBrowsers,
    AnyBeforeTheNamed,
]


# The consumer manager against the naive one, and its fairness, on scripts that nobody thought of -----------


EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "300"))
STEPS = 40
ENOUGH_FOR_A_BROKEN_ONE = 500
RECORDED = Recordings(Path(__file__).with_name("recorded_faults.json"))

SEARCH = settings(
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
DEFECT_SEARCH = settings(
    SEARCH, max_examples=ENOUGH_FOR_A_BROKEN_ONE, derandomize=True, phases=[Phase.generate], print_blob=False
)


def machine_of(manager: type[ConsumerManager[int]]) -> type[ConsumerMachine]:
    """The state machine for one kind of manager."""

    class Machine(ConsumerMachine):
        manager_of = manager

    return Machine


def test_i9_the_manager_equals_the_naive_one_and_keeps_all_invariants() -> None:
    run_state_machine_as_test(machine_of(ConsumerManager), settings=SEARCH)


@pytest.mark.parametrize("manager", BROKEN, ids=lambda manager: manager.__name__)
def test_a_broken_manager_is_found(manager: type[ConsumerManager[int]]) -> None:
    """The checker that passes a broken manager is broken."""
    replay(machine_of(ConsumerManager), RECORDED.steps(manager.__name__))
    RECORDED.show(machine_of(manager), manager.__name__, AssertionError, examples=ENOUGH_FOR_A_BROKEN_ONE, steps=STEPS)


class WaitingLine:
    """Equal consumers and a pump that serves head first, on hints that may be wrong in both directions."""

    def __init__(self, manager: ConsumerManager[int], consumers: int, lane: str | None) -> None:
        self.manager = manager
        self.lane = lane
        self.ready = 0
        self.expected = 0
        self.got = Counter(dict.fromkeys(range(consumers), 0))
        for name in self.got:
            manager.add(name, partition=lane)
            manager.set_interest(name, True)

    def step(self, kind: str, amount: int) -> None:
        """Something happens to the work, or the pump serves a few."""
        if kind == "burst":
            self.ready, self.expected = self.ready + amount, self.expected + amount
        elif kind == "unheard":
            self.ready += amount
        elif kind == "stale":
            self.expected += amount
        else:
            for _ in range(amount):
                self._serve()
        self._rebalance()

    def _serve(self) -> None:
        name = self.manager.next_notified(self.lane)
        if name is None:
            return
        if self.ready:
            self.ready, self.expected = self.ready - 1, self.expected - 1
            self.got[name] += 1
            self.manager.served(name)
        else:
            assert self.expected > 0, "I3: told without a hint"
            self.expected = 0
        self._rebalance()

    def _rebalance(self) -> None:
        self.manager.rebalance(Work(self.expected, {self.lane: self.expected} if self.lane else {}))

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
        waiting_line = WaitingLine(manager(cap), consumers, lane)
        for kind, amount in script:
            waiting_line.step(kind, amount)
            assert waiting_line.unfairness() <= 1, "I4"

    look()


def test_i4_equal_consumers_get_the_same_within_one_whatever_the_bursts_and_losses() -> None:
    look_for_unfairness(ConsumerManager, SEARCH)


@pytest.mark.parametrize("manager", [UntoldLosesItsTurn, ServedKeepsItsTurn], ids=lambda manager: manager.__name__)
def test_an_unfair_manager_is_found(manager: type[ConsumerManager[int]]) -> None:
    with pytest.raises(AssertionError):
        look_for_unfairness(manager, DEFECT_SEARCH)
