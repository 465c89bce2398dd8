"""Every engine against the reference model: the same operations, the same answers.

HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from hypothesis.stateful import run_state_machine_as_test

from hark.clock import FakeClock
from hark.engine.api import Engine
from tests.replaying import Recordings, replay

from .broken import Broken
from .broken_sharing import BROKEN
from .comparing import Disagreement
from .driver import Wrap
from .engines import ENGINES, MEMORY, EngineKind
from .machine import QueueMachine
from .searching import search

EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "150"))
FEW_EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "30"))
"""Where every step is a call of another process, and where another kind is nearly the same."""
STEPS = 40
ENOUGH_FOR_A_BROKEN_ONE = 500
RECORDED = Recordings(Path(__file__).with_name("recorded_faults.json"))


def machine_of(kind: EngineKind, request: pytest.FixtureRequest, wrapper: Wrap | None = None) -> type[QueueMachine]:
    """The state machine for one kind of engine, as it is or wrapped."""

    class Machine(QueueMachine):
        pass

    Machine.kind = kind
    Machine.new_store = partial(kind.store, request)
    if wrapper is not None:
        Machine.wrap = staticmethod(wrapper)
    return Machine


@pytest.mark.parametrize("kind", [*ENGINES, MEMORY], ids=lambda kind: kind.name)
def test_an_engine_answers_as_the_model_does(kind: EngineKind, request: pytest.FixtureRequest) -> None:
    run_state_machine_as_test(
        machine_of(kind, request),
        settings=search(kind, examples=EXAMPLES, few=FEW_EXAMPLES, steps=STEPS),
    )


@pytest.mark.parametrize("wrapper", BROKEN, ids=lambda wrapper: wrapper.__name__)
def test_a_broken_engine_is_found(wrapper: type[Broken], request: pytest.FixtureRequest) -> None:
    """The checker that passes a broken engine is broken."""

    def spoil(engine: Engine, clock: FakeClock) -> Engine:
        return cast("Engine", wrapper(engine, clock))

    RECORDED.show(
        machine_of(wrapper.kind, request, spoil),
        wrapper.__name__,
        Disagreement,
        examples=ENOUGH_FOR_A_BROKEN_ONE,
        steps=STEPS,
    )


@pytest.mark.parametrize("wrapper", BROKEN, ids=lambda wrapper: wrapper.__name__)
def test_an_engine_that_works_passes_the_same_steps(wrapper: type[Broken], request: pytest.FixtureRequest) -> None:
    replay(machine_of(wrapper.kind, request), RECORDED.steps(wrapper.__name__))
