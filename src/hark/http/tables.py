"""The table of all routes."""

from __future__ import annotations

from hark.broker import Broker
from hark.http import dashboard
from hark.http.hot import HotRoutes
from hark.http.keyval import atomic, keys, queue_admin
from hark.http.keyval import dead_letters as work_dead_letters
from hark.http.keyval import metrics as keyval_metrics
from hark.http.keyval.listen import QueueListeners
from hark.http.keyval.queue import QueueRoutes
from hark.http.keyval.watch import KeyWatches
from hark.http.routes import (
    audit,
    consumers,
    dead_letters,
    describing,
    explaining,
    exporting,
    groups,
    history,
    leases,
    limits,
    messages,
    metrics,
    overview,
    queues,
    seek,
    session,
    shown_settings,
    status,
    system,
    traces,
    transactions,
)
from hark.http.routes.history import SampleEvents
from hark.http.routes.table import Table
from hark.http.stream.sse import EventStreams
from hark.http.stream.websocket import WebSockets
from hark.settings import Settings

_THEMES = (
    system,
    describing,
    session,
    audit,
    metrics,
    queues,
    exporting,
    overview,
    status,
    history,
    shown_settings,
    messages,
    explaining,
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
    dashboard,
)


def all_routes(broker: Broker, settings: Settings, ping_seconds: float) -> Table:
    """Return all routes; the routes that are bound to a broker come first."""
    bound = (
        HotRoutes(broker, settings),
        EventStreams(broker, settings, ping_seconds),
        SampleEvents(broker, settings, ping_seconds),
        WebSockets(broker, settings, ping_seconds),
        QueueRoutes(broker, settings),
        QueueListeners(broker, settings),
        KeyWatches(broker, settings),
    )
    tables = [*(routes.table() for routes in bound), *(theme.TABLE for theme in _THEMES)]
    return {path: operations for table in tables for path, operations in table.items()}
