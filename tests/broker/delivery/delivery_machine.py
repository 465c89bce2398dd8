"""A state machine on a real broker: clients come, go, read, settle and stall, and time passes; nobody is forgotten.

Many steps end before what they began has come to an end, so that the next one falls between. What must hold is
checked whenever everything has come to rest.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from hark.broker.delivery.consumers import State
from hark.broker.delivery.delivery import Intention
from hark.broker.delivery.stream import Stream, StreamConsumer
from hark.clock import MILLISECOND
from hark.errors import EngineFailure
from hark.model import GroupMode, NewMessage, PopRequest, PopResult, QueueOptions, QueueSpec, Seek, Settlement, Status
from hark.settings import Settings

from .consumer_machine import check
from .harness import GROUP, Server, WatchedEngine, outbox, settlement, turns

T = TypeVar("T")
Naming = Literal["lease", "no lease", "id alone"]
"""How a settlement says what it is about."""
QUEUES = ["shop.new", "shop.old"]
PARTITIONS = ["a", "b", "c"]
LEASE_SECONDS = 2
DELAY_MS = 50
POLLED_SECONDS = 6
"""A fallback poll comes at least so often."""

pop_params = st.sampled_from(
    [
        PopRequest(queue=QUEUES[0], group=GROUP),
        PopRequest(queue=QUEUES[0], group=GROUP, batch=3),
        PopRequest(queue=QUEUES[0], group=GROUP, partition="a"),
        PopRequest(queue=QUEUES[0], group=GROUP, partition="b"),
        PopRequest(queue=QUEUES[0], group=GROUP, auto_ack=True),
        PopRequest(queue=QUEUES[1], group=GROUP, batch=2, partitions=2),
        PopRequest(namespace="shop", group=GROUP),
    ]
)
targets = st.tuples(st.sampled_from([*QUEUES, QUEUES[0]]), st.sampled_from(PARTITIONS))
bounds = st.sampled_from([{}, {}, {"max_in_flight": 2}, {"rate_limit": 20, "rate_burst": 2}])
priorities = st.sampled_from([0, 0, 0, 5])
rest = st.sampled_from([None, None, None, 0, 1, 2, 4])
"""How many turns of the loop a step is given; None: until everything has come to rest."""
# Not drawn from what there is: that depends on how far the threads of the engine have come.
index = st.integers(0, 9)


def pick(those: Sequence[T], which: int) -> T | None:
    """One of them, if there are any."""
    return those[which % len(those)] if those else None


class LostWakeUp(AssertionError):
    """Somebody waits for what is there."""


class DeliveryMachine(RuleBasedStateMachine):
    """Drives one broker."""

    modes: ClassVar[dict[str, GroupMode]] = dict.fromkeys(QUEUES, "ordered")
    """What the group is in each queue."""

    @initialize()
    def start(self) -> None:
        """A broker with two queues."""
        self.runner = asyncio.Runner()
        self.numbers = 0
        self.due: dict[bytes, int] = {}
        """Before when a message must not be delivered, by payload."""
        self.pops: list[asyncio.Task[PopResult]] = []
        self.streams: list[Stream] = []
        self.credit: dict[Stream, int] = {}
        """The most that a stream may hold."""
        self.hands: list[PopResult] = []
        """What consumers have got under leases."""
        self.received: set[str] = set()
        self.steps: set[asyncio.Task[object]] = set()
        """Those that nobody waits for."""
        self.run(self._start())

    async def _start(self) -> None:
        self.server = Server(Settings(), WatchedEngine)
        await self.server.start()
        for queue in QUEUES:
            await self._configure(queue)
            await self.server.broker.pop(PopRequest(queue=queue, group=GROUP, group_mode=self.modes[queue]))

    async def _configure(self, queue: str, **bounds: int) -> None:
        options = QueueOptions(lease_time=LEASE_SECONDS, retry_limit=2, **bounds)  # type: ignore[arg-type]  # of ints
        await self.server.broker.configure(QueueSpec(name=queue, namespace="shop", options=options))

    def run(self, step: Coroutine[Any, Any, T]) -> T:
        """Let a step run in the loop of this machine."""
        return self.runner.run(step)

    def teardown(self) -> None:
        """Let everybody leave, and see that nothing of them is left."""
        if not hasattr(self, "server"):
            return
        try:
            # Also called after a failure, which another one must not hide.
            if sys.exc_info()[0] is None:
                self.run(self._all_leave())
        finally:
            self.run(self.server.close())
            self.runner.close()

    async def _all_leave(self) -> None:
        await self._rest(None)
        for pop in self.pops:
            pop.cancel()
        for stream in self.streams:
            stream.close()
        await self.server.quiet()
        self._collect()
        self.server.is_clean()
        self._check_leases()

    # What clients do -------------------------------------------------------------------------------------------

    @rule(
        to=st.lists(targets, min_size=1, max_size=4),
        delay=st.sampled_from([0, 0, 0, DELAY_MS, 2 * DELAY_MS]),
        priority=st.sampled_from([0, 0, 9]),
        turns=rest,
    )
    def push(self, to: list[tuple[str, str]], delay: int, priority: int, turns: int | None) -> None:
        """A few messages in one request."""
        items = []
        for queue, partition in to:
            self.numbers += 1
            payload = str(self.numbers).encode()
            self.due[payload] = self.server.clock.now() + delay * MILLISECOND
            items.append(NewMessage(queue, partition, payload, delay_ms=delay, priority=priority))
        self.run(self._step(self.server.broker.push(items), turns))

    @rule(params=pop_params, priority=priorities, seconds=st.sampled_from([0.02, 1, 60]), turns=rest)
    def comes(self, params: PopRequest, priority: int, seconds: float, turns: int | None) -> None:
        """A long poll."""
        self.run(self._come(params, priority, seconds, turns))

    async def _come(self, params: PopRequest, priority: int, seconds: float, turns: int | None) -> None:
        self.pops.append(self.server.pop(params, seconds, priority))
        await self._rest(turns)

    @rule(params=pop_params, turns=rest)
    def takes(self, params: PopRequest, turns: int | None) -> None:
        """Somebody who does not wait takes what others may have been told of."""
        self.run(self._come(params, 0, 0, turns))

    @rule(which=index, turns=rest)
    def leaves(self, which: int, turns: int | None) -> None:
        """A long poll is given up, wherever it is."""
        pop = pick(self.pops, which)
        if pop is not None:
            self.run(self._step_now(pop.cancel, turns))

    @rule(params=pop_params, priority=priorities, credit=st.integers(0, 4), turns=rest)
    def opens(self, params: PopRequest, priority: int, credit: int, turns: int | None) -> None:
        """A stream."""
        self.run(self._open(params, priority, credit, turns))

    async def _open(self, params: PopRequest, priority: int, credit: int, turns: int | None) -> None:
        stream = self.server.delivery.streams.open(credit)
        self.streams.append(stream)
        self.credit[stream] = credit
        stream.subscribe("0", params, priority)
        await self._rest(turns)

    @rule(
        which=index,
        how=st.sampled_from(["credit", "credit", "pause", "resume", "resume", "drain", "more", "less", "close"]),
        params=pop_params,
        credit=st.integers(0, 4),
        turns=rest,
    )
    def changes(self, which: int, how: str, params: PopRequest, credit: int, turns: int | None) -> None:
        """A stream changes its mind."""
        stream = pick(self.streams, which)
        if stream is not None:
            self.run(self._step_now(lambda: self._change(stream, how, params, credit), turns))

    def _change(self, stream: Stream, how: str, params: PopRequest, credit: int) -> None:
        if how == "credit":
            self.credit[stream] = max(credit, stream.unsettled, stream.credit if stream._is_busy else 0)
            stream.grant(credit)
        elif how == "more":
            self.numbers += 1
            stream.subscribe(str(self.numbers), params)
        elif how == "less":
            stream.unsubscribe(next(iter(stream.consumers), ""))
        elif how == "close":
            self.streams.remove(stream)
            self._take_note(stream)
            stream.close()
        else:
            {"pause": stream.pause, "resume": stream.resume, "drain": stream.drain}[how]()

    @rule(which=index, fails=st.sampled_from([False, False, False, True]), turns=rest)
    def reads(self, which: int, fails: bool, turns: int | None) -> None:
        """What came for a stream is written to its socket, or can't be."""
        stream = pick([stream for stream in self.streams if outbox(stream)], which)
        if stream is not None:
            self.run(self._read(stream, fails, turns))

    async def _read(self, stream: Stream, fails: bool, turns: int | None) -> None:
        arrival = await stream.next()
        assert arrival is not None
        assert arrival.error is None
        if fails:
            stream.lost(arrival)
            stream.close()
            self.streams.remove(stream)
        else:
            self._got(arrival.result)
            stream.written()
        await self._rest(turns)

    @rule(
        which=index,
        status=st.sampled_from(["completed", "completed", "completed", "failed", "retry", "dlq"]),
        number=st.integers(1, 3),
        delay=st.sampled_from([0, DELAY_MS]),
        naming=st.sampled_from(["lease", "lease", "no lease", "id alone"]),
        turns=rest,
    )
    def settles(self, which: int, status: Status, number: int, delay: int, naming: Naming, turns: int | None) -> None:
        """Some messages of one lease are settled, maybe late, maybe twice."""
        leased = pick(self.hands, which)
        if leased is not None:
            items = [self._settlement(leased, index, status, delay, naming) for index in range(number)]
            if number >= len(leased.messages):
                self.hands.remove(leased)
            self.run(self._step(self._settle(items), turns))

    async def _settle(self, items: Sequence[Settlement]) -> None:
        await self.server.broker.settle(items)

    @staticmethod
    def _settlement(leased: PopResult, index: int, status: Status, delay: int, naming: Naming) -> Settlement:
        message = leased.messages[index % len(leased.messages)]
        if naming == "id alone":
            return Settlement(message.id, status=status, delay_ms=delay, group=GROUP)
        named = settlement(leased, message, status, delay_ms=delay)
        return named if naming == "lease" else msgspec.structs.replace(named, lease_id=None)

    # What happens to them --------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 0.02, DELAY_MS / 1000, LEASE_SECONDS]))
    def time_passes(self, seconds: float) -> None:
        """Delays, leases, retries and timeouts fall due."""
        self.run(self._step(self.server.advance(seconds), None))

    @rule(queue=st.sampled_from(QUEUES), paused=st.booleans(), turns=rest)
    def pauses(self, queue: str, paused: bool, turns: int | None) -> None:
        """A queue is paused or resumed."""
        self.run(self._step(self.server.engine.pause(queue, None, paused), turns))

    @rule(queue=st.sampled_from(QUEUES), bounds=bounds, turns=rest)
    def bounds_change(self, queue: str, bounds: dict[str, int], turns: int | None) -> None:
        """A queue lets its groups have only so much."""
        self.run(self._step(self._configure(queue, **bounds), turns))

    @rule(queue=st.sampled_from(QUEUES), offset=st.sampled_from([1, 3]), turns=rest)
    def seeks(self, queue: str, offset: int, turns: int | None) -> None:
        """The group begins again."""
        seek = Seek(queue=queue, group=GROUP, offset=offset)
        self.run(self._step(self.server.engine.seek([seek]), turns))

    @rule(to=targets)
    def the_store_goes_away(self, to: tuple[str, str]) -> None:
        """Pops fail for a while, in which a message comes; polls find it when the store is back."""
        self.run(self._go_away(to))

    async def _go_away(self, to: tuple[str, str]) -> None:
        self.server.engine.failure = EngineFailure("the store is away")
        self.numbers += 1
        payload = str(self.numbers).encode()
        self.due[payload] = self.server.clock.now()
        await self.server.broker.push([NewMessage(*to, payload)])
        await self.server.quiet()
        self.server.engine.failure = None
        await self.server.advance(POLLED_SECONDS)
        await self._rest(None)

    async def _step(self, call: Coroutine[Any, Any, object], turns: int | None) -> None:
        """Do something that takes a while, and maybe not wait for its end."""
        if turns is None:
            await call
        else:
            self.steps.add(task := asyncio.get_running_loop().create_task(call))
            task.add_done_callback(self.steps.discard)
        await self._rest(turns)

    async def _step_now(self, change: Callable[[], object], turns: int | None) -> None:
        change()
        await self._rest(turns)

    # What must hold --------------------------------------------------------------------------------------------

    async def _rest(self, number: int | None) -> None:
        """Give everything a few turns; or let it come to its end, and look whether all is well."""
        if number is not None:
            await turns(number)
            self._collect()
            return
        await self.server.quiet()
        self._collect()
        self._check_streams()
        self._check_leases()
        await self._check_idle()
        await self._check_no_consumer_is_forgotten()

    def _collect(self) -> None:
        """Take what long polls have got."""
        for pop in [pop for pop in self.pops if pop.done()]:
            self.pops.remove(pop)
            if not pop.cancelled() and pop.exception() is None:
                self._got(pop.result())
        for stream in self.streams:
            self._take_note(stream)

    def _take_note(self, stream: Stream) -> None:
        """A lease of a stream is known to somebody, written or not, until it is given back."""
        assert stream.unsettled <= self.credit[stream], "I6: more than it has credit for"

    def _got(self, result: PopResult) -> None:
        for message in result.messages:
            assert self.due[bytes(message.payload)] <= self.server.clock.now(), "I10: before its time"
        if result.lease_id:
            self.hands.append(result)
            self.received.add(result.lease_id)

    @property
    def _live(self) -> dict[str, Counter[tuple[str, int]]]:
        """What each lease holds, as the engine sees it."""
        threads = self.server.engine._threads
        assert threads is not None
        live: dict[str, Counter[tuple[str, int]]] = {}
        for lease in threads.state.leases.values():
            leased = live.setdefault(lease.id, Counter())
            for position in lease.parts:
                leased.update((position.partition.uid, one[0]) for one in position.leased_by(lease))
        return live

    def _check_leases(self) -> None:
        live = self._live
        in_windows = {lease for stream in self.streams for lease in stream.leases()}
        assert set(live) <= self.received | in_windows, "I7: a lease that nobody received"
        leased = sum(live.values(), Counter[tuple[str, int]]())
        assert max(leased.values(), default=1) == 1, "I10: a message under two live leases"

    def _check_streams(self) -> None:
        live = self._live
        for stream in self.streams:
            assert set(stream.leases()) <= set(live), "it counts a lease that is over"
            for consumer in stream.consumers.values():
                waits = consumer.subscription.manager.state_of(consumer) is State.INTERESTED
                assert waits is stream.interested, "L3: interested, but not in the list, or the other way round"

    async def _check_idle(self) -> None:
        """I8: nobody is told, nothing is scheduled."""
        for subscription in self.server.delivery._subscriptions.values():
            check(subscription.manager)
            assert not subscription.manager.counts()[State.NOTIFIED], "I8: told, and nobody looks"
        before = self.server.timers.set, self.server.engine.calls
        await turns(5)
        assert (self.server.timers.set, self.server.engine.calls) == before, "I8: something goes on"

    async def _check_no_consumer_is_forgotten(self) -> None:
        """I1: whoever waits, waits for what is not there."""
        wanted: dict[PopRequest, None] = {}
        for subscription in self.server.delivery._subscriptions.values():
            for consumer in subscription.manager.iter_interested():
                assert isinstance(consumer, Intention | StreamConsumer)
                params = consumer.request
                wanted[msgspec.structs.replace(params, batch=1, auto_ack=False)] = None
        if wanted:
            answers = await self.server.engine.pop(list(wanted))
            for params, answer in zip(wanted, answers, strict=True):
                if isinstance(answer, PopResult) and answer.messages:
                    raise LostWakeUp(f"I1: {params} waits for {answer.messages}")
            await self.server.quiet()
