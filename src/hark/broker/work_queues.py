"""Work queues of the key-value API, and the choice of dead letters and queues by ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from hark import model
from hark.api.types.keys import WorkStats
from hark.broker.delivery.delivery import Gone
from hark.clock import SECOND, Clock
from hark.engine.api import Engine
from hark.errors import Conflict, HarkError, NotFound, Overloaded
from hark.ids import partition_id_of
from hark.model import QUEUE_MODE
from hark.model.admin import labels_of
from hark.settings import Queue

if TYPE_CHECKING:
    from hark.broker.broker import Broker

_PAGE = 1000


async def find_each(
    engine: Engine, ids: Sequence[str], may_use: Callable[[str], bool]
) -> list[model.DeadLetter | HarkError]:
    """The dead letter of each id, its own id or that of its message, without payload; or the error.

    Dead letters of queues that the caller may not use are treated as missing.
    """
    found: dict[str, list[model.DeadLetter]] = {}
    offset = 0
    while True:
        # A message can be dead-lettered in several groups, so there can be more dead letters than ids.
        page = await engine.dead_letters(model.DeadLetterFilter(ids=ids, payloads=False, limit=_PAGE, offset=offset))
        for letter in page.items:
            if not may_use(letter.queue):
                continue
            for name in (letter.id, letter.message_id):
                found.setdefault(name, []).append(letter)
        offset += _PAGE
        if offset >= page.total:
            return [_the_only(found.get(one, ())) for one in ids]


def _the_only(letters: Sequence[model.DeadLetter]) -> model.DeadLetter | HarkError:
    if not letters:
        return NotFound("Dead letter not found", code="dead_letter_not_found")
    if len(letters) > 1:
        return Conflict("this message is a dead letter in several groups; pass its deadLetterId", code="ambiguous")
    return letters[0]


async def find_oldest(engine: Engine, where: model.DeadLetterFilter, most: int) -> tuple[list[model.DeadLetter], int]:
    """The matching dead letters that failed first, oldest first and without payloads; and the number of further ones.

    Requeued in this order, they are delivered in the order in which they failed.
    """
    wanted = msgspec.structs.replace(where, payloads=False, oldest_first=True, limit=most, offset=0)
    page = await engine.dead_letters(wanted)
    return list(page.items), max(0, page.total - len(page.items))


_KEPT = 10_000


class QueueLookup:
    """Finds queues by the ids of partitions and messages, and the ids of partitions. It caches both.

    A cached queue stays valid: a partition never changes its queue, and an id is never reused.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[str, str] = {}
        self._ids: dict[tuple[str, str], str] = {}
        """The ids of partitions by the names of their queue and their own."""

    async def queues_of(self, ids: Sequence[str]) -> list[str | None]:
        """The queue of each id; None if there is none."""
        partitions = [partition_id_of(id) for id in ids]
        unknown = list({one for one in partitions if one is not None and one not in self._known})
        if unknown:
            if len(self._known) + len(unknown) > _KEPT:
                self._known.clear()
            found = zip(unknown, await self._engine.queues_of(unknown), strict=True)
            self._known |= {partition: queue for partition, queue in found if queue is not None}
        return [None if one is None else self._known.get(one) for one in partitions]

    async def partition_id(self, queue: str, name: str) -> str | None:
        """The id of a partition by its name."""
        known = self._ids.get((queue, name))
        # The queue can have been deleted and created again.
        if known is not None and (await self._engine.queues_of([known]))[0] == queue:
            return known
        if len(self._ids) >= _KEPT:
            self._ids.clear()
        offset, page = 0, None
        while page is None or len(page) == _PAGE:
            page = await self._engine.partition_stats(queue, search=name, limit=_PAGE, offset=offset)
            offset += _PAGE
            for one in page:
                if one.name == name:
                    self._ids[queue, name] = one.id
                    return one.id
        return None


# Work queues are ordinary queues whose shared default group removes settled messages. This part has what is special:
# their options, their default retry schedule, and their lease time.


DEFAULT_QUEUE = "default"
DEFAULT_SCHEDULE = (1000, 5000, 10_000)
"""Milliseconds before the retries of a message without a schedule."""
NO_ERROR = "Max attempts exceeded"
"""The error text of a dead letter whose last failure had none."""

Labels = tuple[str, str] | None
"""Namespace and task of a new queue; None: derived from its name."""

_REMEMBERED = 1 * SECOND
"""How long the existence of a queue is cached: another server can delete it without a notification."""


class WorkQueues:
    """The verbs of work queues, on the verbs of the broker."""

    def __init__(self, broker: Broker, settings: Queue, clock: Clock) -> None:
        self._broker = broker
        self._settings = settings
        self._clock = clock
        self._made: dict[str, int] = {}
        """Existing queues, with the time of the last check."""

    # Queues ------------------------------------------------------------------------------------------------

    async def prepare(self, queues: Mapping[str, Labels]) -> None:
        """Create the queues that do not exist, with the options of work queues and these labels."""
        now = self._clock.now()
        oldest = now - _REMEMBERED
        missing = [queue for queue in queues if self._made.get(queue, 0) < oldest]
        if missing:
            # With these labels, or those of a push (rule 2).
            labels = {queue: queues[queue] or labels_of(queue) for queue in missing}
            options = model.QueueOptions(drop_settled=True)
            await self._broker.engine.make_queues(
                [
                    model.QueueSpec(name=queue, namespace=namespace, task=task, options=options)
                    for queue, (namespace, task) in labels.items()
                ]
            )
            known = {queue: seen for queue, seen in self._made.items() if seen >= oldest}
            self._made = known | dict.fromkeys(missing, now)

    def forget(self, queues: Sequence[str]) -> None:
        """Remove deleted queues from the cache."""
        for queue in queues:
            self._made.pop(queue, None)

    async def lock_duration(self, queue: str) -> int:
        """The lease time of a queue in milliseconds; 0 for that of the settings."""
        infos = await self._broker.engine.queue_infos([queue])
        return infos[0].options.lock_duration if infos else 0

    async def set_lock_duration(self, queue: str, milliseconds: int, labels: Labels = None) -> None:
        """Set the lease time of a queue; 0 for that of the settings."""
        await self.prepare({queue: labels})
        for info in await self._broker.engine.queue_infos([queue]):
            options = msgspec.structs.replace(info.options, lock_duration=milliseconds)
            await self._broker.configure(
                model.QueueSpec(name=queue, namespace=info.namespace, task=info.task, options=options)
            )

    async def stats(self, queue: str) -> WorkStats:
        """The numbers of waiting, leased and dead-lettered messages."""
        engine = self._broker.engine
        pending = processing = 0
        if groups := await engine.group_stats(QUEUE_MODE, queue):
            processing = groups[0].in_flight
            pending = groups[0].lag + groups[0].scheduled
        elif queues := (await engine.queue_stats(model.QueueFilter(names=[queue]))).items:
            pending = queues[0].counts.total  # No consumer has received a message yet.
        dead = await engine.dead_letters(model.DeadLetterFilter(queue=queue, group=QUEUE_MODE, limit=1))
        return WorkStats(pending, processing, dlq=dead.total, total=pending + processing + dead.total)

    # Messages ----------------------------------------------------------------------------------------------

    async def admit(self, messages: Sequence[model.NewMessage]) -> None:
        """Prepare messages for a push: create their queues, and set their retry schedules."""
        self._broker.check_pushes()  # Before a queue is created that would stay empty.
        for message in messages:
            if message.backoff_ms is None:
                message.backoff_ms = DEFAULT_SCHEDULE
        await self.prepare({message.queue: message.labels for message in messages})

    async def enqueue(self, message: model.NewMessage) -> str:
        """Append a message. Returns its id when it is on stable storage."""
        await self.admit([message])
        [outcome] = await self._broker.push([message])
        if outcome.code == "queue_full":
            raise Overloaded(outcome.error or "the queue is full; retry later", code=outcome.code)
        if outcome.message_id is None:
            raise HarkError(outcome.error or "the message was not stored", code=outcome.code)
        return outcome.message_id

    def pop_request(self, queue: str, consumer: str = "") -> model.PopRequest:
        """The pop of the next message of a work queue."""
        lasts = self._settings.lock_duration
        return model.PopRequest(queue=queue, group_mode="shared", lease_ms=lasts, consumer=consumer)

    async def poll(
        self, queue: str, wait_seconds: float = 0, gone: Gone | None = None, consumer: str = "", labels: Labels = None
    ) -> model.PopResult:
        """Pop the next message, or wait for it."""
        await self.prepare({queue: labels})
        return await self._broker.pop(self.pop_request(queue, consumer), wait_seconds, gone=gone)

    async def settle(
        self,
        message_id: str,
        receipt: str | None,
        status: model.Status,
        error: str | None = None,
        delay_ms: int | None = None,
    ) -> model.SettleOutcome:
        """Settle a message by its receipt, or without one, in any live delivery."""
        if status == "failed":
            error = error or NO_ERROR
        settlement = model.Settlement(message_id, "", status, receipt, error, delay_ms)
        [outcome] = await self._broker.settle([settlement])
        return outcome
