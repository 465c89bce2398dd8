"""Admission of requests: authentication, roles and permitted queues."""

from __future__ import annotations

import ipaddress
from functools import lru_cache, partial
from typing import cast

from starlette.requests import Request

from hark.access.authenticator import Authenticates, credential_of
from hark.access.identity import ANYBODY, NOBODY, Identity, Role
from hark.access.jwts import MAX_LENGTH
from hark.broker.work_queues import DEFAULT_QUEUE
from hark.clock import Clock, SystemClock
from hark.errors import Forbidden, HarkError, Overloaded, Unauthorized
from hark.http.checks import query_params
from hark.http.edge.answers import dress
from hark.http.edge.audit import Audit, client_of, is_audited, target_of
from hark.http.edge.identities import check_role, check_unrestricted
from hark.http.edge.request_ids import HEADER
from hark.http.edge.sessions import Guesses, cookie_value
from hark.http.edge.sites import Headers, Sites
from hark.http.edge.trace_contexts import PARENT_HEADER, note_context
from hark.http.exchange import Exchange
from hark.http.responses import Response, error_response
from hark.http.routes.table import Reach
from hark.settings import Settings

METRICS_PATHS = frozenset({"/metrics", "/metrics/prometheus"})
_SCRAPER = Identity("", Role.READ_ONLY)
"""The identity of requests for public metrics."""
_KEYVAL = b"/keyval/"
_KEPT_CREDENTIALS = 1024
_MAX_CREDENTIAL_BYTES = MAX_LENGTH + 64
"""Size limit of the header with its scheme, so that clients without a token cannot fill memory."""


class Edge:
    """Admits requests to the routes of one server."""

    def __init__(self, settings: Settings, authenticator: Authenticates, clock: Clock | None = None) -> None:
        self.authenticator = authenticator
        self.audit = Audit(clock or SystemClock(), settings.audit.file)
        self.guesses = Guesses()
        self._sites = Sites(
            settings.cors.origins, (*settings.allowed_hosts, settings.host), loopback=is_loopback(settings.host)
        )
        self._good_hosts = self._sites.good_hosts
        self._identify = authenticator.identify
        self._public_metrics = settings.auth.public_metrics
        self._credential_of = lru_cache(_KEPT_CREDENTIALS)(_credential_in)

    def admit(self, exchange: Exchange) -> None:
        """Admit a request and note its identity, or raise the reason for the refusal. This runs for every request."""
        headers, operation = exchange.headers, exchange.operation
        if PARENT_HEADER in headers:
            note_context(exchange)
        if b"origin" in headers or b"sec-fetch-site" in headers:
            self._sites.check(headers, page=operation.role is None)
        if operation.role is None or (self._public_metrics and exchange.path in METRICS_PATHS):
            if not self.authenticator.enabled:
                self._sites.check_host(headers, public=True)
            exchange.identity = NOBODY if operation.role is None else _SCRAPER
            self._dress(exchange)
            return
        given = headers.get(b"authorization")
        if given is not None:
            identity = self._identify(self._credential_of(given))
        else:
            identity = self._identify(self.credential(headers) if b"cookie" in headers else None)
        exchange.identity = identity
        if identity is ANYBODY:
            if headers.get(b"host") not in self._good_hosts:
                self._sites.check_host(headers)
        elif identity.role < operation.role:
            check_role(identity, operation.role)
        elif identity.restricted:
            _check_reach(exchange)
            self._dress(exchange)
            return
        # Successful responses of raw and hot operations need no further headers.
        if not (operation.raw or operation.hot) or b"origin" in headers or HEADER in headers:
            self._dress(exchange)

    def credential(self, headers: Headers) -> str | None:
        """Return the token of a request, from its header or from the cookie of the dashboard."""
        given = headers.get(b"authorization")
        if given is not None:
            return self._credential_of(given)
        cookie = headers.get(b"cookie")
        return None if cookie is None or self._sites.is_foreign(headers) else cookie_value(cookie)

    def _dress(self, exchange: Exchange) -> None:
        if is_audited(exchange):
            exchange.note = partial(self._note_action, exchange)
        elif exchange.operation.reach is Reach.ITEMS:
            exchange.note = partial(self._note_forbidden, exchange)
        dress(exchange, self._sites.cors_headers(exchange.headers))

    # Audit log ---------------------------------------------------------------------------------------------

    def _note_action(self, exchange: Exchange, status: int) -> None:
        try:
            query = query_params(exchange.query)
        except HarkError:
            query = {}
        result = "done" if status < 400 else "failed"
        self.audit.record(exchange, exchange.operation.endpoint.__name__, status, result, target_of(exchange, query))

    def _note_forbidden(self, exchange: Exchange, status: int) -> None:
        if status == Forbidden.status:
            self.audit.refused(exchange, status, "queue_not_allowed")

    # Refusing ----------------------------------------------------------------------------------------------

    def refuse(self, exchange: Exchange, error: HarkError) -> Response:
        """Return the response to a request that is not admitted: to a CORS preflight, or an error."""
        headers = exchange.headers
        if isinstance(error, (Unauthorized, Forbidden)):
            if _has_credential(headers):
                self.audit.refused(exchange, error.status, error.code)
        elif exchange.method == "OPTIONS":
            try:
                allowed = self._sites.preflight(headers)
            except Forbidden as forbidden:
                error = forbidden
            else:
                if allowed is not None:
                    dress(exchange, allowed)
                    return 204, (), b""
        dress(exchange, self._sites.cors_headers(headers))
        return error_response(error)

    # Logins ------------------------------------------------------------------------------------------------

    def log_in(self, exchange: Exchange, token: str) -> Identity:
        """Return the identity of a token from the login page. Failed logins are limited by client address."""
        address = client_of(exchange)
        try:
            self.guesses.check(address)
            identity = self.authenticator.identify(token)
        except Overloaded as error:
            self.audit.refused(exchange, error.status, error.code)
            raise
        except (Unauthorized, Forbidden) as error:
            self.guesses.failed(address)
            self.audit.refused(exchange, error.status, error.code)
            raise
        exchange.identity = identity
        return identity


def edge_of(request: Request) -> Edge:
    """Return the `Edge` of this server."""
    return cast(Edge, request.app.edge)


def _check_reach(exchange: Exchange) -> None:
    """Check a restricted token against the queue in the path or the query."""
    identity = exchange.identity
    match exchange.operation.reach:
        case Reach.PATH:
            identity.check_queue(str(exchange.params["queue"]))
        case Reach.QUERY:
            queue = query_params(exchange.query).get("queue")
            if not queue:
                if not exchange.raw_path.startswith(_KEYVAL):
                    raise Forbidden(
                        "this token is restricted to some queues; name one of them with the parameter queue",
                        code="queue_not_allowed",
                    )
                queue = DEFAULT_QUEUE
            identity.check_queue(queue)
        case Reach.SERVER:
            check_unrestricted(identity, "this operation is")
        case Reach.NOTHING | Reach.ITEMS | Reach.LISTED:
            pass


def _has_credential(headers: Headers) -> bool:
    """Return whether a request has a token, valid or not. Clients without one cannot fill the audit log."""
    return bool(headers.get(b"authorization")) or cookie_value(headers.get(b"cookie")) is not None


def _credential_in(header: bytes) -> str | None:
    if len(header) > _MAX_CREDENTIAL_BYTES:
        raise Unauthorized("the token is too long; check that the Authorization header has a token of this server")
    return credential_of(header.decode("latin-1"))


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reachable only from this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
