"""Records that hold payloads: since when nobody refers to them, and when they may go."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest

from hark.engine.s3.replica import garbage
from hark.engine.sqlite import schema


@pytest.fixture
def database() -> Iterator[apsw.Connection]:
    """A state with the segments 1 to 6: messages refer to 1 and 2, dead letters to 2 and 3."""
    connection = apsw.Connection(":memory:")
    schema.migrate(connection)
    connection.execute(
        "create table segments (seq integer primary key, bytes integer not null, dead_since integer);"
        "insert into segments (seq, bytes) values (1, 10), (2, 10), (3, 10), (4, 10), (5, 10), (6, 10)"
    )
    for offset, extra in enumerate(('{"r": [1, 8, 5]}', '{"r": [2, 8, 5], "ttl": 4}', '{"ttl": 4}', None), start=1):
        connection.execute(
            "insert into messages (partition, offset, created_at, extra, payload) values (1, ?, 0, ?, 'null')",
            (offset, extra),
        )
    for offset, extra in enumerate(('{"r": [2, 13, 5]}', '{"r": [3, 8, 5]}', None), start=1):
        connection.execute(
            "insert into dead_letters (uid, queue, partition, partition_name, grp, offset, created_at, priority,"
            " payload, extra, attempts, error, failed_at) values (?, 'q', 1, 'p', 'g', ?, 0, 0, 'null', ?, 1, '', 0)",
            (str(offset), offset, extra),
        )
    yield connection
    connection.close()


def marks(database: apsw.Connection) -> dict[int, int | None]:
    """Since when each segment is dead."""
    return dict(database.execute("select seq, dead_since from segments"))


def test_what_neither_a_message_nor_a_dead_letter_refers_to_is_unreferenced(database: apsw.Connection) -> None:
    assert garbage.unreferenced(database, 100) == [4, 5, 6]
    assert garbage.unreferenced(database, 2) == [4, 5]
    database.execute("delete from messages")
    assert garbage.unreferenced(database, 100) == [1, 4, 5, 6]
    database.execute("delete from dead_letters")
    assert garbage.unreferenced(database, 100) == [1, 2, 3, 4, 5, 6]


def test_a_segment_is_dead_since_it_was_first_marked(database: apsw.Connection) -> None:
    garbage.mark_dead(database, [4, 5], now=100)
    garbage.mark_dead(database, [5, 6, 99], now=200)
    assert marks(database) == {1: None, 2: None, 3: None, 4: 100, 5: 100, 6: 200}
    assert garbage.unreferenced(database, 100) == []


def test_a_segment_may_go_a_grace_after_it_died_and_not_beyond_the_watermark(database: apsw.Connection) -> None:
    garbage.mark_dead(database, [4, 6], now=100)
    garbage.mark_dead(database, [5], now=101)
    assert garbage.removable(database, now=109, grace=10, up_to_seq=6, limit=9) == []
    assert garbage.removable(database, now=110, grace=10, up_to_seq=6, limit=9) == [4, 6]
    assert garbage.removable(database, now=110, grace=10, up_to_seq=5, limit=9) == [4]
    assert garbage.removable(database, now=111, grace=10, up_to_seq=6, limit=2) == [4, 5]


def test_a_segment_that_is_gone_is_forgotten(database: apsw.Connection) -> None:
    garbage.forget(database, [])
    garbage.forget(database, [4, 6, 99])
    assert list(marks(database)) == [1, 2, 3, 5]


def test_the_segments_of_a_part_of_the_log_are_known(database: apsw.Connection) -> None:
    assert garbage.segments_between(database, after=2, up_to=5) == {3, 4, 5}
    assert garbage.segments_between(database, after=6, up_to=100) == frozenset()
