"""The verbs that touch single stored messages: removal, and traces."""

from __future__ import annotations

from collections.abc import Sequence

from hark.engine.sqlite.places import find_message
from hark.engine.sqlite.state import Group, Partition
from hark.engine.sqlite.store import run
from hark.engine.sqlite.track import Track
from hark.engine.sqlite.transaction import WriteTransaction
from hark.errors import HarkError, NotFound
from hark.ids import Place
from hark.model import NewTrace


def delete_messages(transaction: WriteTransaction, message_ids: Sequence[str]) -> list[bool]:
    """Remove messages; consumers step over them."""
    answers = []
    for message_id in message_ids:
        place = transaction.state.codec.decode(message_id)
        answers.append(place is not None and _delete(transaction, place))
    return answers


def _delete(transaction: WriteTransaction, place: Place) -> bool:
    partition = transaction.loader.partition(place.partition)
    if partition is None or not partition.floor < place.offset <= partition.tail:
        return False
    connection = transaction.connection
    transaction.save_dead_letters()
    run(connection, "delete from messages where partition = ?1 and offset = ?2", *place)
    if not connection.changes():
        return False
    run(connection, "update partitions set tail = max(tail, ?1) where id = ?2", partition.tail, partition.id)
    delete_traces(transaction, place)
    leave_hole(transaction, partition, place.offset)
    queue = partition.queue
    transaction.on_commit(lambda: setattr(queue, "open", None))
    return True


def leave_hole(transaction: WriteTransaction, partition: Partition, offset: int, but_for: Group | None = None) -> None:
    """There is no message at an offset (any more): every group is done with it, also those to come."""
    run(
        transaction.connection,
        "insert or replace into holes (partition, offset, owner) values (?1, ?2, ?3)",
        partition.id,
        offset,
        0 if but_for is None else but_for.id,
    )
    transaction.loader.groups(partition.queue.name)
    for group in list(partition.queue.groups.values()):
        track = None if group is but_for else transaction.loader.track(group, partition.id)
        if track is None:
            continue
        transaction.draft(track)  # Where a group starts can't be found by the message's time any more: keep it.
        if not track.is_settled(offset):
            _settle_removed(transaction, track, offset)


def _settle_removed(transaction: WriteTransaction, track: Track, offset: int) -> None:
    draft = transaction.draft(track)
    transaction.settle(track, offset)
    for transaction_id, (held_offset, lease, _) in list(track.held.items()):
        if held_offset == offset:
            draft.gone.add(transaction_id)
            transaction.let_go(track, lease)


def delete_traces(transaction: WriteTransaction, place: tuple[int, int]) -> None:
    """Events go with their message."""
    connection = transaction.connection
    run(
        connection,
        "delete from trace_names where trace in (select id from traces where partition = ?1 and offset = ?2)",
        *place,
    )
    run(connection, "delete from traces where partition = ?1 and offset = ?2", *place)


def trace(transaction: WriteTransaction, traces: Sequence[NewTrace]) -> list[str | HarkError]:
    """Record events about messages; their ids."""
    answers: list[str | HarkError] = []
    for item in traces:
        partition = transaction.state.codec.decode(item.partition_id)
        place = None if partition is None else find_message(transaction, partition.partition, item.transaction_id)
        if place is None:
            answers.append(NotFound("Message not found", code="message_not_found"))
            continue
        uid = transaction.ids.new()
        transaction.connection.execute(
            "insert into traces (uid, partition, offset, grp, event, data, created_at) values (?, ?, ?, ?, ?, ?, ?)",
            (uid, *place, item.group, item.event, item.data, transaction.now),
        )
        trace_id = transaction.connection.last_insert_rowid()
        for name in dict.fromkeys(item.names):
            run(
                transaction.connection,
                "insert into trace_names (name, trace) values (?1, ?2)",
                name,
                trace_id,
            )
        answers.append(uid)
    return answers
