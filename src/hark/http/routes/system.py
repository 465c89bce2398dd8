"""The server itself: health, numbers and maintenance."""

from __future__ import annotations

import logging

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark._version import __version__
from hark.broker.broker import POP_MAINTENANCE, PUSH_MAINTENANCE
from hark.http.answers import system as answers
from hark.http.edge.admitting import edge_of
from hark.http.edge.audit import note_target
from hark.http.routes.requests import broker_of, read_json, reply
from hark.http.routes.table import Reach, Table, admin, public, read

log = logging.getLogger(__name__)

# Nothing is ever answered before it is on stable storage, so that there is no buffer to report on.
_NO_BUFFER: answers.Buffer = {"bufferedMessages": 0, "bufferHealthy": True}
_NO_BUFFER_STATS: answers.BufferStats = {
    "pendingCount": 0,
    "failedCount": 0,
    "dbHealthy": True,
    "failedFiles": {"count": 0, "totalBytes": 0, "totalMB": 0, "failoverCount": 0, "qos0Count": 0},
}


async def health(request: Request) -> Response:
    """Whether the server can reach its store."""
    problem = await broker_of(request).readiness.reach()
    if problem is not None:
        log.warning("health: %s", problem)
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
    """Whether the process answers at all; it does not look at the store, so that nobody restarts it for that."""
    answer: answers.Live = {"status": "live"}
    return reply(answer)


async def ready(request: Request) -> Response:
    """Whether requests should be sent here: the store answered lately, and the server is not about to stop."""
    problem = await broker_of(request).readiness.problem()
    if problem is None:
        is_ready: answers.Ready = {"status": "ready"}
        return reply(is_ready)
    log.warning("not ready: %s", problem)
    answer: answers.Ready = {"status": "not ready", "error": _told(request, problem), "code": "not_ready"}
    return reply(answer, 503)


def _told(request: Request, problem: str) -> str:
    """What everybody may know of a problem: where tokens are asked for, not what the store is and where."""
    return "the log of the server says why" if edge_of(request).authenticator.enabled else problem


async def metrics(request: Request) -> Response:
    """Numbers about the store, about those who wait for messages or watch keys, and about what shared a call."""
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
    """The switch."""

    enabled: bool


_TEXTS = {"enabled": "enabled (boolean) is required"}


async def show_maintenance(request: Request) -> Response:
    """Whether pushes and pops are stopped."""
    broker = broker_of(request)
    answer: answers.Maintenance = {
        "maintenanceMode": broker.maintenance(PUSH_MAINTENANCE),
        "popMaintenanceMode": broker.maintenance(POP_MAINTENANCE),
        **_NO_BUFFER,
        "bufferStats": _NO_BUFFER_STATS,
    }
    return reply(answer)


async def set_maintenance(request: Request) -> Response:
    """Stop or resume all pushes, over restarts too."""
    enabled = await _switch(request, PUSH_MAINTENANCE)
    answer: answers.PushMaintenance = {
        "maintenanceMode": enabled,
        **_NO_BUFFER,
        "message": "Pushes are refused until maintenance ends" if enabled else "Pushes are accepted",
    }
    return reply(answer)


async def show_pop_maintenance(request: Request) -> Response:
    """Whether pops are stopped."""
    return _pop_maintenance(broker_of(request).maintenance(POP_MAINTENANCE))


async def set_pop_maintenance(request: Request) -> Response:
    """Stop or resume all pops, over restarts too."""
    return _pop_maintenance(await _switch(request, POP_MAINTENANCE))


def _pop_maintenance(enabled: bool) -> Response:
    text = "Pops answer empty until maintenance ends" if enabled else "Pops are served"
    answer: answers.PopMaintenance = {"popMaintenanceMode": enabled, "message": text}
    return reply(answer)


async def _switch(request: Request, flag: str) -> bool:
    enabled = (await read_json(request, MaintenanceBody, "maintenance", _TEXTS)).enabled
    note_target(request.scope, enabled=enabled)
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
