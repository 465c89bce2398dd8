"""Many dead letters at a time: how they are shown, which ones are meant, and in which order they go back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from hark.broker.delivery.delivery import Gone
from hark.broker.sealing import SealedQueues
from hark.clock import SECOND, Clock
from hark.engine.api import Engine
from hark.errors import Conflict, HarkError, NotFound, Overloaded
from hark.ids import partition_id_of
from hark.model import (
    QUEUE_MODE,
    DeadLetter,
    DeadLetterFilter,
    DeadLetters,
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
from hark.model.admin import labels_of
from hark.settings import Queue

if TYPE_CHECKING:
    from hark.broker.broker import Broker

_PAGE = 1000


async def find_each(engine: Engine, ids: Sequence[str], may_use: Callable[[str], bool]) -> list[DeadLetter | HarkError]:
    """The dead letter that each id means, its own or that of its message, without payload; else what is wrong.

    Those of queues that may not be used are as if they were not there.
    """
    found: dict[str, list[DeadLetter]] = {}
    offset = 0
    while True:
        # A message may have died in several groups, so that there may be more of them than ids.
        page = await engine.dead_letters(DeadLetterFilter(ids=ids, payloads=False, limit=_PAGE, offset=offset))
        for letter in page.items:
            if not may_use(letter.queue):
                continue
            for name in (letter.id, letter.message_id):
                found.setdefault(name, []).append(letter)
        offset += _PAGE
        if offset >= page.total:
            return [_the_only(found.get(one, ())) for one in ids]


def _the_only(letters: Sequence[DeadLetter]) -> DeadLetter | HarkError:
    if not letters:
        return NotFound("Dead letter not found", code="dead_letter_not_found")
    if len(letters) > 1:
        return Conflict("this message is a dead letter in several groups; pass its deadLetterId", code="ambiguous")
    return letters[0]


async def find_oldest(engine: Engine, where: DeadLetterFilter, most: int) -> tuple[list[DeadLetter], int]:
    """Of those that match the ones that failed first, oldest first and without payloads; and how many are left.

    Requeued in this order they are delivered in the order in which they failed.
    """
    wanted = msgspec.structs.replace(where, payloads=False, oldest_first=True, limit=most, offset=0)
    page = await engine.dead_letters(wanted)
    return list(page.items), max(0, page.total - len(page.items))


async def shown_dead_letters(engine: Engine, sealed: SealedQueues, where: DeadLetterFilter) -> DeadLetters:
    """A page of dead letters with readable payloads and error texts; where a payload can't be read, why."""
    page = await engine.dead_letters(where)
    items = []
    for letter in page.items:
        payload, reason, still_sealed = letter.payload, None, letter.sealed
        if where.payloads:
            payload, reason = sealed.shown(letter.queue, letter.payload, letter.sealed)
            still_sealed = False
        error = sealed.shown_text(letter.queue, letter.error)
        items.append(
            msgspec.structs.replace(letter, payload=payload, sealed=still_sealed, error=error, unreadable=reason)
        )
    return DeadLetters(items, page.total)


_KEPT = 10_000


class QueueLookup:
    """Finds queues by the ids of partitions and messages, and remembers those of partitions.

    What is remembered stays true: a partition never changes its queue, and an id is never given again.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, str] = {}

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        """The queue that each id leads to; None: no queue that there is."""
        partitions = [partition_id_of(id) for id in ids]
        unknown = list({one for one in partitions if one is not None and one not in self._known})
        if unknown:
            if len(self._known) + len(unknown) > _KEPT:
                self._known.clear()
            found = zip(unknown, await self._engine.queues_of(unknown), strict=True)
            self._known |= {partition: queue for partition, queue in found if queue is not None}
        return [None if one is None else self._known.get(one) for one in partitions]


# They are queues as all others are, with a shared default group that drops what is settled. What is special about
# them is said here: how they are made, how messages are retried that do not say, and how long a consumer holds one.


DEFAULT_QUEUE = "default"
DEFAULT_SCHEDULE = (1000, 5000, 10_000)
"""Milliseconds before the retries of a message that came without a schedule."""
NO_ERROR = "Max attempts exceeded"
"""What a dead letter says whose last failure came without a text."""

Labels = tuple[str, str] | None
"""Namespace and task of a queue to be made; None: as its name says."""

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

    async def prepare(self, queues: Mapping[str, Labels]) -> None:
        """Make queues as this API wants them, with these labels, unless they exist; those stay as they are."""
        now = self._clock.now()
        oldest = now - _REMEMBERED
        missing = [queue for queue in queues if self._made.get(queue, 0) < oldest]
        if missing:
            await self._broker.engine.make_queues([_spec(queue, queues[queue]) for queue in missing])
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

    async def set_lock_duration(self, queue: str, milliseconds: int, labels: Labels = None) -> None:
        """Hold messages of a queue that long from now on; 0: as the server's settings say."""
        await self.prepare({queue: labels})
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
            pending = max(0, groups[0].lag + groups[0].scheduled - processing)
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
        await self.prepare({message.queue: message.labels for message in messages})

    async def enqueue(self, message: NewMessage) -> str:
        """Append a message and give its id; returns when it is on stable storage."""
        await self.admit([message])
        [outcome] = await self._broker.push([message])
        if outcome.code == "queue_full":
            raise Overloaded(outcome.error or "the queue is full; retry later", code=outcome.code)
        if outcome.message_id is None:
            raise HarkError(outcome.error or "the message was not stored", code=outcome.code)
        return outcome.message_id

    def pop_request(self, queue: str, consumer: str = "") -> PopRequest:
        """What each consumer of a work queue asks for: the next message."""
        lasts = self._settings.lock_duration
        return PopRequest(queue=queue, group_mode="shared", lease_ms=lasts, consumer=consumer)

    async def poll(
        self,
        queue: str,
        wait_seconds: float = 0,
        gone: Gone | None = None,
        consumer: str = "",
        labels: Labels = None,
    ) -> PopResult:
        """Take the next message, if there is one in time."""
        await self.prepare({queue: labels})
        return await self._broker.pop(self.pop_request(queue, consumer), wait_seconds, gone=gone)

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


def _spec(queue: str, labels: Labels) -> QueueSpec:
    """A queue as this API makes it, with these labels or with those that a push would give it (rule 2)."""
    namespace, task = labels or labels_of(queue)
    return QueueSpec(name=queue, namespace=namespace, task=task, options=QueueOptions(drop_settled=True))
