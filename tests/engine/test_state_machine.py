"""Every engine against the reference model: the same operations, the same answers.

HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import os
from functools import partial
from typing import cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from hark.clock import FakeClock
from hark.engine.api import Engine

from .broken import Broken
from .broken_sharing import BROKEN
from .comparing import Disagreement
from .driver import Wrap
from .engines import ENGINES, EngineKind
from .machine import QueueMachine
from .searching import search

EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "150"))
EXAMPLES_WITH_A_SERVER = int(os.environ.get("HARK_TEST_EXAMPLES", "30"))
"""Fewer where every step is a call of another process."""
STEPS = 40
ENOUGH_FOR_A_BROKEN_ONE = 500


def machine_of(kind: EngineKind, request: pytest.FixtureRequest, wrapper: Wrap | None = None) -> type[QueueMachine]:
    """The state machine for one kind of engine, as it is or wrapped."""

    class Machine(QueueMachine):
        pass

    Machine.kind = kind
    Machine.new_store = partial(kind.store, request)
    if wrapper is not None:
        Machine.wrap = staticmethod(wrapper)
    return Machine


@pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.name)
def test_an_engine_answers_as_the_model_does(kind: EngineKind, request: pytest.FixtureRequest) -> None:
    run_state_machine_as_test(
        machine_of(kind, request),
        settings=search(kind, examples=EXAMPLES, with_a_server=EXAMPLES_WITH_A_SERVER, steps=STEPS),
    )


@pytest.mark.parametrize("wrapper", BROKEN, ids=lambda wrapper: wrapper.__name__)
def test_a_broken_engine_is_found(wrapper: type[Broken], request: pytest.FixtureRequest) -> None:
    """The checker that passes a broken engine is broken."""

    def spoil(engine: Engine, clock: FakeClock) -> Engine:
        return cast("Engine", wrapper(engine, clock))

    with pytest.raises(Disagreement):
        run_state_machine_as_test(
            machine_of(wrapper.kind, request, spoil),
            settings=settings(
                max_examples=ENOUGH_FOR_A_BROKEN_ONE,
                stateful_step_count=STEPS,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                report_multiple_bugs=False,
                suppress_health_check=list(HealthCheck),
            ),
        )
