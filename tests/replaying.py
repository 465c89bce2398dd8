"""Faults that a state machine must find, shown by recorded steps instead of a search.

A recording is a list of steps (rule, arguments, what the rule drew) that once showed the fault. The tests replay it on
the broken code and on the code that works. With HARK_TEST_EXAMPLES set (`scripts/explore` does that), the fault is
searched for instead; with HARK_TEST_RECORD set as well, the smallest steps that were found replace the recorded ones.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

Step = tuple[str, dict[str, Any], list[Any] | None]
"""The name of a rule, its arguments but `data`, and what it drew from `data`, if it has that."""
M = TypeVar("M", bound=RuleBasedStateMachine)


class Diverged(Exception):
    """The machine is not in the state in which the step was recorded."""


class Recordings:
    """The steps of several faults, in one file; `structs` names the arguments that are not plain JSON."""

    def __init__(self, path: Path, **structs: type[msgspec.Struct]) -> None:
        self._path = path
        self._structs = structs

    def steps(self, fault: str) -> list[Step]:
        """What once showed a fault."""
        return [
            (rule, {name: self._decoded(name, value) for name, value in arguments.items()}, draws)
            for rule, arguments, draws in json.loads(self._path.read_text())[fault]
        ]

    def _decoded(self, name: str, value: object) -> object:
        return msgspec.convert(value, self._structs[name]) if name in self._structs else value

    def show(
        self, machine: type[RuleBasedStateMachine], fault: str, error: type[BaseException], *, examples: int, steps: int
    ) -> None:
        """Fail unless the recorded steps, or a search, make the machine raise the error."""
        if "HARK_TEST_EXAMPLES" not in os.environ:
            with pytest.raises(error):
                replay(machine, self.steps(fault))
            return
        recorded: list[Step] = []
        recording = "HARK_TEST_RECORD" in os.environ
        with pytest.raises(error):
            run_state_machine_as_test(
                _recording(machine, recorded),
                settings=settings(
                    max_examples=examples,
                    stateful_step_count=steps,
                    deadline=None,
                    database=None,
                    derandomize=recording,
                    phases=[Phase.generate, Phase.shrink] if recording else [Phase.generate],
                    report_multiple_bugs=False,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        if recording:
            self._save(fault, recorded)

    def _save(self, fault: str, steps: list[Step]) -> None:
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        known[fault] = steps
        faults = [
            f"{json.dumps(name)}: [\n"
            + ",\n".join(json.dumps(step, default=msgspec.to_builtins) for step in known[name])
            + "\n]"
            for name in sorted(known)
        ]
        self._path.write_text("{\n" + ",\n".join(faults) + "\n}\n")


def replay(machine: type[RuleBasedStateMachine], steps: list[Step]) -> None:
    """Do the steps and check the invariants after each.

    Code that works may diverge in the last step, because that is where the fault showed.
    """
    running = machine()
    try:
        for number, (name, arguments, draws) in enumerate(steps, 1):
            drawn = {} if draws is None else {"data": _Replayed(draws)}
            try:
                getattr(running, name)(**_with_tuples(arguments), **drawn)
            except Diverged:
                if number < len(steps):
                    raise
            for invariant in running.invariants:
                if all(holds(running) for holds in invariant.preconditions):
                    invariant.function(running)
    finally:
        running.teardown()


class _Replayed:
    """Stands for `st.data()`."""

    def __init__(self, draws: list[Any]) -> None:
        self._left = list(draws)

    def draw(self, _strategy: object, _label: object = None) -> Any:
        if not self._left:
            raise Diverged
        return _with_tuples(self._left.pop(0))


class _Recorded:
    """Stands for `st.data()`, and remembers what was drawn."""

    def __init__(self, data: Any, draws: list[Any]) -> None:
        self._data = data
        self._draws = draws

    def draw(self, strategy: object, label: object = None) -> Any:
        drawn = self._data.draw(strategy, label)
        self._draws.append(drawn)
        return drawn


def _recording(machine: type[M], steps: list[Step]) -> type[M]:
    """The machine, which leaves the steps of its last run in `steps`."""

    def recorded(function: Callable[..., object]) -> Callable[..., object]:
        @functools.wraps(function)
        def work(self: M, **arguments: Any) -> object:
            data = arguments.pop("data", None)
            draws: list[Any] = []
            steps.append((function.__name__, dict(arguments), None if data is None else draws))
            return function(self, **arguments, **({} if data is None else {"data": _Recorded(data, draws)}))

        return work

    class Recording(machine):  # type: ignore[valid-type, misc]  # The base is a parameter.
        def __init__(self) -> None:
            super().__init__()
            steps.clear()

        @classmethod
        def setup_state(cls) -> Any:
            state = super().setup_state()
            for rules in (state.rules, state.initializers):
                # The state is kept for the class, so its rules may be wrapped already.
                rules[:] = [
                    rule
                    if hasattr(rule.function, "__wrapped__")
                    else dataclasses.replace(rule, function=recorded(rule.function))
                    for rule in rules
                ]
            return state

    return Recording


def _with_tuples(value: Any) -> Any:
    """JSON has no tuples; the steps have no use for lists."""
    if isinstance(value, list):
        return tuple(map(_with_tuples, value))
    if isinstance(value, dict):
        return {name: _with_tuples(one) for name, one in value.items()}
    return value
