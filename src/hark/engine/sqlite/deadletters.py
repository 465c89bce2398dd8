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

_BY_ID = """id in (
    select letter.id from json_each(?) as wanted cross join dead_letters as letter on letter.uid = wanted.value
    union
    select letter.id from json_each(?) as place cross join dead_letters as letter
        on letter.partition = place.value ->> 0 and letter.offset = place.value ->> 1
)"""
_STORE = """
insert into messages (partition, offset, created_at, priority, owner, transaction_id, extra, payload)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
"""


def conditions(where: DeadLetterFilter, codec: IdCodec) -> tuple[str, list[int | str]]:
    """What a filter stands for in SQL, and its values; what does not matter is left out, so that indexes are used."""
    wanted: list[tuple[str, int | str | None]] = [
        ("queue = ?", where.queue),
        ("grp = ?", where.group),
        ("partition_name = ?", where.partition),
        ("failed_at >= ?", where.since),
        ("failed_at <= ?", where.until),
        ("instr(lower(error), lower(?)) > 0", where.search),
    ]
    matter = [(condition, value) for condition, value in wanted if value is not None]
    texts, values = [condition for condition, _ in matter], [value for _, value in matter]
    if where.ids is not None:
        places = [place for one in where.ids if (place := codec.decode(one)) is not None]
        texts.append(_BY_ID)
        values += (msgspec.json.encode(given).decode() for given in (where.ids, places))
    return " and ".join(texts) or "true", values


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
    matching, values = conditions(DeadLetterFilter(ids=(dead_letter_id,)), state.codec)
    rows = rows_of(
        connection,
        "select id, queue, partition_name, grp, payload, transaction_id, extra, priority from dead_letters"
        f" where {matching}",
        *values,
    )
    if not rows:
        raise NotFound(f"dead letter {dead_letter_id} does not exist", code="dead_letter_not_found")
    if len(rows) > 1:
        raise Conflict(
            f"message {dead_letter_id} is a dead letter in {len(rows)} groups; pass the id of the dead letter",
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
    matching, values = conditions(where, transaction.state.codec)
    run(connection, f"delete from dead_letters where {matching}", *values)
    return connection.changes()
