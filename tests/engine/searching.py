"""How the state machines of the engines search."""

from __future__ import annotations

import os
import sys

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import FlakyStrategyDefinition, HypothesisException
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from .engines import EngineKind


def search(kind: EngineKind, *, examples: int, few: int, steps: int) -> settings:
    """Settings of a search at one kind of engine; few examples where steps are slow or a kind is nearly another."""
    return settings(
        max_examples=examples if kind.durable and not kind.leases_survive else few,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        # The same ones every time, so that a red build is about the change; scripts/explore looks for others.
        derandomize="HARK_TEST_EXAMPLES" not in os.environ,
        print_blob=True,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


_SEARCHES = 10


def explore(machine: type[RuleBasedStateMachine], how: settings) -> None:
    """Search with a machine whose steps depend on more than its choices, as on several engines.

    Which of them knows what at a moment depends on threads, and with it which of several messages comes first. So what
    failed does not get smaller by being tried again, and a beginning that was tried before may go on in another way:
    Hypothesis gives up on that, and by itself it means nothing: then other beginnings are tried.
    """
    failures: list[Exception] = []

    class Watched(machine):  # type: ignore[valid-type,misc]  # mypy wants to know which one it is.
        def teardown(self) -> None:
            error = sys.exc_info()[1]
            if isinstance(error, Exception) and not isinstance(error, HypothesisException):
                failures.append(error)
            super().teardown()

    for number in range(_SEARCHES):
        try:
            chosen = seed(number)(Watched) if how.derandomize else Watched
            run_state_machine_as_test(chosen, settings=settings(how, phases=[Phase.generate]))
            return
        except FlakyStrategyDefinition:
            if failures:
                raise failures[0] from None
