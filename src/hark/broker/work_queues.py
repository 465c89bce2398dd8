"""Work queues: those of the key-value API, where each message goes to one of many consumers and is gone when done.

They are queues as all others are, with a shared default group that drops what is settled. What is special about
them is said here: how they are made, how messages are retried that do not say, and how long a consumer holds one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from hark.broker.delivery.delivery import Gone
from hark.clock import SECOND, Clock
from hark.errors import HarkError, Overloaded
from hark.model import (
    QUEUE_MODE,
    DeadLetterFilter,
    NewMessage,
    PopRequest,
    PopResult,
    QueueFilter,
    QueueOptions,
    QueueSpec,
    Settlement,
    SettleOutcome,
    Status,
)
from hark.settings import Queue

if TYPE_CHECKING:
    from hark.broker.broker import Broker

DEFAULT_QUEUE = "default"
DEFAULT_SCHEDULE = (1000, 5000, 10_000)
"""Milliseconds before the retries of a message that came without a schedule."""
NO_ERROR = "Max attempts exceeded"
"""What a dead letter says whose last failure came without a text."""

_REMEMBERED = 1 * SECOND
"""How long the existence of a queue is cached: another server can delete it without a notification."""


class WorkStats(msgspec.Struct, frozen=True):
    """How much there is in a work queue."""

    pending: int
    processing: int
    dlq: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.pending + self.processing + self.dlq


class WorkQueues:
    """The verbs of work queues, on the verbs of the broker."""

    def __init__(self, broker: Broker, settings: Queue, clock: Clock) -> None:
        self._broker = broker
        self._settings = settings
        self._clock = clock
        self._made: dict[str, int] = {}
        """Queues that exist, and when that was last seen."""

    # Queues ------------------------------------------------------------------------------------------------

    async def prepare(self, *queues: str) -> None:
        """Make queues as this API wants them, unless they exist; those stay as they are."""
        now = self._clock.now()
        oldest = now - _REMEMBERED
        missing = [queue for queue in queues if self._made.get(queue, 0) < oldest]
        if missing:
            await self._broker.engine.make_queues([_spec(queue) for queue in missing])
            known = {queue: seen for queue, seen in self._made.items() if seen >= oldest}
            self._made = known | dict.fromkeys(missing, now)

    def forget(self, queues: Sequence[str]) -> None:
        """Queues were deleted."""
        for queue in queues:
            self._made.pop(queue, None)

    async def lock_duration(self, queue: str) -> int:
        """Milliseconds that a queue wants messages to be held; 0: as the server's settings say."""
        infos = await self._broker.engine.queue_infos([queue])
        return infos[0].options.lock_duration if infos else 0

    async def set_lock_duration(self, queue: str, milliseconds: int) -> None:
        """Hold messages of a queue that long from now on; 0: as the server's settings say."""
        await self.prepare(queue)
        for info in await self._broker.engine.queue_infos([queue]):
            options = msgspec.structs.replace(info.options, lock_duration=milliseconds)
            await self._broker.configure(
                QueueSpec(name=queue, namespace=info.namespace, task=info.task, options=options)
            )

    async def stats(self, queue: str) -> WorkStats:
        """How many messages wait, are being worked on, or could not be delivered."""
        engine = self._broker.engine
        pending = processing = 0
        if groups := await engine.group_stats(QUEUE_MODE, queue):
            processing = groups[0].in_flight
            pending = max(0, groups[0].lag - processing)
        elif queues := (await engine.queue_stats(QueueFilter(names=[queue]))).items:
            pending = queues[0].counts.total  # No consumer has received a message yet.
        dead = await engine.dead_letters(DeadLetterFilter(queue=queue, group=QUEUE_MODE, limit=1))
        return WorkStats(pending, processing, dead.total)

    # Messages ----------------------------------------------------------------------------------------------

    async def admit(self, messages: Sequence[NewMessage]) -> None:
        """Get ready to push messages: their queues exist, and each has a retry schedule."""
        self._broker.check_pushes()  # Before a queue is made that nothing would be in.
        for message in messages:
            if message.backoff_ms is None:
                message.backoff_ms = DEFAULT_SCHEDULE
        await self.prepare(*{message.queue: None for message in messages})

    async def enqueue(self, message: NewMessage) -> str:
        """Append a message and give its id; returns when it is on stable storage."""
        await self.admit([message])
        [outcome] = await self._broker.push([message])
        if outcome.code == "queue_full":
            raise Overloaded(outcome.error or "the queue is full; retry later", code=outcome.code)
        if outcome.message_id is None:
            raise HarkError(outcome.error or "the message was not stored", code=outcome.code)
        return outcome.message_id

    def wish(self, queue: str, consumer: str = "") -> PopRequest:
        """What each consumer of a work queue asks for: the next message."""
        lasts = self._settings.lock_duration
        return PopRequest(queue=queue, group_mode="shared", lease_ms=lasts, consumer=consumer)

    async def poll(
        self, queue: str, wait_seconds: float = 0, gone: Gone | None = None, consumer: str = ""
    ) -> PopResult:
        """Take the next message, if there is one in time."""
        await self.prepare(queue)
        return await self._broker.pop(self.wish(queue, consumer), wait_seconds, gone=gone)

    async def settle(
        self,
        message_id: str,
        receipt: str | None,
        status: Status,
        error: str | None = None,
        delay_ms: int | None = None,
    ) -> SettleOutcome:
        """Settle a message that was delivered under a receipt, or without one whatever delivery of it is live."""
        if status == "failed":
            error = error or NO_ERROR
        settlement = Settlement(message_id, "", status, receipt, error, delay_ms)
        [outcome] = await self._broker.settle([settlement])
        return outcome


def _spec(queue: str) -> QueueSpec:
    """A queue as this API makes it, with the labels that a push would give it (rule 2)."""
    labels = queue.split(".", 2)
    task = labels[1] if len(labels) > 2 else ""
    return QueueSpec(name=queue, namespace=labels[0], task=task, options=QueueOptions(drop_settled=True))
