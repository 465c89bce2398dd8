"""The verbs settle, transact, expire and release: which settlements are valid, and their effects (rule 12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from hark.clock import MILLISECOND
from hark.engine.api import Answers
from hark.engine.core.position import Lease, LeasedMessage, Position, Retry, Stored
from hark.engine.core.push import (
    NOT_YET,
    Known,
    PartitionsByName,
    find_duplicates,
    find_message,
    find_partitions,
    is_of_new_partition,
    push_all,
    room_left,
)
from hark.engine.core.state import Partition, Queue
from hark.engine.core.store import scalar
from hark.engine.core.transaction import WriteTransaction
from hark.engine.hints import DEAD, EXPIRED, NOT_FOUND, NOT_LEASED, SUPERSEDED, refusal_of
from hark.engine.keyvalue import joined, parted, repeated
from hark.model import Ending, NewMessage, PushOutcome, Settlement, SettleOutcome, Transaction, TransactionOutcome
from hark.model.messages import RESERVED


class SettleDecision(NamedTuple):
    """Whether a settlement is valid, and the message that it concerns."""

    position: Position | None
    leased: LeasedMessage | None
    """None without a refusal: the message was completed before."""
    refusal: tuple[str, str] | None


class SettleAuthorizer(msgspec.Struct, eq=False):
    """Checks settlements against the current leases. It changes nothing."""

    _transaction: WriteTransaction
    _required: Sequence[str] | None = None
    """The required leases of a transaction, if any; None for a request of `settle`."""
    _once: bool = False
    """Whether the transaction is refused if a settlement repeats an earlier one, under whichever lease."""
    _positions: dict[tuple[str, str], Position | None] = {}

    def authorize(self, item: Settlement) -> SettleDecision:
        """Check one settlement."""
        transaction, key = self._transaction, (item.partition_id, item.group)
        state = transaction.state
        position = self._positions.get(key)
        if position is None and key not in self._positions:  # A missing one costs a search, so it is kept too.
            partition = state.partitions_by_uid.get(item.partition_id) or self._partition(item)
            if partition is not None:
                names = (partition.queue.name, item.group)
                group = state.groups.get(names) or transaction.loader.group(*names)
                if group is not None:
                    position = group.positions.get(partition.id) or transaction.loader.position(group, partition.id)
            if item.partition_id:
                self._positions[key] = position
        if position is None:
            partition = state.partitions_by_uid.get(item.partition_id) or self._partition(item)
            known = partition is not None and self._message(partition, item.transaction_id) is not None
            return SettleDecision(None, None, NOT_LEASED if known else NOT_FOUND)
        leased = position.find_leased(item.transaction_id, state.codec)
        if leased is None:
            return self._not_leased(position, item)
        lease = leased[1]
        if item.lease_id:
            if lease.id != item.lease_id:
                return self._not_leased(position, item)
        elif self._required and lease.id not in self._required:
            return SettleDecision(position, None, SUPERSEDED)
        if lease.expires_at <= transaction.now or lease.id not in state.leases:
            return SettleDecision(position, None, EXPIRED)
        return SettleDecision(position, leased, None)

    def _partition(self, item: Settlement) -> Partition | None:
        """The partition by its id, or by the message id, which contains it."""
        address = self._transaction.state.codec.decode(item.partition_id or item.transaction_id)
        if address is None or bool(address.offset) is bool(item.partition_id):
            return None
        return self._transaction.loader.partition(address.partition)

    def _not_leased(self, position: Position, item: Settlement) -> SettleDecision:
        """The slow path: the lease has ended, the message was settled before, or it never existed."""
        message = self._message(position.partition, item.transaction_id)
        if message is None:
            return self._removed(position, item)
        if position.is_settled(message):
            if self._is_dead(position, message.offset):
                return SettleDecision(position, None, DEAD)
            if item.status == "completed" and self._may_repeat(position, message.offset, item.lease_id):
                return SettleDecision(position, None, None)
        if not item.lease_id:
            return SettleDecision(position, None, NOT_LEASED)
        expired = item.lease_id in self._transaction.state.expired_leases
        return SettleDecision(position, None, EXPIRED if expired else SUPERSEDED)

    def _removed(self, position: Position, item: Settlement) -> SettleDecision:
        """The decision about a message that is not stored. The message id shows whether it ever existed."""
        address = self._transaction.state.codec.decode(item.transaction_id)
        if (
            address is None
            or address.partition != position.partition.id
            or not 0 < address.offset <= position.partition.tail
        ):
            return SettleDecision(position, None, NOT_FOUND)
        if self._is_dead(position, address.offset):
            return SettleDecision(position, None, DEAD)
        was_removed = (position.group.id, *address) in self._transaction.state.removed
        if item.status != "completed" or was_removed:
            return SettleDecision(position, None, NOT_FOUND)
        return SettleDecision(
            position, None, None if self._may_repeat(position, address.offset, item.lease_id) else SUPERSEDED
        )

    def _may_repeat(self, position: Position, offset: int, lease_id: str | None) -> bool:
        """Whether a second completion succeeds: always in `settle`; in a transaction only under the same lease."""
        if self._required is None or self._once:
            return True
        transaction, key = self._transaction, (position.group.id, position.partition.id, offset)
        lease: str | None = transaction.completed.get(key) or transaction.state.completed.get(key)
        if lease is None:
            sql = "select lease from completions where grp = ?1 and partition = ?2 and offset = ?3"
            lease = scalar(transaction.connection, sql, *key)
        return lease is not None and (lease == lease_id or (lease_id is None and lease in self._required))

    def _message(self, partition: Partition, name: str) -> Stored | None:
        message = find_message(self._transaction, partition.id, name)
        return None if message is None or message.offset <= partition.floor else message

    def _is_dead(self, position: Position, offset: int) -> bool:
        self._transaction.save_dead_letters()  # It may be dead-lettered in this transaction.
        sql = "select 1 from dead_letters where partition = ?1 and offset = ?2 and grp = ?3"
        return scalar(self._transaction.connection, sql, position.partition.id, offset, position.group.name) is not None


def settle(transaction: WriteTransaction, requests: Sequence[Sequence[Settlement]]) -> list[list[SettleOutcome]]:
    """Settle the messages of each request. All items of a request are checked against the leases before it."""
    answers = []
    for request in requests:
        authorizer = SettleAuthorizer(transaction)
        decisions = [authorizer.authorize(item) for item in request]
        answers.append([apply(transaction, item, decision) for item, decision in zip(request, decisions, strict=True)])
    return answers


def apply(transaction: WriteTransaction, item: Settlement, decision: SettleDecision) -> SettleOutcome:
    """Apply a checked settlement."""
    position = decision.position
    if decision.refusal is not None or position is None:
        code, text = decision.refusal or NOT_FOUND
        names = (None, None) if position is None else (position.group.queue_name, position.partition.name)
        return SettleOutcome(item.transaction_id, False, code, text, *names)
    partition = position.partition
    outcome = SettleOutcome(item.transaction_id, True, None, None, position.group.queue_name, partition.name)
    leased = decision.leased
    draft = position.draft or position.start_draft(transaction)
    if leased is None or leased[3] in draft.gone:
        # Completed before, or named twice in one request: the first settlement counts.
        return outcome
    offset, lease, _, _ = leased
    outcome.lease_id = lease.id
    if item.status == "completed":
        transaction.settle(position, offset)
        transaction.completed[position.group.id, partition.id, offset] = lease.id
    elif item.status == "dlq":
        retry = position.retry_of(offset)
        attempts = (retry.attempts if retry else 0) + 1
        text = item.error or "Sent to the dead letters by its consumer"
        outcome.dead_lettered = dead_letter(
            transaction, position, offset, attempts, text, transaction.now, exhausted=False, always=item.damaged
        )
    elif item.status == "retry":
        retry = position.retry_of(offset)
        due = transaction.now + (item.delay_ms or 0) * MILLISECOND
        draft.wait(offset, Retry(retry.attempts if retry else 0, due, retry.error if retry else None))
    else:
        error = item.error or "Failed without an error text"
        outcome.dead_lettered = fail(
            transaction, position, leased, error, transaction.now, item.delay_ms, item.default_delay_ms
        )
    draft.gone.add(leased[3])
    # A failure releases the partition at once (rule 14).
    outcome.lease_released = transaction.release(position, lease, at_once=item.status != "completed")
    return outcome


def _is_bare(queue: Queue) -> bool:
    """Whether the options of the queue set no delays between retries. A maximum of 0 says that there are none."""
    return not any(queue.schedule) and queue.info.options.retry_max_delay > 0


def fail(
    transaction: WriteTransaction,
    position: Position,
    leased: LeasedMessage,
    error: str,
    at: int,
    delay_ms: int | None = None,
    default_delay_ms: int | None = None,
) -> bool:
    """Use one attempt of a message: schedule a retry, or end it. True: it is a dead letter (rule 14).

    `delay_ms` replaces the delay of the retry schedule, `default_delay_ms` that of a queue whose schedule has none.
    """
    draft = transaction.draft(position)
    offset, _, schedule, _ = leased
    delays = position.partition.queue.schedule if schedule is None else schedule
    retry = position.retry_of(offset)
    attempts = (retry.attempts if retry else 0) + 1
    if attempts > len(delays):
        return dead_letter(transaction, position, offset, attempts, error, at, exhausted=True)
    if delay_ms is None and schedule is None and _is_bare(position.partition.queue):
        delay_ms = default_delay_ms
    delay = delays[attempts - 1] if delay_ms is None else delay_ms
    draft.wait(offset, Retry(attempts, at + delay * MILLISECOND, error))
    return False


def dead_letter(
    transaction: WriteTransaction,
    position: Position,
    offset: int,
    attempts: int,
    error: str,
    failed_at: int,
    *,
    exhausted: bool,
    always: bool = False,
) -> bool:
    """Settle an undeliverable message, as a dead letter if the queue keeps them, or `always` (rule 18)."""
    partition, state = position.partition, transaction.state
    queue, options = partition.queue.name, partition.queue.info.options
    transaction.settle(position, offset)
    transaction.key_book().set_undelivered(partition.id, offset, queue)
    keeps = always or (options.dead_letter_queue and (options.dlq_after_max_retries or not exhausted))
    if keeps:
        address = (queue, partition.id, partition.name, position.group.name, offset)
        transaction.dead.append((transaction.ids.new(), *address, attempts, error, failed_at))
    else:
        transaction.count(queue, "discarded")
        ending = Ending("discarded", failed_at, attempts, error)
        transaction.on_commit(lambda: state.note_ending(position, offset, ending))
    return keeps


def transact(transaction: WriteTransaction, requests: Sequence[Transaction]) -> Answers[TransactionOutcome]:
    """Apply each transaction completely or not at all. Everything is checked before anything is changed.

    On a full disk, transactions that only settle and delete are still applied, because they free space.
    """
    refusal = transaction.state.refusal()
    return [
        parted(request, _transact(transaction, joined(request))) if refusal is None or not _adds(request) else refusal
        for request in requests
    ]


def _adds(request: Transaction) -> bool:
    keys = request.keys
    return any(isinstance(one, NewMessage) for one in request.operations) or (
        keys is not None and (bool(keys.messages) or not all(one.kind.startswith("delete") for one in keys.mutations))
    )


def _transact(transaction: WriteTransaction, request: Transaction) -> TransactionOutcome:
    for lease_id in request.required_leases:
        lease = transaction.state.leases.get(lease_id)
        if lease is None or lease.expires_at <= transaction.now or not _holds(lease):
            code, text = EXPIRED if lease_id in transaction.state.expired_leases else SUPERSEDED
            return TransactionOutcome(False, (), code, f"{text} (required lease {lease_id})")
    authorizer = SettleAuthorizer(transaction, request.required_leases, request.once)
    decisions: dict[int, SettleDecision] = {}
    for index, operation in enumerate(request.operations):
        if isinstance(operation, Settlement):
            decision = decisions[index] = authorizer.authorize(operation)
            if decision.refusal is not None:
                code, text = decision.refusal
                refused = apply(transaction, operation, decision)
                return TransactionOutcome(False, [refused], code, f"ACK operation failed: {text}", index)
            if request.once and _is_repeated(decision):
                return repeated(index, operation)
    pushes = [operation for operation in request.operations if isinstance(operation, NewMessage)]
    names = [(item.queue, item.partition) for item in pushes]
    partitions = find_partitions(transaction, names, make=False)
    old = [item for item in pushes if (item.queue, item.partition) in partitions]
    known = find_duplicates(transaction, old, [partitions[item.queue, item.partition] for item in old])
    refusal = _refuse_pushes(transaction, request, partitions, known)
    if refusal is not None:
        return refusal
    # Keys come first, so the payload of a message that is dead-lettered here overwrites them (`keysIfUndelivered`).
    written = None if request.keys is None else transaction.key_book().write(request.keys)
    if isinstance(written, TransactionOutcome):
        return written
    if len(old) < len(pushes):  # What is new has no duplicates.
        partitions = find_partitions(transaction, names, messages=pushes)
    pushed = iter(push_all(transaction, pushes, [partitions[name] for name in names], known))
    results: list[PushOutcome | SettleOutcome] = []
    for index, operation in enumerate(request.operations):
        if isinstance(operation, Settlement):
            decision = decisions[index]
            outcome = apply(transaction, operation, decision)
            results.append(outcome)
            if operation.status == "completed" and outcome.lease_id is not None and not request.once:
                assert decision.position is not None and decision.leased is not None
                key = (decision.position.group.id, decision.position.partition.id, decision.leased[0])
                transaction.kept.append((*key, outcome.lease_id, transaction.now))
        else:
            results.append(next(pushed))
    return TransactionOutcome(True, results, keys=written)


def _is_repeated(decision: SettleDecision) -> bool:
    """Whether a valid settlement changes nothing, also because of another one in the running transaction."""
    draft = None if decision.position is None else decision.position.draft
    return decision.leased is None or (draft is not None and decision.leased[3] in draft.gone)


def _holds(lease: Lease) -> bool:
    return any(
        part.open > 0 and not (position.draft is not None and position.draft.voided)
        for position, part in lease.parts.items()
    )


def _refuse_pushes(
    transaction: WriteTransaction, request: Transaction, partitions: PartitionsByName, known: Known
) -> TransactionOutcome | None:
    """The failure of a transaction if one of its pushes must be rejected. It creates nothing."""
    seen: set[tuple[str, str, str]] = set()
    wanted: dict[str, int] = {}
    for index, operation in enumerate(request.operations):
        if not isinstance(operation, NewMessage):
            continue
        partition = partitions.get((operation.queue, operation.partition))
        if operation.transaction_id is not None:
            key = (operation.queue, operation.partition, operation.transaction_id)
            if (
                is_of_new_partition(transaction, operation.transaction_id)
                if partition is None
                else known.get((partition.id, operation.transaction_id)) == NOT_YET
            ):
                return _refused_push(RESERVED, operation.queue, index)
            is_stored = partition is not None and (
                (partition.id, operation.transaction_id) in known
                or (partition.id, operation.transaction_id) in transaction.new_transaction_ids
            )
            if is_stored and request.once:
                return repeated(index, operation)
            if is_stored or key in seen:
                continue
            seen.add(key)
        queue = transaction.state.queues.get(operation.queue)
        if operation.sealed is not (queue is not None and queue.info.options.encryption_enabled):
            return _refused_push("sealing_mismatch", operation.queue, index)
        if queue is not None and queue.info.options.max_size:
            wanted[queue.name] = wanted.get(queue.name, 0) + 1
            if wanted[queue.name] > room_left(transaction, queue):
                return _refused_push("queue_full", queue.name, index)
    return None


def _refused_push(code: str, queue: str, index: int) -> TransactionOutcome:
    return TransactionOutcome(False, (), code, f"PUSH operation failed: {refusal_of(code, queue)[1]}", index)


EXPIRED_TEXT = "Lease expired: the consumer neither settled nor renewed in time"


def expire(transaction: WriteTransaction, limit: int) -> None:
    """Expire at most `limit` due leases, as of their expiry time (rule 16)."""
    while transaction.expired < limit:
        lease = transaction.state.pop_expired(transaction.now)
        if lease is None:
            break
        # Later settlements in this transaction must be rejected.
        transaction.state.note_expired(lease)
        _end(transaction, lease)
        for position in lease.parts:
            for leased in transaction.draft(position).expire(lease, position.leased_by(lease)):
                if fail(transaction, position, leased, EXPIRED_TEXT, lease.expires_at, delay_ms=0):
                    transaction.state.expiries_dead_lettered += 1
            transaction.state.expiring.add(position.group)
        transaction.expired += 1


def _end(transaction: WriteTransaction, lease: Lease) -> None:
    """Notify of the end of a lease in all its positions."""
    for position in lease.parts:
        transaction.hints.ended(position.group.queue_name, position.group.name, lease.id)


def release(transaction: WriteTransaction, lease_ids: Sequence[str]) -> None:
    """Release the messages of leases as if they had not been delivered (rule 17)."""
    for lease_id in lease_ids:
        lease = transaction.state.leases.pop(lease_id, None)
        if lease is None:
            continue
        _end(transaction, lease)
        for position in lease.parts:
            transaction.draft(position).give_back(lease, position.leased_by(lease))


def settle_leased(transaction: WriteTransaction, lease: Lease, position: Position) -> None:
    """Complete all messages of a lease on a position (auto-ack)."""
    leased = position.leased_by(lease)
    transaction.draft(position).give_back(lease, leased)
    for offset, *_ in leased:
        transaction.settle(position, offset)
