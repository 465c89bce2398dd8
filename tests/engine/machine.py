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
from .model_nouns import Mode, PopParams
from .steps import FIXED_OPTIONS, GROUPS, MODES, OPTIONS, PARTITIONS, QUEUES

FIRST_OPTIONS = st.tuples(*[st.sampled_from(sorted(OPTIONS) * 2 + sorted(FIXED_OPTIONS))] * len(QUEUES))

T = TypeVar("T")


class QueueMachine(AdminSteps, RuleBasedStateMachine):
    """Drives one engine; subclasses say which."""

    @initialize(options=FIRST_OPTIONS, data=st.data(), number=st.integers(0, 6))
    def start(self, options: tuple[str, ...], data: st.DataObject, number: int) -> None:
        """An engine with configured queues and a few messages."""
        self.open()
        for name, one in zip(QUEUES, options, strict=True):
            self.configure(name, one)
            self.push_some(data, name, number)

    def teardown(self) -> None:
        """Look once more, let everything fall due, drain, and close."""
        try:
            # Also called after a failure, which another one must not hide.
            if hasattr(self, "q") and sys.exc_info()[0] is None:
                self.look_around()
                self.drain()
        finally:
            self.close()

    @rule(data=st.data(), queue=st.sampled_from(QUEUES), number=st.integers(1, 6))
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
        lease_ms=st.sampled_from([None, None, None, 2500]),
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
        lease_ms: int | None,
    ) -> None:
        """Pop of a queue, a partition or the namespace."""
        queues, name = ([queue], partition) if queue else (list(QUEUES), None)
        if any(self.model.queues[one].options.drop_settled for one in queues):
            mode = "all"  # Whether what all groups skipped is settled, the rules do not say.
        self.pop_once(PopParams(queues, name, group, mode, batch, partitions, auto_ack, MODES[group], lease_ms))

    @rule(group=st.sampled_from(GROUPS), batch=st.integers(2, 4))
    def pop_a_batch(self, group: str, batch: int) -> None:
        """Pop a batch of wherever there is one."""
        self.pop_once(PopParams(list(QUEUES), None, group, "all", batch, 1, False, MODES[group]))

    @rule(
        queue=st.sampled_from(QUEUES),
        partition=st.sampled_from([None, *PARTITIONS]),
        group=st.sampled_from([*GROUPS, "w"]),
        batches=st.lists(st.integers(1, 2), min_size=2, max_size=4),
    )
    def pop_side_by_side(self, queue: str, partition: str | None, group: str, batches: list[int]) -> None:
        """Several consumers pop in one call."""
        self.pop_together(
            *(PopParams([queue], partition, group, "all", batch, 1, False, MODES[group]) for batch in batches)
        )

    @rule(data=st.data(), queue=st.sampled_from(QUEUES), group=st.sampled_from(GROUPS), batch=st.integers(1, 4))
    def work(self, data: st.DataObject, queue: str, group: str, batch: int) -> None:
        """A consumer takes a batch and says what became of each message."""
        got = self.pop_once(PopParams([queue], None, group, "all", batch, 2, False, MODES[group]))
        if got:
            self.settle_some([self.draw_decision(data, hand) for hand in self.hands[-len(got) :]])

    @precondition(lambda self: self.hands)
    @rule(data=st.data(), number=st.integers(1, 4))
    def settle(self, data: st.DataObject, number: int) -> None:
        """Settle a few messages in one request, in any way."""
        self.settle_some([self.draw_decision(data) for _ in range(number)])

    @precondition(lambda self: self.leased())
    @rule(data=st.data())
    def settle_one(self, data: st.DataObject) -> None:
        """Settle one message."""
        self.settle_some([self.draw_decision(data)])

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
            steps["limit"] = lambda: self.limit_group(data)

        def draw(choices: Sequence[T]) -> T:
            return data.draw(st.sampled_from(choices))

        steps[data.draw(st.sampled_from(sorted(steps)), "step")]()

    @rule(data=st.data())
    def interfere(self, data: st.DataObject) -> None:
        """Something that changes what consumers have or get next."""
        steps: dict[str, Callable[[], None]] = {"cancel": lambda: self.cancel_message(data)}
        if self.model.groups:
            steps["seek"] = lambda: self.seek(data)
        if self.model.dead:
            steps["requeue"] = lambda: self.requeue(data)
        if self.leases:
            steps["renew"] = lambda: self.renew_one(data)
            steps["release"] = lambda: self.release_one(data)
        if self.kind.durable:
            steps["reopen"] = self.reopen
        steps[data.draw(st.sampled_from(sorted(steps)), "step")]()

    @rule()
    def look(self) -> None:
        """Compare what an administrator sees."""
        self.look_around()
