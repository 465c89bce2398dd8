"""Words for the tests: push, pop and settle on any engine, in as few letters as a reader needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypedDict, TypeVar, Unpack

import msgspec

from hark.clock import FakeClock
from hark.engine.api import Engine
from hark.errors import HarkError
from hark.model import (
    QUEUE_MODE,
    DeadLetter,
    DeadLetterFilter,
    Delivery,
    GroupMode,
    Hint,
    Key,
    KeyNotification,
    NewMessage,
    PopRequest,
    PositionStats,
    PushOutcome,
    QueueFilter,
    QueueInfo,
    QueueOptions,
    QueueSpec,
    QueueStats,
    Renewal,
    RenewOutcome,
    Seek,
    SeekOutcome,
    Settlement,
    SettleOutcome,
    Status,
    Subscription,
    Transaction,
    TransactionOutcome,
)

from .engines import Open

T = TypeVar("T")
Wrap = Callable[[Engine, FakeClock], Engine]
"""Puts something around an engine."""
ALL = Subscription("all")
NEW = Subscription("new")
NEVER_GIVEN = "01890000-0000-7000-8000-000000000000"
"""A well-formed lease id that no engine ever gave."""
ANYWHERE = "anywhere in the queue"
Named = Literal["key", "id", "id alone"]
"""How a settlement names its message: by its transaction id, by its own id, or by that without the partition."""
_SAME = "the lease it was delivered under"


class LeasedMessage(NamedTuple):
    """A message in a consumer's hands, with the lease and the group it came under."""

    message: Delivery
    lease: str
    group: str

    @property
    def payload(self) -> object:
        """The payload as the producer pushed it."""
        return msgspec.json.decode(bytes(self.message.payload))


class Got(list[LeasedMessage]):
    """What a pop got, as a list, with what it says about the whole."""

    lease: str
    reason: str
    look_again_at: int | None
    partitions: int
    expires_at: int | None


class PushOptions(TypedDict, total=False):
    """The options of a message, as `NewMessage` names them."""

    transaction_id: str | None
    trace_id: str | None
    producer: str | None
    sealed: bool
    priority: int
    delay_ms: int
    deliver_at: int | None
    backoff_ms: tuple[int, ...] | None
    ttl_ms: int | None
    undelivered_keys: tuple[Key, ...]
    trace_context: str | None
    labels: tuple[str, str] | None


def message(queue: str, partition: str, payload: object, **options: Unpack[PushOptions]) -> NewMessage:
    """A message to push."""
    return NewMessage(queue=queue, partition=partition, payload=msgspec.json.encode(payload), **options)


def settlement(
    leased: LeasedMessage,
    status: Status = "completed",
    error: str | None = None,
    *,
    delay_ms: int | None = None,
    lease: str | None = _SAME,
    group: str | None = None,
    named: Named = "key",
) -> Settlement:
    """What a consumer says of a message that it holds; `lease=None` leaves the lease id out."""
    return Settlement(
        transaction_id=leased.message.transaction_id if named == "key" else leased.message.id,
        partition_id="" if named == "id alone" else leased.message.partition_id,
        status=status,
        lease_id=leased.lease if lease == _SAME else lease,
        error=error,
        delay_ms=delay_ms,
        group=leased.group if group is None else group,
    )


def payloads(leased: Iterable[LeasedMessage]) -> list[object]:
    """The payloads, in order."""
    return [one.payload for one in leased]


def offsets(leased: Iterable[LeasedMessage]) -> list[int]:
    """The offsets, in order."""
    return [one.message.offset for one in leased]


def given(answer: T | HarkError) -> T:
    """An answer that must not be an error."""
    if isinstance(answer, HarkError):
        raise answer
    return answer


class Driver:
    """A consumer, a producer and an administrator of one engine."""

    def __init__(
        self,
        open_engine: Open,
        clock: FakeClock,
        wrap: Wrap = lambda engine, _clock: engine,
    ) -> None:
        self._open: Callable[[], Engine] = lambda: wrap(open_engine(clock), clock)
        self._changed = asyncio.Event()
        self.clock = clock
        self.hints: list[Hint] = []
        self.key_notifications: list[KeyNotification] = []
        self.engine: Engine = self._open()

    def _listen(self, hints: Sequence[Hint]) -> None:
        self.hints.extend(hints)
        self._changed.set()

    async def start(self) -> None:
        """Start the engine."""
        await self.engine.start(self._listen, self.key_notifications.append)

    async def reopen(self) -> None:
        """Close the engine and open the same store with a new one."""
        await self.engine.close()
        self.engine = self._open()
        await self.start()

    # Producing and consuming -------------------------------------------------------------------------------

    async def push(
        self, queue: str, partition: str, *payloads: object, **options: Unpack[PushOptions]
    ) -> list[PushOutcome]:
        """Push messages with the same options in one request."""
        return await self.push_messages(*(message(queue, partition, one, **options) for one in payloads))

    async def push_messages(self, *messages: NewMessage) -> list[PushOutcome]:
        """Push messages in one request."""
        [answer] = await self.engine.push([messages])
        return given(answer)

    async def push_id(self, queue: str, partition: str, payload: object, **options: Unpack[PushOptions]) -> str:
        """Push one message and answer its id."""
        [outcome] = await self.push(queue, partition, payload, **options)
        assert outcome.status == "queued" and outcome.message_id is not None
        return outcome.message_id

    async def pop(
        self,
        queue: str | None = None,
        partition: str | None = None,
        *,
        namespace: str | None = None,
        task: str | None = None,
        group: str = QUEUE_MODE,
        group_mode: GroupMode | None = None,
        batch: int = 1,
        partitions: int = 1,
        auto_ack: bool = False,
        subscription: Subscription = ALL,
        lease_ms: int | None = None,
        consumer: str = "",
    ) -> Got:
        """Pop once."""
        request = PopRequest(
            queue=queue,
            partition=partition,
            namespace=namespace,
            task=task,
            group=group,
            group_mode=group_mode,
            batch=batch,
            partitions=partitions,
            auto_ack=auto_ack,
            subscription=subscription,
            lease_ms=lease_ms,
            consumer=consumer,
        )
        [got] = await self.pop_requests(request)
        return got

    async def pop_requests(self, *requests: PopRequest) -> list[Got]:
        """Several pops in one call."""
        answers = await self.engine.pop(requests)
        assert len(answers) == len(requests)
        everything = []
        for request, answer in zip(requests, answers, strict=True):
            result = given(answer)
            got = Got(LeasedMessage(one, result.lease_id, request.group) for one in result.messages)
            got.lease, got.reason = result.lease_id, result.reason
            got.look_again_at, got.partitions = result.look_again_at, result.partitions
            got.expires_at = result.expires_at
            everything.append(got)
        return everything

    async def settle(self, *items: Settlement) -> list[SettleOutcome]:
        """Settle in one request."""
        [answer] = await self.engine.settle([items])
        outcomes = given(answer)
        assert [one.transaction_id for one in outcomes] == [one.transaction_id for one in items]
        return outcomes

    async def ack(self, leased: LeasedMessage) -> SettleOutcome:
        """Complete one message."""
        [outcome] = await self.settle(settlement(leased))
        return outcome

    async def ack_all(self, leased: Iterable[LeasedMessage]) -> None:
        """Complete messages, and insist that it works."""
        outcomes = await self.settle(*(settlement(one) for one in leased))
        assert all(one.success for one in outcomes), outcomes

    async def fail(self, leased: LeasedMessage, error: str = "boom", delay_ms: int | None = None) -> SettleOutcome:
        """Fail one message."""
        [outcome] = await self.settle(settlement(leased, "failed", error, delay_ms=delay_ms))
        return outcome

    async def retry(self, leased: LeasedMessage, delay_ms: int | None = None) -> SettleOutcome:
        """Give one message back."""
        [outcome] = await self.settle(settlement(leased, "retry", delay_ms=delay_ms))
        return outcome

    async def kill(self, leased: LeasedMessage, error: str = "hopeless") -> SettleOutcome:
        """Send one message to the dead letters."""
        [outcome] = await self.settle(settlement(leased, "dlq", error))
        return outcome

    async def drain(self, queue: str, partition: str | None = None, group: str = QUEUE_MODE) -> list[object]:
        """Pop and complete until nothing is ready; the payloads in the order they came."""
        everything: list[object] = []
        while got := await self.pop(queue, partition, group=group, batch=100, partitions=100):
            await self.ack_all(got)
            everything.extend(payloads(got))
        return everything

    async def transact(
        self, *operations: NewMessage | Settlement, required_leases: Sequence[str] = ()
    ) -> TransactionOutcome:
        """One transaction."""
        [answer] = await self.engine.transact([Transaction(operations, required_leases)])
        return given(answer)

    async def renew(self, lease: str, seconds: int = 60) -> RenewOutcome:
        """Renew one lease."""
        [answer] = await self.engine.renew([Renewal(lease, seconds)])
        return given(answer)

    # Administration ----------------------------------------------------------------------------------------

    async def configure(self, queue: str, *, namespace: str = "", task: str = "", **options: float) -> QueueInfo:
        """Make a queue with these options; the others have their defaults."""
        wanted = msgspec.structs.replace(QueueOptions(), **options)
        return await self.configure_spec(QueueSpec(name=queue, namespace=namespace, task=task, options=wanted))

    async def configure_spec(self, spec: QueueSpec) -> QueueInfo:
        """Make a queue, or replace all options of one that exists."""
        [answer] = await self.engine.configure([spec])
        return given(answer)

    async def seek(
        self,
        queue: str,
        partition: str | None = None,
        *,
        group: str = QUEUE_MODE,
        to_end: bool = False,
        timestamp: int | None = None,
        offset: int | None = None,
    ) -> SeekOutcome:
        """Move a group."""
        request = Seek(queue=queue, group=group, partition=partition, to_end=to_end, timestamp=timestamp, offset=offset)
        [answer] = await self.engine.seek([request])
        return given(answer)

    async def dead_letters(self, queue: str | None = None, group: str | None = None) -> list[DeadLetter]:
        """All dead letters that match, newest failure first."""
        found = await self.engine.dead_letters(DeadLetterFilter(queue=queue, group=group, limit=1000))
        assert found.total == len(found.items)
        return list(found.items)

    async def requeue(self, letter: DeadLetter) -> str:
        """Requeue one dead letter; the new message id."""
        [answer] = await self.engine.requeue([letter.id])
        return given(answer)

    async def collect(self) -> int:
        """Run retention to its end; how many messages it removed."""
        removed = 0
        for _ in range(1000):
            step = await self.engine.collect()
            removed += step.removed
            if not step.more:
                return removed
        raise AssertionError("retention never comes to its end")

    async def position(self, queue: str, partition: str, group: str = QUEUE_MODE) -> PositionStats:
        """A group's place in a partition."""
        found = await self.engine.position_stats(group=group, queue=queue)
        [position] = [one for one in found if one.partition == partition]
        return position

    async def cursor(self, queue: str, partition: str, group: str = QUEUE_MODE) -> int:
        """The offset up to which a group is done with a partition."""
        return (await self.position(queue, partition, group)).cursor

    async def stats(self, queue: str) -> QueueStats:
        """What the engine counts about a queue."""
        [found] = (await self.engine.queue_stats(QueueFilter(names=[queue]))).items
        return found

    # Hints -------------------------------------------------------------------------------------------------

    async def hinted(self, queue: str, group: str = QUEUE_MODE) -> None:
        """Wait for a hint about a queue that concerns the group; fails when none comes."""
        async with asyncio.timeout(5):
            while not self.hints_for(queue, group):
                self._changed.clear()
                await self._changed.wait()

    def hints_for(self, queue: str, group: str = QUEUE_MODE) -> list[Hint]:
        """The hints that say that a group may take something; complete once the verb that caused them has answered."""
        return [
            hint
            for hint in self.hints
            if hint.queue == queue
            and (hint.group == group or (hint.group is None and group not in hint.excluded))
            and hint.partitions != ()
        ]

    def announced(self, queue: str, group: str = QUEUE_MODE) -> set[str]:
        """The partitions that hints name to a group; `ANYWHERE` where they name none."""
        named: set[str] = set()
        for hint in self.hints_for(queue, group):
            named |= {ANYWHERE} if hint.partitions is None else set(hint.partitions)
        return named

    @property
    def ended(self) -> set[str]:
        """The leases that hints say are over."""
        return {lease for hint in self.hints for lease in hint.ended}
