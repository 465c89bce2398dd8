"""Tasks: results that are stored with the settlement, progress, and cancellation of running tasks.

Hark keeps a record of a task under a key of its own, below the name of the queue. It is encrypted as the queue is, and
deleted with the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from hark.broker.flows import Flows, tree_of
from hark.broker.keyvalue import KeyValue, Shown
from hark.broker.sealing import SealedQueues
from hark.clock import MILLISECOND, SECOND
from hark.engine.api import Engine
from hark.errors import HarkError, LeaseLost, NotFound
from hark.ids import partition_id_of
from hark.keys import encode_key
from hark.model import (
    OWN,
    Explain,
    Key,
    KeyCheck,
    KeyEntry,
    KeyMutation,
    KeyRange,
    KeyWrite,
    MessageView,
    Renewal,
    RenewOutcome,
    Settlement,
    SettleOutcome,
    TaskEnd,
    Transaction,
    TransactionOutcome,
)
from hark.model.messages import NULL_PAYLOAD

if TYPE_CHECKING:
    from hark.broker.broker import Broker

log = logging.getLogger(__name__)

Cancellation = Literal["cancelled", "cancelling", "not_found", "leased", "settled"]
"""`cancelling`: a consumer has the message, and is notified when it renews its lease."""
TaskState = Literal["pending", "scheduled", "running", "done", "failed", "cancelled"]
HOUR = 3600 * SECOND
_PROGRESS_MS = 24 * HOUR // MILLISECOND
_CANCELLED_MS = HOUR // MILLISECOND
"""How long a cancellation is kept."""
_MOST_MARKS = 1000
_MOST_LEARNED = 10_000
_LEARN_AGAIN = SECOND
"""How often the encryption of a queue is read again, which another server can have changed."""
_LOOK_AGAIN = 5 * SECOND
"""How often a wait looks for a dead letter. A message whose leases expire becomes one without a notification."""
_STATES: dict[str, TaskState] = {"processing": "running", "completed": "done", "dead_letter": "failed"}


class TaskRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is stored of a task."""

    state: Literal["running", "done", "failed", "cancelled"]
    result: msgspec.Raw = msgspec.Raw(NULL_PAYLOAD)
    progress: float | None = None
    note: str | None = None


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a task, from its record and its message."""

    state: TaskState
    result: msgspec.Raw | None = None
    """The result of a task that is done; None: none is stored, or not any more."""
    error: str | None = None
    """The error text of a failed task, with its traceback; of another one, that of its last attempt."""
    attempts: int = 0
    progress: float | None = None
    note: str | None = None

    @property
    def final(self) -> bool:
        """Whether the task has ended; a failed one can still be requeued."""
        return self.state in ("done", "failed", "cancelled")


_decode = msgspec.json.Decoder(TaskRecord).decode
_encode = msgspec.json.Encoder().encode


def _key(queue: str, partition_id: str, transaction_id: str) -> Key:
    return (OWN, "task", queue, partition_id, transaction_id)


class Tasks:
    """The records of tasks. One record has the result, the progress and the end of a task."""

    def __init__(self, broker: Broker, engine: Engine, keyvalue: KeyValue, sealed: SealedQueues) -> None:
        self._broker = broker
        self._engine = engine
        self._keyvalue = keyvalue
        self._sealed = sealed
        self.flows = Flows(broker, engine, keyvalue, sealed)
        self._learned: dict[str, int] = {}
        """When the encryption of a queue was last read."""

    # Settlements -------------------------------------------------------------------------------------------

    async def settle(
        self, items: Sequence[Settlement], plain: Callable[[Sequence[Settlement]], asyncio.Future[list[SettleOutcome]]]
    ) -> list[SettleOutcome]:
        """Settle messages. Each result is stored in one transaction with the settlement of its message.

        `plain` settles messages without a result.
        """
        queues = await self._broker.queue_lookup.queues_of([item.partition_id or item.transaction_id for item in items])
        await self._learn(queues)
        stored = {
            index: (item.task, queue)
            for index, (item, queue) in enumerate(zip(items, queues, strict=True))
            if item.task is not None and item.status == "completed" and queue is not None
        }
        others = [index for index in range(len(items)) if index not in stored]
        outcomes: list[SettleOutcome | None] = [None] * len(items)

        async def settle_others() -> None:
            if others:
                for index, outcome in zip(others, await plain([items[index] for index in others]), strict=True):
                    outcomes[index] = outcome

        async def settle_one(index: int, end: TaskEnd, queue: str) -> None:
            if end.flow is None:
                outcomes[index] = await self._settle(items[index], end, queue)
            else:
                outcomes[index] = await self.flows.settle(items[index], end.flow, queue, plain)

        # All at once, so that they share calls of the engine. Each must end before the answer is sent.
        ended = await asyncio.gather(
            settle_others(), *(settle_one(index, *end) for index, end in stored.items()), return_exceptions=True
        )
        for failure in ended:
            if isinstance(failure, BaseException):
                raise failure
        settled = [outcome for outcome in outcomes if outcome is not None]
        await self._note_failures(items, settled, queues)
        return settled

    async def _settle(self, item: Settlement, end: TaskEnd, queue: str) -> SettleOutcome:
        record = TaskRecord("cancelled" if end.state == "cancelled" else "done", msgspec.Raw(end.result))
        key = _key(queue, _partition(item), end.transaction_id)
        write = KeyWrite(mutations=[self._set(queue, key, record, end.ttl_ms)])
        outcome = await self._broker.transact(Transaction([item], keys=write))
        return _settled(item, outcome)

    async def _note_failures(
        self, items: Sequence[Settlement], outcomes: Sequence[SettleOutcome], queues: Sequence[str | None]
    ) -> None:
        """Notify those who wait for tasks that have just become dead letters."""
        dead = [
            KeyWrite(
                mutations=[
                    self._set(
                        queue,
                        _key(queue, _partition(item), item.task.transaction_id),
                        TaskRecord("failed"),
                        item.task.ttl_ms,
                    )
                ]
            )
            for item, outcome, queue in zip(items, outcomes, queues, strict=True)
            if outcome.dead_lettered and item.task is not None and queue is not None
        ]
        refs = [
            item.task.flow
            for item, outcome in zip(items, outcomes, strict=True)
            if outcome.dead_lettered and item.task is not None and item.task.flow is not None
        ]
        try:
            await asyncio.gather(*map(self._keyvalue.write_keys, dead), *map(self.flows.note_failure, refs))
        except HarkError as error:  # The messages are dead-lettered. A wait finds them a little later.
            log.warning("cannot notify consumers that wait for a failed task: %s", error)

    async def _learn(self, queues: Iterable[str | None]) -> None:
        now = self._keyvalue.watchers.timers.now()
        old = {queue for queue in queues if queue is not None and self._learned.get(queue, 0) <= now - _LEARN_AGAIN}
        if old and self._engine.shared:
            if len(self._learned) > _MOST_LEARNED:
                self._learned.clear()
            self._learned |= dict.fromkeys(old, now)
            await self._sealed.learn_of(old)

    def _set(self, queue: str, key: Key, record: TaskRecord, ttl_ms: int) -> KeyMutation:
        value = self._sealed.seal_bytes(queue, _encode(record))
        return KeyMutation(kind="set", key=key, value=value, ttl_ms=ttl_ms)

    # State -------------------------------------------------------------------------------------------------

    async def status(self, partition_id: str, transaction_id: str, wait_seconds: float = 0) -> TaskStatus:
        """The state of a task; with `wait_seconds`, when it has ended or after that time. Raises `NotFound`."""
        [queue] = await self._broker.queue_lookup.queues_of([partition_id])
        if queue is None:
            raise _unknown()
        key = _key(queue, partition_id, transaction_id)
        timers = self._keyvalue.watchers.timers
        deadline = timers.now() + round(wait_seconds * SECOND)
        while True:
            [entry] = await self._keyvalue.fetch([key])
            status = await self._status(queue, partition_id, transaction_id, entry)
            left = deadline - timers.now()
            if status.final or left <= 0:
                return status
            shown = {} if entry is None else {encode_key(key): Shown(key, entry.version)}
            watcher = await self._keyvalue.watchers.watch_keys([key], shown)
            await self._keyvalue.watchers.first_changes(watcher, min(left, _LOOK_AGAIN) / SECOND)

    async def _status(self, queue: str, partition_id: str, transaction_id: str, entry: KeyEntry | None) -> TaskStatus:
        record = self._record(queue, entry)
        if record is None or record.state in ("running", "failed"):
            view = await self._broker.message(partition_id, transaction_id)
            if view is not None and view.state == "completed":  # It may have ended after the record was read.
                [entry] = await self._keyvalue.fetch([_key(queue, partition_id, transaction_id)])
                record = self._record(queue, entry)
            if record is None or record.state in ("running", "failed"):
                return _status_of(view, record)
        done = record.state == "done"
        return TaskStatus(
            state="done" if done else "cancelled",
            result=record.result if done else None,
            progress=record.progress,
            note=record.note,
        )

    def _record(self, queue: str, entry: KeyEntry | None) -> TaskRecord | None:
        if entry is None:
            return None
        try:
            return _decode(self._sealed.shown_data(queue, entry.value))
        except msgspec.DecodeError:
            return None  # This server does not have the key of the queue.

    async def progress(
        self, partition_id: str, transaction_id: str, lease_id: str, progress: float | None, note: str | None
    ) -> None:
        """Record the progress of a running task. Raises `LeaseLost` if another consumer may have its message."""
        [queue] = await self._broker.queue_lookup.queues_of([partition_id])
        [end] = await self._engine.lease_ends([lease_id])
        if queue is None or end is None:
            raise LeaseLost("the lease of this task has ended; another consumer may run it")
        await self._learn([queue])
        key = _key(queue, partition_id, transaction_id)
        [entry] = await self._keyvalue.fetch([key])
        before = self._record(queue, entry)
        if before is not None and before.state in ("done", "cancelled"):
            return
        mutation = self._set(queue, key, TaskRecord("running", progress=progress, note=note), _PROGRESS_MS)
        # If the task has ended since then, its end must stay.
        check = KeyCheck(key, None if entry is None else entry.version)
        await self._keyvalue.write_keys(KeyWrite(checks=[check], mutations=[mutation]))

    # Cancellation ------------------------------------------------------------------------------------------

    async def cancel(self, message_id: str) -> Cancellation:
        """Remove a message that no consumer has received. The consumer of a leased one is notified by its renewal."""
        [facts] = await self._engine.explain([Explain(message_id)])
        [outcome] = await self._engine.cancel([message_id])
        if isinstance(facts, HarkError):
            return outcome
        message = facts.message
        if outcome == "cancelled" and message.transaction_id is not None:
            await self._learn([message.queue])
            key = _key(message.queue, message.partition_id, message.transaction_id)
            mark = self._set(message.queue, key, TaskRecord("cancelled"), _CANCELLED_MS)
            await self._keyvalue.write_keys(KeyWrite(mutations=[mark]))
        if outcome != "leased":
            return outcome
        leases = {group.lease.lease_id for group in facts.groups if group.lease is not None and not group.settled}
        if not leases:  # It was released, and has used an attempt.
            return "leased"
        marks = [
            KeyMutation(kind="set", key=(OWN, "cancel", lease, message_id), value=b"true", ttl_ms=_CANCELLED_MS)
            for lease in leases
        ]
        await self._keyvalue.write_keys(KeyWrite(mutations=marks))
        return "cancelling"

    async def renew(self, requests: Sequence[Renewal]) -> list[RenewOutcome | HarkError]:
        """Renew leases, and report with them which messages are to be cancelled."""
        outcomes = list(await self._engine.renew(requests))
        live = [index for index, one in enumerate(outcomes) if isinstance(one, RenewOutcome) and one.success]
        if not live:
            return outcomes
        marks = await self._engine.list_keys(
            [KeyRange(prefix=(OWN, "cancel", requests[index].lease_id), limit=_MOST_MARKS) for index in live]
        )
        for index, found in zip(live, marks, strict=True):
            outcome = outcomes[index]
            if found and isinstance(outcome, RenewOutcome):
                cancelled = tuple(str(entry.key[-1]) for entry in found)
                outcomes[index] = msgspec.structs.replace(outcome, cancelled=cancelled)
        return outcomes

    async def forget(self, queues: Sequence[str]) -> None:
        """Delete the records of tasks of deleted queues."""
        keys = [key for queue in queues for key in ((OWN, "task", queue), tree_of(queue))]
        trees = [KeyMutation(kind="delete_tree", key=key) for key in keys]
        await self._keyvalue.write_keys(KeyWrite(mutations=trees))


def _partition(item: Settlement) -> str:
    return item.partition_id or partition_id_of(item.transaction_id) or ""


def _unknown() -> NotFound:
    return NotFound("Message not found; it was removed, or its result has expired", code="message_not_found")


def _settled(item: Settlement, outcome: TransactionOutcome) -> SettleOutcome:
    """The outcome of the settlement of a transaction."""
    for result in outcome.results:
        if isinstance(result, SettleOutcome):
            return result
    return SettleOutcome(item.transaction_id, False, outcome.code, outcome.error)


def _status_of(view: MessageView | None, record: TaskRecord | None) -> TaskStatus:
    """The state of a task without a result, from its message."""
    if view is None:
        if record is None:
            raise _unknown()
        return TaskStatus(state="pending", progress=record.progress, note=record.note)  # It was requeued or removed.
    error = next((group.error for group in view.groups if group.error), None)
    return TaskStatus(
        state=_STATES.get(view.state) or ("scheduled" if view.state == "scheduled" else "pending"),
        error=error,
        attempts=max((group.attempts for group in view.groups), default=0),
        progress=None if record is None else record.progress,
        note=None if record is None else record.note,
    )
