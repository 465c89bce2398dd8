"""What may be removed from the bucket, and in which order.

Of the log, what a snapshot covers goes when that snapshot has been the newest, or older, for a grace: the *watermark*.
Records with payloads ("segments") stay until no message and no dead letter refers to them, and a grace longer.

The order is promise, remove, confirm. It is safe to be killed between any two steps:

1. *Promise*: the pointer says `collected`, before anything goes. Who is behind learns from it to start again from the
   snapshot, and no number at or below it is trusted from then on, whatever is found there.
2. *Remove* everything between `removed` and `collected` but segments, and the snapshots before the watermark.
3. *Confirm*: the pointer says `removed`. Who dies before that leaves a pointer from which the next one sees what is
   left, and removes it again: to remove what is not there is no error.

Objects first would leave readers with a gap that nobody told them of; the promise alone would leave objects for ever.
Segments follow the same thought: the object goes first, then the row (`forget`). The row is what remembers the object.

All of it may be done by several processes at once, and by one whose state is old: what was dead stays dead, because a
reference only moves from a message to a dead letter and back, and a record's references are made with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

import apsw
import msgspec

from hark.engine.s3.bucket.api import Bucket
from hark.engine.s3.log import places
from hark.engine.s3.log.pointer import UNWITNESSED, Change, Pointer, advance, of_store
from hark.engine.sqlite.store import for_each, scalar

# In one step of SQLite, however many messages there are: see hark.engine.sqlite.store.
_USED = """
with used (seq) as materialized (
    select extra ->> '$.r[0]' from messages where extra ->> '$.r[0]' is not null
    union
    select extra ->> '$.r[0]' from dead_letters where extra ->> '$.r[0]' is not null
)
"""


# Segments: in the state, so that all processes know them ----------------------------------------------------


def unreferenced(connection: apsw.Connection, limit: int) -> list[int]:
    """Segments that nobody refers to and that are not marked yet, oldest first.

    It reads all messages, so ask it of a connection that only reads: what it says stays true.
    """
    return _numbers(
        connection,
        _USED + "select seq from segments where dead_since is null and seq not in used order by seq limit ?",
        limit,
    )


def mark_dead(connection: apsw.Connection, seqs: Sequence[int], now: int) -> None:
    """Note since when nobody refers to some segments; those that are marked already keep their time."""
    connection.execute(
        "update segments set dead_since = ?1 where dead_since is null and seq in (select value from json_each(?2))",
        (now, msgspec.json.encode(seqs).decode()),
    )


def removable(connection: apsw.Connection, now: int, grace: int, up_to_seq: int, limit: int) -> list[int]:
    """Segments whose objects may go: dead for a grace, and covered by a snapshot (`up_to_seq`: the `collected`)."""
    return _numbers(
        connection,
        "select seq from segments where dead_since <= ?1 and seq <= ?2 order by seq limit ?3",
        now - grace,
        up_to_seq,
        limit,
    )


def forget(connection: apsw.Connection, seqs: Sequence[int]) -> None:
    """Remove the rows of segments whose objects are gone."""
    for_each(connection, "delete from segments where seq in (select value from json_each(?1))", seqs)


def segments_between(connection: apsw.Connection, after: int, up_to: int) -> frozenset[int]:
    """The segments in (after, up_to]."""
    return frozenset(_numbers(connection, "select seq from segments where seq > ?1 and seq <= ?2", after, up_to))


# The log: in the pointer ------------------------------------------------------------------------------------


def watermark(pointer: Pointer, now: int, grace: int, applied: int) -> int:
    """Up to where the log may go: the last snapshot that was the newest a grace ago.

    Never beyond what is applied here: which records are segments is not known there. `now` is the object store's time.
    """
    old = (
        kept.seq
        for kept in pointer.snapshots
        if kept.since != UNWITNESSED and kept.since + grace <= now and kept.seq <= applied
    )
    return max(old, default=pointer.collected)


def promise(epoch: str, now: Callable[[], int], grace: int, applied: int) -> Change:
    """The change of the pointer that comes before anything is removed."""

    def change(pointer: Pointer | None) -> Pointer | None:
        if pointer is None:
            return None
        mark = max(pointer.collected, watermark(pointer, now(), grace, applied))
        return msgspec.structs.replace(of_store(pointer, epoch), collected=mark)

    return change


def removable_records(pointer: Pointer, applied: int, segments: Collection[int]) -> list[int]:
    """The records that were promised to go and may not be gone yet; `segments`: those of them that stay.

    None where the state here is behind the promise, see `watermark`.
    """
    if applied < pointer.collected:
        return []
    return [seq for seq in range(pointer.removed + 1, pointer.collected + 1) if seq not in segments]


def removable_snapshots(pointer: Pointer) -> list[int]:
    """The snapshots before the watermark, and those before it that were announced and perhaps never written."""
    known = {*(kept.seq for kept in pointer.snapshots), *pointer.announced}
    return sorted(seq for seq in known if seq < pointer.collected)


def confirm(done: Pointer) -> Change:
    """The change of the pointer that comes after everything was removed that `done` has promised."""

    def change(pointer: Pointer | None) -> Pointer | None:
        if pointer is None:
            return None
        gone = {*removable_snapshots(done)}
        return msgspec.structs.replace(
            of_store(pointer, done.epoch),
            removed=max(pointer.removed, done.collected),
            snapshots=tuple(kept for kept in pointer.snapshots if kept.seq not in gone),
            announced=tuple(seq for seq in pointer.announced if seq not in gone),
        )

    return change


async def collect(
    bucket: Bucket,
    epoch: str,
    *,
    applied: int,
    grace: int,
    now: Callable[[], int],
    segments: Callable[[int, int], Awaitable[Collection[int]]],
) -> int:
    """Do the three steps once; how many objects were removed.

    `applied`: the last record in the state that `segments` looks into, by `segments_between`. `now`, `grace`:
    microseconds, by the clock of the object store. Raises `BucketError` or `EngineFailure`; then the next round goes on
    where this one ended.
    """
    pointer = await advance(bucket, promise(epoch, now, grace, applied), now)
    if pointer is None or applied < pointer.collected:
        return 0
    if pointer.removed == pointer.collected and not removable_snapshots(pointer):
        return 0
    staying = await segments(pointer.removed, pointer.collected)
    keys = [places.record(seq) for seq in removable_records(pointer, applied, staying)]
    keys += [places.snapshot(seq) for seq in removable_snapshots(pointer)]
    if keys:
        await bucket.delete(keys)
    await advance(bucket, confirm(pointer), now)
    return len(keys)


def _numbers(connection: apsw.Connection, sql: str, *parameters: int) -> list[int]:
    found: str = scalar(connection, f"select json_group_array(seq) from ({sql})", *parameters)
    return msgspec.json.decode(found, type=list[int])
