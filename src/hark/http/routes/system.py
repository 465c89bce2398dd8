"""The server itself: health, numbers and maintenance."""

from __future__ import annotations

import asyncio
import logging

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark._version import __version__
from hark.broker.broker import POP_MAINTENANCE, PUSH_MAINTENANCE
from hark.errors import HarkError
from hark.http.routes.requests import broker_of, read_json, reply
from hark.http.routes.table import Table

log = logging.getLogger(__name__)

PING_SECONDS = 5
# Nothing is ever answered before it is on stable storage, so that there is no buffer to report on.
_NO_BUFFER = {
    "bufferedMessages": 0,
    "bufferHealthy": True,
    "bufferStats": {
        "pendingCount": 0,
        "failedCount": 0,
        "dbHealthy": True,
        "failedFiles": {"count": 0, "totalBytes": 0, "totalMB": 0, "failoverCount": 0, "qos0Count": 0},
    },
}


async def health(request: Request) -> Response:
    """Whether the server can reach its store."""
    problem = None
    try:
        async with asyncio.timeout(PING_SECONDS):
            await broker_of(request).engine.ping()
    except TimeoutError:
        problem = f"the store did not answer within {PING_SECONDS} seconds"
    except HarkError as error:
        problem = error.text
    if problem is not None:
        log.warning("health: %s", problem)
    answer: dict[str, object] = {
        "status": "healthy" if problem is None else "unhealthy",
        "database": "connected" if problem is None else "disconnected",
        "server": "hark",
        "worker_id": 0,
        "version": __version__,
        "shared_state": {"enabled": False},
        "queen": {"worker_id": 0, "status": "active"},
    }
    if problem is not None:
        answer |= {"error": problem, "code": "unhealthy"}
    return reply(answer, 200 if problem is None else 503)


async def metrics(request: Request) -> Response:
    """Numbers about the store, about those who wait for messages or watch keys, and about what shared a call."""
    broker = broker_of(request)
    answer: dict[str, object] = {
        "store": await broker.engine.store_metrics(),
        "delivery": broker.delivery.snapshot(),
        "watching": broker.keyvalue.watchers.metrics(),
        "batching": {
            verb: {"calls": sizes.calls, "requests": sizes.requests, "largest": sizes.largest}
            for verb, sizes in broker.batch_sizes().items()
        },
    }
    if peers := broker.peer_metrics():
        answer["peers"] = peers
    return reply(answer)


class MaintenanceBody(msgspec.Struct):
    """The switch."""

    enabled: bool


_TEXTS = {"enabled": "enabled (boolean) is required"}


async def show_maintenance(request: Request) -> Response:
    """Whether pushes and pops are stopped."""
    broker = broker_of(request)
    return reply(
        {
            "maintenanceMode": broker.maintenance(PUSH_MAINTENANCE),
            "popMaintenanceMode": broker.maintenance(POP_MAINTENANCE),
        }
        | _NO_BUFFER
    )


async def set_maintenance(request: Request) -> Response:
    """Stop or resume all pushes, over restarts too."""
    enabled = await _switch(request, PUSH_MAINTENANCE)
    return reply(
        {
            "maintenanceMode": enabled,
            "bufferedMessages": 0,
            "bufferHealthy": True,
            "message": "Pushes are refused until maintenance ends" if enabled else "Pushes are accepted",
        }
    )


async def show_pop_maintenance(request: Request) -> Response:
    """Whether pops are stopped."""
    return _pop_maintenance(broker_of(request).maintenance(POP_MAINTENANCE))


async def set_pop_maintenance(request: Request) -> Response:
    """Stop or resume all pops, over restarts too."""
    return _pop_maintenance(await _switch(request, POP_MAINTENANCE))


def _pop_maintenance(enabled: bool) -> Response:
    text = "Pops answer empty until maintenance ends" if enabled else "Pops are served"
    return reply({"popMaintenanceMode": enabled, "message": text})


async def _switch(request: Request, flag: str) -> bool:
    enabled = (await read_json(request, MaintenanceBody, "maintenance", _TEXTS)).enabled
    await broker_of(request).set_maintenance(flag, enabled)
    return enabled


TABLE: Table = {
    "/health": {"GET": health},
    "/api/v1/system/metrics": {"GET": metrics},
    "/api/v1/system/maintenance": {"GET": show_maintenance, "POST": set_maintenance},
    "/api/v1/system/maintenance/pop": {"GET": show_pop_maintenance, "POST": set_pop_maintenance},
}
