"""What records of other processes mean for those who wait here."""

from __future__ import annotations

import apsw

from hark.engine.hints import HintBook
from hark.engine.s3.replica.touched import Touched
from hark.engine.sqlite.state import State
from hark.engine.sqlite.store import rows_of
from hark.model import Hint, KeyNews

Holders = dict[str, list[tuple[str, str]]]
"""Leases with the queues and groups that they are of."""


def holders(state: State, touched: Touched) -> Holders:
    """Whose leases are touched, before that happens: some of them may be over then."""
    found = (state.leases.get(lease_id) for lease_id in touched.leases)
    return {
        lease.id: list({(track.group.queue_name, track.group.name): None for track in lease.parts})
        for lease in found
        if lease is not None
    }


def hints(connection: apsw.Connection, state: State, touched: Touched, before: Holders) -> list[Hint]:
    """Whom to tell of changes that have been applied."""
    book = HintBook()
    _tell_arrivals(connection, book, touched.arrived)
    for number in touched.queues:
        for (queue,) in rows_of(connection, "select name from queues where id = ?1", number):
            book.add(queue, None, None)
    for number in {place[0] for place in touched.places} | touched.groups:
        for queue, group in rows_of(connection, "select queue, name from groups where id = ?1", number):
            book.add(queue, group, None)
    for lease_id, places in before.items():
        for queue, group in places:
            _tell_room(book, state, queue)
            if lease_id not in state.leases:
                book.add(queue, group, None)
                book.ended(queue, group, lease_id)
    return book.hints()


def _tell_room(book: HintBook, state: State, name: str) -> None:
    """What one group held may have been what another one waits for, if all groups of a queue share a bound."""
    queue = state.queues.get(name)
    if queue is not None and queue.bounds.blocked:
        queue.bounds.blocked = False
        book.add(name, None, None)


def key_news(touched: Touched) -> KeyNews | None:
    """Which keys were changed."""
    return KeyNews(tuple(touched.keys)) if touched.keys else None


def _tell_arrivals(connection: apsw.Connection, book: HintBook, arrived: dict[int, int]) -> None:
    by_queue: dict[str, dict[str, int]] = {}
    sql = "select queues.name, partitions.name from partitions join queues on queues.id = partitions.queue"
    for partition, number in arrived.items():
        for queue, name in rows_of(connection, f"{sql} where partitions.id = ?1", partition):
            by_queue.setdefault(queue, {})[name] = number
    for queue, numbers in by_queue.items():
        book.arrived(queue, numbers, (), numbers)
