"""The verbs about dead letters: requeue and removal. (They are made in `WriteTransaction.bury`.)"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from hark.engine.sqlite.groups import Contact, first_contact
from hark.engine.sqlite.messages import leave_hole
from hark.engine.sqlite.places import find_partitions
from hark.engine.sqlite.rows import encode_extra, extra_of
from hark.engine.sqlite.store import rows_of, run, scalar
from hark.engine.sqlite.transaction import WriteTransaction
from hark.errors import Conflict, HarkError, NotFound
from hark.ids import IdCodec
from hark.model import DeadLetterFilter

CONDITIONS = """
    (?1 is null or queue = ?1) and (?2 is null or grp = ?2) and (?3 is null or partition_name = ?3)
    and (?4 is null or failed_at >= ?4) and (?5 is null or failed_at <= ?5)
    and (?6 is null or uid = ?6 or (partition = ?7 and offset = ?8))
"""
_STORE = """
insert into messages (partition, offset, created_at, priority, owner, transaction_id, extra, payload)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
"""


def parameters(where: DeadLetterFilter, codec: IdCodec) -> tuple[int | str | None, ...]:
    """The values of `CONDITIONS`."""
    place = None if where.id is None else codec.decode(where.id)
    partition, offset = (None, None) if place is None else place
    return where.queue, where.group, where.partition, where.since, where.until, where.id, partition, offset


def requeue(transaction: WriteTransaction, ids: Sequence[str]) -> list[str | HarkError]:
    """Put dead letters back; the new message ids."""
    answers: list[str | HarkError] = []
    for dead_letter_id in ids:
        try:
            answers.append(_requeue(transaction, dead_letter_id))
        except HarkError as error:
            answers.append(error)
    return answers


def _requeue(transaction: WriteTransaction, dead_letter_id: str) -> str:
    connection, state = transaction.connection, transaction.state
    # Rows that this transaction has yet to write must be seen, and a second requeue must find nothing.
    rows = rows_of(
        connection,
        "select id, queue, partition_name, grp, payload, transaction_id, extra, priority from dead_letters"
        f" where {CONDITIONS}",
        *parameters(DeadLetterFilter(id=dead_letter_id), state.codec),
    )
    if not rows:
        raise NotFound(f"there is no dead letter {dead_letter_id}", code="dead_letter_not_found")
    if len(rows) > 1:
        raise Conflict(
            f"message {dead_letter_id} is dead in {len(rows)} groups; use the id of the dead letter",
            code="ambiguous",
        )
    row_id, queue_name, partition_name, group_name, payload, transaction_id, extra, priority = rows[0]
    place = (queue_name, partition_name)
    partition = find_partitions(transaction, [place])[place]
    first_contact(transaction, [Contact(queue_name, group_name)])
    group = state.groups[queue_name, group_name]
    track = transaction.loader.track(group, partition.id)
    assert track is not None
    offset = partition.next_tail = partition.next_tail + 1
    created_at = partition.last_created = max(transaction.now, partition.last_created, partition.queue.created_floor)
    options = msgspec.structs.replace(extra_of(extra), x=0)
    # The transaction id stays with the message that died, if that is still there: it is a key within the partition.
    taken = transaction_id is not None and _is_taken(transaction, partition.id, transaction_id)
    run(
        connection,
        _STORE,
        partition.id,
        offset,
        created_at,
        priority,
        group.id,
        None if taken else transaction_id,
        encode_extra(options).decode(),
        payload,
    )
    transaction.note_requeued(partition)
    leave_hole(transaction, partition, offset, but_for=group)
    transaction.draft(track).add_front(offset, priority, transaction.now)
    run(connection, "delete from dead_letters where id = ?1", row_id)
    queue = partition.queue
    transaction.on_commit(lambda: setattr(queue, "open", None))
    return state.codec.encode(partition.id, offset)


def _is_taken(transaction: WriteTransaction, partition: int, transaction_id: str) -> bool:
    if (partition, transaction_id) in transaction.new_transaction_ids:
        return True
    sql = "select 1 from messages where partition = ?1 and transaction_id = ?2"
    return scalar(transaction.connection, sql, partition, transaction_id) is not None


def delete_dead_letters(transaction: WriteTransaction, where: DeadLetterFilter) -> int:
    """Remove dead letters; how many."""
    connection = transaction.connection
    run(
        connection,
        f"delete from dead_letters where {CONDITIONS}",
        *parameters(where, transaction.state.codec),
    )
    return connection.changes()
