"""Calls on keys go by an index, however many keys there are."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest

from hark.engine.sqlite import keyvalue
from hark.engine.sqlite.schema import migrate


@pytest.fixture
def connection() -> Iterator[apsw.Connection]:
    """An empty database."""
    made = apsw.Connection(":memory:")
    migrate(made)
    yield made
    made.close()


@pytest.mark.parametrize("sql", [keyvalue._RANGE, keyvalue._REVERSE_RANGE, keyvalue._WANTED, keyvalue._COUNT])
def test_reads_search_by_key_and_sort_nothing(connection: apsw.Connection, sql: str) -> None:
    plan = [row[3] for row in connection.execute(f"explain query plan {sql}", (b"a", b"b", 1, 1)[: sql.count("?")])]
    assert any("SEARCH kv USING PRIMARY KEY" in step for step in plan), plan
    assert not any("SCAN kv" in step or "TEMP B-TREE" in step for step in plan), plan


def test_a_sweep_searches_by_time(connection: apsw.Connection) -> None:
    plan = [row[3] for row in connection.execute(f"explain query plan {keyvalue._OVER}", (1, 1))]
    assert plan == ["SEARCH kv USING COVERING INDEX kv_expiry (expires_at<?)"]
