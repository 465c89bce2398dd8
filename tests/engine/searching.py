"""How the state machines of the engines search."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

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
