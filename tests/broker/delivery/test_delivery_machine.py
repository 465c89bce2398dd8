"""Delivery as a whole on scripts that nobody thought of, and deliveries broken on purpose that must be found.

HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test

from hark.broker import Broker
from hark.broker.delivery.delivery import Delivery
from hark.broker.delivery.ready import ReadyWork
from hark.broker.delivery.subscription import Source, Subscription
from hark.model import GroupMode, Hint, PopRequest
from tests.replaying import Recordings, replay

from .delivery_machine import QUEUES, DeliveryMachine
from .harness import ANY, serving, turns
from .test_shared import SHARED, served

EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "60"))
STEPS = 30
ENOUGH_FOR_A_BROKEN_ONE = 1000
RECORDED = Recordings(Path(__file__).with_name("recorded_faults.json"), params=PopRequest)
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


def machine_of(*of_queues: GroupMode) -> type[DeliveryMachine]:
    """The state machine with what the group is in each queue."""

    class Machine(DeliveryMachine):
        modes: ClassVar[dict[str, GroupMode]] = dict(zip(QUEUES, of_queues, strict=True))

    return Machine


@pytest.mark.parametrize("modes", [("ordered", "ordered"), ("shared", "shared"), ("shared", "ordered")], ids="-".join)
def test_no_one_is_forgotten_and_nothing_is_left_behind(modes: tuple[GroupMode, GroupMode]) -> None:
    run_state_machine_as_test(machine_of(*modes), settings=SEARCH)


@pytest.mark.parametrize("request_", [ANY, SHARED], ids=["free-partitions", "one-partition-of-a-shared-group"])
@SEARCH
@given(
    consumers=st.integers(1, 12),
    bursts=st.lists(st.tuples(st.integers(1, 8), st.sampled_from([None, 0, 1, 2, 5])), max_size=12),
)
def test_i3_pushes_wake_no_one_in_vain(
    request_: PopRequest, consumers: int, bursts: list[tuple[int, int | None]]
) -> None:
    """And whoever is told is told once: as many looks as messages, although in a shared group all come to one place."""

    async def script() -> None:
        async with serving() as server:
            # The first pop of a group finds all that is there, whether or not it was announced.
            await server.parked(request_)
            await server.push("first")
            await server.quiet()
            server.tasks.clear()
            for _ in range(consumers):
                await server.parked(request_)
            looks, pushed = sum(server.engine.pops), 0
            for burst, rest in bursts:
                await server.push(*("p" if request_ is SHARED else f"p{pushed + number}" for number in range(burst)))
                pushed += burst
                await (server.quiet() if rest is None else turns(rest))
            await server.quiet()
            assert served(server.tasks) == min(pushed, consumers), "I1"
            assert server.empty_wakes() == 0, "I3"
            assert sum(server.engine.pops) - looks == served(server.tasks), "I3: somebody looked in vain"

    asyncio.run(script())


# Broken on purpose ------------------------------------------------------------------------------------------


def no_hint_of_settlements(patch: pytest.MonkeyPatch) -> None:
    """What is given back, or may be taken again, is told to nobody."""
    hint = Delivery.hint

    def deaf(self: Delivery, hints: Sequence[Hint], source: Source | None = None) -> None:
        hint(self, [one for one in hints if one.kind == "message"], source)

    patch.setattr(Delivery, "hint", deaf)


def no_look_for_a_newcomer(patch: pytest.MonkeyPatch) -> None:
    """A stream is told only of what comes after it."""
    patch.setattr(Subscription, "welcome", lambda _self, _consumer: None)


def marks_are_ignored(patch: pytest.MonkeyPatch) -> None:
    """An empty look disproves what was heard after it began."""
    disprove = ReadyWork.disprove

    def forgetful(self: ReadyWork, partition: str | None, queue: str | None, _mark: int) -> None:
        disprove(self, partition, queue, self.mark)

    patch.setattr(ReadyWork, "disprove", forgetful)


def nothing_is_given_back(patch: pytest.MonkeyPatch) -> None:
    """What a client that left would have got stays leased."""
    patch.setattr(Broker, "give_back", lambda _self, _result: None)


@pytest.mark.parametrize(
    ("sabotage", "mode"),
    [
        (no_hint_of_settlements, "ordered"),
        (no_look_for_a_newcomer, "ordered"),
        (marks_are_ignored, "ordered"),
        (nothing_is_given_back, "ordered"),
        (no_hint_of_settlements, "shared"),
        (marks_are_ignored, "shared"),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_broken_delivery_is_found(
    sabotage: Callable[[pytest.MonkeyPatch], None], mode: GroupMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checker that passes a broken delivery is broken."""
    machine, fault = machine_of(mode, mode), f"{sabotage.__name__}-{mode}"
    replay(machine, RECORDED.steps(fault))
    sabotage(monkeypatch)
    RECORDED.show(machine, fault, AssertionError, examples=ENOUGH_FOR_A_BROKEN_ONE, steps=STEPS)
