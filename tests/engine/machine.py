"""The state machine: drives an engine and the model with the same operations and compares every answer.

Hypothesis gives each rule the same weight, so what many rules would do rarely is one rule here (`administer`),
and what makes messages move has several.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from .admin_steps import AdminSteps
from .model_nouns import Mode, Wish
from .steps import GROUPS, OPTIONS, PARTITIONS, QUEUES

T = TypeVar("T")


class QueueMachine(AdminSteps, RuleBasedStateMachine):
    """Drives one engine; subclasses say which."""

    @initialize(options=st.tuples(*[st.sampled_from(sorted(OPTIONS))] * len(QUEUES)))
    def start(self, options: tuple[str, ...]) -> None:
        """An empty engine with configured queues."""
        self.open()
        for name, one in zip(QUEUES, options, strict=True):
            self.configure(name, one)

    def teardown(self) -> None:
        """Look once more, let everything fall due, drain, and close."""
        try:
            # Also called after a failure, which another one must not hide.
            if hasattr(self, "q") and sys.exc_info()[0] is None:
                self.look_around()
                self.drain()
        finally:
            self.close()

    @rule(data=st.data(), queue=st.sampled_from(QUEUES), number=st.integers(1, 4))
    def push(self, data: st.DataObject, queue: str, number: int) -> None:
        """Push a few messages in one request."""
        self.push_some(data, queue, number)

    @rule(
        queue=st.sampled_from([*QUEUES, None]),
        partition=st.sampled_from([None, None, *PARTITIONS]),
        group=st.sampled_from(GROUPS),
        mode=st.sampled_from(["all", "all", "all", "new"]),
        batch=st.integers(1, 4),
        partitions=st.integers(1, 3),
        auto_ack=st.sampled_from([False, False, False, True]),
    )
    def pop(
        self,
        queue: str | None,
        partition: str | None,
        group: str,
        mode: Mode,
        batch: int,
        partitions: int,
        auto_ack: bool,
    ) -> None:
        """Pop of a queue, a partition or the namespace."""
        queues = [queue] if queue else list(QUEUES)
        self.pop_once(Wish(queues, partition if queue else None, group, mode, batch, partitions, auto_ack))

    @rule(group=st.sampled_from(GROUPS), batch=st.integers(2, 4))
    def pop_a_batch(self, group: str, batch: int) -> None:
        """Pop a batch of wherever there is one."""
        self.pop_once(Wish(list(QUEUES), None, group, "all", batch, 1, auto_ack=False))

    @precondition(lambda self: self.hands)
    @rule(data=st.data(), number=st.integers(1, 4))
    def settle(self, data: st.DataObject, number: int) -> None:
        """Settle a few messages in one request, in any way."""
        self.settle_some([self.draw_verdict(data) for _ in range(number)])

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def settle_one(self, data: st.DataObject) -> None:
        """Settle one message."""
        self.settle_some([self.draw_verdict(data)])

    @rule(data=st.data(), settlements=st.integers(0, 2), pushes=st.integers(0, 2), name_leases=st.booleans())
    def transact(self, data: st.DataObject, settlements: int, pushes: int, name_leases: bool) -> None:
        """Settle and push, all or nothing."""
        self.transact_some(data, settlements, pushes, name_leases)

    @rule(seconds=st.sampled_from([0.5, 1, 2, 4, 10]))
    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.pass_time(seconds)

    @rule(data=st.data())
    def administer(self, data: st.DataObject) -> None:
        """Something that happens now and then."""
        steps: dict[str, Callable[[], None]] = {
            "configure": lambda: self.configure(draw(QUEUES), draw(sorted(OPTIONS))),
            "pause": lambda: self.pause(draw(QUEUES), draw([None, *GROUPS]), draw([False, False, True])),
            "purge": lambda: self.purge(draw(QUEUES), draw([None, *GROUPS])),
            "delete": lambda: self.delete_message(data, draw(QUEUES)),
            "upkeep": self.upkeep,
        }
        if self.model.groups:
            steps["seek"] = lambda: self.seek(data)
        if self.model.dead:
            steps["requeue"] = lambda: self.requeue(data)
        if self.leases:
            steps["renew"] = lambda: self.renew_one(data)
            steps["release"] = lambda: self.release_one(data)
        if self.kind.durable:
            steps["reopen"] = self.reopen

        def draw(choices: Sequence[T]) -> T:
            return data.draw(st.sampled_from(choices))

        steps[data.draw(st.sampled_from(sorted(steps)), "step")]()

    @rule()
    def look(self) -> None:
        """Compare what an administrator sees."""
        self.look_around()
