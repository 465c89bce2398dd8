"""The state machine that drives an engine and the model with the same operations and compares every answer."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from hark.clock import SECOND, FakeClock
from hark.engine.api import Engine
from hark.model import NewMessage, QueueOptions, QueueSpec, Settlement, Status

from .comparing import Disagreement, InHand, agree, compare_settlement, engine_view, to_message
from .driver import ALL, NEVER_GIVEN, NEW, Driver, Got, settlement
from .engines import EngineKind
from .model import Model
from .model_nouns import DeadLetter, Message, Mode, Push, Verdict, Wish

T = TypeVar("T")
NAMESPACE = "ns"
QUEUES = ("a", "b")
PARTITIONS = ("p1", "p2", "p3")
GROUPS = ("g", "h")
STATUSES: tuple[Status, ...] = ("completed", "completed", "failed", "retry", "dlq")
OPTIONS = {
    "strict": QueueOptions(lease_time=10, retry_limit=1),
    "patient": QueueOptions(
        lease_time=4, retry_limit=3, retry_delay=1000, retry_multiplier=2, retry_max_delay=3000, priority=5
    ),
    "small": QueueOptions(lease_time=10, retry_limit=0, max_size=6),
    "forgetful": QueueOptions(lease_time=10, retry_limit=0, dead_letter_queue=False),
}


def pick(data: st.DataObject, items: Sequence[T], label: str) -> T:
    """Draw one of the items, the newest first when a failure is made small."""
    chosen = items[-1 - data.draw(st.integers(0, len(items) - 1), label)]
    note(f"    {label}: {chosen!r}")
    return chosen


class QueueMachine(RuleBasedStateMachine):
    """Drives one engine; subclasses say which."""

    kind: ClassVar[EngineKind]
    wrap: ClassVar[Callable[[Engine], Engine]] = staticmethod(lambda engine: engine)

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory(prefix="hark-machine-")
        self.runner = asyncio.Runner()
        self.clock = FakeClock()
        self.model = Model(self.clock.now())
        self.hands: list[InHand] = []
        self.leases: dict[str, int] = {}
        self.ids: dict[Message, str] = {}
        self.cursors: dict[tuple[str, str, str], int] = {}
        self.payload = 0

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Let the engine work."""
        return self.runner.run(work)

    @initialize(options=st.tuples(*[st.sampled_from(sorted(OPTIONS))] * len(QUEUES)))
    def start(self, options: tuple[str, ...]) -> None:
        """An empty engine with configured queues."""

        async def begin() -> Driver:
            driver = Driver(self.kind, Path(self.place.name), self.clock, type(self).wrap)
            await driver.start()
            return driver

        self.q = self.run(begin())
        for name, one in zip(QUEUES, options, strict=True):
            self.configure(name, one)

    def teardown(self) -> None:
        """Look once more, let everything fall due, drain, and close."""
        try:
            # Also called after a failure, which another one must not hide.
            if hasattr(self, "q") and sys.exc_info()[0] is None:
                self.look()
                self.drain()
        finally:
            if hasattr(self, "q"):
                self.run(self.q.engine.close())
            self.runner.close()
            self.place.cleanup()

    # Messages ----------------------------------------------------------------------------------------------

    def new_push(self, data: st.DataObject, queue: str, partition: str) -> Push:
        """Draw a message to push."""
        self.payload += 1
        return Push(
            queue,
            partition,
            self.payload,
            key=data.draw(st.sampled_from([None, None, "k1", "k2"]), "key"),
            delay_ms=data.draw(st.sampled_from([0, 0, 0, 2000]), "delay"),
            backoff_ms=data.draw(st.sampled_from([None, None, (), (1000,), (0, 3000)]), "backoff"),
        )

    def pushed(self, new: Push, outcome: object) -> None:
        """Push to the model as well, and compare."""
        status, stored = self.model.push(new)
        agree(f"status of {new}", getattr(outcome, "status", None), status)
        if stored is not None:
            found = str(getattr(outcome, "message_id", None))
            agree(f"message id of {new}", found, self.ids.setdefault(stored, found))

    @rule(data=st.data(), queue=st.sampled_from(QUEUES), number=st.integers(1, 3))
    def push(self, data: st.DataObject, queue: str, number: int) -> None:
        """Push a few messages in one request."""
        partitions = [data.draw(st.sampled_from(PARTITIONS), "partition") for _ in range(number)]
        new = [self.new_push(data, queue, partition) for partition in partitions]
        outcomes = self.run(self.q.push_messages(*map(to_message, new)))
        for one, outcome in zip(new, outcomes, strict=True):
            self.pushed(one, outcome)

    @rule(
        queue=st.sampled_from([*QUEUES, None]),
        partition=st.sampled_from([None, None, *PARTITIONS]),
        group=st.sampled_from(GROUPS),
        mode=st.sampled_from(["all", "all", "new"]),
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
        if queue is None:
            partition = None
        wish = Wish([queue] if queue else list(QUEUES), partition, group, mode, batch, partitions, auto_ack)
        got = self.run(
            self.q.pop(
                queue,
                partition,
                namespace=None if queue else NAMESPACE,
                group=group,
                batch=batch,
                partitions=partitions,
                auto_ack=auto_ack,
                subscription=NEW if mode == "new" else ALL,
            )
        )
        self.popped(wish, got)

    def popped(self, wish: Wish, got: Got) -> None:
        """Pop from the model as well, and compare."""
        places = Counter((one.message.queue, one.message.partition) for one in got)
        popped = self.model.pop(wish, places)
        delivered = [
            (one.message.queue, one.message.partition, one.message.offset, one.payload, one.message.attempt)
            for one in got
        ]
        expected = [
            (one.partition.queue.name, one.partition.name, one.offset, one.push.payload, attempt)
            for one, attempt in popped.messages
        ]
        agree(f"{wish}", delivered, expected)
        agree("number of partitions", got.partitions, len(places))
        if popped.reasons and got.reason not in popped.reasons:
            agree(f"reason of empty {wish}", got.reason, popped.reasons)
        if got and not wish.auto_ack:
            agree("leases are fresh", got.lease in self.leases, False)
            self.leases[got.lease] = popped.lease
            self.hands += [InHand(held, one, popped.lease) for held, (one, _) in zip(got, popped.messages, strict=True)]

    def draw_verdict(self, data: st.DataObject) -> tuple[Settlement, Verdict]:
        """Draw a settlement, mostly of something that is held."""
        hand = pick(data, self.hands[-12:], "in hand")
        about = self.model.named(hand.message)
        status = data.draw(st.sampled_from(STATUSES), "status")
        delay_ms = data.draw(st.sampled_from([None, 1000]), "delay") if status == "retry" else None
        lease = data.draw(st.sampled_from(["own"] * 5 + ["none", "never given", "another"]), "lease")
        verdict = Verdict(about, hand.held.group, status, hand.lease, f"error {self.payload}", delay_ms)
        name: str | None = hand.held.lease
        if lease == "none":
            name, verdict.lease = None, None
        elif lease == "never given":
            name, verdict.lease = NEVER_GIVEN, 0
        elif lease == "another":
            name, verdict.lease = pick(data, list(self.leases.items()), "other lease")
        return settlement(hand.held, status, verdict.error, delay_ms=delay_ms, lease=name), verdict

    @precondition(lambda self: self.hands)
    @rule(data=st.data(), number=st.integers(1, 4))
    def settle(self, data: st.DataObject, number: int) -> None:
        """Settle a few messages in one request."""
        drawn = [self.draw_verdict(data) for _ in range(number)]
        outcomes = self.run(self.q.settle(*(one for one, _ in drawn)))
        answers = self.model.settle([verdict for _, verdict in drawn])
        for (_, verdict), outcome, answer in zip(drawn, outcomes, answers, strict=True):
            compare_settlement(verdict, outcome, answer)

    @rule(data=st.data(), settlements=st.integers(0, 2), pushes=st.integers(0, 2), name_leases=st.booleans())
    def transact(self, data: st.DataObject, settlements: int, pushes: int, name_leases: bool) -> None:
        """Settle and push, all or nothing."""
        drawn = [self.draw_verdict(data) for _ in range(settlements if self.hands else 0)]
        verdicts = [verdict for _, verdict in drawn]
        if len({(one.message, one.group) for one in verdicts}) < len(verdicts):
            return  # What two verdicts on one message mean inside a transaction, the rules do not say.
        if any(self.model.judge(one).success is None for one in verdicts):
            return
        open_queues = [one for one in QUEUES if not self.model.queues[one].options.max_size]
        new = [
            self.new_push(
                data, data.draw(st.sampled_from(open_queues), "queue"), data.draw(st.sampled_from(PARTITIONS))
            )
            for _ in range(pushes if open_queues else 0)
        ]
        required = {}
        if name_leases and self.leases:
            name, lease = pick(data, [*self.leases.items(), (NEVER_GIVEN, 0)], "required lease")
            if self.model.is_live(lease) is not None:
                required[name] = lease
        operations: list[Settlement | NewMessage] = [*(one for one, _ in drawn), *map(to_message, new)]
        outcome = self.run(self.q.transact(*operations, required_leases=list(required)))
        refused = self.model.transact(verdicts, list(required.values()))
        agree(f"success of {verdicts} under {required}", outcome.success, refused is None)
        if refused is None:
            for one, result in zip(new, outcome.results[len(drawn) :], strict=True):
                self.pushed(one, result)
        elif refused >= 0:
            agree("index of the refused operation", outcome.failed_index, refused)

    # Leases and time ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), seconds=st.sampled_from([1, 5, 20]))
    def renew(self, data: st.DataObject, seconds: int) -> None:
        """Renew some lease, maybe an old one."""
        name, lease = pick(data, list(self.leases.items())[-6:], "lease")
        if self.model.is_live(lease) is None:
            return
        outcome = self.run(self.q.renew(name, seconds))
        agree("end of the renewed lease", outcome.expires_at, self.model.renew(lease, seconds))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """Release some lease, maybe an old one."""
        name, lease = pick(data, list(self.leases.items())[-6:], "lease")
        self.run(self.q.engine.release([name]))
        self.model.release(lease)

    @rule(seconds=st.sampled_from([0.5, 1, 2, 4, 10]))
    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.advance(seconds)
        self.model.advance(seconds)

    @rule()
    def upkeep(self) -> None:
        """What servers do beside: it must change nothing that anybody can see."""
        self.run(self.q.engine.expire())
        self.run(self.q.engine.collect())

    @precondition(lambda self: self.kind.durable)
    @rule()
    def reopen(self) -> None:
        """Close the store and open it again; leases are lost, even ended ones that nobody has seen yet."""
        self.run(self.q.engine.expire())
        self.run(self.q.reopen())
        self.model.restart()

    # Administration ----------------------------------------------------------------------------------------

    @rule(queue=st.sampled_from(QUEUES), options=st.sampled_from(sorted(OPTIONS)))
    def configure(self, queue: str, options: str) -> None:
        """Change a queue's options."""
        spec = QueueSpec(name=queue, namespace=NAMESPACE, options=OPTIONS[options])
        self.run(self.q.configure_spec(spec))
        self.model.configure(queue, NAMESPACE, spec.options)

    @precondition(lambda self: self.model.groups)
    @rule(
        data=st.data(), partition=st.sampled_from([None, *PARTITIONS]), where=st.sampled_from(["end", "time", "offset"])
    )
    def seek(self, data: st.DataObject, partition: str | None, where: str) -> None:
        """Move a group that exists."""
        queue, group = data.draw(st.sampled_from(sorted(self.model.groups)), "group")
        known = self.model.queues[queue].partitions
        if partition is not None and partition not in known:
            return
        tail = max(one.tail for name, one in known.items() if partition in (None, name))
        offset = data.draw(st.integers(1, tail + 1), "offset") if where == "offset" else None
        # Never exactly the time of a push: an engine may have to move that by a microsecond.
        ago = data.draw(st.sampled_from([0.25, 2.25, 100.25]), "ago")
        after = self.clock.now() - round(ago * SECOND) if where == "time" else None
        outcome = self.run(
            self.q.seek(queue, partition, group=group, to_end=where == "end", timestamp=after, offset=offset)
        )
        agree("partitions moved", outcome.partitions, self.model.seek(queue, group, partition, offset, after))
        self.cursors = {place: one for place, one in self.cursors.items() if (place[0], place[2]) != (queue, group)}

    @precondition(lambda self: self.model.dead)
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        """Bring a dead letter back."""
        letter = pick(data, self.model.dead, "dead letter")
        [found] = [
            one
            for one in self.run(self.q.dead_letters(group=letter.group))
            if one.message_id == self.ids[letter.message]
        ]
        new_id = self.run(self.q.requeue(found))
        self.ids[self.model.requeue(letter)] = new_id

    @rule(queue=st.sampled_from(QUEUES), group=st.sampled_from([None, *GROUPS]), paused=st.booleans())
    def pause(self, queue: str, group: str | None, paused: bool) -> None:
        """Pause or resume a queue or a group."""
        done = self.run(self.q.engine.pause(queue, group, paused))
        agree("whether there is such a thing", done, group is None or (queue, group) in self.model.groups)
        if group is None:
            self.model.queues[queue].paused = paused
        elif done:
            self.model.groups[queue, group] = paused

    @rule(queue=st.sampled_from(QUEUES), group=st.sampled_from([None, *GROUPS]))
    def purge(self, queue: str, group: str | None) -> None:
        """Empty a queue, or settle all that a group has open."""
        agree("number of purged", self.run(self.q.engine.purge(queue, group)), self.model.purge(queue, group))

    @rule(data=st.data(), queue=st.sampled_from(QUEUES))
    def delete_message(self, data: st.DataObject, queue: str) -> None:
        """Delete one message, leased or not."""
        stored = [one for partition in self.model.queues[queue].partitions.values() for one in partition.log]
        if stored:
            chosen = pick(data, stored, "message")
            agree("deleted", self.run(self.q.engine.delete_messages([self.ids[chosen]])), [True])
            self.model.delete(chosen)

    # Looking -----------------------------------------------------------------------------------------------

    @rule()
    def look(self) -> None:
        """Compare what an administrator sees."""
        self.look_at_dead_letters()
        for queue in QUEUES:
            stats = self.run(self.q.stats(queue))
            agree(f"discarded of {queue}", stats.discarded, self.model.discarded.get(queue, 0))
        for group in self.run(self.q.engine.group_stats()):
            tracks = list(self.model.tracks_of(group.queue, group.group))
            agree(f"lag of {group.group} in {group.queue}", group.lag, sum(len(one.todo) for one in tracks))
            agree(f"pause of {group.group}", group.paused, self.model.groups[group.queue, group.group])
        for one in self.run(self.q.engine.track_stats()):
            place = (one.queue, one.partition, one.group)
            track = self.model.tracks[place]
            agree(f"lag at {place}", one.lag, len(track.todo))
            agree(f"lease at {place}", one.lease_expires_at, track.lease.expires_at if track.lease else None)
            log = [waiting for waiting in track.todo if waiting not in track.front]
            end = log[0].offset - 1 if log else track.partition.tail
            if not track.partition.holes:
                agree(f"cursor at {place}", one.cursor, end)
            if not self.cursors.get(place, 0) <= one.cursor <= end:
                raise Disagreement(f"cursor at {place} is {one.cursor}, was {self.cursors.get(place)}, end is {end}")
            self.cursors[place] = one.cursor

    def look_at_dead_letters(self) -> None:
        """Every one is there, once, as it died."""
        found = self.run(self.q.dead_letters())
        agree("dead letters", sorted(map(engine_view, found)), sorted(map(self.model_view, self.model.dead)))

    def model_view(self, letter: DeadLetter) -> tuple[object, ...]:
        """A dead letter in comparable form."""
        return (self.ids[letter.message], letter.group, letter.attempts, letter.failed_at, letter.error)

    def drain(self) -> None:
        """Nothing is lost and nothing invented: deliver and settle all that is left."""
        self.advance(1000)
        for queue, group in self.model.groups:
            self.pause(queue, None, False)
            self.pause(queue, group, False)
            for _ in range(10_000):
                wish = Wish([queue], None, group, "all", 100, 100, True)
                got = self.run(self.q.pop(queue, group=group, batch=100, partitions=100, auto_ack=True))
                self.popped(wish, got)
                if not got:
                    break
            agree(f"left for {group}", [one.todo for one in self.model.tracks_of(queue, group) if one.todo], [])
