"""Recorded steps that once showed a fault (recorded.json): a broken one must fail at them, and a healthy one pass.

The search that found them runs instead if HARK_TEST_EXAMPLES is set; Hypothesis prints the steps that it finds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from hark.model import PopRequest

Machine = TypeVar("Machine", bound=RuleBasedStateMachine)
SEARCHING = "HARK_TEST_EXAMPLES" in os.environ
_STEPS: dict[str, list[tuple[str, dict[str, Any]]]] = json.loads(Path(__file__).with_suffix(".json").read_text())


def replay(machine: type[Machine], name: str, *invariants: Callable[[Machine], None]) -> None:
    """Let a machine take the steps that were recorded for a fault, and look at its invariants after each."""
    one = machine()
    try:
        for step, arguments in _STEPS[name]:
            wish = {"wish": PopRequest(**arguments["wish"])} if "wish" in arguments else {}
            getattr(one, step)(**(arguments | wish))
            for invariant in invariants:
                invariant(one)
    finally:
        one.teardown()
