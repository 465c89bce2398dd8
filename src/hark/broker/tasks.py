"""Tasks: results that are stored with the settlement, progress, and cancellation of running tasks.

Hark keeps a record of a task under a key of its own, below the name of the queue. It is encrypted as the queue is, and
deleted with the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from hark.api.types.tasks import TaskStatus
from hark.broker.flows import ENDED, Flows
from hark.broker.keyvalue import KeyValue
from hark.broker.sealing import SealedQueues
from hark.clock import MILLISECOND, SECOND
from hark.engine.api import Engine
from hark.engine.keyvalue import REPEATED
from hark.errors import HarkError, InvalidInput, LeaseLost, NotFound
from hark.ids import has_location, is_before, partition_id_of
from hark.model import (
    OWN,
    DeadLetterFilter,
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
_REQUEUED_MS = 7 * 24 * HOUR // MILLISECOND
"""How long it is known that a task was requeued, unless it ends before."""
_LETTERS_AT_ONCE = 100
_CANCELLED_MS = HOUR // MILLISECOND
"""How long a cancellation is kept."""
_MOST_MARKS = 1000
_PARTITION = 13
"""The characters of an id that say the partition. A restored store has ids that end with another tag."""
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
    message: str = ""
    """The id of the message of this run, if it is known. A requeued dead letter has a new one."""


class _Envelope(msgspec.Struct, rename="camel"):
    """The part of a task's payload that the broker reads."""

    transaction_id: str | None = None
    """That of the first run: a requeued dead letter has another one."""
    result_ttl: int | None = None


_decode = msgspec.json.Decoder(TaskRecord).decode
_encode = msgspec.json.Encoder().encode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


def _key(queue: str, partition_id: str, transaction_id: str) -> Key:
    return (OWN, "task", queue, partition_id[:_PARTITION], transaction_id)


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
        failing = {
            index: _key(queue, _partition(item), item.task.transaction_id)
            for index, (item, queue) in enumerate(zip(items, queues, strict=True))
            if item.task is not None and item.status != "completed" and queue is not None
        }
        before = dict(zip(failing, await self._keyvalue.fetch(list(failing.values())), strict=True)) if failing else {}
        writes = {index: self._end(items[index], *end) for index, end in stored.items() if end[0].flow is None}
        outcomes: dict[int, SettleOutcome] = {}

        async def settle_others() -> None:
            if others:
                outcomes.update(zip(others, await plain([items[index] for index in others]), strict=True))

        async def settle_with(indexes: Sequence[int]) -> None:
            mutations = [writes[index] for index in indexes]
            settled = [items[index] for index in indexes]
            outcome = await self._broker.transact(Transaction(settled, keys=KeyWrite(mutations=mutations), once=True))
            if outcome.success:
                outcomes.update((index, _settled(items[index], outcome, at)) for at, index in enumerate(indexes))
            elif len(indexes) > 1:  # Nothing was changed. One of them was refused, and must not affect the others.
                await _together([settle_with([index]) for index in indexes])
            elif outcome.code == REPEATED and await self._is_stored(settled[0], *stored[indexes[0]]):
                [outcomes[indexes[0]]] = await plain(settled)
            else:
                outcomes[indexes[0]] = _settled(settled[0], outcome)

        steps = {index: (end.flow, queue) for index, (end, queue) in stored.items() if end.flow is not None}

        async def settle_steps() -> None:
            settled = await self.flows.settle([(items[index], *step) for index, step in steps.items()], plain)
            outcomes.update(zip(steps, settled, strict=True))

        # At once, so that they share calls of the engine. Each must end before the answer is sent.
        await _together(
            [settle_others(), *([settle_with(list(writes))] if writes else []), *([settle_steps()] if steps else [])]
        )
        for index, entry in before.items():
            end, queue = items[index].task, queues[index]
            if outcomes[index].dead_lettered and end is not None and queue is not None:
                await self._note_failure(items[index], end, queue, entry)
        return [outcomes[index] for index in range(len(items))]

    async def _is_stored(self, item: Settlement, end: TaskEnd, queue: str) -> bool:
        """Whether a completed task ended as this settlement says: then it repeats one whose answer was lost.

        Else a consumer whose lease has ended comes after its successor.
        """
        [entry] = await self._keyvalue.fetch([_key(queue, _partition(item), end.transaction_id)])
        return self._record(queue, entry) in (None, _record_of(item, end))

    def _end(self, item: Settlement, end: TaskEnd, queue: str) -> KeyMutation:
        """The write of the result of a task."""
        key = _key(queue, _partition(item), end.transaction_id)
        return self._set(queue, key, _record_of(item, end), end.ttl_ms)

    async def _note_failure(self, item: Settlement, end: TaskEnd, queue: str, before: KeyEntry | None) -> None:
        """Notify those who wait for a task that has just become a dead letter."""
        key = _key(queue, _partition(item), end.transaction_id)
        # A requeued run may have ended meanwhile: its end must stay.
        check = KeyCheck(key, None if before is None else before.version)
        mark = self._set(queue, key, TaskRecord("failed", message=_run_of(item)), end.ttl_ms)
        try:
            await self._keyvalue.write_keys(KeyWrite(checks=[check], mutations=[mark]))
            if end.flow is not None:
                await self.flows.note_failure(end.flow)
        except HarkError as error:  # The message is dead-lettered. A wait finds it a little later.
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

    async def status(
        self,
        partition_id: str,
        transaction_id: str,
        wait_seconds: float = 0,
        *,
        group: str | None = None,
        message_id: str = "",
    ) -> TaskStatus:
        """The state of a task; with `wait_seconds`, when it has ended or after that time. Raises `NotFound`.

        `group` is the group of its workers (None: any). `message_id` excludes an earlier task with the same transaction
        id, whose result can still be stored.
        """
        [queue] = await self._broker.queue_lookup.queues_of([partition_id])
        if queue is None:
            raise _unknown()
        key = _key(queue, partition_id, await self._first_id(partition_id, transaction_id))
        timers = self._keyvalue.watchers.timers
        deadline = timers.now() + round(wait_seconds * SECOND)
        while True:
            [entry] = await self._keyvalue.fetch([key])
            status, entry, _ = await self._status(queue, partition_id, key, entry, group, message_id)
            left = deadline - timers.now()
            if status.state in ENDED or left <= 0:
                return status
            await self._keyvalue.watchers.wait_for_change([key], [entry], min(left, _LOOK_AGAIN) / SECOND)

    async def run(self, partition_id: str, transaction_id: str) -> tuple[TaskStatus, str]:
        """The state of a task, and the id of the message that it is now. Raises `NotFound`."""
        [queue] = await self._broker.queue_lookup.queues_of([partition_id])
        if queue is None:
            raise _unknown()
        key = _key(queue, partition_id, transaction_id)
        [entry] = await self._keyvalue.fetch([key])
        status, _, message_id = await self._status(queue, partition_id, key, entry, None, "")
        return status, message_id

    async def _status(
        self, queue: str, partition_id: str, key: Key, entry: KeyEntry | None, group: str | None, message_id: str
    ) -> tuple[TaskStatus, KeyEntry | None, str]:
        """The state, the record that it comes from, and the id of the message that was looked at."""
        transaction_id = str(key[-1])
        while True:
            record = self._record(queue, entry)
            if record is not None and is_before(record.message, message_id):
                record = None
            if record is not None and record.state in ("done", "cancelled"):
                result = record.result if record.state == "done" else msgspec.UNSET
                status = TaskStatus(state=record.state, result=result, progress=record.progress, note=record.note)
                return status, entry, record.message
            name = transaction_id if record is None or not record.message else record.message
            view = await self._broker.message(partition_id, name)
            found = None if view is None else (_status_of(view, record, group), entry, view.id)
            if found is not None and found[0].state not in ENDED:
                return found
            # It may have ended, or was requeued, after the record was read.
            [again] = await self._keyvalue.fetch([key])
            if (again and again.version) == (entry and entry.version):
                if found is None:
                    raise _unknown()
                return found
            entry = again

    async def _first_id(self, partition_id: str, transaction_id: str) -> str:
        """The transaction id of the first run of a task, from the one of any run or from a message id."""
        if not has_location(transaction_id):
            return transaction_id
        view = await self._broker.message(partition_id, transaction_id)
        if view is None:
            return transaction_id
        envelope = None if view.payload is None else _envelope(view.payload)
        return (envelope and envelope.transaction_id) or view.transaction_id

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
        key = _key(queue, partition_id, await self._first_id(partition_id, transaction_id))
        [entry] = await self._keyvalue.fetch([key])
        before = self._record(queue, entry)
        if before is not None and before.state in ("done", "cancelled"):
            return
        run = "" if before is None else before.message
        record = TaskRecord("running", progress=progress, note=note, message=run)
        mutation = self._set(queue, key, record, _PROGRESS_MS)
        # If the task has ended since then, its end must stay.
        check = KeyCheck(key, None if entry is None else entry.version)
        await self._keyvalue.write_keys(KeyWrite(checks=[check], mutations=[mutation]))

    # Cancellation ------------------------------------------------------------------------------------------

    async def cancel(self, message_id: str) -> Cancellation:
        """Remove a message that no consumer has now. The consumer of a leased one is notified by its renewal."""
        [facts] = await self._engine.explain([Explain(message_id)])
        if isinstance(facts, HarkError):
            return "not_found"
        message = facts.message
        first = await self._first_id(message.partition_id, message_id)  # Not known any more once it is removed.
        [outcome] = await self._engine.cancel([message_id])
        if outcome == "leased":
            [facts] = await self._engine.explain([Explain(message_id)])
            if isinstance(facts, HarkError):
                return "not_found"
            if any(
                group.settled for group in facts.groups
            ):  # Engines differ where one group settled, and another holds.
                return "settled"
            leases = {group.lease.lease_id for group in facts.groups if group.lease is not None}
            if leases:
                marks = [
                    KeyMutation(kind="set", key=(OWN, "cancel", lease, message_id), value=b"true", ttl_ms=_CANCELLED_MS)
                    for lease in leases
                ]
                await self._keyvalue.write_keys(KeyWrite(mutations=marks))
                return "cancelling"
            [deleted] = await self._engine.delete_messages([message_id])  # It waits for a retry.
            outcome = "cancelled" if deleted else "not_found"
        if outcome == "cancelled":
            await self._learn([message.queue])
            key = _key(message.queue, message.partition_id, first)
            mark = self._set(message.queue, key, TaskRecord("cancelled", message=message_id), _CANCELLED_MS)
            await self._keyvalue.write_keys(KeyWrite(mutations=[mark]))
        return outcome

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

    # Dead letters ------------------------------------------------------------------------------------------

    async def requeue(self, ids: Sequence[str]) -> list[str | HarkError]:
        """Requeue dead letters by their ids. Those who wait for a task then wait for its new run."""
        answers: list[str | HarkError] = []
        at_once = _LETTERS_AT_ONCE
        while len(answers) < len(ids):
            try:
                answers += await self._requeue(ids[len(answers) : len(answers) + at_once])
            except InvalidInput:  # They are too large to be read together.
                if at_once == 1:
                    raise
                at_once = 1
        return answers

    async def _requeue(self, ids: Sequence[str]) -> list[str | HarkError]:
        page = await self._broker.dead_letters(DeadLetterFilter(ids=ids, limit=2 * len(ids)))
        letters = {letter.id: letter for letter in page.items}
        keys: dict[str, Key] = {}
        for one, letter in letters.items():
            envelope = _envelope(letter.payload)
            if envelope is not None and envelope.transaction_id and envelope.result_ttl:
                keys[one] = _key(letter.queue, letter.partition_id, envelope.transaction_id)
        entries = dict(zip(keys, await self._keyvalue.fetch(list(keys.values())), strict=True)) if keys else {}
        answers = list(await self._engine.requeue(ids))
        await self._learn({letters[one].queue for one in keys})
        marks = []
        for one, answer in zip(ids, answers, strict=True):
            if one in keys and not isinstance(answer, HarkError):
                entry = entries[one]
                # If the new run has ended already, its end must stay.
                check = KeyCheck(keys[one], None if entry is None else entry.version)
                record = TaskRecord("running", message=answer)
                mark = self._set(letters[one].queue, keys[one], record, _REQUEUED_MS)
                marks.append(KeyWrite(checks=[check], mutations=[mark]))
        await asyncio.gather(*map(self._keyvalue.write_keys, marks))
        return answers


def _partition(item: Settlement) -> str:
    return item.partition_id or partition_id_of(item.transaction_id) or ""


def _record_of(item: Settlement, end: TaskEnd) -> TaskRecord:
    """The record of a task that was completed or cancelled."""
    state: Literal["done", "cancelled"] = "cancelled" if end.state == "cancelled" else "done"
    return TaskRecord(state, msgspec.Raw(end.result), message=_run_of(item))


def _run_of(item: Settlement) -> str:
    """The id of the settled message, if the settlement names it."""
    return item.transaction_id if has_location(item.transaction_id) else ""


def _envelope(payload: msgspec.Raw) -> _Envelope | None:
    """What a payload says about its task; None if it has no task."""
    try:
        return _decode_envelope(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _unknown() -> NotFound:
    return NotFound("Message not found; it was removed, or its result has expired", code="message_not_found")


async def _together(calls: Sequence[Awaitable[None]]) -> None:
    """Wait until all have ended, then raise the error of the first that failed."""
    for failure in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(failure, BaseException):
            raise failure


def _settled(item: Settlement, outcome: TransactionOutcome, index: int = 0) -> SettleOutcome:
    """The outcome of one settlement of a transaction."""
    result = outcome.results[index] if outcome.results else None
    if isinstance(result, SettleOutcome):
        return result
    return SettleOutcome(item.transaction_id, False, outcome.code, outcome.error)


def _status_of(view: MessageView, record: TaskRecord | None, group: str | None) -> TaskStatus:
    """The state of a task without a result, from its message."""
    groups = [one for one in view.groups if group in (None, one.group)]
    state = view.state
    if group is not None:  # A group that has never asked for messages has no state yet.
        state = groups[0].state if groups else "scheduled" if view.state == "scheduled" else "pending"
    return TaskStatus(
        state=_STATES.get(state) or ("scheduled" if state == "scheduled" else "pending"),
        error=next((one.error for one in groups if one.error), None),
        attempts=max((one.attempts for one in groups), default=0),
        progress=None if record is None else record.progress,
        note=None if record is None else record.note,
    )
