"""Login of the dashboard: exchanges a token for a cookie."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from hark.access.identity import ANYBODY, Identity
from hark.errors import Forbidden, Unauthorized
from hark.http.edge.admitting import Edge, edge_of
from hark.http.edge.sessions import clear_cookie, set_cookie
from hark.http.exchange import exchange_of
from hark.http.routes.requests import read_json, reply
from hark.http.routes.table import Failure, Table, public

_MOST_BYTES = 64 * 1024
"""Size limit of a login, because it needs no token."""


class SessionBody(msgspec.Struct):
    """The token to log in with."""

    token: str


class Session(msgspec.Struct):
    """The current login, and whether a token is required."""

    required: bool
    authenticated: bool
    subject: str = ""
    role: str | None = None
    queues: tuple[str, ...] = ()


async def show_session(request: Request) -> Response:
    """Get the current session. Returns the identity of the token or the cookie of the request."""
    return reply(_session(edge_of(request), _identity(request)))


async def log_in(request: Request) -> Response:
    """Log in. Stores a token in a cookie that scripts cannot read and that lasts until the web browser is closed."""
    edge = edge_of(request)
    token = (await read_json(request, SessionBody, "body", most=_MOST_BYTES)).token
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
        identity = ANYBODY
    if identity is None:
        return Session(required, False)
    return Session(required, True, identity.subject, identity.role.text, identity.queues)


def _is_secure(request: Request) -> bool:
    """Return whether the web browser uses TLS, to this server or (by its origin) to a proxy in front of it."""
    return exchange_of(request).secure or request.headers.get("origin", "").startswith("https://")


TABLE: Table = {
    "/api/v1/session": {
        "GET": public(show_session, answer=Session),
        "POST": public(
            log_in,
            body=SessionBody,
            answer=Session,
            errors=(Failure(401, "unauthorized"), Failure(429, "too_many_logins")),
        ),
        "DELETE": public(log_out, answer=Session),
    }
}
