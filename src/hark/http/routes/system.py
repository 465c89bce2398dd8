"""Health, internal numbers and maintenance of the server."""

from __future__ import annotations

import logging

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark._version import __version__
from hark.broker.broker import POP_MAINTENANCE, PUSH_MAINTENANCE
from hark.http.answers import system as answers
from hark.http.edge.admitting import edge_of
from hark.http.exchange import exchange_of
from hark.http.routes.requests import broker_of, read_json, reply
from hark.http.routes.table import Reach, Table, admin, public, read

log = logging.getLogger(__name__)

# Hark has no write buffer: it stores data before it responds.
_NO_BUFFER: answers.Buffer = {"bufferedMessages": 0, "bufferHealthy": True}
_NO_BUFFER_STATS: answers.BufferStats = {
    "pendingCount": 0,
    "failedCount": 0,
    "dbHealthy": True,
    "failedFiles": {"count": 0, "totalBytes": 0, "totalMB": 0, "failoverCount": 0, "qos0Count": 0},
}


async def health(request: Request) -> Response:
    """Check the health of the server. Returns 200 if the server can reach its store, else 503."""
    problem = await broker_of(request).readiness.reach()
    if problem is not None:
        log.warning("health check failed: %s", problem)
    answer: answers.Health = {
        "status": "healthy" if problem is None else "unhealthy",
        "database": "connected" if problem is None else "disconnected",
        "server": "hark",
        "worker_id": 0,
        "version": __version__,
        "shared_state": {"enabled": False},
        "queen": {"worker_id": 0, "status": "active"},
    }
    if problem is not None:
        answer["error"], answer["code"] = _told(request, problem), "unhealthy"
    return reply(answer, 200 if problem is None else 503)


async def live(_request: Request) -> Response:
    """Check that the process responds. Does not check the store, so a store outage does not cause a restart."""
    answer: answers.Live = {"status": "live"}
    return reply(answer)


async def ready(request: Request) -> Response:
    """Check that the server is ready. Returns 503 while the store is unavailable or the server shuts down."""
    problem = await broker_of(request).readiness.problem()
    if problem is None:
        is_ready: answers.Ready = {"status": "ready"}
        return reply(is_ready)
    log.warning("readiness check failed: %s", problem)
    answer: answers.Ready = {"status": "not ready", "error": _told(request, problem), "code": "not_ready"}
    return reply(answer, 503)


def _told(request: Request, problem: str) -> str:
    """Return the public text of a problem: with authentication on, it does not reveal details of the store."""
    return "see the log of the server for the cause" if edge_of(request).authenticator.enabled else problem


async def metrics(request: Request) -> Response:
    """Get internal metrics as JSON.

    Returns numbers about the store, waiting consumers, key watchers, batches and peers. For monitoring, use
    GET /metrics.
    """
    broker = broker_of(request)
    answer: answers.SystemMetrics = {
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
    """Whether maintenance is on."""

    enabled: bool


_TEXTS = {"enabled": "enabled (boolean) is required"}


async def show_maintenance(request: Request) -> Response:
    """Get the maintenance mode. Returns whether pushes and pops are stopped."""
    broker = broker_of(request)
    answer: answers.Maintenance = {
        "maintenanceMode": broker.maintenance(PUSH_MAINTENANCE),
        "popMaintenanceMode": broker.maintenance(POP_MAINTENANCE),
        **_NO_BUFFER,
        "bufferStats": _NO_BUFFER_STATS,
    }
    return reply(answer)


async def set_maintenance(request: Request) -> Response:
    """Set the maintenance mode for pushes. While it is on, pushes return 503. It survives restarts."""
    enabled = await _switch(request, PUSH_MAINTENANCE)
    answer: answers.PushMaintenance = {
        "maintenanceMode": enabled,
        **_NO_BUFFER,
        "message": "Pushes are rejected until maintenance is turned off" if enabled else "Pushes are accepted",
    }
    return reply(answer)


async def show_pop_maintenance(request: Request) -> Response:
    """Get the maintenance mode for pops. Returns whether pops are stopped."""
    return _pop_maintenance(broker_of(request).maintenance(POP_MAINTENANCE))


async def set_pop_maintenance(request: Request) -> Response:
    """Set the maintenance mode for pops. While it is on, pops return no messages. It survives restarts."""
    return _pop_maintenance(await _switch(request, POP_MAINTENANCE))


def _pop_maintenance(enabled: bool) -> Response:
    text = "Pops return no messages until maintenance is turned off" if enabled else "Pops return messages"
    answer: answers.PopMaintenance = {"popMaintenanceMode": enabled, "message": text}
    return reply(answer)


async def _switch(request: Request, flag: str) -> bool:
    enabled = (await read_json(request, MaintenanceBody, "maintenance", _TEXTS)).enabled
    exchange_of(request).note_target(enabled=enabled)
    await broker_of(request).set_maintenance(flag, enabled)
    return enabled


TABLE: Table = {
    "/health": {"GET": public(health, answer={200: answers.Health, 503: answers.Health})},
    "/health/live": {"GET": public(live, answer=answers.Live)},
    "/health/ready": {"GET": public(ready, answer={200: answers.Ready, 503: answers.Ready})},
    "/api/v1/system/metrics": {"GET": read(metrics, Reach.SERVER, answer=answers.SystemMetrics)},
    "/api/v1/system/maintenance": {
        "GET": admin(show_maintenance, Reach.SERVER, answer=answers.Maintenance),
        "POST": admin(set_maintenance, Reach.SERVER, body=MaintenanceBody, answer=answers.PushMaintenance),
    },
    "/api/v1/system/maintenance/pop": {
        "GET": admin(show_pop_maintenance, Reach.SERVER, answer=answers.PopMaintenance),
        "POST": admin(set_pop_maintenance, Reach.SERVER, body=MaintenanceBody, answer=answers.PopMaintenance),
    },
}
