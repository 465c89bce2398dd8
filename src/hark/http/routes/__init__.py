"""The routes that are not hot, by theme: each module has a table from path and method to endpoint."""

from __future__ import annotations

from starlette.routing import Route

from hark.http.keyval import atomic, keys, queue_admin
from hark.http.keyval import dead_letters as work_dead_letters
from hark.http.keyval import metrics as keyval_metrics
from hark.http.routes import (
    consumers,
    dead_letters,
    groups,
    leases,
    limits,
    messages,
    overview,
    queues,
    seek,
    system,
    traces,
    transactions,
)
from hark.http.routes.table import SegmentRoute

_THEMES = (
    system,
    queues,
    overview,
    messages,
    groups,
    limits,
    consumers,
    seek,
    dead_letters,
    transactions,
    leases,
    traces,
    queue_admin,
    work_dead_letters,
    keys,
    atomic,
    keyval_metrics,
)


def routes() -> list[Route]:
    """All of them; where two patterns fit, the first counts."""
    return [SegmentRoute(pattern, endpoints) for theme in _THEMES for pattern, endpoints in theme.TABLE.items()]


__all__ = ["routes"]
