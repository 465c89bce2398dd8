"""Numbers about the database file."""

from __future__ import annotations

from pathlib import Path

from hark.engine.sqlite.store import Store


def store_metrics(store: Store) -> dict[str, float]:
    """Sizes by name; in memory there is no log."""
    log = Path(f"{store.path}-wal")
    page = store.reader.pragma("page_size")
    return {
        "database_bytes": store.reader.pragma("page_count") * page,
        "free_bytes": store.reader.pragma("freelist_count") * page,
        "log_bytes": log.stat().st_size if not store.memory and log.exists() else 0,
    }
