"""Health, login, internal numbers, maintenance, metrics, settings and the audit log of the server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from hark._version import __version__
from hark.access.identity import UNRESTRICTED, Identity
from hark.api import operations
from hark.api.types.server import (
    AuditRecords,
    BatchSizes,
    Health,
    Maintenance,
    MaintenanceBody,
    PopMaintenance,
    PushMaintenance,
    Ready,
    Session,
    SessionBody,
    ShownSetting,
    ShownSettings,
    SystemMetrics,
)
from hark.broker.broker import POP_MAINTENANCE, PUSH_MAINTENANCE
from hark.clock import SECOND
from hark.errors import Forbidden, Unauthorized
from hark.http.admission import Edge, clear_cookie, edge_of, set_cookie
from hark.http.audit import KEPT
from hark.http.exchange import exchange_of
from hark.http.routes.requests import broker_of, query_of, read_json, reply, settings_of
from hark.http.routes.table import JSON, Failure, IntParam, Table, bind, table
from hark.prometheus import CONTENT_TYPE
from hark.settings import SETTINGS, shown

_MOST_BYTES = 64 * 1024
"""Size limit of a login, because it needs no token."""


async def show_session(request: Request) -> Response:
    """Get the current session. Returns the identity of the token or the cookie of the request."""
    return reply(_session(edge_of(request), _identity(request)))


async def log_in(request: Request) -> Response:
    """Log in. Stores a token in a cookie that scripts cannot read and that lasts until the web browser is closed."""
    edge = edge_of(request)
    token = (await read_json(request, SessionBody, "body")).token
    # Checked first: a token that does not fit into a cookie is rejected, known or not.
    cookie = set_cookie(token, secure=_is_secure(request)) if edge.authenticator.enabled else None
    identity = edge.log_in(exchange_of(request), token)
    response = reply(_session(edge, identity))
    if cookie is not None:
        response.headers["set-cookie"] = cookie
        edge.audit.record(exchange_of(request), "login", 200, "done", {})
    return response


async def log_out(request: Request) -> Response:
    """Log out. Removes the cookie. The token remains valid until it expires or is revoked."""
    edge = edge_of(request)
    identity = _identity(request)
    if identity is not None and edge.authenticator.enabled:
        exchange_of(request).identity = identity
        edge.audit.record(exchange_of(request), "logout", 200, "done", {})
    response = reply(_session(edge, None))
    response.headers["set-cookie"] = clear_cookie(secure=_is_secure(request))
    return response


def _identity(request: Request) -> Identity | None:
    edge = edge_of(request)
    try:
        return edge.authenticator.identify(edge.credential(exchange_of(request).headers))
    except (Unauthorized, Forbidden):
        return None


def _session(edge: Edge, identity: Identity | None) -> Session:
    required = edge.authenticator.enabled
    if not required:
        identity = UNRESTRICTED
    if identity is None:
        return Session(required, False)
    return Session(required, True, identity.subject, identity.role.text, identity.queues)


def _is_secure(request: Request) -> bool:
    """Return whether the web browser uses TLS, to this server or (by its origin) to a proxy in front of it."""
    return exchange_of(request).secure or request.headers.get("origin", "").startswith("https://")


SESSION_TABLE: Table = table(
    bind(operations.SHOW_SESSION, show_session),
    bind(
        operations.LOG_IN,
        log_in,
        body=SessionBody,
        body_bytes=_MOST_BYTES,
        errors=(Failure(401, "unauthorized"), Failure(429, "too_many_logins")),
    ),
    bind(operations.LOG_OUT, log_out),
)


log = logging.getLogger(__name__)

# Hark has no write buffer: it stores data before it responds.
_NO_BUFFER = {
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
    number = request.app.number
    answer = Health(
        status="healthy" if problem is None else "unhealthy",
        database="connected" if problem is None else "disconnected",
        server="hark",
        worker_id=number,
        version=__version__,
        shared_state={"enabled": False},
        queen={"worker_id": number, "status": "active"},
        error=None if problem is None else _public_text(request, problem),
        code=None if problem is None else "unhealthy",
        warnings=tuple(_warnings(request)) or None,
    )
    return reply(answer, 200 if problem is None else 503)


def _warnings(request: Request) -> Iterator[str]:
    broker = broker_of(request)
    if keys := broker.missing_keys():
        withheld = f"messages are withheld, because encryption keys are missing: {', '.join(keys)}"
        yield f"key_missing: {_public_text(request, withheld)}"
    if (seconds := broker.engine.ahead // SECOND) > 0:
        yield (
            f"clock_set_back: the system clock was set back by at least {seconds} s since the store was last used; all "
            "times are ahead of it; correct the clock, then restart the server"
        )


async def live(_request: Request) -> Response:
    """Check that the process responds. Does not check the store, so a store outage does not cause a restart."""
    return reply(Ready(status="live"))


async def ready(request: Request) -> Response:
    """Check that the server is ready. Returns 503 while the store is unavailable or the server shuts down."""
    problem = await broker_of(request).readiness.problem()
    if problem is None:
        is_ready: Ready = Ready(status="ready")
        return reply(is_ready)
    log.warning("readiness check failed: %s", problem)
    return reply(Ready(status="not ready", error=_public_text(request, problem), code="not_ready"), 503)


def _public_text(request: Request, problem: str) -> str:
    """Return the public text of a problem: with authentication on, it does not reveal details of the store."""
    return "see the log of the server for the cause" if edge_of(request).authenticator.enabled else problem


async def metrics(request: Request) -> Response:
    """Get internal metrics as JSON.

    Returns numbers about the store, waiting consumers, key watchers, batches and peers. For monitoring, use
    GET /metrics.
    """
    broker = broker_of(request)
    return reply(
        SystemMetrics(
            store=await broker.engine.store_metrics(),
            delivery=broker.delivery.snapshot(),
            watching=broker.keyvalue.watchers.metrics(),
            batching={
                verb: BatchSizes(calls=sizes.calls, requests=sizes.requests, largest=sizes.largest)
                for verb, sizes in broker.batch_sizes().items()
            },
            peers=broker.peer_metrics(),
        )
    )


_TEXTS = {"enabled": "enabled (boolean) is required"}


async def show_maintenance(request: Request) -> Response:
    """Get the maintenance mode. Returns whether pushes and pops are stopped."""
    broker = broker_of(request)
    return reply(
        Maintenance(
            push=broker.maintenance(PUSH_MAINTENANCE),
            pop=broker.maintenance(POP_MAINTENANCE),
            buffered_messages=0,
            buffer_healthy=True,
            buffer_stats=_NO_BUFFER,
        )
    )


async def set_maintenance(request: Request) -> Response:
    """Set the maintenance mode for pushes. While it is on, pushes return 503. It survives restarts."""
    enabled = await _switch(request, PUSH_MAINTENANCE)
    return reply(
        PushMaintenance(
            maintenance_mode=enabled,
            buffered_messages=0,
            buffer_healthy=True,
            message="Pushes are rejected until maintenance is turned off" if enabled else "Pushes are accepted",
        )
    )


async def show_pop_maintenance(request: Request) -> Response:
    """Get the maintenance mode for pops. Returns whether pops are stopped."""
    return _pop_maintenance(broker_of(request).maintenance(POP_MAINTENANCE))


async def set_pop_maintenance(request: Request) -> Response:
    """Set the maintenance mode for pops. While it is on, pops return no messages. It survives restarts."""
    return _pop_maintenance(await _switch(request, POP_MAINTENANCE))


def _pop_maintenance(enabled: bool) -> Response:
    text = "Pops return no messages until maintenance is turned off" if enabled else "Pops return messages"
    return reply(PopMaintenance(pop_maintenance_mode=enabled, message=text))


async def _switch(request: Request, flag: str) -> bool:
    enabled = (await read_json(request, MaintenanceBody, "maintenance", _TEXTS)).enabled
    exchange_of(request).note_target(enabled=enabled)
    await broker_of(request).set_maintenance(flag, enabled)
    return enabled


# The OpenAPI document ----------------------------------------------------------------------------------------


async def show_openapi(request: Request) -> Response:
    """Get the OpenAPI document. Returns this document, for clients and code generators."""
    return Response(request.app.openapi, media_type=JSON)


# Audit records -----------------------------------------------------------------------------------------------


_LIMIT = IntParam("limit", "Maximum number of records to return.", KEPT, 1, KEPT)


async def list_audit(request: Request) -> Response:
    """List audit records. Returns the latest audit records of this server process, the newest first."""
    limit = _LIMIT.of(query_of(request))
    return reply(AuditRecords(tuple(edge_of(request).audit.last)[::-1][:limit]))


# Metrics for Prometheus --------------------------------------------------------------------------------------


async def scrape(request: Request) -> Response:
    """Get metrics for Prometheus. Returns all metrics of the server in the Prometheus text format."""
    body = await request.app.metrics.scrape()
    return Response(body, headers={"content-type": CONTENT_TYPE})


# Settings ----------------------------------------------------------------------------------------------------


async def show_settings(request: Request) -> Response:
    """List settings. Returns every setting of the server with its value. Secrets are hidden."""
    settings = settings_of(request)
    return reply(
        ShownSettings(
            version=__version__,
            engine=shown(settings, "engine") or f"sqlite:///{Path(settings.data) / 'hark.db'}",
            settings=tuple(
                ShownSetting(name=name, value=shown(settings, name), meaning=setting.meaning)
                for name, setting in SETTINGS.items()
            ),
        )
    )


TABLE: Table = table(
    bind(operations.HEALTH, health, answer={200: Health, 503: Health}),
    bind(operations.LIVE, live),
    bind(operations.READY, ready, answer={200: Ready, 503: Ready}),
    bind(operations.METRICS, metrics),
    bind(operations.SHOW_MAINTENANCE, show_maintenance),
    bind(operations.SET_MAINTENANCE, set_maintenance, body=MaintenanceBody),
    bind(operations.SHOW_POP_MAINTENANCE, show_pop_maintenance),
    bind(operations.SET_POP_MAINTENANCE, set_pop_maintenance, body=MaintenanceBody),
    bind(operations.SHOW_OPENAPI, show_openapi),
    bind(operations.LIST_AUDIT, list_audit, query=(_LIMIT,)),
    bind(operations.SCRAPE_METRICS, scrape, media="text/plain"),
    bind(operations.SCRAPE_PROMETHEUS, scrape, media="text/plain"),
    bind(operations.SHOW_SETTINGS, show_settings),
)
