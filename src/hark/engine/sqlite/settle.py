"""The verbs settle and transact: what follows from what consumers say."""

from __future__ import annotations

from collections.abc import Sequence

from hark.clock import MILLISECOND
from hark.engine.keyvalue import joined, parted
from hark.engine.sqlite.judge import EXPIRED, NOT_FOUND, SUPERSEDED, Judge, Verdict
from hark.engine.sqlite.places import find_partitions
from hark.engine.sqlite.push import find_duplicates, push_all, room_left
from hark.engine.sqlite.track import AnyTrack, Held, Lease, Retry
from hark.engine.sqlite.transaction import WriteTransaction
from hark.model import NewMessage, PushOutcome, Settlement, SettleOutcome, Transaction, TransactionOutcome


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
    if held is None or draft.is_gone(held):
        # Completed before, or said twice in one request: the first word counts.
        return outcome
    offset, lease, _, _ = held
    outcome.lease_id = lease.id
    if item.status == "completed":
        transaction.settle(track, offset)
    elif item.status == "dlq":
        retry = draft.retry_of(offset)
        attempts = (retry.attempts if retry else 0) + 1
        text = item.error or "Sent to the dead letters by its consumer"
        outcome.dead_lettered = transaction.bury(track, offset, attempts, text, transaction.now, exhausted=False)
    elif item.status == "retry":
        retry = draft.retry_of(offset)
        due = transaction.now + (item.delay_ms or 0) * MILLISECOND
        draft.wait(offset, lease, Retry(retry.attempts if retry else 0, due, retry.error if retry else None))
    else:
        error = item.error or "Failed without an error text"
        outcome.dead_lettered = fail(transaction, track, held, error, transaction.now, item.delay_ms)
    draft.forget(held)
    transaction.let_go(track, lease)
    outcome.lease_released = draft.is_free_of(lease)
    return outcome


def fail(
    transaction: WriteTransaction, track: AnyTrack, held: Held, error: str, at: int, delay_ms: int | None = None
) -> bool:
    """Use one attempt of a message: it waits for its next one, or is buried. True: it is a dead letter (rule 14).

    A delay that is given replaces what the schedule says.
    """
    draft = transaction.draft(track)
    offset, lease, schedule, _ = held
    delays = track.partition.queue.schedule if schedule is None else schedule
    retry = draft.retry_of(offset)
    attempts = (retry.attempts if retry else 0) + 1
    if attempts > len(delays):
        return transaction.bury(track, offset, attempts, error, at, exhausted=True)
    delay = delays[attempts - 1] if delay_ms is None else delay_ms
    draft.wait(offset, lease, Retry(attempts, at + delay * MILLISECOND, error))
    return False


def transact(transaction: WriteTransaction, requests: Sequence[Transaction]) -> list[TransactionOutcome]:
    """Apply each transaction whole or not at all: everything is judged before anything is done."""
    return [parted(request, _transact(transaction, joined(request))) for request in requests]


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
    # Keys come first: of a message that dies here its payload is the last word, as it is on its own.
    written = None if request.keys is None else transaction.keys.write(request.keys)
    if isinstance(written, TransactionOutcome):
        return written
    places = find_partitions(transaction, [(item.queue, item.partition) for item in pushes])
    known = find_duplicates(transaction, pushes, [places[item.queue, item.partition] for item in pushes])
    results: list[PushOutcome | SettleOutcome] = []
    for index, operation in enumerate(request.operations):
        if isinstance(operation, Settlement):
            results.append(apply(transaction, operation, verdicts[index]))
        else:
            place = places[operation.queue, operation.partition]
            results += push_all(transaction, [operation], [place], known)
    return TransactionOutcome(True, results, keys=written)


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
            text = f"the encryption of queue {operation.queue!r} was changed during the push; retry"
            return TransactionOutcome(False, (), "sealing_mismatch", text, index)
        if queue is not None and queue.info.options.max_size:
            wanted[queue.name] = wanted.get(queue.name, 0) + 1
            if wanted[queue.name] > room_left(transaction, queue):
                text = f"PUSH operation failed: queue {queue.name!r} is full (maxSize); retry later or raise maxSize"
                return TransactionOutcome(False, (), "queue_full", text, index)
    return None
