"""The verbs that touch single stored messages: removal, and traces."""

from __future__ import annotations

from collections.abc import Sequence

from hark.engine.sqlite.holes import dig
from hark.engine.sqlite.places import find_message, stored_at
from hark.engine.sqlite.shared.draft import SharedDraft
from hark.engine.sqlite.state import Group, Partition
from hark.engine.sqlite.store import run
from hark.engine.sqlite.track import AnyTrack
from hark.engine.sqlite.transaction import WriteTransaction
from hark.errors import HarkError, NotFound
from hark.ids import Place
from hark.model import CancelOutcome, NewTrace


def delete_messages(transaction: WriteTransaction, message_ids: Sequence[str]) -> list[bool]:
    """Remove messages; consumers step over them."""
    answers = []
    for message_id in message_ids:
        place = transaction.state.codec.decode(message_id)
        answers.append(place is not None and _delete(transaction, place))
    return answers


def cancel(transaction: WriteTransaction, message_ids: Sequence[str]) -> list[CancelOutcome]:
    """Remove messages that nobody has been given yet."""
    answers: list[CancelOutcome] = []
    for message_id in message_ids:
        place = transaction.state.codec.decode(message_id)
        answers.append("not_found" if place is None else _cancel(transaction, place))
    return answers


def _cancel(transaction: WriteTransaction, place: Place) -> CancelOutcome:
    partition = transaction.loader.partition(place.partition)
    message = None if partition is None else stored_at(transaction, *place)
    if partition is None or message is None or message.offset <= partition.floor:
        return "not_found"
    transaction.loader.groups(partition.queue.name)
    for group in partition.queue.groups.values():
        track = transaction.loader.track(group, partition.id)
        if track is None or message.owner not in (None, group.id):
            continue
        if track.is_settled(message):
            return "settled"
        if track.held_at(place.offset) is not None or track.attempts_of(place.offset):
            return "leased"
    return "cancelled" if _delete(transaction, place) else "not_found"


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
    if but_for is None:
        dig(transaction.connection, partition.id, offset, offset)
    else:
        sql = "insert into holes (partition, first, last, owner) values (?1, ?2, ?2, ?3)"
        run(transaction.connection, sql, partition.id, offset, but_for.id)
    transaction.note_removal(partition)
    transaction.loader.groups(partition.queue.name)
    for group in list(partition.queue.groups.values()):
        track = None if group is but_for else transaction.loader.track(group, partition.id)
        if track is None:
            continue
        # Where a group starts can't be found by the message's time any more: keep it.
        draft = transaction.draft(track)
        if isinstance(draft, SharedDraft):
            draft.removes = True
        if track.keeps(offset):
            settle_removed(transaction, track, offset)


def settle_removed(transaction: WriteTransaction, track: AnyTrack, offset: int) -> None:
    """A group is done with a message that is gone, and so is who holds it."""
    held = track.held_at(offset)
    transaction.settle(track, offset)
    if held is not None:
        transaction.state.note_removed(track, [held])
        transaction.draft(track).forget(held)
        transaction.let_go(track, held[1])


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
            (uid, place.partition, place.offset, item.group, item.event, item.data, transaction.now),
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
