"""Every engine against the reference model: the same operations, the same answers.

HARK_TEST_EXAMPLES=2000 looks longer than the default.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from .engines import ENGINES, EngineKind
from .machine import QueueMachine

EXAMPLES = int(os.environ.get("HARK_TEST_EXAMPLES", "60"))


def machine_of(kind: EngineKind) -> type[QueueMachine]:
    """The state machine for one kind of engine."""
    return type(f"QueueMachine_{kind.name}", (QueueMachine,), {"kind": kind})


@pytest.mark.parametrize("kind", ENGINES, ids=lambda kind: kind.name)
def test_an_engine_answers_as_the_model_does(kind: EngineKind) -> None:
    run_state_machine_as_test(
        machine_of(kind),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            database=None,
        ),
    )
