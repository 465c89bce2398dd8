"""The server: health, login, internal numbers, maintenance, metrics, settings, audit log, and the dashboard's files."""

from __future__ import annotations

import gzip
import hashlib
import logging
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import msgspec
from starlette.responses import Response

from hark._version import __version__
from hark.access.tokens import UNRESTRICTED, Identity
from hark.api import operations, types
from hark.api.options import OPTIONS
from hark.broker.broker import POP_MAINTENANCE, PUSH_MAINTENANCE
from hark.clock import SECOND
from hark.errors import Forbidden, NotFound, Unauthorized
from hark.http.admission import clear_cookie, set_cookie
from hark.http.audit import KEPT
from hark.http.routing import Call, Failure, IntParam, bind, table
from hark.prometheus import CONTENT_TYPE
from hark.settings import SETTINGS, shown

log = logging.getLogger(__name__)

# Health ----------------------------------------------------------------------------------------------------


async def health(call: Call) -> types.server.Health:
    """Check the health of the server. Returns 200 if the server can reach its store, else 503."""
    problem = await call.broker.readiness.reach()
    if problem is not None:
        log.warning("health check failed: %s", problem)
        call.status = 503
    number = call.app.number
    return types.server.Health(
        status="healthy" if problem is None else "unhealthy",
        database="connected" if problem is None else "disconnected",
        server="hark",
        worker_id=number,
        version=__version__,
        shared_state={"enabled": False},
        queen={"worker_id": number, "status": "active"},
        error=None if problem is None else _public(call, problem),
        code=None if problem is None else "unhealthy",
        warnings=tuple(_warnings(call)) or None,
    )


def _warnings(call: Call) -> Iterator[str]:
    if keys := call.broker.sealed.missing_keys():
        problem = f"messages are withheld, because encryption keys are missing: {', '.join(keys)}"
        yield f"key_missing: {_public(call, problem)}"
    if (seconds := call.engine.ahead // SECOND) > 0:
        yield (
            f"clock_set_back: the system clock was set back by at least {seconds} s since the store was last used; all "
            "times are ahead of it; correct the clock, then restart the server"
        )


async def live(_call: Call) -> types.server.Ready:
    """Check that the process responds. Does not check the store, so a store outage does not cause a restart."""
    return types.server.Ready(status="live")


async def ready(call: Call) -> types.server.Ready:
    """Check that the server is ready. Returns 503 while the store is unavailable or the server shuts down."""
    problem = await call.broker.readiness.problem()
    if problem is None:
        return types.server.Ready(status="ready")
    log.warning("readiness check failed: %s", problem)
    call.status = 503
    return types.server.Ready(status="not ready", error=_public(call, problem), code="not_ready")


def _public(call: Call, problem: str) -> str:
    """Return the public text of a problem: with authentication on, it does not reveal details of the store."""
    return "see the log of the server for the cause" if call.app.edge.authenticator.enabled else problem


# Sessions --------------------------------------------------------------------------------------------------

_MOST_BYTES = 64 * 1024
"""Size limit of a login, because it needs no token."""


async def show_session(call: Call) -> types.server.Session:
    """Get the current session. Returns the identity of the token or the cookie of the request."""
    return _session(call, _identity(call))


async def log_in(call: Call) -> types.server.Session:
    """Log in. Stores a token in a cookie that scripts cannot read and that lasts until the web browser is closed."""
    edge = call.app.edge
    token = (await call.json(types.server.SessionBody, "body")).value
    # Checked first: a token that does not fit into a cookie is rejected, known or not.
    cookie = set_cookie(token, secure=_is_secure(call)) if edge.authenticator.enabled else None
    identity = edge.log_in(call.exchange, token)
    if cookie is not None:
        call.headers = ((b"set-cookie", cookie.encode()),)
        edge.audit.record(call.exchange, "login", 200, "done", {})
    return _session(call, identity)


async def log_out(call: Call) -> types.server.Session:
    """Log out. Removes the cookie. The token remains valid until it expires or is revoked."""
    edge = call.app.edge
    identity = _identity(call)
    if identity is not None and edge.authenticator.enabled:
        call.exchange.identity = identity
        edge.audit.record(call.exchange, "logout", 200, "done", {})
    call.headers = ((b"set-cookie", clear_cookie(secure=_is_secure(call)).encode()),)
    return _session(call, None)


def _identity(call: Call) -> Identity | None:
    edge = call.app.edge
    try:
        return edge.authenticator.identify(edge.credential(call.exchange.headers))
    except (Unauthorized, Forbidden):
        return None


def _session(call: Call, identity: Identity | None) -> types.server.Session:
    required = call.app.edge.authenticator.enabled
    if not required:
        identity = UNRESTRICTED
    if identity is None:
        return types.server.Session(required, False)
    return types.server.Session(required, True, identity.subject, identity.role.text, identity.queues)


def _is_secure(call: Call) -> bool:
    """Return whether the web browser uses TLS, to this server or (by its origin) to a proxy in front of it."""
    return call.exchange.secure or call.exchange.headers.get(b"origin", b"").startswith(b"https://")


# Numbers, settings and maintenance -------------------------------------------------------------------------

# Hark has no write buffer: it stores data before it responds.
_NO_BUFFER = {
    "pendingCount": 0,
    "failedCount": 0,
    "dbHealthy": True,
    "failedFiles": {"count": 0, "totalBytes": 0, "totalMB": 0, "failoverCount": 0, "qos0Count": 0},
}
_TEXTS = {"enabled": "enabled (boolean) is required"}
_LIMIT = IntParam("limit", "Maximum number of records to return.", KEPT, 1, KEPT)


async def metrics(call: Call) -> types.server.SystemMetrics:
    """Get internal metrics as JSON.

    Returns numbers about the store, waiting consumers, key watchers, batches and peers. For monitoring, use
    GET /metrics.
    """
    broker = call.broker
    return types.server.SystemMetrics(
        store=await call.engine.store_metrics(),
        delivery=broker.delivery.snapshot(),
        watching=broker.keyvalue.watchers.metrics(),
        batching={
            verb: types.server.BatchSizes(sizes.calls, sizes.requests, sizes.largest)
            for verb, sizes in broker.batchers.sizes().items()
        },
        peers=broker.peer_metrics(),
    )


async def show_maintenance(call: Call) -> types.server.Maintenance:
    """Get the maintenance mode. Returns whether pushes and pops are stopped."""
    return types.server.Maintenance(
        push=call.broker.maintenance(PUSH_MAINTENANCE),
        pop=call.broker.maintenance(POP_MAINTENANCE),
        buffered_messages=0,
        buffer_healthy=True,
        buffer_stats=_NO_BUFFER,
    )


async def set_maintenance(call: Call) -> types.server.PushMaintenance:
    """Set the maintenance mode for pushes. While it is on, pushes return 503. It survives restarts."""
    enabled = await _switch(call, PUSH_MAINTENANCE)
    return types.server.PushMaintenance(
        maintenance_mode=enabled,
        buffered_messages=0,
        buffer_healthy=True,
        message="Pushes are rejected until maintenance is turned off" if enabled else "Pushes are accepted",
    )


async def show_pop_maintenance(call: Call) -> types.server.PopMaintenance:
    """Get the maintenance mode for pops. Returns whether pops are stopped."""
    return _pop_maintenance(call.broker.maintenance(POP_MAINTENANCE))


async def set_pop_maintenance(call: Call) -> types.server.PopMaintenance:
    """Set the maintenance mode for pops. While it is on, pops return no messages. It survives restarts."""
    return _pop_maintenance(await _switch(call, POP_MAINTENANCE))


def _pop_maintenance(enabled: bool) -> types.server.PopMaintenance:
    text = "Pops return no messages until maintenance is turned off" if enabled else "Pops return messages"
    return types.server.PopMaintenance(pop_maintenance_mode=enabled, message=text)


async def _switch(call: Call, flag: str) -> bool:
    enabled = (await call.json(types.server.MaintenanceBody, "maintenance", _TEXTS)).value
    call.exchange.note_target(enabled=enabled)
    await call.broker.set_maintenance(flag, enabled)
    return enabled


async def show_openapi(call: Call) -> msgspec.Raw:
    """Get the OpenAPI document. Returns this document, for clients and code generators."""
    return msgspec.Raw(call.app.openapi)


async def list_audit(call: Call) -> types.Single[tuple[types.server.AuditRecord, ...]]:
    """List audit records. Returns the latest audit records of this server process, the newest first."""
    return types.server.AuditRecords(tuple(call.app.edge.audit.last)[::-1][: _LIMIT.of(call.query)])


async def scrape(call: Call) -> Response:
    """Get metrics for Prometheus. Returns all metrics of the server in the Prometheus text format."""
    return Response(await call.app.metrics.scrape(), headers={"content-type": CONTENT_TYPE})


async def show_settings(call: Call) -> types.server.ShownSettings:
    """List settings. Returns every setting of the server with its value. Secrets are hidden."""
    settings = call.settings
    return types.server.ShownSettings(
        version=__version__,
        engine=shown(settings, "engine") or f"sqlite:///{Path(settings.data) / 'hark.db'}",
        settings=tuple(
            types.server.ShownSetting(name, shown(settings, name), setting.meaning)
            for name, setting in SETTINGS.items()
        ),
    )


# The files of the dashboard: part of the package, read once and served from memory -------------------------

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_INDEX = "index.html"


class Page(msgspec.Struct, frozen=True):
    """A file, plain and compressed. The two have different tags, as strong entity tags must."""

    type: str
    plain: bytes
    packed: bytes
    tag: str
    packed_tag: str


async def show_dashboard(call: Call) -> Response:
    """Get the dashboard. Returns the HTML page of the dashboard."""
    return _serve(call, _INDEX)


async def show_asset(call: Call) -> Response:
    """Get a file of the dashboard. Returns a style sheet, a script or an image of the dashboard."""
    return _serve(call, "/".join(call.exchange.params["path"]))


def _serve(call: Call, path: str) -> Response:
    exchange = call.exchange
    page = _pages().get(path)
    if page is None:
        raise NotFound(
            f"no such route: {exchange.method} {exchange.path}; GET /openapi.json lists the routes",
            code="route_not_found",
        )
    packed = _takes_gzip(exchange.headers.get(b"accept-encoding", b"").decode("latin-1"))
    tag = page.packed_tag if packed else page.tag
    # Web browsers revalidate cached files on each use, so that all files are of the same version.
    headers = {"etag": tag, "cache-control": "no-cache", "vary": "accept-encoding"}
    known = exchange.headers.get(b"if-none-match", b"").decode("latin-1").split(",")
    if any(one.strip().removeprefix("W/") in (tag, "*") for one in known):
        return Response(status_code=304, headers=headers)
    if packed:
        headers["content-encoding"] = "gzip"
    return Response(page.packed if packed else page.plain, headers=headers | {"content-type": page.type})


def _takes_gzip(accepted: str) -> bool:
    for part in accepted.split(","):
        name, *parameters = (word.strip().lower() for word in part.split(";"))
        if name in ("gzip", "*"):
            return not any(_is_zero(parameter) for parameter in parameters)
    return False


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name == "q" and value.strip("0.") == ""


@cache
def _pages() -> dict[str, Page]:
    files = dict(_files(resources.files("hark") / "dashboard"))
    files["lib/queue-options.js"] = b"export const OPTIONS = %b;\n" % msgspec.json.encode(list(OPTIONS.values()))
    return {path: _page(path, content) for path, content in files.items()}


def _files(folder: Traversable, prefix: str = "") -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        if item.is_dir():
            found += _files(item, f"{prefix}{item.name}/")
        elif item.name.rpartition(".")[2] in _TYPES:
            found.append((prefix + item.name, item.read_bytes()))
    return found


def _page(path: str, content: bytes) -> Page:
    name = hashlib.sha256(content).hexdigest()[:32]
    # Without a modification time, all servers compress the same content to the same bytes.
    packed = gzip.compress(content, mtime=0)
    return Page(_TYPES[path.rpartition(".")[2]], content, packed, f'"{name}"', f'"{name}-gzip"')


TABLE = table(
    bind(operations.HEALTH, health, answer={200: types.server.Health, 503: types.server.Health}),
    bind(operations.LIVE, live),
    bind(operations.READY, ready, answer={200: types.server.Ready, 503: types.server.Ready}),
    bind(operations.METRICS, metrics),
    bind(operations.SHOW_MAINTENANCE, show_maintenance),
    bind(operations.SET_MAINTENANCE, set_maintenance, body=types.server.MaintenanceBody),
    bind(operations.SHOW_POP_MAINTENANCE, show_pop_maintenance),
    bind(operations.SET_POP_MAINTENANCE, set_pop_maintenance, body=types.server.MaintenanceBody),
    bind(operations.SHOW_OPENAPI, show_openapi),
    bind(operations.LIST_AUDIT, list_audit, query=(_LIMIT,)),
    bind(operations.SCRAPE_METRICS, scrape, media="text/plain"),
    bind(operations.SCRAPE_PROMETHEUS, scrape, media="text/plain"),
    bind(operations.SHOW_SETTINGS, show_settings),
    bind(operations.SHOW_SESSION, show_session),
    bind(
        operations.LOG_IN,
        log_in,
        body=types.server.SessionBody,
        body_bytes=_MOST_BYTES,
        errors=(Failure(401, "unauthorized"), Failure(429, "too_many_logins")),
    ),
    bind(operations.LOG_OUT, log_out),
    bind(operations.SHOW_DASHBOARD, show_dashboard, answer={200: str, 304: None}, media="text/html"),
    bind(
        operations.SHOW_ASSET,
        show_asset,
        answer={200: str, 304: None},
        media="*/*",
        errors=(Failure(404, "route_not_found"),),
    ),
)
