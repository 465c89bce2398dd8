"""Numbers about the database file, and about leases that ran out."""

from __future__ import annotations

from pathlib import Path

from hark.engine.sqlite.state import State
from hark.engine.sqlite.store import Store


def store_metrics(store: Store, state: State) -> dict[str, float]:
    """Sizes by name; in memory there is no log."""
    log = Path(f"{store.path}-wal")
    page = store.reader.pragma("page_size")
    return {
        "database_bytes": store.reader.pragma("page_count") * page,
        "free_bytes": store.reader.pragma("freelist_count") * page,
        "log_bytes": log.stat().st_size if not store.memory and log.exists() else 0,
        **expiry_metrics(state),
    }


def expiry_metrics(state: State) -> dict[str, float]:
    """What became of leases that nobody ended."""
    return {"leases_expired": state.leases_expired, "expiries_buried": state.expiries_buried}
