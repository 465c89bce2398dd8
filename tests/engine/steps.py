"""What a state machine can do to an engine and to the model: each step does it to both and compares."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import ClassVar, TypeVar

from hypothesis import currently_in_test_context, note
from hypothesis import strategies as st

from hark.clock import FakeClock
from hark.model import GroupMode, NewMessage, PopRequest, QueueOptions, Settlement, Status

from .comparing import InHand, agree, compare_settlement, to_message
from .driver import ALL, NEVER_GIVEN, NEW, Driver, Got, Named, Wrap, payloads, settlement
from .engines import EngineKind, Open
from .model import Model
from .model_nouns import Message, PopParams, Push, SettleDecision

T = TypeVar("T")
NAMESPACE = "ns"
QUEUES = ("a", "b")
PARTITIONS = ("p1", "p2", "p3")
MODES: dict[str, GroupMode] = {"g": "ordered", "w": "shared"}
GROUPS = tuple(MODES)
STATUSES: tuple[Status, ...] = ("completed", "completed", "failed", "retry", "dlq")
OPTIONS = {
    "strict": QueueOptions(lease_time=10, retry_limit=1),
    "patient": QueueOptions(
        lease_time=4, retry_limit=3, retry_delay=1000, retry_multiplier=2, retry_max_delay=3000, priority=5
    ),
    "small": QueueOptions(lease_time=10, retry_limit=0, max_size=6),
    "forgetful": QueueOptions(lease_time=10, retry_limit=0, dead_letter_queue=False),
    "narrow": QueueOptions(lease_time=10, retry_limit=2, max_in_flight=3, lock_duration=1500),
    "each narrow": QueueOptions(lease_time=10, retry_limit=2, max_in_flight_per_partition=2),
}
FIXED_OPTIONS = {
    "slow": QueueOptions(lease_time=10, retry_limit=2, rate_limit=0.5, rate_burst=4),
    "each slow": QueueOptions(lease_time=10, retry_limit=2, rate_limit_per_partition=0.5, rate_burst_per_partition=3),
    "dropping": QueueOptions(lease_time=10, retry_limit=1, drop_settled=True),
}
"""Those that a queue has from its beginning or never: the rules do not say what a change means for the past."""
NAMES: tuple[Named, ...] = ("key", "key", "id", "id alone")


def pick(data: st.DataObject, items: Sequence[T], label: str) -> T:
    """Draw one of the items, the newest first when a failure is made small."""
    chosen = items[-1 - data.draw(st.integers(0, len(items) - 1), label)]
    if currently_in_test_context():  # Recorded steps are replayed outside of one.
        note(f"    {label}: {chosen!r}")
    return chosen


class Steps:
    """The steps of producers, consumers and servers."""

    kind: ClassVar[EngineKind]
    new_store: ClassVar[Callable[[], AbstractContextManager[Open]]]
    wrap: ClassVar[Wrap] = staticmethod(lambda engine, _clock: engine)

    def __init__(self) -> None:
        super().__init__()
        self.resources = ExitStack()
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.model = Model(self.clock.now())
        self.model.one_server = self.kind.servers == 1
        self.hands: list[InHand] = []
        self.leases: dict[str, int] = {}
        self.ids: dict[Message, str] = {}
        self.cursors: dict[tuple[str, str, str], int] = {}
        self.payload = 0

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Let the engine work."""
        return self.runner.run(work)

    def open(self) -> None:
        """An empty engine."""
        open_engine = self.resources.enter_context(type(self).new_store())

        async def begin() -> Driver:
            driver = Driver(open_engine, self.clock, type(self).wrap)
            await driver.start()
            return driver

        self.q = self.run(begin())

    def close(self) -> None:
        """Leave nothing behind."""
        if hasattr(self, "q"):
            self.run(self.q.engine.close())
        self.runner.close()
        self.resources.close()

    # Messages ----------------------------------------------------------------------------------------------

    def new_push(self, data: st.DataObject, queue: str, partition: str) -> Push:
        """Draw a message to push."""
        self.payload += 1
        return Push(
            queue,
            partition,
            self.payload,
            key=data.draw(st.sampled_from([None, None, "k1", "k2"]), "key"),
            priority=data.draw(st.sampled_from([0, 0, 0, 1, 9]), "priority"),
            delay_ms=data.draw(st.sampled_from([0, 0, 0, 1000, 2000]), "delay"),
            backoff_ms=data.draw(st.sampled_from([None, None, (), (1000,), (0, 3000)]), "backoff"),
        )

    def pushed(self, new: Push, outcome: object) -> None:
        """Push to the model as well, and compare."""
        status, stored = self.model.push(new)
        agree(f"status of {new}", getattr(outcome, "status", None), status)
        if stored is not None:
            found = str(getattr(outcome, "message_id", None))
            agree(f"message id of {new}", found, self.ids.setdefault(stored, found))

    def push_some(self, data: st.DataObject, queue: str, number: int) -> None:
        """Push a few messages in one request."""
        if self.model.queues[queue].options.max_size:
            self.run(self.q.engine.expire())  # A push looks at no lease: a timer makes room.
        partitions = [data.draw(st.sampled_from(PARTITIONS), "partition") for _ in range(number)]
        new = [self.new_push(data, queue, partition) for partition in partitions]
        outcomes = self.run(self.q.push_messages(*map(to_message, new)))
        for one, outcome in zip(new, outcomes, strict=True):
            self.pushed(one, outcome)

    def pop_once(self, params: PopParams) -> Got:
        """Pop of a queue, a partition or the namespace."""
        [got] = self.pop_together(params)
        return got

    def pop_together(self, *all_params: PopParams) -> list[Got]:
        """Several pops in one call: side by side, so in whatever order their answers can be explained."""
        known = len(self.model.groups)
        everything = self.run(self.q.pop_requests(*map(to_request, all_params)))
        left = list(zip(all_params, everything, strict=True))
        while left:
            self.popped(*left.pop(self.next_served(left)), alone=len(all_params) == 1)
        if len(all_params) > 1:
            self.model.popped_beside({one for got in everything for one in partitions_of(got)}, all_params[0].group)
        if len(self.model.groups) > known:
            self.pass_time(0.001)  # What is pushed in the moment of a first contact may get a time just after it.
        self.tidy()
        return everything

    def next_served(self, left: Sequence[tuple[PopParams, Got]]) -> int:
        """Which of these pops got what is to be had first; 0 if none can be explained."""
        for index, (params, got) in enumerate(left):
            expected = [one.push.payload for one in self.model.would_give(params, partitions_of(got))]
            if sorted(expected) == sorted(map(int, map(str, payloads(got)))):
                return index
        return 0

    def popped(self, params: PopParams, got: Got, alone: bool) -> None:
        """Pop from the model as well, and compare."""
        partitions = partitions_of(got)
        popped = self.model.pop(params, partitions)
        # In a partition the order is promised; among the partitions of one batch it is not.
        in_order = sorted(got, key=lambda one: list(partitions).index((one.message.queue, one.message.partition)))
        delivered = [
            (one.message.queue, one.message.partition, one.message.offset, one.payload, one.message.attempt)
            for one in in_order
        ]
        expected = [
            (one.partition.queue.name, one.partition.name, one.offset, one.push.payload, attempt)
            for one, attempt in popped.messages
        ]
        agree(f"{params}", delivered, expected)
        agree("number of partitions", got.partitions, len(partitions))
        if alone and popped.reasons and got.reason not in popped.reasons:
            agree(f"reason of empty {params}", got.reason, popped.reasons)
        if got and not params.auto_ack:
            agree("leases are fresh", got.lease in self.leases, False)
            self.leases[got.lease] = popped.lease
            self.hands += [
                InHand(leased, one, popped.lease) for leased, (one, _) in zip(in_order, popped.messages, strict=True)
            ]

    def leased(self) -> list[InHand]:
        """Deliveries whose verdict is open."""
        return [one for one in self.hands if self.model.holds(one.message, one.leased.group, one.lease)]

    def draw_hand(self, data: st.DataObject) -> InHand:
        """Draw a delivery, mostly one that is held."""
        leased = self.leased()
        fresh = bool(leased) and data.draw(st.sampled_from([True, True, True, False]), "held")
        return pick(data, leased if fresh else self.hands[-12:], "in hand")

    def draw_decision(self, data: st.DataObject, hand: InHand | None = None) -> tuple[Settlement, SettleDecision]:
        """Draw a settlement of a delivery, mostly under its lease."""
        hand = self.draw_hand(data) if hand is None else hand
        status = data.draw(st.sampled_from(STATUSES), "status")
        delay_ms = data.draw(st.sampled_from([None, 1000]), "delay") if status in ("retry", "failed") else None
        named = data.draw(st.sampled_from(NAMES), "name")
        lease = data.draw(st.sampled_from(["own"] * 6 + ["none", "never given", "another"]), "lease")
        about = self.model.named(hand.message) if named == "key" else hand.message
        decision = SettleDecision(
            about, hand.leased.group, status, hand.lease, f"error {self.payload}", delay_ms, named != "key"
        )
        name: str | None = hand.leased.lease
        if lease == "none":
            name, decision.lease = None, None
        elif lease == "never given":
            name, decision.lease = NEVER_GIVEN, 0
        elif lease == "another":
            name, decision.lease = pick(data, list(self.leases.items()), "other lease")
        return settlement(hand.leased, status, decision.error, delay_ms=delay_ms, lease=name, named=named), decision

    def settle_some(self, drawn: list[tuple[Settlement, SettleDecision]]) -> None:
        """Settle in one request."""
        outcomes = self.run(self.q.settle(*(one for one, _ in drawn)))
        answers = self.model.settle([decision for _, decision in drawn])
        for (_, decision), outcome, answer in zip(drawn, outcomes, answers, strict=True):
            compare_settlement(decision, outcome, answer, self.leases)
        self.tidy()

    def transact_some(self, data: st.DataObject, settlements: int, pushes: int, name_leases: bool) -> None:
        """Settle and push, all or nothing."""
        drawn = [self.draw_decision(data) for _ in range(settlements if self.hands else 0)]
        decisions = [decision for _, decision in drawn]
        if len({(one.message, one.group) for one in decisions}) < len(decisions):
            return  # What two verdicts on one message mean inside a transaction, the rules do not say.
        if any(self.model.authorize_strictly(one, []).success is None for one in decisions):
            return
        open_queues = [one for one in QUEUES if not self.model.queues[one].options.max_size]
        new = [
            self.new_push(
                data, data.draw(st.sampled_from(open_queues), "queue"), data.draw(st.sampled_from(PARTITIONS))
            )
            for _ in range(pushes if open_queues else 0)
        ]
        settled = {(one.message.partition.name, one.message.push.key) for one in decisions}
        if any(
            (one.partition, one.key) in settled
            for one in new
            if one.key and self.model.queues[one.queue].options.drop_settled
        ):
            return  # Whether a key is free in the transaction that drops its message, the rules do not say.
        required = {}
        if name_leases and self.leases:
            name, lease = pick(data, [*self.leases.items(), (NEVER_GIVEN, 0)], "required lease")
            if self.model.is_live(lease) is not None:
                required[name] = lease
        if any(self.model.authorize_strictly(one, list(required.values())).success is None for one in decisions):
            return
        operations: list[Settlement | NewMessage] = [*(one for one, _ in drawn), *map(to_message, new)]
        outcome = self.run(self.q.transact(*operations, required_leases=list(required)))
        refused = self.model.transact(decisions, list(required.values()))
        agree(f"success of {decisions} under {required}", outcome.success, refused is None)
        if refused is None:
            for one, result in zip(new, outcome.results[len(drawn) :], strict=True):
                self.pushed(one, result)
        elif refused >= 0:
            agree("index of the refused operation", outcome.failed_index, refused)
        self.tidy()

    # Leases and time ---------------------------------------------------------------------------------------

    def renew_one(self, data: st.DataObject) -> None:
        """Renew some lease, maybe an old one."""
        name, lease = pick(data, list(self.leases.items())[-6:], "lease")
        seconds = data.draw(st.sampled_from([1, 5, 20]), "seconds")
        if self.model.is_live(lease) is not None:
            outcome = self.run(self.q.renew(name, seconds))
            agree("end of the renewed lease", outcome.expires_at, self.model.renew(lease, seconds))

    def release_one(self, data: st.DataObject) -> None:
        """Release some lease, maybe an old one."""
        name, lease = pick(data, list(self.leases.items())[-6:], "lease")
        self.run(self.q.engine.release([name]))
        self.model.release(lease)

    def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)
        self.model.advance(seconds)
        self.tidy()

    def tidy(self) -> None:
        """A queue that keeps nothing may wait for the next round of retention with what several groups have settled."""
        if any(one.options.drop_settled for one in self.model.queues.values()):
            self.run(self.q.collect())

    def upkeep(self) -> None:
        """What servers do beside: it must change nothing that anybody can see."""
        self.run(self.q.engine.expire())
        self.run(self.q.engine.collect())

    def reopen(self) -> None:
        """Close the store and open it again; where leases are lost, even ended ones that nobody has seen yet are."""
        if not self.kind.leases_survive:
            self.run(self.q.engine.expire())
        self.run(self.q.reopen())
        self.model.restart(self.kind.leases_survive)
        if any(one.options.rate_limit or one.options.rate_limit_per_partition for one in self.model.queues.values()):
            self.pass_time(20)  # Whether a restart fills the buckets, the rules do not say; time does.


def partitions_of(got: Got) -> Counter[tuple[str, str]]:
    """How many messages came from which queue and partition."""
    return Counter((one.message.queue, one.message.partition) for one in got)


def to_request(params: PopParams) -> PopRequest:
    """A wish as the engine takes it."""
    one_queue = params.queues[0] if len(params.queues) == 1 else None
    return PopRequest(
        queue=one_queue,
        partition=params.partition,
        namespace=None if one_queue else NAMESPACE,
        group=params.group,
        group_mode=params.group_mode,
        batch=params.batch,
        partitions=params.partitions,
        auto_ack=params.auto_ack,
        subscription=NEW if params.mode == "new" else ALL,
        lease_ms=params.lease_ms,
    )
