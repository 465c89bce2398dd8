"""The verbs settle and transact: who may settle what, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence

from hark.clock import MILLISECOND
from hark.engine.sqlite.places import find_message, find_partitions
from hark.engine.sqlite.push import find_duplicates, push_all, room_left
from hark.engine.sqlite.state import Partition
from hark.engine.sqlite.store import scalar
from hark.engine.sqlite.track import Held, Lease, Retry, Track
from hark.engine.sqlite.transaction import WriteTransaction
from hark.model import NewMessage, PushOutcome, Settlement, SettleOutcome, Transaction, TransactionOutcome

NOT_FOUND = ("not_found", "Message not found")
EXPIRED = ("lease_expired", "Invalid or expired lease: its time is up")
SUPERSEDED = (
    "lease_invalid",
    "Invalid or expired lease: the message was not last delivered under this lease",
)
NOT_LEASED = ("not_leased", "Invalid or expired lease: the group does not hold this message")
DEAD = ("dead_lettered", "The message is in the dead letters already")


class Verdict:
    """Whether a settlement counts, and for what."""

    __slots__ = ("held", "refusal", "track")

    def __init__(self, track: Track | None, held: Held | None, refusal: tuple[str, str] | None) -> None:
        self.track = track
        self.held = held
        """None with no refusal: completed already."""
        self.refusal = refusal


class Judge:
    """Judges settlements by the leases as they stand, changing nothing."""

    def __init__(self, transaction: WriteTransaction, required_leases: Sequence[str] = ()) -> None:
        self._transaction = transaction
        self._required = frozenset(required_leases)
        self._tracks: dict[tuple[str, str], Track | None] = {}

    def judge(self, item: Settlement) -> Verdict:
        """Whether a settlement counts (rule 12)."""
        key = (item.partition_id, item.group)
        track = self._tracks.get(key)
        if track is None:
            if key not in self._tracks:
                track = self._tracks[key] = self._find_track(item)
            if track is None:
                return self._without_track(item)
        held = track.held.get(item.transaction_id)
        if held is None or (
            track.draft is not None and (track.draft.voided or item.transaction_id in track.draft.gone)
        ):
            return self._not_held(track, item)
        lease = held[1]
        if item.lease_id:
            if lease.id != item.lease_id:
                return self._not_held(track, item)
        elif self._required and lease.id not in self._required:
            return Verdict(track, None, SUPERSEDED)
        if lease.expires_at <= self._transaction.now or lease.id not in self._transaction.state.leases:
            return Verdict(track, None, EXPIRED)
        return Verdict(track, held, None)

    def partition(self, partition_id: str) -> Partition | None:
        """The partition that an id stands for."""
        partition = self._transaction.state.partitions_by_uid.get(partition_id)
        if partition is not None:
            return partition
        place = self._transaction.state.codec.decode(partition_id)
        return None if place is None or place.offset else self._transaction.loader.partition(place.partition)

    def _find_track(self, item: Settlement) -> Track | None:
        partition = self.partition(item.partition_id)
        if partition is None:
            return None
        state = self._transaction.state
        group = state.groups.get((partition.queue.name, item.group))
        if group is None:
            self._transaction.loader.groups(partition.queue.name)
            group = state.groups.get((partition.queue.name, item.group))
            if group is None:
                return None
        return self._transaction.loader.track(group, partition.id)

    def _without_track(self, item: Settlement) -> Verdict:
        partition = self.partition(item.partition_id)
        known = partition is not None and self._offset(partition, item.transaction_id) is not None
        return Verdict(None, None, NOT_LEASED if known else NOT_FOUND)

    def _not_held(self, track: Track, item: Settlement) -> Verdict:
        """The slow path: a lease that ended, a message settled before, or one that never was."""
        offset = self._offset(track.partition, item.transaction_id)
        if offset is None:
            return Verdict(track, None, NOT_FOUND)
        if track.is_settled(offset):
            if self._is_dead(track, offset):
                return Verdict(track, None, DEAD)
            if item.status == "completed":
                return Verdict(track, None, None)
        if not item.lease_id:
            return Verdict(track, None, NOT_LEASED)
        expired = item.lease_id in self._transaction.state.expired_leases
        return Verdict(track, None, EXPIRED if expired else SUPERSEDED)

    def _offset(self, partition: Partition, transaction_id: str) -> int | None:
        place = find_message(self._transaction, partition.id, transaction_id)
        return None if place is None or place.offset <= partition.floor else place.offset

    def _is_dead(self, track: Track, offset: int) -> bool:
        sql = "select 1 from dead_letters where partition = ?1 and offset = ?2 and grp = ?3"
        return scalar(self._transaction.connection, sql, track.partition.id, offset, track.group.name) is not None


def settle(transaction: WriteTransaction, requests: Sequence[Sequence[Settlement]]) -> list[list[SettleOutcome]]:
    """Settle the messages of each request, judged by the leases as they stood before it."""
    answers = []
    for request in requests:
        judge = Judge(transaction)
        verdicts = [judge.judge(item) for item in request]
        answers.append([apply(transaction, item, verdict) for item, verdict in zip(request, verdicts, strict=True)])
    return answers


def apply(transaction: WriteTransaction, item: Settlement, verdict: Verdict) -> SettleOutcome:
    """Carry a settlement out."""
    track = verdict.track
    if verdict.refusal is not None or track is None:
        code, text = verdict.refusal or NOT_FOUND
        names = (None, None) if track is None else (track.group.queue_name, track.partition.name)
        return SettleOutcome(item.transaction_id, False, code, text, *names)
    partition = track.partition
    outcome = SettleOutcome(item.transaction_id, True, None, None, track.group.queue_name, partition.name)
    held = verdict.held
    draft = track.draft or transaction.draft(track)
    if held is None or item.transaction_id in draft.gone:
        # Completed before, or said twice in one request: the first word counts.
        return outcome
    offset, lease, schedule = held
    if item.status == "completed":
        transaction.settle(track, offset)
    elif item.status == "dlq":
        retry = draft.retries.get(offset)
        attempts = (retry.attempts if retry else 0) + 1
        text = item.error or "Sent to the dead letters by its consumer"
        outcome.dead_lettered = transaction.bury(track, offset, attempts, text, transaction.now, exhausted=False)
    elif item.status == "retry":
        retry = draft.retries.get(offset)
        due = transaction.now + (item.delay_ms or 0) * MILLISECOND
        draft.retries[offset] = Retry(retry.attempts if retry else 0, due, retry.error if retry else None)
        draft.released = draft.released or track.lease is lease
    else:
        error = item.error or "Failed without an error text"
        outcome.dead_lettered = fail(transaction, track, offset, schedule, error, transaction.now)
        if not track.is_settled(offset):
            draft.released = draft.released or track.lease is lease
    draft.gone.add(item.transaction_id)
    transaction.let_go(track, lease)
    outcome.lease_released = draft.released or track.lease is not lease
    return outcome


def fail(
    transaction: WriteTransaction,
    track: Track,
    offset: int,
    schedule: tuple[int, ...] | None,
    error: str,
    at: int,
    *,
    backoff: bool = True,
) -> bool:
    """Use one attempt of a message: it waits for its next one, or is buried. True: it is a dead letter (rule 14)."""
    draft = transaction.draft(track)
    delays = track.partition.queue.schedule if schedule is None else schedule
    retry = draft.retries.get(offset)
    attempts = (retry.attempts if retry else 0) + 1
    if attempts > len(delays):
        return transaction.bury(track, offset, attempts, error, at, exhausted=True)
    due = at + delays[attempts - 1] * MILLISECOND if backoff else at
    draft.retries[offset] = Retry(attempts, due, error)
    return False


def transact(transaction: WriteTransaction, requests: Sequence[Transaction]) -> list[TransactionOutcome]:
    """Apply each transaction whole or not at all: everything is judged before anything is done."""
    return [_transact(transaction, request) for request in requests]


def _transact(transaction: WriteTransaction, request: Transaction) -> TransactionOutcome:
    for lease_id in request.required_leases:
        lease = transaction.state.leases.get(lease_id)
        if lease is None or lease.expires_at <= transaction.now or not _holds(lease):
            code, text = EXPIRED if lease_id in transaction.state.expired_leases else SUPERSEDED
            return TransactionOutcome(False, (), code, f"{text} (required lease {lease_id})")
    judge = Judge(transaction, request.required_leases)
    verdicts: dict[int, Verdict] = {}
    for index, operation in enumerate(request.operations):
        if isinstance(operation, Settlement):
            verdict = verdicts[index] = judge.judge(operation)
            if verdict.refusal is not None:
                code, text = verdict.refusal
                refused = apply(transaction, operation, verdict)
                return TransactionOutcome(False, [refused], code, f"ACK operation failed: {text}", index)
    pushes = [operation for operation in request.operations if isinstance(operation, NewMessage)]
    refusal = _refuse_pushes(transaction, request, pushes)
    if refusal is not None:
        return refusal
    places = find_partitions(transaction, [(item.queue, item.partition) for item in pushes])
    known = find_duplicates(transaction, pushes, [places[item.queue, item.partition] for item in pushes])
    results: list[PushOutcome | SettleOutcome] = []
    for index, operation in enumerate(request.operations):
        if isinstance(operation, Settlement):
            results.append(apply(transaction, operation, verdicts[index]))
        else:
            place = places[operation.queue, operation.partition]
            results += push_all(transaction, [operation], [place], known)
    return TransactionOutcome(True, results)


def _holds(lease: Lease) -> bool:
    """Whether a lease still holds something, as the running transaction sees it."""
    return any(
        part.open > 0 and not (track.draft is not None and track.draft.voided) for track, part in lease.parts.items()
    )


def _refuse_pushes(
    transaction: WriteTransaction, request: Transaction, pushes: Sequence[NewMessage]
) -> TransactionOutcome | None:
    """The failure of a transaction whose pushes can't all be taken, found before anything is made or done."""
    places = find_partitions(transaction, [(item.queue, item.partition) for item in pushes], make=False)
    old = [item for item in pushes if (item.queue, item.partition) in places]
    known = find_duplicates(transaction, old, [places[item.queue, item.partition] for item in old])
    seen: set[tuple[str, str, str]] = set()
    wanted: dict[str, int] = {}
    for index, operation in enumerate(request.operations):
        if not isinstance(operation, NewMessage):
            continue
        place = places.get((operation.queue, operation.partition))
        if operation.transaction_id is not None:
            key = (operation.queue, operation.partition, operation.transaction_id)
            repeated = key in seen or (
                place is not None
                and (
                    (place.id, operation.transaction_id) in known
                    or (place.id, operation.transaction_id) in transaction.new_transaction_ids
                )
            )
            seen.add(key)
            if repeated:
                continue
        queue = transaction.state.queues.get(operation.queue)
        if operation.sealed is not (queue is not None and queue.info.options.encryption_enabled):
            return TransactionOutcome(False, (), "sealing_mismatch", "the queue's encryption was changed", index)
        if queue is not None and queue.info.options.max_size:
            wanted[queue.name] = wanted.get(queue.name, 0) + 1
            if wanted[queue.name] > room_left(transaction, queue):
                text = f"PUSH operation failed: queue {queue.name!r} is full (maxSize)"
                return TransactionOutcome(False, (), "queue_full", text, index)
    return None
